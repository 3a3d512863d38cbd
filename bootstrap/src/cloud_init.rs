//! Pure: the cloud-config text of a machine, in the order and form that infrastructure providers know from the upstream provider.
//!
//! The text is a template of jinja, so that users can name facts of the machine. jinja runs before YAML is read and removes the newline
//! after a block tag. For this reason contents are block scalars, line by line, and not quoted text. Called by `capi`.

use bedplate_api::cluster::kubeadm::disk::DiskSetup;
use bedplate_api::cluster::kubeadm::user::{Ntp, User};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::capi::Fault;

mod disk;
mod file;
pub(crate) mod yaml;

pub(crate) use file::{CloudFile, Mode};

/// First lines: a template of jinja that makes a cloud-config.
const HEADER: &str = "## template: jinja\n#cloud-config\n\n";

/// A user with the resolved hash of the password.
pub(crate) struct CloudUser<'a> {
    pub(crate) user: &'a User,
    pub(crate) password: Option<Zeroizing<String>>,
}

/// Parts of the text.
pub(crate) struct CloudConfig<'a> {
    pub(crate) files: Vec<CloudFile>,
    pub(crate) boot_commands: &'a [String],
    pub(crate) commands: Vec<String>,
    pub(crate) ntp: Option<&'a Ntp>,
    pub(crate) users: Vec<CloudUser<'a>>,
    pub(crate) disk_setup: Option<&'a DiskSetup>,
    pub(crate) mounts: &'a [Vec<String>],
}

impl CloudConfig<'_> {
    /// Returns the text.
    pub(crate) fn text(&self, faults: &mut Vec<Fault>) -> Zeroizing<String> {
        let mut text = Zeroizing::new(HEADER.to_owned());
        text.push_str("write_files:\n");
        for file in &self.files {
            file.write(&mut text, faults);
        }
        let mut part = |name: &str, value: Value| {
            let is_empty =
                value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
            if !is_empty && !value.is_null() {
                text.push_str(&yaml::document(&json!({ name: value })));
            }
        };
        part("bootcmd", json!(self.boot_commands));
        part("runcmd", json!(self.commands));
        part("ntp", self.ntp.map(ntp).unwrap_or_default());
        part("users", self.users.iter().map(user).collect());
        if let Some(setup) = self.disk_setup {
            part("disk_setup", disk::partitions(&setup.partitions, faults));
            part("fs_setup", setup.filesystems.iter().map(disk::filesystem).collect());
        }
        part("mounts", json!(self.mounts));
        text
    }
}

/// Returns a map of the fields that are set.
fn set(fields: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn text(value: Option<&String>) -> Option<Value> {
    value.map(|value| json!(value))
}

fn list(values: &[String]) -> Option<Value> {
    (!values.is_empty()).then(|| json!(values))
}

fn ntp(ntp: &Ntp) -> Value {
    set([("enabled", ntp.enabled.map(Value::Bool)), ("servers", list(&ntp.servers))])
}

fn user(CloudUser { user, password }: &CloudUser<'_>) -> Value {
    set([
        ("name", Some(json!(user.name))),
        ("gecos", text(user.gecos.as_ref())),
        ("groups", text(user.groups.as_ref())),
        ("homedir", text(user.home_dir.as_ref())),
        ("inactive", user.inactive.map(Value::Bool)),
        ("lock_passwd", user.lock_password.map(Value::Bool)),
        ("passwd", password.as_ref().map(|password| json!(password.as_str()))),
        ("primary_group", text(user.primary_group.as_ref())),
        ("shell", text(user.shell.as_ref())),
        ("ssh_authorized_keys", list(&user.ssh_authorized_keys)),
        ("sudo", text(user.sudo.as_ref())),
    ])
}
