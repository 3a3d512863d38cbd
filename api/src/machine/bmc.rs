//! `Machine.spec.bmc`: the management controller, its credentials, and settings of its protocol (docs/machine.md).
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
    validation = Rule::new("self.protocol == 'Redfish' ? !has(self.ipmi) : !has(self.redfish)")
        .message("bmc.redfish may only be set when bmc.protocol is Redfish, and bmc.ipmi only when it is IPMI"),
    validation = Rule::new("self.protocol == 'Redfish' || !self.address.contains('/')")
        .message("bmc.address must be host or host:port, not a URL, when bmc.protocol is IPMI")
)]
pub struct BmcSpec {
    /// Protocol of the controller. It selects which of `redfish` and `ipmi` may be set.
    pub protocol: BmcProtocol,
    /// Address of the controller: an `https://` (or `http://`) URL, or host with an optional port. Default port: 443 for Redfish,
    /// 623 for IPMI. At most 512 characters.
    #[schemars(
        length(min = 1, max = 512),
        regex(
            pattern = r"^(https?://)?(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z][-0-9A-Za-z.]*|[0-9a-fA-F:]+:[0-9a-fA-F:]*)(:[0-9]{1,5})?(/[!-~]*)?$"
        )
    )]
    pub address: String,
    /// The Secret with keys `username` and `password`; read only from the namespaces that pxed is configured for.
    pub credentials_secret_ref: SecretReference,
    /// Settings of protocol `Redfish`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redfish: Option<RedfishSpec>,
    /// Settings of protocol `IPMI`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipmi: Option<IpmiSpec>,
    /// Source of the one-time boot override. Default: `PXE`.
    #[serde(default)]
    pub boot_source: BootSource,
}

impl BmcSpec {
    /// Returns the system that `redfish.systemID` names.
    pub fn system_id(&self) -> Option<&str> {
        self.redfish.as_ref()?.system_id.as_deref()
    }

    /// Returns how the controller's certificate is verified, if `redfish.tls` says it.
    pub fn tls(&self) -> Option<&BmcTls> {
        self.redfish.as_ref()?.tls.as_ref()
    }
}

/// Protocol of a management controller.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum BmcProtocol {
    /// DMTF Redfish.
    Redfish,
    /// IPMI 2.0 over LAN (RMCP+).
    #[serde(rename = "IPMI")]
    Ipmi,
}

/// Source of a one-time boot override.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BootSource {
    /// The PXE client.
    #[default]
    #[serde(rename = "PXE")]
    Pxe,
    /// The UEFI HTTP client.
    #[serde(rename = "HTTP")]
    Http,
}

/// Settings of a Redfish service.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RedfishSpec {
    /// ID of the machine's system. Must be set if the service has several systems.
    #[serde(default, rename = "systemID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub system_id: Option<String>,
    /// Verification of the service's certificate. If unset, pxed uses the certificate authorities of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<BmcTls>,
}

/// Verification of a Redfish service's certificate.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.mode == 'Pin') == (has(self.pins) && size(self.pins) > 0)")
        .message("tls.pins must be set, to one or two pins, when tls.mode is Pin, and may only be set then"),
    validation = Rule::new("self.mode == 'CA' || !has(self.caBundle)")
        .message("tls.caBundle may only be set when tls.mode is CA")
)]
pub struct BmcTls {
    /// Kind of verification.
    pub mode: BmcTlsMode,
    /// SHA-256 of the certificate's SubjectPublicKeyInfo, as `sha256:` and 64 hex digits; two while keys are changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub pins: Vec<Digest>,
    /// Certificate authorities (PEM) of mode `CA`, at most 64 KiB. If unset, pxed uses those of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub ca_bundle: Option<String>,
}

/// Kind of verification of a Redfish service's certificate.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum BmcTlsMode {
    /// The public key is one of `pins`.
    Pin,
    /// A trusted certificate authority signed the certificate.
    #[serde(rename = "CA")]
    Ca,
    /// No verification. Any host that answers at the address gets the password.
    Insecure,
}

/// Settings of an IPMI 2.0 session.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct IpmiSpec {
    /// Cipher suite (IPMI 2.0, table 22-20): 17 or 3. If unset, 17, and 3 if the BMC does not offer 17.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [3, 17]))]
    pub cipher_suite: Option<i32>,
    /// Privilege level of the session. Default: `Operator`.
    #[serde(default)]
    pub privilege: IpmiPrivilege,
}

/// Privilege level of an IPMI session.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IpmiPrivilege {
    /// Reads.
    User,
    /// Reads, changes power and boot device.
    #[default]
    Operator,
    /// Everything.
    Administrator,
}
