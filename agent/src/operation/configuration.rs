//! Decision of applyConfiguration: no change, changes to the running node, or a repave (docs/design/rules.md, O8).
//!
//! Pure: the selected version, the applied version and their difference in, a
//! decision out. Called by `apply`.

use bedplate_api::machine::VersionRef;
use bedplate_api::reason::operation::AgentOutcome;
use bedplate_bootstrap::diff::{Difference, InPlace};

use super::progress::End;

/// Maximum number of changes in a message.
const MAX_NAMED_CHANGES: usize = 12;

/// Selected and applied version.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// `status.selected`.
    pub selected: Option<VersionRef>,
    /// Version of the node; none: there is no node yet.
    pub applied: Option<VersionRef>,
    /// True if the selected version failed on this host and is not retried automatically.
    pub refused: bool,
    /// True while the node is being paved.
    pub paving: bool,
    /// True if kubeadm created the cluster in the slot of the node.
    pub made_cluster: bool,
    /// Reason for which the slot must not be left: it is a control plane whose
    /// etcd member must stay. None: it may be left.
    pub stays: Option<Stays>,
    /// True if a change to the kubelet's configuration did not end.
    pub unfinished: bool,
    /// Difference between the applied and the selected version; none: the
    /// applied version is not known in detail.
    pub difference: Option<Difference>,
}

/// Reason for not leaving a slot now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stays {
    /// A user must act first.
    Kept(String),
    /// The reason may disappear without an action, or is unknown.
    Later(String),
}

/// Decision of applyConfiguration.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// End the operation.
    End(End),
    /// Human-readable description of the event that it waits for.
    Wait(String),
    /// Apply these changes to the running node, in this order.
    InPlace(Vec<InPlace>),
    /// Drain and delete the Node, so that the host is repaved.
    Repave(VersionRef),
}

/// Decides. `disruption`: a repave is allowed. `asked`: the repave was already requested.
pub fn decide(standing: &Standing, disruption: bool, asked: bool) -> Decision {
    let Some(selected) = &standing.selected else {
        let message = "no version is selected for this Machine; set spec.configurationRef";
        return Decision::End(End::failed(AgentOutcome::NoVersionSelected, message));
    };
    let name = selected.version_name();
    if standing.paving {
        return Decision::Wait(format!("the node is being paved; {name} is selected"));
    }
    let Some(applied) = &standing.applied else {
        if asked && standing.refused {
            return rolled_back(&name);
        }
        return Decision::Wait(format!("there is no node yet; {name} is selected"));
    };
    let same = applied == selected;
    match &standing.difference {
        None if same => {
            return Decision::End(End::done(AgentOutcome::Applied, format!("the node runs {name}")));
        }
        Some(difference) if difference.is_empty() && same && !standing.unfinished => {
            return Decision::End(End::done(AgentOutcome::Applied, format!("the node runs {name}")));
        }
        // Another version with the same content differs in its name only.
        Some(difference) if difference.needs_repave.is_empty() => {
            return Decision::InPlace(difference.in_place.clone());
        }
        Some(_) | None => {}
    }
    if asked && standing.refused {
        return rolled_back(&name);
    }
    match &standing.stays {
        _ if standing.made_cluster => {}
        Some(Stays::Kept(why)) => {
            let message =
                format!("{name} needs a repave, but this host's etcd member cannot leave its cluster: {why}");
            return Decision::End(End::failed(AgentOutcome::ControlPlaneProtected, message));
        }
        Some(Stays::Later(why)) if disruption => {
            return Decision::Wait(format!(
                "the Node is not drained while this host's etcd member cannot leave its cluster: {why}"
            ));
        }
        _ if disruption => return Decision::Repave(selected.clone()),
        Some(Stays::Later(_)) | None => {}
    }
    Decision::End(needs_repave(standing, applied, &name))
}

/// Ends the operation because the difference needs a repave that is not allowed or not possible.
fn needs_repave(standing: &Standing, applied: &VersionRef, name: &str) -> End {
    let changes = match &standing.difference {
        Some(difference) => difference
            .needs_repave
            .iter()
            .map(ToString::to_string)
            .take(MAX_NAMED_CHANGES)
            .collect::<Vec<_>>()
            .join("; "),
        None => format!("the node runs {}", applied.version_name()),
    };
    if standing.made_cluster {
        let message = format!(
            "{name} needs a repave ({changes}), but the slot contains the cluster that kubeadm created and \
             is kept; keep the Node; to update Kubernetes, run `kubeadm upgrade` in the slot \
             (docs/concepts/node.md, \"The first control plane\")"
        );
        return End::failed(AgentOutcome::ControlPlaneProtected, message);
    }
    let message =
        format!("{name} needs a repave ({changes}); set parameter disruption=allow, or delete the Node");
    End::failed(AgentOutcome::RepaveRequired, message)
}

fn rolled_back(name: &str) -> Decision {
    let message =
        format!("{name} failed on this host and was rolled back; see status.rolledBack of the Machine");
    Decision::End(End::failed(AgentOutcome::RolledBack, message))
}

#[cfg(test)]
mod tests {
    use bedplate_bootstrap::diff::NeedsRepave;

    use super::*;

    fn version(version: i64) -> VersionRef {
        VersionRef { name: "workers".into(), version }
    }

    fn standing(selected: i64, applied: i64, difference: Option<Difference>) -> Standing {
        Standing {
            selected: Some(version(selected)),
            applied: Some(version(applied)),
            refused: false,
            paving: false,
            made_cluster: false,
            stays: None,
            unfinished: false,
            difference,
        }
    }

    fn repave() -> Option<Difference> {
        let change = NeedsRepave { field: "image".into(), change: "another one".into() };
        Some(Difference { in_place: Vec::new(), needs_repave: vec![change] })
    }

    fn in_place() -> Option<Difference> {
        let edit = bedplate_bootstrap::diff::Edit::default();
        Some(Difference { in_place: vec![InPlace::NodeLabels(edit)], needs_repave: Vec::new() })
    }

    fn reason(decision: Decision) -> String {
        match decision {
            Decision::End(end) => end.reason,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn o8_without_leave_to_disturb_only_what_needs_no_repave_is_applied() {
        assert!(matches!(decide(&standing(2, 1, in_place()), false, false), Decision::InPlace(_)));
        assert_eq!(reason(decide(&standing(2, 1, repave()), false, false)), "RepaveRequired");
        assert_eq!(reason(decide(&standing(2, 1, None), false, false)), "RepaveRequired");
        let Decision::End(end) = decide(&standing(2, 1, repave()), false, false) else { panic!() };
        assert!(end.message.contains("image: another one"), "{}", end.message);
    }

    #[test]
    fn o8_version_that_runs_is_applied_again_after_an_unfinished_change() {
        let unfinished = Standing { unfinished: true, ..standing(1, 1, Some(Difference::default())) };
        assert_eq!(decide(&unfinished, false, false), Decision::InPlace(Vec::new()));
        let unfinished = Standing { unfinished: true, ..standing(2, 1, repave()) };
        assert_eq!(reason(decide(&unfinished, false, false)), "RepaveRequired");
    }

    #[test]
    fn o8_with_leave_to_disturb_a_repave_is_done_only_if_it_is_needed() {
        assert_eq!(decide(&standing(2, 1, repave()), true, false), Decision::Repave(version(2)));
        assert!(matches!(decide(&standing(2, 1, in_place()), true, false), Decision::InPlace(_)));
        for difference in [None, Some(Difference::default())] {
            assert_eq!(reason(decide(&standing(1, 1, difference), true, false)), "Applied");
        }
    }

    #[test]
    fn host_of_a_new_cluster_is_never_repaved_and_its_node_is_kept() {
        for (disruption, difference) in [(false, repave()), (true, repave()), (true, None)] {
            let kept = Standing { made_cluster: true, ..standing(2, 1, difference) };
            let Decision::End(end) = decide(&kept, disruption, false) else { panic!("{disruption}") };
            assert_eq!((end.complete, end.reason.as_str()), (false, "ControlPlaneProtected"));
            assert!(
                end.message.contains("kubeadm upgrade") && !end.message.contains("delete"),
                "{}",
                end.message
            );
        }
        let kept = Standing { made_cluster: true, ..standing(2, 1, in_place()) };
        assert!(
            matches!(decide(&kept, false, false), Decision::InPlace(_)),
            "what needs no repave is applied"
        );
    }

    #[test]
    fn o8_control_plane_that_etcd_needs_is_not_drained_nor_deleted() {
        let stays = |stays: Stays, difference| Standing { stays: Some(stays), ..standing(2, 1, difference) };
        for (disruption, difference) in [(false, repave()), (true, repave()), (true, None)] {
            let kept = stays(Stays::Kept("the member is the only one".to_owned()), difference);
            let Decision::End(end) = decide(&kept, disruption, false) else { panic!("{disruption}") };
            assert_eq!((end.complete, end.reason.as_str()), (false, "ControlPlaneProtected"));
            assert!(
                end.message.ends_with("the member is the only one") && !end.message.contains("delete"),
                "{}",
                end.message
            );
        }
        let later = stays(Stays::Later("no answer".to_owned()), repave());
        assert!(matches!(decide(&later, true, false), Decision::Wait(why) if why.ends_with("no answer")));
        assert_eq!(reason(decide(&later, false, false)), "RepaveRequired");
        let in_place = stays(Stays::Kept(String::new()), in_place());
        assert!(matches!(decide(&in_place, false, false), Decision::InPlace(_)));
    }

    #[test]
    fn a_version_that_failed_is_tried_again_because_a_person_says_so_but_once() {
        let refused = Standing { refused: true, ..standing(2, 1, repave()) };
        assert_eq!(decide(&refused, true, false), Decision::Repave(version(2)));
        assert_eq!(reason(decide(&refused, true, true)), "RolledBack");
        assert_eq!(reason(decide(&refused, false, false)), "RepaveRequired");
    }

    #[test]
    fn a_node_that_is_being_made_is_waited_for_and_nothing_selected_is_said() {
        let paving = Standing { paving: true, ..standing(2, 1, repave()) };
        assert!(matches!(decide(&paving, true, true), Decision::Wait(_)));
        let none = Standing { applied: None, ..standing(2, 1, None) };
        assert!(matches!(decide(&none, true, false), Decision::Wait(_)));
        let nothing = Standing { selected: None, ..standing(2, 1, None) };
        assert_eq!(reason(decide(&nothing, true, false)), "NoVersionSelected");
    }
}
