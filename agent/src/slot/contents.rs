//! Files of a slot's root in addition to its image and kubeadm's: the
//! configuration's files and units, and the node's identity.
//!
//! Pure: a template and the values of its Secrets in, files out. Called by `node`; `confined_writer` writes them.

use std::collections::BTreeMap;

use bedplate_api::configuration::{FileSpec, SecretKeyRef, Template, UnitSpec};
use bedplate_api::id::MachineName;
use bedplate_bootstrap::template::{self, Refusal};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::network;
use super::render;

/// The unit that enables and disables the configuration's units.
pub const UNITS: &str = "bedplate-units.service";

/// A file inside of a slot's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotFile {
    /// Absolute path in the slot.
    pub path: String,
    /// Owner as `user:group`, by the slot's own names.
    pub owner: String,
    /// Permissions.
    pub mode: u32,
    /// True if the content is appended to an existing file.
    pub append: bool,
    /// Content of the file. May be a secret.
    pub content: Zeroizing<Vec<u8>>,
}

/// A symbolic link inside of a slot's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotLink {
    /// Absolute path in the slot.
    pub path: String,
    /// Target of the link.
    pub target: String,
}

/// Contents of a slot's root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents {
    /// Files, in the order in which they are written.
    pub files: Vec<SlotFile>,
    /// Links.
    pub links: Vec<SlotLink>,
}

/// The values of the Secrets that a template names.
pub type Secrets = BTreeMap<(String, String, String), Zeroizing<Vec<u8>>>;

/// Reason for which a template's files cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MakeContentsError {
    /// A file of the template is not valid.
    #[error(transparent)]
    File(#[from] Refusal),
    /// The Secret does not have the key.
    #[error(
        "files[{index}] ({path}): Secret {secret} has no key {key}; add it, or correct the \
         MachineConfiguration"
    )]
    Key {
        /// Index in `files`.
        index: usize,
        /// Path of the file.
        path: String,
        /// `<namespace>/<name>`.
        secret: String,
        /// The key.
        key: String,
    },
}

/// The keys of Secrets that a template's files need.
pub fn secrets(template: &Template) -> Vec<&SecretKeyRef> {
    template.files.iter().filter_map(|file| file.content_from.as_ref()).map(|from| &from.secret).collect()
}

/// Makes the contents of a root by a template that was checked ([`template::check`]).
///
/// # Errors
/// The content of a file is not available.
pub fn make(
    machine: &MachineName,
    machine_uid: &str,
    template: &Template,
    secrets: &Secrets,
) -> Result<Contents, MakeContentsError> {
    let mut contents = Contents::default();
    contents.files.push(text("/etc/hostname", 0o644, &format!("{machine}\n")));
    contents.files.push(text("/etc/hosts", 0o644, &hosts(machine, "127.0.1.1")));
    // The kubelet reports it as the Node's machine ID: stable across repaves, different on each Machine.
    contents.files.push(text("/etc/machine-id", 0o444, &format!("{}\n", machine_id(machine_uid))));
    let own = network::contents(template, machine, &render::SYSCTLS);
    contents.files.extend(own.files);
    contents.links.extend(own.links);
    for (index, spec) in template.files.iter().enumerate() {
        contents.files.push(file(index, spec, secrets)?);
    }
    for unit in &template.units {
        let path = format!("/etc/systemd/system/{}", unit.name);
        contents.files.extend(unit.contents.as_ref().map(|contents| text(&path, 0o644, contents)));
        let drop_in = |drop_in: &bedplate_api::configuration::DropIn| {
            text(&format!("{path}.d/{}", drop_in.name), 0o644, &drop_in.contents)
        };
        contents.files.extend(unit.dropins.iter().map(drop_in));
    }
    if let Some(units) = units(&template.units) {
        let path = format!("/etc/systemd/system/{UNITS}");
        contents.files.push(text(&path, 0o644, &units));
        contents.links.push(SlotLink {
            path: format!("/etc/systemd/system/multi-user.target.wants/{UNITS}"),
            target: path,
        });
    }
    Ok(contents)
}

/// kubeadm and the kubelet ask for the node's own name, and would wait for name servers that do not know it. With an address of the
/// loopback the kubelet takes the Node's from the default route.
pub(super) fn hosts(machine: &MachineName, address: &str) -> String {
    format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{address} {machine}\n")
}

/// Returns one of a template's files, the `index`th.
///
/// # Errors
/// Its content is not available.
pub fn file(index: usize, spec: &FileSpec, secrets: &Secrets) -> Result<SlotFile, MakeContentsError> {
    template::check_place(index, spec)?;
    Ok(SlotFile {
        path: spec.path.clone(),
        owner: spec.owner.clone(),
        mode: u32::from_str_radix(&spec.permissions, 8).unwrap_or(0o644),
        append: spec.append,
        content: content(index, spec, secrets)?,
    })
}

/// Returns a file that belongs to root.
pub fn text(path: &str, mode: u32, content: &str) -> SlotFile {
    let content = Zeroizing::new(content.as_bytes().to_vec());
    SlotFile { path: path.to_owned(), owner: "root:root".to_owned(), mode, append: false, content }
}

fn content(
    index: usize,
    file: &FileSpec,
    secrets: &Secrets,
) -> Result<Zeroizing<Vec<u8>>, MakeContentsError> {
    let plain = match &file.content_from {
        Some(from) => {
            let SecretKeyRef { namespace, name, key } = &from.secret;
            let value = secrets.get(&(namespace.clone(), name.clone(), key.clone()));
            value.cloned().ok_or_else(|| MakeContentsError::Key {
                index,
                path: file.path.clone(),
                secret: format!("{namespace}/{name}"),
                key: key.clone(),
            })?
        }
        None => Zeroizing::new(file.content.clone().unwrap_or_default().into_bytes()),
    };
    Ok(template::decode(index, file, plain)?)
}

/// Returns the unit that enables and disables units of the configuration. It is
/// in the slot, because the slot's own systemd reads the dependencies of its
/// image's units. It runs before kubeadm, which may need them.
fn units(units: &[UnitSpec]) -> Option<String> {
    let names = |enabled: bool| {
        let named: Vec<&str> = units
            .iter()
            .filter(|unit| unit.enabled == Some(enabled))
            .map(|unit| unit.name.as_str())
            .collect();
        (!named.is_empty()).then(|| named.join(" "))
    };
    let (enable, disable) = (names(true), names(false));
    if enable.is_none() && disable.is_none() {
        return None;
    }
    let line = |verb: &str, names: Option<String>| {
        names
            .map(|names| format!("ExecStart=systemctl {verb} --now --no-block {names}\n"))
            .unwrap_or_default()
    };
    Some(format!(
        "# Written by bedplate-agent: enables and disables the units of the node's configuration.\n\
         [Unit]\nDescription=Units of the node's configuration\nBefore=bedplate-kubeadm.service\n\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\n{}{}\n\
         [Install]\nWantedBy=multi-user.target\n",
        line("enable", enable),
        line("disable", disable)
    ))
}

/// Derives a machine ID (machine-id(5)) from the Machine's UID. The UID is not
/// a secret, but must not be computable from the ID.
fn machine_id(machine_uid: &str) -> String {
    let hash = Sha256::digest(format!("bedplate node {machine_uid}").as_bytes());
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "it is written where it is used")]
    fn template(more: serde_json::Value) -> Template {
        let mut template = json!({"image": {"reference": "r.example/node", "allowTag": true}, "kubernetes": {"version": "v1.34.4"}});
        for (name, value) in more.as_object().unwrap() {
            template[name] = value.clone();
        }
        serde_json::from_value(template).unwrap()
    }

    fn made(more: serde_json::Value, secrets: &Secrets) -> Result<Contents, MakeContentsError> {
        make(&"node-1".parse().unwrap(), "uid-1", &template(more), secrets)
    }

    fn file<'c>(contents: &'c Contents, path: &str) -> &'c SlotFile {
        contents.files.iter().find(|file| file.path == path).unwrap()
    }

    #[test]
    fn files_are_decoded_with_their_owner_and_permissions() {
        let secrets =
            Secrets::from([(("ns".into(), "s".into(), "k".into()), Zeroizing::new(b"hidden".to_vec()))]);
        let contents = made(
            json!({"files": [
                {"path": "/etc/a", "content": "text", "owner": "kube:kube", "permissions": "0640", "append": true},
                {"path": "/etc/b", "content": "aGVs\nbG8=", "encoding": "base64"},
                {"path": "/etc/c", "content": "H4sIAAAAAAAAA8tIzcnJBwCGphA2BQAAAA==", "encoding": "gzip+base64"},
                {"path": "/etc/d", "contentFrom": {"secret": {"namespace": "ns", "name": "s", "key": "k"}}, "permissions": "0600"},
            ]}),
            &secrets,
        )
        .unwrap();
        let a = file(&contents, "/etc/a");
        assert_eq!(
            (a.owner.as_str(), a.mode, a.append, a.content.as_slice()),
            ("kube:kube", 0o640, true, &b"text"[..])
        );
        assert_eq!(file(&contents, "/etc/b").content.as_slice(), b"hello");
        assert_eq!(file(&contents, "/etc/c").content.as_slice(), b"hello");
        assert_eq!(
            (file(&contents, "/etc/d").content.as_slice(), file(&contents, "/etc/d").mode),
            (&b"hidden"[..], 0o600)
        );
    }

    #[test]
    fn error_names_the_file_that_cannot_be_made() {
        let from = json!({"secret": {"namespace": "ns", "name": "s", "key": "k"}});
        for (one, expected) in [
            (
                json!({"path": "/a", "content": "!", "encoding": "base64"}),
                "files[0] (/a): the content is not base64",
            ),
            (
                json!({"path": "/a", "content": "aGVsbG8=", "encoding": "gzip+base64"}),
                "files[0] (/a): the content is not gzip",
            ),
            (json!({"path": "/a", "contentFrom": from}), "files[0] (/a): Secret ns/s has no key k"),
        ] {
            let error = made(json!({"files": [one]}), &Secrets::new()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_file_that_the_node_would_not_see_is_refused_by_name() {
        for path in ["/run/x", "/var/run/x", "/tmp/x", "/dev/x", "/proc/x", "/sys/x", "/etc/resolv.conf"] {
            let more = json!({"files": [{"path": path, "content": "x"}]});
            let error = made(more, &Secrets::new()).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("files[0] ({path}): ")) && error.contains("mounted over"),
                "{error}"
            );
        }
        let one = json!({"path": "/var/lib/kubelet/config.json", "content": "{}"});
        assert!(made(json!({"files": [one]}), &Secrets::new()).is_ok());
    }

    #[test]
    fn value_of_a_secret_is_decoded_like_a_content() {
        let from = json!({"secret": {"namespace": "ns", "name": "s", "key": "k"}});
        let with = |value: &[u8]| {
            let secrets =
                Secrets::from([(("ns".into(), "s".into(), "k".into()), Zeroizing::new(value.to_vec()))]);
            made(json!({"files": [{"path": "/a", "contentFrom": from, "encoding": "base64"}]}), &secrets)
        };
        assert_eq!(file(&with(b"aGVsbG8=").unwrap(), "/a").content.as_slice(), b"hello");
        let error = with(b"!").unwrap_err();
        assert!(matches!(error, MakeContentsError::File(Refusal::Encoding { index: 0, .. })), "{error}");
    }

    #[test]
    fn units_are_written_and_enabled_in_the_slot() {
        let contents = made(
            json!({"units": [
                {"name": "a.service", "enabled": true, "contents": "[Service]\nExecStart=/bin/true\n"},
                {"name": "b.timer", "enabled": false},
                {"name": "kubelet.service", "dropins": [{"name": "20-x.conf", "contents": "[Service]\nNice=1\n"}]},
            ]}),
            &Secrets::new(),
        )
        .unwrap();
        file(&contents, "/etc/systemd/system/a.service");
        file(&contents, "/etc/systemd/system/kubelet.service.d/20-x.conf");
        let unit = file(&contents, "/etc/systemd/system/bedplate-units.service");
        let unit = String::from_utf8(unit.content.to_vec()).unwrap();
        assert!(unit.contains("ExecStart=systemctl enable --now --no-block a.service\n"), "{unit}");
        assert!(unit.contains("ExecStart=systemctl disable --now --no-block b.timer\n"), "{unit}");
        assert_eq!(contents.links.len(), 1);
        assert_eq!(made(json!({}), &Secrets::new()).unwrap().links, []);
    }

    #[test]
    fn node_resolves_its_own_name_unless_the_version_overrides_it() {
        let hosts = |contents: &Contents| {
            let found = contents.files.iter().rfind(|file| file.path == "/etc/hosts").unwrap();
            String::from_utf8(found.content.to_vec()).unwrap()
        };
        assert!(hosts(&made(json!({}), &Secrets::new()).unwrap()).contains("127.0.1.1 node-1\n"));
        let own = json!({"files": [{"path": "/etc/hosts", "content": "127.0.0.1 localhost\n"}]});
        assert_eq!(hosts(&made(own, &Secrets::new()).unwrap()), "127.0.0.1 localhost\n");
    }

    #[test]
    fn a_machine_id_is_the_machines_own_and_stays() {
        let contents = made(json!({}), &Secrets::new()).unwrap();
        let id = String::from_utf8(file(&contents, "/etc/machine-id").content.to_vec()).unwrap();
        assert_eq!(id.trim().len(), 32);
        assert_ne!(machine_id("uid-1"), machine_id("uid-2"));
    }
}
