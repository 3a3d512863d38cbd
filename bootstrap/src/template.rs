//! Pure: errors of a template that make every host refuse it. The controller and pxed refuse such an edit
//! before it becomes a version. Otherwise a rolling update would stop at the first host. Agents check the
//! same before they fill a slot.
//!
//! Not here: what depends on a host, on the node image or on the value of a Secret.

use std::fmt;

use bedplate_api::configuration::{ContainerNetwork, FileEncoding, FileSpec, NodeImage, NodeRole, Template};
use bedplate_api::image_reference::{ParseReferenceError, Reference};
use zeroize::Zeroizing;

use crate::bind::{Bind, below, hidden_by, plain_path};
use crate::discovery::ca_cert_hashes;
use crate::encoding::{self, DecodeError};
use crate::field_error::RenderKubeadmError;
use crate::plane::{Plane, check_join};
use crate::unit;

/// Prefix of a reference to an image on the hosts.
const LAYOUT: &str = "oci:";
/// Maximum size of a file after decoding, in bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// All reasons for which each host refuses a template.
#[derive(Debug, Clone, PartialEq, Eq, Default, thiserror::Error)]
pub struct CheckTemplateError(pub Vec<Refusal>);

impl fmt::Display for CheckTemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("; "))
    }
}

/// One reason for which each host refuses a template. The text begins with the field below `template`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A reference that is not valid for a registry.
    #[error("image.reference: {0}")]
    Reference(ParseReferenceError),
    /// Authorities that cannot verify the certificate of a registry.
    #[error("image.caBundle is not a list of valid PEM certificates; correct the MachineConfiguration")]
    Authorities,
    /// Values that kubeadm, the kubelet or the API server would refuse.
    #[error("kubernetes: {0}")]
    Kubernetes(RenderKubeadmError),
    /// A control plane that joins nothing, in a cluster.
    #[error(
        "kubernetes: role ControlPlane without a joinConfiguration would create a new cluster, which a \
         host of a cluster refuses; add a joinConfiguration, also an empty one, to join this cluster \
         (docs/concepts/node.md, \"The first control plane\")"
    )]
    MakesCluster,
    /// A kubeconfig of the join that is not in the template, in a cluster.
    #[error(
        "kubernetes: joinConfiguration.discovery.file.kubeConfigPath is not a file of spec.template.files, \
         so no host can verify which cluster it joins; add the file, or omit discovery to join this \
         cluster"
    )]
    DiscoveryFile,
    /// No cluster to join, without one.
    #[error(
        "kubernetes.joinConfiguration.discovery must be set on a standalone host, which has no cluster of \
         its own to join; set file.kubeConfigPath to a file of spec.template.files, or set bootstrapToken \
         (docs/concepts/node.md, \"Without a cluster\")"
    )]
    NoDiscovery,
    /// A command that a shell cannot run.
    #[error("{0}")]
    Commands(RenderKubeadmError),
    /// A name that sysctl.d(5) does not accept.
    #[error("sysctls: {0:?} is not the name of a kernel parameter")]
    Parameter(String),
    /// A value that would be more than one line, or another setting.
    #[error("{field} has {value:?}, which is not valid in a unit file; correct the MachineConfiguration")]
    Text {
        /// Field of the template.
        field: &'static str,
        /// Value of the field.
        value: String,
    },
    /// A bind that systemd-nspawn rejects.
    #[error("container.binds has {bind:?}, but {why}; correct the MachineConfiguration")]
    Bind {
        /// The bind.
        bind: String,
        /// Cause.
        why: String,
    },
    /// Not a quantity of bytes.
    #[error(
        "container.memoryMax {0:?} is not a quantity of bytes such as 8Gi; correct the MachineConfiguration"
    )]
    Memory(String),
    /// A control plane in a network that other hosts do not reach.
    #[error("container.network {network} does not support role ControlPlane: {why}; omit container.network")]
    ControlPlane {
        /// Name of the network.
        network: &'static str,
        /// Cause.
        why: &'static str,
    },
    /// A content does not match its encoding.
    #[error("files[{index}] ({path}): the content is not {encoding}; correct the MachineConfiguration")]
    Encoding {
        /// Index in `files`.
        index: usize,
        /// Path of the file.
        path: String,
        /// Name of the encoding.
        encoding: &'static str,
    },
    /// A content that is too large after decoding.
    #[error("files[{index}] ({path}): more than {MAX_FILE_BYTES} bytes; put the file into the node image")]
    Large {
        /// Index in `files`.
        index: usize,
        /// Path of the file.
        path: String,
    },
    /// A file that the node would not see.
    #[error(
        "files[{index}] ({path}): {above} is mounted over the slot's root and would hide the file; correct \
         the MachineConfiguration"
    )]
    Hidden {
        /// Index in `files`.
        index: usize,
        /// Path of the file.
        path: String,
        /// Name of the mount.
        above: String,
    },
}

/// Checks a template for the hosts of a plane, as far as the result does not depend on one host.
///
/// # Errors
/// All reasons for which each of them refuses it.
pub fn check(template: &Template, plane: Plane) -> Result<(), CheckTemplateError> {
    let mut refusals = check_image(&template.image);
    refusals.extend(check_join(template, plane).err());
    match crate::render_anywhere(&template.kubernetes) {
        Ok(rendered) => refusals.extend(unit::render(&rendered, template).err().map(Refusal::Commands)),
        Err(error) => refusals.push(Refusal::Kubernetes(error)),
    }
    for (name, value) in &template.sysctls {
        if !is_parameter(name) {
            refusals.push(Refusal::Parameter(name.clone()));
        }
        refusals.extend(one_line("sysctls", value).err());
    }
    refusals.extend(check_network(template).err());
    refusals.extend(memory_max(template).err());
    let mut binds = Vec::new();
    for bind in template.container.iter().flat_map(|container| &container.binds) {
        match parse(bind) {
            Ok(bind) => binds.push(bind),
            Err(refusal) => refusals.push(refusal),
        }
    }
    for (index, file) in template.files.iter().enumerate() {
        refusals.extend(check_place(index, file).err());
        refusals.extend(check_seen(index, file, template, &binds).err());
        if let Some(content) = &file.content {
            let content = Zeroizing::new(content.as_bytes().to_vec());
            refusals.extend(decode(index, file, content).err());
        }
    }
    if refusals.is_empty() { Ok(()) } else { Err(CheckTemplateError(refusals)) }
}

/// Returns the binds of a template.
///
/// # Errors
/// A bind that systemd-nspawn rejects.
pub fn binds(template: &Template) -> Result<Vec<Bind>, Refusal> {
    template.container.iter().flat_map(|container| &container.binds).map(|bind| parse(bind)).collect()
}

/// Returns the maximum of memory that a slot may use, in bytes.
///
/// # Errors
/// It is not a quantity of bytes.
pub fn memory_max(template: &Template) -> Result<Option<u64>, Refusal> {
    let quantity = template.container.as_ref().and_then(|container| container.memory_max.as_ref());
    quantity.map(|quantity| bytes(&quantity.0).ok_or_else(|| Refusal::Memory(quantity.0.clone()))).transpose()
}

/// Returns a value that stays one value in a unit file.
///
/// # Errors
/// It does not.
pub fn one_line<'v>(field: &'static str, value: &'v str) -> Result<&'v str, Refusal> {
    let fits = !value.is_empty() && !value.ends_with('\\') && !value.chars().any(char::is_control);
    if fits { Ok(value) } else { Err(Refusal::Text { field, value: value.to_owned() }) }
}

/// Checks that nothing is mounted over the place of a file in every slot. Binds of the template: [`check`].
///
/// # Errors
/// The node would not see the file.
pub fn check_place(index: usize, file: &FileSpec) -> Result<(), Refusal> {
    hidden_by(&file.path).map_or(Ok(()), |above| Err(hidden(index, file, above.to_owned())))
}

/// Decodes the content of a file.
///
/// # Errors
/// The content does not match its encoding, or is too large.
pub fn decode(
    index: usize,
    file: &FileSpec,
    content: Zeroizing<Vec<u8>>,
) -> Result<Zeroizing<Vec<u8>>, Refusal> {
    let wrong = |encoding| Refusal::Encoding { index, path: file.path.clone(), encoding };
    let base64 = |text: &[u8]| encoding::base64(text).map_err(|_| wrong("base64"));
    match file.encoding {
        FileEncoding::Plain => Ok(content),
        FileEncoding::Base64 => base64(&content),
        FileEncoding::GzipBase64 => {
            encoding::gunzip(&base64(&content)?, MAX_FILE_BYTES).map_err(|error| match error {
                DecodeError::Invalid => wrong("gzip in base64"),
                DecodeError::Large => Refusal::Large { index, path: file.path.clone() },
            })
        }
    }
}

fn check_image(image: &NodeImage) -> Vec<Refusal> {
    let reference = Some(&image.reference).filter(|reference| !reference.starts_with(LAYOUT));
    let reference = reference.and_then(|reference| Reference::parse(reference).err()).map(Refusal::Reference);
    let authorities =
        image.ca_bundle.as_ref().filter(|pem| ca_cert_hashes(pem).is_err()).map(|_| Refusal::Authorities);
    reference.into_iter().chain(authorities).collect()
}

fn network(template: &Template) -> ContainerNetwork {
    template.container.as_ref().map(|container| container.network).unwrap_or_default()
}

/// Refuses a control plane whose address others, or its own host, cannot reach.
fn check_network(template: &Template) -> Result<(), Refusal> {
    let is_control_plane = template.kubernetes.role == NodeRole::ControlPlane;
    match network(template) {
        ContainerNetwork::Macvlan if is_control_plane => Err(Refusal::ControlPlane {
            network: "Macvlan",
            why: "a host cannot reach its own macvlan, so the agent would not reach the API server",
        }),
        ContainerNetwork::Veth if is_control_plane => Err(Refusal::ControlPlane {
            network: "Veth",
            why: "only the host reaches the node's address, which API server and etcd publish to other \
                  hosts",
        }),
        ContainerNetwork::Host | ContainerNetwork::Veth | ContainerNetwork::Macvlan => Ok(()),
    }
}

/// Refuses a file that a bind of the template, or its network, hides from the node.
fn check_seen(index: usize, file: &FileSpec, template: &Template, binds: &[Bind]) -> Result<(), Refusal> {
    let path = plain_path(&file.path);
    if network(template) == ContainerNetwork::Veth && path == "/etc/hosts" {
        return Err(hidden(index, file, "the list of hosts of container.network Veth".to_owned()));
    }
    let above = binds.iter().find(|bind| below(&path, &plain_path(&bind.target)).is_some());
    above.map_or(Ok(()), |bind| Err(hidden(index, file, format!("the bind {}", bind.target))))
}

fn hidden(index: usize, file: &FileSpec, above: String) -> Refusal {
    Refusal::Hidden { index, path: file.path.clone(), above }
}

fn parse(bind: &str) -> Result<Bind, Refusal> {
    let bind = one_line("container.binds", bind)?;
    Bind::parse(bind).map_err(|why| Refusal::Bind { bind: bind.to_owned(), why })
}

/// Returns true if sysctl.d(5) reads a line that begins with this as a parameter of this name.
fn is_parameter(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_graphic() && !"=\\\"'`".contains(c);
    !name.is_empty() && name.chars().all(fits) && !name.starts_with(['#', ';', '-'])
}

/// Returns a Kubernetes quantity as bytes, rounded down.
fn bytes(quantity: &str) -> Option<u64> {
    const SUFFIXES: [(&str, u64); 12] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("Ei", 1 << 60),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("E", 1_000_000_000_000_000_000),
    ];
    let found = SUFFIXES.iter().find_map(|(suffix, factor)| Some((quantity.strip_suffix(suffix)?, *factor)));
    let (number, factor) = found.unwrap_or((quantity, 1));
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if part.len() > 9 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let scale = 10_u64.pow(u32::try_from(part.len()).ok()?);
    let part: u128 = if part.is_empty() { 0 } else { part.parse().ok()? };
    let whole: u64 = whole.parse().ok()?;
    let value = u128::from(whole) * u128::from(factor) + part * u128::from(factor) / u128::from(scale);
    u64::try_from(value).ok().filter(|value| *value > 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    use super::*;

    fn template(more: &Value) -> Template {
        let mut template = json!({"image": {"reference": "r.example/node", "allowTag": true}, "kubernetes": {"version": "v1.34.4"}});
        for (name, value) in more.as_object().unwrap() {
            template[name] = value.clone();
        }
        serde_json::from_value(template).unwrap()
    }

    /// Plane that refuses nothing but contents.
    const CONTENT: Plane = Plane::Cluster { is_run: true };

    fn refusals(more: &Value) -> Vec<Refusal> {
        check(&template(more), CONTENT).err().map(|error| error.0).unwrap_or_default()
    }

    /// Names of all variants; a new one is not compiled without its name here.
    const KINDS: [&str; 15] = [
        "Kubernetes",
        "Parameter",
        "Text",
        "Bind",
        "Memory",
        "ControlPlane",
        "Encoding",
        "Large",
        "Hidden",
        "Commands",
        "Reference",
        "Authorities",
        "MakesCluster",
        "DiscoveryFile",
        "NoDiscovery",
    ];

    fn kind(refusal: &Refusal) -> &'static str {
        match refusal {
            Refusal::Kubernetes(_) => KINDS[0],
            Refusal::Parameter(_) => KINDS[1],
            Refusal::Text { .. } => KINDS[2],
            Refusal::Bind { .. } => KINDS[3],
            Refusal::Memory(_) => KINDS[4],
            Refusal::ControlPlane { .. } => KINDS[5],
            Refusal::Encoding { .. } => KINDS[6],
            Refusal::Large { .. } => KINDS[7],
            Refusal::Hidden { .. } => KINDS[8],
            Refusal::Commands(_) => KINDS[9],
            Refusal::Reference(_) => KINDS[10],
            Refusal::Authorities => KINDS[11],
            Refusal::MakesCluster => KINDS[12],
            Refusal::DiscoveryFile => KINDS[13],
            Refusal::NoDiscovery => KINDS[14],
        }
    }

    /// A block with the label of a certificate.
    const NO_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    /// Not a certificate.
    const KEY: &str = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";

    fn file(path: &str) -> Value {
        json!([{ "path": path, "content": "x" }])
    }

    fn packed(bytes: usize) -> String {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&vec![0; bytes]).unwrap();
        STANDARD.encode(packed.finish().unwrap())
    }

    #[test]
    fn every_refusal_that_needs_no_host_is_found_in_the_template() {
        let control_plane = json!({ "version": "v1.34.4", "role": "ControlPlane" });
        let image = |reference: &str, authorities: Option<&str>| json!({ "image": { "reference": reference, "allowTag": true, "caBundle": authorities } });
        let encoded = |encoding: &str, content: &str| json!({ "files": [{ "path": "/a", "content": content, "encoding": encoding }] });
        let mut seen = BTreeSet::new();
        for (more, expected, field) in [
            (
                image("r.example/Node:1", None),
                "Reference",
                "image.reference: \"Node\" is not a valid repository",
            ),
            (image("r.example/node", Some("CA")), "Authorities", "image.caBundle "),
            (image("r.example/node", Some(KEY)), "Authorities", "image.caBundle "),
            (image("r.example/node", Some(NO_CERTIFICATE)), "Authorities", "image.caBundle "),
            (json!({ "kubernetes": { "version": "v1.20.0" } }), "Kubernetes", "kubernetes: "),
            (json!({ "preKubeadmCommands": ["a\0b"] }), "Commands", "preKubeadmCommands[0] must not hold"),
            (json!({ "sysctls": { "a b": "1" } }), "Parameter", "sysctls: \"a b\""),
            (json!({ "sysctls": { "kernel.panic": "1\nvm.swappiness = 0" } }), "Text", "sysctls "),
            (json!({ "sysctls": { "kernel.panic": "1\\" } }), "Text", "sysctls "),
            (json!({ "container": { "binds": ["/a\nBind=/b"] } }), "Text", "container.binds "),
            (json!({ "container": { "binds": ["/a\u{85}"] } }), "Text", "container.binds "),
            (json!({ "container": { "binds": ["/a\\"] } }), "Text", "container.binds "),
            (
                json!({ "container": { "binds": ["/a:/b:exec"] } }),
                "Bind",
                "container.binds has \"/a:/b:exec\"",
            ),
            (json!({ "container": { "memoryMax": "99E" } }), "Memory", "container.memoryMax "),
            (
                json!({ "container": { "network": "Veth" }, "kubernetes": control_plane }),
                "ControlPlane",
                "container.network Veth ",
            ),
            (
                json!({ "container": { "network": "Macvlan" }, "kubernetes": control_plane }),
                "ControlPlane",
                "container.network Macvlan ",
            ),
            (encoded("base64", "!"), "Encoding", "files[0] (/a): the content is not base64"),
            (encoded("gzip+base64", "aGVsbG8="), "Encoding", "files[0] (/a): the content is not gzip"),
            (encoded("gzip+base64", &packed(9 << 20)), "Large", "files[0] (/a): more than"),
            (json!({ "files": file("/run/x") }), "Hidden", "files[0] (/run/x): /run is mounted over"),
            (
                json!({ "files": file("/srv/a/x"), "container": { "binds": ["/srv/b:/srv//a:ro"] } }),
                "Hidden",
                "files[0] (/srv/a/x): the bind /srv//a",
            ),
            (
                json!({ "files": file("/etc/hosts"), "container": { "network": "Veth" } }),
                "Hidden",
                "files[0] (/etc/hosts): the list of hosts",
            ),
        ] {
            let found = refusals(&more);
            assert_eq!(found.iter().map(kind).collect::<Vec<_>>(), [expected], "{more}: {found:?}");
            assert!(found[0].to_string().starts_with(field), "{field}: {}", found[0]);
            seen.insert(expected);
        }
        seen.extend(KINDS[12..].iter());
        assert_eq!(seen, BTreeSet::from(KINDS), "those of a plane have their own test");
    }

    #[test]
    fn c2_each_plane_refuses_the_joins_that_its_hosts_refuse() {
        let joins = |discovery: Value| json!({ "version": "v1.34.4", "joinConfiguration": { "discovery": discovery } });
        let by_file = |path: &str| joins(json!({ "file": { "kubeConfigPath": path } }));
        let token = json!({ "bootstrapToken": { "token": "abcdef.0123456789abcdef", "apiServerEndpoint": "k:6443" } });
        let first = json!({ "version": "v1.34.4", "role": "ControlPlane" });
        let planes = [Plane::Cluster { is_run: false }, CONTENT, Plane::Standalone];
        for (kubernetes, expected) in [
            (first, ["MakesCluster", "", ""]),
            (json!({ "version": "v1.34.4" }), ["", "", "NoDiscovery"]),
            (
                json!({ "version": "v1.34.4", "role": "ControlPlane", "joinConfiguration": {} }),
                ["", "", "NoDiscovery"],
            ),
            (json!({ "version": "v1.34.4", "apiServerEndpoint": "k:6443" }), ["", "", "NoDiscovery"]),
            (joins(token), ["", "", ""]),
            (by_file("/etc//join.conf"), ["", "", ""]),
            (by_file("/etc/appended.conf"), ["DiscoveryFile", "DiscoveryFile", ""]),
            (by_file("/etc/of-the-image.conf"), ["DiscoveryFile", "DiscoveryFile", ""]),
            (by_file("https://k.example/join.conf"), ["DiscoveryFile", "DiscoveryFile", ""]),
        ] {
            let files = json!([{ "path": "/etc/join.conf", "content": "c" },
                { "path": "/etc/appended.conf", "content": "c", "append": true }]);
            let template = template(&json!({ "kubernetes": kubernetes, "files": files }));
            let found = planes.map(|plane| {
                let refusals = check(&template, plane).err().unwrap_or_default().0;
                refusals.iter().map(kind).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(found, expected, "{kubernetes}");
        }
    }

    #[test]
    fn all_refusals_of_a_template_are_reported_together() {
        let more = json!({
            "files": [{ "path": "/run/x", "content": "!", "encoding": "base64" }],
            "container": { "network": "Veth", "binds": ["/a:/b:exec", "/c:/d:idmap"], "memoryMax": "99E" },
            "kubernetes": { "version": "v1.34.4", "role": "ControlPlane" },
            "sysctls": { "": "1" },
        });
        let kinds: Vec<_> = refusals(&more).iter().map(kind).collect();
        assert_eq!(kinds, ["Parameter", "ControlPlane", "Memory", "Bind", "Bind", "Hidden", "Encoding"]);
    }

    #[test]
    fn template_that_hosts_take_is_not_refused() {
        let from = json!({ "secret": { "namespace": "ns", "name": "s", "key": "k" } });
        let certificate = rcgen::generate_simple_self_signed(Vec::new()).unwrap().cert.pem();
        let certificate = format!("a comment\n{certificate}");
        for more in [
            json!({}),
            json!({ "image": { "reference": "oci:/Images:1", "allowTag": true } }),
            json!({ "image": { "reference": "r.example:5000/a/node", "allowTag": true, "caBundle": certificate } }),
            json!({ "files": [{ "path": "/etc/a", "contentFrom": from, "encoding": "gzip+base64" }] }),
            json!({ "files": [{ "path": "/etc/a", "content": "aGVs\nbG8=", "encoding": "base64" }] }),
            json!({ "files": [{ "path": "/etc/a", "content": packed(8 << 20), "encoding": "gzip+base64" }] }),
            json!({ "files": file("/var/lib/kubelet/config.json"), "container": { "binds": ["/srv"] } }),
            json!({ "files": file("/etc/hosts"), "container": { "network": "Macvlan" } }),
            json!({ "container": { "network": "Veth", "memoryMax": "8Gi", "binds": ["/srv:/data:ro"] } }),
            json!({ "container": { "network": "Host" }, "kubernetes": { "version": "v1.34.4", "role": "ControlPlane" } }),
        ] {
            assert_eq!(refusals(&more), [], "{more}");
        }
    }

    #[test]
    fn quantities_are_bytes() {
        for (text, expected) in [
            ("8Gi", Some(8 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("500M", Some(500_000_000)),
            ("1024", Some(1024)),
            ("0", None),
            ("-1", None),
            ("1e3", None),
            ("17E", Some(17_000_000_000_000_000_000)),
            ("99E", None),
            ("Gi", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn quantities_have_binary_suffixes_and_at_most_9_decimals() {
        let binary = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
        for (suffix, power) in binary {
            assert_eq!(bytes(&format!("3{suffix}")), Some(3 << power), "{suffix}");
        }
        assert_eq!(bytes("1.500000000Ki"), Some(1536));
        assert_eq!(bytes("1.5000000000Ki"), None);
        assert_eq!(bytes("1.+5Ki"), None);
    }

    #[test]
    fn binds_of_a_template_are_read_or_refused() {
        let of = |list: Value| binds(&template(&json!({ "container": { "binds": list } })));
        assert_eq!(of(json!(["/srv:/data:ro"])), Ok(vec![Bind::parse("/srv:/data:ro").unwrap()]));
        assert_eq!(binds(&template(&json!({}))), Ok(vec![]));
        assert!(matches!(of(json!(["/srv", "/a:/b:exec"])), Err(Refusal::Bind { .. })));
    }

    #[test]
    fn refusals_are_printed_in_one_line() {
        let more = json!({ "sysctls": { "a b": "1" }, "container": { "memoryMax": "99E" } });
        let text = check(&template(&more), CONTENT).unwrap_err().to_string();
        let (first, second) = text.split_once("; ").unwrap();
        assert!(first.starts_with("sysctls: ") && second.starts_with("container.memoryMax "), "{text}");
    }
}
