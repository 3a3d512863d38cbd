//! The wipe at the release of a claim, step by step.

use super::*;

const TOKEN: &str = "claim-x";

fn wiping() -> ClaimRecord {
    let stage = ClaimStage::Wiping { token: TOKEN.to_owned(), boot_id: "boot".to_owned() };
    ClaimRecord { release: ReleasePolicy::Wipe, ..record(stage) }
}

/// A host whose slots are empty, at the end of a claim.
fn emptied(record: ClaimRecord) -> ClaimObserved {
    let mut seen = held(record);
    (seen.slot.is_empty, seen.slot.filled) = (true, None);
    change_claim(&mut seen, |claim| (claim.deleting, claim.release) = (true, ReleasePolicy::Wipe));
    let reported = seen.record.as_ref().map(of_record);
    change_last(&mut seen, reported);
    seen
}

/// Changes what the Machine has of this host's report.
fn change_last(seen: &mut ClaimObserved, reported: Option<ClaimReport>) {
    let PoolMachine::Own { last, .. } = &mut seen.machine else { panic!("it is own") };
    *last = reported;
}

fn select_disk(seen: &mut ClaimObserved, is_selected: bool) {
    let PoolMachine::Own { selects_disk, .. } = &mut seen.machine else { panic!("it is own") };
    *selects_disk = is_selected;
}

fn wiped(token: Option<&str>) -> HostState {
    HostState::Disk { wipe_token: token.map(str::to_owned) }
}

fn request() -> ClaimStep {
    ClaimStep::RequestWipe { token: TOKEN.to_owned() }
}

fn change_pool(seen: &mut ClaimObserved, change: impl FnOnce(&mut ReleasePolicy, &mut bool)) {
    let PoolMachine::Own { policy, may_wipe, .. } = &mut seen.machine else { panic!("it is own") };
    change(policy, may_wipe);
}

#[test]
fn d7_emptied_host_is_wiped_only_if_its_claim_asks_for_it() {
    let releasing = |release| ClaimRecord { release, ..record(ClaimStage::Releasing) };
    assert_eq!(step(&emptied(releasing(ReleasePolicy::Empty))), ClaimStep::EndRelease);
    let mut seen = emptied(releasing(ReleasePolicy::Wipe));
    assert_eq!(step(&seen), ClaimStep::BeginWipe { token: TOKEN.to_owned() });
    change_claim(&mut seen, |claim| claim.uid = "made again".to_owned());
    assert_eq!(step(&seen), ClaimStep::BeginWipe { token: "made again".to_owned() });
    seen.claim = ClaimSeen::Absent;
    assert_eq!(step(&seen), ClaimStep::BeginWipe { token: TOKEN.to_owned() });
    seen.slot.is_empty = false;
    assert_eq!(step(&seen), ClaimStep::EmptySlots);
}

#[test]
fn d7_host_boots_only_after_its_report_and_only_if_it_may_be_wiped() {
    assert_eq!(step(&emptied(wiping())), request());
    type Case<'a> = (Change<'a>, Pending);
    let cases: [Case<'_>; 8] = [
        (&|seen| seen.api = Api::Away, Pending::ApiServer),
        (&|seen| seen.claim = ClaimSeen::Unknown, Pending::ApiServer),
        (&|seen| seen.machine = PoolMachine::Absent, Pending::Machine),
        (&|seen| seen.machine = PoolMachine::Foreign, Pending::Machine),
        (
            &|seen| {
                change_claim(seen, |claim| claim.reported = None);
                seen.is_report_delayed = true;
            },
            Pending::Report,
        ),
        (&|seen| change_last(seen, None), Pending::Report),
        (&|seen| change_pool(seen, |_, may_wipe| *may_wipe = false), Pending::WipeNotPossible),
        (&|seen| seen.state = HostState::Installed, Pending::WipeNotPossible),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let mut seen = emptied(wiping());
        change(&mut seen);
        assert_eq!(pending(&seen), expected, "{number}");
    }
    let mut seen = emptied(wiping());
    change_claim(&mut seen, |claim| claim.reported = None);
    assert!(matches!(step(&seen), ClaimStep::Report(_)));
    seen.claim = ClaimSeen::Absent;
    assert_eq!(step(&seen), request(), "a user has released a claim whose object is missing");
}

#[test]
fn d7_host_is_not_booted_while_no_disk_is_selected() {
    let removed: Change<'_> = &|seen| select_disk(seen, false);
    for state in [wiped(None), wiped(Some("claim of an earlier tenant"))] {
        let mut seen = ClaimObserved { state, ..emptied(wiping()) };
        removed(&mut seen);
        assert_eq!(pending(&seen), Pending::WipeNotPossible, "its next boot would be in memory");
    }
    let mut seen = ClaimObserved { state: HostState::Memory, ..emptied(wiping()) };
    removed(&mut seen);
    assert_eq!(step(&seen), request());
    let mut seen = free();
    seen.claim = ClaimSeen::Present(ClaimFacts { release: ReleasePolicy::Wipe, ..claim() });
    removed(&mut seen);
    let ClaimStep::Report(report) = step(&seen) else { panic!("it accepts") };
    assert_eq!(report.cause, Some(ReportedCause::ClaimRefused));
}

#[test]
fn d7_host_is_not_booted_while_a_slot_is_in_use() {
    let mut seen = emptied(wiping());
    (seen.slot.is_empty, seen.slot.runs) = (false, true);
    assert_eq!(step(&seen), ClaimStep::StopSlot);
    seen.slot.runs = false;
    assert_eq!(step(&seen), ClaimStep::EmptySlots);
    seen.slot.is_empty = true;
    assert_eq!(step(&seen), request());
    seen.slot.is_foreign = true;
    assert_eq!(pending(&seen), Pending::ForeignSlot);
}

#[test]
fn d7_boot_that_did_not_wipe_is_repeated_after_ten_minutes() {
    let mut seen = emptied(wiping());
    seen.boot_id = "next".to_owned();
    let plan = plan_claim(&seen);
    assert_eq!(plan, ClaimPlan::Wait { pending: Pending::Wipe, until: Some(at(600)) });
    seen.uptime = SignedDuration::from_mins(10);
    assert_eq!(step(&seen), request());
    // In memory, a boot that found no disk leaves no record of itself.
    let mut seen = ClaimObserved { state: HostState::Memory, ..emptied(wiping()) };
    assert_eq!(pending(&seen), Pending::Wipe);
    select_disk(&mut seen, false);
    assert_eq!(step(&seen), request());
}

#[test]
fn d7_wiped_host_is_released_and_another_one_is_wiped_first() {
    let mut seen = emptied(wiping());
    seen.record = None;
    for state in [wiped(None), wiped(Some("claim of an earlier tenant"))] {
        seen.state = state;
        assert_eq!(step(&seen), ClaimStep::BeginRelease { evidence: Evidence::Deleted });
    }
    seen.state = wiped(Some(TOKEN));
    assert_eq!(step(&seen), ClaimStep::EndRelease);
    // The provider expects the token of these as well, once the Machine selects a disk.
    for state in [HostState::Memory, HostState::Installed] {
        seen.state = state;
        assert_eq!(step(&seen), ClaimStep::BeginRelease { evidence: Evidence::Deleted }, "{:?}", seen.state);
        let mut diskless = seen.clone();
        select_disk(&mut diskless, false);
        assert_eq!(step(&diskless), ClaimStep::EndRelease, "{:?}", seen.state);
    }
    seen.state = wiped(None);
    change_claim(&mut seen, |claim| claim.was_granted = false);
    assert_eq!(step(&seen), ClaimStep::EndRelease, "it has never run");
    seen.state = wiped(Some(TOKEN));
    // A claim whose object a user has to delete is released by the report of the wipe.
    change_claim(&mut seen, |claim| claim.deleting = false);
    assert_eq!(step(&seen), ClaimStep::EndRelease);
    change_claim(&mut seen, |claim| claim.reported = None);
    assert_eq!(step(&seen), ClaimStep::EndRelease, "the Machine still has the report");
}

#[test]
fn d7_restored_claim_does_not_end_the_one_that_runs() {
    let restored =
        || ClaimSeen::Present(ClaimFacts { provider_id: id("y"), uid: "claim-y".to_owned(), ..claim() });
    let failed = ClaimStage::Failed { cause: FailureCause::BootstrapFailed, message: String::new() };
    for record in [joined(), record(failed)] {
        let mut seen = held(record);
        (seen.claim, seen.slot.runs) =
            (restored(), matches!(seen.record.as_ref().unwrap().stage, ClaimStage::Joined { .. }));
        let ClaimStep::Report(report) = step(&seen) else { panic!("it is not refused") };
        assert_eq!((report.provider_id.clone(), report.cause), (id("x"), Some(ReportedCause::ClaimRefused)));
        change_claim(&mut seen, |claim| claim.reported = Some(report));
        assert_eq!(pending(&seen), Pending::RefusedClaim);
        // A user can still release the host.
        seen.machine = pool(&["team-a"], Some(id("x")));
        assert_eq!(step(&seen), ClaimStep::BeginRelease { evidence: Evidence::Requested });
    }
    let mut seen = held(bootstrapping());
    (seen.claim, seen.slot.runs, seen.slot.script) = (restored(), true, Script::Started);
    assert!(!matches!(plan_claim(&seen), ClaimPlan::Do(ClaimStep::BeginRelease { .. })));
    let mut seen = held(record(ClaimStage::Preparing));
    seen.claim = restored();
    assert_eq!(step(&seen), ClaimStep::BeginRelease { evidence: Evidence::Replaced }, "nothing has run");
    change_claim(&mut seen, |claim| claim.granted = false);
    assert!(matches!(step(&seen), ClaimStep::Report(_)));
}

#[test]
fn d7_restored_claim_does_not_run_on_the_disk_of_its_wipe() {
    let mut seen = free();
    seen.claim = ClaimSeen::Present(ClaimFacts { release: ReleasePolicy::Wipe, ..claim() });
    for state in [wiped(None), wiped(Some("claim of an earlier tenant")), HostState::Memory] {
        seen.state = state;
        assert_eq!(step(&seen), ClaimStep::Accept, "{:?}", seen.state);
    }
    seen.state = wiped(Some(TOKEN));
    assert_eq!(cause(&seen), FailureCause::Interrupted);
    let preparing = ClaimReport { provider_id: id("x"), state: Some(ReportedState::Preparing), cause: None };
    change_claim(&mut seen, |claim| claim.reported = Some(preparing));
    assert_eq!(cause(&seen), FailureCause::Interrupted);
    change_claim(&mut seen, |claim| claim.deleting = true);
    assert_eq!(step(&seen), ClaimStep::EndRelease);
}

#[test]
fn d7_claim_object_lost_in_the_boot_ends_released() {
    let mut lost = emptied(wiping());
    (lost.record, lost.claim) = (None, ClaimSeen::Absent);
    for state in [wiped(Some(TOKEN)), wiped(None), HostState::Memory] {
        lost.state = state;
        assert_eq!(step(&lost), ClaimStep::EndRelease, "{:?}", lost.state);
    }
    let releasing = ClaimReport { provider_id: id("x"), state: Some(ReportedState::Releasing), cause: None };
    let cases: [(Change<'_>, Pending); 9] = [
        (&|seen| seen.api = Api::Away, Pending::ApiServer),
        (&|seen| seen.claim = ClaimSeen::Unknown, Pending::ApiServer),
        (&|seen| seen.record = Some(record(ClaimStage::Released)), Pending::Claim),
        (&|seen| seen.state = HostState::Installed, Pending::Claim),
        (&|seen| seen.slot.is_empty = false, Pending::Claim),
        (&|seen| seen.slot.is_foreign = true, Pending::Claim),
        (&|seen| seen.slot.runs = true, Pending::Claim),
        (&|seen| change_last(seen, None), Pending::Claim),
        (&|seen| change_last(seen, Some(releasing.clone())), Pending::Claim),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let mut seen = lost.clone();
        change(&mut seen);
        assert_eq!(pending(&seen), expected, "{number}");
    }
}

#[test]
fn d7_wipe_of_the_machine_is_owed_to_a_claim_that_asks_for_empty() {
    let mut seen = emptied(record(ClaimStage::Released));
    change_claim(&mut seen, |claim| claim.release = ReleasePolicy::Empty);
    assert_eq!(pending(&seen), Pending::Removal);
    change_pool(&mut seen, |policy, _| *policy = ReleasePolicy::Wipe);
    assert_eq!(step(&seen), ClaimStep::BeginRelease { evidence: Evidence::Deleted });
    seen.state = wiped(Some(TOKEN));
    assert_eq!(pending(&seen), Pending::Removal);
}

#[test]
fn d7_agent_of_an_earlier_version_leaves_the_wipe_to_the_next_one() {
    let released = record(ClaimStage::Released);
    let mut seen = emptied(released);
    assert_eq!(step(&seen), ClaimStep::BeginRelease { evidence: Evidence::Deleted });
    seen.state = wiped(Some(TOKEN));
    assert_eq!(pending(&seen), Pending::Removal);
}

#[test]
fn d7_host_that_cannot_be_wiped_refuses_a_claim_that_asks_for_it() {
    let mut seen = free();
    seen.claim = ClaimSeen::Present(ClaimFacts { release: ReleasePolicy::Wipe, ..claim() });
    assert_eq!(step(&seen), ClaimStep::Accept);
    let installed: Change<'_> = &|seen| seen.state = HostState::Installed;
    let other_rule: Change<'_> = &|seen| change_pool(seen, |_, may_wipe| *may_wipe = false);
    for change in [installed, other_rule] {
        let mut seen = seen.clone();
        change(&mut seen);
        let ClaimStep::Report(report) = step(&seen) else { panic!("it accepts") };
        assert_eq!(report.cause, Some(ReportedCause::ClaimRefused));
        change_claim(&mut seen, |claim| claim.release = ReleasePolicy::Empty);
        assert_eq!(step(&seen), ClaimStep::Accept);
        change_pool(&mut seen, |policy, _| *policy = ReleasePolicy::Wipe);
        assert!(matches!(step(&seen), ClaimStep::Report(_)), "the Machine asks for the wipe");
    }
}

#[test]
fn d7_node_that_no_claim_has_selected_is_not_wiped() {
    let mut seen = free();
    let asks = ClaimFacts { release: ReleasePolicy::Wipe, deleting: true, ..claim() };
    seen.claim = ClaimSeen::Present(asks);
    (seen.slot.is_foreign, seen.slot.is_empty) = (true, false);
    assert_eq!(step(&seen), ClaimStep::EndRelease);
}
