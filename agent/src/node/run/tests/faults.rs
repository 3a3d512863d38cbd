//! Faults that a host meets, each with the reason that a person reads (docs/concepts/node.md, "Faults").

use std::time::Duration;

use bedplate_api::machine::{NODE_CONFIGURATION, NODE_VERSION};

use super::*;
use crate::bus::{Exit, Ran};

fn ran(output: &str) -> Ran {
    Ran { exit: Exit::Code(0), output: output.to_owned(), cut: false }
}

/// The first version is the node.
async fn applied() -> World {
    let mut world = World::new();
    world.select(1);
    assert_eq!(world.settled().await, "Applied");
    world
}

#[test]
fn version_of_another_cluster_is_refused_before_the_node_stops() {
    in_runtime(async {
        let mut world = applied().await;
        world.endpoints.insert(2, "other.example:6443");
        *world.plane.compared.lock().unwrap() = Some(Compared::Other("status 401".to_owned()));
        let (asked, calls) = (world.images.asked.load(Ordering::Relaxed), world.units.calls().len());
        world.select(2);
        let paved = until_reason(&mut world, PavedReason::InvalidConfiguration).await;
        let words =
            ["kubernetes.apiServerEndpoint", "another cluster", "https://other.example:6443: status 401"];
        assert!(words.iter().all(|word| paved.message.contains(word)), "{}", paved.message);
        assert!(is_applied(&world, SlotName::A, 1) && world.runs(SlotName::A).await);
        assert_eq!(world.images.asked.load(Ordering::Relaxed), asked, "nothing is fetched");
        let since = world.units.calls().split_off(calls);
        assert!(!since.iter().any(|call| call.starts_with("stop systemd-nspawn")), "{since:?}");
        // One cluster has two names.
        *world.plane.compared.lock().unwrap() = Some(Compared::Same);
        assert_eq!(world.settled().await, "Applied");
        let prepared = world.record(SlotName::B).map(|record| record.stage);
        assert_eq!(prepared, Some(Stage::Prepared));
    });
}

#[test]
fn endpoint_that_does_not_answer_is_joined_by_the_own_authorities_alone() {
    in_runtime(async {
        let mut world = applied().await;
        world.endpoints.insert(2, "127.0.0.1:8443");
        *world.plane.compared.lock().unwrap() = Some(Compared::Unknown("refused".to_owned()));
        world.select(2);
        assert_eq!(world.settled().await, "Applied");
        let prepared = world.record(SlotName::B).map(|record| record.stage);
        assert_eq!(prepared, Some(Stage::Prepared));
    });
}

fn inside(world: &World, slot: SlotName) -> FakeUnits {
    world.machines.add(&machine(slot).parse().unwrap(), Leader::new(number(slot)).unwrap())
}

/// Turns until this is the reason of `Paved`.
async fn until_reason(world: &mut World, reason: PavedReason) -> ConditionReport<PavedReason> {
    let mut agent = world.agent();
    for _ in 0..100 {
        world.react().await;
        agent.advance().await;
        let paved = world.plane.reported.lock().unwrap().last().and_then(|reported| reported.paved.clone());
        if let Some(paved) = paved.filter(|paved| paved.reason == reason) {
            return paved;
        }
    }
    panic!("never {reason}: {:?}", agent.standing);
}

#[test]
fn log_of_an_unhealthy_kubelet_is_in_the_reason_without_tokens() {
    in_runtime(async {
        let mut world = applied().await;
        world.delete_node(2);
        let ill = "no answer at 127.0.0.1:10248: Connection refused";
        *world.gate.kubelet_ill.lock().unwrap() = Some(ill.to_owned());
        let kubelet = inside(&world, SlotName::B);
        kubelet.command_ends(ran(
            "E1122 06:56:12.123456    1234 run.go:72] \"command failed\" err=\"unknown flag: --color\" token=\"abcdef.0123456789abcdef\"\n",
        ));
        let mut agent = world.agent();
        while world.reported().rolled_back.is_none() {
            world.react().await;
            agent.advance().await;
            agent.attempts = Attempts::default();
            // kubeadm has ended, and the time of the gate is over.
            if world.parts.slots.has_mark(SlotName::B, unit::FINISHED)
                && let Some(mut record) = world.record(SlotName::B)
                && let Stage::Trial { since, .. } = &mut record.stage
            {
                *since = Timestamp::now() - jiff::SignedDuration::from_secs(601);
                world.parts.slots.write_record(SlotName::B, &record).unwrap();
            }
        }
        let reason = world.reported().rolled_back.unwrap().message;
        assert_eq!(
            reason,
            format!(
                "the kubelet is not healthy: {ill}\n    \"command failed\" err=\"unknown flag: --color\" token=\"[hidden]\""
            )
        );
        let calls = kubelet.calls();
        assert!(calls.iter().any(|call| call.ends_with("--unit kubelet.service")), "{calls:?}");
        *world.gate.kubelet_ill.lock().unwrap() = None;
        assert_eq!(world.settled().await, "VersionRejected");
        let paved = world.reported().paved.unwrap();
        assert!(paved.message.contains("unknown flag: --color"), "{}", paved.message);
    });
}

#[test]
fn reason_is_the_kubelets_log_before_kubeadm_has_output() {
    in_runtime(async {
        let mut world = applied().await;
        world.delete_node(2);
        let slot = inside(&world, SlotName::B);
        slot.set(&unit::NAME.parse().unwrap(), unit_state(ActiveState::Activating, "start"));
        slot.command_ends(ran(
            "Started kubelet.service - k.\nopen /etc/kubernetes/pki/ca.crt: no such file\n",
        ));
        let mut agent = world.agent();
        while world.reported().rolled_back.is_none() {
            let runs = world.runs(SlotName::B).await;
            if !runs {
                world.react().await;
            }
            agent.advance().await;
            agent.attempts = Attempts::default();
            if runs
                && let Some(mut record) = world.record(SlotName::B)
                && let Stage::Trial { since, .. } = &mut record.stage
            {
                let log = world.parts.slots.places().kept(SlotName::B, "log").join("bedplate");
                std::fs::create_dir_all(&log).unwrap();
                let first = format!("{}2026-11-22T08:00:00Z\n", unit::STARTED);
                std::fs::write(log.join("kubeadm.log"), first).unwrap();
                *since = Timestamp::now() - jiff::SignedDuration::from_secs(601);
                world.parts.slots.write_record(SlotName::B, &record).unwrap();
            }
        }
        let reason = world.reported().rolled_back.unwrap().message;
        assert_eq!(reason, "kubeadm has not finished\n    open /etc/kubernetes/pki/ca.crt: no such file");
        let calls = slot.calls();
        assert!(calls.iter().any(|call| call.ends_with("--unit kubelet.service")), "{calls:?}");
    });
}

#[test]
fn full_disk_is_reported_and_keeps_the_running_node() {
    in_runtime(async {
        let mut world = applied().await;
        // The first time, the half slot goes to the trash, and the version is fetched again when that is empty.
        fails_for_want_of_room(&world);
        fails_for_want_of_room(&world);
        world.select(2);
        let removal = trash::serve(
            world.parts.slots.clone(),
            Arc::default(),
            Pulse::unwatched(),
            CancellationToken::new(),
        );
        let reported = tokio::select! {
            () = removal => unreachable!("the removal runs until it is dropped"),
            reported = until_reason(&mut world, PavedReason::InsufficientSpace) => reported,
        };
        assert!(reported.message.contains("are needed and 1048576 are free"), "{}", reported.message);
        assert!(is_applied(&world, SlotName::A, 1) && world.runs(SlotName::A).await);
        assert_eq!((reported.status, world.record(SlotName::B)), (Truth::True, None));
        assert!(!world.parts.slots.places().upper(SlotName::B).exists());
        // A user frees disk space.
        assert_eq!(world.settled().await, "Applied");
        assert!(world.record(SlotName::B).is_some());
    });
}

fn fails_for_want_of_room(world: &World) {
    world.images.fails.lock().unwrap().push_back(EnsureNodeImageError::NoRoom {
        image: "r.example/node".to_owned(),
        path: "/var/lib/bedplate/layers".into(),
        needed: 3 << 30,
        free: 1 << 20,
    });
}

#[test]
fn filling_waits_for_the_room_that_former_contents_take() {
    const SAID: &str = "waiting until former contents of the slots are removed";
    in_runtime(async {
        let mut world = applied().await;
        let (slots, plane) = (world.parts.slots.clone(), world.plane.clone());
        let trash = slots.places().trash(SlotName::B);
        std::fs::create_dir_all(trash.join("0/upper")).unwrap();
        fails_for_want_of_room(&world);
        let asked_before = world.images.asked.load(Ordering::Relaxed);
        world.select(2);
        let said = |text: &str| {
            let reported = plane.reported.lock().unwrap();
            reported
                .iter()
                .flat_map(|reported| &reported.paved)
                .any(|paved| paved.message.contains(text) || paved.reason.as_str() == text)
        };
        let removal = async {
            while !said(SAID) {
                tokio::task::yield_now().await;
            }
            trash::serve(slots.clone(), Arc::default(), Pulse::unwatched(), CancellationToken::new()).await;
        };
        tokio::select! {
            () = removal => {}
            rests = world.settled() => assert_eq!(rests, "Applied"),
        }
        assert!(said(SAID) && !said("InsufficientSpace"));
        assert_eq!(world.record(SlotName::B).unwrap().stage, Stage::Prepared);
        assert_eq!(world.images.asked.load(Ordering::Relaxed), asked_before + 2);
    });
}

#[test]
fn logs_of_failed_trials_make_room_for_a_slot() {
    const SAID: &str = "waiting until former contents of the slots are removed";
    in_runtime(async {
        let mut world = applied().await;
        let (slots, plane) = (world.parts.slots.clone(), world.plane.clone());
        let logs = SlotName::ALL.map(|slot| slots.places().failed_log(slot));
        for log in &logs {
            std::fs::create_dir_all(log.join("pods")).unwrap();
        }
        fails_for_want_of_room(&world);
        world.select(2);
        let said = |text: &str| {
            let reported = plane.reported.lock().unwrap();
            reported
                .iter()
                .flat_map(|reported| &reported.paved)
                .any(|paved| paved.message.contains(text) || paved.reason.as_str() == text)
        };
        let removal = async {
            while !said(SAID) {
                tokio::task::yield_now().await;
            }
            trash::serve(slots.clone(), Arc::default(), Pulse::unwatched(), CancellationToken::new()).await;
        };
        tokio::select! {
            () = removal => {}
            rests = world.settled() => assert_eq!(rests, "Applied"),
        }
        assert!(said(SAID) && !said("InsufficientSpace"));
        assert_eq!(world.record(SlotName::B).unwrap().stage, Stage::Prepared);
        assert!(!logs.iter().any(|log| log.exists()));
    });
}

#[test]
fn slot_waits_for_room_although_something_older_is_stuck() {
    const SAID: &str = "waiting until former contents of the slots are removed";
    in_runtime(async {
        let mut world = applied().await;
        let (slots, plane) = (world.parts.slots.clone(), world.plane.clone());
        slots.trash().finished(slots.trash().put(), Some("cannot remove something older".to_owned()));
        std::fs::create_dir_all(slots.places().slot(SlotName::B).join("upper")).unwrap();
        slots.clear(SlotName::B).unwrap();
        fails_for_want_of_room(&world);
        world.select(2);
        let said = |text: &str| {
            let reported = plane.reported.lock().unwrap();
            reported
                .iter()
                .flat_map(|reported| &reported.paved)
                .any(|paved| paved.message.contains(text) || paved.reason.as_str() == text)
        };
        let removal = async {
            while !said(SAID) {
                tokio::task::yield_now().await;
            }
            trash::serve(slots.clone(), Arc::default(), Pulse::unwatched(), CancellationToken::new()).await;
        };
        tokio::select! {
            () = removal => {}
            rests = world.settled() => assert_eq!(rests, "Applied"),
        }
        assert!(said(SAID) && !said("InsufficientSpace"));
        assert_eq!(world.record(SlotName::B).unwrap().stage, Stage::Prepared);
    });
}

#[test]
fn unremovable_former_contents_are_reported_and_delay_nothing() {
    in_runtime(async {
        let mut world = applied().await;
        let slots = world.parts.slots.clone();
        std::fs::create_dir_all(slots.places().trash(SlotName::B).join("0/volume")).unwrap();
        let stuck = "cannot remove /var/lib/bedplate/trash/b/0/volume; unmount the file system there";
        slots.trash().finished(slots.trash().put(), Some(stuck.to_owned()));
        fails_for_want_of_room(&world);
        fails_for_want_of_room(&world);
        world.select(2);
        let rounds = async {
            loop {
                slots.trash().more().await;
                slots.trash().finished(slots.trash().put(), Some(stuck.to_owned()));
            }
        };
        let reported = tokio::select! {
            () = rounds => unreachable!("rounds go on until they are dropped"),
            reported = until_reason(&mut world, PavedReason::InsufficientSpace) => reported,
        };
        assert!(reported.message.contains("are needed and 1048576 are free"), "{}", reported.message);
        assert!(reported.message.contains(stuck), "{}", reported.message);
        assert_eq!(world.settled().await, "Applied");
        assert_eq!(world.record(SlotName::B).unwrap().stage, Stage::Prepared);
        let reported = world.reported().paved.unwrap();
        assert_eq!((reported.status, reported.reason), (Truth::True, PavedReason::Applied));
        assert!(reported.message.contains(stuck), "{}", reported.message);
    });
}

#[test]
fn slot_with_a_tree_of_5000_levels_is_filled_again_and_the_tree_removed() {
    in_runtime(async {
        let mut world = applied().await;
        let pods = world.parts.slots.places().kept(SlotName::A, "containerd");
        let mut directory = std::fs::File::open(&pods).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&directory, "d", rustix::fs::Mode::RWXU).unwrap();
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
            let below = rustix::fs::openat(&directory, "d", flags, rustix::fs::Mode::empty());
            directory = below.unwrap().into();
        }
        drop(directory);
        world.delete_node(2);
        assert_eq!(world.settled().await, "Applied");
        assert!(is_applied(&world, SlotName::B, 2));
        world.delete_node(3);
        assert_eq!(world.settled().await, "Applied");
        assert!(is_applied(&world, SlotName::A, 3));
        trash::remove(&world.parts.slots, &Beat::unwatched()).await;
        assert!(!world.parts.slots.has_trash(SlotName::A).unwrap());
    });
}

#[test]
fn disk_that_fills_up_while_a_slot_is_filled_is_insufficient_space() {
    use crate::node::apply::ApplyError;
    use crate::slot::confined_writer::WriteInsideError;
    use crate::slot::store::KeepSlotError;
    use bedplate_process::file::FileError;
    let full = |code| {
        let source = std::io::Error::from_raw_os_error(code);
        ApplyError::Slot(WriteInsideError::Act { act: "write", path: "/etc/a".to_owned(), source }.into())
    };
    assert_eq!(full(28).reason(), Some(PavedReason::InsufficientSpace));
    assert_eq!(full(5).reason(), Some(PavedReason::DiskError));
    assert!(crate::fault::explained(&full(28)).contains("a (larger) state disk"));
    let path = "/var/lib/bedplate/slots/b/filled.json".into();
    let source = std::io::Error::from_raw_os_error(28);
    assert_eq!(
        ApplyError::Slot(KeepSlotError::File(FileError { action: "write", path, source })).reason(),
        Some(PavedReason::InsufficientSpace)
    );
}

#[test]
fn unreachable_registry_is_reported_and_disturbs_no_node() {
    in_runtime(async {
        let mut world = applied().await;
        world.images.fails.lock().unwrap().push_back(EnsureNodeImageError::Unreachable {
            image: "r.example/node".to_owned(),
            what: "the manifest".to_owned(),
            attempts: 5,
            problem: "dns error: failed to lookup address information".to_owned(),
        });
        world.select(2);
        let reported = until_reason(&mut world, PavedReason::ImageUnavailable).await;
        assert!(reported.message.contains("after 5 tries"), "{}", reported.message);
        assert!(reported.message.contains("/etc/resolv.conf"), "{}", reported.message);
        assert!(is_applied(&world, SlotName::A, 1) && world.runs(SlotName::A).await);
        assert_eq!(world.settled().await, "Applied");
    });
}

#[test]
fn an_api_server_that_is_gone_stops_nothing_and_begins_nothing() {
    in_runtime(async {
        let mut world = applied().await;
        world.plane.seen.send_modify(|seen| seen.api = Api::Away);
        world.delete_node(2);
        let before = world.units.calls();
        assert_eq!(world.settled().await, "Applied");
        assert!(world.runs(SlotName::A).await);
        assert_eq!(world.units.calls(), before);
        world.plane.seen.send_modify(|seen| seen.api = Api::Live);
        assert_eq!(world.settled().await, "Applied");
        assert!(is_applied(&world, SlotName::B, 2), "it is back, and the repave is made");
    });
}

#[test]
fn the_versions_annotations_are_written_once_to_the_node_that_is_applied() {
    in_runtime(async {
        let world = applied().await;
        let edits = world.node.annotations.lock().unwrap().clone();
        assert_eq!(edits.len(), 1, "{edits:?}");
        assert_eq!(edits[0].set["example.com/row"], "7");
    });
}

#[test]
fn h5_without_a_cluster_the_agent_names_the_version_on_its_node() {
    in_runtime(async {
        let mut world = applied().await;
        let written = |world: &World| -> Vec<(Option<String>, Option<String>)> {
            let edits = world.node.annotations.lock().unwrap();
            let value = |edit: &Edit, name: &str| edit.set.get(name).cloned();
            edits.iter().map(|edit| (value(edit, NODE_CONFIGURATION), value(edit, NODE_VERSION))).collect()
        };
        let named = |version: &str| (Some("workers".to_owned()), Some(version.to_owned()));
        assert_eq!(written(&world), [(None, None)], "in a cluster the controller does");
        world.plane.standalone.store(true, Ordering::Relaxed);
        assert_eq!(world.settled().await, "Applied");
        assert_eq!(world.settled().await, "Applied");
        assert_eq!(written(&world), [(None, None), named("1")], "once");
        // An applyConfiguration that disturbs nothing has changed the version in the slot.
        let mut record = world.record(SlotName::A).unwrap();
        record.version.version = 3;
        world.parts.slots.write_record(SlotName::A, &record).unwrap();
        assert_eq!(world.settled().await, "Applied");
        assert_eq!(written(&world).last(), Some(&named("3")));
    });
}

/// A kubelet's certificate with its key that ends in this year.
fn kubelet_certificate(year: i32) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    params.self_signed(&key).unwrap().pem() + &key.serialize_pem()
}

#[test]
fn trust_5_expired_kubelet_certificate_is_renewed_by_the_agent() {
    in_runtime(async {
        let world = applied().await;
        let pki = world.parts.slots.places().kept(SlotName::A, "kubelet").join("pki");
        let current = pki.join("kubelet-client-current.pem");
        std::fs::create_dir_all(&pki).unwrap();
        std::fs::write(&current, kubelet_certificate(2020)).unwrap();
        let root = world.parts.root.join("proc/100/root");
        std::fs::create_dir_all(root.join("etc/kubernetes")).unwrap();
        let uid = world.node_uid().unwrap();
        let node = json!({ "metadata": { "name": "node-1", "uid": uid },
            "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
        let node: Node = serde_json::from_value(node).unwrap();
        world.plane.seen.send_modify(|seen| seen.node = NodeState::Present(Arc::new(node)));
        let (units, shared) = (inside(&world, SlotName::A), world.parts.slots.places().shared(SlotName::A));
        let given = shared.join("kubelet-bootstrap.conf");
        let link = root.join("etc/kubernetes/bootstrap-kubelet.conf");
        let kubelet = async {
            let started = Instant::now();
            while !units.calls().contains(&"restart kubelet.service".to_owned()) {
                assert!(started.elapsed() < Duration::from_secs(30), "the kubelet is not restarted");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let kubeconfig = std::fs::read_to_string(&given).unwrap();
            assert!(kubeconfig.contains("https://k.example:6443"));
            assert_eq!(certificates::identity(&kubeconfig), "O=system:nodes, CN=system:node:node-1");
            assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("/run/bedplate/kubelet-bootstrap.conf"));
            std::fs::write(&current, kubelet_certificate(2090)).unwrap();
        };
        let mut agent = world.agent();
        tokio::join!(agent.advance(), kubelet);
        let reported = world.reported().paved.unwrap();
        assert_eq!(reported.reason, PavedReason::KubeletCertificateExpired);
        assert!(reported.message.contains("kubelet certificate expired"), "{}", reported.message);
        assert!(!given.exists() && !link.is_symlink(), "the key is not left there");
        assert!(!world.parts.slots.places().kubelet_key(SlotName::A).exists());
        assert_eq!(world.plane.requests.names().len(), 2, "one for the join, one for the renewal");
        agent.advance().await;
        assert_eq!(world.reported().paved.unwrap().reason, PavedReason::Applied);
    });
}

#[test]
fn standalone_kubelet_with_an_expired_certificate_joins_again() {
    in_runtime(async {
        let world = applied().await;
        let slots = &world.parts.slots;
        let pki = slots.places().kept(SlotName::A, "kubelet").join("pki");
        std::fs::create_dir_all(&pki).unwrap();
        std::fs::write(pki.join("kubelet-client-current.pem"), kubelet_certificate(2020)).unwrap();
        let mut filled = slots.filled(SlotName::A).unwrap().unwrap();
        let path = "/etc/kubernetes/join.conf";
        filled.template.kubernetes.join_configuration =
            Some(json!({ "discovery": { "file": { "kubeConfigPath": path } } }));
        slots.write_filled(SlotName::A, &filled).unwrap();
        world.plane.standalone.store(true, Ordering::Relaxed);
        world.plane.seen.send_modify(|seen| seen.api = Api::Away);
        let root = world.parts.root.join("proc/100/root/etc/kubernetes");
        std::fs::create_dir_all(&root).unwrap();
        let mut agent = world.agent();
        agent.advance().await;
        let reported = world.reported().paved.unwrap();
        assert_eq!((reported.status, reported.reason), (Truth::True, PavedReason::KubeletCertificateExpired));
        assert!(
            reported.message.contains("/etc/kubernetes/join.conf is missing; docs/concepts/node.md"),
            "{}",
            reported.message
        );

        std::fs::write(root.join("join.conf"), "kind: Config # of the version's Secret").unwrap();
        let given = slots.places().shared(SlotName::A).join("kubelet-bootstrap.conf");
        let units = inside(&world, SlotName::A);
        let kubelet = async {
            let started = Instant::now();
            while !units.calls().contains(&"restart kubelet.service".to_owned()) {
                assert!(started.elapsed() < Duration::from_secs(30), "the kubelet is not restarted");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(std::fs::read_to_string(&given).unwrap().contains("of the version's Secret"));
            std::fs::write(pki.join("kubelet-client-current.pem"), kubelet_certificate(2090)).unwrap();
        };
        agent.attempts = Attempts::default();
        tokio::join!(agent.advance(), kubelet);
        assert!(!given.exists() && !root.join("bootstrap-kubelet.conf").is_symlink());
        agent.advance().await;
        assert_eq!(world.reported().paved.unwrap().reason, PavedReason::Applied);
    });
}

#[test]
fn key_that_a_killed_agent_left_in_a_slot_is_deleted_by_the_next() {
    in_runtime(async {
        let world = applied().await;
        let left =
            SlotName::ALL.map(|slot| world.parts.slots.places().shared(slot).join("kubelet-bootstrap.conf"));
        for path in &left {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "KEY").unwrap();
        }
        let shutdown = CancellationToken::new();
        let gone = async {
            while left.iter().any(|path| path.exists()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            shutdown.cancel();
        };
        let both = async { tokio::join!(world.agent().run(Pulse::unwatched(), shutdown.clone()), gone) };
        tokio::time::timeout(Duration::from_secs(30), both).await.expect("it is taken back");
    });
}
