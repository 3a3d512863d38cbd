//! The rules of a claimed host, one by one; `explore` has all of them together.

use super::*;
use crate::node::claim_record::{Claimant, ReleasePolicy};

mod explore;
mod wipe;

fn id(text: &str) -> ProviderId {
    format!("bedplate://host-1/{text}").into()
}

fn claimant() -> Claimant {
    Claimant { namespace: "team-a".to_owned(), name: "w-1".to_owned() }
}

/// A granted claim of this host.
fn claim() -> ClaimFacts {
    ClaimFacts {
        uid: "claim-x".to_owned(),
        release: ReleasePolicy::Empty,
        provider_id: id("x"),
        claimant: claimant(),
        has_user_data: true,
        granted: true,
        was_granted: true,
        deleting: false,
        reported: None,
    }
}

fn record(stage: ClaimStage) -> ClaimRecord {
    ClaimRecord {
        provider_id: id("x"),
        claimant: claimant(),
        has_user_data: true,
        claim_uid: "claim-x".to_owned(),
        release: ReleasePolicy::Empty,
        since: Timestamp::UNIX_EPOCH,
        failed: None,
        refused: Vec::new(),
        stage,
    }
}

fn bootstrapping() -> ClaimRecord {
    record(ClaimStage::Bootstrapping { boot_id: "boot".to_owned(), timeout_seconds: 600 })
}

fn joined() -> ClaimRecord {
    record(ClaimStage::Joined { node_uid: Some("n".to_owned()) })
}

/// A pool host without a claim, a minute after its boot.
fn free() -> ClaimObserved {
    ClaimObserved {
        now: at(60),
        uptime: SignedDuration::from_secs(60),
        boot_id: "boot".to_owned(),
        api: Api::Live,
        machine: machine(),
        claim: ClaimSeen::Absent,
        configuration: Admission::Allowed,
        timeout: Some(SignedDuration::from_secs(600)),
        record: None,
        state: HostState::Disk { wipe_token: None },
        slot: ClaimSlot {
            is_empty: true,
            has_sentinel: true,
            is_kubelet_healthy: true,
            ..ClaimSlot::default()
        },
        user_data: UserData::Absent,
        node: JoinedNode::Absent,
        not_counted: SignedDuration::ZERO,
        is_report_delayed: false,
    }
}

fn machine() -> PoolMachine {
    pool(&["team-a"], None)
}

/// A Machine that claimants of these namespaces may have; `release`: claim that a user releases.
fn pool(namespaces: &[&str], release: Option<ProviderId>) -> PoolMachine {
    let namespaces = namespaces.iter().map(ToString::to_string).collect();
    PoolMachine::Own {
        namespaces,
        paused: false,
        deleting: false,
        release,
        policy: ReleasePolicy::Empty,
        may_wipe: true,
        selects_disk: true,
        last: None,
    }
}

type Change<'a> = &'a dyn Fn(&mut ClaimObserved);

/// A host that has this record, with its claim, which knows it.
fn held(record: ClaimRecord) -> ClaimObserved {
    let reported = Some(of_record(&record));
    let is_empty = record.stage == ClaimStage::Preparing;
    let filled = (!is_empty).then(|| record.provider_id.clone());
    let slot = ClaimSlot { is_empty, filled, has_image: true, ..free().slot };
    let claim = ClaimSeen::Present(ClaimFacts { reported, ..claim() });
    ClaimObserved { claim, record: Some(record), slot, ..free() }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn change_claim(seen: &mut ClaimObserved, change: impl FnOnce(&mut ClaimFacts)) {
    let ClaimSeen::Present(claim) = &mut seen.claim else { panic!("there is a claim") };
    change(claim);
}

fn step(seen: &ClaimObserved) -> ClaimStep {
    match plan_claim(seen) {
        ClaimPlan::Do(step) => step,
        ClaimPlan::Wait { pending, .. } => panic!("it waits: {pending:?}"),
    }
}

fn pending(seen: &ClaimObserved) -> Pending {
    match plan_claim(seen) {
        ClaimPlan::Wait { pending, .. } => pending,
        ClaimPlan::Do(step) => panic!("it does: {step:?}"),
    }
}

fn cause(seen: &ClaimObserved) -> FailureCause {
    match step(seen) {
        ClaimStep::Fail { cause, .. } => cause,
        other => panic!("it does not fail: {other:?}"),
    }
}

#[test]
fn d1_claim_is_accepted_and_prepared_and_waits_for_its_grant() {
    let mut seen = free();
    assert_eq!(pending(&seen), Pending::Claim);
    seen.claim = ClaimSeen::Present(ClaimFacts { granted: false, ..claim() });
    assert_eq!(step(&seen), ClaimStep::Accept);
    seen.record = Some(record(ClaimStage::Preparing));
    let report = ClaimReport { provider_id: id("x"), state: Some(ReportedState::Preparing), cause: None };
    assert_eq!(step(&seen), ClaimStep::Report(report.clone()));
    change_claim(&mut seen, |claim| claim.reported = Some(report));
    assert_eq!(step(&seen), ClaimStep::FetchImage);
    seen.slot.has_image = true;
    assert_eq!(pending(&seen), Pending::Grant);
    change_claim(&mut seen, |claim| claim.granted = true);
    assert_eq!(step(&seen), ClaimStep::RenderUserData);
    seen.user_data = UserData::Rendered;
    assert_eq!(step(&seen), ClaimStep::FillSlot);
    seen.slot.filled = Some(id("x"));
    assert_eq!(step(&seen), ClaimStep::BeginBootstrap { timeout: SignedDuration::from_secs(600) });
    seen.timeout = None;
    assert_eq!(pending(&seen), Pending::Version);
}

#[test]
fn d1_slot_starts_only_after_grant_and_report_of_the_bootstrap() {
    let mut seen = held(bootstrapping());
    seen.user_data = UserData::Rendered;
    assert_eq!(step(&seen), ClaimStep::StartSlot);
    change_claim(&mut seen, |claim| claim.granted = false);
    assert_eq!(pending(&seen), Pending::Grant);
    let mut seen = ClaimObserved { user_data: UserData::Rendered, ..held(bootstrapping()) };
    change_claim(&mut seen, |claim| claim.reported = None);
    assert!(matches!(step(&seen), ClaimStep::Report(_)));
    seen.is_report_delayed = true;
    assert_eq!(pending(&seen), Pending::Report);
    let mut seen = ClaimObserved { user_data: UserData::Rendered, ..held(bootstrapping()) };
    for api in [Api::Away, Api::Unasked] {
        seen.api = api;
        assert_eq!(pending(&seen), Pending::ApiServer);
    }
}

#[test]
fn d3_user_data_without_a_result_is_never_run_again() {
    let lost = held(bootstrapping());
    assert_eq!(cause(&lost), FailureCause::Interrupted, "it is not in memory any more");
    for (script, runs, boot) in [
        (Script::NotStarted, false, "other"),
        (Script::NotStarted, true, "other"),
        (Script::Started, false, "boot"),
        (Script::Started, true, "other"),
    ] {
        let mut seen = ClaimObserved { user_data: UserData::Rendered, ..held(bootstrapping()) };
        (seen.slot.script, seen.slot.runs, seen.boot_id) = (script, runs, boot.to_owned());
        assert_eq!(cause(&seen), FailureCause::Interrupted, "{script:?} {runs} {boot}");
    }
    for reported in
        [ReportedState::Bootstrapping, ReportedState::Joined, ReportedState::Failed, ReportedState::Releasing]
    {
        let lost = || ClaimObserved { claim: ClaimSeen::Present(claim()), ..free() };
        let report = ClaimReport { provider_id: id("x"), state: Some(reported), cause: None };
        let mut seen = lost();
        change_claim(&mut seen, |claim| claim.reported = Some(report.clone()));
        assert_eq!(cause(&seen), FailureCause::Interrupted, "the state of the host is lost: {reported:?}");
        let mut seen = lost();
        let PoolMachine::Own { last, .. } = &mut seen.machine else { panic!("it is own") };
        *last = Some(report);
        assert_eq!(cause(&seen), FailureCause::Interrupted, "the claim was created again: {reported:?}");
    }
}

#[test]
fn d3_result_of_the_user_data_outlives_agent_and_boot() {
    let mut seen = held(bootstrapping());
    seen.slot.script = Script::Ended(7);
    assert_eq!(cause(&seen), FailureCause::BootstrapFailed);
    seen.slot.script = Script::Ended(0);
    seen.boot_id = "other".to_owned();
    assert_eq!(step(&seen), ClaimStep::StartSlot);
    seen.slot.runs = true;
    assert_eq!(pending(&seen), Pending::Node);
    let node = |provider_id, is_labeled| JoinedNode::Present { uid: "n".to_owned(), provider_id, is_labeled };
    for (provider_id, is_labeled) in [(None, false), (None, true), (Some(id("x")), false)] {
        seen.node = node(provider_id, is_labeled);
        assert_eq!(step(&seen), ClaimStep::SetProviderId { node_uid: "n".to_owned() });
    }
    seen.node = node(Some(id("x")), true);
    assert_eq!(step(&seen), ClaimStep::Join { node_uid: Some("n".to_owned()) });
    seen.node = node(Some(id("y")), true);
    assert_eq!(pending(&seen), Pending::ProviderId);
    seen.slot.has_sentinel = false;
    assert_eq!(pending(&seen), Pending::Sentinel);
    (seen.slot.has_sentinel, seen.slot.is_kubelet_healthy) = (true, false);
    assert_eq!(pending(&seen), Pending::Kubelet);
    seen.user_data = UserData::Rendered;
    assert_eq!(step(&seen), ClaimStep::ForgetUserData);
}

#[test]
fn bootstrap_fails_at_its_deadline_which_a_later_boot_renews() {
    let mut seen = held(bootstrapping());
    (seen.slot.runs, seen.slot.script) = (true, Script::Started);
    seen.uptime = SignedDuration::from_secs(10_000);
    for (now, not_counted, fails) in [(599, 0, false), (600, 0, true), (600, 1, false)] {
        (seen.now, seen.not_counted) = (at(now), SignedDuration::from_secs(not_counted));
        assert_eq!(matches!(plan_claim(&seen), ClaimPlan::Do(_)), fails, "{now}");
    }
    let fails = step(&ClaimObserved { now: at(601), ..seen.clone() });
    let ClaimStep::Fail { cause: FailureCause::BootstrapFailed, message } = fails else {
        panic!("{fails:?}")
    };
    assert_eq!(message, "the host did not join in time: the user data has not finished");
    seen.slot.script = Script::Ended(0);
    (seen.now, seen.uptime) = (at(10_000), SignedDuration::from_secs(30));
    let expected = ClaimPlan::Wait { pending: Pending::Node, until: Some(at(10_570)) };
    seen.not_counted = SignedDuration::ZERO;
    assert_eq!(plan_claim(&seen), expected);
}

#[test]
fn d1_configuration_that_does_not_allow_the_claimant_is_refused() {
    let mut seen = held(record(ClaimStage::Preparing));
    seen.configuration = Admission::Unknown;
    assert_eq!(pending(&seen), Pending::Version);
    seen.configuration = Admission::Refused;
    let state = Some(ReportedState::Preparing);
    let report = ClaimReport { provider_id: id("x"), state, cause: Some(ReportedCause::ClaimRefused) };
    assert_eq!(step(&seen), ClaimStep::Report(report.clone()));
    change_claim(&mut seen, |claim| claim.reported = Some(report));
    assert_eq!(pending(&seen), Pending::RefusedClaim);
    seen.configuration = Admission::Allowed;
    assert!(matches!(step(&seen), ClaimStep::Report(_)), "it is not refused any more");
}

#[test]
fn d3_refused_user_data_fails_before_a_slot_is_filled() {
    let user_data = UserData::Refused { why: "disk_setup".to_owned() };
    let seen = ClaimObserved { user_data, ..held(record(ClaimStage::Preparing)) };
    let expected = ClaimStep::Fail { cause: FailureCause::UserDataRefused, message: "disk_setup".to_owned() };
    assert_eq!(step(&seen), expected);
}

#[test]
fn claim_without_user_data_has_joined_when_its_slot_runs() {
    let mut seen = held(record(ClaimStage::Preparing));
    let no_data = |seen: &mut ClaimObserved| seen.record.as_mut().unwrap().has_user_data = false;
    no_data(&mut seen);
    assert_eq!(step(&seen), ClaimStep::FillSlot);
    let mut seen = held(bootstrapping());
    no_data(&mut seen);
    for boot in ["boot", "other"] {
        seen.boot_id = boot.to_owned();
        assert_eq!(step(&seen), ClaimStep::StartSlot, "{boot}");
    }
    seen.slot.runs = true;
    assert_eq!(step(&seen), ClaimStep::Join { node_uid: None });
}

#[test]
fn d7_absent_claim_is_no_evidence_of_its_end() {
    for stage in [record(ClaimStage::Preparing), joined()] {
        let mut seen = held(stage);
        seen.slot.runs = seen.slot.filled.is_some();
        seen.claim = ClaimSeen::Absent;
        assert_eq!(pending(&seen), Pending::MissingClaim);
        seen.machine = PoolMachine::Absent;
        assert_eq!(pending(&seen), Pending::MissingClaim);
    }
    let mut seen = ClaimObserved { claim: ClaimSeen::Absent, ..held(joined()) };
    assert_eq!(step(&seen), ClaimStep::StartSlot, "a boot has stopped it");
    seen.machine = PoolMachine::Foreign;
    assert_eq!(pending(&seen), Pending::Machine, "another host may be the node");
}

#[test]
fn d7_host_is_released_on_each_evidence_of_a_live_answer() {
    let deleted = |seen: &mut ClaimObserved| change_claim(seen, |claim| claim.deleting = true);
    let replaced = |seen: &mut ClaimObserved| change_claim(seen, |claim| claim.provider_id = id("y"));
    let requested = |seen: &mut ClaimObserved| seen.machine = pool(&["team-a"], Some(id("x")));
    let kinds: [(Evidence, Change<'_>); 3] =
        [(Evidence::Deleted, &deleted), (Evidence::Replaced, &replaced), (Evidence::Requested, &requested)];
    for (evidence, change) in kinds {
        let mut stages = vec![record(ClaimStage::Preparing)];
        // Another claim does not end one that has run.
        stages.extend(
            (evidence != Evidence::Replaced).then(|| [bootstrapping(), joined()]).into_iter().flatten(),
        );
        for stage in stages {
            let mut seen = held(stage);
            change(&mut seen);
            assert_eq!(step(&seen), ClaimStep::BeginRelease { evidence });
            seen.api = Api::Away;
            let plan = plan_claim(&seen);
            assert!(!matches!(plan, ClaimPlan::Do(ClaimStep::BeginRelease { .. })), "{plan:?}");
        }
    }
    let mut seen = ClaimObserved { slot: ClaimSlot { runs: true, ..held(joined()).slot }, ..held(joined()) };
    change_claim(&mut seen, |claim| (claim.provider_id, claim.granted) = (id("y"), false));
    assert!(matches!(step(&seen), ClaimStep::Report(_)), "it is not granted");
    change_claim(&mut seen, |claim| (claim.granted, claim.claimant.namespace) = (true, "team-b".to_owned()));
    assert!(matches!(step(&seen), ClaimStep::Report(_)), "its namespace is not allowed");
}

#[test]
fn d7_release_stops_and_empties_without_the_api_server() {
    let mut seen = ClaimObserved { api: Api::Away, ..held(record(ClaimStage::Releasing)) };
    seen.slot = ClaimSlot { runs: true, has_links: true, ..seen.slot };
    seen.user_data = UserData::Rendered;
    assert_eq!(step(&seen), ClaimStep::StopSlot);
    seen.slot.runs = false;
    assert_eq!(step(&seen), ClaimStep::ForgetUserData);
    seen.user_data = UserData::Absent;
    assert_eq!(step(&seen), ClaimStep::ClearLinks);
    seen.slot.has_links = false;
    assert_eq!(step(&seen), ClaimStep::EmptySlots);
    seen.slot.is_empty = true;
    assert_eq!(step(&seen), ClaimStep::EndRelease);
}

#[test]
fn d7_released_claim_is_reported_and_never_started_again() {
    let mut seen = held(record(ClaimStage::Released));
    change_claim(&mut seen, |claim| claim.reported = None);
    let report = ClaimReport { provider_id: id("x"), state: Some(ReportedState::Released), cause: None };
    assert_eq!(step(&seen), ClaimStep::Report(report.clone()));
    change_claim(&mut seen, |claim| claim.reported = Some(report.clone()));
    assert_eq!(pending(&seen), Pending::Removal);
    // A wipe has taken the record.
    let mut seen = ClaimObserved { claim: seen.claim, ..free() };
    assert_eq!(pending(&seen), Pending::Removal);
    change_claim(&mut seen, |claim| claim.deleting = true);
    assert_eq!(step(&seen), ClaimStep::EndRelease, "the Machine reports what the record says");
    change_claim(&mut seen, |claim| claim.reported = None);
    assert_eq!(step(&seen), ClaimStep::EndRelease, "it was deleted before the host has seen it");
    seen.record = Some(record(ClaimStage::Released));
    assert_eq!(step(&seen), ClaimStep::Report(report));
    seen.record = None;
    // The record is lost, and the slot is not.
    (seen.slot.filled, seen.slot.is_empty) = (Some(id("x")), false);
    assert_eq!(step(&seen), ClaimStep::BeginRelease { evidence: Evidence::Deleted });
}

#[test]
fn d16_joined_host_starts_two_minutes_after_a_boot_without_the_api_server() {
    let mut seen = held(joined());
    for (api, claim) in [
        (Api::Unasked, &ClaimSeen::Unknown),
        (Api::Away, &seen.claim.clone()),
        (Api::Live, &ClaimSeen::Unknown),
    ] {
        (seen.api, seen.claim) = (api, claim.clone());
        seen.uptime = SignedDuration::from_secs(119);
        let expected = ClaimPlan::Wait { pending: Pending::ApiServer, until: Some(at(61)) };
        assert_eq!(plan_claim(&seen), expected, "{api:?}");
        seen.uptime = SignedDuration::from_secs(120);
        assert_eq!(step(&seen), ClaimStep::StartSlot, "{api:?}");
    }
    assert_eq!(step(&held(joined())), ClaimStep::StartSlot, "immediately after an answer");
}

#[test]
fn claim_is_refused_if_not_allowed_or_if_a_slot_is_in_use() {
    let refused = ClaimReport { provider_id: id("x"), state: None, cause: Some(ReportedCause::ClaimRefused) };
    let not_allowed =
        |seen: &mut ClaimObserved| change_claim(seen, |claim| claim.claimant.namespace = "b".to_owned());
    let is_node = |seen: &mut ClaimObserved| seen.slot.is_foreign = true;
    let has_content = |seen: &mut ClaimObserved| seen.slot.is_empty = false;
    let no_pool = |seen: &mut ClaimObserved| {
        seen.machine = pool(&[], None);
    };
    let kinds: [Change<'_>; 4] = [&not_allowed, &is_node, &has_content, &no_pool];
    for change in kinds {
        let mut seen = ClaimObserved { claim: ClaimSeen::Present(claim()), ..free() };
        change(&mut seen);
        assert_eq!(step(&seen), ClaimStep::Report(refused.clone()));
        change_claim(&mut seen, |claim| claim.reported = Some(refused.clone()));
        assert_eq!(pending(&seen), Pending::RefusedClaim);
    }
    let mut seen = ClaimObserved { claim: ClaimSeen::Present(claim()), ..free() };
    seen.machine = pool(&["*"], None);
    assert_eq!(step(&seen), ClaimStep::Accept);
}

#[test]
fn claim_is_refused_while_the_host_holds_another_one() {
    let mut seen = held(joined());
    seen.slot.runs = true;
    change_claim(&mut seen, |claim| (claim.provider_id, claim.granted) = (id("y"), false));
    let report = ClaimReport {
        provider_id: id("x"),
        state: Some(ReportedState::Joined),
        cause: Some(ReportedCause::ClaimRefused),
    };
    assert_eq!(step(&seen), ClaimStep::Report(report.clone()));
    change_claim(&mut seen, |claim| claim.reported = Some(report));
    assert_eq!(pending(&seen), Pending::RefusedClaim);
    // Another claimant with this ID has another claim.
    let mut seen = held(record(ClaimStage::Preparing));
    change_claim(&mut seen, |claim| claim.claimant.name = "w-2".to_owned());
    assert!(matches!(
        step(&seen),
        ClaimStep::Report(ClaimReport { cause: Some(ReportedCause::ClaimRefused), .. })
    ));
}

#[test]
fn failed_claim_stops_its_slot_and_keeps_it() {
    let failed = record(ClaimStage::Failed { cause: FailureCause::BootstrapFailed, message: "m".to_owned() });
    let mut seen = held(failed);
    seen.slot.runs = true;
    change_claim(&mut seen, |claim| claim.reported = None);
    assert_eq!(step(&seen), ClaimStep::StopSlot, "before it is reported");
    seen.slot.runs = false;
    assert!(matches!(step(&seen), ClaimStep::Report(_)));
    seen.is_report_delayed = true;
    assert_eq!(pending(&seen), Pending::FailedClaim);
}

#[test]
fn paused_machine_is_left_as_it_is_but_a_joined_slot_starts_after_a_boot() {
    let paused = PoolMachine::Own {
        namespaces: vec!["*".to_owned()],
        paused: true,
        deleting: false,
        release: Some(id("x")),
        policy: ReleasePolicy::Empty,
        may_wipe: true,
        selects_disk: true,
        last: None,
    };
    for stage in [
        record(ClaimStage::Preparing),
        bootstrapping(),
        record(ClaimStage::Releasing),
        record(ClaimStage::Wiping { token: "claim-x".to_owned(), boot_id: "boot".to_owned() }),
        record(ClaimStage::Failed { cause: FailureCause::Interrupted, message: String::new() }),
    ] {
        let seen = ClaimObserved { machine: paused.clone(), ..held(stage) };
        assert_eq!(pending(&seen), Pending::Unpause);
    }
    let new = ClaimObserved { machine: paused.clone(), claim: ClaimSeen::Present(claim()), ..free() };
    assert_eq!(pending(&new), Pending::Unpause);
    let mut machine = paused;
    let PoolMachine::Own { release, .. } = &mut machine else { panic!("it is own") };
    *release = None;
    let mut seen = ClaimObserved { machine, ..held(joined()) };
    assert_eq!(step(&seen), ClaimStep::StartSlot);
    seen.slot.runs = true;
    assert_eq!(pending(&seen), Pending::Unpause);
}

#[test]
fn machine_that_is_deleted_accepts_no_claim() {
    let machine = PoolMachine::Own {
        namespaces: vec!["*".to_owned()],
        paused: false,
        deleting: true,
        release: None,
        policy: ReleasePolicy::Empty,
        may_wipe: true,
        selects_disk: true,
        last: None,
    };
    let seen = ClaimObserved { machine, claim: ClaimSeen::Present(claim()), ..free() };
    assert_eq!(pending(&seen), Pending::MachineDeletion);
}
