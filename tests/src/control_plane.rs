//! Requirements of nodes with a real kubelet on hosts in namespaces: images of a control plane, made of the programs that `cargo xtask setup`
//! built, and the settings of a version with which kubelet and containers run where there are no controllers of control groups.
//!
//! ```text
//!   host in a namespace (host) ── agent ── slot ── kubelet ── containerd ── runc: all real
//! ```
//! Not covered, because the machine that tests run on lacks it: limits of containers, and scores for the killer of processes.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::guard::run;
use crate::host::Host;
use crate::kubernetes::programs;
use crate::netns::Namespace;
use crate::registry::REFERENCE;

/// The version of the programs.
///
/// # Errors
/// They were not built.
pub fn version() -> Result<String> {
    let directory = programs()?;
    let name = directory.file_name().and_then(|name| name.to_str()).context("no name")?;
    Ok(name.split_once("-etcd").map_or(name, |(version, _)| version).to_owned())
}

/// Makes an OCI layout of the images that `kubeadm init` asks a registry for, by their names below `imageRepository`.
///
/// # Errors
/// A program is missing, or `kubeadm` does not say what it wants.
pub fn images(layout: &Path) -> Result<()> {
    let (programs, version) = (programs()?, version()?);
    let mut kubeadm = Command::new(programs.join("kubeadm"));
    kubeadm.args(["config", "images", "list", "--kubernetes-version", &version]);
    let blobs = layout.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    let mut manifests = Vec::new();
    for image in run(&mut kubeadm)?.lines() {
        let name = image.trim_start_matches("registry.k8s.io/");
        let (program, _) = name.split_once(':').context("an image without a tag")?;
        // Only the name of the pause image is needed: the node image brings the one that Pods have.
        let path = if program == "pause" { "/bin/true".into() } else { programs.join(program) };
        if !path.exists() {
            continue;
        }
        let program = path.file_name().and_then(|name| name.to_str()).context("no name")?.to_owned();
        manifests.push(add(&blobs, &path, &program, name)?);
    }
    let index = json!({ "schemaVersion": 2, "manifests": manifests });
    std::fs::write(layout.join("index.json"), index.to_string())?;
    Ok(std::fs::write(layout.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?)
}

/// Adds an image of one program; its entry in the index.
fn add(blobs: &Path, path: &Path, program: &str, name: &str) -> Result<Value> {
    let staged = blobs.join("staged");
    let mut tar = Command::new("tar");
    tar.arg("--create")
        .arg("--file")
        .arg(&staged)
        .arg("--directory")
        .arg(path.parent().context("no folder")?);
    run(tar.args(["--transform", "s,^,usr/local/bin/,", "--owner=0", "--group=0", program]))?;
    let layer = "application/vnd.oci.image.layer.v1.tar";
    let layer = adopt(blobs, layer)?;
    let config = json!({ "architecture": "amd64", "os": "linux",
        "config": { "Env": ["PATH=/usr/local/bin"], "Cmd": [program] },
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] } });
    std::fs::write(&staged, config.to_string())?;
    let config = adopt(blobs, "application/vnd.oci.image.config.v1+json")?;
    let media = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({ "schemaVersion": 2, "mediaType": media, "config": config, "layers": [layer] });
    std::fs::write(&staged, manifest.to_string())?;
    let mut entry = adopt(blobs, media)?;
    entry["annotations"] = json!({ REFERENCE: name });
    Ok(entry)
}

/// Gives the staged blob its name; what describes it.
fn adopt(blobs: &Path, media: &str) -> Result<Value> {
    let staged = blobs.join("staged");
    let sum = run(Command::new("sha256sum").arg(&staged))?;
    let hex = sum.split_whitespace().next().context("no digest")?;
    let size = std::fs::metadata(&staged)?.len();
    std::fs::rename(&staged, blobs.join(hex))?;
    Ok(json!({ "mediaType": media, "digest": format!("sha256:{hex}"), "size": size }))
}

/// Files of every node: its network, and a container runtime without control groups.
pub fn files() -> Vec<Value> {
    let network = json!({ "cniVersion": "0.4.0", "name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipam": { "type": "host-local", "subnet": "10.99.0.0/24" } });
    let containerd = r#"version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/bedplate/pause:1"
disable_cgroup = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"
"#;
    vec![
        json!({ "path": "/etc/cni/net.d/05-pods.conf", "content": network.to_string() }),
        json!({ "path": "/etc/containerd/config.toml", "content": containerd }),
    ]
}

/// Files by which a node's container runtime trusts a registry of its own authority.
pub fn registry_files(address: &str, authority: &str) -> Vec<Value> {
    let place = format!("/etc/containerd/certs.d/{address}");
    let hosts =
        format!("server = \"https://{address}\"\n[host.\"https://{address}\"]\nca = \"{place}/ca.crt\"\n");
    vec![
        json!({ "path": format!("{place}/hosts.toml"), "content": hosts }),
        json!({ "path": format!("{place}/ca.crt"), "content": authority }),
    ]
}

/// Creates a bootstrap token in the control plane of a slot: its machine is `bedplate-a` or `bedplate-b`.
///
/// # Errors
/// The slot does not run, or its API server does not answer.
pub fn join_token(host: &Host, machine: &str) -> Result<String> {
    let kubeadm = ["kubeadm", "token", "create", "--kubeconfig", "/etc/kubernetes/admin.conf"];
    Ok(host.run_in_machine(machine, &kubeadm)?.trim().to_owned())
}

/// The etcd of a control plane, through the JSON gateway of one member.
#[derive(Debug)]
pub struct Etcd<'a> {
    network: &'a Namespace,
    /// Directory of kubeadm's certificates.
    pki: PathBuf,
    address: Ipv4Addr,
}

/// A member of etcd.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The Node's name, as kubeadm sets it.
    pub name: String,
    /// Decimal identifier.
    pub id: String,
    /// It has no vote yet.
    pub is_learner: bool,
}

impl<'a> Etcd<'a> {
    /// The member of the node in this slot (`a` or `b`) of a host with this address.
    pub fn of(host: &Host, network: &'a Namespace, address: Ipv4Addr, slot: &str) -> Self {
        let pki = host.root().join(format!("var/lib/bedplate/slots/{slot}/state/kubernetes/pki"));
        Self { network, pki, address }
    }

    /// Returns the members, ordered by name. A member without quorum does not answer.
    ///
    /// # Errors
    /// It does not answer within 10 seconds.
    pub fn members(&self) -> Result<Vec<Member>> {
        let answer = self.call("list", &json!({ "linearizable": true }))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let member = |one: &Value| Member {
            name: text(&one["name"]),
            id: text(&one["ID"]),
            is_learner: one["isLearner"] == true,
        };
        let mut members: Vec<_> =
            answer["members"].as_array().context("no members")?.iter().map(member).collect();
        members.sort();
        Ok(members)
    }

    /// Removes a member.
    ///
    /// # Errors
    /// There is no such member, or etcd refuses.
    pub fn remove(&self, name: &str) -> Result<()> {
        let members = self.members()?;
        let member = members.iter().find(|member| member.name == name).context("no such member")?;
        self.call("remove", &json!({ "ID": member.id })).map(drop)
    }

    fn call(&self, method: &str, body: &Value) -> Result<Value> {
        let mut curl = self.network.command("curl");
        curl.args(["-sS", "--fail", "--max-time", "10", "-d", &body.to_string(), "--cacert"]);
        curl.arg(self.pki.join("etcd/ca.crt"));
        curl.arg("--cert").arg(self.pki.join("apiserver-etcd-client.crt"));
        curl.arg("--key").arg(self.pki.join("apiserver-etcd-client.key"));
        curl.arg(format!("https://{}:2379/v3/cluster/member/{method}", self.address));
        Ok(serde_json::from_str(&run(&mut curl)?)?)
    }
}

/// Shows the kubelet the kernel parameters that it wants: it would write those of the machine that tests run on.
pub const PARAMETERS: &str = "for one in vm/overcommit_memory:1 kernel/panic:10 kernel/panic_on_oops:1; do \
     file=/proc/sys/${one%%:*} copy=/run/bedplate/parameter-${one##*/}; echo ${one##*:} >\"$copy\"; \
     grep -qx ${one##*:} \"$file\" || mount --bind \"$copy\" \"$file\" || exit 1; done";

/// A kubelet without limits.
pub fn kubelet() -> Value {
    json!({ "cgroupDriver": "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": ["none"], "failSwapOn": false })
}

/// `nodeRegistration` of kubeadm, which misses those controllers.
pub fn registration() -> Value {
    json!({ "ignorePreflightErrors": ["SystemVerification", "Mem", "NumCPU", "Swap"] })
}
