//! Trials next to a node, interrupted by other events.

use bedplate_api::configuration::NodeRole;

use super::*;

/// The first version is the node, and the second one lies ready.
async fn prepared() -> World {
    let mut world = World::new();
    world.select(1);
    assert_eq!(world.settled().await, "Applied");
    world.select(2);
    assert_eq!(world.settled().await, "Applied");
    world
}

async fn apply_step(world: &World, step: &Step) -> Result<(), ApplyError> {
    let now = Timestamp::now();
    let sight = observe(&world.parts, None, now).await.unwrap();
    apply_confirmed(&world.parts, step, &sight, now, &CancellationToken::new(), &|_| ()).await
}

#[test]
fn trial_starts_only_if_it_is_still_planned() {
    type Change = fn(&mut Seen);
    in_runtime(async {
        let world = prepared().await;
        let changes: [(&str, Change); 3] = [
            ("the watch broke", |seen| seen.api = Api::Away),
            ("the watch starts again", |seen| seen.node = NodeState::Unknown),
            ("another Machine has the name", |seen| seen.ours = false),
        ];
        let step = Step { slot: SlotName::B, act: Act::BeginTrial };
        for (what, change) in changes {
            world.delete_node(2);
            world.plane.seen.send_modify(change);
            let result = apply_step(&world, &step).await;
            assert!(matches!(result, Err(ApplyError::Superseded(_))), "{what}: {result:?}");
            world.plane.seen.send_modify(|seen| (seen.api, seen.ours) = (Api::Live, true));
        }
        world.delete_node(2);
        apply_step(&world, &step).await.unwrap();
        assert!(matches!(world.record(SlotName::B).unwrap().stage, Stage::Trial { boots: 0, .. }));
    });
}

#[test]
fn a_version_that_has_passed_is_not_refused_whatever_a_killed_agent_left() {
    in_runtime(async {
        let world = prepared().await;
        let mut ledger = world.parts.slots.ledger().unwrap();
        let other = VersionRef { name: "workers".to_owned(), version: 9 };
        ledger.refused = vec![world.record(SlotName::A).unwrap().version, other.clone()];
        world.parts.slots.write_ledger(&ledger).unwrap();
        let node_uid = world.node_uid().unwrap();
        let commit = Step { slot: SlotName::A, act: Act::Commit { node_uid } };
        apply_step(&world, &commit).await.unwrap();
        assert_eq!(world.parts.slots.ledger().unwrap().refused, [other]);
    });
}

#[test]
fn a_trial_that_is_held_is_not_looked_at_again_and_again() {
    in_runtime(async {
        let world = prepared().await;
        world.delete_node(2);
        let mut agent = world.agent();
        assert_eq!(agent.advance().await, Pause::None);
        assert!(matches!(world.record(SlotName::B).unwrap().stage, Stage::Trial { .. }));
        world.plane.seen.send_modify(|seen| {
            let mut machine = Machine::clone(seen.machine.as_ref().unwrap());
            machine.spec.paused = true;
            seen.machine = Some(Arc::new(machine));
        });
        assert_eq!(agent.advance().await, Pause::Open);
        assert_eq!(world.reported().paved.unwrap().reason, PavedReason::Paused);
        assert!(world.runs(SlotName::A).await, "the former slot serves on");
    });
}

#[test]
fn a_node_that_ends_while_an_image_is_fetched_is_started_at_once() {
    in_runtime(async {
        let world = prepared().await;
        world.images.hangs.store(true, Ordering::Relaxed);
        let asked = world.images.asked.load(Ordering::Relaxed);
        world.select(3);
        let mut agent = world.agent();
        let end = async {
            while world.images.asked.load(Ordering::Relaxed) == asked {
                tokio::task::yield_now().await;
            }
            let unit: UnitName = service(SlotName::A).parse().unwrap();
            world.units.set(&unit, unit_state(ActiveState::Failed, "failed"));
        };
        let both = async { tokio::join!(agent.advance(), end) };
        tokio::time::timeout(Duration::from_secs(20), both).await.expect("the fetch is given up");
        agent.advance().await;
        assert!(world.runs(SlotName::A).await);
    });
}

#[test]
fn a_version_that_would_make_a_cluster_is_refused_with_a_reason() {
    in_runtime(async {
        let world = World::new();
        world.select(1);
        world.plane.seen.send_modify(|seen| {
            let mut version = MachineConfigurationVersion::clone(seen.version.as_ref().unwrap());
            version.spec.template.kubernetes.role = NodeRole::ControlPlane;
            seen.version = Some(Arc::new(version));
        });
        let mut agent = world.agent();
        agent.advance().await;
        let paved = world.reported().paved.unwrap();
        assert_eq!(paved.reason, PavedReason::InvalidConfiguration, "{}", paved.message);
        assert!(paved.message.contains("joinConfiguration"), "{}", paved.message);
        assert_eq!(world.images.asked.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn control_plane_that_joins_while_its_trial_fails_is_kept() {
    in_runtime(async {
        let world = prepared().await;
        world.delete_node(2);
        let mut agent = world.agent();
        agent.advance().await;
        let slots = &world.parts.slots;
        let mut filled = slots.filled(SlotName::B).unwrap().unwrap();
        let kubernetes = json!({"version": "v1.34.4", "role": "ControlPlane", "joinConfiguration": {}});
        filled.template.kubernetes = serde_json::from_value(kubernetes).unwrap();
        slots.write_filled(SlotName::B, &filled).unwrap();
        let mark = Path::new(unit::JOINED).file_name().unwrap();
        std::fs::write(slots.places().kept(SlotName::B, "kubelet").join(mark), "").unwrap();
        let act = Act::Fail {
            reason: "late".to_owned(),
            log: crate::model::Log::Kubeadm,
            back_to: Some(SlotName::A),
        };
        let fail = Step { slot: SlotName::B, act };
        let result = apply_step(&world, &fail).await;
        assert!(matches!(result, Err(ApplyError::Superseded(_))), "{result:?}");
        assert!(matches!(world.record(SlotName::B).unwrap().stage, Stage::Trial { .. }));
        assert_eq!(slots.ledger().unwrap().refused, []);
        let version = VersionRef { name: "workers".to_owned(), version: 2 };
        let prepare = Step { slot: SlotName::B, act: Act::PrepareSlot { version } };
        let result = apply_step(&world, &prepare).await;
        assert!(matches!(result, Err(ApplyError::Superseded(_))), "{result:?}");
        assert!(slots.look(SlotName::B, false).unwrap().is_kept());
    });
}

#[test]
fn standalone_expired_kubelet_certificate_is_reported_if_unreachable() {
    in_runtime(async {
        let world = prepared().await;
        let pki = world.parts.slots.places().kept(SlotName::A, "kubelet").join("pki");
        std::fs::create_dir_all(&pki).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        std::fs::write(pki.join("kubelet-client-current.pem"), params.self_signed(&key).unwrap().pem())
            .unwrap();
        let reason = async || {
            world.agent().advance().await;
            world.reported().paved.unwrap().reason
        };
        world.plane.seen.send_modify(|seen| seen.api = Api::Away);
        assert_eq!(
            reason().await,
            PavedReason::Applied,
            "in a cluster it is renewed once there is an answer"
        );
        world.plane.standalone.store(true, Ordering::Relaxed);
        assert_eq!(reason().await, PavedReason::KubeletCertificateExpired);
        world.plane.seen.send_modify(|seen| seen.api = Api::Live);
        assert_eq!(reason().await, PavedReason::Applied);
    });
}

#[test]
fn a_rollback_comes_to_its_end_whatever_becomes_of_annotations() {
    in_runtime(async {
        let mut world = prepared().await;
        world.node.fails.store(true, Ordering::Relaxed);
        world.gate.no_sandbox.store(true, Ordering::Relaxed);
        world.delete_node(2);
        let mut agent = world.agent();
        for _ in 0..200 {
            world.react().await;
            agent.advance().await;
            agent.attempts = Attempts::default();
            if world.reported().rolled_back.is_some()
                && is_applied(&world, SlotName::A, 1)
                && world.runs(SlotName::A).await
            {
                break;
            }
            // The sandbox was tried, and the time of the gate is over.
            if world.gate.probes.load(Ordering::Relaxed) > 1
                && let Some(mut record) = world.record(SlotName::B)
                && matches!(record.stage, Stage::Trial { .. })
            {
                record.timeout_seconds = 0;
                world.parts.slots.write_record(SlotName::B, &record).unwrap();
            }
        }
        assert!(world.runs(SlotName::A).await, "{:?}", agent.standing);
        for _ in 0..10 {
            agent.advance().await;
        }
        let paved = world.reported().paved.unwrap();
        assert_eq!(
            (paved.status, paved.reason),
            (Truth::True, PavedReason::ApiServerUnreachable),
            "{}",
            paved.message
        );
        assert!(paved.message.contains("annotations"), "{}", paved.message);
        // The Node that the trial registered is the former slot's, and has its annotations once it can.
        world.node.fails.store(false, Ordering::Relaxed);
        let before = world.node.annotations.lock().unwrap().len();
        assert_eq!(world.settled().await, "VersionRejected");
        assert_eq!(world.node.annotations.lock().unwrap().len(), before + 1);
    });
}
