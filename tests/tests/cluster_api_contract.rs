//! The infrastructure provider under the controllers of Cluster API: the core, bootstrap and control-plane managers and clusterctl of the
//! version in tests/kubernetes/cluster-api (docs/infrastructure-provider.md). Agents are simulated. About 70 CPU seconds.
//!
//! etcd is external, so the control-plane manager opens no connection to a Pod.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bedplate_tests::cluster_api::{Simulator, Upstream, authorities, programs};
use bedplate_tests::guard::{Directory, Process, last_lines, run};
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::{control_plane, pxed, wait};
use http::Method;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(180);
const TEAM: &str = "team-a";
const CLUSTER: &str = "team-a-1";
const CONFIGURATION: &str = "pool";
const HOSTS: [&str; 4] = ["host-1", "host-2", "host-3", "host-4"];
const IMAGE: &str =
    "registry.example/node@sha256:0000000000000000000000000000000000000000000000000000000000000001";
/// Objects that a failure shows.
const SHOWN: &str = "cluster,kubeadmcontrolplane,machinedeployment,machines.cluster.x-k8s.io,bedplatecluster,bedplatemachine,machineclaim";

/// The management cluster with all its programs, and the API server of the workload cluster.
struct Site {
    team: Objects,
    simulator: Simulator,
    provider: Process,
    upstream: Upstream,
    place: Directory,
    workload: Kubernetes,
    management: Kubernetes,
}

impl Site {
    fn start() -> Self {
        let mut management = Kubernetes::installed().unwrap();
        management.start_controllers(&["clusterrole-aggregation-controller"]).unwrap();
        let workload = Kubernetes::start().unwrap();
        let place = Directory::new("contract").unwrap();
        let upstream = Upstream::start(&management).unwrap();
        let components = place.path().join("provider.yaml");
        std::fs::write(&components, clusterctl(place.path(), &["generate", "provider", INFRASTRUCTURE]))
            .unwrap();
        apply(&management, &components);
        let kubeconfig = management.service_account("bedplate-system", "bedplate-infrastructure").unwrap();
        let mut command = Command::new(pxed::binary("bedplate-cluster").unwrap());
        command.args(["--controllers=infrastructure", "--listen=127.0.0.1:0", "--log-format=text"]);
        command.arg("--kubeconfig").arg(kubeconfig);
        let log = place.path().join("provider.log");
        let provider = Process::spawn("bedplate-cluster", &mut command, &log).unwrap();
        let team = management.objects().unwrap().within(TEAM);
        team.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": TEAM } }))
            .unwrap();
        team.apply(
            &json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "metadata": { "name": CONFIGURATION },
            "spec": { "claimPolicy": { "namespaces": [TEAM] }, "template": { "image": { "reference": IMAGE },
                "kubernetes": { "version": control_plane::version().unwrap() } } } }),
        )
        .unwrap();
        let simulator = Simulator::start(&management, workload.objects().unwrap(), TEAM, &HOSTS).unwrap();
        Self { team, simulator, provider, upstream, place, workload, management }
    }

    /// Creates the cluster from the template as `clusterctl generate cluster` fills it in, with an external etcd.
    fn create_cluster(&self) {
        for secret in authorities(CLUSTER, &self.workload.pki()).unwrap() {
            self.team.apply(&secret).unwrap();
        }
        let version = control_plane::version().unwrap();
        let version = format!("--kubernetes-version={version}");
        let text = clusterctl(
            self.place.path(),
            &[
                "generate",
                "cluster",
                CLUSTER,
                INFRASTRUCTURE,
                "--target-namespace",
                TEAM,
                "--worker-machine-count=2",
                &version,
            ],
        );
        let port = self.workload.address().port();
        let text = text.replacen("port: 6443", &format!("port: {port}"), 1);
        let external = "    format: cloud-config\n    clusterConfiguration:\n      etcd:\n        external:\n          \
                        endpoints: [\"https://127.0.0.1:2379\"]\n          caFile: /etc/kubernetes/pki/etcd/ca.crt\n          \
                        certFile: /etc/kubernetes/pki/apiserver-etcd-client.crt\n          \
                        keyFile: /etc/kubernetes/pki/apiserver-etcd-client.key\n";
        assert!(text.contains("    format: cloud-config\n"), "{text}");
        let path = self.place.path().join("cluster.yaml");
        std::fs::write(&path, text.replacen("    format: cloud-config\n", external, 1)).unwrap();
        apply(&self.management, &path);
    }

    /// Machines of Cluster API that are not being deleted.
    fn machines(&self) -> Vec<Value> {
        let path = format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{TEAM}/machines");
        let list = self.team.request(&Method::GET, &path, "application/json", &Value::Null).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    fn until(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let reached = wait::until_asked(what, PATIENCE, || Ok(is(self).then_some(())));
        reached.unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()));
    }

    fn until_running(&self, count: usize) {
        self.until(&format!("{count} Machines that run"), |site| {
            let machines = site.machines();
            machines.len() == count && machines.iter().all(|machine| machine["status"]["phase"] == "Running")
        });
    }

    /// Waits until a condition of an object is True.
    fn until_true(&self, (kind, name): (&str, &str), condition: &str) {
        self.until(&format!("{condition} of {kind} {name}"), |site| {
            let found = site.team.get(kind, name).unwrap().unwrap_or_default();
            status(&found, condition) == "True"
        });
    }

    /// Hosts that have a claim.
    fn claimed(&self) -> Vec<String> {
        let claims = self.team.list("mcl", "").unwrap();
        claims.iter().filter_map(|claim| claim["metadata"]["name"].as_str().map(str::to_owned)).collect()
    }

    fn story(&self) -> String {
        let admin = self.management.admin();
        let objects = self
            .management
            .kubectl(&admin, &["get", SHOWN, "-n", TEAM, "-o", "yaml", "--show-managed-fields=false"]);
        format!(
            "{}\n{}\n{}\n{:#?}",
            objects.unwrap_or_default(),
            self.upstream.said(),
            last_lines(&self.provider.said(), 30),
            self.simulator.errors()
        )
    }
}

const INFRASTRUCTURE: &str = "--infrastructure=bedplate:v0.1.0";

/// Runs clusterctl over a local repository of the files in `deploy/cluster-api`. Returns what it printed.
fn clusterctl(place: &Path, arguments: &[&str]) -> String {
    let release = place.join("infrastructure-bedplate/v0.1.0");
    std::fs::create_dir_all(&release).unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api");
    for file in ["infrastructure-components.yaml", "metadata.yaml", "cluster-template.yaml"] {
        std::fs::write(release.join(file), std::fs::read(files.join(file)).unwrap()).unwrap();
    }
    let url = release.join("infrastructure-components.yaml");
    let provider = format!(
        "providers:\n- name: bedplate\n  type: InfrastructureProvider\n  url: file://{}\n",
        url.display()
    );
    let configuration = place.join("clusterctl.yaml");
    std::fs::write(&configuration, provider).unwrap();
    let mut command = Command::new(programs().unwrap().join("clusterctl"));
    command.args(arguments).arg("--config").arg(configuration);
    command.env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true").env("XDG_CONFIG_HOME", place);
    command.env("CONTROL_PLANE_HOST", "127.0.0.1").env("MACHINE_CONFIGURATION", CONFIGURATION);
    run(&mut command).unwrap()
}

fn apply(kubernetes: &Kubernetes, file: &Path) {
    let file = file.display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &file]).unwrap();
}

fn status<'a>(object: &'a Value, condition: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|found| found["type"] == condition));
    found.and_then(|found| found["status"].as_str()).unwrap_or_default()
}

#[test]
fn k2_cluster_of_upstream_runs_scales_and_frees_its_hosts() {
    let site = Site::start();
    site.create_cluster();
    site.until_running(3);
    for (kind, name) in
        [("cluster", CLUSTER), ("kcp", "team-a-1-control-plane"), ("machinedeployment", "team-a-1-workers")]
    {
        site.until_true((kind, name), "Available");
    }
    for machine in site.machines() {
        assert_eq!(status(&machine, "InfrastructureReady"), "True", "{machine}");
    }
    assert!(site.simulator.errors().is_empty(), "{}", site.story());
    site.team.merge("machinedeployment", "team-a-1-workers", &json!({ "spec": { "replicas": 1 } })).unwrap();
    site.until_running(2);
    site.until("two claims", |site| site.claimed().len() == 2);
    site.team.begin_delete("cluster", CLUSTER).unwrap();
    site.until("the end of the cluster", |site| site.team.get("cluster", CLUSTER).unwrap().is_none());
    site.until("a pool without claims", |site| site.claimed().is_empty());
    assert!(site.team.list("bpm", "").unwrap().is_empty());
}
