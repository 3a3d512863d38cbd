//! `Machine.spec.bmc`: the management controller, its credentials and whom to believe (docs/machine.md).
//!
//! Pure: no clock, no file, no socket.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::Digest;
use crate::secret::SecretReference;

/// A management controller (BMC).
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.protocol == 'redfish' || (!has(self.tls) && !has(self.systemId))")
        .message("bmc.tls and bmc.systemId belong to protocol redfish"),
    validation = Rule::new("self.protocol == 'ipmi' || !has(self.ipmi)")
        .message("bmc.ipmi belongs to protocol ipmi"),
    validation = Rule::new("self.protocol == 'redfish' || !self.address.contains('/')")
        .message("with protocol ipmi, bmc.address is host or host:port, not a URL")
)]
pub struct BmcSpec {
    /// The protocol that the controller speaks.
    pub protocol: BmcProtocol,
    /// Where it answers: an `https://` (or `http://`) URL, or host with an optional port. Default port: 443 for redfish,
    /// 623 for ipmi. At most 512 characters.
    #[schemars(
        length(min = 1, max = 512),
        regex(
            pattern = r"^(https?://)?(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z][-0-9A-Za-z.]*|[0-9a-fA-F:]+:[0-9a-fA-F:]*)(:[0-9]{1,5})?(/[!-~]*)?$"
        )
    )]
    pub address: String,
    /// The system at this address. Needed where the Redfish service has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub system_id: Option<String>,
    /// The Secret with keys `username` and `password`; read only from the namespaces that pxed is configured for.
    pub credentials_secret_ref: SecretReference,
    /// Whom to believe. Absent: the certificate authorities of the system that pxed runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<BmcTls>,
    /// Settings of the IPMI session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipmi: Option<IpmiSpec>,
    /// What the machine is told to boot from once: its PXE or its UEFI HTTP client. Default: `pxe`.
    #[serde(default)]
    pub boot_source: BootSource,
}

/// The protocol of a management controller.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum BmcProtocol {
    /// DMTF Redfish.
    Redfish,
    /// IPMI 2.0 over LAN (RMCP+).
    Ipmi,
}

/// What a machine boots from once.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub enum BootSource {
    /// The PXE client.
    #[default]
    Pxe,
    /// The UEFI HTTP client.
    Http,
}

/// How the controller's certificate is checked.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.mode == 'pin') == (has(self.pins) && size(self.pins) > 0)")
        .message("bmc.tls.pins needs one or two pins when mode is pin, and is refused otherwise"),
    validation = Rule::new("self.mode == 'ca' || !has(self.caBundle)")
        .message("bmc.tls.caBundle belongs to mode ca")
)]
pub struct BmcTls {
    /// Which check is made.
    pub mode: BmcTlsMode,
    /// SHA-256 of the certificate's SubjectPublicKeyInfo, as `sha256:` and 64 hex digits; two while keys are changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub pins: Vec<Digest>,
    /// Certificate authorities (PEM) of mode `ca`, at most 64 KiB. Absent: those of the system that pxed runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub ca_bundle: Option<String>,
}

/// Which check of the controller's certificate is made.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum BmcTlsMode {
    /// The public key is one of `pins`.
    Pin,
    /// The certificate is signed by a certificate authority that is believed.
    Ca,
    /// None. Whoever answers at the address gets the password.
    Insecure,
}

/// Settings of an IPMI 2.0 session.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct IpmiSpec {
    /// Cipher suite (IPMI 2.0, table 22-20): 17 or 3. Absent: 17, and 3 where the BMC has no 17.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [3, 17]))]
    pub cipher_suite: Option<i32>,
    /// The privilege level that is asked for. Default: `operator`.
    #[serde(default)]
    pub privilege: IpmiPrivilege,
}

/// Privilege level of an IPMI session.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub enum IpmiPrivilege {
    /// Reads.
    User,
    /// Reads, changes power and boot device.
    #[default]
    Operator,
    /// Everything.
    Administrator,
}
