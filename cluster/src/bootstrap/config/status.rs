//! Pure: the status of a KubeadmConfig in each situation. Types and reasons of upstream's conditions are upstream's.
//!
//! `initialization.dataSecretCreated` and `dataSecretName` are latched: no situation removes them. Called by the planner.

use bedplate_api::cluster::kubeadm::reason::{
    CertificatesAvailableReason, ConfigFieldsSupportedReason, ConfigPausedReason, ConfigReadyReason,
    DataSecretAvailableReason,
};
use bedplate_api::cluster::kubeadm::{
    KubeadmConfig, KubeadmConfigInitialization, KubeadmConfigStatus, condition_type,
};
use bedplate_api::condition::{ConditionState, set_condition};
use bedplate_api::reason::ConditionReason;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// State of a KubeadmConfig, as its conditions show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Situation {
    /// The Cluster or the object is paused.
    Paused,
    /// A MachinePool owns it.
    Pool,
    /// Fields are set that are not supported.
    Unsupported,
    /// Data is made later. The text has the cause.
    Waiting(String),
    /// No data can be made. The text has the cause.
    Failed(String),
    /// Certificates are missing or invalid. The text names them.
    CertificatesMissing(String),
    /// No token can be made. Certificates are there. The text has the cause.
    NoToken(String),
    /// The data is in the Secret of this name.
    Stored(String),
}

/// Returns the status.
pub fn status(config: &KubeadmConfig, situation: &Situation, now: Timestamp) -> KubeadmConfigStatus {
    let mut status = config.status.clone().unwrap_or_default();
    let generation = config.metadata.generation;
    let mut shown = Shown { status: &mut status, generation, now };
    let is_paused = *situation == Situation::Paused;
    let reason = if is_paused { ConfigPausedReason::Paused } else { ConfigPausedReason::NotPaused };
    shown.set(is_paused, reason, "");
    if is_paused {
        return status;
    }
    let unsupported = unsupported(config, situation);
    if unsupported.is_empty() {
        shown.set(true, ConfigFieldsSupportedReason::FieldsSupported, "");
    } else {
        let text = format!("fields are not supported: {}", unsupported.join(", "));
        shown.set(false, ConfigFieldsSupportedReason::UnsupportedFields, &text);
    }
    match situation {
        Situation::Paused => {}
        Situation::Pool => {
            shown.not_available("KubeadmConfigs of a MachinePool are not supported; use Machines");
        }
        Situation::Unsupported => {
            let text = format!("fields are not supported: {}; remove them", unsupported.join(", "));
            shown.not_available(&text);
        }
        Situation::Waiting(text) | Situation::Failed(text) => shown.not_available(text),
        Situation::NoToken(text) => {
            shown.set(true, CertificatesAvailableReason::Available, "");
            shown.not_available(text);
        }
        Situation::CertificatesMissing(text) => {
            shown.set(ConditionState::Unknown, CertificatesAvailableReason::InternalError, text);
            shown.not_available("certificates are missing; see condition CertificatesAvailable");
        }
        Situation::Stored(name) => {
            shown.status.data_secret_name = Some(name.clone());
            shown.status.initialization =
                Some(KubeadmConfigInitialization { data_secret_created: Some(true) });
            shown.set(true, DataSecretAvailableReason::Available, "");
            shown.set(true, CertificatesAvailableReason::Available, "");
        }
    }
    shown.summarize();
    status.observed_generation = generation;
    status
}

/// Returns the paths that are not supported. Stored data is used, whatever the spec has since.
fn unsupported(config: &KubeadmConfig, situation: &Situation) -> Vec<&'static str> {
    match situation {
        Situation::Pool => vec!["metadata.ownerReferences of kind MachinePool"],
        _ => config.spec.unsupported(),
    }
}

/// The status that is being made.
struct Shown<'a> {
    status: &'a mut KubeadmConfigStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl Shown<'_> {
    fn set<R: ConditionReason>(&mut self, state: impl Into<ConditionState>, reason: R, message: &str) {
        set_condition(self.status, state, reason, message, self.generation, self.now);
    }

    fn not_available(&mut self, message: &str) {
        self.set(false, DataSecretAvailableReason::NotAvailable, message);
    }

    /// Sets `Ready` from the two conditions that count, as upstream does.
    fn summarize(&mut self) {
        let types = [condition_type::DATA_SECRET_AVAILABLE, condition_type::CERTIFICATES_AVAILABLE];
        let conditions = &self.status.conditions;
        let found = types.map(|type_| conditions.iter().find(|one| one.type_ == type_));
        let open: Vec<&Condition> =
            found.iter().flatten().copied().filter(|one| one.status != "True").collect();
        let lines: Vec<String> = open.iter().map(|one| format!("* {}: {}", one.type_, one.message)).collect();
        let (state, reason) = if open.iter().any(|one| one.status == "False") {
            (ConditionState::False, ConfigReadyReason::NotReady)
        } else if open.is_empty() && found.iter().all(Option::is_some) {
            (ConditionState::True, ConfigReadyReason::Ready)
        } else {
            (ConditionState::Unknown, ConfigReadyReason::ReadyUnknown)
        };
        self.set(state, reason, &lines.join("\n"));
    }
}
