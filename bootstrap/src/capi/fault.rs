//! Pure: failures to render. They name paths, and never a value from a Secret.

/// One failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A field is set that is not supported.
    #[error("{path} is not supported")]
    Unsupported {
        /// Path of the field.
        path: &'static str,
    },
    /// The version cannot be rendered.
    #[error("version {version:?} is not supported; kubeadm must be v1.22.0 or newer")]
    Version {
        /// Version of the Machine.
        version: String,
    },
    /// A value is missing.
    #[error("{path} is missing; {remedy}")]
    Missing {
        /// Path of the field.
        path: String,
        /// Next step.
        remedy: &'static str,
    },
    /// A value is invalid.
    #[error("{path} {expected}")]
    Invalid {
        /// Path of the field.
        path: String,
        /// Valid form.
        expected: &'static str,
    },
    /// A Secret does not exist, or it has no such key.
    #[error("{path} names key {key:?} of Secret {name:?}, which does not exist")]
    SecretMissing {
        /// Path of the field.
        path: String,
        /// Name of the Secret.
        name: String,
        /// Key in the Secret.
        key: String,
    },
    /// A certificate of the cluster is missing or invalid.
    #[error("Secret {name:?} {why}")]
    Certificate {
        /// Name of the Secret.
        name: String,
        /// State of its content.
        why: &'static str,
    },
}

/// All failures of one render.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", joined(.faults))]
pub struct RenderError {
    /// The failures, at least one.
    pub faults: Vec<Fault>,
}

impl From<Vec<Fault>> for RenderError {
    fn from(faults: Vec<Fault>) -> Self {
        Self { faults }
    }
}

/// Maximum number of failures that a text shows. A condition would not hold those of 200 files.
const MAX_SHOWN: usize = 10;

/// Returns the texts of the first failures in one line.
fn joined(faults: &[Fault]) -> String {
    let mut shown: Vec<String> = faults.iter().take(MAX_SHOWN).map(ToString::to_string).collect();
    if faults.len() > MAX_SHOWN {
        shown.push(format!("and {} more", faults.len() - MAX_SHOWN));
    }
    shown.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_many_failures_is_bounded() {
        let missing = |number: usize| Fault::Missing { path: format!("f{number}"), remedy: "set it" };
        let text = |count: usize| RenderError { faults: (0..count).map(missing).collect() }.to_string();
        assert_eq!(text(2), "f0 is missing; set it; f1 is missing; set it");
        assert!(text(200).ends_with("f9 is missing; set it; and 190 more"), "{}", text(200));
    }
}
