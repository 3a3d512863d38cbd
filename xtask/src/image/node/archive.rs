//! Archives that are the same bytes whenever they are made of the same files: tar, then zstd or gzip.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::progress::Step;

/// Compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compression {
    /// Unpacked several times as fast as gzip; for whatever reads OCI images of version 1.1.
    Zstd,
    /// Compression for all other readers.
    Gzip,
}

impl Compression {
    /// Returns the name, which ends file names and media types.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// One thread: what several make may depend on their number. Levels from which on more time gives little.
    fn command(self) -> Command {
        let (program, arguments): (_, &[&str]) = match self {
            Self::Zstd => ("zstd", &["-q", "-12", "-T1", "--no-check", "--stdout"]),
            Self::Gzip => ("gzip", &["-q", "-7", "--no-name", "--stdout"]),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }
}

/// Writes a tar archive of these paths below `root`, in their order, directories without what is in them.
pub(super) fn write(step: &Step, root: &Path, paths: &[PathBuf], time: u64, to: &Path) -> Result<()> {
    let list = to.with_extension("list");
    let mut text = Vec::new();
    for path in paths {
        text.extend_from_slice(path.as_os_str().as_bytes());
        text.push(0);
    }
    fs::write(&list, text).with_context(|| format!("cannot write {}", list.display()))?;
    let mut tar = Command::new("tar");
    tar.args([
        "--numeric-owner",
        "--format=pax",
        "--xattrs",
        "--xattrs-include=*",
        "--no-recursion",
        "--null",
    ]);
    tar.arg("--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime");
    tar.arg(format!("--mtime=@{time}")).arg("-C").arg(root).arg("-T").arg(&list).arg("-cf").arg(to);
    step.run(&mut tar)?;
    fs::remove_file(&list).with_context(|| format!("cannot remove {}", list.display()))
}

/// Packs a file; gives the packed one's path.
pub(super) fn compress(step: &Step, tar: &Path, compression: Compression) -> Result<PathBuf> {
    let packed = tar.with_extension(format!("tar.{}", compression.name()));
    // The shell opens the output: neither program then writes a name or a time into it.
    let mut shell = Command::new("sh");
    let command = compression.command();
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    shell.args(["-c", "out=$1; shift; exec \"$@\" > \"$out\"", "sh"]).arg(&packed).args(words).arg(tar);
    step.run(&mut shell)?;
    Ok(packed)
}
