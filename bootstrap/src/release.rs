//! Pure: the Kubernetes release of a version, and the features of its kubeadm.

use crate::field_error::FieldError;

/// A minor release; a pre-release counts as its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release {
    major: u64,
    minor: u64,
}

/// The first release whose kubeadm reads v1beta3.
pub(crate) const OLDEST: Release = Release { major: 1, minor: 22 };

/// The first release whose kubeadm patches the kubelet's configuration.
pub(crate) const KUBELET_PATCHES: Release = Release { major: 1, minor: 25 };

/// The first release whose kubeadm reads v1beta4.
pub(crate) const LISTS: Release = Release { major: 1, minor: 31 };

/// Format of kubeadm's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Arguments are a map, one value each.
    V1Beta3,
    /// Arguments are a list.
    V1Beta4,
}

impl Format {
    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::V1Beta3 => "kubeadm.k8s.io/v1beta3",
            Self::V1Beta4 => "kubeadm.k8s.io/v1beta4",
        }
    }
}

impl Release {
    /// Parses a version such as `v1.34.4`, `v1.31.0-alpha.1` or `v1.30.2+vendor`.
    pub(crate) fn of(version: &str) -> Result<Self, FieldError> {
        let wrong = || FieldError::InvalidVersion { version: version.to_owned() };
        let mut numbers = version.strip_prefix('v').ok_or_else(wrong)?.splitn(3, '.');
        let mut number = || numbers.next().and_then(|text| text.parse().ok()).ok_or_else(wrong);
        let release = Self { major: number()?, minor: number()? };
        if numbers.next().is_none() {
            return Err(wrong());
        }
        if release < OLDEST {
            return Err(FieldError::TooOld { version: version.to_owned() });
        }
        Ok(release)
    }

    /// Returns the format that this release's kubeadm reads. A newer, unknown release gets the newest known
    /// format.
    pub(crate) fn format(self) -> Format {
        if self < LISTS { Format::V1Beta3 } else { Format::V1Beta4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_has_the_format_of_its_release() {
        for (version, format) in [
            ("v1.22.0", Format::V1Beta3),
            ("v1.30.14", Format::V1Beta3),
            ("v1.31.0-alpha.1", Format::V1Beta4),
            ("v1.31.0", Format::V1Beta4),
            ("v1.34.4+vendor.1", Format::V1Beta4),
            ("v1.99.0", Format::V1Beta4),
            ("v2.0.0", Format::V1Beta4),
        ] {
            assert_eq!(Release::of(version).unwrap().format(), format, "{version}");
        }
    }

    #[test]
    fn version_below_1_22_is_refused() {
        for version in ["v1.21.14", "v1.22", "1.34.4", "v1.x.0", "", "v0.99.0"] {
            let said = Release::of(version).unwrap_err().to_string();
            assert!(said.contains(version), "{said}");
        }
        assert!(matches!(Release::of("v1.21.14"), Err(FieldError::TooOld { .. })));
        // A pre-release counts as its release.
        assert!(Release::of("v1.22.0-rc.0").is_ok());
    }
}
