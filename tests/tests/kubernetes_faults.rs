//! The controller dies between any two writes of each flow, every write is lost or refused once, its watches break, a second one acts
//! concurrently: the result is that of the undisturbed flow. On a real API server, under the role and the policies of `deploy/`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed; it tells what was hit"
)]

mod kubernetes_faults {
    pub(crate) mod cluster;
    pub(crate) mod feed;
    pub(crate) mod flows;
    pub(crate) mod gate;
    pub(crate) mod life;
    pub(crate) mod proof;
    pub(crate) mod turns;
}

use std::collections::BTreeSet;
use std::time::Duration;

use bedplate_tests::timeline;
use futures::future::join_all;

use tokio::task::JoinError;

use kubernetes_faults::cluster::Cluster;
use kubernetes_faults::flows::FLOWS;
use kubernetes_faults::gate::{Cut, Fault};
use kubernetes_faults::proof::{Bench, Disturbance, Flow};
use kubernetes_faults::turns::TURNS;

/// The flows, or those whose name holds `BEDPLATE_FLOW`.
fn flows() -> Vec<Flow> {
    let wanted = std::env::var("BEDPLATE_FLOW").unwrap_or_default();
    let flows: Vec<Flow> =
        FLOWS.iter().chain(TURNS).filter(|flow| flow.name.contains(&wanted)).copied().collect();
    assert!(!flows.is_empty(), "no flow's name contains BEDPLATE_FLOW={wanted}");
    flows
}

/// Runs `with` for all flows concurrently. Fails after all have finished, with a list of all failures.
fn of_each<T: Send + 'static, F>(cluster: &Cluster, with: impl Fn(Flow) -> F) -> Vec<(Flow, T)>
where
    F: Future<Output = T> + Send + 'static,
{
    let all = flows().into_iter().map(|flow| (flow, cluster.runtime.spawn(with(flow))));
    let (flows, tasks): (Vec<_>, Vec<_>) = all.unzip();
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (flow, result) in flows.into_iter().zip(cluster.runtime.block_on(join_all(tasks))) {
        match result {
            Ok(result) => done.push((flow, result)),
            // The worker's own output belongs to the test that started first.
            Err(error) => failed.push(format!("{}: {}", flow.name, panic_of(error))),
        }
    }
    assert!(failed.is_empty(), "failed flows:\n{}", failed.join("\n"));
    done
}

/// Returns the panic message of a task.
fn panic_of(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "canceled".to_owned() };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

#[test]
fn controller_killed_around_any_write_of_a_flow_gives_the_same_result() {
    let bench = Bench::shared();
    let all = of_each(&bench.cluster, |flow| {
        let bench = bench.clone();
        async move { bench.kill_everywhere(flow).await }
    });
    let (mut sum, mut missed) = (0, Vec::new());
    for (flow, deaths) in all {
        sum += deaths.hit.len();
        println!("{}: {} deaths", flow.name, deaths.hit.len());
        for ((write, nth), fault) in deaths.hit {
            println!("    {fault:?} {write} ({nth})");
        }
        let of_flow = |((write, nth), fault)| format!("{}: {fault:?} {write} ({nth})", flow.name);
        missed.extend(deaths.missed.into_iter().map(of_flow));
    }
    timeline::say(&format!(
        "faults: {sum} deaths; {} points occurred in one run only: {missed:#?}",
        missed.len()
    ));
}

/// Compares the result of each flow undisturbed with that of the same flow disturbed.
fn disturbed(what: &'static str, disturbance: &Disturbance) {
    let bench = Bench::shared();
    of_each(&bench.cluster, |flow| {
        let (bench, mut disturbance) = (bench.clone(), disturbance.clone());
        async move {
            let reference = bench.undisturbed(flow).await;
            // A write that is repeated on a busy machine may happen once the next time.
            let writes = reference.writes.iter().collect::<BTreeSet<_>>().len();
            for (at, cut) in &mut disturbance.cuts {
                // A flow of one write has no second one; where writes are refused there are more.
                *at = if matches!(cut, Cut::Away(_)) { (*at).min(writes) } else { *at };
            }
            let wanted: Vec<_> = disturbance.faults.iter().map(|(_, fault)| *fault).collect();
            let run = loop {
                let run = bench.run(flow, disturbance.clone(), Some(&reference.picture)).await;
                let count = run.writes.len();
                if disturbance.cuts.iter().all(|(at, _)| *at <= count) {
                    break run;
                }
                // The undisturbed run had a write that this one did not need, so the cut did not occur.
                assert!(count > 0, "{}: no write", flow.name);
                disturbance.cuts.iter_mut().for_each(|(at, _)| *at = (*at).min(count));
            };
            let hit: Vec<_> = run.hit.iter().map(|(fault, _)| *fault).collect();
            assert_eq!(hit, wanted, "{}: {:#?}", flow.name, run.writes);
            println!("{}: {what}: {:?}", flow.name, run.hit);
        }
    });
}

#[test]
fn lost_and_refused_writes_are_repeated_and_broken_watches_restart() {
    // One after another: what is tried again meets the next. Last the one after which nothing may be left to write.
    let refused = [409, 429, 500].map(Fault::Answered);
    let faults = [Fault::Broken].into_iter().chain(refused).chain([Fault::BrokenAfter]);
    let cuts = vec![(2, Cut::Expired), (4, Cut::Broken)];
    let faults = (1..).zip(faults).collect();
    disturbed("lost and refused", &Disturbance { faults, cuts, ..Disturbance::default() });
}

#[test]
fn api_server_outage_of_20_s_in_a_flow_does_not_change_the_result() {
    let cuts = vec![(2, Cut::Away(Duration::from_secs(20)))];
    disturbed("away", &Disturbance { cuts, ..Disturbance::default() });
}

#[test]
fn two_controllers_that_both_believe_to_lead_do_no_harm() {
    disturbed("two at once", &Disturbance { rival: true, ..Disturbance::default() });
}

#[test]
fn m11_overwritten_phase_and_display_conditions_decide_nothing() {
    disturbed("overwritten", &Disturbance { vandal: true, ..Disturbance::default() });
}
