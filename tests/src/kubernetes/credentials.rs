//! Users of a test API server: client certificates of its authority, tokens of service accounts, and their kubeconfigs.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_api::enrollment::{AGENTS_GROUP, KeyId};
use http::Method;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData as _,
};
use serde_json::{Value, json};

use super::{Kubernetes, Objects};

/// Lifetime of tokens in seconds: longer than a demonstration, because they are not renewed.
const TOKEN_SECONDS: u32 = 86_400;

/// Client certificate and its key (PEM).
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The certificate.
    pub certificate: String,
    /// Key of the certificate (PKCS #8).
    pub key: String,
}

impl Credentials {
    /// Returns the ID of the key, as `status.enrollment.keyID` has it.
    ///
    /// # Errors
    /// The key cannot be read.
    pub fn key_id(&self) -> Result<KeyId> {
        Ok(key_id(&KeyPair::from_pem(&self.key)?))
    }
}

fn key_id(key: &KeyPair) -> KeyId {
    KeyId::of_public_key(&key.subject_public_key_info())
}

impl Kubernetes {
    /// Creates a new client certificate for `user`, a member of `groups` (at most one). A member of the group of agents is also a member of the
    /// enrollment group of its key, as with a certificate of pxed.
    ///
    /// # Errors
    /// The authority cannot be read or used.
    pub fn certificate(&self, user: &str, groups: &[&str]) -> Result<Credentials> {
        let read =
            |name: &str| std::fs::read_to_string(self.path(&format!("pki/{name}"))).context("no authority");
        let issuer = Issuer::from_ca_cert_pem(&read("ca.crt")?, KeyPair::from_pem(&read("ca.key")?)?)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let key = KeyPair::generate()?;
        // rcgen supports one attribute of each of its types in a name.
        ensure!(groups.len() <= 1, "{user}: more than one group");
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        if groups.contains(&AGENTS_GROUP) {
            let organization = DnType::CustomDnType(vec![2, 5, 4, 10]);
            params.distinguished_name.push(organization, key_id(&key).group());
        }
        params.distinguished_name.push(DnType::CommonName, user);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2099, 1, 1);
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(Credentials { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Creates a kubeconfig with a new client certificate for `user`, a member of `groups` (at most one).
    ///
    /// # Errors
    /// The authority cannot be used, or the file cannot be written.
    pub fn user(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        self.kubeconfig_with(user, &self.certificate(user, groups)?)
    }

    /// Creates a kubeconfig of this name with these credentials.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_with(&self, name: &str, credentials: &Credentials) -> Result<PathBuf> {
        self.write_kubeconfig(name, &self.kubeconfig(name, &user_of(credentials))?)
    }

    /// Creates a kubeconfig with an agent's certificate. Returns its path, and the enrollment as a Machine's status has it.
    ///
    /// # Errors
    /// As for [`Self::user`], or the API server does not report the certificate.
    pub fn agent(&self, machine: &str) -> Result<(PathBuf, Value)> {
        let user = format!("bedplate:machine:{machine}");
        let credentials = self.certificate(&user, &["bedplate:machines"])?;
        let kubeconfig = self.kubeconfig_with(&user, &credentials)?;
        Ok((kubeconfig, self.enrollment(&credentials)?))
    }

    /// Returns `status.enrollment` of a Machine whose agent has this certificate.
    ///
    /// # Errors
    /// As for [`Self::fingerprint`].
    pub fn enrollment(&self, agent: &Credentials) -> Result<Value> {
        Ok(json!({ "certificateFingerprint": self.fingerprint(agent)?, "keyID": agent.key_id()? }))
    }

    /// Returns the fingerprint that the API server reports for a certificate, as a Machine's status has it.
    ///
    /// # Errors
    /// The API server does not report the certificate.
    pub fn fingerprint(&self, credentials: &Credentials) -> Result<String> {
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let objects = Objects::connect(&self.reactor, self.kubeconfig("shown", &user_of(credentials))?)?;
        let who = objects.request(&Method::POST, path, "application/json", &review)?;
        let id = &who["status"]["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"][0];
        let fingerprint = id.as_str().and_then(|id| id.strip_prefix("X509SHA256="));
        Ok(format!("sha256:{}", fingerprint.context("no credential-id")?))
    }

    /// Creates a kubeconfig with a token of an existing service account.
    ///
    /// # Errors
    /// The token is refused.
    pub fn service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": { "expirationSeconds": TOKEN_SECONDS } });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let made = self.objects()?.request(&Method::POST, &path, "application/json", &request)?;
        let token = made["status"]["token"].as_str().context("no token")?;
        let kubeconfig = self.kubeconfig(name, &format!("    token: {token}\n"))?;
        self.write_kubeconfig(&format!("{namespace}-{name}"), &kubeconfig)
    }

    /// Returns a kubeconfig of a user with these lines of credentials, in the layout of kubeadm.
    pub(super) fn kubeconfig(&self, user: &str, credentials: &str) -> Result<String> {
        let authority = STANDARD.encode(std::fs::read(self.ca()).context("no authority")?);
        let server = self.address();
        Ok(format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {authority}\n    server: https://{server}\n  \
             name: kubernetes\ncontexts:\n- context:\n    cluster: kubernetes\n    user: {user}\n  name: {user}@kubernetes\n\
             current-context: {user}@kubernetes\nkind: Config\npreferences: {{}}\nusers:\n- name: {user}\n  user:\n{credentials}"
        ))
    }

    /// Writes a kubeconfig to a file of this name.
    pub(super) fn write_kubeconfig(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.path(&format!("{}.conf", name.replace([':', '/'], "-")));
        // Another test of the program may be reading the existing file.
        let place = path.parent().context("a file in a directory")?;
        let mut new = tempfile::NamedTempFile::new_in(place).context("cannot create a kubeconfig")?;
        new.write_all(content.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
        new.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// Returns the lines of credentials in a kubeconfig.
pub(super) fn user_of(credentials: &Credentials) -> String {
    format!(
        "    client-certificate-data: {}\n    client-key-data: {}\n",
        STANDARD.encode(&credentials.certificate),
        STANDARD.encode(&credentials.key)
    )
}
