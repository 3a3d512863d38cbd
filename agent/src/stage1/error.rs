//! Errors of stage-1. Each message names the act and its object, for the console and for pxed.
//!
//! Not here: the handling of a failure (`plan`).

use std::error::Error;
use std::io;

use bedplate_api::id::{Digest, MacAddress};
use bedplate_process::exit;
use thiserror::Error;

use super::arguments::ReadArgumentsError;
use super::disk_selector::SelectDiskError;
use super::http_wire::ParseHeadError;
use super::state_plan::RefuseDiskError;

/// Error of a step.
#[derive(Debug, Error)]
pub enum StageError {
    /// The system refused an act.
    #[error("cannot {act} {subject}")]
    System {
        /// Attempted act.
        act: &'static str,
        /// Object of the act.
        subject: String,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The command line is not one of pxed's.
    #[error("the kernel command line is not from pxed")]
    Arguments(#[from] ReadArgumentsError),
    /// No interface has the MAC address.
    #[error(
        "no network interface has the MAC address {mac}; interfaces found: {present}; check that its \
         driver is in the initramfs"
    )]
    NoInterface {
        /// Requested address.
        mac: MacAddress,
        /// Names and addresses of the existing interfaces.
        present: String,
    },
    /// The cable is out, or the switch port is down.
    #[error("interface {interface} has no carrier after {seconds} s; check the cable and the switch port")]
    NoCarrier {
        /// The interface.
        interface: String,
        /// Timeout in seconds.
        seconds: u64,
    },
    /// DHCP did not succeed.
    #[error("no address on {interface}: {reason}")]
    NoLease {
        /// The interface.
        interface: String,
        /// Human-readable reason.
        reason: String,
    },
    /// There is no seed.
    #[error(
        "no seed at {path}; pxed serves it once per boot, and it was refused or used; reboot the machine"
    )]
    NoSeed {
        /// Expected path.
        path: String,
    },
    /// The seed cannot be read.
    #[error("the seed at {path} is not valid")]
    Seed {
        /// Path of the file.
        path: String,
        /// Parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The seed names no root file system.
    #[error("the seed names no root image; pxed serves an image without one")]
    NoRootImage,
    /// A URL that cannot be used.
    #[error("the URL of the {what} is not valid")]
    Url {
        /// Purpose of the URL.
        what: &'static str,
        /// Parse error.
        #[source]
        source: super::http_wire::ParseUrlError,
    },
    /// A server's name was not found.
    #[error("{host} was not resolved by {servers}")]
    Resolve {
        /// The name.
        host: String,
        /// Servers that were asked.
        servers: String,
    },
    /// The answer is not usable HTTP.
    #[error("unexpected answer from {url}")]
    Answer {
        /// URL of the request.
        url: String,
        /// Problem of the answer.
        #[source]
        source: ParseHeadError,
    },
    /// The server refused.
    #[error("{url} answered with status {status}{detail}")]
    Status {
        /// URL of the request.
        url: String,
        /// HTTP status.
        status: u16,
        /// The refusal's message after a colon, if there is one.
        detail: String,
    },
    /// The body ended before its length.
    #[error("transfer of {url} stopped after {done} of {size} bytes")]
    BrokeOff {
        /// URL of the request.
        url: String,
        /// Received bytes.
        done: u64,
        /// Total number of bytes.
        size: u64,
    },
    /// The server's file does not have the size in the seed.
    #[error("{url} has {found} bytes, but the seed names {expected}")]
    Size {
        /// URL of the request.
        url: String,
        /// Size in the seed.
        expected: u64,
        /// Size in the server's answer.
        found: u64,
    },
    /// The image is not the one that the seed names.
    #[error("the root image has digest {found}, but the seed names {expected}; the image is discarded")]
    WrongDigest {
        /// Digest in the seed.
        expected: Digest,
        /// Digest of the fetched image.
        found: Digest,
    },
    /// The image does not fit into memory.
    #[error("memory is too small for the root image; {need} MiB are needed, {have} MiB are free")]
    Memory {
        /// Required MiB.
        need: u64,
        /// Free MiB.
        have: u64,
    },
    /// No disk was selected.
    #[error("no usable state disk")]
    SelectDisk(#[from] SelectDiskError),
    /// The selected disk must not be written.
    #[error("the state disk {device} is not changed")]
    RefuseDisk {
        /// The disk.
        device: String,
        /// Cause.
        #[source]
        source: RefuseDiskError,
    },
    /// A program of the root image failed.
    #[error("{program} on {device} failed: {output}")]
    Program {
        /// The program.
        program: &'static str,
        /// Device of the program.
        device: String,
        /// Output of the program, truncated.
        output: String,
    },
    /// The image has no init.
    #[error("the root image has no /sbin/init")]
    NoInit,
    /// Fault of stage-1 itself. The step is retried like after every failure.
    #[error("{0}")]
    Internal(&'static str),
}

impl StageError {
    /// Returns a closure for `map_err` with the act and its object.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "callers hand over paths, names and literals as they have them"
    )]
    pub fn system<E: Into<io::Error>>(act: &'static str, subject: impl ToString) -> impl FnOnce(E) -> Self {
        let subject = subject.to_string();
        move |source| Self::System { act, subject, source: source.into() }
    }
}

/// An error and its causes in one line, cut as by [`cut`].
pub fn chain(error: &dyn Error) -> String {
    cut(exit::chain(error))
}

/// Cuts a text to at most 1024 bytes, which is what pxed keeps.
pub(super) fn cut(mut text: String) -> String {
    let end = (0..=text.len().min(1024)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(end);
    text
}
