//! Pure: checks before a MachineSet creates a Machine (MS5). Called by `bedplate-cluster`, which gives the result to the planner of sets.
//!
//! A control plane without a version is not checked. One that cannot be read fails all checks, because its version and its state are not known.
//! Clusters with a topology are not acted upon, so the check `ControlPlaneVersionSkew` never fails.

use std::cmp::Ordering;
use std::fmt;

/// Maximum number of minor versions that a worker may be older than its control plane.
const MAX_MINOR_SKEW: u64 = 3;

/// A preflight check, by its name in the annotation `machineset.cluster.x-k8s.io/skip-preflight-checks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Check {
    /// The control plane is neither provisioned nor upgraded.
    ControlPlaneIsStable,
    /// Workers have the version of the control plane. Only for clusters with a topology.
    ControlPlaneVersionSkew,
    /// kubeadm joins only a control plane of its own minor version.
    KubeadmVersionSkew,
    /// The kubelet is not newer than the control plane, and not too old.
    KubernetesVersionSkew,
}

impl Check {
    const ALL: [Self; 4] = [
        Self::ControlPlaneIsStable,
        Self::ControlPlaneVersionSkew,
        Self::KubeadmVersionSkew,
        Self::KubernetesVersionSkew,
    ];

    /// Name of the check.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ControlPlaneIsStable => "ControlPlaneIsStable",
            Self::ControlPlaneVersionSkew => "ControlPlaneVersionSkew",
            Self::KubeadmVersionSkew => "KubeadmVersionSkew",
            Self::KubernetesVersionSkew => "KubernetesVersionSkew",
        }
    }
}

/// Checks that a user skips.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    checks: Vec<Check>,
    /// Names that are not known. They skip nothing, and belong in a condition.
    pub unknown: Vec<String>,
}

impl Skipped {
    /// Reads the annotation: names of checks or `All`, separated by commas.
    pub fn parse(annotation: &str) -> Self {
        let mut skipped = Self::default();
        for name in annotation.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match Check::ALL.into_iter().find(|check| check.name() == name) {
                Some(check) => skipped.checks.push(check),
                None if name == "All" => skipped.checks.extend(Check::ALL),
                None => skipped.unknown.push(name.to_owned()),
            }
        }
        skipped
    }

    fn has(&self, check: Check) -> bool {
        self.checks.contains(&check)
    }
}

/// The fields of a MachineSet's template that the checks need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetVersion {
    /// Kubernetes version.
    pub version: Option<String>,
    /// True if the bootstrap template is a `KubeadmConfigTemplate`.
    pub is_kubeadm: bool,
}

/// A control plane object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ControlPlaneView {
    /// The Cluster names none, or it has no `spec.version`. It is not checked.
    #[default]
    Unversioned,
    /// It cannot be read. The text is for a user.
    Unknown(String),
    /// It has a version.
    Versioned {
        /// The `spec.version`.
        version: String,
        /// The `status.version`. None: it is being provisioned.
        status_version: Option<String>,
    },
}

/// A check that fails.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Preflight {
    /// A version is not a semantic version.
    InvalidVersion(String),
    /// The control plane cannot be read. The text is for a user.
    Unknown(String),
    /// The control plane is being provisioned.
    Provisioning,
    /// The control plane is being upgraded.
    Upgrading {
        /// `status.version` of the control plane.
        from: String,
        /// `spec.version` of the control plane.
        to: String,
    },
    /// The template has a newer version than the control plane.
    Newer(SkewedVersions),
    /// The template has a version that is too old for the control plane.
    TooOld(SkewedVersions),
    /// kubeadm has another minor version than the control plane.
    Kubeadm(SkewedVersions),
}

/// Versions that do not fit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SkewedVersions {
    /// Version of the template.
    pub template: String,
    /// Version of the control plane.
    pub control_plane: String,
}

impl Preflight {
    /// Returns the check that fails. None: none can be made.
    pub const fn check(&self) -> Option<Check> {
        match self {
            Self::InvalidVersion(_) | Self::Unknown(_) => None,
            Self::Provisioning | Self::Upgrading { .. } => Some(Check::ControlPlaneIsStable),
            Self::Newer(..) | Self::TooOld(..) => Some(Check::KubernetesVersionSkew),
            Self::Kubeadm(..) => Some(Check::KubeadmVersionSkew),
        }
    }
}

impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidVersion(version) => write!(f, "{version:?} is not a semantic version")?,
            Self::Unknown(why) => write!(f, "the version of the control plane is not known: {why}")?,
            Self::Provisioning => f.write_str("the control plane is being provisioned")?,
            Self::Upgrading { from, to } => {
                write!(f, "the control plane is being upgraded from {from} to {to}")?;
            }
            Self::Newer(SkewedVersions { template, control_plane }) => {
                write!(f, "version {template} is newer than the control plane ({control_plane})")?;
            }
            Self::TooOld(SkewedVersions { template, control_plane }) => write!(
                f,
                "version {template} is more than {MAX_MINOR_SKEW} minor versions older than the control plane ({control_plane})"
            )?,
            Self::Kubeadm(SkewedVersions { template, control_plane }) => write!(
                f,
                "kubeadm {template} joins only a control plane of its own minor version, not {control_plane}"
            )?,
        }
        match self.check() {
            Some(check) => write!(f, " (preflight check {})", check.name()),
            None => Ok(()),
        }
    }
}

/// Returns the checks that fail.
pub fn preflight(set: &SetVersion, control_plane: &ControlPlaneView, skipped: &Skipped) -> Vec<Preflight> {
    let mut failed = Vec::new();
    if Check::ALL.into_iter().all(|check| skipped.has(check)) {
        return failed;
    }
    let (control_plane_text, status_version) = match control_plane {
        ControlPlaneView::Unversioned => return failed,
        ControlPlaneView::Unknown(why) => return vec![Preflight::Unknown(why.clone())],
        ControlPlaneView::Versioned { version, status_version } => (version, status_version),
    };
    let Some(control_plane_version) = Version::parse(control_plane_text) else {
        return vec![Preflight::InvalidVersion(control_plane_text.clone())];
    };
    if !skipped.has(Check::ControlPlaneIsStable) {
        let status = status_version.as_deref().filter(|version| !version.is_empty());
        failed.extend(unstable(control_plane_text, &control_plane_version, status));
    }
    let Some(set_text) = set.version.as_deref() else { return failed };
    let Some(set_version) = Version::parse(set_text) else {
        failed.push(Preflight::InvalidVersion(set_text.to_owned()));
        return failed;
    };
    let skewed =
        || SkewedVersions { template: set_text.to_owned(), control_plane: control_plane_text.clone() };
    if !skipped.has(Check::KubernetesVersionSkew) {
        let (set, control_plane) = (set_version.minor(), control_plane_version.minor());
        if set > control_plane {
            failed.push(Preflight::Newer(skewed()));
        } else if set.0 < control_plane.0 || set.1 < control_plane.1.saturating_sub(MAX_MINOR_SKEW) {
            failed.push(Preflight::TooOld(skewed()));
        }
    }
    let is_other = set_version.minor() != control_plane_version.minor();
    if set.is_kubeadm && is_other && !skipped.has(Check::KubeadmVersionSkew) {
        failed.push(Preflight::Kubeadm(skewed()));
    }
    failed
}

/// Returns why the control plane is not stable. It is upgraded while its desired version is higher, also by build metadata.
fn unstable(desired_text: &str, desired: &Version, status: Option<&str>) -> Option<Preflight> {
    let Some(status) = status else { return Some(Preflight::Provisioning) };
    let Some(present) = Version::parse(status) else {
        return Some(Preflight::InvalidVersion(status.to_owned()));
    };
    let is_upgrading = desired > &present;
    is_upgrading.then(|| Preflight::Upgrading { from: status.to_owned(), to: desired_text.to_owned() })
}

/// A semantic version. `v` and a missing patch or minor number are tolerated.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    numbers: [u64; 3],
    pre_release: Vec<Identifier>,
    build: Vec<Identifier>,
}

/// Part of a pre-release or of build metadata. Numbers come before texts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Text(String),
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
        let (rest, pre) = rest.split_once('-').map_or((rest, None), |(rest, pre)| (rest, Some(pre)));
        let mut numbers = [0; 3];
        let mut parts = rest.split('.');
        for (index, part) in parts.by_ref().enumerate() {
            *numbers.get_mut(index)? = number(part)?;
        }
        Some(Self { numbers, pre_release: identifiers(pre)?, build: identifiers(build)? })
    }

    /// Major and minor number.
    fn minor(&self) -> (u64, u64) {
        (self.numbers[0], self.numbers[1])
    }
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

fn identifiers(text: Option<&str>) -> Option<Vec<Identifier>> {
    let Some(text) = text else { return Some(Vec::new()) };
    let identifier = |part: &str| {
        let is_valid =
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_valid.then(|| number(part).map_or_else(|| Identifier::Text(part.to_owned()), Identifier::Number))
    };
    text.split('.').map(identifier).collect()
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        // A pre-release precedes its release.
        let release = (self.pre_release.is_empty()).cmp(&other.pre_release.is_empty());
        self.numbers
            .cmp(&other.numbers)
            .then(release)
            .then_with(|| self.pre_release.cmp(&other.pre_release))
            .then_with(|| self.build.cmp(&other.build))
    }
}

#[cfg(test)]
mod tests;
