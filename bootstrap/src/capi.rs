//! Pure: a `KubeadmConfig` of Cluster API becomes the user data of a machine: cloud-config with the kubeadm configuration of the machine's
//! version, its certificates and commands.
//!
//! Each field of the machine's role is carried out, is reported as dropped, or makes an error. As with the upstream provider, fields of the
//! other role are ignored without a report: `joinConfiguration` on the first machine, `initConfiguration` and most of `clusterConfiguration` on the
//! others. The parsed form should be that of the upstream provider. It was compared by reading only; the modules say where and why it differs.
//!
//! No error and no debug output has a value from a Secret. Results are erased from memory. Texts that YAML is made from are not erased.
//! Called by `bedplate-cluster`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bedplate_api::cluster::infrastructure::Endpoint;
use bedplate_api::cluster::kubeadm::file::{File, SecretKeyRef, SecretSource};
use bedplate_api::cluster::kubeadm::user::User;
use bedplate_api::cluster::kubeadm::{CLOUD_CONFIG, KubeadmConfigSpec};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::certificate::{self, Certificate};
use crate::cloud_init::{CloudConfig, CloudFile, CloudUser, Mode, yaml};
use crate::release::Release;
use crate::token::Token;

mod defaults;
mod discovery_file;
mod fault;
mod kubeadm;
#[cfg(test)]
mod tests;

pub use crate::certificate::{CertificateNeeded, CertificatePurpose, certificates_needed};
pub(crate) use defaults::host_and_port;
pub use fault::{Fault, RenderError};

use kubeadm::Converter;

/// Configuration of `kubeadm init` on the machine.
const INIT_CONFIG: &str = "/run/kubeadm/kubeadm.yaml";

/// Configuration of `kubeadm join` on the machine.
const JOIN_CONFIG: &str = "/run/kubeadm/kubeadm-join-config.yaml";

/// File that makes the directory of the success mark.
const PLACEHOLDER: &str = "/run/cluster-api/placeholder";

/// Command that writes the success mark. Infrastructure providers wait for the file.
const MARK_SUCCESS: &str = "echo success > /run/cluster-api/bootstrap-success.complete";

/// Role of the machine in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// First machine of the control plane.
    Init,
    /// Further machine of the control plane.
    JoinControlPlane,
    /// Machine without control plane.
    JoinWorker,
}

/// Facts of the Cluster.
#[derive(Debug, Clone, Copy)]
pub struct ClusterFacts<'a> {
    /// Name of the Cluster.
    pub name: &'a str,
    /// Endpoint of the control plane, if it is known.
    pub endpoint: Option<&'a Endpoint>,
    /// Networks of Services.
    pub services: &'a [String],
    /// Networks of Pods.
    pub pods: &'a [String],
    /// Domain of Services.
    pub service_domain: Option<&'a str>,
}

/// Inputs of the user data of one machine.
#[derive(Debug, Clone, Copy)]
pub struct Issue<'a> {
    /// Role of the machine.
    pub purpose: Purpose,
    /// Spec of the KubeadmConfig.
    pub spec: &'a KubeadmConfigSpec,
    /// Facts of the Cluster.
    pub cluster: ClusterFacts<'a>,
    /// Version of the Machine, with or without a leading `v`.
    pub version: &'a str,
    /// Certificates of the cluster, at least those of [`certificates_needed`].
    pub certificates: &'a [Certificate],
    /// Values of the keys of [`secrets_needed`].
    pub secrets: &'a BTreeMap<SecretKeyRef, Zeroizing<Vec<u8>>>,
    /// Bootstrap token, if [`token_needed`] is true.
    pub token: Option<&'a Token>,
}

/// User data of a machine.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData {
    /// The text.
    pub text: Zeroizing<String>,
    /// Value of the key `format` of the Secret.
    pub format: &'static str,
    /// Paths of fields that are set, and that kubeadm of this version cannot read.
    pub dropped: Vec<String>,
}

/// The text has a token and keys.
impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserData({}, {} bytes)", self.format, self.text.len())
    }
}

/// Returns the keys of Secrets that the data needs.
pub fn secrets_needed(spec: &KubeadmConfigSpec) -> BTreeSet<SecretKeyRef> {
    let files = spec.files.iter().filter_map(|file| file.content_from.as_ref());
    let users = spec.users.iter().filter_map(|user| user.passwd_from.as_ref());
    files.chain(users).map(|source| source.secret.clone()).collect()
}

/// Returns true if the machine joins by a bootstrap token that the spec does not have.
pub fn token_needed(purpose: Purpose, spec: &KubeadmConfigSpec) -> bool {
    let discovery = spec.join_configuration.as_ref().and_then(|join| join.discovery.as_ref());
    let token = discovery.and_then(|discovery| discovery.bootstrap_token.as_ref());
    purpose != Purpose::Init
        && discovery.is_none_or(|discovery| discovery.file.is_none())
        && token.is_none_or(|token| token.token.is_none())
}

/// Returns true if the machine cannot join before the endpoint of the control plane is known.
pub fn endpoint_needed(purpose: Purpose, spec: &KubeadmConfigSpec) -> bool {
    let discovery = spec.join_configuration.as_ref().and_then(|join| join.discovery.as_ref());
    let is_known = match discovery.and_then(|discovery| discovery.file.as_ref()) {
        Some(file) => file
            .kube_config
            .as_ref()
            .is_none_or(|config| config.cluster.as_ref().is_some_and(|cluster| cluster.server.is_some())),
        None => discovery
            .and_then(|discovery| discovery.bootstrap_token.as_ref())
            .is_some_and(|token| token.api_server_endpoint.is_some()),
    };
    purpose != Purpose::Init && !is_known
}

/// Renders the user data of a machine.
///
/// # Errors
/// Fields are unsupported, missing or invalid. All of them are named by their paths.
pub fn render(issue: &Issue<'_>) -> Result<UserData, RenderError> {
    let unsupported = issue.spec.unsupported();
    if !unsupported.is_empty() {
        return Err(unsupported
            .into_iter()
            .map(|path| Fault::Unsupported { path })
            .collect::<Vec<_>>()
            .into());
    }
    let version = with_v(issue.version);
    let Ok(release) = Release::of(&version) else {
        return Err(vec![Fault::Version { version }].into());
    };
    let mut faults = Vec::new();
    let mut converter = Converter::new(release.format());
    let kubeadm = match issue.purpose {
        Purpose::Init => init_file(issue, &version, &mut converter),
        Purpose::JoinControlPlane | Purpose::JoinWorker => join_file(issue, &mut converter, &mut faults),
    };
    let mut files =
        certificate::files(issue.purpose, issue.spec, issue.certificates, issue.cluster.name, &mut faults);
    files.extend(resolve_files(issue, &mut faults));
    files.extend(discovery_file::file(issue, &mut faults));
    files.push(kubeadm);
    files.push(root_file(PLACEHOLDER, "This file makes the directory of the success mark.\n".to_owned()));
    let config = CloudConfig {
        files,
        boot_commands: &issue.spec.boot_commands,
        commands: commands(issue),
        ntp: issue.spec.ntp.as_ref(),
        users: resolve_users(issue, &mut faults),
        disk_setup: issue.spec.disk_setup.as_ref(),
        mounts: &issue.spec.mounts,
    };
    let text = config.text(&mut faults);
    if faults.is_empty() {
        Ok(UserData { text, format: CLOUD_CONFIG, dropped: converter.dropped })
    } else {
        Err(faults.into())
    }
}

/// Returns a version with its leading `v`.
fn with_v(version: &str) -> String {
    if version.starts_with('v') { version.to_owned() } else { format!("v{version}") }
}

/// Makes a file of root that its group may read.
fn root_file(path: &str, content: String) -> CloudFile {
    CloudFile::of_root(path, Mode("0640"), Zeroizing::new(content.into_bytes()))
}

fn init_file(issue: &Issue<'_>, version: &str, converter: &mut Converter) -> CloudFile {
    let mut cluster = converter.cluster(issue.spec.cluster_configuration.as_ref());
    let init = converter.init(issue.spec.init_configuration.as_ref(), &mut cluster);
    defaults::fill_cluster(&mut cluster, &issue.cluster, version);
    let documents = [Value::Object(cluster), Value::Object(init)];
    root_file(
        INIT_CONFIG,
        documents.iter().map(|document| format!("---\n{}", yaml::document(document))).collect(),
    )
}

fn join_file(issue: &Issue<'_>, converter: &mut Converter, faults: &mut Vec<Fault>) -> CloudFile {
    let mut join = converter.join(issue.spec.join_configuration.as_ref());
    defaults::fill_role(&mut join, issue.purpose, faults);
    defaults::fill_discovery(&mut join, issue, faults);
    let document = yaml::document(&Value::Object(join));
    // The upstream provider starts the document of a worker with a marker.
    let marker = if issue.purpose == Purpose::JoinWorker { "---\n" } else { "" };
    root_file(JOIN_CONFIG, format!("{marker}{document}"))
}

/// Returns the commands in order: those before kubeadm, kubeadm with the success mark, those after kubeadm.
fn commands(issue: &Issue<'_>) -> Vec<String> {
    let verbosity = issue.spec.verbosity.map(|level| format!("--v {level}")).unwrap_or_default();
    let (verb, config) = match issue.purpose {
        Purpose::Init => ("init", INIT_CONFIG),
        Purpose::JoinControlPlane | Purpose::JoinWorker => ("join", JOIN_CONFIG),
    };
    let kubeadm = format!("kubeadm {verb} --config {config} {verbosity} && {MARK_SUCCESS}");
    let spec = issue.spec;
    spec.pre_kubeadm_commands
        .iter()
        .cloned()
        .chain([kubeadm])
        .chain(spec.post_kubeadm_commands.iter().cloned())
        .collect()
}

/// Returns the value of a key of a Secret.
fn value_of(
    issue: &Issue<'_>,
    source: &SecretSource,
    path: String,
    faults: &mut Vec<Fault>,
) -> Option<Zeroizing<Vec<u8>>> {
    let value = issue.secrets.get(&source.secret).cloned();
    if value.is_none() {
        let SecretKeyRef { name, key } = source.secret.clone();
        faults.push(Fault::SecretMissing { path, name, key });
    }
    value
}

fn resolve_files(issue: &Issue<'_>, faults: &mut Vec<Fault>) -> Vec<CloudFile> {
    let resolve = |(index, file): (usize, &File)| {
        let content = match &file.content_from {
            Some(source) => value_of(issue, source, format!("spec.files[{index}].contentFrom"), faults)?,
            None => Zeroizing::new(file.content.clone().unwrap_or_default().into_bytes()),
        };
        Some(CloudFile {
            source: format!("spec.files[{index}]"),
            path: file.path.clone(),
            owner: file.owner.clone(),
            permissions: file.permissions.clone(),
            encoding: file.encoding.clone(),
            append: file.append,
            content,
        })
    };
    issue.spec.files.iter().enumerate().filter_map(resolve).collect()
}

fn resolve_users<'a>(issue: &Issue<'a>, faults: &mut Vec<Fault>) -> Vec<CloudUser<'a>> {
    let resolve = |(index, user): (usize, &'a User)| {
        let path = format!("spec.users[{index}].passwdFrom");
        let password = match &user.passwd_from {
            Some(source) => {
                let value = value_of(issue, source, path.clone(), faults)?;
                let Ok(text) = std::str::from_utf8(&value) else {
                    faults.push(Fault::Invalid { path, expected: "must be text" });
                    return None;
                };
                // A final newline in the Secret is not part of the hash.
                Some(Zeroizing::new(text.trim_end_matches('\n').to_owned()))
            }
            None => user.passwd.clone().map(Zeroizing::new),
        };
        Some(CloudUser { user, password })
    };
    issue.spec.users.iter().enumerate().filter_map(resolve).collect()
}
