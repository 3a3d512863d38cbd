//! Pure: `write_files`. Called by `user_data`.
//!
//! cloud-init writes a file although its encoding or its permissions cannot be read, and skips an entry without a path. Here each of
//! these is refused. The types of `permissions` are those of cloud-init: text is octal, an integer is the mode itself.

use std::fmt;

use zeroize::Zeroizing;

use super::finding::{Findings, field};
use super::scalar::Scalar;
use super::yaml::{Node, Value};
use super::{Budget, MAX_CONTENT_BYTES, is_account};
use crate::encoding::{self, DecodeError};

/// Maximum number of files.
const MAX_FILES: usize = 1_000;

/// Maximum size of a file after decoding, in bytes.
const MAX_FILE_BYTES: usize = 8 << 20;

/// Maximum length of a path, in bytes.
const MAX_PATH_BYTES: usize = 4_095;

/// Mode without `permissions`.
const DEFAULT_MODE: u32 = 0o644;

/// Directory of the files that carry the user data itself.
const RESERVED: &str = "/run/bedplate";

/// Owner of a file. An absent part is not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Name of the user.
    pub user: Option<String>,
    /// Name of the group.
    pub group: Option<String>,
}

/// A file that is written.
#[derive(Clone, PartialEq, Eq)]
pub struct WriteFile {
    /// Index in `write_files`.
    pub index: usize,
    /// Absolute path.
    pub path: String,
    /// Owner.
    pub owner: Owner,
    /// Mode, such as `0o600`.
    pub mode: u32,
    /// True if the content is added at the end of the file.
    pub append: bool,
    /// Decoded content.
    pub content: Zeroizing<Vec<u8>>,
}

/// The content may be a secret.
impl fmt::Debug for WriteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteFile")
            .field("index", &self.index)
            .field("path", &self.path)
            .field("owner", &self.owner)
            .field("mode", &format_args!("{:04o}", self.mode))
            .field("append", &self.append)
            .field("bytes", &self.content.len())
            .finish()
    }
}

/// Files in the order of their list: those before the users, and those after them (`defer`).
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) early: Vec<WriteFile>,
    pub(super) deferred: Vec<WriteFile>,
}

/// Reads the list of files.
pub(super) fn read(node: &Node, found: &mut Findings, budget: &mut Budget) -> Files {
    let mut files = Files::default();
    let Value::List(items) = &node.value else {
        found.invalid("write_files", "this is not a list", "write a list of files");
        return files;
    };
    if items.len() > MAX_FILES {
        let reason = format!("there are more than {MAX_FILES} files");
        found.invalid("write_files", reason, "put them into the node image");
        return files;
    }
    for (index, item) in items.iter().enumerate() {
        let mut entry = Entry { place: format!("write_files[{index}]"), found, budget };
        match entry.file(index, item) {
            Some((file, true)) => files.deferred.push(file),
            Some((file, false)) => files.early.push(file),
            None => {}
        }
    }
    files
}

/// Nodes of one entry.
#[derive(Default)]
struct Fields<'n> {
    path: Option<&'n Node>,
    content: Option<&'n Node>,
    encoding: Option<&'n Node>,
    owner: Option<&'n Node>,
    permissions: Option<&'n Node>,
    append: Option<&'n Node>,
    defer: Option<&'n Node>,
    source: Option<&'n Node>,
}

struct Entry<'r> {
    place: String,
    found: &'r mut Findings,
    budget: &'r mut Budget,
}

impl Entry<'_> {
    /// Reads an entry. True: the file is written after the users.
    fn file(&mut self, index: usize, item: &Node) -> Option<(WriteFile, bool)> {
        let fields = self.fields(item)?;
        if let Some(source) = fields.source {
            let key = field(&self.place, "source", source.line);
            let reason = "a file from a URL is not supported";
            self.found.unsupported(&key, reason, "write its content, or fetch it in runcmd");
            // cloud-init without an answer of the server: the content if there is one.
            fields.content?;
        }
        // All fields are read, so that all errors are reported together.
        let path = self.path(fields.path);
        let mode = self.mode(fields.permissions);
        let owner = self.owner(fields.owner);
        let append = self.flag("append", fields.append);
        let defer = self.flag("defer", fields.defer);
        let decoding = self.encoding(fields.encoding);
        let content = self.content(fields.content, decoding);
        let file =
            WriteFile { index, path: path?, owner: owner?, mode: mode?, append: append?, content: content? };
        Some((file, defer?))
    }

    fn fields<'n>(&mut self, item: &'n Node) -> Option<Fields<'n>> {
        let Value::Map(entries) = &item.value else {
            self.found.invalid(&self.place, "this is not a map", "write path and content");
            return None;
        };
        let mut fields = Fields::default();
        for (name, node) in entries {
            let place = match name.as_str() {
                "path" => &mut fields.path,
                "content" => &mut fields.content,
                "encoding" => &mut fields.encoding,
                "owner" => &mut fields.owner,
                "permissions" => &mut fields.permissions,
                "append" => &mut fields.append,
                "defer" => &mut fields.defer,
                "source" => &mut fields.source,
                _ => {
                    let key = field(&self.place, name, node.line);
                    self.found.unsupported(&key, "this key is unknown", "remove it");
                    continue;
                }
            };
            *place = Some(node.as_ref());
        }
        Some(fields)
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.place)
    }

    fn path(&mut self, node: Option<&Node>) -> Option<String> {
        let key = self.key("path");
        let Some(node) = node else {
            self.found.invalid(&key, "it is missing", "write an absolute path");
            return None;
        };
        let Value::Text(path) = &node.value else {
            self.found.not_text(&key);
            return None;
        };
        let mut parts = path.split('/');
        let is_bad = !path.starts_with('/')
            || path.ends_with('/')
            || path.len() > MAX_PATH_BYTES
            || path.chars().any(char::is_control)
            || parts.any(|part| part == "." || part == "..");
        if is_bad {
            let reason = "this is not an absolute path of a file, or it has `.` or `..`";
            self.found.invalid(&key, reason, "write the full path");
            return None;
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let path = format!("/{}", parts.join("/"));
        if path == RESERVED || path.starts_with(&format!("{RESERVED}/")) {
            self.found.invalid(&key, format!("{RESERVED} belongs to the host"), "use another directory");
            return None;
        }
        Some(path)
    }

    fn mode(&mut self, node: Option<&Node>) -> Option<u32> {
        let mode = match node.map(|node| &node.value) {
            None | Some(Value::Scalar(Scalar::Null)) => return Some(DEFAULT_MODE),
            Some(Value::Scalar(Scalar::Integer { value, .. })) => u32::try_from(*value).ok(),
            Some(Value::Text(text)) => {
                let text = text.trim();
                let digits = text.strip_prefix("0o").or_else(|| text.strip_prefix("0O")).unwrap_or(text);
                let is_octal = digits.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
                u32::from_str_radix(digits, 8).ok().filter(|_| is_octal)
            }
            Some(_) => None,
        };
        let mode = mode.filter(|mode| *mode <= 0o7777);
        if mode.is_none() {
            let reason = "this is not an octal mode of at most 7777";
            self.found.invalid(&self.key("permissions"), reason, "write it in quotes, such as '0644'");
        }
        mode
    }

    /// Reads `user:group`. `-1` and `none` change nothing, as in cloud-init.
    fn owner(&mut self, node: Option<&Node>) -> Option<Owner> {
        let root = || Some("root".to_owned());
        let text = match node.map(|node| &node.value) {
            None => return Some(Owner { user: root(), group: root() }),
            Some(Value::Scalar(Scalar::Null)) => "",
            Some(Value::Text(text)) => text.as_str(),
            Some(_) => {
                self.found.not_text(&self.key("owner"));
                return None;
            }
        };
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        let part = |name: &str| {
            let name = name.trim();
            let is_absent = name.is_empty() || name == "-1" || name.eq_ignore_ascii_case("none");
            (!is_absent).then(|| name.to_owned())
        };
        let owner = Owner { user: part(user), group: part(group) };
        if [&owner.user, &owner.group].into_iter().flatten().all(|name| is_account(name)) {
            return Some(owner);
        }
        let reason = "this is not the name of a user, or of a user and a group";
        self.found.invalid(&self.key("owner"), reason, "write it as root:root");
        None
    }

    fn flag(&mut self, name: &str, node: Option<&Node>) -> Option<bool> {
        let value = match node.map(|node| &node.value) {
            None | Some(Value::Scalar(Scalar::Null | Scalar::Integer { value: 0, .. })) => Some(false),
            Some(Value::Scalar(Scalar::Bool(value))) => Some(*value),
            Some(Value::Scalar(Scalar::Integer { value: 1, .. })) => Some(true),
            Some(Value::Text(text)) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "1" | "on" | "yes" => Some(true),
                "false" | "0" | "off" | "no" | "" => Some(false),
                _ => None,
            },
            Some(_) => None,
        };
        if value.is_none() {
            self.found.invalid(&self.key(name), "this is not a boolean", "write true or false");
        }
        value
    }

    /// Reads the encoding: whether the content is base64, and whether that is gzip.
    fn encoding(&mut self, node: Option<&Node>) -> Option<(bool, bool)> {
        let text = match node.map(|node| &node.value) {
            None | Some(Value::Scalar(Scalar::Null)) => return Some((false, false)),
            Some(Value::Text(text)) => text.trim().to_ascii_lowercase(),
            Some(_) => {
                self.found.not_text(&self.key("encoding"));
                return None;
            }
        };
        match text.as_str() {
            "" | "text/plain" => Some((false, false)),
            "b64" | "base64" => Some((true, false)),
            "gz" | "gzip" => Some((false, true)),
            "gz+base64" | "gzip+base64" | "gz+b64" | "gzip+b64" => Some((true, true)),
            _ => {
                // cloud-init writes the content as it is.
                let reason = "this encoding is unknown";
                self.found.unsupported(&self.key("encoding"), reason, "write base64 or gzip+base64");
                Some((false, false))
            }
        }
    }

    fn content(&mut self, node: Option<&Node>, decoding: Option<(bool, bool)>) -> Option<Zeroizing<Vec<u8>>> {
        let key = self.key("content");
        let raw: &[u8] = match node.map(|node| &node.value) {
            None | Some(Value::Scalar(Scalar::Null)) => b"",
            Some(Value::Text(text)) => text.as_bytes(),
            Some(Value::Bytes(bytes)) => bytes,
            Some(_) => {
                self.found.not_text(&key);
                return None;
            }
        };
        let (is_base64, is_gzip) = decoding?;
        let max = MAX_FILE_BYTES.min(self.budget.left());
        match decode(raw, is_base64, is_gzip, max) {
            Ok(content) => {
                self.budget.take(content.len());
                Some(content)
            }
            Err(DecodeError::Invalid) => {
                let name = if is_gzip { "gzip" } else { "base64" };
                self.found.invalid(&key, format!("this is not {name}"), "correct content or encoding");
                None
            }
            Err(DecodeError::Large) => {
                let reason = format!(
                    "it has more than {MAX_FILE_BYTES} bytes, or all contents together more than {MAX_CONTENT_BYTES}"
                );
                self.found.invalid(&key, reason, "put it into the node image");
                None
            }
        }
    }
}

fn decode(raw: &[u8], is_base64: bool, is_gzip: bool, max: usize) -> Result<Zeroizing<Vec<u8>>, DecodeError> {
    let content = if is_base64 { encoding::base64(raw)? } else { Zeroizing::new(raw.to_vec()) };
    // Python reads no bytes as an empty file; the decoder would miss a header.
    let content =
        if is_gzip && !content.is_empty() { encoding::gunzip(&content, max as u64)? } else { content };
    if content.len() > max { Err(DecodeError::Large) } else { Ok(content) }
}
