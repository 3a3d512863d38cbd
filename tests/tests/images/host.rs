//! Host image of `cargo xtask image host`: it is a valid OCI layout, has what a slot needs of its host, and has the same bytes when it
//! is rebuilt. Node image: two versions share layers.
//!
//! The programs `boot_*` boot the host image.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bedplate_tests::guard::Directory;
use bedplate_tests::image::{Network, Workshop, blob, json, manifest, text};
use bedplate_tests::pxed;
use serde_json::Value;

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
    let manifest = manifest(&layout)?;
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

/// The second build unpacks and configures the same packages again. It cannot reach a mirror.
#[test]
fn built_twice_from_the_same_packages_the_image_has_the_same_digest() -> Result<()> {
    let workshop = Workshop::new()?;
    let one = workshop.cache_with_bases("cache-one")?;
    let one = workshop.build_host(&one, &workshop.at("one"), Network::Absent)?;
    let two = workshop.cache_with_packages("cache-two")?;
    let two = workshop.build_host(&two, &workshop.at("two"), Network::Absent)?;
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
    let manifest = manifest(&layout)?;
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
    let workshop = Workshop::new()?;
    let cache = workshop.cache_with_bases("cache")?;
    let (programs, other) = (workshop.at("programs"), workshop.at("other"));
    fs::create_dir(&programs)?;
    for name in ["kubeadm", "kubelet"] {
        fs::write(programs.join(name), "#!/bin/sh\necho v1.99.0\n")?;
        fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755))?;
    }
    let programs = programs.display().to_string();
    workshop.build(&cache, &other, Network::Absent, &["node", "--kubernetes", &programs])?;
    let read = |layout: &Path| -> Result<(Value, Value)> {
        let manifest = manifest(layout)?;
        let config = json(&blob(layout, &manifest["config"])?)?;
        Ok((manifest["layers"].clone(), config))
    };
    let (own, _) = read(&pxed::cache()?.join("images/node"))?;
    let (other, config) = read(&other)?;
    assert_eq!(config["config"]["Labels"]["bedplate.dev/kubernetes-version"], "v1.99.0");
    assert_eq!(own[0], other[0], "base");
    assert_eq!(own[1], other[1], "runtime");
    assert_ne!(own[2], other[2], "kubernetes");
    Ok(())
}
