//! The management cluster with the controllers of Cluster API and the provider, simulated hosts, and the API server of the workload cluster.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bedplate_tests::cluster_api::{
    Expected, Programs, Simulator, Upstream, authorities, machines, shown, unmet,
};
use bedplate_tests::guard::{Directory, Process, last_lines};
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::objects::{self, NODE_IMAGE};
use bedplate_tests::{control_plane, pxed, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(180);
pub(crate) const TEAM: &str = "team-a";
pub(crate) const CLUSTER: &str = "team-a-1";
pub(crate) const CONTROL_PLANE: &str = "team-a-1-control-plane";
pub(crate) const WORKERS: &str = "team-a-1-workers";
const CONFIGURATION: &str = "pool";
pub(crate) const HOSTS: [&str; 4] = ["host-1", "host-2", "host-3", "host-4"];

/// All programs and simulated hosts.
pub(crate) struct Site {
    pub(crate) team: Objects,
    pub(crate) simulator: Simulator,
    /// Our programs, by group.
    providers: BTreeMap<&'static str, Process>,
    upstream: Upstream,
    place: Directory,
    workload: Kubernetes,
    management: Kubernetes,
}

impl Site {
    pub(crate) fn start(programs: Programs) -> Self {
        let mut management = Kubernetes::installed().unwrap();
        let controllers = ["clusterrole-aggregation-controller", "garbage-collector-controller"];
        management.start_controllers(&controllers).unwrap();
        let workload = Kubernetes::start().unwrap();
        let place = Directory::new("contract").unwrap();
        let upstream = Upstream::start(&management, programs).unwrap();
        let groups = programs.groups().into_iter();
        let providers = groups.map(|group| (group, provider(&management, &place, group))).collect();
        let team = management.objects().unwrap().within(TEAM);
        team.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": TEAM } }))
            .unwrap();
        let simulator = Simulator::start(&management, workload.objects().unwrap(), TEAM, &HOSTS).unwrap();
        let site = Self { team, simulator, providers, upstream, place, workload, management };
        site.configure(CONFIGURATION, &control_plane::version().unwrap());
        site
    }

    /// Creates a MachineConfiguration of a Kubernetes version.
    pub(crate) fn configure(&self, name: &str, version: &str) {
        let mut template = objects::template(NODE_IMAGE);
        version.clone_into(&mut template.kubernetes.version);
        self.team.apply(&objects::configuration(name, &template).pool(TEAM).json()).unwrap();
    }

    /// Creates the cluster as docs/reference/infrastructure-provider.md has it, with an external etcd.
    pub(crate) fn create_cluster(&self) {
        for secret in authorities(CLUSTER, &self.workload.pki()).unwrap() {
            self.team.apply(&secret).unwrap();
        }
        let version = control_plane::version().unwrap();
        let version = ["--kubernetes-version", &version];
        let count = ["--control-plane-machine-count", "1", "--worker-machine-count", "2"];
        let arguments = [&["generate", "cluster", CLUSTER, "--target-namespace", TEAM], &version[..], &count];
        let port = self.workload.address().port().to_string();
        let variables = [
            ("CONTROL_PLANE_HOST", "127.0.0.1"),
            ("CONTROL_PLANE_PORT", &port),
            ("MACHINE_CONFIGURATION", CONFIGURATION),
        ];
        let text = self.clusterctl(&arguments.concat(), &variables);
        let path = self.place.path().join("cluster.yaml");
        std::fs::write(&path, without_pods(&text)).unwrap();
        let path = path.display().to_string();
        let apply = ["apply", "--server-side", "-f", &path];
        self.management.kubectl(&self.management.admin(), &apply).unwrap();
    }

    /// Runs clusterctl with these variables of a template. Returns its output.
    pub(crate) fn clusterctl(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        self.upstream.repository().clusterctl(&self.management, arguments, variables).unwrap()
    }

    /// Replaces the core of upstream by ours over the same objects and definitions (docs/reference/core-provider.md).
    pub(crate) fn take_over(&mut self) {
        self.upstream.stop_core(&self.management).unwrap();
        for name in ["core-policy.yaml", "core-provider.yaml"] {
            self.with_file("apply", name);
        }
        self.providers.insert("core", provider(&self.management, &self.place, "core"));
    }

    /// Replaces our core by upstream's (docs/reference/core-provider.md).
    pub(crate) fn hand_back(&mut self) {
        self.providers.remove("core").unwrap().terminate(PATIENCE).unwrap();
        for name in ["core-provider.yaml", "core-policy.yaml"] {
            self.with_file("delete", name);
        }
        self.upstream.start_core(&self.management).unwrap();
    }

    /// Applies or deletes the objects of a file of deploy/cluster-api.
    fn with_file(&self, verb: &str, name: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api").join(name);
        let path = path.display().to_string();
        let server_side = (verb == "apply").then_some("--server-side");
        let arguments: Vec<&str> = [verb, "-f", &path].into_iter().chain(server_side).collect();
        self.management.kubectl(&self.management.admin(), &arguments).unwrap();
    }

    /// Machines of Cluster API.
    pub(crate) fn machines(&self) -> Vec<Value> {
        machines(&self.team, TEAM).unwrap()
    }

    pub(crate) fn until(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let reached = wait::until_asked(what, PATIENCE, || Ok(is(self).then_some(())));
        reached.unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()));
    }

    /// The BedplateMachine of the only worker.
    pub(crate) fn worker(&self) -> Value {
        let all = self.team.list("bpm", "labelSelector=cluster.x-k8s.io/deployment-name").unwrap();
        assert_eq!(all.len(), 1, "{}", self.conditions());
        all[0].clone()
    }

    /// Waits until there are `count` Machines, each with these conditions.
    pub(crate) fn until_machines(&self, count: usize, expected: &[Expected]) {
        self.until(&format!("{count} Machines with {expected:?}"), |site| {
            let machines = site.machines();
            machines.len() == count && machines.iter().all(|machine| unmet(machine, expected).is_empty())
        });
    }

    /// Waits until a Machine has these conditions.
    pub(crate) fn until_machine(&self, name: &str, expected: &[Expected]) {
        self.until(&format!("Machine {name} with {expected:?}"), |site| {
            let machines = site.machines();
            let mut named = machines.iter().filter(|machine| machine["metadata"]["name"] == *name);
            named.any(|machine| unmet(machine, expected).is_empty())
        });
    }

    /// Waits until an object has these conditions.
    pub(crate) fn until_conditions(&self, (kind, name): (&str, &str), expected: &[Expected]) {
        self.until(&format!("{kind} {name} with {expected:?}"), |site| {
            let found = site.team.get(kind, name).unwrap().unwrap_or_default();
            unmet(&found, expected).is_empty()
        });
    }

    /// Claims, by their hosts.
    pub(crate) fn claimed(&self) -> Vec<String> {
        let claims = self.team.list("mcl", "").unwrap();
        claims.iter().filter_map(|claim| claim["metadata"]["name"].as_str().map(str::to_owned)).collect()
    }

    /// All objects with their conditions.
    pub(crate) fn conditions(&self) -> String {
        let kinds = ["cluster", "bpc", "kcp", "machinedeployment", "machineset", "bpm", "mcl"];
        let objects = kinds.iter().flat_map(|kind| self.team.list(kind, "").unwrap());
        let objects: Vec<Value> = objects.chain(self.machines()).collect();
        objects.iter().map(shown).collect::<Vec<_>>().join("\n")
    }

    fn story(&self) -> String {
        let ends: Vec<String> =
            self.providers.values().map(|provider| last_lines(&provider.said(), 40)).collect();
        let errors = self.simulator.errors();
        format!("{}\n{}\n{}\n{errors:#?}", self.conditions(), self.upstream.said(), ends.join("\n--\n"))
    }
}

/// Starts a group of our controllers in the network of the test, under the role that clusterctl has installed.
fn provider(management: &Kubernetes, place: &Directory, group: &str) -> Process {
    let account = format!("bedplate-{group}");
    let kubeconfig = management.service_account("bedplate-system", &account).unwrap();
    let mut command = Command::new(pxed::binary("bedplate-cluster").unwrap());
    command.args([&format!("--controllers={group}"), "--listen=127.0.0.1:0", "--log-format=text"]);
    if group != "infrastructure" {
        // The API server of the workload cluster.
        command.arg("--workload-networks=127.0.0.0/8");
    }
    command.arg("--kubeconfig").arg(kubeconfig);
    let log = place.path().join(format!("{group}.log"));
    Process::spawn("bedplate-cluster", &mut command, &log).unwrap()
}

/// Returns the Kubernetes version that follows the one of the tests.
pub(crate) fn next_version() -> String {
    let version = control_plane::version().unwrap();
    let (minor, patch) = version.rsplit_once('.').unwrap();
    format!("{minor}.{}", patch.parse::<u32>().unwrap() + 1)
}

/// Returns the cluster with an external etcd. KubeadmControlPlane would reach members, and the certificate of the API server, through Pods,
/// which simulated hosts do not run.
fn without_pods(cluster: &str) -> String {
    let external = "  kubeadmConfigSpec:\n    format: cloud-config\n    clusterConfiguration:\n      etcd:\n        external:\n          \
                    endpoints: [\"https://127.0.0.1:2379\"]\n          caFile: /etc/kubernetes/pki/etcd/ca.crt\n          \
                    certFile: /etc/kubernetes/pki/apiserver-etcd-client.crt\n          \
                    keyFile: /etc/kubernetes/pki/apiserver-etcd-client.key\n";
    let known = "  machineTemplate:\n    metadata:\n      annotations:\n        \
                 machine.cluster.x-k8s.io/certificates-expiry: \"2099-01-01T00:00:00Z\"\n";
    let replaced =
        [("  kubeadmConfigSpec:\n    format: cloud-config\n", external), ("  machineTemplate:\n", known)];
    replaced.iter().fold(cluster.to_owned(), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from:?} in {text}");
        text.replacen(from, to, 1)
    })
}
