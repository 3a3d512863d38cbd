//! The host image as `cargo xtask image host` made it: a valid OCI layout, with what a slot asks of its host, and the same bytes
//! when it is made again. So the node image, as far as two of them are to share layers.
//!
//! Tier b, because that tier has the image built. Booting it is what the other `boot_*` programs do.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::pxed;
use serde_json::Value;

/// How long one build of the image may take; most of it is the mirrors'.
const BUILD: Duration = Duration::from_secs(30 * 60);

fn json(path: &Path) -> Result<Value> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is no JSON", path.display()))
}

fn text<'v>(value: &'v Value, key: &str) -> Result<&'v str> {
    value[key].as_str().with_context(|| format!("no {key} in {value}"))
}

/// Where the blob of a descriptor lies, once its digest and size are as the descriptor says.
fn blob(layout: &Path, descriptor: &Value) -> Result<PathBuf> {
    let digest = text(descriptor, "digest")?;
    let hex = digest.strip_prefix("sha256:").context("another algorithm than sha256")?;
    let path = layout.join("blobs/sha256").join(hex);
    // A program that nobody here wrote computes the sum.
    let output = Command::new("sha256sum").arg(&path).output()?;
    ensure!(output.stdout.starts_with(hex.as_bytes()), "{} is not what its name says", path.display());
    let size = fs::metadata(&path)?.len();
    ensure!(descriptor["size"].as_u64() == Some(size), "{descriptor} has {size} bytes");
    Ok(path)
}

fn magic(path: &Path, at: usize, expected: &[u8]) -> Result<()> {
    let bytes = fs::read(path)?;
    let found = bytes.get(at..at + expected.len());
    ensure!(found == Some(expected), "{}: {found:02x?} at {at}, expected {expected:02x?}", path.display());
    Ok(())
}

fn host_layout() -> Result<PathBuf> {
    Ok(pxed::cache()?.join("images/host"))
}

#[test]
fn every_descriptor_of_the_host_image_has_its_blob() -> Result<()> {
    let layout = host_layout()?;
    assert_eq!(json(&layout.join("oci-layout"))?["imageLayoutVersion"], "1.0.0");
    let index = json(&layout.join("index.json"))?;
    assert_eq!(index["schemaVersion"], 2);
    let top = &index["manifests"][0];
    assert_eq!(text(top, "artifactType")?, "application/vnd.bedplate.host.v1");
    assert_eq!(top["annotations"]["org.opencontainers.image.ref.name"], "latest");
    let manifest_path = blob(&layout, top)?;
    let manifest = json(&manifest_path)?;
    assert_eq!(text(&manifest, "mediaType")?, "application/vnd.oci.image.manifest.v1+json");
    let config_path = blob(&layout, &manifest["config"])?;
    let config = json(&config_path)?;
    assert_eq!(text(&config, "architecture")?, "amd64");
    assert!(text(&config, "release")?.starts_with(|c: char| c.is_ascii_digit()));

    let mut named = BTreeSet::from([manifest_path, config_path]);
    for (layer, part) in
        manifest["layers"].as_array().context("no layers")?.iter().zip(["kernel", "initrd", "rootfs"])
    {
        assert_eq!(text(layer, "mediaType")?, format!("application/vnd.bedplate.host.{part}.v1"));
        let path = blob(&layout, layer)?;
        match part {
            // Linux/x86 boot protocol, "HdrS" at 0x202.
            "kernel" => magic(&path, 0x202, b"HdrS")?,
            "initrd" => magic(&path, 0, b"070701")?,
            _ => magic(&path, 0, b"hsqs")?,
        }
        named.insert(path);
    }
    let there: BTreeSet<PathBuf> =
        fs::read_dir(layout.join("blobs/sha256"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    assert_eq!(named, there, "every blob is named, and nothing else lies there");
    Ok(())
}

#[test]
fn the_host_image_holds_no_identity_and_no_way_in() -> Result<()> {
    let layout = host_layout()?;
    let index = json(&layout.join("index.json"))?;
    let manifest = json(&blob(&layout, &index["manifests"][0])?)?;
    let rootfs = blob(&layout, &manifest["layers"][2])?;
    let work = Directory::new("image")?;
    let root = work.path().join("root");
    let mut unpack = Command::new("unsquashfs");
    unpack.args(["-quiet", "-no-progress", "-dest"]).arg(&root).arg(&rootfs);
    let names = [
        "etc/machine-id",
        "etc/shadow",
        "etc/hostname",
        "etc/ssh",
        "usr/sbin/sshd",
        "usr/bin/bedplate-agent",
    ];
    ensure!(unpack.args(names).output()?.status.success(), "unsquashfs failed");
    assert_eq!(fs::read(root.join("etc/machine-id"))?, b"");
    assert!(!root.join("etc/hostname").exists());
    assert!(!root.join("usr/sbin/sshd").exists());
    assert!(root.join("usr/bin/bedplate-agent").exists());
    for line in fs::read_to_string(root.join("etc/shadow"))?.lines() {
        let password = line.split(':').nth(1).unwrap_or_default();
        assert!(password.starts_with(['*', '!']), "{line}");
    }
    Ok(())
}

/// Runs `cargo xtask image` with these arguments below `work`, Debian's part cached in `cache`; gives the layout's index.
fn run(work: &Directory, cache: &Path, output: &Path, arguments: &[&str]) -> Result<String> {
    let xtask = std::env::current_exe()?;
    let xtask = xtask.parent().and_then(Path::parent).context("no target directory")?.join("xtask");
    ensure!(xtask.is_file(), "{} is missing: run the tests by `cargo xtask test`", xtask.display());
    // mmdebstrap mounts /dev, /proc and /sys where it works: that ends with these namespaces, so with this one process.
    let mut build = Command::new("unshare");
    build.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]).arg(&xtask);
    build.arg("image").args(arguments).arg("--output").arg(output);
    let temporary = work.path().join("tmp");
    fs::create_dir_all(&temporary)?;
    // apt fetches as a user of its own.
    for directory in [work.path(), &temporary] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    }
    build.env("BEDPLATE_CACHE", cache).env("TMPDIR", &temporary);
    let mut process = Process::spawn("xtask", &mut build, &output.with_extension("log"))?;
    let status = process.wait_ended(BUILD)?;
    ensure!(status.success(), "cargo xtask image {arguments:?}: {}", process.said());
    fs::read_to_string(output.join("index.json")).context("no index")
}

/// Builds the host image; gives its index and the list of packages.
fn build(work: &Directory, cache: &Path, output: &Path) -> Result<(String, String)> {
    let agent = pxed::binary("bedplate-agent")?.display().to_string();
    Ok((run(work, cache, output, &["host", "--agent", &agent])?, packages(output)?))
}

/// A cache that has the packages of everybody's. What a build leaves when it is killed lies there.
fn cache_with_packages(cache: &Path) -> Result<()> {
    let images = cache.join("images");
    fs::create_dir_all(&images)?;
    for entry in fs::read_dir(pxed::cache()?.join("images"))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("base-") {
            symlink(entry.path(), images.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// The list of packages inside the image of a layout.
fn packages(layout: &Path) -> Result<String> {
    let index = json(&layout.join("index.json"))?;
    let manifest = json(&blob(layout, &index["manifests"][0])?)?;
    let mut command = Command::new("unsquashfs");
    command.arg("-cat").arg(blob(layout, &manifest["layers"][2])?).arg("usr/share/bedplate/packages.txt");
    let output = command.output()?;
    ensure!(output.status.success(), "unsquashfs: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The second build shares nothing with the first: it takes its packages from the mirrors again. Those of the cache may be
/// older than the mirrors' by now; then the first one is built from the mirrors too.
#[test]
fn built_twice_from_the_same_packages_the_image_has_the_same_digest() -> Result<()> {
    let work = Directory::new("image")?;
    let at = |name: &str| work.path().join(name);
    cache_with_packages(&at("cache-one"))?;
    let mut one = build(&work, &at("cache-one"), &at("one"))?;
    let two = build(&work, &at("cache-two"), &at("two"))?;
    if one.1 != two.1 {
        one = build(&work, &at("cache-three"), &at("three"))?;
    }
    assert_eq!(one.1, two.1, "the packages");
    assert_eq!(one.0, two.0, "the digests");
    Ok(())
}

/// Kernel modules that a slot's network, its containers and kube-proxy ask for: the slot cannot bring them along.
const SLOT_MODULES: &[&str] = &[
    "overlay",
    "br_netfilter",
    "bridge",
    "veth",
    "macvlan",
    "vxlan",
    "ip_tables",
    "ip6_tables",
    "ip_set",
    "ip_vs",
    "iptable_nat",
    "nf_conntrack",
    "nf_tables",
    "nft_chain_nat",
    "nft_compat",
    "xt_MASQUERADE",
    "xt_addrtype",
    "xt_comment",
    "xt_conntrack",
    "xt_mark",
    "xt_nat",
    "xt_statistic",
];

#[test]
fn the_host_image_has_what_a_slot_asks_of_the_kernel() -> Result<()> {
    let layout = host_layout()?;
    let index = json(&layout.join("index.json"))?;
    let manifest = json(&blob(&layout, &index["manifests"][0])?)?;
    let config = json(&blob(&layout, &manifest["config"])?)?;
    let output =
        Command::new("unsquashfs").arg("-lc").arg(blob(&layout, &manifest["layers"][2])?).output()?;
    ensure!(output.status.success(), "unsquashfs: {}", String::from_utf8_lossy(&output.stderr));
    let files = String::from_utf8(output.stdout)?;
    let modules = format!("/usr/lib/modules/{}", text(&config, "release")?);
    for name in SLOT_MODULES {
        let file = format!("/{name}.ko");
        assert!(
            files.lines().any(|line| line.contains(&modules) && line.contains(&file)),
            "no module {name}"
        );
    }
    let configuration = format!("{modules}/config");
    assert!(files.lines().any(|line| line.ends_with(&configuration)), "kubeadm finds no {configuration}");
    Ok(())
}

#[test]
fn node_images_of_two_kubernetes_versions_share_all_but_the_last_layer() -> Result<()> {
    let work = Directory::new("image")?;
    let at = |name: &str| work.path().join(name);
    cache_with_packages(&at("cache"))?;
    let programs = at("programs");
    fs::create_dir(&programs)?;
    for name in ["kubeadm", "kubelet"] {
        fs::write(programs.join(name), "#!/bin/sh\necho v1.99.0\n")?;
        fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755))?;
    }
    let programs = programs.display().to_string();
    run(&work, &at("cache"), &at("other"), &["node", "--kubernetes", &programs])?;
    let read = |layout: &Path| -> Result<(Value, Value)> {
        let index = json(&layout.join("index.json"))?;
        let manifest = json(&blob(layout, &index["manifests"][0])?)?;
        let config = json(&blob(layout, &manifest["config"])?)?;
        Ok((manifest["layers"].clone(), config))
    };
    let (own, _) = read(&pxed::cache()?.join("images/node"))?;
    let (other, config) = read(&at("other"))?;
    assert_eq!(config["config"]["Labels"]["bedplate.dev/kubernetes-version"], "v1.99.0");
    assert_eq!(own[0], other[0], "base");
    assert_eq!(own[1], other[1], "runtime");
    assert_ne!(own[2], other[2], "kubernetes");
    Ok(())
}
