//! Every interleaving of two processes that act on the KubeadmConfigs of two machines of a new control plane.
//!
//! A process may act on views that are behind, and may end after each step. Machine `a` may be deleted. The steps are those of the planner;
//! the model carries them out as the API server does: creation by name, deletion by UID, a status by resource version.

use std::collections::{HashMap, HashSet};

use bedplate_bootstrap::capi::CertificatePurpose;
use serde_json::json;

use super::super::lock::Held;
use super::tests::{PURPOSES, certificate, observed};
use super::*;

/// Maximum number of locks that are created one after another.
const MAX_LOCKS: u8 = 3;

/// Names of the machines.
const NAMES: [&str; 2] = ["a", "b"];

/// State that watches show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct View {
    is_initialized: bool,
    exists: [bool; 2],
    is_stored: [bool; 2],
    /// Number of the recorded token. 0: none.
    token: [u8; 2],
}

/// Bootstrap data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Issued {
    Init,
    Join,
    Foreign,
}

/// State of the API servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Truth {
    view: View,
    /// Machine that holds the lock, and number of the lock.
    lock: Option<(usize, u8)>,
    locks: u8,
    /// Certificates that exist, by their place in [`PURPOSES`].
    certificates: [bool; 4],
    data: [Option<Issued>; 2],
    /// Tokens that exist: by machine and number.
    tokens: [[bool; 3]; 2],
}

/// Objects that a turn has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Seen {
    data: Option<Option<bool>>,
    lock: Option<Option<(usize, u8)>>,
    holder: Option<bool>,
    may_init: Option<bool>,
    certificates: [Option<bool>; 4],
    token: Option<Token3>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Token3 {
    Absent,
    There,
    Made,
}

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Process {
    view: View,
    turn: Option<(usize, Seen)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    truth: Truth,
    processes: [Process; 2],
}

/// A step without its data.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Done,
    Read(Read),
    TakeLock,
    ReleaseLock(u8),
    Make(usize),
    RecordToken,
    MakeToken,
    Store(Issued),
    Stored,
}

/// The planner, asked once for each input.
#[derive(Default)]
struct Planner(HashMap<(View, usize, Seen), Step>);

impl Planner {
    fn step(&mut self, view: View, machine: usize, seen: Seen) -> Step {
        let make = || step(&inputs(view, machine, seen));
        self.0.entry((view, machine, seen)).or_insert_with(make).clone()
    }
}

fn place(purpose: CertificatePurpose) -> usize {
    PURPOSES.iter().position(|one| *one == purpose).unwrap()
}

fn id(machine: usize, number: u8) -> String {
    format!("{}bcde{number}", NAMES[machine])
}

fn inputs(view: View, machine: usize, seen: Seen) -> Observed {
    let annotations = match view.token[machine] {
        0 => json!({}),
        number => json!({ TOKEN_ID_ANNOTATION: id(machine, number) }),
    };
    let status = view.is_stored[machine]
        .then(|| json!({ "dataSecretName": "x", "initialization": { "dataSecretCreated": true } }));
    let labels = json!({ "cluster.x-k8s.io/control-plane": "" });
    let mut observed = observed(
        json!({ "metadata": { "annotations": annotations }, "status": status }),
        json!({ "metadata": { "name": NAMES[machine], "labels": labels } }),
        json!({ "status": { "initialization": { "controlPlaneInitialized": view.is_initialized } } }),
    );
    let held = |(machine, number): (usize, u8)| {
        Lock::Held(Held {
            machine: NAMES[machine].to_owned(),
            machine_uid: None,
            cluster_uid: Some("c".to_owned()),
            uid: Some(number.to_string()),
        })
    };
    let live = &mut observed.live;
    live.data = seen.data.map(|data| match data {
        None => Data::Absent,
        Some(true) => Data::Own,
        Some(false) => Data::Foreign,
    });
    live.lock = seen.lock.map(|lock| lock.map_or(Lock::Free, held));
    (live.holder_exists, live.may_init) = (seen.holder, seen.may_init);
    for (purpose, state) in PURPOSES.into_iter().zip(seen.certificates) {
        let state = state.map(|exists| if exists { certificate(purpose) } else { Found::Absent });
        live.certificates.extend(state.map(|state| (purpose, state)));
    }
    live.token = seen.token.map(|token| match token {
        Token3::Absent => TokenState::Absent,
        Token3::There => TokenState::There(Some("2026-01-01T00:14:30Z".to_owned())),
        Token3::Made => TokenState::Made(Token::parse("abcdef.0123456789abcdef").unwrap()),
    });
    observed
}

fn step(observed: &Observed) -> Step {
    match plan(observed, "2026-01-01T00:00:00Z".parse().unwrap()) {
        Act::Done(_) => Step::Done,
        Act::Read(read) => Step::Read(read),
        Act::TakeLock => Step::TakeLock,
        Act::ReleaseLock(held) => Step::ReleaseLock(held.uid.unwrap().parse().unwrap()),
        Act::MakeCertificate(purpose) => Step::Make(place(purpose)),
        Act::RecordToken => Step::RecordToken,
        Act::MakeToken(_) => Step::MakeToken,
        Act::RenewToken(_) => panic!("the token is fresh"),
        Act::Store(data) if data.text.contains("kubeadm init --config") => Step::Store(Issued::Init),
        Act::Store(_) => Step::Store(Issued::Join),
        Act::Status(_, Situation::Stored(_)) => Step::Stored,
        Act::Status(..) => Step::Done,
    }
}

/// Carries out the next step of a turn. Reads of certificates, which are never deleted, are one step.
fn advance(truth: &mut Truth, process: &mut Process, planner: &mut Planner) {
    let Some((machine, mut seen)) = process.turn else { return };
    let view = process.view;
    let mut next = planner.step(view, machine, seen);
    while let Step::Read(Read::Certificate(purpose)) = next {
        seen.certificates[place(purpose)] = Some(truth.certificates[place(purpose)]);
        next = planner.step(view, machine, seen);
    }
    let is_fresh = view.is_stored[machine] == truth.view.is_stored[machine]
        && view.token[machine] == truth.view.token[machine]
        && truth.view.exists[machine];
    process.turn = Some((machine, seen));
    let seen = &mut process.turn.as_mut().unwrap().1;
    let ends = match next {
        Step::Done => true,
        Step::Read(read) => {
            observe(truth, (machine, &view), seen, &read);
            false
        }
        // The model ends there: further locks are as the ones before.
        Step::TakeLock if truth.locks == MAX_LOCKS => true,
        Step::TakeLock => {
            if truth.lock.is_none() {
                truth.locks += 1;
                truth.lock = Some((machine, truth.locks));
                seen.lock = Some(truth.lock);
            } else {
                seen.lock = None;
            }
            false
        }
        Step::ReleaseLock(number) => {
            if truth.lock.is_some_and(|(_, held)| held == number) {
                truth.lock = None;
            }
            (seen.lock, seen.holder) = (None, None);
            false
        }
        Step::Make(place) => {
            assert!(!truth.view.is_initialized || truth.certificates[place], "k7: made after initialization");
            truth.certificates[place] = true;
            seen.certificates[place] = None;
            false
        }
        Step::RecordToken => {
            if is_fresh && truth.view.token[machine] < 2 {
                truth.view.token[machine] += 1;
            }
            true
        }
        Step::MakeToken => {
            let exists = &mut truth.tokens[machine][usize::from(view.token[machine])];
            seen.token = Some(if *exists { Token3::There } else { Token3::Made });
            if *exists {
                seen.data = None;
            }
            *exists = true;
            false
        }
        Step::Store(issued) => {
            store(truth, machine, issued);
            seen.data = None;
            // The Secret of a deleted KubeadmConfig is collected.
            !truth.view.exists[machine]
        }
        Step::Stored => {
            if is_fresh {
                truth.view.is_stored[machine] = true;
            }
            true
        }
    };
    if ends {
        process.turn = None;
    }
}

fn observe(truth: &Truth, (machine, view): (usize, &View), seen: &mut Seen, read: &Read) {
    match read {
        Read::Data => {
            seen.data = Some(truth.data[machine].map(|issued| issued != Issued::Foreign));
        }
        Read::Lock => seen.lock = Some(truth.lock),
        Read::Holder(held) => {
            let holder = NAMES.iter().position(|one| *one == held.machine).unwrap();
            seen.holder = Some(truth.view.exists[holder]);
        }
        Read::Cluster => seen.may_init = Some(!truth.view.is_initialized),
        Read::Token(_) => {
            let exists = truth.tokens[machine][usize::from(view.token[machine])];
            seen.token = Some(if exists { Token3::There } else { Token3::Absent });
        }
        Read::Contents | Read::Certificate(_) => unreachable!("read elsewhere"),
    }
}

/// Creates the Secret, if there is none of the name, and checks that one machine initializes the cluster.
fn store(truth: &mut Truth, machine: usize, issued: Issued) {
    if !truth.view.exists[machine] || truth.data[machine].is_some() {
        return;
    }
    truth.data[machine] = Some(issued);
    let inits = truth.data.iter().filter(|data| **data == Some(Issued::Init)).count();
    assert!(inits <= 1, "kb9: two machines initialize: {truth:?}");
    assert!(issued != Issued::Init || !truth.view.is_initialized, "kb9: initialized again: {truth:?}");
    assert!(issued != Issued::Init || truth.certificates == [true; 4], "b3: incomplete: {truth:?}");
    assert!(issued != Issued::Join || truth.view.is_initialized, "kb9: joins too early: {truth:?}");
}

/// Returns the states that follow a state.
fn successors(state: State, planner: &mut Planner) -> Vec<State> {
    let mut found = Vec::new();
    let mut push = |change: &mut dyn FnMut(&mut State)| {
        let mut next = state;
        change(&mut next);
        if next != state {
            found.push(next);
        }
    };
    for at in 0..state.processes.len() {
        push(&mut |next| {
            let mut process = next.processes[at];
            advance(&mut next.truth, &mut process, planner);
            next.processes[at] = process;
        });
        if state.processes[at].turn.is_some() {
            // The process ends; its successor starts with a view that may be behind too.
            push(&mut |next| next.processes[at].turn = None);
            continue;
        }
        push(&mut |next| next.processes[at].view = state.truth.view);
        for machine in 0..NAMES.len() {
            if state.processes[at].view.exists[machine] {
                push(&mut |next| next.processes[at].turn = Some((machine, Seen::default())));
            }
        }
    }
    let initializes =
        |machine: usize| state.truth.view.exists[machine] && state.truth.data[machine] == Some(Issued::Init);
    if (0..NAMES.len()).any(initializes) {
        push(&mut |next| next.truth.view.is_initialized = true);
    }
    push(&mut |next| {
        next.truth.view.exists[0] = false;
        next.truth.data[0] = None;
    });
    found
}

fn start(foreign: bool) -> State {
    let view = View { is_initialized: false, exists: [true; 2], is_stored: [false; 2], token: [0; 2] };
    let truth = Truth {
        view,
        lock: None,
        locks: 0,
        // Two are there: each more is made as the others are.
        certificates: [false, true, true, false],
        data: [None, foreign.then_some(Issued::Foreign)],
        tokens: [[false; 3]; 2],
    };
    State { truth, processes: [Process { view, turn: None }; 2] }
}

/// Visits every state, and checks that data never changes.
fn explore(start: State) -> HashSet<State> {
    let (mut planner, mut known, mut open) = (Planner::default(), HashSet::from([start]), vec![start]);
    while let Some(state) = open.pop() {
        for next in successors(state, &mut planner) {
            for machine in 0..NAMES.len() {
                let (before, after) = (state.truth.data[machine], next.truth.data[machine]);
                let is_deleted = !next.truth.view.exists[machine];
                assert!(before.is_none() || before == after || is_deleted, "data replaced: {next:?}");
            }
            if known.insert(next) {
                open.push(next);
            }
        }
    }
    known
}

#[test]
fn kb9_one_machine_initializes_under_every_interleaving() {
    let known = explore(start(false));
    // The checks of each store hold for all states. Both machines get their data in some of them.
    let is_joined = |state: &State| {
        let Truth { view, data, .. } = state.truth;
        view.is_stored == [true; 2] && data == [Some(Issued::Init), Some(Issued::Join)]
    };
    assert!(known.iter().any(is_joined), "no machine joins");
    assert!(known.iter().all(|state| !is_joined(state) || state.truth.view.is_initialized));
    assert!(
        known.iter().any(|state| state.truth.data[1] == Some(Issued::Init) && !state.truth.view.exists[0])
    );
}

#[test]
fn b1_foreign_secret_is_never_replaced() {
    let known = explore(start(true));
    assert!(known.iter().all(|state| state.truth.data[1] == Some(Issued::Foreign)));
    assert!(known.iter().all(|state| !state.truth.view.is_stored[1]));
}
