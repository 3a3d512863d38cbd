//! Node images: from a registry to a root file system that can be mounted, against `skopeo copy` with `umoci unpack`, and against
//! containerd (`ctr image pull`).
//!
//! The image is that of `cargo xtask image node`, as it is (zstd), and with its layers in gzip, which umoci needs. The registry is on
//! loopback. Every subject begins with an empty directory and has ended when what it wrote is on disk: ours says so by itself, after
//! the others `sync -f` is counted. Ours is this program again, as a process with the library that the agent has.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bedplate_oci::Access;
use bedplate_oci::node::{LayerStore, Limits, NodeSource};
use serde_json::{Value, json};

use crate::measurement::{Better, Context, OURS, Row, rows};
use bedplate_tests::guard::{Directory, Process, run as run_program};
use bedplate_tests::netns::Namespace;
use bedplate_tests::registry::Registry;
use bedplate_tests::{pxed, timeline, wait};

const UMOCI: &str = "skopeo, umoci";
const CONTAINERD: &str = "containerd";
const GZIP_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Says that this program is to pull an image.
const PULL: &str = "pull-node-image";

/// Directory of an unpacked image.
struct Medium {
    title: &'static str,
    place: Directory,
}

/// One image in a registry.
struct Served {
    registry: Registry,
    /// Bytes of all layers, uncompressed.
    bytes: u64,
}

/// Measures gzip on disk and in memory, and zstd in memory.
///
/// # Errors
/// The image is missing or cannot be converted. A subject that fails is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let network = Namespace::new("unpack")?;
    let built = pxed::cache()?.join("images/node");
    let gzip = context.directory.path().join("gzip");
    let bytes = convert(&built, &gzip)?;
    let serve = |layout: &Path, port: u16| -> Result<Served> {
        let registry = Registry::start(layout, &network, ([127, 0, 0, 1], port).into())?;
        Ok(Served { registry, bytes })
    };
    let (gzip, zstd) = (serve(&gzip, 5001)?, serve(&built, 5002)?);
    let disk = Medium { title: "until it is on disk", place: Directory::new("unpack")? };
    let memory = Medium { title: "in memory (tmpfs)", place: Directory::within("/dev/shm", "unpack")? };
    let mut all = Vec::new();
    for (image, medium, form, subjects) in [
        (&gzip, &disk, "gzip", &[OURS, UMOCI, CONTAINERD][..]),
        (&gzip, &memory, "gzip", &[OURS, UMOCI, CONTAINERD]),
        (&zstd, &memory, "zstd", &[OURS, CONTAINERD]),
    ] {
        let title = format!("Node image from a registry ({form}), unpacked {}", medium.title);
        all.extend(measure(context, &network, image, medium, &title, subjects));
        timeline::say(&format!("bench {title}: done"));
    }
    Ok(all)
}

fn measure(
    context: &Context,
    network: &Namespace,
    image: &Served,
    medium: &Medium,
    title: &str,
    subjects: &[&str],
) -> Vec<Row> {
    let mut measured: Vec<(String, Vec<f64>, String)> =
        subjects.iter().map(|name| ((*name).to_owned(), Vec::new(), String::new())).collect();
    for _ in 0..context.rounds {
        for (name, rates, _) in &mut measured {
            let place = medium.place.path().join("round");
            let rate = pull(name, network, image, &place);
            rates.extend(context.noted(title, name, rate));
            let _ = std::fs::remove_dir_all(&place);
        }
    }
    rows(context, title, "MiB/s", Better::More, measured)
}

/// MiB of unpacked layers a second.
fn pull(subject: &str, network: &Namespace, image: &Served, place: &Path) -> Result<f64> {
    std::fs::create_dir_all(place)?;
    // Writes of a former subject that are not on disk yet must not count for this one.
    run_program(Command::new("sync").arg("-f").arg(place))?;
    let reference = image.registry.reference();
    let took = match subject {
        OURS => ours(network, &reference, place),
        UMOCI => umoci(network, &reference, place),
        _ => containerd(network, &reference, place),
    }?;
    Ok(image.bytes as f64 / f64::from(1 << 20) / took.as_secs_f64())
}

fn ours(network: &Namespace, reference: &str, place: &Path) -> Result<Duration> {
    let mut command = network.command(std::env::current_exe().context("no path of this program")?);
    let start = Instant::now();
    run_program(command.arg(PULL).arg(place).arg(reference))?;
    Ok(start.elapsed())
}

fn umoci(network: &Namespace, reference: &str, place: &Path) -> Result<Duration> {
    let layout = format!("oci:{}:image", place.join("layout").display());
    let mut copy = network.command("skopeo");
    copy.args(["copy", "--quiet", "--src-tls-verify=false", &format!("docker://{reference}"), &layout]);
    let mut unpack = Command::new("umoci");
    unpack.args(["unpack", "--image", &format!("{}:image", place.join("layout").display())]);
    let start = Instant::now();
    run_program(&mut copy)?;
    run_program(unpack.arg(place.join("bundle")))?;
    run_program(Command::new("sync").arg("-f").arg(place))?;
    Ok(start.elapsed())
}

fn containerd(network: &Namespace, reference: &str, place: &Path) -> Result<Duration> {
    let at = |name: &str| place.join(name).display().to_string();
    let configuration = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\n\
         disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n\
         [grpc]\naddress = {:?}\n",
        at("root"),
        at("state"),
        at("containerd.sock")
    );
    std::fs::write(place.join("config.toml"), configuration)?;
    let mut command = network.command("containerd");
    command.args(["--config", &at("config.toml")]);
    let mut daemon = Process::spawn("containerd", &mut command, &place.join("containerd.log"))?;
    let ctr = || {
        let mut command = network.command("ctr");
        command.args(["--address", &at("containerd.sock")]).stdin(Stdio::null());
        command
    };
    wait::until("containerd", Duration::from_secs(30), || {
        Ok(ctr().arg("version").output().is_ok_and(|output| output.status.success()).then_some(()))
    })?;
    let start = Instant::now();
    run_program(ctr().args(["image", "pull", "--plain-http", "--snapshotter", "overlayfs", reference]))?;
    run_program(Command::new("sync").arg("-f").arg(place))?;
    let took = start.elapsed();
    daemon.terminate(Duration::from_secs(30))?;
    Ok(took)
}

/// Writes the image of a layout with its layers in gzip; gives their size without it.
fn convert(from: &Path, to: &Path) -> Result<u64> {
    let read =
        |digest: &str| -> Result<Value> { Ok(serde_json::from_slice(&std::fs::read(blob(from, digest)?)?)?) };
    let index = std::fs::read(from.join("index.json"))
        .with_context(|| format!("{} is no OCI layout: run `cargo xtask image node`", from.display()))?;
    let index: Value = serde_json::from_slice(&index)?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a digest");
    let mut manifest = read(&text(&index["manifests"][0]["digest"])?)?;
    std::fs::create_dir_all(to.join("blobs/sha256"))?;
    let config = text(&manifest["config"]["digest"])?;
    std::fs::copy(blob(from, &config)?, blob(to, &config)?)?;
    let mut bytes = 0;
    for layer in manifest["layers"].as_array_mut().context("layers")? {
        let plain = to.join("layer.tar");
        let source = blob(from, &text(&layer["digest"])?)?;
        let media_type = layer["mediaType"].as_str().unwrap_or_default();
        let program = match media_type.rsplit_once('+') {
            Some((_, "zstd")) => "zstd",
            Some((_, "gzip")) => "gzip",
            _ => bail!("{media_type} is not expected here"),
        };
        let output = std::fs::File::create(&plain)?;
        let status = Command::new(program).arg("-dc").arg(source).stdout(output).status()?;
        anyhow::ensure!(status.success(), "{program} fails");
        bytes += std::fs::metadata(&plain)?.len();
        run_program(Command::new("gzip").args(["-n", "-6"]).arg(&plain))?;
        let (digest, size) = put(to, &to.join("layer.tar.gz"))?;
        *layer = json!({ "mediaType": GZIP_TYPE, "digest": digest, "size": size });
    }
    let file = to.join("manifest");
    std::fs::write(&file, manifest.to_string())?;
    let (digest, size) = put(to, &file)?;
    let manifest = json!({ "mediaType": manifest["mediaType"], "digest": digest, "size": size });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    std::fs::write(to.join("index.json"), index.to_string())?;
    std::fs::write(to.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(bytes)
}

fn blob(layout: &Path, digest: &str) -> Result<PathBuf> {
    Ok(layout.join("blobs/sha256").join(digest.strip_prefix("sha256:").context("a digest")?))
}

/// Moves a file among the blobs.
fn put(layout: &Path, file: &Path) -> Result<(String, u64)> {
    let said = run_program(Command::new("sha256sum").arg(file))?;
    let digest = format!("sha256:{}", said.split_whitespace().next().context("a checksum")?);
    let size = std::fs::metadata(file)?.len();
    std::fs::rename(file, blob(layout, &digest)?)?;
    Ok((digest, size))
}

/// This program as the one that is measured: `pull-node-image DIRECTORY REFERENCE`.
pub(crate) fn pulls(arguments: &[String]) -> Option<Result<()>> {
    match arguments {
        [kind, place, reference] if kind == PULL => Some(pull_here(Path::new(place), reference)),
        _ => None,
    }
}

fn pull_here(place: &Path, reference: &str) -> Result<()> {
    // The process' choice, as the agent's main makes it.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let store = LayerStore::open(place.join("store"), Limits::default())?;
    let access = Access { insecure_http: true, ..Access::default() };
    let source = NodeSource { reference: reference.to_owned(), allow_tag: false, access };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(store.ensure(&source, &|_| ()))?;
    Ok(())
}
