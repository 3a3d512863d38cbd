//! Pure: `users`: the keys that the Cluster API's kubeadm provider writes. Called by `user_data`.
//!
//! Names may have `-` for `_`, as in cloud-init. There is no default user: `default` is refused.

use std::fmt;

use zeroize::Zeroizing;

use super::finding::{Findings, field};
use super::is_account;
use super::scalar::Scalar;
use super::yaml::{Node, Value};

/// Maximum number of users.
const MAX_USERS: usize = 100;

/// Maximum number of groups, keys or sudo rules of one user.
const MAX_ITEMS: usize = 64;

/// Maximum length of a value, in bytes.
const MAX_VALUE_BYTES: usize = 16 << 10;

/// A user that is created if it is missing.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct User {
    /// Index in `users`.
    pub index: usize,
    /// Name.
    pub name: String,
    /// Comment.
    pub gecos: Option<String>,
    /// Home directory.
    pub homedir: Option<String>,
    /// Days between the end of a password and that of the account.
    pub inactive: Option<String>,
    /// Login group.
    pub primary_group: Option<String>,
    /// Further groups. A missing one is created.
    pub groups: Vec<String>,
    /// Login shell.
    pub shell: Option<String>,
    /// Hash of the password.
    pub passwd: Option<Zeroizing<String>>,
    /// True if the password is locked, which is the default.
    pub lock_passwd: bool,
    /// Rules for sudo, without the name.
    pub sudo: Vec<Zeroizing<String>>,
    /// Lines for `authorized_keys`.
    pub ssh_authorized_keys: Vec<Zeroizing<String>>,
}

/// A hash, rules and keys are not printed.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("index", &self.index)
            .field("name", &self.name)
            .field("groups", &self.groups)
            .field("has_passwd", &self.passwd.is_some())
            .field("lock_passwd", &self.lock_passwd)
            .field("sudo", &self.sudo.len())
            .field("ssh_authorized_keys", &self.ssh_authorized_keys.len())
            .finish_non_exhaustive()
    }
}

/// Reads the list of users.
pub(super) fn read(node: &Node, found: &mut Findings) -> Vec<User> {
    let Value::List(items) = &node.value else {
        found.invalid("users", "this is not a list", "write a list of users");
        return Vec::new();
    };
    if items.len() > MAX_USERS {
        let reason = format!("there are more than {MAX_USERS} users");
        found.invalid("users", reason, "put them into the node image");
        return Vec::new();
    }
    let mut users: Vec<User> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let mut entry = Entry { place: format!("users[{index}]"), found };
        let Some(user) = entry.user(index, item) else { continue };
        if users.iter().any(|other| other.name == user.name) {
            let place = entry.place;
            found.invalid(&place, "this user is in the list twice", "write one entry for each user");
        } else {
            users.push(user);
        }
    }
    users
}

struct Entry<'r> {
    place: String,
    found: &'r mut Findings,
}

impl Entry<'_> {
    fn user(&mut self, index: usize, item: &Node) -> Option<User> {
        let errors = self.found.invalid.len();
        let mut user = User { index, lock_passwd: true, ..User::default() };
        match &item.value {
            Value::Text(_) => user.name = self.account("name", item).unwrap_or_default(),
            Value::Map(entries) => {
                let mut seen = Vec::with_capacity(entries.len());
                for (spelled, node) in entries {
                    let name = spelled.replace('-', "_");
                    if seen.contains(&name) {
                        self.invalid(&name, "this key is there twice", "write it once");
                    } else {
                        self.set(&mut user, &name, node);
                        seen.push(name);
                    }
                }
            }
            _ => {
                self.found.invalid(&self.place, "this is not a map", "write at least a name");
                return None;
            }
        }
        if self.found.invalid.len() > errors {
            return None;
        }
        if user.name.is_empty() || user.name == "default" {
            let reason = "a node has no default user";
            self.found.unsupported(&self.place, reason, "write a user with a name");
            return None;
        }
        Some(user)
    }

    fn set(&mut self, user: &mut User, name: &str, node: &Node) {
        match name {
            "name" => user.name = self.account(name, node).unwrap_or_default(),
            "gecos" => user.gecos = self.account_field(name, node),
            "homedir" => user.homedir = self.account_field(name, node),
            "shell" => user.shell = self.account_field(name, node),
            // The kubeadm provider writes a boolean, which cloud-init ignores.
            "inactive" if matches!(node.value, Value::Scalar(Scalar::Bool(_))) => {}
            "inactive" => user.inactive = self.account_field(name, node),
            "primary_group" => user.primary_group = self.account(name, node),
            "groups" => user.groups = self.groups(node),
            "passwd" => user.passwd = self.account_field(name, node).map(Zeroizing::new),
            "lock_passwd" => match node.value {
                Value::Scalar(Scalar::Bool(value)) => user.lock_passwd = value,
                _ => self.invalid(name, "this is not a boolean", "write true or false, without quotes"),
            },
            "sudo" if matches!(node.value, Value::Scalar(Scalar::Bool(false))) => {}
            "sudo" => user.sudo = self.lines(name, node),
            "ssh_authorized_keys" => user.ssh_authorized_keys = self.lines(name, node),
            _ => {
                let key = field(&self.place, name, node.line);
                self.found.unsupported(&key, "this key is not supported", "do it in runcmd");
            }
        }
    }

    fn invalid(&mut self, name: &str, reason: &str, remedy: &str) {
        self.found.invalid(&format!("{}.{name}", self.place), reason, remedy);
    }

    /// Reads text. Null and empty text are absent.
    fn text<'n>(&mut self, name: &str, node: &'n Node) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) if text.len() <= MAX_VALUE_BYTES => {
                Some(text.as_str()).filter(|t| !t.is_empty())
            }
            Value::Text(_) => {
                self.invalid(name, &format!("it has more than {MAX_VALUE_BYTES} bytes"), "shorten it");
                None
            }
            Value::Scalar(Scalar::Null) => None,
            _ => {
                self.found.not_text(&format!("{}.{name}", self.place));
                None
            }
        }
    }

    /// Reads the name of a user or of a group.
    fn account(&mut self, name: &str, node: &Node) -> Option<String> {
        let text = self.text(name, node)?;
        if !is_account(text) {
            self.invalid(name, "this is not the name of an account", "use letters, digits, `_`, `-` and `.`");
            return None;
        }
        Some(text.to_owned())
    }

    /// Reads text that becomes a field of `/etc/passwd` or `/etc/shadow`.
    fn account_field(&mut self, name: &str, node: &Node) -> Option<String> {
        let text = self.text(name, node)?;
        if text.chars().any(|c| c.is_control() || c == ':') || text.starts_with('-') {
            self.invalid(name, "it has a colon or a control character, or starts with `-`", "remove it");
            return None;
        }
        Some(text.to_owned())
    }

    fn items<'n>(&mut self, name: &str, node: &'n Node) -> Vec<&'n str> {
        match &node.value {
            Value::List(items) if items.len() > MAX_ITEMS => {
                self.invalid(name, &format!("there are more than {MAX_ITEMS} items"), "shorten the list");
                Vec::new()
            }
            Value::List(items) => items.iter().filter_map(|item| self.text(name, item)).collect(),
            _ => self.text(name, node).into_iter().collect(),
        }
    }

    fn groups(&mut self, node: &Node) -> Vec<String> {
        let items = self.items("groups", node);
        let names: Vec<&str> = match node.value {
            Value::List(_) => items,
            _ => items.into_iter().flat_map(|text| text.split(',')).collect(),
        };
        let names: Vec<&str> = names.into_iter().map(str::trim).collect();
        if names.len() > MAX_ITEMS || !names.iter().all(|name| is_account(name)) {
            self.invalid("groups", "one is not the name of a group, or they are too many", "use plain names");
            return Vec::new();
        }
        names.into_iter().map(str::to_owned).collect()
    }

    /// Reads one line or a list of lines.
    fn lines(&mut self, name: &str, node: &Node) -> Vec<Zeroizing<String>> {
        let lines: Vec<&str> =
            self.items(name, node).into_iter().map(|line| line.trim_end_matches('\n')).collect();
        if lines.iter().any(|line| line.chars().any(|c| c.is_control() && c != '\t')) {
            self.invalid(name, "it has a line break or a control character", "write a list of lines");
            return Vec::new();
        }
        lines.into_iter().map(|line| Zeroizing::new(line.to_owned())).collect()
    }
}
