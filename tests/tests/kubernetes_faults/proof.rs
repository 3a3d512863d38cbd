//! The runs of a flow, and what they are compared with: undisturbed ones.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::Value;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinHandle;

use super::cluster::{Cluster, Scene};
use super::gate::{Cut, Fault, Gate, Point};
use super::life::Life;

/// A run that has not come to its end by then has failed; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(25);
/// Quiet time: longer than the delayed reports of a change (1 s).
const QUIET: Duration = Duration::from_millis(1200);
/// Quiet time of the reference, with which all others are compared: there, backoffs may have doubled up to their maximum (8 s).
const VERY_QUIET: Duration = Duration::from_millis(9500);
/// Number of concurrent runs.
const AT_ONCE: usize = 24;
/// No flow has as many: it would never end.
const MOST_POINTS: usize = 160;
/// Number of runs in which a write may come that does not come in every run.
const ATTEMPTS: usize = 2;

pub(crate) type Picture = BTreeMap<String, Value>;
type Act = fn(Scene) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something that the controller does by several writes.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) name: &'static str,
    /// Sets up the objects: no write here is counted.
    pub(crate) setup: Act,
    /// Actions of users, hosts and agents; ends when the expected result is there.
    pub(crate) act: Act,
    /// Writes that it cannot do without.
    pub(crate) must: &'static [&'static str],
    /// Minimum number of points at which the controller is killed. Some writes occur only in some runs.
    pub(crate) least: usize,
}

/// Points at which the controller was killed, and planned points that no later run reached.
pub(crate) struct Deaths {
    pub(crate) hit: BTreeSet<(Point, Fault)>,
    pub(crate) missed: BTreeSet<(Point, Fault)>,
}

/// Disturbance of a run.
#[derive(Default, Clone)]
pub(crate) struct Disturbance {
    pub(crate) death: Option<(Point, Fault)>,
    pub(crate) faults: Vec<(usize, Fault)>,
    pub(crate) cuts: Vec<(usize, Cut)>,
    /// A second controller that believes to lead as well.
    pub(crate) rival: bool,
    /// True if another writer overwrites the fields for display before every other write.
    pub(crate) vandal: bool,
}

pub(crate) struct Run {
    pub(crate) writes: Vec<String>,
    pub(crate) hit: Vec<(Fault, String)>,
    pub(crate) picture: Picture,
}

type Known = BTreeMap<&'static str, Arc<OnceCell<Arc<Run>>>>;

/// Runs take turns here, those of all tests.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) cluster: Arc<Cluster>,
    room: Arc<Semaphore>,
    /// Results of undisturbed flows, by their names.
    known: Arc<Mutex<Known>>,
}

impl Bench {
    pub(crate) fn shared() -> Self {
        static SHARED: OnceLock<Bench> = OnceLock::new();
        let begin = || Self {
            cluster: Cluster::shared(),
            room: Arc::new(Semaphore::new(AT_ONCE)),
            known: Arc::default(),
        };
        SHARED.get_or_init(begin).clone()
    }

    fn gate(&self, scene: &Scene) -> Arc<Gate> {
        let (controller, feeds) = (self.cluster.controller.clone(), self.cluster.feeds.clone());
        Gate::new(controller, feeds, self.cluster.runtime.handle().clone(), &scene.prefix)
    }

    /// One run. `wanted`: the end that it must reach. `None`: it has ended when nothing was written for [`VERY_QUIET`].
    pub(crate) async fn run(&self, flow: Flow, disturbance: Disturbance, wanted: Option<&Picture>) -> Run {
        let _room = self.room.acquire().await.unwrap();
        let scene = self.cluster.scene();
        let gate = self.gate(&scene);
        let life = Life::begin(&gate);
        (flow.setup)(scene.clone()).await;
        until_quiet(&gate, QUIET).await;
        let rival = disturbance.rival.then(|| {
            let gate = self.gate(&scene);
            (Life::begin(&gate), gate)
        });
        if disturbance.vandal {
            let scene = scene.clone();
            gate.before_each(Box::new(move |number| {
                let scene = scene.clone();
                Box::pin(async move { super::flows::vandalize(&scene, number).await })
            }));
        }
        gate.arm(disturbance.death.clone(), disturbance.faults.clone(), disturbance.cuts.clone());
        let gates = [&gate].into_iter().chain(rival.iter().map(|(_, gate)| gate)).cloned().collect();
        let acting = tokio::spawn((flow.act)(scene.clone()));
        let picture = self.end(flow, &scene, (life, gates), &acting, wanted).await;
        acting.await.unwrap_or_else(|error| panic!("{}: {:?}: {error}", flow.name, gate.hit()));
        drop(rival);
        scene.clear().await;
        self.cluster.feeds.forget(&scene.prefix);
        Run { writes: gate.writes(), hit: gate.hit(), picture }
    }

    /// Waits for the end of a run and returns its picture. A controller that is killed is followed by another one. The first of
    /// the gates is that of `life`.
    async fn end(
        &self,
        flow: Flow,
        scene: &Scene,
        (life, mut gates): (Life, Vec<Arc<Gate>>),
        acting: &JoinHandle<()>,
        wanted: Option<&Picture>,
    ) -> Picture {
        let gate = gates[0].clone();
        let (mut life, started) = (Some(life), Instant::now());
        let quiet = if wanted.is_some() { QUIET } else { VERY_QUIET };
        loop {
            tokio::select! {
                // Its gate lets nothing more through: another controller starts immediately.
                () = gate.dies() => {
                    drop(life.take());
                    let gate = self.gate(scene);
                    life = Some(Life::begin(&gate));
                    gates.push(gate);
                }
                () = tokio::time::sleep(LOOK) => {}
            }
            assert!(
                life.as_ref().is_none_or(|life| !life.failed.is_cancelled()),
                "{}: a task has failed",
                flow.name
            );
            let is_last = gates.iter().filter(|gate| !gate.is_closed()).all(|gate| gate.is_quiet(quiet));
            let is_late = started.elapsed() > PATIENCE;
            let is_over = acting.is_finished() && is_last;
            if !is_late && !is_over {
                continue;
            }
            let picture = scene.picture();
            if is_over && wanted.is_none_or(|wanted| *wanted == picture) {
                return picture;
            }
            if is_late {
                let why = wanted.map_or_else(String::new, |wanted| difference(wanted, &picture));
                let (hit, writes) = (gate.hit(), gates.iter().map(|gate| gate.writes()).collect::<Vec<_>>());
                panic!("{}: {hit:?}: not the end that was to come\n{why}\n{writes:#?}", flow.name);
            }
        }
    }

    /// Result of an undisturbed flow, computed once for all tests.
    pub(crate) async fn undisturbed(&self, flow: Flow) -> Arc<Run> {
        let known = self.known.lock().unwrap().entry(flow.name).or_default().clone();
        known.get_or_init(|| async { Arc::new(self.twice(flow).await) }).await.clone()
    }

    /// Twice the same, by the writes that it needs.
    async fn twice(&self, flow: Flow) -> Run {
        let (one, other) = tokio::join!(
            self.run(flow, Disturbance::default(), None),
            self.run(flow, Disturbance::default(), None)
        );
        assert!(
            one.picture == other.picture,
            "{}: by chance\n{}",
            flow.name,
            difference(&one.picture, &other.picture)
        );
        for must in flow.must {
            assert!(
                one.writes.iter().any(|write| write == must),
                "{}: no {must}: {:#?}",
                flow.name,
                one.writes
            );
        }
        one
    }

    /// Kills the controller at every write that any run of a flow has shown, before it is done and after; with where it died.
    pub(crate) async fn kill_everywhere(&self, flow: Flow) -> Deaths {
        let reference = self.undisturbed(flow).await;
        let (mut hit, mut tried) = (BTreeSet::new(), BTreeMap::new());
        let mut open = points(&reference.writes);
        while !open.is_empty() {
            assert!(tried.len() < MOST_POINTS, "{}: it writes without end: {tried:#?}", flow.name);
            let runs: Vec<_> = join_all(open.iter().cloned().map(|point| {
                let disturbance = Disturbance { death: Some(point), ..Disturbance::default() };
                self.run(flow, disturbance, Some(&reference.picture))
            }))
            .await;
            for (point, run) in std::mem::take(&mut open).into_iter().zip(runs) {
                *tried.entry(point.clone()).or_insert(0) += 1;
                if !run.hit.is_empty() {
                    hit.insert(point);
                }
                // One that comes in some runs only is tried again, and whatever a run shows that none has shown before.
                open.extend(points(&run.writes));
            }
            open.retain(|point| {
                !hit.contains(point) && tried.get(point).is_none_or(|times| *times < ATTEMPTS)
            });
        }
        for must in flow.must {
            for fault in [Fault::Unsent, Fault::Unheard] {
                let point = ((*must).to_owned(), 1);
                assert!(
                    hit.contains(&(point, fault)),
                    "{}: {fault:?} has never hit {must}: {hit:#?}",
                    flow.name
                );
            }
        }
        let missed: BTreeSet<_> = tried.into_keys().filter(|point| !hit.contains(point)).collect();
        let Flow { name, least, .. } = flow;
        assert!(
            hit.len() >= least,
            "{name}: {} points instead of {least}: {hit:#?}, missed {missed:#?}",
            hit.len()
        );
        Deaths { hit, missed }
    }
}

/// Points at which these writes can be hit.
fn points(writes: &[String]) -> BTreeSet<(Point, Fault)> {
    let mut counts = BTreeMap::new();
    let mut points = BTreeSet::new();
    for write in writes {
        let nth = counts.entry(write).or_insert(0);
        *nth += 1;
        points.insert(((write.clone(), *nth), Fault::Unsent));
        points.insert(((write.clone(), *nth), Fault::Unheard));
    }
    points
}

async fn until_quiet(gate: &Gate, time: Duration) {
    let started = Instant::now();
    while !gate.is_quiet(time) {
        assert!(started.elapsed() < PATIENCE, "it never rests: {:#?}", gate.writes());
        tokio::time::sleep(LOOK).await;
    }
}

/// Differences, as text for a user.
pub(crate) fn difference(wanted: &Picture, found: &Picture) -> String {
    let mut differences = String::new();
    let names: BTreeSet<_> = wanted.keys().chain(found.keys()).collect();
    for name in names {
        let (wanted, found) = (wanted.get(name), found.get(name));
        if wanted != found {
            let text = |object: Option<&Value>| {
                object.map_or_else(|| "absent".to_owned(), |object| format!("{object:#}"))
            };
            differences.push_str(&format!("{name}, wanted:\n{}\nfound:\n{}\n", text(wanted), text(found)));
        }
    }
    differences
}
