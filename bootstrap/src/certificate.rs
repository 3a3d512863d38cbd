//! Pure: certificates of a cluster, as the control plane provider and the bootstrap provider share them: their Secrets, and their files on
//! the machines. [`make`] makes new ones.

use std::collections::BTreeMap;
use std::fmt;

use bedplate_api::cluster::kubeadm::KubeadmConfigSpec;
use bedplate_api::cluster::kubeadm::cluster::ClusterConfiguration;
use zeroize::Zeroizing;

use crate::capi::{Fault, Purpose};
use crate::cloud_init::{CloudFile, Mode};
use crate::discovery::ca_cert_hashes;

pub mod make;

/// Key of a Secret: certificates in PEM. For the service account it is the public key.
pub const CERTIFICATE_KEY: &str = "tls.crt";

/// Key of a Secret: private key in PEM.
const PRIVATE_KEY_KEY: &str = "tls.key";

/// Directory of the certificates on a machine of the control plane, if the user has set none.
const DIRECTORY: &str = "/etc/kubernetes/pki";

/// Mode of a file with certificates.
const CERTIFICATE_MODE: Mode = Mode("0640");

/// Mode of a file with a private key.
const KEY_MODE: Mode = Mode("0600");

/// Use of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificatePurpose {
    /// Certificate authority of the cluster.
    ClusterAuthority,
    /// Certificate authority of etcd.
    EtcdAuthority,
    /// Certificate authority of the aggregation layer.
    FrontProxyAuthority,
    /// Key pair of service account tokens.
    ServiceAccount,
    /// Client certificate for an external etcd. Only users give it.
    ApiServerEtcdClient,
}

impl CertificatePurpose {
    /// Returns the name of the Secret of a cluster.
    pub fn secret_name(self, cluster: &str) -> String {
        let suffix = match self {
            Self::ClusterAuthority => "ca",
            Self::EtcdAuthority => "etcd",
            Self::FrontProxyAuthority => "proxy",
            Self::ServiceAccount => "sa",
            Self::ApiServerEtcdClient => "apiserver-etcd-client",
        };
        format!("{cluster}-{suffix}")
    }

    /// Paths of certificate and key below the directory of the certificates.
    fn file_names(self) -> (&'static str, &'static str) {
        match self {
            Self::ClusterAuthority => ("ca.crt", "ca.key"),
            Self::EtcdAuthority => ("etcd/ca.crt", "etcd/ca.key"),
            Self::FrontProxyAuthority => ("front-proxy-ca.crt", "front-proxy-ca.key"),
            Self::ServiceAccount => ("sa.pub", "sa.key"),
            Self::ApiServerEtcdClient => ("apiserver-etcd-client.crt", "apiserver-etcd-client.key"),
        }
    }
}

/// A certificate with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Use.
    pub purpose: CertificatePurpose,
    /// Certificates in PEM, or the public key in PEM.
    pub certificate: Vec<u8>,
    /// Private key in PEM. None: the Secret has no key.
    pub key: Option<Zeroizing<Vec<u8>>>,
}

/// Without the key.
impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({:?}, has key: {})", self.purpose, self.key.is_some())
    }
}

impl Certificate {
    /// Reads the data of a Secret that exists. None if it has no certificate. Such a Secret is a fault that a user must correct: no program can make
    /// another one of the name.
    pub fn read(purpose: CertificatePurpose, data: &BTreeMap<String, Vec<u8>>) -> Option<Self> {
        let value = |key: &str| data.get(key).filter(|value| !value.is_empty()).cloned();
        Some(Self {
            purpose,
            certificate: value(CERTIFICATE_KEY)?,
            key: value(PRIVATE_KEY_KEY).map(Zeroizing::new),
        })
    }

    /// Returns the data of the Secret.
    pub fn data(&self) -> BTreeMap<String, Vec<u8>> {
        let key = self.key.as_ref().map(|key| key.to_vec()).unwrap_or_default();
        BTreeMap::from([
            (CERTIFICATE_KEY.to_owned(), self.certificate.clone()),
            (PRIVATE_KEY_KEY.to_owned(), key),
        ])
    }
}

/// A certificate that a machine needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateNeeded {
    /// Use.
    pub purpose: CertificatePurpose,
    /// True if only users provide it. The provider waits for it and never makes it.
    pub is_external: bool,
    /// True if the key must exist.
    pub needs_key: bool,
    /// Path of the certificate on the machine. None: the machine gets no file.
    certificate_path: Option<String>,
    /// Path of the key on the machine. None: the machine gets no file.
    key_path: Option<String>,
}

/// Returns the certificates that a machine needs, in the order of its files.
pub fn certificates_needed(purpose: Purpose, spec: &KubeadmConfigSpec) -> Vec<CertificateNeeded> {
    use CertificatePurpose::{
        ApiServerEtcdClient, ClusterAuthority, EtcdAuthority, FrontProxyAuthority, ServiceAccount,
    };
    if purpose == Purpose::JoinWorker {
        // A worker verifies the authority by its hash.
        return vec![CertificateNeeded {
            purpose: ClusterAuthority,
            is_external: false,
            needs_key: false,
            certificate_path: None,
            key_path: None,
        }];
    }
    let cluster = spec.cluster_configuration.as_ref();
    let directory = cluster.and_then(|cluster| cluster.certificates_dir.as_deref()).unwrap_or(DIRECTORY);
    let own = |purpose: CertificatePurpose| {
        let (certificate, key) = purpose.file_names();
        let path = |name| Some(format!("{}/{name}", directory.trim_end_matches('/')));
        let (certificate_path, key_path) = (path(certificate), path(key));
        CertificateNeeded { purpose, is_external: false, needs_key: true, certificate_path, key_path }
    };
    let mut needed =
        vec![own(ClusterAuthority), own(EtcdAuthority), own(FrontProxyAuthority), own(ServiceAccount)];
    if let Some(etcd) = cluster.and_then(ClusterConfiguration::external_etcd) {
        let external = |purpose, certificate: &String, key: Option<&String>| CertificateNeeded {
            purpose,
            is_external: true,
            needs_key: key.is_some(),
            certificate_path: Some(certificate.clone()),
            key_path: key.cloned(),
        };
        needed[1] = external(EtcdAuthority, &etcd.ca_file, None);
        needed.push(external(ApiServerEtcdClient, &etcd.cert_file, Some(&etcd.key_file)));
    }
    needed
}

/// Returns the certificate of a use.
pub fn find(certificates: &[Certificate], purpose: CertificatePurpose) -> Option<&Certificate> {
    certificates.iter().find(|certificate| certificate.purpose == purpose)
}

/// Returns the hashes of the certificate authorities of the cluster, or the state of their Secret.
pub(crate) fn authority_hashes(certificates: &[Certificate]) -> Result<Vec<String>, &'static str> {
    let found = find(certificates, CertificatePurpose::ClusterAuthority).ok_or("does not exist")?;
    let text = std::str::from_utf8(&found.certificate).map_err(|_| "has a tls.crt that is not PEM")?;
    ca_cert_hashes(text).map_err(|_| "has a tls.crt that is not a certificate in PEM")
}

/// Returns the files of a machine with its certificates. A worker gets none.
pub(crate) fn files(
    purpose: Purpose,
    spec: &KubeadmConfigSpec,
    certificates: &[Certificate],
    cluster: &str,
    faults: &mut Vec<Fault>,
) -> Vec<CloudFile> {
    let mut files = Vec::new();
    for needed in certificates_needed(purpose, spec) {
        let mut fault = |why| {
            faults.push(Fault::Certificate { name: needed.purpose.secret_name(cluster), why });
        };
        let Some(path) = &needed.certificate_path else { continue };
        let Some(found) = find(certificates, needed.purpose) else {
            fault("does not exist");
            continue;
        };
        files.push(CloudFile::of_root(path, CERTIFICATE_MODE, Zeroizing::new(found.certificate.clone())));
        match (&needed.key_path, &found.key) {
            (Some(path), Some(key)) => files.push(CloudFile::of_root(path, KEY_MODE, key.clone())),
            (Some(_), None) => fault("has no tls.key"),
            (None, _) => {}
        }
    }
    files
}
