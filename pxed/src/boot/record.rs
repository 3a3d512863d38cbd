//! Stored form of a boot: its owner, its image, its expiration.
//!
//! Pure: `now` is an argument. The JSON form lies in the store's table of boots; a field is added with a default.

use std::net::Ipv4Addr;

use bedplate_api::id::{BootId, Digest, MacAddress, MachineName};
pub use bedplate_oci::Blob;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::boot_policy::{ImageName, Platform};

/// Returns a text in public form: the boot ID of a URL is replaced by the public ID.
pub fn public_text(id: BootId, text: &str) -> String {
    text.replace(&id.to_string(), &id.public_id().to_string())
}

/// Owner of a boot: a Machine by its UID, as a re-created Machine of the same name is another owner, or an unknown
/// MAC address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Owner {
    /// A Machine.
    #[serde(rename_all = "camelCase")]
    Machine {
        /// The name.
        name: MachineName,
        /// The UID.
        uid: String,
    },
    /// An unknown machine, while discovery is on.
    Unknown {
        /// The MAC address.
        mac: MacAddress,
    },
}

impl Owner {
    /// The Machine's name.
    pub fn machine(&self) -> Option<&MachineName> {
        match self {
            Self::Machine { name, .. } => Some(name),
            Self::Unknown { .. } => None,
        }
    }

    /// Returns the name of the machine on its screen and in its seed.
    pub(crate) fn display_name(&self) -> String {
        match self {
            Self::Machine { name, .. } => name.to_string(),
            Self::Unknown { mac } => format!("unknown-{}", mac.to_string().replace(':', "")),
        }
    }
}

/// The image that a boot was given with its script: kernel, initrd and root file system of one boot belong together even
/// if the image's name means another one a minute later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// The name by which it was chosen.
    pub name: ImageName,
    /// The digest.
    pub digest: Digest,
    /// The kernel.
    pub kernel: Blob,
    /// The initial RAM file system.
    pub initrd: Blob,
    /// The root file system.
    pub rootfs: Option<Blob>,
    /// The image's own kernel arguments, then those of the configuration.
    pub kernel_arguments: Vec<String>,
}

/// Circumstances in which a boot was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Opening {
    /// Owner of the boot.
    pub owner: Owner,
    /// The interface that asked.
    pub mac: MacAddress,
    /// The DHCP transaction.
    pub transaction: u32,
    /// Program that asked: the same transaction ID from another program is another transaction.
    pub loader: LoaderKind,
    /// Platform of the machine, if it reported one.
    pub platform: Option<Platform>,
    /// Our address that it can reach.
    pub server: Ipv4Addr,
}

/// Kind of program that opened a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LoaderKind {
    /// Firmware PXE.
    Pxe,
    /// UEFI HTTP boot.
    Http,
    /// iPXE.
    Ipxe,
}

/// A boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The id.
    pub id: BootId,
    /// Circumstances in which the boot was opened.
    pub opening: Opening,
    /// The time.
    pub opened: Timestamp,
    /// Expiry time of its URLs.
    pub expires: Timestamp,
    /// Image of the boot; set with the first script.
    #[serde(default)]
    pub image: Option<Image>,
    /// True if its seed was sent or is about to be. The table of seeds is decisive after a crash.
    #[serde(default)]
    pub seed_taken: bool,
}

impl Record {
    /// Returns true if its URLs are valid.
    pub fn is_live(&self, now: Timestamp) -> bool {
        now < self.expires
    }

    /// Makes it good for at least `lifetime` from now.
    pub fn extend(&mut self, now: Timestamp, lifetime: SignedDuration) {
        self.expires = self.expires.max(now.saturating_add(lifetime).unwrap_or(self.expires));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_text_has_the_public_id_in_urls() {
        let id: BootId = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
        assert_eq!(
            public_text(id, &format!("no /b/{id}/rootfs")),
            "no /b/be45cb2605bf36bebde684841a28f0fd/rootfs"
        );
    }
}
