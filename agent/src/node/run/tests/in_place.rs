//! Changes that a node that runs can be given, by applyConfiguration (docs/design/rules.md, O8).

use serde_json::Value;

use super::*;
use crate::bus::{Exit, Ran};
use crate::operation::apply::{ApplyError, Configuration};
use crate::operation::configuration::{Decision, decide};
use crate::operation::view::NodeConfiguration;
use crate::plane::facts::template_hash;

/// A node that runs version 1, and a version 2 that differs in these fields, by their JSON pointers.
async fn differing(changes: &[(&str, Value)]) -> (World, NodeConfiguration) {
    let mut world = World::new();
    world.select(1);
    assert_eq!(world.settled().await, "Applied");
    select_differing(&world, 2, changes);
    std::fs::create_dir_all(root(&world)).unwrap();
    let configuration = NodeConfiguration::new(world.parts.clone(), Arc::default());
    (world, configuration)
}

/// Selects a version that differs from version 1 in these fields.
fn select_differing(world: &World, number: i64, changes: &[(&str, Value)]) {
    world.select(number);
    let mut object = serde_json::to_value(version_object(number)).unwrap();
    object["spec"]["template"]["image"] =
        serde_json::to_value(&version_object(1).spec.template.image).unwrap();
    for (pointer, value) in changes {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        object["spec"]["template"].pointer_mut(parent).unwrap()[name] = value.clone();
    }
    let object = serde_json::from_value(object).unwrap();
    world.plane.seen.send_modify(|seen| seen.version = Some(Arc::new(object)));
}

/// The slot's root as its own processes see it.
fn root(world: &World) -> PathBuf {
    world.parts.root.join("proc/100/root")
}

async fn apply_in_place(configuration: &NodeConfiguration) -> Result<(), ApplyError> {
    let standing = configuration.standing().await.unwrap();
    match decide(&standing, false, false) {
        Decision::InPlace(changes) => configuration.change(&changes).await,
        other => panic!("{other:?}"),
    }
}

fn slot(world: &World) -> FakeUnits {
    world.machines.add(&machine(SlotName::A).parse().unwrap(), Leader::new(100).unwrap())
}

#[test]
fn o8_kernel_parameters_and_modules_are_set_on_the_host() {
    in_runtime(async {
        let changes = [("/sysctls", json!({"vm.swappiness": "1"})), ("/kernelModules", json!(["nbd"]))];
        let (world, configuration) = differing(&changes).await;
        apply_in_place(&configuration).await.unwrap();
        let run = &world.parts.slots.places().run;
        let read = |path: &str| std::fs::read_to_string(run.join(path)).unwrap();
        assert!(read("sysctl.d/99-zz-bedplate-slot.conf").contains("vm.swappiness = 1\n"));
        assert!(read("modules-load.d/60-bedplate-slot.conf").contains("nbd\n"));
        let calls = world.units.calls();
        for unit in ["systemd-sysctl.service", "systemd-modules-load.service"] {
            assert!(calls.iter().rev().take(4).any(|call| *call == format!("restart {unit}")), "{calls:?}");
        }
        assert!(is_applied(&world, SlotName::A, 2));
        let standing = configuration.standing().await.unwrap();
        assert!(matches!(decide(&standing, false, false), Decision::End(end) if end.complete));
    });
}

#[test]
fn o8_parameter_that_the_kernel_rejects_is_reported_and_not_applied() {
    in_runtime(async {
        let (world, configuration) = differing(&[("/sysctls", json!({"vm.nonsense": "1"}))]).await;
        world.units.job_ends("restart systemd-sysctl.service", JobResult::Failed);
        let said = "Couldn't write '1' to 'vm/nonsense', ignoring: No such file or directory";
        world.units.command_ends(Ran { exit: Exit::Code(0), output: said.to_owned(), cut: false });
        let error = apply_in_place(&configuration).await.unwrap_err();
        assert!(matches!(error, ApplyError::Broken(_)));
        assert!(error.to_string().starts_with("the kernel rejected vm.nonsense"), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(is_applied(&world, SlotName::A, 1));
        // The service fails for another reason: the parameter has its desired value.
        let value = world.parts.root.join("proc/sys/vm");
        std::fs::create_dir_all(&value).unwrap();
        std::fs::write(value.join("nonsense"), "1\n").unwrap();
        world.units.job_ends("restart systemd-sysctl.service", JobResult::Failed);
        apply_in_place(&configuration).await.unwrap();
        assert!(is_applied(&world, SlotName::A, 2));
    });
}

fn marked(path: &str, units: &Value) -> Value {
    json!([{ "path": path, "content": "x", "permissions": "0600", "inPlace": { "restartUnits": units } }])
}

#[test]
fn o8_in_place_file_is_written_and_its_units_are_restarted() {
    in_runtime(async {
        let files = marked("/etc/app/a.conf", &json!(["app.service"]));
        let (world, configuration) = differing(&[("/files", files)]).await;
        apply_in_place(&configuration).await.unwrap();
        assert_eq!(std::fs::read_to_string(root(&world).join("etc/app/a.conf")).unwrap(), "x");
        assert_eq!(slot(&world).calls().last().unwrap(), "restart app.service");
        assert!(is_applied(&world, SlotName::A, 2));
    });
}

#[test]
fn o8_unit_failure_is_reported_and_a_protected_unit_is_refused() {
    in_runtime(async {
        let files = marked("/etc/app/a.conf", &json!(["app.service"]));
        let (world, configuration) = differing(&[("/files", files)]).await;
        slot(&world).job_ends("restart app.service", JobResult::Failed);
        let error = apply_in_place(&configuration).await.unwrap_err();
        assert!(matches!(&error, ApplyError::Broken(why) if why.contains("app.service failed")), "{error}");
        assert!(is_applied(&world, SlotName::A, 1));
        let (world, configuration) =
            differing(&[("/files", marked("/etc/x", &json!(["dbus.service"])))]).await;
        let error = apply_in_place(&configuration).await.unwrap_err();
        assert!(matches!(error, ApplyError::NotSupported(_)), "{error}");
        assert!(!root(&world).join("etc/x").exists());
    });
}

#[test]
fn o8_kubelet_configuration_is_written_by_kubeadm_and_must_be_healthy() {
    in_runtime(async {
        tokio::time::pause();
        let fields = json!({"maxPods": 50});
        let (world, configuration) = differing(&[("/kubernetes/kubeletConfiguration", fields)]).await;
        apply_in_place(&configuration).await.unwrap();
        let patch = root(&world).join("run/bedplate/patches/kubeletconfiguration50bedplate+merge.yaml");
        assert!(std::fs::read_to_string(patch).unwrap().contains("maxPods: 50"));
        let calls = slot(&world).calls();
        let kubeadm =
            "run bedplate-kubelet-config.service /usr/bin/env kubeadm upgrade node phase kubelet-config";
        assert!(calls.iter().any(|call| call.starts_with(kubeadm)), "{calls:?}");
        assert_eq!(calls.last().unwrap(), "restart kubelet.service");
        assert!(is_applied(&world, SlotName::A, 2));
    });
}

#[test]
fn o8_unhealthy_kubelet_reverts_to_its_former_configuration() {
    in_runtime(async {
        tokio::time::pause();
        let fields = json!({"maxPods": 50});
        let (world, configuration) = differing(&[("/kubernetes/kubeletConfiguration", fields)]).await;
        let config = root(&world).join("var/lib/kubelet/config.yaml");
        std::fs::create_dir_all(config.parent().unwrap()).unwrap();
        std::fs::write(&config, "former").unwrap();
        *world.gate.kubelet_ill.lock().unwrap() = Some("no answer".to_owned());
        let error = apply_in_place(&configuration).await.unwrap_err();
        assert!(matches!(error, ApplyError::Broken(_)), "{error}");
        assert!(error.to_string().contains("the kubelet is not healthy: no answer"), "{error}");
        assert_eq!(std::fs::read_to_string(&config).unwrap(), "former");
        let restarts = slot(&world).calls().iter().filter(|call| *call == "restart kubelet.service").count();
        assert_eq!(restarts, 2);
        assert!(is_applied(&world, SlotName::A, 1));
    });
}

/// Writes the kubelet's configuration where the slot has it. Returns its path, and the path of its copy.
fn kubelet_files(world: &World) -> (PathBuf, PathBuf) {
    let (kept, seen) =
        (world.parts.slots.places().kept(SlotName::A, "kubelet"), root(world).join("var/lib/kubelet"));
    std::fs::create_dir_all(seen.parent().unwrap()).unwrap();
    std::fs::rename(&kept, &seen).unwrap();
    std::os::unix::fs::symlink(&seen, &kept).unwrap();
    std::fs::write(seen.join("config.yaml"), "former").unwrap();
    (seen.join("config.yaml"), seen.join("config.yaml.bedplate-former"))
}

/// Applies what is selected. The agent is killed as soon as kubeadm has written the kubelet's configuration.
async fn killed_after_kubeadm(world: &World, configuration: &NodeConfiguration) {
    let units = slot(world);
    let kubeadm = async {
        while !units.calls().iter().any(|call| call.starts_with("run bedplate-kubelet-config")) {
            tokio::task::yield_now().await;
        }
        std::fs::write(root(world).join("var/lib/kubelet/config.yaml"), "broken").unwrap();
    };
    tokio::select! {
        ended = apply_in_place(configuration) => panic!("{ended:?}"),
        () = kubeadm => {}
    }
}

#[test]
fn o8_former_kubelet_configuration_survives_an_agent_killed_after_kubeadm() {
    in_runtime(async {
        tokio::time::pause();
        let fields = json!({"maxPods": 50});
        let (world, configuration) = differing(&[("/kubernetes/kubeletConfiguration", fields)]).await;
        let (config, kept) = kubelet_files(&world);
        *world.gate.kubelet_ill.lock().unwrap() = Some("no answer".to_owned());
        killed_after_kubeadm(&world, &configuration).await;
        assert!(std::fs::read_to_string(&kept).unwrap().ends_with("by bedplate-agent.\nformer"));
        let error = apply_in_place(&configuration).await.unwrap_err();
        assert!(matches!(error, ApplyError::Broken(_)), "{error}");
        assert_eq!(std::fs::read_to_string(&config).unwrap(), "former");
        assert!(!kept.exists());
        *world.gate.kubelet_ill.lock().unwrap() = None;
        std::fs::write(&config, "next").unwrap();
        apply_in_place(&configuration).await.unwrap();
        assert_eq!(std::fs::read_to_string(&config).unwrap(), "next", "kubeadm has written it");
        assert!(!kept.exists() && is_applied(&world, SlotName::A, 2));
    });
}

#[test]
fn o8_former_kubelet_configuration_survives_a_kill_and_new_selection() {
    in_runtime(async {
        tokio::time::pause();
        let kubelet = "/kubernetes/kubeletConfiguration";
        let (world, configuration) = differing(&[(kubelet, json!({"maxPods": 50}))]).await;
        let (config, kept) = kubelet_files(&world);
        *world.gate.kubelet_ill.lock().unwrap() = Some("no answer".to_owned());
        killed_after_kubeadm(&world, &configuration).await;
        // The user selects another version before the next attempt.
        select_differing(&world, 3, &[(kubelet, json!({"maxPods": 60}))]);
        let error = apply_in_place(&configuration).await.unwrap_err();
        assert!(matches!(error, ApplyError::Broken(_)), "{error}");
        assert_eq!(std::fs::read_to_string(&config).unwrap(), "former");
        assert!(!kept.exists() && is_applied(&world, SlotName::A, 1));
    });
}

#[test]
fn o8_unfinished_kubelet_configuration_is_undone_for_another_selection() {
    // Version 1 runs already; version 3 does not change the kubelet's configuration.
    for (number, changes) in [(1, vec![]), (3, vec![("/sysctls", json!({"vm.swappiness": "1"}))])] {
        in_runtime(async {
            tokio::time::pause();
            let kubelet = "/kubernetes/kubeletConfiguration";
            let (world, configuration) = differing(&[(kubelet, json!({"maxPods": 50}))]).await;
            let (config, kept) = kubelet_files(&world);
            *world.gate.kubelet_ill.lock().unwrap() = Some("no answer".to_owned());
            killed_after_kubeadm(&world, &configuration).await;
            select_differing(&world, number, &changes);
            let error = apply_in_place(&configuration).await.unwrap_err();
            assert!(matches!(error, ApplyError::Failed(_)), "{error}");
            assert!(kept.exists() && is_applied(&world, SlotName::A, 1), "the next attempt continues");
            *world.gate.kubelet_ill.lock().unwrap() = None;
            apply_in_place(&configuration).await.unwrap();
            assert_eq!(std::fs::read_to_string(&config).unwrap(), "former");
            assert_eq!(slot(&world).calls().last().unwrap(), "restart kubelet.service");
            assert!(!kept.exists() && is_applied(&world, SlotName::A, number));
            let standing = configuration.standing().await.unwrap();
            assert!(matches!(decide(&standing, false, false), Decision::End(end) if end.complete));
        });
    }
}

#[test]
fn o8_former_configuration_of_an_earlier_change_is_not_put_back() {
    // The change to the template that the slot is filled with has held.
    let held = template_hash(&version_object(1).spec.template);
    let held = format!("# Before the template {held}, by bedplate-agent.\nfirst");
    for left in [held.as_str(), "first"] {
        in_runtime(async {
            tokio::time::pause();
            let fields = json!({"maxPods": 50});
            let (world, configuration) = differing(&[("/kubernetes/kubeletConfiguration", fields)]).await;
            let config = root(&world).join("var/lib/kubelet/config.yaml");
            let kept = root(&world).join("var/lib/kubelet/config.yaml.bedplate-former");
            std::fs::create_dir_all(config.parent().unwrap()).unwrap();
            // The earlier change has held, and its host lost power before the copy was removed.
            std::fs::write(&config, "second").unwrap();
            std::fs::write(&kept, left).unwrap();
            *world.gate.kubelet_ill.lock().unwrap() = Some("no answer".to_owned());
            let error = apply_in_place(&configuration).await.unwrap_err();
            assert!(matches!(error, ApplyError::Broken(_)), "{error}");
            assert_eq!(std::fs::read_to_string(&config).unwrap(), "second");
            assert!(!kept.exists());
        });
    }
}

#[test]
fn o8_taints_are_a_persons_to_change_and_nothing_else_is_changed_before() {
    in_runtime(async {
        let taint = json!([{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]);
        let changes = [("/kubernetes/taints", taint.clone()), ("/sysctls", json!({"vm.swappiness": "1"}))];
        let (world, configuration) = differing(&changes).await;
        let before = world.units.calls();
        let error = apply_in_place(&configuration).await.unwrap_err();
        assert!(matches!(error, ApplyError::Taints(_)));
        let command = "`kubectl taint node node-1 --overwrite dedicated=gpu:NoSchedule`";
        assert!(error.to_string().contains(command), "{error}");
        assert_eq!(world.units.calls(), before);
        *world.node.taints.lock().unwrap() = serde_json::from_value(taint).unwrap();
        apply_in_place(&configuration).await.unwrap();
        assert!(is_applied(&world, SlotName::A, 2));
    });
}

#[test]
fn a_version_that_is_selected_meanwhile_is_not_said_to_be_applied() {
    in_runtime(async {
        let (world, configuration) = differing(&[("/sysctls", json!({"vm.swappiness": "1"}))]).await;
        let standing = configuration.standing().await.unwrap();
        let Decision::InPlace(changes) = decide(&standing, false, false) else { panic!("{standing:?}") };
        world.select(3);
        let why = configuration.change(&changes).await.unwrap_err();
        assert!(
            matches!(&why, ApplyError::Failed(why) if why.contains("another version is selected")),
            "{why}"
        );
        let record = world.parts.slots.record(SlotName::A).unwrap().unwrap();
        assert_eq!(record.version.version, 1);
    });
}

#[test]
fn o8_no_eviction_before_the_version_is_prepared_nor_on_a_held_machine() {
    in_runtime(async {
        let mut world = World::new();
        world.select(1);
        assert_eq!(world.settled().await, "Applied");
        world.select(2);
        let version = VersionRef { name: "workers".to_owned(), version: 2 };
        let configuration = NodeConfiguration::new(world.parts.clone(), Arc::default());
        let refused = async || configuration.may_repave(&version).await.unwrap_err();
        let error = refused().await;
        assert!(matches!(&error, ApplyError::Failed(why) if why.contains("is not prepared yet")), "{error}");
        assert_eq!(world.settled().await, "Applied");
        configuration.may_repave(&version).await.unwrap();
        let machine = |change: fn(&mut Machine)| {
            world.plane.seen.send_modify(|seen| {
                let mut machine = Machine::clone(seen.machine.as_ref().unwrap());
                change(&mut machine);
                seen.machine = Some(Arc::new(machine));
            });
        };
        machine(|machine| machine.spec.paused = true);
        let error = refused().await;
        assert!(matches!(&error, ApplyError::Failed(why) if why.contains("paused")), "{error}");
        machine(|machine| {
            let selected = machine.status.as_mut().and_then(|status| status.selected.as_mut()).unwrap();
            selected.source = bedplate_api::machine::SelectionSource::Claim;
        });
        let error = refused().await;
        assert!(matches!(&error, ApplyError::Claimed(why) if why.contains("MachineClaim")), "{error}");
    });
}

#[test]
fn o8_failed_version_is_prepared_again_before_any_eviction() {
    in_runtime(async {
        let mut world = World::new();
        world.select(1);
        world.settled().await;
        world.bad.insert(2);
        world.delete_node(2);
        assert_eq!(world.settled().await, "VersionRejected");
        let version = VersionRef { name: "workers".to_owned(), version: 2 };
        let configuration = NodeConfiguration::new(world.parts.clone(), Arc::default());
        let error = configuration.may_repave(&version).await.unwrap_err();
        assert!(matches!(&error, ApplyError::Failed(_)), "{error}");
        assert_eq!(world.settled().await, "Applied");
        configuration.may_repave(&version).await.unwrap();
        assert!(world.runs(SlotName::A).await, "nothing is tried yet");
    });
}

#[test]
fn operations_concern_the_later_of_two_applied_slots() {
    in_runtime(async {
        let mut world = World::new();
        world.select(1);
        world.settled().await;
        // An agent that was killed after it had written that slot a is the node, and not yet that b was.
        let mut before = world.record(SlotName::A).unwrap();
        before.generation = 0;
        before.version.version = 7;
        world.parts.slots.lay(SlotName::B, &[]).unwrap();
        world.parts.slots.write_record(SlotName::B, &before).unwrap();
        let configuration = NodeConfiguration::new(world.parts.clone(), Arc::default());
        assert_eq!(configuration.standing().await.unwrap().applied.unwrap().version, 1);
    });
}
