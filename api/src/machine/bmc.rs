//! `Machine.spec.bmc`: the management controller, its credentials, and settings of its protocol (docs/guides/machine.md).
//!
//! Pure: no clock, no file, no socket.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::Digest;
use crate::secret::SecretReference;

/// Management controller (BMC) of a machine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.protocol == 'Redfish' ? !has(self.ipmi) : !has(self.redfish)")
        .message("bmc.redfish may only be set when bmc.protocol is Redfish, and bmc.ipmi only when it is IPMI"),
    validation = Rule::new("self.protocol == 'Redfish' || !self.address.contains('/')")
        .message("bmc.address must be host or host:port, not a URL, when bmc.protocol is IPMI")
)]
pub struct BmcSpec {
    /// Protocol of the BMC.
    ///
    /// - `Redfish`: DMTF Redfish. `spec.bmc.ipmi` must not be set.
    /// - `IPMI`: IPMI 2.0 over LAN (RMCP+). `spec.bmc.redfish` must not be set.
    pub protocol: BmcProtocol,
    /// Address of the BMC: a host with an optional port, or for `Redfish` also an `https://` or `http://` URL. Default port: 443 for
    /// Redfish, 623 for IPMI. pxed refuses `http://` unless its configuration has `bmc.allow-insecure = true`. At most 512 characters.
    /// Examples: `https://10.9.0.21`, `bmc-7.example:8443`, `[fd00:9::21]`.
    #[schemars(
        length(min = 1, max = 512),
        regex(
            pattern = r"^(https?://)?(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z][-0-9A-Za-z.]*|[0-9a-fA-F:]+:[0-9a-fA-F:]*)(:[0-9]{1,5})?(/[!-~]*)?$"
        )
    )]
    pub address: String,
    /// Secret with the keys `username` and `password`. pxed reads Secrets only in the namespaces of its configuration. The annotation
    /// `bedplate.dev/bmc-addresses` of the Secret must list the host of `spec.bmc.address`.
    pub credentials_secret_ref: SecretReference,
    /// Settings of Redfish. May only be set if `spec.bmc.protocol` is `Redfish`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redfish: Option<RedfishSpec>,
    /// Settings of IPMI. May only be set if `spec.bmc.protocol` is `IPMI`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipmi: Option<IpmiSpec>,
    /// Source of the one-time boot override, which pxed sets when it powers the machine on. Default: `PXE`.
    ///
    /// - `PXE`: the PXE client of the firmware.
    /// - `HTTP`: the UEFI HTTP client.
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
    /// ID of the machine's ComputerSystem in the Redfish service. Must be set if the service has several systems. If unset: the only
    /// system. At most 256 characters. Example: `System.Embedded.1`.
    #[serde(default, rename = "systemID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub system_id: Option<String>,
    /// Verification of the TLS certificate of the Redfish service. If unset, a certificate authority that pxed's host trusts must have
    /// signed it.
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
    ///
    /// - `Pin`: the public key of the certificate must be one of `spec.bmc.redfish.tls.pins`.
    /// - `CA`: an authority of `spec.bmc.redfish.tls.caBundle` must have signed the certificate.
    /// - `Insecure`: no verification, so any host at the address gets the password. pxed refuses it unless its configuration has
    ///   `bmc.allow-insecure = true`.
    pub mode: BmcTlsMode,
    /// Accepted public keys: SHA-256 of the SubjectPublicKeyInfo of the certificate, as `sha256:` and 64 hex digits.
    /// `bedplate bmc probe ADDRESS` prints the pin of a BMC. 1 or 2 entries. Two allow a change of the key. Must be set with mode `Pin`,
    /// and may only be set then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub pins: Vec<Digest>,
    /// Certificate authorities in PEM form. May only be set with mode `CA`. At most 64 KiB. If unset: those that pxed's host trusts.
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
    /// Cipher suite of the session (IPMI 2.0, table 22-20): 17 or 3. If unset: 17, or 3 if the BMC does not offer 17.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [3, 17]))]
    pub cipher_suite: Option<i32>,
    /// Privilege level of the session. The account must have it. Default: `Operator`.
    ///
    /// - `User`: reads only, so power operations fail.
    /// - `Operator`: reads, and changes the power and the boot device.
    /// - `Administrator`: all rights.
    #[serde(default)]
    pub privilege: IpmiPrivilege,
}

/// Privilege level of an IPMI session.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IpmiPrivilege {
    /// Reads only.
    User,
    /// Reads, and changes the power and the boot device.
    #[default]
    Operator,
    /// All rights.
    Administrator,
}
