//! V1 to V3 on a real API server with its garbage collector and without Bedplate's controller: who may write and delete versions and
//! configurations, by whatever way, and that other writes are not refused; and which Leases the controller writes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "kubernetes/cluster.rs"]
mod cluster;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use cluster::{configuration, machine, version, with};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const CONTROLLER: &str = "system:serviceaccount:bedplate-system:bedplate-controller";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// Group with all rights: only the user's name decides.
const MASTERS: &str = "system:masters";
const KIND: &str = "/apis/bedplate.dev/v1alpha1/machineconfigurationversions";

const V1: &str = "only bedplate-controller writes a MachineConfigurationVersion";

struct Site {
    kubernetes: Kubernetes,
    place: Directory,
    /// A user who may do everything with Bedplate's kinds, and is not an administrator.
    person: PathBuf,
}

impl Site {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Site> = OnceLock::new();
        SHARED.get_or_init(|| {
            let mut kubernetes = Kubernetes::installed().unwrap();
            kubernetes.protect_versions().unwrap();
            kubernetes.start_controllers(&["garbage-collector-controller"]).unwrap();
            let person = kubernetes.user("person", &["people"]).unwrap();
            let place = Directory::new("policies").unwrap();
            let site = Self { kubernetes, place, person };
            let role = ["create", "clusterrole", "people", "--verb=*", "--resource=*.bedplate.dev"];
            site.admin(&role).unwrap();
            let bind = ["create", "clusterrolebinding", "people", "--clusterrole=people", "--group=people"];
            site.admin(&bind).unwrap();
            site.configuration("probe", &[1]);
            site.machine("probe", &json!({}));
            site.machine("probe", &json!({ "configurationRef": { "name": "probe", "version": 1 } }));
            // Policies take effect some time after they were made, and nothing in the API says when.
            for (line, words) in [
                (&["annotate", "mcv", "probe-v1", "a=b", "--overwrite", "--dry-run=server"][..], V1),
                (&["delete", "mcv", "probe-v1", "--dry-run=server"], "uses this version"),
                (&["delete", "mc", "probe", "--dry-run=server"], "uses this configuration"),
            ] {
                let refused = || Ok(site.admin(line).err().filter(|why| why.contains(words)));
                wait::until_asked(words, PATIENCE, refused).unwrap();
            }
            site
        })
    }

    fn admin(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl(&self.kubernetes.admin(), arguments)
    }

    fn person(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl(&self.person, arguments)
    }

    /// As the user of this name, who may do everything as far as roles go.
    fn named(&self, user: &str, arguments: &[&str]) -> Result<String, String> {
        let (user, group) = (format!("--as={user}"), format!("--as-group={MASTERS}"));
        self.admin(&[arguments, &[&user, &group]].concat())
    }

    fn kubectl(&self, kubeconfig: &std::path::Path, arguments: &[&str]) -> Result<String, String> {
        self.kubernetes.kubectl(kubeconfig, arguments).map_err(|error| format!("{error:#}"))
    }

    fn file(&self, object: &Value) -> String {
        let name = object["metadata"]["name"].as_str().unwrap_or("new");
        let path = self.place.path().join(format!("{}-{name}.json", object["kind"].as_str().unwrap()));
        std::fs::write(&path, object.to_string()).unwrap();
        path.display().to_string()
    }

    fn objects(&self) -> &Objects {
        self.kubernetes.objects().unwrap()
    }

    fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects().get(kind, name).unwrap()
    }

    fn until_gone(&self, kind: &str, name: &str) {
        let gone = |object: Option<&Value>| object.is_none().then_some(());
        let ended = self.objects().until((kind, name), PATIENCE, gone);
        ended.unwrap_or_else(|error| panic!("deletion of {kind} {name}: {error:#}"));
    }

    /// A configuration with deployed versions, as the controller leaves them but for its finalizers.
    fn configuration(&self, name: &str, numbers: &[u32]) {
        let made = self.kubernetes.objects_of(&self.person).unwrap().apply(&configuration(name)).unwrap();
        let owner = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "name": name,
            "uid": made["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true });
        let controller = self.objects().impersonating(CONTROLLER, &[MASTERS]);
        for number in numbers {
            let owned = json!({ "metadata": { "ownerReferences": [owner] } });
            controller.create(&with(&version(name, *number), &owned)).unwrap();
            let version = format!("{name}-v{number}");
            controller.merge_status("mcv", &version, &json!({ "deployed": true })).unwrap();
        }
    }

    fn machine(&self, name: &str, spec: &Value) {
        let object = with(&machine(name), &json!({ "spec": spec }));
        self.kubernetes.objects_of(&self.person).unwrap().apply(&object).unwrap();
    }

    fn status(&self, name: &str, status: &Value) {
        self.objects().merge_status("machine", name, status).unwrap();
    }
}

/// Every way in which an object that is there can be written.
fn writes(name: &str) -> Vec<Vec<String>> {
    let spec = r#"[{"op":"replace","path":"/spec/template/kubernetes/version","value":"v1.0.0"}]"#;
    let status = r#"{"status":{"deployed":true,"machines":7}}"#;
    let owner = r#"{"metadata":{"ownerReferences":null}}"#;
    let finalizer = r#"{"metadata":{"finalizers":["example.com/mine"]}}"#;
    let lines: [&[&str]; 6] = [
        &["patch", "mcv", name, "--type=json", "-p", spec],
        &["patch", "mcv", name, "--type=merge", "--subresource=status", "-p", status],
        &["patch", "mcv", name, "--type=merge", "-p", owner],
        &["patch", "mcv", name, "--type=merge", "-p", finalizer],
        &["label", "mcv", name, "a=b"],
        &["annotate", "mcv", name, "a=b"],
    ];
    lines.iter().map(|line| line.iter().map(|&word| word.to_owned()).collect()).collect()
}

#[test]
fn v1_only_the_controller_writes_a_version() {
    let site = Site::shared();
    site.configuration("written", &[]);
    // It is not in use: its definition alone would let it change.
    site.named(CONTROLLER, &["create", "-f", &site.file(&version("written", 1))]).unwrap();
    let before = site.get("mcv", "written-v1").unwrap();
    let mut drawn = version("written", 2);
    drawn["metadata"] = json!({ "generateName": "written-v" });
    let new = site.file(&version("written", 2));
    for line in writes("written-v1") {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        for said in [
            site.admin(&line),
            site.person(&line),
            site.named("system:serviceaccount:bedplate-system:pxed", &line),
        ] {
            let why = said.expect_err(&line.join(" "));
            assert!(why.contains(V1), "{line:?}: {why}");
        }
    }
    for why in [site.admin(&["create", "-f", &new]), site.person(&["create", "-f", &new])] {
        let why = why.expect_err("a new one");
        assert!(why.contains(V1), "{why}");
    }
    // The name that is drawn is none that a version may have.
    site.admin(&["create", "-f", &site.file(&drawn)]).expect_err("a drawn name");
    assert_eq!(site.get("mcv", "written-v1").unwrap(), before);
    assert!(site.get("mcv", "written-v2").is_none());
}

#[test]
fn v2_controller_changes_status_but_not_spec_of_a_deployed_version() {
    let site = Site::shared();
    site.configuration("locked", &[1]);
    let line = writes("locked-v1");
    let words = |index: usize| line[index].iter().map(String::as_str).collect::<Vec<_>>();
    let why = site.named(CONTROLLER, &words(0)).expect_err("the spec");
    assert!(why.contains("a deployed version cannot be changed"), "{why}");
    for status in [r#"{"status":{"deployed":false}}"#, r#"{"status":null}"#] {
        let line = ["patch", "mcv", "locked-v1", "--type=merge", "--subresource=status", "-p", status];
        let why = site.named(CONTROLLER, &line).expect_err(status);
        assert!(why.contains("status.deployed never goes back to false"), "{why}");
    }
    site.named(CONTROLLER, &words(1)).unwrap();
    assert_eq!(site.get("mcv", "locked-v1").unwrap()["status"]["machines"], 7);
}

#[test]
fn v1_the_garbage_collector_changes_nothing_of_a_version_but_its_metadata() {
    let site = Site::shared();
    site.configuration("collected", &[1]);
    let lines = writes("collected-v1");
    let words = |index: usize| lines[index].iter().map(String::as_str).collect::<Vec<_>>();
    let status = [
        "patch",
        "mcv",
        "collected-v1",
        "--type=merge",
        "--subresource=status",
        "-p",
        r#"{"status":{"machines":3}}"#,
    ];
    for line in [words(0), status.to_vec()] {
        site.named(COLLECTOR, &line).expect_err(&line.join(" "));
    }
    site.named(COLLECTOR, &words(2)).unwrap();
}

#[test]
fn v3_version_that_a_machine_names_or_has_cannot_be_deleted_by_any_user() {
    let site = Site::shared();
    site.configuration("held", &[1, 2, 3, 4]);
    site.machine("held-1", &json!({ "configurationRef": { "name": "held", "version": 1 } }));
    site.machine("held-2", &json!({}));
    site.status(
        "held-2",
        &json!({ "selected": { "name": "held", "version": 2, "source": "Selector" }, "applied": { "name": "held", "version": 3, "slot": "a" } }),
    );
    // The API server's own cache of Machines is a moment behind.
    for number in [1, 3] {
        let line = ["delete", "mcv", &format!("held-v{number}"), "--dry-run=server"];
        let refused = || Ok(site.admin(&line).err().filter(|why| why.contains("uses this version")));
        wait::until_asked("the Machine", PATIENCE, refused).unwrap();
    }
    for (number, by) in [(1, "held-1"), (2, "held-2"), (3, "held-2")] {
        let (name, words) = (format!("held-v{number}"), format!("Machine {by} uses this version"));
        let one = format!("{KIND}?fieldSelector=metadata.name%3D{name}");
        for line in [
            &["delete", "mcv", &name, "--wait=false"][..],
            &["delete", "mcv", &name, "--wait=false", "--force", "--grace-period=0"],
            &["delete", "mcv", &name, "--wait=false", "--cascade=foreground"],
            &["delete", "--raw", &one],
        ] {
            let by_all = [
                site.admin(line),
                site.person(line),
                site.named(CONTROLLER, line),
                site.named(COLLECTOR, line),
            ];
            for said in by_all {
                let why = said.expect_err(&line.join(" "));
                assert!(why.contains(&words), "{line:?}: {why}");
            }
        }
        let there = site.get("mcv", &name).unwrap();
        assert!(there["metadata"]["deletionTimestamp"].is_null(), "{there:#}");
    }
    for line in [
        &["delete", "mc", "held", "--wait=false"][..],
        &["delete", "mc", "held", "--wait=false", "--cascade=orphan"],
        &[
            "delete",
            "--raw",
            "/apis/bedplate.dev/v1alpha1/machineconfigurations?fieldSelector=metadata.name%3Dheld",
        ],
    ] {
        for said in [site.admin(line), site.person(line), site.named(COLLECTOR, line)] {
            let why = said.expect_err(&line.join(" "));
            assert!(why.contains("uses this configuration"), "{line:?}: {why}");
        }
    }
    // One of four is not in use: it is deleted, though the others are held.
    site.person(&["delete", "mcv", "held-v4", "--wait=false"]).unwrap();
    site.until_gone("mcv", "held-v4");
}

#[test]
fn people_are_kept_from_nothing_else() {
    let site = Site::shared();
    site.configuration("free", &[1]);
    site.machine("free", &json!({ "configurationRef": { "name": "free", "version": 1 } }));
    let files = [
        configuration("free"),
        with(&machine("free"), &json!({ "spec": { "configurationRef": { "name": "free", "version": 1 } } })),
    ];
    for object in &files {
        let file = site.file(object);
        // As it is, in each of the two ways, and once more.
        for line in [
            &["apply", "--server-side", "-f", &file][..],
            &["apply", "-f", &file],
            &["apply", "-f", &file],
            &["label", "-f", &file, "a=b"],
            &["annotate", "-f", &file, "a=b"],
            &[
                "patch",
                "-f",
                &file,
                "--type=merge",
                "-p",
                r#"{"metadata":{"finalizers":["example.com/mine"]}}"#,
            ],
            &["patch", "-f", &file, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#],
        ] {
            site.person(line).unwrap_or_else(|why| panic!("{line:?}: {why}"));
        }
    }
    site.person(&["patch", "mc", "free", "--type=merge", "-p", r#"{"spec":{"priority":3}}"#]).unwrap();
}

#[test]
fn v1_v3_unused_versions_are_deleted_with_their_configuration() {
    let site = Site::shared();
    for cascade in ["background", "foreground"] {
        let name = format!("gone-{cascade}");
        site.configuration(&name, &[1, 2]);
        site.person(&["delete", "mc", &name, "--wait=false", &format!("--cascade={cascade}")]).unwrap();
        for number in [1, 2] {
            site.until_gone("mcv", &format!("{name}-v{number}"));
        }
        site.until_gone("mc", &name);
    }
    site.configuration("orphaned", &[1]);
    site.person(&["delete", "mc", "orphaned", "--cascade=orphan", "--wait=false"]).unwrap();
    site.until_gone("mc", "orphaned");
    let left = site.get("mcv", "orphaned-v1").unwrap();
    assert!(left["metadata"]["ownerReferences"].is_null(), "{left:#}");
    site.person(&["delete", "mcv", "orphaned-v1"]).unwrap();
}

/// A Lease of this name in a namespace.
fn lease(namespace: &str, name: &str) -> Value {
    json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "namespace": namespace, "name": name },
        "spec": { "holderIdentity": "x" } })
}

#[test]
fn the_controller_makes_and_writes_its_own_lease_and_none_of_another_name() {
    let site = Site::shared();
    let controller = site.kubernetes.service_account("bedplate-system", "bedplate-controller").unwrap();
    let controller = |arguments: &[&str]| site.kubectl(&controller, arguments);
    let words = "bedplate-controller may write only the Lease bedplate-controller";
    let made = |name: &str| site.file(&lease("bedplate-system", name));
    let other = made("bedplate-pxed-lab");
    let probe = ["create", "--dry-run=server", "-f", &other];
    let refused = || Ok(controller(&probe).err().filter(|why| why.contains(words)).map(drop));
    wait::until_asked("the policy", PATIENCE, refused).unwrap();
    for name in ["bedplate-pxed-lab", "bedplate-controller-2", "kube-scheduler"] {
        let why = controller(&["create", "-f", &made(name)]).expect_err(name);
        assert!(why.contains(words), "{name}: {why}");
    }
    let mut drawn = lease("bedplate-system", "drawn");
    drawn["metadata"] = json!({ "namespace": "bedplate-system", "generateName": "bedplate-controller" });
    let why = controller(&["create", "-f", &site.file(&drawn)]).expect_err("a drawn name");
    assert!(why.contains(words), "{why}");

    let own = made("bedplate-controller");
    controller(&["create", "-f", &own]).unwrap();
    controller(&["replace", "-f", &own]).unwrap();
    // Whatever its roles may allow one day; and others are kept from nothing.
    site.admin(&["create", "-f", &other]).unwrap();
    let why = site.named(CONTROLLER, &["replace", "-f", &other]).expect_err("another's");
    assert!(why.contains(words), "{why}");
    site.admin(&["replace", "-f", &other]).unwrap();
    site.named(CONTROLLER, &["create", "-f", &site.file(&lease("default", "elsewhere"))]).unwrap();
}

/// docs/getting-started/install.md, "Uninstall": without a controller no other program removes its finalizers.
#[test]
fn finalizers_of_a_missing_controller_can_be_removed_without_the_binding() {
    let mut kubernetes = Kubernetes::installed().unwrap();
    kubernetes.protect_versions().unwrap();
    kubernetes.start_controllers(&["garbage-collector-controller"]).unwrap();
    let admin = |arguments: &[&str]| {
        kubernetes.kubectl(&kubernetes.admin(), arguments).map_err(|error| format!("{error:#}"))
    };
    let held = json!({ "metadata": { "finalizers": ["bedplate.dev/in-use"] } });
    let objects = kubernetes.objects().unwrap();
    objects.create(&with(&configuration("left"), &held)).unwrap();
    objects.impersonating(CONTROLLER, &[MASTERS]).create(&with(&version("left", 1), &held)).unwrap();
    let free = |kind: &str, name: &str| {
        let freed =
            admin(&["patch", kind, name, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
        // An answer may be lost, and what was being deleted is gone by then.
        freed.map(drop).or_else(|why| if why.contains("NotFound") { Ok(()) } else { Err(why) })
    };
    let refused = || Ok(free("mcv", "left-v1").err().filter(|why| why.contains(V1)).map(drop));
    wait::until_asked("the policy", PATIENCE, refused).unwrap();
    admin(&[
        "delete",
        "crd",
        "machineconfigurations.bedplate.dev",
        "machineconfigurationversions.bedplate.dev",
        "--wait=false",
    ])
    .unwrap();
    admin(&["delete", "validatingadmissionpolicybinding", "bedplate-versions"]).unwrap();
    let mut said = String::new();
    let freed = || Ok(free("mcv", "left-v1").map_err(|why| said = why).ok());
    let ended = wait::until_asked("the end of the policy", PATIENCE, freed);
    ended.unwrap_or_else(|error| panic!("{error:#}: {said}"));
    free("mc", "left").unwrap();
    for kind in ["machineconfigurations", "machineconfigurationversions"] {
        let gone = |definition: Option<&Value>| definition.is_none().then_some(());
        let kind = format!("{kind}.bedplate.dev");
        objects.until(("crd", &kind), PATIENCE, gone).expect("the end of the kind");
    }
}
