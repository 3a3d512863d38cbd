//! `cargo xtask image node`: the image that a slot runs, made of `images/node/recipe.toml`, as an ordinary OCI image.
//!
//! ```text
//!   packages of layer 1      --compose--> tree 1 --------------------> layer 1
//!   packages of layers 1, 2  --compose--> tree 2 --less tree 1-------> layer 2  --> OCI layout
//!   ... and the programs     --compose--> tree 3 --less tree 2-------> layer 3
//! ```
//! Each tree is made from nothing, so the image is the last tree by construction, and a layer depends on no later one.
//! As with the host image, unchanged inputs take the layout that is there.

mod archive;
mod difference;
mod layout;
mod pause;
mod recipe;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::recipe::{Hasher, read};
use super::{Work, base, check_tools, oci};
use crate::{host, kubernetes, progress};
pub(crate) use archive::Compression;
use recipe::Recipe;

/// Version of the node image build. Raise it to rebuild all node images after a change that the inputs do not
/// show.
const BUILD_VERSION: u32 = 2;
/// Programs that the build runs, with their packages.
const TOOLS: &[(&str, &str)] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("tar", "tar"),
    ("chroot", "coreutils"),
    ("zstd", "zstd"),
    ("gzip", "gzip"),
    ("gcc", "gcc"),
];

/// Options of the node image's build.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Directory of the Kubernetes programs. By default those of tests/kubernetes are built.
    pub(crate) kubernetes: Option<PathBuf>,
    /// Directory of the OCI layout.
    pub(crate) output: PathBuf,
    /// Compression of the layers.
    pub(crate) compression: Compression,
    /// Asks the mirrors for newer packages, although the recipe has not changed.
    pub(crate) fresh: bool,
}

impl Options {
    /// The layout in the cache, with the programs that the tests use.
    pub(crate) fn new() -> Self {
        let output = host::cache().join("images/node");
        Self { kubernetes: None, output, compression: Compression::Zstd, fresh: false }
    }
}

/// Builds the rack's node image into the cache, unless it is there already.
pub(crate) fn ensure() -> Result<()> {
    build(&Options::new()).map(drop)
}

/// Builds the node image, unless the layout at its place is of the same inputs, and says where it is.
pub(crate) fn build(options: &Options) -> Result<PathBuf> {
    host::check_root()?;
    check_tools("node", TOOLS)?;
    let source = host::root().join("images/node");
    let recipe: Recipe = read(&source.join("recipe.toml"))?;
    let programs = programs(options, &recipe)?;
    let version = version(programs)?;
    let images = host::cache().join("images");
    let work = Work::new(&images)?;
    let pause = pause::compile(&source.join("pause.c"), &work.0)?;
    let bases = bases(&recipe, &images, options.fresh)?;

    let mut inputs = Hasher::new();
    inputs.add("format", &BUILD_VERSION.to_le_bytes());
    bases.iter().for_each(|base| inputs.add("base", base.id.as_bytes()));
    inputs.add_tree("images/node", &source)?;
    inputs.add_tree("pause", &pause)?;
    for program in recipe.layers.iter().flat_map(|layer| &layer.programs) {
        inputs.add_tree(program, &programs.path(program))?;
    }
    inputs.add("compression", options.compression.name().as_bytes());
    let inputs = inputs.finish();
    if let Some(digest) = oci::is_built_from(&options.output, &inputs) {
        report(options, &version, &digest, "is there already");
        return Ok(options.output.clone());
    }
    let parts = tree::Inputs {
        recipe: &recipe,
        bases: &bases,
        source: &source,
        programs,
        pause: &pause,
        inputs: &inputs,
    };
    let layers = layers(&parts, options.compression, &work.0)?;
    let image = layout::Image { layers: &layers, recipe: &recipe, version: &version, inputs: &inputs };
    let digest = oci::replace(&options.output, |layout| layout::write(layout, &image))?;
    report(options, &version, &digest, "built");
    for layer in &layers {
        println!("    {} {} MiB, packed {} MiB", layer.name, layer.size >> 20, layer.packed_size >> 20);
    }
    Ok(options.output.clone())
}

fn report(options: &Options, version: &str, digest: &str, what: &str) {
    println!("  node image {what} (Kubernetes {version})\n    {}\n    {digest}", options.output.display());
}

/// Location of the recipe's programs.
#[derive(Debug, Clone, Copy)]
struct Programs<'a> {
    /// Directory of a user's Kubernetes programs, instead of those of tests/kubernetes.
    kubernetes: Option<&'a Path>,
}

impl Programs<'_> {
    /// crictl is always ours: no release of Kubernetes brings one.
    fn path(self, program: &str) -> PathBuf {
        let given = self.kubernetes.filter(|_| program != kubernetes::CRICTL);
        given.map_or_else(|| kubernetes::path(program), |directory| directory.join(program))
    }
}

/// The recipe's programs; those that are ours are built.
fn programs<'a>(options: &'a Options, recipe: &Recipe) -> Result<Programs<'a>> {
    let programs = Programs { kubernetes: options.kubernetes.as_deref() };
    let wanted = recipe.layers.iter().flat_map(|layer| &layer.programs).map(String::as_str);
    let (ours, given): (Vec<&str>, Vec<&str>) =
        wanted.partition(|program| programs.path(program) == kubernetes::path(program));
    kubernetes::build_programs(&ours)?;
    match given.iter().map(|program| programs.path(program)).find(|path| !path.is_file()) {
        Some(missing) => bail!("{} is missing", missing.display()),
        None => Ok(programs),
    }
}

/// Returns the version that kubeadm reports: `v1.34.4`.
fn version(programs: Programs<'_>) -> Result<String> {
    let kubeadm = programs.path("kubeadm");
    let output = Command::new(&kubeadm).args(["version", "--output", "short"]).output();
    let output = output.with_context(|| format!("cannot run {}", kubeadm.display()))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && version.starts_with('v') {
        return Ok(version);
    }
    bail!("{} does not say its version, but {version:?}", kubeadm.display())
}

/// Debian's part of each layer's tree; a layer without packages of its own has that of the one below.
fn bases(recipe: &Recipe, images: &Path, fresh: bool) -> Result<Vec<base::Base>> {
    let mut bases: Vec<base::Base> = Vec::new();
    for (number, layer) in recipe.layers.iter().enumerate() {
        let again = match bases.last() {
            Some(below) if layer.packages.is_empty() => Some(below.clone()),
            _ => None,
        };
        bases.push(match again {
            Some(below) => below,
            None => base::ensure_packages(&recipe.debian(number), images, fresh)?,
        });
    }
    Ok(bases)
}

/// Makes the trees one after the other, and of each what differs from the one before.
fn layers(parts: &tree::Inputs<'_>, compression: Compression, work: &Path) -> Result<Vec<layout::Layer>> {
    let mut layers = Vec::new();
    let mut below: Option<PathBuf> = None;
    for (number, layer) in parts.recipe.layers.iter().enumerate() {
        let name = &layer.name;
        let made = progress::step(&format!("node image: layer {name}"), |step| {
            let root = tree::compose(step, parts, number, work)?;
            let paths = difference::paths(below.as_deref(), &root)?;
            let tar = work.join(format!("{name}.tar"));
            archive::write(step, &root, &paths, parts.recipe.source_date_epoch, &tar)?;
            let packed = archive::compress(step, &tar, compression)?;
            Ok((root, layout::Layer::new(name, &tar, packed, compression)?))
        });
        let (root, layer) = made?;
        if let Some(old) = below.replace(root) {
            fs::remove_dir_all(&old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
        layers.push(layer);
    }
    Ok(layers)
}
