//! Pure: files of a cloud-config. A content that is text is a block scalar; anything else is base64.
//!
//! As with the upstream provider, a text ends with exactly one newline on the machine, whatever it ends with here.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::yaml::{is_printable, scalar};
use crate::capi::Fault;

/// Owner of the files of the provider.
const ROOT: &str = "root:root";

/// Mode of a file, in octal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mode(pub(crate) &'static str);

/// A file with its content.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CloudFile {
    /// Path of the field that it comes from, for failures.
    pub(crate) source: String,
    /// Path on the machine.
    pub(crate) path: String,
    /// Owner as `user:group`.
    pub(crate) owner: Option<String>,
    /// Mode as text.
    pub(crate) permissions: Option<String>,
    /// Encoding of the content.
    pub(crate) encoding: Option<String>,
    /// True if the content is appended.
    pub(crate) append: Option<bool>,
    /// The content.
    pub(crate) content: Zeroizing<Vec<u8>>,
}

/// The content may be a key.
impl fmt::Debug for CloudFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.path, self.content.len())
    }
}

/// Form in which a content is written.
enum Form<'a> {
    /// Lines of text.
    Text(&'a str),
    /// Bytes that are not lines of text.
    Bytes,
}

impl CloudFile {
    /// Makes a file of root.
    pub(crate) fn of_root(path: &str, Mode(permissions): Mode, content: Zeroizing<Vec<u8>>) -> Self {
        Self {
            source: path.to_owned(),
            path: path.to_owned(),
            owner: Some(ROOT.to_owned()),
            permissions: Some(permissions.to_owned()),
            encoding: None,
            append: None,
            content,
        }
    }

    fn form(&self) -> Form<'_> {
        match std::str::from_utf8(&self.content) {
            Ok(text) if text.chars().all(is_printable) => Form::Text(text),
            Ok(_) | Err(_) => Form::Bytes,
        }
    }

    /// Appends the file to `write_files`.
    pub(super) fn write(&self, text: &mut Zeroizing<String>, faults: &mut Vec<Fault>) {
        let form = self.form();
        let encoding = match (self.encoding.as_deref(), &form) {
            (None, Form::Text(_)) => None,
            (None, Form::Bytes) => Some("base64"),
            (Some("gzip"), Form::Bytes) => Some("gzip+base64"),
            (Some("base64" | "gzip+base64"), Form::Bytes) => {
                faults.push(Fault::Invalid {
                    path: self.source.clone(),
                    expected: "has content that is not base64",
                });
                return;
            }
            (Some(known @ ("base64" | "gzip" | "gzip+base64")), Form::Text(_)) => Some(known),
            (Some(_), _) => {
                let path = format!("{}.encoding", self.source);
                faults.push(Fault::Invalid { path, expected: "must be base64, gzip or gzip+base64" });
                return;
            }
        };
        text.push_str(&["- path: ", &scalar(&self.path), "\n"].concat());
        let fields = [
            ("encoding", encoding),
            ("owner", self.owner.as_deref()),
            ("permissions", self.permissions.as_deref()),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                text.push_str(&["  ", name, ": ", &scalar(value), "\n"].concat());
            }
        }
        if let Some(append) = self.append {
            text.push_str(if append { "  append: true\n" } else { "  append: false\n" });
        }
        match form {
            Form::Text(lines) => write_text(lines, text),
            Form::Bytes => write_text(&Zeroizing::new(STANDARD.encode(&*self.content)), text),
        }
    }
}

/// Writes lines as a block scalar.
fn write_text(content: &str, text: &mut Zeroizing<String>) {
    let content = content.trim_end_matches('\n');
    if content.is_empty() {
        text.push_str("  content: \"\"\n");
        return;
    }
    // Without the number a reader takes leading spaces for the indentation.
    let starts_with_space = content.trim_start_matches('\n').starts_with([' ', '\t']);
    text.push_str(if starts_with_space { "  content: |2\n" } else { "  content: |\n" });
    for line in content.split('\n') {
        if !line.is_empty() {
            text.push_str("    ");
            text.push_str(line);
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn written(file: &CloudFile) -> (String, Vec<Fault>) {
        let (mut text, mut faults) = (Zeroizing::new(String::new()), Vec::new());
        file.write(&mut text, &mut faults);
        (text.to_string(), faults)
    }

    fn read(content: &[u8], encoding: Option<&str>) -> Value {
        let mut file = CloudFile::of_root("/a", Mode("0600"), Zeroizing::new(content.to_vec()));
        file.encoding = encoding.map(str::to_owned);
        let (text, faults) = written(&file);
        assert_eq!(faults, []);
        serde_saphyr::from_str::<Value>(&text).unwrap()[0].clone()
    }

    #[test]
    fn text_ends_with_one_newline_and_empty_content_stays_empty() {
        for (content, expected) in [
            ("", ""),
            ("\n\n", ""),
            ("a", "a\n"),
            ("a\n\n\n", "a\n"),
            ("\n\n  a\n b\n\nc", "\n\n  a\n b\n\nc\n"),
            ("\ta\n", "\ta\n"),
            ("a\n   ", "a\n   \n"),
            ("# not a comment\n--- not a document\n", "# not a comment\n--- not a document\n"),
        ] {
            assert_eq!(read(content.as_bytes(), None)["content"], expected, "{content:?}");
        }
    }

    #[test]
    fn bytes_are_base64_and_stay_as_they_are() {
        for content in [&b"a\r\nb"[..], b"\x00\xff", "\u{feff}a".as_bytes()] {
            let file = read(content, None);
            assert_eq!(file["encoding"], "base64");
            assert_eq!(STANDARD.decode(file["content"].as_str().unwrap().trim_end()).unwrap(), content);
        }
        assert_eq!(read(b"\x1f\x8b\x08", Some("gzip"))["encoding"], "gzip+base64");
        assert_eq!(read(b"aGk=", Some("base64"))["content"], "aGk=\n");
    }

    #[test]
    fn kb10_unknown_encoding_is_named_without_the_content() {
        let mut file = CloudFile::of_root("/a", Mode("0600"), Zeroizing::new(b"SECRET".to_vec()));
        file.source = "spec.files[3]".to_owned();
        file.encoding = Some("rot13".to_owned());
        let (text, faults) = written(&file);
        assert_eq!(text, "");
        assert!(faults[0].to_string().starts_with("spec.files[3].encoding must be"), "{}", faults[0]);
        assert!(!format!("{file:?}{faults:?}").contains("SECRET"));
    }

    proptest! {
        #[test]
        fn kb7_any_text_is_written_line_by_line(content in "[ -~\t\n\u{e9}]{0,40}") {
            let file = read(content.as_bytes(), None);
            let trimmed = content.trim_end_matches('\n');
            let expected = if trimmed.is_empty() { String::new() } else { format!("{trimmed}\n") };
            prop_assert_eq!(&file["content"], &Value::from(expected));
            prop_assert_eq!(&file["permissions"], "0600");
        }

        #[test]
        fn kb7_any_bytes_reach_the_machine(content in any::<Vec<u8>>()) {
            let file = read(&content, None);
            let text = file["content"].as_str().unwrap();
            if file["encoding"] == "base64" {
                prop_assert_eq!(STANDARD.decode(text.trim_end()).unwrap(), content);
            } else {
                let given = std::str::from_utf8(&content).unwrap();
                prop_assert_eq!(text.trim_end_matches('\n'), given.trim_end_matches('\n'));
            }
        }
    }
}
