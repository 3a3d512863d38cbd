//! `bedplate claim` with the real provider, under the rights that `deploy/` gives to users (docs/guides/claims.md, "Release by a user").

use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::{objects, pxed, wait};
use serde_json::{Value, json};

use super::site::{Agent, LONG_AGO, PATIENCE, Site, Team, claims, condition, ready};

/// Exit code, standard output and standard error of `bedplate`.
type Said = (Option<i32>, String, String);

fn bedplate(kubeconfig: &Path, arguments: &[&str]) -> Said {
    let program = pxed::binary("bedplate").unwrap();
    let output = Command::new(program).args(arguments).arg("--kubeconfig").arg(kubeconfig).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

pub(crate) fn bedplate_as_admin(arguments: &[&str]) -> Said {
    bedplate(&Kubernetes::shared().admin(), arguments)
}

fn admin() -> &'static Objects {
    Kubernetes::shared().objects().unwrap()
}

/// Kubeconfig of a user with one of the roles for users.
fn user(name: &str, role: &str) -> PathBuf {
    let kubernetes = Kubernetes::shared();
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name }] });
    admin().apply(&binding).unwrap();
    let kubeconfig = kubernetes.user(name, &[]).unwrap();
    let objects = kubernetes.objects_of(&kubeconfig).unwrap();
    let has_role = || Ok(objects.list("machine", "limit=1").is_ok().then_some(()));
    wait::until_asked("the role", PATIENCE, has_role).unwrap();
    kubeconfig
}

/// Claims a host, and has its claim join.
fn join(site: &Site, team: &Team, machine: &str, agent: &Agent) {
    let label = json!({ "metadata": { "labels": { "host": agent.name } } });
    admin().merge("machine", &agent.name, &label).unwrap();
    let selector = json!({ "machineSelector": { "matchLabels": { "host": agent.name } } });
    team.machine_with(machine, Some(""), &selector);
    site.until(team, ("bpm", machine), "a claim", |found| claims(found, "HostClaimed"));
    agent.heartbeat();
    site.until(team, ("mcl", &agent.name), "the grant", |found| condition(found, "Granted").0 == "True");
    agent.report("Joined");
    site.until(team, ("bpm", machine), "that it is ready", |found| ready(found).0 == "True");
}

/// Loses a claimant, without its deletion: the provider leaves one alone that is paused.
fn lose(site: &Site, team: &Team, machine: &str) {
    let paused = json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "" } } });
    team.objects.merge("bpm", machine, &paused).unwrap();
    site.until(team, ("bpm", machine), "that it is paused", |found| condition(found, "Paused").0 == "True");
    team.objects.merge("bpm", machine, &json!({ "metadata": { "finalizers": null } })).unwrap();
    team.objects.delete("bpm", machine).unwrap();
}

fn annotation(host: &str, name: &str) -> Value {
    admin().get("machine", host).unwrap().unwrap()["metadata"]["annotations"][name].clone()
}

#[test]
fn d1_claim_list_and_explain_name_the_state_of_each_host() {
    let site = Site::shared();
    let team = Team::new(site, "listed");
    team.provision();
    let agents =
        ["free", "paused", "silent", "joined"].map(|name| Agent::new(&format!("listed-{name}"), "listed"));
    let [_, paused, silent, joined] = &agents;
    admin().merge("machine", &paused.name, &json!({ "spec": { "paused": true } })).unwrap();
    silent.heard(LONG_AGO);
    admin().apply(&objects::machine("listed-new").pool("listed").json()).unwrap();
    join(site, &team, "w-1", joined);
    let viewer = user("listed-viewer", "bedplate:view");
    let (code, out, err) = bedplate(&viewer, &["claim", "list"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    println!("{out}");
    let (_, json, _) = bedplate(&viewer, &["claim", "list", "--output", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let of = |name: &str| {
        let found = json["items"].as_array().unwrap().iter().find(|host| host["machine"] == name);
        found.unwrap_or_else(|| panic!("{name}: {json:#}")).clone()
    };
    for (name, state, more) in [
        ("listed-free", "Free", ""),
        ("listed-joined", "Joined", "listed/w-1"),
        ("listed-new", "NotEnrolled", "the host is not enrolled"),
        ("listed-paused", "Paused", "the Machine is paused"),
        ("listed-silent", "Silent", "the agent has not reported for 15 minutes, or its clock is ahead"),
    ] {
        let line = out.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("{name}: {out}"));
        assert!(line.contains(state) && line.contains(more), "{line}");
        assert_eq!(of(name)["state"], state);
        let (code, text, err) = bedplate(&viewer, &["claim", "explain", name]);
        println!("{text}");
        assert_eq!((code, err.as_str()), (Some(0), ""), "{text}");
        assert!(text.contains(&format!(" {state}")) && text.contains(more), "{text}");
    }
    let host = of("listed-joined");
    assert_eq!((&host["claimant"], &host["cluster"]), (&json!("listed/w-1"), &json!("listed")));
    assert_eq!(host["grant"], "Granted");
    let (_, explained, _) = bedplate_as_admin(&["claim", "explain", "listed-joined", "--output", "json"]);
    let explained: Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(explained["claimantObject"]["state"], "present", "{explained:#}");
    assert_eq!(explained["record"]["state"], "Joined");
    assert_eq!(explained["providerID"], host["providerID"]);
    let (code, _, err) = bedplate(&viewer, &["claim", "explain", "listed-none"]);
    assert!(code == Some(1) && err.contains("hint: see `bedplate machine list"), "{err}");
}

#[test]
fn d7_orphaned_host_is_released_by_a_user_who_may_change_machines() {
    let site = Site::shared();
    let (team, agent) = (Team::new(site, "orphan"), Agent::new("orphan-1", "orphan"));
    team.provision();
    join(site, &team, "w-1", &agent);
    let release = ["claim", "release", "orphan-1", "--yes"];
    let (code, _, err) = bedplate_as_admin(&release);
    assert!(code == Some(1) && err.contains("the claimant of Machine orphan-1 exists"), "{err}");
    let remedy = "kubectl -n orphan delete bedplatemachines.infrastructure.cluster.x-k8s.io w-1";
    assert!(err.contains(remedy), "{err}");
    lose(site, &team, "w-1");
    let claim = site.until(&team, ("mcl", "orphan-1"), "the loss of the claimant", |found| {
        condition(found, "Orphaned").0 == "True"
    });
    let (_, out, _) = bedplate_as_admin(&["claim", "explain", "orphan-1"]);
    println!("{out}");
    assert!(out.contains("release the host: `bedplate claim release orphan-1 "), "{out}");
    // No terminal, and no --yes.
    let (code, _, err) = bedplate_as_admin(&release[..3]);
    assert!(code == Some(64) && err.contains("--yes"), "{err}");
    // Users who may not change Machines.
    for role in ["bedplate:view", "bedplate:operate"] {
        let kubeconfig = user(&format!("orphan-{}", role.replace(':', "-")), role);
        let (code, _, err) = bedplate(&kubeconfig, &release);
        println!("{err}");
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains("cannot patch resource \"machines\""), "{err}");
        assert!(
            err.contains("hint: ") && err.contains("kubectl auth can-i patch machines.bedplate.dev"),
            "{err}"
        );
    }
    assert_eq!(annotation("orphan-1", "bedplate.dev/release"), Value::Null);
    // One who may, and who may neither read the claimant nor delete a claim.
    let kubeconfig = user("orphan-admin", "bedplate:admin");
    let objects = Kubernetes::shared().objects_of(&kubeconfig).unwrap();
    assert!(objects.can_delete("mcl", "orphan-1").is_err());
    let (code, out, err) = bedplate(&kubeconfig, &release);
    println!("{out}{err}");
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("Everything in them is lost"), "{err}");
    assert!(out.contains("bedplate claim explain orphan-1"), "{out}");
    assert_eq!(annotation("orphan-1", "bedplate.dev/release"), claim["spec"]["providerID"]);
    agent.report("Releasing");
    agent.report("Released");
    site.until_gone(&team, ("mcl", "orphan-1"));
    let (_, out, _) = bedplate_as_admin(&["claim", "list"]);
    assert!(out.lines().any(|line| line.starts_with("orphan-1 ") && line.contains("Free")), "{out}");
}

#[test]
fn d8_host_is_confirmed_off_only_while_a_deleted_claimant_waits() {
    let site = Site::shared();
    let (team, agent) = (Team::new(site, "off"), Agent::new("off-1", "off"));
    team.provision();
    join(site, &team, "w-1", &agent);
    let confirm = ["claim", "release", "off-1", "--host-is-off", "--yes"];
    let (code, _, err) = bedplate_as_admin(&confirm);
    assert!(code == Some(1) && err.contains("is not being deleted"), "{err}");
    team.objects.begin_delete("bpm", "w-1").unwrap();
    site.until(&team, ("mcl", "off-1"), "its deletion", |found| {
        found["metadata"]["deletionTimestamp"].is_string()
    });
    let (code, _, err) = bedplate_as_admin(&confirm);
    assert!(code == Some(1) && err.contains("the agent of Machine off-1 reported at"), "{err}");
    let (code, _, err) = bedplate_as_admin(&["claim", "release", "off-1", "--yes"]);
    assert!(code == Some(1) && err.contains("--host-is-off"), "{err}");
    agent.heard(LONG_AGO);
    let (code, out, err) = bedplate_as_admin(&confirm);
    println!("{out}{err}");
    assert_eq!(code, Some(0), "{err}");
    site.until(&team, ("mcl", "off-1"), "the confirmation", |found| {
        condition(found, "Fenced").1 == "ConfirmedByUser"
    });
    site.until_gone(&team, ("bpm", "w-1"));
    let (_, out, _) = bedplate_as_admin(&["claim", "list"]);
    let line = out.lines().find(|line| line.starts_with("off-1 ")).unwrap_or_else(|| panic!("{out}"));
    assert!(line.contains("Joined, deleting") && line.ends_with("Fenced"), "{line}");
    agent.report("Released");
    site.until_gone(&team, ("mcl", "off-1"));
}
