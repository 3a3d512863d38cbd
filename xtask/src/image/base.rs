//! Debian's part of the image: a root file system made by mmdebstrap, and a host's kernel package. It is
//! stored in `<cache>/images/base-<hash of the recipe's package settings>`, because building it takes time
//! and network.
//!
//! The newest versions at the first build are reused until the recipe changes or a fresh build is requested; `packages.txt` next to them
//! lists them. The package files are stored too, so a base whose root file system is missing is rebuilt without a network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::recipe::{Hasher, Recipe, hash_file};
use super::{BUILD_VERSION, Kernel};
use crate::progress;

/// Directory in a base with its package files and the package lists of the mirrors.
const KEPT: &str = "kept";

/// Debian packages: names, mirrors, and files that are omitted.
pub(super) struct Debian<'a> {
    pub(super) suite: &'a str,
    pub(super) mirrors: &'a [String],
    pub(super) keyring: &'a str,
    /// Time of every file, in seconds since 1970.
    pub(super) time: u64,
    pub(super) packages: Vec<&'a str>,
    pub(super) exclude: &'a [String],
    pub(super) include: &'a [String],
}

impl<'a> Debian<'a> {
    /// The packages of the host image.
    fn of_host(recipe: &'a Recipe) -> Self {
        Self {
            suite: &recipe.suite,
            mirrors: &recipe.mirrors,
            keyring: &recipe.keyring,
            time: recipe.source_date_epoch,
            packages: recipe.packages.iter().map(String::as_str).collect(),
            exclude: &recipe.exclude,
            include: &recipe.include,
        }
    }

    /// A name for these packages, and for the kernel's if there is one.
    fn key(&self, kernel: Option<&str>) -> String {
        let mut key = Hasher::new();
        key.add("format", &BUILD_VERSION.to_le_bytes());
        key.add("suite", self.suite.as_bytes());
        key.add("time", &self.time.to_le_bytes());
        if let Some(kernel) = kernel {
            key.add("kernel", kernel.as_bytes());
        }
        let packages = self.packages.join("\n");
        for list in [self.mirrors.join("\n"), packages, self.exclude.join("\n"), self.include.join("\n")] {
            key.add("list", list.as_bytes());
        }
        key.finish().chars().take(16).collect()
    }

    /// Returns the command that builds the root file system of `base` and stores its package files; `option` is one more option of
    /// mmdebstrap. The packages come from the mirrors, or from the files that the base `again` has stored.
    fn command(&self, base: &Base, again: Option<&Base>, option: Option<&str>) -> Command {
        let mut command = Command::new("mmdebstrap");
        command.env("SOURCE_DATE_EPOCH", self.time.to_string()).env("LC_ALL", "C.UTF-8");
        command.args(["--variant=minbase", "--mode=root", "--architectures=amd64"]);
        command.arg(format!("--include={}", self.packages.join(",")));
        command.arg(format!("--keyring={}", self.keyring));
        command.args(self.exclude.iter().map(|path| format!("--dpkgopt=path-exclude={path}")));
        command.args(self.include.iter().map(|path| format!("--dpkgopt=path-include={path}")));
        command.args(["--aptopt=Acquire::Retries \"3\"", "--aptopt=APT::Install-Recommends \"false\""]);
        // As every Debian since 12, without usrmerge's help.
        command.arg("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr").args(option);
        let (archives, lists) = ("var/cache/apt/archives", "var/lib/apt/lists");
        if let Some(again) = again {
            let kept = again.place.join(KEPT).display().to_string();
            command.arg("--skip=update,download/empty").arg(format!(
                "--setup-hook=set -e; mkdir -p \"$1/{archives}\" \"$1/{lists}\"; \
                 cp '{kept}/archives/'*.deb \"$1/{archives}\"; cp -R '{kept}/lists/.' \"$1/{lists}\""
            ));
        }
        let kept = base.place.join(KEPT).display().to_string();
        command.arg("--skip=essential/unlink").arg(format!(
            "--customize-hook=set -e; mkdir -p '{kept}/archives' '{kept}/lists'; \
             cp \"$1/{archives}/\"*.deb '{kept}/archives'; cp -R \"$1/{lists}/.\" '{kept}/lists'"
        ));
        command.arg(self.suite).arg(base.root()).args(self.mirrors);
        command
    }
}

/// Result of the Debian build.
#[derive(Clone)]
pub(super) struct Base {
    /// Names exactly this content.
    pub(super) id: String,
    place: PathBuf,
}

impl Base {
    /// Root file system, a tar archive.
    pub(super) fn root(&self) -> PathBuf {
        self.place.join("root.tar")
    }

    /// Every package with its version.
    pub(super) fn packages(&self) -> PathBuf {
        self.place.join("packages.txt")
    }

    /// Kernel package (.deb); a node image has none.
    pub(super) fn kernel(&self) -> PathBuf {
        self.place.join("kernel.deb")
    }
}

/// Takes the base of the host image from the cache, or makes it.
pub(super) fn ensure(recipe: &Recipe, kernel: Kernel, images: &Path, fresh: bool) -> Result<Base> {
    let debian = Debian::of_host(recipe);
    let package = recipe.kernel_package(kernel)?;
    ensure_named(images, &debian.key(Some(package)), fresh, "host", |step, base, again| {
        let kernel = base.kernel().display().to_string();
        let hook = match again {
            Some(again) => format!("--extract-hook=cp '{}' '{kernel}'", again.kernel().display()),
            // The package that the meta package depends on, from the same mirrors as the rest. It is not installed, because its
            // scripts would create an initramfs, which is not needed.
            None => format!(
                "--extract-hook=set -e; export APT_CONFIG=\"$MMDEBSTRAP_APT_CONFIG\"; cd '{}'; \
                 real=$(apt-cache depends {package} | sed -n 's/^ *Depends: \\(linux-image-[^ ]*\\)$/\\1/p' | head -n1); \
                 apt-get -q download \"$real\"; mv ./linux-image-*.deb '{kernel}'",
                base.place.display(),
            ),
        };
        step.run(&mut debian.command(base, again, Some(&hook)))
    })
}

/// Takes packages of a node image from the cache, or fetches them.
pub(super) fn ensure_packages(debian: &Debian<'_>, images: &Path, fresh: bool) -> Result<Base> {
    ensure_named(images, &debian.key(None), fresh, "node", |step, base, again| {
        step.run(&mut debian.command(base, again, None))
    })
}

fn ensure_named(
    images: &Path,
    key: &str,
    fresh: bool,
    image: &str,
    make: impl FnOnce(&progress::Step, &Base, Option<&Base>) -> Result<()>,
) -> Result<Base> {
    let place = images.join(format!("base-{key}"));
    let again =
        (!fresh && place.join(KEPT).is_dir()).then(|| Base { id: String::new(), place: place.clone() });
    if again.is_some()
        && let Ok(id) = fs::read_to_string(place.join("id"))
    {
        return Ok(Base { id, place });
    }
    let next = Base { id: String::new(), place: images.join(format!(".base-{key}-{}", std::process::id())) };
    let made = progress::step(&format!("{image} image: Debian packages"), |step| {
        fs::create_dir_all(&next.place).with_context(|| format!("cannot make {}", next.place.display()))?;
        make(step, &next, again.as_ref())?;
        list_packages(&next)?;
        write_id(&next)
    });
    if let Err(error) = made {
        let _ = fs::remove_dir_all(&next.place);
        return Err(error.context(match again {
            Some(_) => format!("the packages were kept from an earlier build; remove {} to fetch them again", place.display()),
            None => format!(
                "the packages come from the recipe's mirrors; check the network and `mirrors` in images/{image}/recipe.toml"
            ),
        }));
    }
    let _ = fs::remove_dir_all(&place);
    fs::rename(&next.place, &place).with_context(|| format!("cannot make {}", place.display()))?;
    let id = fs::read_to_string(place.join("id")).context("the base has no id")?;
    Ok(Base { id, place })
}

fn write_id(base: &Base) -> Result<()> {
    let mut id = Hasher::new();
    id.add("root", hash_file(&base.root())?.as_bytes());
    if base.kernel().is_file() {
        id.add("kernel", hash_file(&base.kernel())?.as_bytes());
    }
    fs::write(base.place.join("id"), id.finish()).context("cannot write the base's id")
}

/// Writes the list of packages, for users and for comparing two builds.
fn list_packages(base: &Base) -> Result<()> {
    let mut tar = Command::new("tar");
    let output = tar.arg("-xOf").arg(base.root()).arg("./var/lib/dpkg/status").output();
    let output = output.context("cannot run tar to list the image's packages")?;
    let status = String::from_utf8_lossy(&output.stdout);
    let field = |paragraph: &str, name: &str| {
        let line = paragraph.lines().find_map(|line| line.strip_prefix(name).map(str::trim));
        line.unwrap_or_default().to_owned()
    };
    let mut lines: Vec<String> = status
        .split("\n\n")
        .filter(|paragraph| !paragraph.trim().is_empty())
        .map(|paragraph| format!("{} {}", field(paragraph, "Package:"), field(paragraph, "Version:")))
        .collect();
    if base.kernel().is_file() {
        let kernel = Command::new("dpkg-deb").arg("--show").arg(base.kernel()).output();
        let kernel = kernel.context("cannot run dpkg-deb to see the kernel's version")?;
        lines.push(String::from_utf8_lossy(&kernel.stdout).trim().replace('\t', " "));
    }
    lines.sort();
    fs::write(base.packages(), lines.join("\n") + "\n").context("cannot write the list of packages")
}
