//! Pure: the fields of a Machine template that start a rollout, and what of two templates differs. Called by the planner of deployments.
//!
//! Labels, annotations, timeouts, readiness gates, taints and `minReadySeconds` are not here: they are propagated in place.

use std::fmt;

use crate::name::Digest;

/// Rollout-relevant fields of a template.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TemplateView {
    /// Kubernetes version, with or without `v`.
    pub version: Option<String>,
    /// Source of the bootstrap data.
    pub bootstrap: BootstrapView,
    /// Template of the infrastructure object.
    pub infrastructure: RefView,
    /// Failure domain.
    pub failure_domain: Option<String>,
}

/// Source of the bootstrap data. A configuration object wins over a Secret, and a Secret over text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BootstrapView {
    /// Template of the configuration object.
    Config(RefView),
    /// Name of a Secret.
    Secret(String),
    /// Hash of literal data.
    Data(u64),
    /// There is none.
    Nothing,
}

/// A reference to an object of the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RefView {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

impl RefView {
    /// Kind of the object that is made from this template.
    fn made_kind(&self) -> &str {
        self.kind.strip_suffix("Template").unwrap_or(&self.kind)
    }
}

impl TemplateView {
    /// Returns a hash of the fields. It is part of names, so it must stay the same in every release.
    pub fn hash(&self) -> u64 {
        let mut digest = Digest::default();
        self.digest(&mut digest);
        digest.finish()
    }

    pub(crate) fn digest(&self, digest: &mut Digest) {
        digest.optional(self.version.as_deref().map(bare_version));
        match &self.bootstrap {
            BootstrapView::Config(reference) => digest.text("config").reference(reference),
            BootstrapView::Secret(name) => digest.text("secret").text(name),
            BootstrapView::Data(hash) => digest.text("data").number(*hash),
            BootstrapView::Nothing => digest.text("nothing"),
        };
        digest.reference(&self.infrastructure);
        digest.optional(self.failure_domain.as_deref());
    }
}

fn bare_version(version: &str) -> &str {
    version.strip_prefix('v').unwrap_or(version)
}

/// A rollout-relevant difference of two templates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Kubernetes version.
    Version(Difference),
    /// Bootstrap data.
    Bootstrap(BootstrapView, BootstrapView),
    /// Infrastructure template.
    Infrastructure(RefView, RefView),
    /// Failure domain.
    FailureDomain(Difference),
}

/// Present and desired value of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Value in the present template.
    pub present: Option<String>,
    /// Value in the desired template.
    pub desired: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        write!(f, "{}, {} required", shown(&self.present), shown(&self.desired))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(difference) => write!(f, "version {difference}"),
            Self::Bootstrap(BootstrapView::Config(now), _) => {
                write!(f, "{} is not up-to-date", now.made_kind())
            }
            Self::Bootstrap(_, _) => f.write_str("bootstrap data is not up-to-date"),
            Self::Infrastructure(now, _) => write!(f, "{} is not up-to-date", now.made_kind()),
            Self::FailureDomain(difference) => write!(f, "failure domain {difference}"),
        }
    }
}

/// Returns the differences that start a rollout (MD1). If there is none, no rollout starts.
pub fn changes(current: &TemplateView, desired: &TemplateView) -> Vec<Change> {
    let mut changes = Vec::new();
    let bare = |template: &TemplateView| template.version.as_deref().map(bare_version).map(str::to_owned);
    let difference = |of: fn(&TemplateView) -> &Option<String>| Difference {
        present: of(current).clone(),
        desired: of(desired).clone(),
    };
    if bare(current) != bare(desired) {
        changes.push(Change::Version(difference(|template| &template.version)));
    }
    if current.bootstrap != desired.bootstrap {
        changes.push(Change::Bootstrap(current.bootstrap.clone(), desired.bootstrap.clone()));
    }
    if current.infrastructure != desired.infrastructure {
        changes.push(Change::Infrastructure(current.infrastructure.clone(), desired.infrastructure.clone()));
    }
    if current.failure_domain != desired.failure_domain {
        changes.push(Change::FailureDomain(difference(|template| &template.failure_domain)));
    }
    changes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn reference(kind: &str, name: &str) -> RefView {
        let group = "infrastructure.cluster.x-k8s.io".to_owned();
        RefView { group, kind: kind.to_owned(), name: name.to_owned() }
    }

    pub(crate) fn template(version: &str) -> TemplateView {
        TemplateView {
            version: Some(version.to_owned()),
            bootstrap: BootstrapView::Config(reference("KubeadmConfigTemplate", "workers")),
            infrastructure: reference("BedplateMachineTemplate", "workers"),
            failure_domain: None,
        }
    }

    #[test]
    fn md1_version_with_or_without_v_is_the_same() {
        assert_eq!(changes(&template("v1.34.1"), &template("1.34.1")), []);
        assert_eq!(template("v1.34.1").hash(), template("1.34.1").hash());
        let [present, desired] = ["v1.34.1", "v1.34.2"].map(|version| Some(version.to_owned()));
        let expected = [Change::Version(Difference { present, desired })];
        assert_eq!(changes(&template("v1.34.1"), &template("v1.34.2")), expected);
    }

    #[test]
    fn md1_each_rollout_field_is_a_change_with_its_own_hash() {
        let old = template("v1.34.1");
        let with = |edit: fn(&mut TemplateView)| {
            let mut new = old.clone();
            edit(&mut new);
            new
        };
        let cases = [
            (with(|new| new.version = None), "version v1.34.1, none required"),
            (with(|new| new.bootstrap = BootstrapView::Nothing), "KubeadmConfig is not up-to-date"),
            (
                with(|new| new.bootstrap = BootstrapView::Secret("a".into())),
                "KubeadmConfig is not up-to-date",
            ),
            (with(|new| new.bootstrap = BootstrapView::Data(7)), "KubeadmConfig is not up-to-date"),
            (with(|new| new.infrastructure.name = "a".into()), "BedplateMachine is not up-to-date"),
            (with(|new| new.failure_domain = Some("a".into())), "failure domain none, a required"),
        ];
        let mut hashes = vec![old.hash()];
        for (new, text) in cases {
            let found: Vec<String> = changes(&old, &new).iter().map(ToString::to_string).collect();
            assert_eq!(found, [text]);
            assert!(!hashes.contains(&new.hash()), "{text}");
            hashes.push(new.hash());
        }
    }

    #[test]
    fn md1_hash_of_a_template_stays_the_same_in_every_release() {
        assert_eq!(template("v1.34.1").hash(), 3_524_641_519_633_102_352);
    }
}
