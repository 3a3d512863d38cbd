//! `cargo xtask image host`: the image that servers boot, made of `images/host/recipe.toml`. The node image is in `node`.
//!
//! ```text
//!   recipe, mirrors --base--> root.tar, kernel          cached by what the recipe says of packages
//!                               |
//!   files/, agent, unit --------+--compose--> root file system --> squashfs, initramfs --> OCI layout
//! ```
//! The layout carries a hash of its inputs: unchanged inputs take the layout that is there. It is replaced in one step.
//! Not here: serving images (`bedplate-oci`, pxed). Nothing of the crates is linked in, so that `cargo xtask` itself is
//! built in seconds.

mod base;
mod compose;
#[path = "../../oci/src/cpio.rs"]
#[allow(dead_code, unreachable_pub, reason = "the whole module is bedplate-oci's")]
mod cpio;
mod initramfs;
pub(crate) mod node;
mod oci;
mod recipe;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{build, host, progress};
use recipe::{Hasher, Recipe};

/// Version of the image build. Raise it to rebuild all images after a change that the inputs do not show.
const BUILD_VERSION: u32 = 1;
/// Programs that the build runs, with their packages.
const TOOLS: &[(&str, &str)] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("mksquashfs", "squashfs-tools"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("chroot", "coreutils"),
    ("zstd", "zstd"),
];

/// The kernel of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kernel {
    /// Kernel for virtual machines: small and fast, virtual devices only.
    Cloud,
    /// Kernel for physical servers: every network card, controller and IPMI.
    Generic,
}

impl Kernel {
    fn name(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Generic => "generic",
        }
    }

    /// The name of its layout below `<cache>/images`.
    fn layout(self) -> &'static str {
        match self {
            Self::Cloud => "host",
            Self::Generic => "host-generic",
        }
    }
}

/// Options of the host image's build.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Kernel of the image.
    pub(crate) kernel: Kernel,
    /// The agent; a static binary, since stage-1 has no libraries.
    pub(crate) agent: PathBuf,
    /// The agent's unit.
    pub(crate) unit: PathBuf,
    /// Directory of the OCI layout.
    pub(crate) output: PathBuf,
    /// Asks the mirrors for newer packages, although the recipe has not changed.
    pub(crate) fresh: bool,
}

impl Options {
    /// The agent that `cargo xtask build` built, the layout in the cache.
    pub(crate) fn new(kernel: Kernel) -> Self {
        let output = host::cache().join("images").join(kernel.layout());
        let agent = build::release().join("bedplate-agent");
        let unit = host::root().join("systemd/bedplate-agent.service");
        Self { kernel, agent, unit, output, fresh: false }
    }
}

/// Builds the rack's host image into the cache, unless it is there already.
pub(crate) fn host() -> Result<()> {
    build_host(&Options::new(Kernel::Cloud)).map(drop)
}

/// Unpacks the host image's Debian for the tests' hosts in namespaces, unless that is done.
pub(crate) fn tree() -> Result<()> {
    let recipe = Recipe::read(&host::root().join("images/host/recipe.toml"))?;
    host::check_root()?;
    check_tools("host", TOOLS)?;
    let images = host::cache().join("images");
    fs::create_dir_all(&images).with_context(|| format!("cannot make {}", images.display()))?;
    let base = base::ensure(&recipe, Kernel::Cloud, &images, false)?;
    tree::ensure(&base.id, &base.root(), &images)
}

/// Builds the host image, unless the layout at its place is of the same inputs, and says where it is.
pub(crate) fn build_host(options: &Options) -> Result<PathBuf> {
    let source = host::root().join("images/host");
    let recipe = Recipe::read(&source.join("recipe.toml"))?;
    check(options)?;
    let images = host::cache().join("images");
    fs::create_dir_all(&images).with_context(|| format!("cannot make {}", images.display()))?;
    let base = base::ensure(&recipe, options.kernel, &images, options.fresh)?;

    let mut inputs = Hasher::new();
    inputs.add("format", &BUILD_VERSION.to_le_bytes());
    inputs.add("base", base.id.as_bytes());
    inputs.add_tree("images/host", &source)?;
    inputs.add_tree("agent", &options.agent)?;
    inputs.add_tree("unit", &options.unit)?;
    let inputs = inputs.finish();
    if let Some(digest) = oci::is_built_from(&options.output, &inputs) {
        report(options, &digest, "is there already");
        return Ok(options.output.clone());
    }
    let work = Work::new(&images)?;
    let parts = compose::Inputs { recipe: &recipe, base: &base, source: &source, options, inputs: &inputs };
    let root = progress::step("host image: root file system", |step| compose::root(step, &parts, &work.0))?;
    let initrd =
        progress::step("host image: initramfs", |step| initramfs::build(step, &parts, &root, &work.0))?;
    let rootfs =
        progress::step("host image: squashfs", |step| compose::squash(step, &recipe, &root, &work.0))?;
    let image = oci::Image {
        kernel: &root.kernel,
        initrd: &initrd,
        rootfs: &rootfs,
        kernel_arguments: &recipe.kernel_arguments,
        release: &root.release,
        inputs: &inputs,
    };
    let digest = oci::write(&options.output, &image)?;
    report(options, &digest, "built");
    Ok(options.output.clone())
}

fn report(options: &Options, digest: &str, what: &str) {
    let hint = match options.kernel {
        Kernel::Cloud => "for virtual machines; servers of metal: --kernel generic",
        Kernel::Generic => "for servers of metal",
    };
    println!("  host image {what} ({hint})\n    {}\n    {digest}", options.output.display());
}

/// Root and tools, before anything is touched.
fn check(options: &Options) -> Result<()> {
    host::check_root()?;
    check_tools("host", TOOLS)?;
    if !options.agent.is_file() {
        bail!(
            "{} is missing, and it is the image's first program: run `cargo xtask build`",
            options.agent.display()
        );
    }
    Ok(())
}

/// Refuses to begin where a tool is missing; `tools` are programs, with the package that has each.
fn check_tools(image: &str, tools: &[(&str, &str)]) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing: Vec<&str> = tools
        .iter()
        .filter(|(tool, _)| !std::env::split_paths(&path).any(|p| p.join(tool).is_file()))
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        bail!(
            "the {image} image is made with programs that are not installed: run `apt-get install {}`",
            missing.join(" ")
        );
    }
    Ok(())
}

/// A directory that goes when the build ends, however it ends.
struct Work(PathBuf);

impl Work {
    fn new(images: &Path) -> Result<Self> {
        let path = images.join(format!(".work-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
