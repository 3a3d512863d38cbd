//! Pure: names that are a function of a decision, so that the same decision never makes two objects. Called by the planners.
//!
//! A planner that decides again, because it was killed, read a stale cache or is a second leader, finds the same name. Creation is an
//! idempotent apply, so the object is made once.

use std::fmt;

use crate::template::RefView;

/// Characters of the variable part of a name: no vowels, and neither 0, 1 nor 3, which resemble vowels.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Characters of the variable part.
const VARIABLE_LENGTH: usize = 5;
/// Characters of a name, so that it can be a label value.
const MAX_NAME_LENGTH: usize = 63;
/// Variable that stands for the variable part.
const RANDOM: &str = "{{ .random }}";

/// A stable 64-bit hash (FNV-1a). Each value carries its length, so that no two lists of values are the same bytes.
#[derive(Debug, Clone)]
pub(crate) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_be_bytes());
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
        self
    }

    pub(crate) fn optional(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.number(1).text(text),
            None => self.number(0),
        }
    }

    pub(crate) fn reference(&mut self, reference: &RefView) -> &mut Self {
        self.text(&reference.group).text(&reference.kind).text(&reference.name)
    }

    /// Returns the hash, with the bits mixed (the last step of MurmurHash3).
    pub(crate) fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ (mixed >> 33)
    }

    /// Returns the variable part of a name.
    pub(crate) fn variable(&self) -> String {
        let mut rest = self.finish();
        let mut part = String::with_capacity(VARIABLE_LENGTH);
        for _ in 0..VARIABLE_LENGTH {
            let index = usize::try_from(rest % 27).unwrap_or_default();
            part.push(char::from(ALPHABET[index]));
            rest /= 27;
        }
        part
    }
}

/// Returns `<base>-<variable part>`, with the base cut so that the name can be a label value.
pub(crate) fn suffixed(base: &str, digest: &Digest) -> String {
    let base = format!("{base}-");
    format!("{}{}", cut(&base, MAX_NAME_LENGTH - VARIABLE_LENGTH), digest.variable())
}

/// Names are ASCII by the rules of Kubernetes. Any other text must not panic.
fn cut(text: &str, length: usize) -> &str {
    let mut end = length.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Form of the names of a MachineSet's Machines (`machineNaming.template`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTemplate {
    /// Texts before, between and after the variable parts. There are at least two.
    texts: Vec<String>,
}

/// Values of the variables of a name template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameVariables<'a> {
    /// Name of the Cluster: `{{ .cluster.name }}`.
    pub cluster: &'a str,
    /// Name of the MachineSet: `{{ .machineSet.name }}`.
    pub set: &'a str,
}

/// Reason why a name template is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameTemplateError {
    /// The template has no `{{ .random }}`.
    NoRandom,
    /// The template has an action that is not supported.
    Action(String),
    /// The names are not valid names of objects. The field is an example.
    Name(String),
}

impl fmt::Display for NameTemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRandom => f.write_str("machineNaming.template does not contain {{ .random }}"),
            Self::Action(action) => {
                let known = "{{ .cluster.name }}, {{ .machineSet.name }} and {{ .random }}";
                write!(f, "machineNaming.template contains {action}; use only {known}")
            }
            Self::Name(name) => write!(f, "machineNaming.template gives {name:?}, which is not a valid name"),
        }
    }
}

impl std::error::Error for NameTemplateError {}

impl NameTemplate {
    /// Returns the form without a template: `<set>-<random>`.
    pub fn of_set(set: &str) -> Self {
        Self { texts: vec![format!("{set}-"), String::new()] }
    }

    /// Reads a template with the variables `.cluster.name`, `.machineSet.name` and `.random`. The last one may occur several times. It has the
    /// same value each time.
    pub fn parse(template: &str, variables: NameVariables<'_>) -> Result<Self, NameTemplateError> {
        let filled = spaced(template)
            .replace("{{ .cluster.name }}", variables.cluster)
            .replace("{{ .machineSet.name }}", variables.set);
        let texts: Vec<String> = filled.split(RANDOM).map(str::to_owned).collect();
        if texts.len() < 2 {
            return Err(NameTemplateError::NoRandom);
        }
        for text in &texts {
            if let Some(start) = text.find("{{") {
                let end = text[start..].find("}}").map_or(text.len(), |end| start + end + 2);
                return Err(NameTemplateError::Action(text[start..end].to_owned()));
            }
        }
        let parsed = Self { texts };
        let example = parsed.name(&Digest::default());
        if is_name(&example) { Ok(parsed) } else { Err(NameTemplateError::Name(example)) }
    }

    /// Returns the name for a decision. A name that is too long ends with the variable part.
    pub(crate) fn name(&self, digest: &Digest) -> String {
        let variable = digest.variable();
        let name = self.texts.join(&variable);
        if name.len() <= MAX_NAME_LENGTH {
            return name;
        }
        format!("{}{variable}", cut(&name, MAX_NAME_LENGTH - VARIABLE_LENGTH))
    }
}

/// Writes each action with one space inside its braces.
fn spaced(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, inner)) = rest.split_once("{{") {
        let Some((action, after)) = inner.split_once("}}") else { break };
        out.push_str(before);
        out.push_str(&format!("{{{{ {} }}}}", action.trim()));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Returns true for a DNS-1123 subdomain.
fn is_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.split('.').all(|label| {
        !label.is_empty() && label.chars().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIABLES: NameVariables<'static> = NameVariables { cluster: "c", set: "s" };

    fn digest(text: &str) -> Digest {
        let mut digest = Digest::default();
        digest.text(text);
        digest
    }

    #[test]
    fn ms8_name_is_cut_and_stays_unique() {
        let long = "a".repeat(70);
        let names = [NameTemplate::of_set(&long).name(&digest("1")), suffixed(&long, &digest("1"))];
        for name in names {
            assert_eq!(name.len(), 63, "{name}");
            assert!(name.ends_with(&digest("1").variable()), "{name}");
        }
        let other = NameTemplate::of_set(&long).name(&digest("2"));
        assert_ne!(other, NameTemplate::of_set(&long).name(&digest("1")));
    }

    #[test]
    fn ms8_name_template_fills_its_variables() {
        let part = digest("1").variable();
        let cases = [
            ("{{ .cluster.name }}-{{ .random }}", format!("c-{part}")),
            ("{{.machineSet.name}}.{{.random}}.x", format!("s.{part}.x")),
            ("a{{  .random  }}", format!("a{part}")),
            ("{{ .random }}-{{ .random }}", format!("{part}-{part}")),
            ("{{ .cluster.name }}-{{ .random }}{{.random}}", format!("c-{part}{part}")),
        ];
        for (template, expected) in cases {
            let parsed = NameTemplate::parse(template, VARIABLES).unwrap();
            assert_eq!(parsed.name(&digest("1")), expected, "{template}");
        }
        let long = format!("{{{{ .random }}}}-{}-{{{{ .random }}}}", "a".repeat(60));
        let name = NameTemplate::parse(&long, VARIABLES).unwrap().name(&digest("1"));
        assert_eq!((name.len(), name.ends_with(&part)), (63, true), "{name}");
    }

    #[test]
    fn ms8_invalid_name_template_is_refused() {
        let cases = [
            ("a", "does not contain"),
            ("{{ .random }}-{{ .other }}", "contains {{ .other }}"),
            ("{{ .random | upper }}", "does not contain"),
            ("A{{ .random }}", "not a valid name"),
            ("{{ .random }}.", "not a valid name"),
            ("-{{ .random }}", "not a valid name"),
            ("{{", "does not contain"),
            ("{{ .random }}{{", "contains {{"),
        ];
        for (template, expected) in cases {
            let error = NameTemplate::parse(template, VARIABLES).unwrap_err().to_string();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }

    #[test]
    fn lists_of_values_have_different_hashes() {
        let mut digests = [Digest::default(), Digest::default(), Digest::default(), Digest::default()];
        digests[0].text("ab").text("c");
        digests[1].text("a").text("bc");
        digests[2].optional(Some("ab")).text("c");
        digests[3].optional(None).text("abc");
        let mut hashes: Vec<u64> = digests.iter().map(Digest::finish).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 4);
    }

    #[test]
    fn variable_part_is_the_same_in_every_release() {
        assert_eq!(digest("a").variable(), "9z848");
    }
}
