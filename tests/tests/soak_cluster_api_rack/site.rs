//! The management cluster with pxed, bedplate-controller, providers of Cluster API; hosts with the real agent; and a load balancer for control
//! planes.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bedplate_tests::bmc::server::Server;
use bedplate_tests::cluster_api::{Expected, Programs, Repository, Upstream, machines, shown, unmet};
use bedplate_tests::control_plane::{Etcd, files, images, registry_files, version};
use bedplate_tests::guard::{Process, last_lines};
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::nodes::{Nodes, condition};
use bedplate_tests::rack::{ADDRESS, BRIDGE, Rack};
use bedplate_tests::registry::Registry;
use bedplate_tests::worker::{Worker, take_turn};
use bedplate_tests::{objects, pxed, site, wait};
use serde_json::{Value, json};

use super::power::{Hosts, Power};
use super::template;

/// A control plane is replaced: a node boots and joins, etcd changes its members, a host is emptied.
const PATIENCE: Duration = Duration::from_secs(900);
pub(crate) const TEAM: &str = "team-a";
pub(crate) const HOSTS: [&str; 4] = ["host-1", "host-2", "host-3", "host-4"];
/// Address of the first host: the last octet.
const FIRST: u8 = 11;
/// Endpoint of the workload cluster: that of docs/guides/cluster-guide.md.
const ENDPOINT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 10);
const CONTROLLERS: [&str; 3] = ["csrsigning", "csrapproving", "clusterrole-aggregation-controller"];

/// All programs and hosts. They end in this order.
pub(crate) struct Site<'r> {
    pub(crate) team: Objects,
    /// None: Bedplate alone.
    upstream: Option<Upstream>,
    /// Groups of `bedplate-cluster`.
    providers: Vec<Process>,
    _balancer: Process,
    servers: Vec<Server>,
    hosts: Hosts,
    nodes: Nodes,
    site: site::Site<'r>,
    images: Registry,
    rack: &'r Rack,
}

impl<'r> Site<'r> {
    /// Starts hosts of a pool, the controllers of Cluster API and the infrastructure provider.
    pub(crate) fn start(rack: &'r Rack) -> Self {
        let mut site =
            Self::with_hosts(rack, &json!({ "spec": { "claimPolicy": { "namespaces": [TEAM] } } }));
        let kubernetes = site.site.kubernetes().unwrap();
        site.upstream = Some(Upstream::start(kubernetes, Programs::UPSTREAM).unwrap());
        site.start_provider("infrastructure");
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": TEAM } });
        site.team.apply(&namespace).unwrap();
        site
    }

    /// Starts hosts, each with the labels and the policy of `machine`. No provider of Cluster API is installed.
    pub(crate) fn with_hosts(rack: &'r Rack, machine: &Value) -> Self {
        take_turn().unwrap();
        let layout = rack.file("images");
        images(&layout).unwrap();
        let images = Registry::start_tls(&layout, rack.network(), (ADDRESS, 5001).into()).unwrap();
        let mut kubernetes = Kubernetes::installed_inside(rack.network(), ADDRESS.into()).unwrap();
        kubernetes.start_controllers(&CONTROLLERS).unwrap();
        let nodes = Nodes::start(rack, &kubernetes).unwrap();
        let balancer = balancer(rack);
        let team = kubernetes.objects().unwrap().within(TEAM);
        let site = site::Site::without_servers("cluster-api", rack, kubernetes).unwrap();
        let mut site = Self {
            team,
            upstream: None,
            providers: Vec::new(),
            _balancer: balancer,
            servers: Vec::new(),
            hosts: Hosts::default(),
            nodes,
            site,
            images,
            rack,
        };
        for (name, number) in HOSTS.into_iter().zip(1..) {
            let power = Power::new(name, site.hosts.clone());
            let server = Server::with_hardware(rack, name, Rack::mac(number), power).unwrap();
            site.team.within("bedplate-system").apply(&server.secret()).unwrap();
            let spec = json!({ "provider": "manual", "claimPolicy": machine["spec"]["claimPolicy"], "bmc": bmc(&server) });
            let metadata = json!({ "name": name, "labels": machine["metadata"]["labels"] });
            let machine = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
                "metadata": metadata, "spec": spec });
            site.team.apply(&machine).unwrap();
            site.servers.push(server);
            site.power_on(name);
            site.boot(name);
        }
        site
    }

    /// Starts a group of `bedplate-cluster` under the rights of its components.
    pub(crate) fn start_provider(&mut self, group: &str) {
        let account = format!("bedplate-{group}");
        let kubeconfig = self.kubernetes().service_account("bedplate-system", &account).unwrap();
        let mut command = self.rack.network().command(pxed::binary("bedplate-cluster").unwrap());
        command.args([&*format!("--controllers={group}"), "--listen=127.0.0.1:0", "--log-format=text"]);
        command.arg("--kubeconfig").arg(kubeconfig);
        let log = self.rack.file(&format!("{account}.log"));
        self.providers.push(Process::spawn("bedplate-cluster", &mut command, &log).unwrap());
    }

    pub(crate) fn kubernetes(&self) -> &Kubernetes {
        self.site.kubernetes().unwrap()
    }

    /// Folder of the files of the rack.
    pub(crate) fn path(&self) -> &Path {
        self.rack.path()
    }

    /// Returns a program in the network of the rack, with the files of the rack as its working directory.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = self.kubernetes().command_inside_network(Path::new(program));
        command.current_dir(self.rack.path());
        command
    }

    /// Boots a host with an empty file system, and enrolls it.
    pub(crate) fn boot(&self, name: &'static str) {
        let socket = self.site.pxed().unwrap().socket();
        let path = format!("/v1/machines/{name}");
        wait::until("the Machine at pxed", PATIENCE, || Ok(pxed::ask(&socket, &path).ok())).unwrap();
        let worker = Worker::enroll(self.rack.network(), &socket, name, address(name)).unwrap();
        self.hosts.lock().unwrap().insert(name, worker);
    }

    /// Unplugs the network of a host. The host continues to run.
    pub(crate) fn unplug(&self, name: &str) {
        self.rack.network().ip(&format!("link set dev v{} down", address(name))).unwrap();
    }

    /// The server of a host.
    pub(crate) fn server(&self, name: &str) -> &Server {
        self.servers.iter().find(|server| server.name() == name).unwrap()
    }

    /// Powers a host on by an operation.
    pub(crate) fn power_on(&self, name: &str) {
        let operation = objects::operation(name, "powerOn").on(name).generate_name(&format!("{name}-on-"));
        self.team.create(&operation.json()).unwrap();
        self.server(name).wait_power(true, PATIENCE).unwrap();
    }

    /// Creates a configuration for claims.
    pub(crate) fn configure(&self, name: &str) {
        let template = serde_json::from_value(self.template(name)).unwrap();
        self.team.apply(&objects::configuration(name, &template).pool(TEAM).json()).unwrap();
    }

    /// Returns the template of a configuration, with its name in a file.
    pub(crate) fn template(&self, name: &str) -> Value {
        let authority = self.images.authority().unwrap();
        let files = files().into_iter().chain(registry_files("10.7.0.1:5001", authority));
        let marker = json!({ "path": "/etc/configuration", "content": name });
        let registry = &self.nodes.registry;
        json!({
            "image": { "reference": registry.reference(), "caBundle": registry.authority() },
            "kubernetes": { "version": version().unwrap() },
            "container": { "network": "Host" },
            "files": files.chain([marker]).collect::<Vec<_>>(),
            "healthGate": { "timeoutSeconds": 600, "minReadySeconds": 1 },
        })
    }

    /// Creates a cluster as docs/guides/cluster-api-guide.md has it: `clusterctl generate cluster`, and `kubectl apply`.
    pub(crate) fn create_cluster(&self, cluster: &str, workers: &str) {
        let version = version().unwrap();
        let arguments =
            ["generate", "cluster", cluster, "--target-namespace", TEAM, "--kubernetes-version", &version];
        let count = ["--control-plane-machine-count", "1", "--worker-machine-count", workers];
        let endpoint = ENDPOINT.to_string();
        let variables = [("CONTROL_PLANE_HOST", &*endpoint), ("MACHINE_CONFIGURATION", "pool")];
        let text = self
            .repository()
            .clusterctl(self.kubernetes(), &[&arguments[..], &count].concat(), &variables)
            .unwrap();
        let path = self.rack.file("cluster.yaml");
        std::fs::write(&path, template::for_namespaces(&text)).unwrap();
        self.site.kubectl(&["apply", "--server-side", "-f", &path.display().to_string()]).unwrap();
    }

    fn repository(&self) -> &Repository {
        self.upstream.as_ref().unwrap().repository()
    }

    /// Machines of Cluster API.
    pub(crate) fn machines(&self) -> Vec<Value> {
        machines(&self.team, TEAM).unwrap()
    }

    /// BedplateMachines whose name contains this.
    pub(crate) fn claimants(&self, part: &str) -> Vec<Value> {
        let mut all = self.team.list("bpm", "").unwrap();
        all.retain(|machine| machine["metadata"]["name"].as_str().unwrap().contains(part));
        all
    }

    /// Claims, by their hosts.
    pub(crate) fn claimed(&self) -> Vec<String> {
        let claims = self.team.list("mcl", "").unwrap();
        claims.iter().filter_map(|claim| claim["metadata"]["name"].as_str().map(str::to_owned)).collect()
    }

    pub(crate) fn until(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let started = Instant::now();
        let reached = wait::until_asked(what, PATIENCE, || Ok(is(self).then_some(())));
        reached.unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()));
        println!("{what}: {:.1} s", started.elapsed().as_secs_f64());
    }

    /// Waits until there are `count` Machines, each with these conditions.
    pub(crate) fn until_machines(&self, count: usize, expected: &[Expected]) {
        self.until(&format!("{count} Machines run"), |site| {
            let machines = site.machines();
            machines.len() == count && machines.iter().all(|machine| unmet(machine, expected).is_empty())
        });
    }

    /// Waits until an object has these conditions.
    pub(crate) fn until_conditions(&self, (kind, name): (&str, &str), expected: &[Expected]) {
        self.until(&format!("conditions of {kind} {name}"), |site| {
            let found = site.team.get(kind, name).unwrap().unwrap_or_default();
            unmet(&found, expected).is_empty()
        });
    }

    /// kubectl in the workload cluster, with the kubeconfig of `clusterctl get kubeconfig`.
    pub(crate) fn workload(&self, cluster: &str, arguments: &[&str]) -> anyhow::Result<String> {
        let kubernetes = self.kubernetes();
        let get = ["get", "kubeconfig", cluster, "--namespace", TEAM];
        let path = self.rack.file("workload.conf");
        std::fs::write(&path, self.repository().clusterctl(kubernetes, &get, &[])?)?;
        kubernetes.kubectl(&path, arguments)
    }

    /// Returns a cluster as clusterctl shows it.
    pub(crate) fn described(&self, cluster: &str) -> String {
        let describe = ["describe", "cluster", cluster, "--namespace", TEAM, "--show-conditions", "all"];
        self.repository().clusterctl(self.kubernetes(), &describe, &[]).unwrap()
    }

    /// Waits until no host is claimed and each may be claimed again.
    pub(crate) fn until_free(&self) {
        self.until("free hosts", |site| {
            let is_free = |machine: &Value| condition(machine, "Paved")["reason"] == "AwaitingClaim";
            let machines = site.team.list("machine", "").unwrap();
            let are_free = machines.len() == HOSTS.len() && machines.iter().all(is_free);
            are_free && site.claimed().is_empty()
        });
    }

    /// Calls `act` with the etcd of the control plane on a host.
    pub(crate) fn with_etcd<T>(&self, name: &str, act: impl FnOnce(&Etcd<'_>) -> T) -> T {
        let hosts = self.hosts.lock().unwrap();
        let Worker { host, network } = &hosts[name];
        let pki = |slot: &&str| format!("var/lib/bedplate/slots/{slot}/state/kubernetes/pki/etcd");
        let slot = ["a", "b"].into_iter().find(|slot| host.root().join(pki(slot)).exists()).unwrap();
        let address = Ipv4Addr::new(10, 7, 0, address(name));
        act(&Etcd::of(host, network, address, slot))
    }

    /// Returns all objects as kubectl shows them.
    pub(crate) fn tables(&self) -> String {
        let mut kinds = "cluster.cluster.x-k8s.io,machinedeployment,machineset,machine.cluster.x-k8s.io,kubeadmconfig,bedplatemachine,machineclaim,machine.bedplate.dev".to_owned();
        if self.upstream.is_some() {
            kinds.push_str(",kubeadmcontrolplane");
        }
        self.site.kubectl(&["get", "-n", TEAM, &kinds]).unwrap_or_default()
    }

    fn story(&self) -> String {
        let kinds = ["cluster", "bpc", "kcp", "machinedeployment", "kubeadmconfig", "bpm", "mcl", "machine"];
        // A kind that is not installed has no objects.
        let objects = kinds.iter().flat_map(|kind| self.team.list(kind, "").unwrap_or_default());
        let objects: Vec<String> = objects.chain(self.machines()).map(|object| shown(&object)).collect();
        let hosts = self.hosts.lock().unwrap();
        let logs = "tail -n 40 /var/lib/bedplate/slots/*/state/log/bedplate/user-data.log";
        let said = |(name, worker): (&&str, &Worker)| {
            format!("{name}: {}\n{}", worker.said(), worker.host.run("sh", &["-c", logs]).unwrap_or_default())
        };
        let hosts: Vec<String> = hosts.iter().map(said).collect();
        format!(
            "{}\n{}\n{}\n{}\n{}\n{}",
            objects.join("\n"),
            self.upstream.as_ref().map(Upstream::said).unwrap_or_default(),
            self.providers.iter().map(|one| last_lines(&one.said(), 40)).collect::<Vec<_>>().join("\n--\n"),
            self.nodes.story(),
            hosts.join("\n"),
            self.tables()
        )
    }
}

/// Returns `spec.bmc` of a host.
fn bmc(server: &Server) -> Value {
    let secret = server.secret()["metadata"].clone();
    json!({ "protocol": "Redfish", "address": format!("https://{}", server.address().ip()),
        "credentialsSecretRef": { "namespace": secret["namespace"], "name": secret["name"] },
        "redfish": { "tls": { "mode": "Pin", "pins": [server.pin().unwrap().to_string()] } } })
}

/// Last octet of the address of a host.
fn address(name: &str) -> u8 {
    let number = HOSTS.iter().position(|host| *host == name).unwrap();
    FIRST + u8::try_from(number).unwrap()
}

/// Starts a load balancer that sends connections to a host whose API server answers.
fn balancer(rack: &Rack) -> Process {
    rack.network().ip(&format!("address add {ENDPOINT}/32 dev {BRIDGE}")).unwrap();
    let servers: String =
        (FIRST..).zip(HOSTS).map(|(last, name)| format!("  server {name} 10.7.0.{last}:6443\n")).collect();
    let config = format!(
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n\
         listen control-plane\n  bind {ENDPOINT}:6443\n  option httpchk GET /readyz\n  http-check expect status 200\n  \
         default-server check check-ssl verify none inter 1s fall 2 rise 1 on-marked-down shutdown-sessions\n{servers}"
    );
    let path = rack.file("haproxy.cfg");
    std::fs::write(&path, config).unwrap();
    let mut command = rack.network().command("haproxy");
    Process::spawn("haproxy", command.arg("-db").arg("-f").arg(path), &rack.file("haproxy.log")).unwrap()
}
