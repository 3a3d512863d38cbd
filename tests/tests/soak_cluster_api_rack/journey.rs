//! The steps of docs/guides/cluster-guide.md, and what a user sees in each.
//!
//! The rack has 4 hosts, so the control plane gets its second Machine only in order to replace the first one, and there is no third one. The
//! node image has a network plug-in.

use std::collections::BTreeSet;
use std::fs::write;
use std::os::unix::fs::symlink;
use std::path::Path;

use bedplate_tests::cluster_api::Expected;
use bedplate_tests::control_plane::version;
use bedplate_tests::guard::run;
use bedplate_tests::kubernetes::programs;
use bedplate_tests::nodes::{condition, is_ready};
use bedplate_tests::pxed::binary;
use bedplate_tests::rack::Rack;
use serde_json::Value;

use super::guide::{Guide, for_namespaces};
use super::site::{HOSTS, Site, TEAM};

const CLUSTER: &str = "team-a-2";
const FIRST: &str = "team-a-2-cp-1";
const SECOND: &str = "team-a-2-cp-2";
const WORKERS: &str = "team-a-2-workers";
/// Version and template to which the guide upgrades the workers.
const NEXT: &str = "v1.34.5";
const NEXT_TEMPLATE: &str = "team-a-2-workers-v1.34.5";
const NEXT_CONFIGURATION: &str = "rack8-v1.34.5";
/// Maximum time of a command in seconds.
const COMMAND_TIMEOUT: &str = "900";
/// Conditions of a Machine whose Node is Ready.
const RUNNING: &[Expected] = &[
    ("BootstrapConfigReady", "True", "Ready"),
    ("InfrastructureReady", "True", "Joined"),
    ("NodeReady", "True", "NodeReady"),
    ("NodeHealthy", "True", "NodeHealthy"),
    ("Available", "True", "Available"),
    ("FieldsSupported", "True", "FieldsSupported"),
];
/// Commands that need what is not here.
const NOT_TRIED: [&str; 4] = [
    // The hosts were enrolled with manifests of their own.
    "kubectl apply --server-side -f machines.yaml",
    // The management cluster has no Nodes.
    "kubectl -n bedplate-system rollout status",
    // The node image has a plug-in.
    "kubectl --kubeconfig team-a-2.kubeconfig apply -f PLUGIN.yaml",
    // The image of etcd in the test has no etcdctl, so that members are changed by the same calls of its API.
    "etcdctl",
];

/// A user with the guide in front of a rack.
pub(crate) struct Journey<'r> {
    guide: Guide,
    site: Site<'r>,
}

impl<'r> Journey<'r> {
    /// Starts empty hosts with the label and the policy of the guide.
    pub(crate) fn start(rack: &'r Rack) -> Self {
        let guide = Guide::read();
        let site = Site::with_hosts(rack, &guide.manifest("Machine", "host-11"));
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").canonicalize().unwrap();
        symlink(deploy, rack.file("deploy")).unwrap();
        Self { guide, site }
    }

    /// Runs the command of the guide that contains this text.
    fn run(&self, part: &str) -> String {
        self.shell(&self.guide.command(part))
    }

    /// Runs a command as the administrator. Shows it and its output.
    fn shell(&self, text: &str) -> String {
        let output = self.output(text).unwrap();
        println!("$ {text}\n{output}");
        output
    }

    /// Runs a command as the administrator, in the network of the rack.
    fn output(&self, text: &str) -> anyhow::Result<String> {
        let mut command = self.site.command("timeout");
        let (kubectl, bedplate) = (programs()?, binary("bedplate")?);
        let folders =
            [kubectl.as_path(), bedplate.parent().unwrap()].map(|folder| folder.display().to_string());
        let path = format!("{}:{}", folders.join(":"), std::env::var("PATH")?);
        command.args([COMMAND_TIMEOUT, "sh", "-ec", text]).env("PATH", path);
        command.env("KUBECONFIG", self.site.kubernetes().admin()).env("HOME", self.site.path());
        run(&mut command)
    }

    /// Applies manifests of the guide, as `kubectl apply -f` of one file does.
    fn apply(&self, manifests: &[(&str, &str)]) {
        let adapted = manifests.iter().map(|(kind, name)| {
            let mut manifest = self.guide.manifest(kind, name);
            for_namespaces(&mut manifest);
            manifest
        });
        self.apply_all(&adapted.collect::<Vec<_>>());
    }

    fn apply_all(&self, manifests: &[Value]) {
        let text: Vec<String> = manifests.iter().map(Value::to_string).collect();
        write(self.site.path().join("manifest.yaml"), text.join("\n---\n")).unwrap();
        self.shell("kubectl apply --server-side --validate=strict -f manifest.yaml");
    }

    /// Returns a configuration of the guide for the image of the nodes here.
    fn configure(&self, name: &str) -> Value {
        let mut manifest = self.guide.manifest("MachineConfiguration", name);
        manifest["spec"]["template"] = self.site.template(name);
        manifest
    }

    /// Waits until the Machines run, and the Nodes of the cluster are theirs and Ready.
    fn until_running(&self, count: usize) {
        self.site.until_machines(count, RUNNING);
        self.site.until("Ready Nodes with the names of the BedplateMachines", |site| {
            let nodes = self.nodes();
            let are_running = site.machines().iter().all(|machine| machine["status"]["phase"] == "Running");
            are_running && names(&nodes) == names(&site.claimants("")) && nodes.iter().all(is_ready)
        });
        self.shell("kubectl --kubeconfig team-a-2.kubeconfig get nodes -o wide");
    }

    /// Returns the Nodes of the new cluster; none while its API server does not answer.
    fn nodes(&self) -> Vec<Value> {
        let list =
            self.output("kubectl --kubeconfig team-a-2.kubeconfig get nodes -o json").unwrap_or_default();
        let mut list: Value = serde_json::from_str(&list).unwrap_or_default();
        serde_json::from_value(list["items"].take()).unwrap_or_default()
    }

    fn machine(&self, name: &str) -> Value {
        self.site.team.get("clustermachine", name).unwrap().unwrap_or_default()
    }

    fn until_available(&self, kind: &str, name: &str) {
        self.site.until_conditions((kind, name), &[("Available", "True", "Available")]);
    }

    /// Steps 1 and 2.
    pub(crate) fn puts_hosts_into_a_pool(&self) {
        self.run("kubectl create namespace team-a");
        self.site.until("free hosts", |_| self.free_hosts() == HOSTS.len());
        self.apply_all(&[self.configure("rack8-v1.34.4")]);
    }

    /// Counts the hosts that `bedplate claim list` shows as free.
    fn free_hosts(&self) -> usize {
        let list = self.output(&self.guide.command("bedplate claim list")).unwrap();
        list.lines().filter(|line| line.contains(" Free")).count()
    }

    /// Step 3.
    pub(crate) fn installs_the_providers(&mut self) {
        for group in ["core", "bootstrap", "infrastructure"] {
            self.run(&format!("kubectl apply --server-side -f deploy/cluster-api/{group}-components.yaml"));
        }
        for group in ["core", "bootstrap", "infrastructure"] {
            self.site.start_provider(group);
        }
        self.shell("kubectl wait --for=condition=Established --timeout=60s crd --all");
    }

    /// Step 5.
    pub(crate) fn creates_the_cluster(&self) {
        self.apply(&[("Cluster", CLUSTER), ("BedplateCluster", CLUSTER)]);
        self.site.until("phase Provisioned of the Cluster", |site| {
            let cluster = site.team.get("cluster", CLUSTER).unwrap().unwrap_or_default();
            cluster["status"]["phase"] == "Provisioned"
                && cluster["spec"]["controlPlaneEndpoint"]["host"] == "10.7.0.10"
        });
        let shown = self.run("kubectl get -n team-a clusters.cluster.x-k8s.io team-a-2");
        assert!(shown.contains("Provisioned"), "{shown}");
    }

    fn apply_control_plane(&self, name: &str) {
        self.apply(&[("KubeadmConfig", name), ("BedplateMachine", name), ("Machine", name)]);
    }

    /// Step 6.
    pub(crate) fn creates_the_first_control_plane(&self) {
        self.apply_control_plane(FIRST);
        let of_machine = |what: &str, is: &dyn Fn(&Value) -> bool| {
            self.site.until(what, |_| is(&self.machine(FIRST)));
        };
        let is_true = |kind: &'static str| move |object: &Value| condition(object, kind)["status"] == "True";
        of_machine("the bootstrap data", &is_true("BootstrapConfigReady"));
        of_machine("the providerID", &|machine| machine["spec"]["providerID"].is_string());
        of_machine("the success of the data", &is_true("InfrastructureReady"));
        of_machine("the Node", &|machine| machine["status"]["nodeRef"]["name"] == FIRST);
        self.site.until_conditions(
            ("cluster", CLUSTER),
            &[
                ("InfrastructureReady", "True", "Provisioned"),
                ("ControlPlaneInitialized", "True", "Initialized"),
                ("RemoteConnectionProbe", "True", "ProbeSucceeded"),
            ],
        );
        for part in
            ["clusters.cluster.x-k8s.io,machines", "kubectl describe -n team-a machines", "kubectl events"]
        {
            assert!(self.run(part).contains(FIRST));
        }
        of_machine("phase Running", &|machine| machine["status"]["phase"] == "Running");
    }

    /// Step 7.
    pub(crate) fn gets_the_kubeconfig(&self) {
        self.run("kubectl get secret -n team-a team-a-2-kubeconfig");
        self.until_running(1);
    }

    /// Step 8, workers.
    pub(crate) fn adds_workers(&self) {
        self.apply(&[
            ("KubeadmConfigTemplate", WORKERS),
            ("BedplateMachineTemplate", "team-a-2-workers-v1.34.4"),
            ("MachineDeployment", WORKERS),
        ]);
        self.until_running(3);
        self.until_available("machinedeployment", WORKERS);
        self.until_available("cluster", CLUSTER);
        let shown = self.run("kubectl get -n team-a machinedeployments,machinesets");
        assert!(shown.matches("Running").count() >= 3, "{shown}");
    }

    /// Step 9. Without a marked Machine, one of two may be replaced. Then the number of workers is changed as in step 8.
    pub(crate) fn replaces_an_unhealthy_worker(&self) {
        self.apply(&[("MachineHealthCheck", WORKERS)]);
        self.site.until("two healthy Machines", |site| {
            let check = site.team.get("machinehealthcheck", WORKERS).unwrap().unwrap_or_default();
            let status = &check["status"];
            status["expectedMachines"] == 2
                && status["currentHealthy"] == 2
                && status["remediationsAllowed"] == 1
        });
        self.run("kubectl get -n team-a machinehealthchecks");
        let before = names(&self.site.claimants("workers"));
        let marked = before.first().unwrap();
        self.shell(&self.guide.command("remediate-machine").replace("NAME", marked));
        self.site.until("the end of the marked Machine", |_| self.machine(marked).is_null());
        self.until_running(3);
        assert!(!names(&self.site.claimants("workers")).contains(marked));

        let scale = self.guide.command("kubectl scale");
        self.shell(&scale.replace("--replicas 3", "--replicas 1"));
        self.until_claims(2);
        self.until_running(2);
    }

    fn until_claims(&self, count: usize) {
        self.site.until(&format!("{count} claims"), |site| site.claimed().len() == count);
    }

    /// Step 10, with the second Machine of step 8 as the new one.
    pub(crate) fn replaces_the_control_plane(&self) {
        self.apply_control_plane(SECOND);
        self.until_running(3);
        assert_eq!(self.members(), [FIRST, SECOND]);
        let before = self.site.claimed();
        self.run("hook.machine.cluster.x-k8s.io/etcd=");
        self.run("kubectl delete -n team-a machines.cluster.x-k8s.io team-a-2-cp-1 --wait=false");
        let held = [("Deleting", "True", "WaitingForPreTerminateHook")];
        self.site.until_conditions(("clustermachine", FIRST), &held);
        let nodes = self.nodes();
        let is_cordoned = |node: &Value| node["spec"]["unschedulable"] == true;
        let cordoned: Vec<Value> = nodes.into_iter().filter(is_cordoned).collect();
        assert_eq!(names(&cordoned), BTreeSet::from([FIRST.to_owned()]));
        assert_eq!(self.site.claimed(), before, "the host is held");
        let host = self.host(SECOND);
        self.site.with_etcd(&host, |etcd| etcd.remove(FIRST)).unwrap();
        self.run("hook.machine.cluster.x-k8s.io/etcd-");
        self.site.until("the end of the Machine", |_| self.machine(FIRST).is_null());
        self.until_running(2);
        self.until_claims(2);
        assert_eq!(self.members(), [SECOND]);
        self.until_available("cluster", CLUSTER);
    }

    /// Returns the host of a BedplateMachine.
    fn host(&self, name: &str) -> String {
        let [claimant] = &self.site.claimants(name)[..] else { panic!("not one {name}") };
        claimant["spec"]["machineName"].as_str().unwrap().to_owned()
    }

    /// Returns the names of the members of etcd.
    fn members(&self) -> Vec<String> {
        let members = self.site.with_etcd(&self.host(SECOND), |etcd| etcd.members().unwrap());
        members.into_iter().map(|member| member.name).collect()
    }

    /// Step 11. The next version is not built: its configuration has the version of the first one.
    pub(crate) fn upgrades_the_workers(&self) {
        let version = version().unwrap();
        assert_ne!(version, NEXT);
        let before = names(&self.site.claimants("workers"));
        let mut template = self.guide.manifest("BedplateMachineTemplate", NEXT_TEMPLATE);
        for_namespaces(&mut template);
        self.apply_all(&[self.configure(NEXT_CONFIGURATION), template]);
        // The version of no configuration: the new Machine waits, and the old one runs.
        self.run("kubectl patch -n team-a machinedeployment");
        self.site.until("a Machine that waits for its version", |site| {
            let claimants = site.claimants("workers");
            claimants.iter().any(|one| condition(one, "HostClaimed")["reason"] == "VersionMismatch")
        });
        self.site.until_conditions(("machinedeployment", WORKERS), &[("RollingOut", "True", "RollingOut")]);
        let cause =
            format!("needs Kubernetes {NEXT}, but MachineConfiguration {NEXT_CONFIGURATION} has {version}");
        self.site.until("the cause of the wait in MachinesReady", |site| {
            let deployment = site.team.get("machinedeployment", WORKERS).unwrap().unwrap_or_default();
            let message = &condition(&deployment, "MachinesReady")["message"];
            message.as_str().is_some_and(|message| message.contains(&cause))
        });
        assert!(self.run("kubectl describe -n team-a machinedeployment").contains(&cause));
        self.until_available("machinedeployment", WORKERS);
        assert!(before.is_subset(&names(&self.nodes())));

        let patch = self.guide.command("kubectl patch -n team-a machinedeployment");
        self.shell(&patch.replace(&format!(r#""version":"{NEXT}""#), &format!(r#""version":"{version}""#)));
        self.site.until("a worker of the new template", |site| {
            let workers = site.claimants("workers");
            workers.len() == 1
                && workers.iter().all(|one| one["spec"]["configurationRef"]["name"] == NEXT_CONFIGURATION)
        });
        self.until_running(2);
        let done = [("RollingOut", "False", "NotRollingOut"), ("Available", "True", "Available")];
        self.site.until_conditions(("machinedeployment", WORKERS), &done);
        self.until_claims(2);
        assert!(before.is_disjoint(&names(&self.nodes())));
    }

    /// Step 12.
    pub(crate) fn deletes_the_cluster(&self) {
        self.run("kubectl delete -n team-a clusters.cluster.x-k8s.io team-a-2");
        assert!(self.site.machines().is_empty());
        assert!(self.site.claimants("").is_empty());
        self.site.until_free();
        assert_eq!(self.free_hosts(), HOSTS.len());
        self.run("kubectl delete -n team-a kubeadmconfigtemplates");
        self.run("kubectl delete -n team-a bedplatemachinetemplates");
        for kind in [
            "cluster",
            "bpc",
            "machinedeployment",
            "machineset",
            "kubeadmconfig",
            "kubeadmconfigtemplate",
            "bpmt",
        ] {
            let left = self.site.team.list(kind, "").unwrap();
            assert!(left.is_empty(), "{kind} in {TEAM}: {left:#?}");
        }
        println!("{}", self.site.tables());
    }

    /// Each manifest and command was used, but for those that need what is not here.
    pub(crate) fn has_used_the_whole_guide(&self) {
        let unused = self.guide.unused();
        let unused: Vec<&String> =
            unused.iter().filter(|one| !NOT_TRIED.iter().any(|part| one.starts_with(part))).collect();
        assert_eq!(unused, [""; 0]);
    }
}

fn names(objects: &[Value]) -> BTreeSet<String> {
    objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}
