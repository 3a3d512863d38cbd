//! A Machine as the boot path needs it: what identifies it and what its `spec.pxe` says, with defaults resolved.
//!
//! Pure: plain data. Made from the API type in one place (`clients`), so that the policy is tested without it.

use std::fmt;

use bedplate_api::id::{MacAddress, MachineName};
pub use bedplate_api::machine::{BootProtocol, FirmwareKind as Firmware};
use bedplate_api::wire::StateDiskRequest;

/// The name of an image: one of the configuration's, or an OCI reference that a Machine names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImageName {
    /// `[images.<name>]`.
    Configured(String),
    /// `spec.pxe.image.reference`.
    Reference {
        /// The reference.
        reference: String,
        /// True if a tag is sufficient.
        allow_tag: bool,
    },
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured(name) => f.write_str(name),
            Self::Reference { reference, .. } => f.write_str(reference),
        }
    }
}

/// A Machine as the boot path needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The name.
    pub name: MachineName,
    /// The UID: a Machine made again under the same name is another one.
    pub uid: String,
    /// `spec.paused`.
    pub paused: bool,
    /// `spec.pxe.firmware`.
    pub firmware: Firmware,
    /// `spec.pxe.bootProtocol`.
    pub boot_protocol: BootProtocol,
    /// The image, the site's default resolved.
    pub image: ImageName,
    /// `spec.pxe.kernelArguments`.
    pub kernel_arguments: Vec<String>,
    /// `spec.pxe.stateDisk`, as stage-1 needs it.
    pub state_disk: Option<StateDiskRequest>,
    /// The addresses of the interfaces that netboot.
    pub netboot: Vec<MacAddress>,
}
