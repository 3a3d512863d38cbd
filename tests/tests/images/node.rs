//! The node image as `cargo xtask image node` made it: an ordinary OCI image, and a slot that comes up from it in a host in
//! namespaces. What needs control groups of its own, a Pod, is for whole machines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bedplate_tests::guard::{self, Directory, Process, START_TIMEOUT};
use bedplate_tests::host::Host;
use bedplate_tests::image::json;
use bedplate_tests::pxed::cache;
use bedplate_tests::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

const SLOT: &str = "bedplate-a";
const PAUSE: &str = "localhost/bedplate/pause:1";
/// From the start of a slot to its last unit, on a busy machine; 0.6 s on an idle one.
const STARTED: Duration = Duration::from_secs(60);

/// The image, its documents read.
struct Image {
    layout: PathBuf,
    manifest: Value,
    config: Value,
}

impl Image {
    fn read() -> Result<Self> {
        let layout = cache()?.join("images/node");
        let index = json(&layout.join("index.json")).context("run `cargo xtask image node`")?;
        let mut image = Self { layout, manifest: Value::Null, config: Value::Null };
        image.manifest = json(&image.blob(&index["manifests"][0])?)?;
        image.config = json(&image.blob(&image.manifest["config"])?)?;
        Ok(image)
    }

    fn layers(&self) -> Result<&Vec<Value>> {
        self.manifest["layers"].as_array().context("no layers")
    }

    fn label(&self, name: &str) -> Result<&str> {
        self.config["config"]["Labels"][name].as_str().with_context(|| format!("no label {name}"))
    }

    /// Path of a descriptor's blob, after a check of its digest and size.
    fn blob(&self, descriptor: &Value) -> Result<PathBuf> {
        let digest = descriptor["digest"].as_str().context("no digest")?;
        let path = self.layout.join("blobs").join(digest.replace(':', "/"));
        ensure!(descriptor["size"].as_u64() == Some(fs::metadata(&path)?.len()), "size of {digest}");
        ensure!(
            sum(fs::File::open(&path)?.into())? == digest,
            "{} is not what its name says",
            path.display()
        );
        Ok(path)
    }

    /// Unpacks each layer into a directory of its own; gives them lowest first.
    fn unpack(&self, to: &Path) -> Result<Vec<PathBuf>> {
        (0..self.layers()?.len()).map(|number| self.unpack_layer(number, to)).collect()
    }

    /// Unpacks a layer into its own directory.
    fn unpack_layer(&self, number: usize, to: &Path) -> Result<PathBuf> {
        let layer = self.layers()?.get(number).with_context(|| format!("no layer {number}"))?;
        let directory = to.join(format!("layer-{number}"));
        fs::create_dir(&directory)?;
        let mut unzstd =
            Command::new("zstd").args(["-dcq"]).arg(self.blob(layer)?).stdout(Stdio::piped()).spawn()?;
        let mut tar = Command::new("tar");
        tar.args(["--numeric-owner", "--xattrs", "--xattrs-include=*", "-xpf", "-", "-C"]).arg(&directory);
        let status = tar.stdin(unzstd.stdout.take().context("no pipe")?).status()?;
        ensure!(unzstd.wait()?.success() && status.success(), "cannot unpack layer {number}");
        Ok(directory)
    }
}

/// SHA-256, by a foreign program.
fn sum(input: Stdio) -> Result<String> {
    let output = Command::new("sha256sum").stdin(input).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(format!("sha256:{}", text.split_whitespace().next().unwrap_or_default()))
}

#[test]
fn the_node_image_is_an_image_that_others_read() -> Result<()> {
    let image = Image::read()?;
    let mut diff_ids = Vec::new();
    for layer in image.layers()? {
        assert_eq!(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar+zstd");
        let mut unzstd =
            Command::new("zstd").args(["-dcq"]).arg(image.blob(layer)?).stdout(Stdio::piped()).spawn()?;
        let room = layer["annotations"]["bedplate.dev/unpacked-bytes"].as_str().context("no size")?;
        assert!(room.parse::<u64>()? > layer["size"].as_u64().context("no size")?, "{room}");
        diff_ids.push(sum(unzstd.stdout.take().context("no pipe")?.into())?);
        ensure!(unzstd.wait()?.success(), "zstd cannot read a layer");
    }
    assert_eq!(image.config["rootfs"]["diff_ids"], serde_json::to_value(&diff_ids)?);

    let reference = format!("oci:{}:latest", image.layout.display());
    let seen: Value =
        serde_json::from_str(&guard::run(Command::new("skopeo").args(["inspect", &reference]))?)?;
    assert_eq!(seen["Architecture"], "amd64");
    assert_eq!(seen["Os"], "linux");
    assert_eq!(seen["Labels"]["bedplate.dev/cri-socket"], "/run/containerd/containerd.sock");
    assert!(seen["Labels"]["bedplate.dev/kubernetes-version"].as_str().is_some_and(|v| v.starts_with("v1.")));
    assert_eq!(seen["Layers"].as_array().map(Vec::len), Some(3));
    Ok(())
}

/// The pause program out of the image's own archive.
fn pause(runtime_layer: &Path, work: &Path) -> Result<PathBuf> {
    let archive = runtime_layer.join("usr/share/bedplate/pause.tar");
    guard::run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(work))?;
    let manifest = json(&work.join("manifest.json"))?;
    assert_eq!(manifest[0]["RepoTags"][0], PAUSE);
    guard::run(Command::new("tar").arg("-xf").arg(work.join("layer.tar")).arg("-C").arg(work))?;
    Ok(work.join("pause"))
}

fn children(pid: u32) -> Result<Vec<u32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    text.split_whitespace().map(|child| Ok(child.parse()?)).collect()
}

/// As process 1 of a pid namespace, which is what it is in a Pod that shares one.
#[test]
fn pause_adopts_orphans_and_ends_by_signal() -> Result<()> {
    let work = Directory::new("pause")?;
    let runtime = Image::read()?.unpack_layer(1, work.path())?;
    let program = pause(&runtime, work.path())?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child"]).arg(&program);
    let mut process = Process::spawn("pause", &mut unshare, &work.path().join("log"))?;
    let limit = START_TIMEOUT;
    let pid = wait::until("pause", limit, || {
        let pid = children(process.pid())?.first().copied();
        let is =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "pause\n");
        Ok(pid.filter(is))
    })?;
    // Two orphans: the shell that started them is gone, and `cat` ends with its pipe.
    let mut enter = Command::new("nsenter");
    enter.arg(format!("--target={pid}")).args(["--pid", "--", "sh", "-c", "exec 3<&0; cat <&3 & cat <&3 &"]);
    let mut shell = enter.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let pipe = shell.stdin.take();
    ensure!(shell.wait()?.success(), "nsenter failed");
    wait::until("two orphans", limit, || Ok((children(pid)?.len() == 2).then_some(())))?;
    drop(pipe);
    wait::until("nobody that is left to reap", limit, || Ok(children(pid)?.is_empty().then_some(())))?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
    let status = process.wait_ended(limit)?;
    ensure!(status.success(), "pause ended with {status}");
    Ok(())
}

/// Starts a slot with the minimum that it needs of its host (docs/guides/images.md, "Node images: the contract").
fn start_slot(host: &Host, layers: usize) -> Result<()> {
    let state = "/var/lib/bedplate/slots/a";
    for directory in ["upper", "work", "state/kubelet", "state/containerd", "state/log"] {
        host.run("mkdir", &["-p", &format!("{state}/{directory}")])?;
    }
    let lower: Vec<String> = (0..layers).rev().map(|number| format!("/run/layers/{number}")).collect();
    let mount = format!(
        "[Mount]\nWhat=overlay\nWhere=/var/lib/machines/{SLOT}\nType=overlay\n\
         Options=lowerdir={},upperdir={state}/upper,workdir={state}/work\n",
        lower.join(":")
    );
    host.put("/run/systemd/system/var-lib-machines-bedplate\\x2da.mount", mount.as_bytes(), 0o644)?;
    let nspawn = format!(
        "[Exec]\nNotifyReady=yes\nPrivateUsers=no\nResolvConf=off\nCapability=CAP_NET_ADMIN CAP_SYSLOG\n\
         SystemCallFilter=add_key keyctl bpf\n[Network]\nVirtualEthernet=no\n[Files]\nBind=/dev/kmsg\n\
         Bind={state}/state/kubelet:/var/lib/kubelet\nBind={state}/state/containerd:/var/lib/containerd\n\
         Bind={state}/state/log:/var/log\n"
    );
    host.put(&format!("/run/systemd/nspawn/{SLOT}.nspawn"), nspawn.as_bytes(), 0o644)?;
    let drop_in =
        format!("[Unit]\nRequiresMountsFor=/var/lib/machines/{SLOT}\n[Service]\nDeviceAllow=/dev/kmsg rw\n");
    let path = format!("/run/systemd/system/systemd-nspawn@{SLOT}.service.d/50-test.conf");
    host.put(&path, drop_in.as_bytes(), 0o644)?;
    host.run("systemctl", &["daemon-reload"])?;
    host.run("systemctl", &["start", &format!("systemd-nspawn@{SLOT}.service")])
        .with_context(|| host.journal(&format!("systemd-nspawn@{SLOT}.service")).unwrap_or_default())?;
    Ok(())
}

/// Runs a command in the slot, in all of its namespaces.
fn in_slot(host: &Host, words: &[&str]) -> Result<String> {
    let leader = host.run("machinectl", &["show", SLOT, "--property=Leader", "--value"])?;
    let target = format!("--target={}", leader.trim());
    let mut arguments = vec![&*target, "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--"];
    arguments.extend(words);
    host.run("nsenter", &arguments)
}

#[test]
fn slot_of_the_node_image_has_runtime_and_pause_image_before_kubeadm() -> Result<()> {
    let image = Image::read()?;
    let work = Directory::new("node-image")?;
    let layers = image.unpack(work.path())?;
    let mut host = Host::prepare("host-1")?;
    for (number, layer) in layers.iter().enumerate() {
        host = host.bind(layer, &format!("/run/layers/{number}"));
    }
    let host = host.start()?;
    start_slot(&host, layers.len())?;
    let slot = |words: &[&str]| in_slot(&host, words);
    wait::until("every unit of the slot", STARTED, || {
        Ok(slot(&["systemctl", "is-system-running"])
            .is_ok_and(|state| state.trim() == "running")
            .then_some(()))
    })
    .with_context(|| slot(&["systemctl", "--failed", "--plain"]).unwrap_or_default())?;

    let socket = image.label("bedplate.dev/cri-socket")?;
    let version = slot(&["ctr", "--address", socket, "version"])?;
    assert!(version.contains("Server:"), "{version}");
    let images = slot(&["ctr", "--namespace", "k8s.io", "images", "list", "--quiet"])?;
    assert!(images.lines().any(|name| name == PAUSE), "{images}");
    let plugins = slot(&["ctr", "plugins", "list"])?;
    for plugin in ["cri ", "overlayfs "] {
        let line = plugins.lines().find(|line| line.contains(plugin)).unwrap_or_default();
        assert!(line.trim_end().ends_with("ok"), "{plugin}: {plugins}");
    }
    // Taken away, as the kubelet's garbage collection takes it, it comes back.
    slot(&["ctr", "--namespace", "k8s.io", "images", "remove", PAUSE])?;
    slot(&["systemctl", "start", "bedplate-pause.service"])?;
    assert!(slot(&["ctr", "--namespace", "k8s.io", "images", "list", "--quiet"])?.contains(PAUSE));

    let kubernetes = image.label("bedplate.dev/kubernetes-version")?;
    assert_eq!(slot(&["kubelet", "--version"])?.trim(), format!("Kubernetes {kubernetes}"));
    assert_eq!(slot(&["kubeadm", "version", "--output=short"])?.trim(), kubernetes);
    let kubelet =
        |property: &str| slot(&["systemctl", "show", "kubelet.service", "--value", "--property", property]);
    assert_eq!(kubelet("ActiveState")?.trim(), "inactive");
    assert_eq!(kubelet("ConditionResult")?.trim(), "no");
    assert_eq!(kubelet("UnitFileState")?.trim(), "enabled");
    slot(&["sh", "-c", "echo 'no configuration' > /var/lib/kubelet/config.yaml"])?;
    slot(&["systemctl", "start", "kubelet.service"])?;
    wait::until("what the kubelet says of its configuration", STARTED, || {
        let said = slot(&["journalctl", "--no-pager", "--unit", "kubelet.service"])?;
        Ok(said.contains("/var/lib/kubelet/config.yaml").then_some(()))
    })?;

    // Lasting data is in the slot's state on the host; a user and the agent read it there when the slot is gone.
    host.run("systemctl", &["stop", &format!("systemd-nspawn@{SLOT}.service")])?;
    let state = "/var/lib/bedplate/slots/a/state";
    host.run("ls", &[&format!("{state}/containerd/io.containerd.metadata.v1.bolt/meta.db")])?;
    let journal =
        host.run("journalctl", &["--quiet", "--no-pager", "--directory", &format!("{state}/log/journal")])?;
    assert!(journal.contains("containerd successfully booted"), "{}", guard::last_lines(&journal, 10));
    Ok(())
}
