//! Pure: from the bytes of a bootstrap Secret to the root of its cloud-config. Called by `user_data`.
//!
//! Only `#cloud-config` is supported, with or without `## template: jinja` above it. A shell script as user data is refused: it names
//! no files and no users, and no provider of the Cluster API for plain hosts makes one.

use std::rc::Rc;

use super::finding::{Refusal, refusal};
use super::yaml::{self, Node};
use super::{MAX_USER_DATA_BYTES, UserData};
use crate::jinja::{self, Facts};

/// First line of the only supported kind.
const CLOUD_CONFIG: &str = "#cloud-config";

/// Kinds of user data that cloud-init knows and that are refused: how they begin in lower case, and their name.
const OTHER_KINDS: [(&str, &str); 10] = [
    ("#cloud-config-archive", "a cloud-config archive"),
    ("#cloud-config-jsonp", "a JSON patch"),
    ("#cloud-boothook", "a boot hook"),
    ("#include", "an include file"),
    ("#part-handler", "a part handler"),
    ("#!", "a shell script"),
    ("mime-version:", "a multipart message"),
    ("content-type:", "a multipart message"),
    ("## template:", "a template of another kind than jinja"),
    ("{", "Ignition or another JSON document"),
];

/// Start of compressed data.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads the root of the cloud-config.
///
/// # Errors
/// The data is of another kind, too large, not a valid template, or not YAML.
pub(super) fn root(data: UserData<'_>, facts: &Facts<'_>) -> Result<Rc<Node>, Refusal> {
    check_format(data.format)?;
    let text = check_text(data.value)?;
    let rendered = match jinja::template_body(text) {
        Some(body) => Some(jinja::render(body, facts).map_err(|error| {
            let key = format!("value, line {}", error.line);
            refusal(&key, error.cause.to_string(), error.cause.remedy())
        })?),
        None => None,
    };
    let config = rendered.as_ref().map_or(text, |rendered| rendered.as_str());
    check_kind(config)?;
    yaml::parse(config).map_err(|error| {
        // The header counts, so that a template without statements has the lines of its source.
        let key = match rendered {
            Some(_) => format!("value, line {} after rendering", error.line + 1),
            None => format!("value, line {}", error.line),
        };
        refusal(&key, error.cause.to_string(), "correct the user data")
    })
}

fn check_format(format: Option<&[u8]>) -> Result<(), Refusal> {
    match format {
        None | Some(b"" | b"cloud-config") => Ok(()),
        Some(b"ignition") => {
            let reason = "Ignition is not supported";
            Err(refusal("format", reason, "set format: cloud-config in the KubeadmConfig"))
        }
        Some(_) => Err(refusal("format", "this format is unknown", "use cloud-config")),
    }
}

fn check_text(value: &[u8]) -> Result<&str, Refusal> {
    if value.len() > MAX_USER_DATA_BYTES {
        let reason = format!("it has more than {MAX_USER_DATA_BYTES} bytes");
        return Err(refusal("value", reason, "put files into the node image"));
    }
    if value.starts_with(&GZIP) {
        return Err(refusal("value", "it is compressed as a whole", "compress single files by gzip+base64"));
    }
    std::str::from_utf8(value)
        .map_err(|_| refusal("value", "it is not UTF-8", "write binary contents in base64"))
}

/// Checks the kind as cloud-init finds it: white space before it and its case do not matter.
fn check_kind(config: &str) -> Result<(), Refusal> {
    let start = config.trim_start();
    if let Some((_, name)) = OTHER_KINDS.iter().find(|(with, _)| after(start, with).is_some()) {
        return Err(refusal("value", format!("it is {name}"), "write it as #cloud-config"));
    }
    let tail = after(start, CLOUD_CONFIG);
    if tail.is_some_and(|tail| tail.is_empty() || tail.starts_with(char::is_whitespace)) {
        return Ok(());
    }
    let reason = "its first line is neither #cloud-config nor ## template: jinja";
    Err(refusal("value", reason, "write #cloud-config into the first line"))
}

/// Returns the text after a start in any case.
fn after<'t>(text: &'t str, start: &str) -> Option<&'t str> {
    let (begin, rest) = text.split_at_checked(start.len())?;
    begin.eq_ignore_ascii_case(start).then_some(rest)
}
