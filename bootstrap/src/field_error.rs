//! Pure: errors in a version, reported to the user who wrote it. A version cannot be edited once it runs, so
//! all errors are reported together.

use std::fmt;

/// All errors of a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct RenderKubeadmError(pub Vec<FieldError>);

impl fmt::Display for RenderKubeadmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("; "))
    }
}

/// Error in a version. Fields are named as in a MachineConfiguration's `template.kubernetes`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The text is not a version of Kubernetes.
    #[error("version {version:?} is not valid; write it like v1.34.4")]
    InvalidVersion {
        /// Text of the version.
        version: String,
    },
    /// kubeadm of this release does not read any rendered format.
    #[error("Kubernetes {version} is too old; 1.22 is the oldest supported release")]
    TooOld {
        /// Text of the version.
        version: String,
    },
    /// A part is not a set of fields.
    #[error("{field} must be an object")]
    NotAnObject {
        /// Path of the field.
        field: String,
    },
    /// A field has the wrong type or form.
    #[error("{field} {expected}")]
    InvalidField {
        /// Path of the field.
        field: String,
        /// Requirement, as the end of a sentence.
        expected: String,
    },
    /// A field that kubeadm of this release does not know; it would be ignored.
    #[error("{field} needs Kubernetes {since}, not {version}")]
    TooNew {
        /// Path of the field.
        field: String,
        /// The first release that knows it.
        since: &'static str,
        /// The version.
        version: String,
    },
    /// A field that kubeadm of this release no longer knows; it would be ignored.
    #[error("{field} was removed in Kubernetes {since}; use {instead}")]
    Gone {
        /// Path of the field.
        field: String,
        /// The first release without it.
        since: &'static str,
        /// Field or setting that replaced it.
        instead: &'static str,
    },
    /// A field with a value that differs from the required one.
    #[error("{field} is {theirs}, but must be {ours}; omit it")]
    Owned {
        /// Path of the field.
        field: String,
        /// Value of the version.
        theirs: String,
        /// Required value.
        ours: String,
    },
    /// A field that has its own place.
    #[error("{field} must not be set: {instead}")]
    Misplaced {
        /// Path of the field.
        field: String,
        /// Remedy, as a sentence.
        instead: &'static str,
    },
    /// Up to 1.30 an argument has one value.
    #[error("the kubelet argument {name} is repeated, which needs Kubernetes 1.31 or newer")]
    RepeatedArgument {
        /// Without leading dashes.
        name: String,
    },
    /// A label that a kubelet must not give its own Node.
    #[error(
        "nodeLabels: a kubelet may not set {label}; of kubernetes.io and k8s.io it may set only labels \
         below kubelet.kubernetes.io and node.kubernetes.io and the well-known ones for host name, zone, \
         region, instance type, os and architecture; use another prefix, or label the Node by other means"
    )]
    ForbiddenLabel {
        /// Key of the label.
        label: String,
    },
}

/// Collects errors while checking continues.
#[derive(Debug, Default)]
pub(crate) struct FieldErrors(Vec<FieldError>);

impl FieldErrors {
    pub(crate) fn push(&mut self, field_error: FieldError) {
        self.0.push(field_error);
    }

    pub(crate) fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        self.0.extend(errors);
    }

    /// Returns the value if there is no error.
    pub(crate) fn or<T>(self, value: T) -> Result<T, RenderKubeadmError> {
        if self.0.is_empty() { Ok(value) } else { Err(RenderKubeadmError(self.0)) }
    }
}

impl From<FieldError> for RenderKubeadmError {
    fn from(field_error: FieldError) -> Self {
        Self(vec![field_error])
    }
}
