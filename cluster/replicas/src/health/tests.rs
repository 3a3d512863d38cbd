//! Table tests of health checks, named after the rules.

use super::*;
use crate::set::tests::at;

const NOW: i64 = 10_000;

/// A Machine with a Node whose condition `Ready` is True.
pub(crate) fn target(name: &str) -> Target {
    Target {
        key: name.into(),
        is_control_plane: false,
        is_deleting: false,
        is_paused: false,
        is_skipped: false,
        has_remediate: false,
        is_marked: false,
        created: at(100),
        infrastructure_ready: Some(at(200)),
        conditions: Vec::new(),
        node: NodeView::Present(vec![condition("Ready", "True", 300)]),
    }
}

fn condition(kind: &str, status: &str, since: i64) -> ConditionView {
    ConditionView { kind: kind.to_owned(), status: status.to_owned(), since: at(since) }
}

fn rule(kind: &str, status: &str, seconds: u32) -> Unhealthy {
    Unhealthy { kind: kind.to_owned(), status: status.to_owned(), seconds }
}

pub(crate) fn check() -> HealthCheck {
    HealthCheck {
        startup_seconds: 600,
        node: vec![rule("Ready", "False", 60), rule("Ready", "Unknown", 300)],
        machine: vec![rule("InfrastructureReady", "False", 120)],
        allowed: Allowed::default(),
        is_external: false,
        control_plane_initialized: Some(at(50)),
        infrastructure_ready: Some(at(40)),
    }
}

/// A target whose Node is not ready since a second.
fn not_ready(name: &str, since: i64) -> Target {
    Target { node: NodeView::Present(vec![condition("Ready", "False", since)]), ..target(name) }
}

fn plan(targets: &[Target], check: &HealthCheck) -> HealthPlan {
    plan_health(targets, check, at(NOW))
}

fn judged(target: &Target) -> Judgment {
    judge(target, &check(), at(NOW))
}

#[test]
fn hc1_paused_and_skipped_machines_are_no_targets() {
    let paused = Target { is_paused: true, has_remediate: true, ..target("a") };
    let skipped = Target { is_skipped: true, has_remediate: true, ..target("b") };
    let plan = plan(&[paused, skipped, target("d"), target("c")], &check());
    assert_eq!(plan.targets, ["c".into(), "d".into()]);
    assert_eq!((plan.expected, plan.current, plan.mark), (2, 2, vec![]));
}

#[test]
fn hc2_startup_counts_from_the_latest_transition() {
    let base = Target { node: NodeView::Absent, ..target("a") };
    // Creation, infrastructure of the Machine, infrastructure of the Cluster, control plane; one of them is 600 s ago or less.
    for (index, start, is_unhealthy) in [
        (0, 9399, true),
        (0, 9400, false),
        (1, 9400, false),
        (2, 9400, false),
        (3, 9400, false),
        (3, 9000, true),
    ] {
        let mut times = [at(10); 4];
        times[index] = at(start);
        let seen = Target { created: times[0], infrastructure_ready: Some(times[1]), ..base.clone() };
        let check = HealthCheck {
            infrastructure_ready: Some(times[2]),
            control_plane_initialized: Some(times[3]),
            ..check()
        };
        let expected = if is_unhealthy {
            Judgment::Unhealthy(vec![Failure::NodeStartup(600)])
        } else {
            Judgment::Undecided(Some(at(start + 601)))
        };
        assert_eq!(judge(&seen, &check, at(NOW)), expected, "{index} {start}");
    }
    let off = HealthCheck { startup_seconds: 0, ..check() };
    assert_eq!(judge(&base, &off, at(NOW)), Judgment::Undecided(None));
}

#[test]
fn hc2_workers_are_not_judged_before_the_control_plane_is_initialized() {
    let early = HealthCheck { control_plane_initialized: None, ..check() };
    let worker = Target { node: NodeView::Absent, ..target("a") };
    assert_eq!(judge(&worker, &early, at(NOW)), Judgment::Undecided(None));
    let first = Target { is_control_plane: true, ..worker.clone() };
    assert_eq!(judge(&first, &early, at(NOW)), Judgment::Unhealthy(vec![Failure::NodeStartup(600)]));
    let no_infrastructure = HealthCheck { infrastructure_ready: None, ..check() };
    assert_eq!(judge(&first, &no_infrastructure, at(NOW)), Judgment::Undecided(None));
    let marked = Target { has_remediate: true, ..worker };
    assert_eq!(judge(&marked, &early, at(NOW)), Judgment::Unhealthy(vec![Failure::Annotation]));
}

#[test]
fn hc3_each_condition_has_its_timeout() {
    let ready = |status: &str, since: i64| NodeView::Present(vec![condition("Ready", status, since)]);
    let failed = |subject, rule| Judgment::Unhealthy(vec![Failure::Condition(subject, rule)]);
    let cases = [
        (ready("True", 1), Judgment::Healthy),
        (ready("False", NOW - 61), failed(Subject::Node, rule("Ready", "False", 60))),
        (ready("False", NOW - 60), Judgment::Undecided(Some(at(NOW + 1)))),
        (ready("Unknown", NOW - 61), Judgment::Undecided(Some(at(NOW + 240)))),
        (ready("Unknown", NOW - 301), failed(Subject::Node, rule("Ready", "Unknown", 300))),
        (NodeView::Present(vec![]), Judgment::Healthy),
    ];
    for (node, expected) in cases {
        assert_eq!(judged(&Target { node: node.clone(), ..target("a") }), expected, "{node:?}");
    }
    let machine = rule("InfrastructureReady", "False", 120);
    let sick =
        Target { conditions: vec![condition("InfrastructureReady", "False", NOW - 121)], ..target("a") };
    assert_eq!(judged(&sick), failed(Subject::Machine, machine.clone()));
    let both = Target { node: ready("False", 1), ..sick };
    let Judgment::Unhealthy(failures) = judged(&both) else { panic!("not unhealthy") };
    let reasons: Vec<_> = failures.iter().map(Failure::reason).collect();
    assert_eq!(reasons, [HealthReason::UnhealthyMachine, HealthReason::UnhealthyNode]);
    let texts: Vec<_> = failures.iter().map(ToString::to_string).collect();
    assert_eq!(texts[1], "Node condition Ready is False for more than 60 s");
}

#[test]
fn hc4_outside_the_range_nothing_is_marked() {
    let range = |from, to| Allowed::Range { from, to };
    let cases = [
        (Allowed::default(), 6, true, 0),
        (Allowed::AtMost(Amount::Percent(40)), 2, true, 0),
        (Allowed::AtMost(Amount::Percent(40)), 3, false, 0),
        (Allowed::AtMost(Amount::Count(4)), 3, true, 1),
        (Allowed::AtMost(Amount::Count(0)), 0, true, 0),
        (Allowed::AtMost(Amount::Count(0)), 1, false, 0),
        (range(2, 4), 1, false, 0),
        (range(2, 4), 2, true, 2),
        (range(2, 4), 5, false, 0),
        (range(4, 2), 3, false, 0),
    ];
    for (allowed, unhealthy, is_allowed, left) in cases {
        let sick = |index: usize| if index < unhealthy { not_ready("s", 1) } else { target("h") };
        let targets: Vec<_> = (0..6).map(sick).collect();
        let plan = plan(&targets, &HealthCheck { allowed, ..check() });
        let seen = (plan.is_allowed, plan.mark.len(), plan.remediations_allowed, plan.unhealthy.len());
        let marked = if is_allowed { unhealthy } else { 0 };
        assert_eq!(seen, (is_allowed, marked, left, unhealthy), "{allowed:?} {unhealthy}");
    }
}

#[test]
fn hc4_machines_that_have_not_started_count_as_unhealthy() {
    let starting = Target { node: NodeView::Absent, created: at(NOW), ..target("a") };
    let targets = [starting, not_ready("b", 1), target("c")];
    let plan = plan(&targets, &HealthCheck { allowed: Allowed::AtMost(Amount::Count(1)), ..check() });
    assert_eq!((plan.expected, plan.current, plan.is_allowed), (3, 1, false));
    assert_eq!(plan.next, Some(at(NOW + 601)), "a plan that marks nothing is decided again");
}

#[test]
fn hc5_marked_and_deleting_machines_are_not_marked_again() {
    let targets = [
        Target { is_marked: true, ..not_ready("a", 1) },
        Target { is_deleting: true, ..not_ready("b", 1) },
        not_ready("c", 1),
        Target { is_deleting: true, ..target("d") },
    ];
    let plan = plan(&targets, &check());
    assert_eq!((plan.mark, plan.healthy, plan.unhealthy.len()), (vec!["c".into()], vec![], 3));
}

#[test]
fn hc6_lost_connection_judges_no_machine() {
    let lost = |name: &str| Target {
        node: NodeView::Unknown,
        conditions: vec![condition("InfrastructureReady", "False", 1)],
        ..target(name)
    };
    let plan = plan(&[lost("a"), lost("b"), Target { has_remediate: true, ..lost("c") }], &check());
    assert_eq!((plan.mark, plan.healthy), (vec!["c".into()], vec![]));
}

#[test]
fn hc6_outage_is_not_reported_as_too_many_unhealthy_machines() {
    let limited = HealthCheck { allowed: Allowed::AtMost(Amount::Percent(40)), ..check() };
    let lost = Target { node: NodeView::Unknown, ..target("a") };
    let during = plan(&[lost.clone(), Target { key: "b".into(), ..lost }], &limited);
    assert_eq!((during.is_allowed, during.are_nodes_unknown), (false, true));
    let after = plan(&[not_ready("a", 1), not_ready("b", 1)], &limited);
    assert_eq!((after.is_allowed, after.are_nodes_unknown), (false, false));
}

#[test]
fn hc7_deleted_node_is_unhealthy_immediately() {
    let seen = Target { node: NodeView::Deleted("n".to_owned()), ..target("a") };
    assert_eq!(judged(&seen), Judgment::Unhealthy(vec![Failure::NodeDeleted("n".to_owned())]));
}

#[test]
fn hc8_external_remediation_marks_none() {
    let plan = plan(&[not_ready("a", 1)], &HealthCheck { is_external: true, ..check() });
    assert_eq!((plan.mark, plan.unhealthy.len(), plan.is_allowed), (vec![], 1, true));
}
