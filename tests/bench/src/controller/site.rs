//! The cluster of this bench: objects made in bulk, the controller as a process, and what both take.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use bedplate_tests::guard::Process;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::pxed;

/// Number of concurrent requests while objects are made.
pub(crate) const AT_ONCE: usize = 32;
/// Timeout of each step.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(600);

/// Number of objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) machines: usize,
    pub(super) configurations: usize,
}

impl Size {
    /// The name of a Machine.
    pub(super) fn machine(number: usize) -> String {
        format!("server-{number:05}")
    }

    /// The name of a configuration.
    pub(super) fn configuration(number: usize) -> String {
        format!("workers-{number:02}")
    }
}

/// An API server with enrolled Machines and configurations that no controller has reconciled.
pub(super) struct Site {
    pub(super) kubernetes: Kubernetes,
    pub(super) client: Client,
    pub(super) size: Size,
}

impl Site {
    /// Starts one with nothing in it.
    pub(super) async fn bare(size: Size) -> Result<Self> {
        let kubernetes = Kubernetes::start()?;
        let client = client(&kubernetes.admin()).await?;
        Ok(Self { kubernetes, client, size })
    }

    /// Starts one and makes its objects. `protected`: versions are written by our controller alone.
    pub(super) async fn start(size: Size, protected: bool) -> Result<Self> {
        let site = Self::bare(size).await?;
        site.kubernetes.install()?;
        if protected {
            site.kubernetes.protect_versions()?;
        }
        site.fill().await?;
        Ok(site)
    }

    async fn fill(&self) -> Result<()> {
        let configurations: Api<MachineConfiguration> = Api::all(self.client.clone());
        for number in 0..self.size.configurations {
            let object = serde_json::from_value(configuration(number))?;
            configurations.create(&PostParams::default(), &object).await?;
        }
        let machines: Api<Machine> = Api::all(self.client.clone());
        let make = |number: usize| {
            let machines = machines.clone();
            let (object, status) = machine(number, self.size.configurations);
            async move {
                machines.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
                apply(&machines, number, "bench", &status).await
            }
        };
        stream::iter((0..self.size.machines).map(make)).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    /// Number of Machines with a version and a phase.
    pub(super) async fn chosen(&self) -> Result<usize> {
        let machines: Api<Machine> = Api::all(self.client.clone());
        let mut parameters = ListParams::default().limit(1000);
        let mut count = 0;
        loop {
            let page = machines.list(&parameters).await?;
            let done = |machine: &&Machine| {
                machine
                    .status
                    .as_ref()
                    .is_some_and(|status| status.selected.is_some() && status.phase.is_some())
            };
            count += page.items.iter().filter(done).count();
            let Some(next) = page.metadata.continue_.filter(|next| !next.is_empty()) else {
                return Ok(count);
            };
            parameters = ListParams::default().limit(1000).continue_token(&next);
        }
    }

    /// Requests that the API server has answered, without watches and leases: of Events, and of all else.
    pub(super) async fn requests(&self) -> Result<[f64; 2]> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        let others = ["verb=\"WATCH\"", "resource=\"leases\"", "resource=\"\""];
        let counted = |line: &&str| {
            line.starts_with("apiserver_request_total{") && others.iter().all(|other| !line.contains(other))
        };
        let mut requests = [0.0; 2];
        for line in text.lines().filter(counted) {
            let place = usize::from(!line.contains("resource=\"events\""));
            requests[place] += last_number(line).unwrap_or_default();
        }
        Ok(requests)
    }

    /// Seconds on a processor of API server and etcd.
    pub(super) fn processor(&self) -> Result<f64> {
        self.kubernetes.pids().into_iter().map(processor).sum()
    }
}

/// Applies a part of a Machine's status as one of those who write it.
pub(super) async fn apply(
    machines: &Api<Machine>,
    number: usize,
    manager: &str,
    status: &Value,
) -> Result<()> {
    let body = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
        "metadata": { "name": Size::machine(number) }, "status": status });
    let parameters = PatchParams::apply(manager).force();
    machines.patch_status(&Size::machine(number), &parameters, &Patch::Apply(&body)).await?;
    Ok(())
}

/// A client as this user.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn configuration(number: usize) -> Value {
    let name = Size::configuration(number);
    let mut spec = json!({ "template": template(0) });
    if number.is_multiple_of(2) {
        spec["machineSelector"] = json!({ "matchLabels": { "group": name } });
    }
    json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "metadata": { "name": name }, "spec": spec })
}

/// A template that an edit has made, counted from 1; 0: none.
pub(super) fn template(edit: usize) -> Value {
    json!({ "image": { "reference": format!("registry.example/node@sha256:{:064x}", 7) },
        "kubernetes": { "version": "v1.34.4" }, "sysctls": { "vm.max_map_count": (262_144 + edit).to_string() } })
}

/// A condition of a Machine.
pub(super) fn condition(kind: &str, status: bool, reason: &str) -> Value {
    json!({ "type": kind, "status": if status { "True" } else { "False" }, "reason": reason,
        "message": "as of the last look", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// A Machine as one of a rack is after its enrollment, and its status: half are chosen for by selectors, half name their configuration.
fn machine(number: usize, configurations: usize) -> (Value, Value) {
    let group = number % configurations;
    let mac = |nic: usize| format!("52:54:{nic:02x}:{:02x}:{:02x}:00", number / 256, number % 256);
    let interfaces = json!([{ "macAddress": mac(0), "netboot": true }, { "macAddress": mac(1) }]);
    let mut spec = json!({ "provider": "pxe", "pxe": { "interfaces": interfaces } });
    if !group.is_multiple_of(2) {
        spec["configurationRef"] = json!({ "name": Size::configuration(group) });
    }
    let labels = json!({ "group": Size::configuration(group), "rack": format!("r{}", number / 40) });
    let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
        "metadata": { "name": Size::machine(number), "labels": labels }, "spec": spec });
    let disks: Vec<Value> = (0..8)
        .map(|disk| {
            let ids = [format!("/dev/disk/by-id/nvme-SERIAL{number:06}{disk}"), format!("/dev/disk/by-id/nvme-eui.{number:012}{disk}")];
            json!({ "name": format!("nvme{disk}n1"), "byID": ids, "serial": format!("SERIAL{number:06}{disk}"),
                "model": "A disk of two terabytes", "sizeBytes": 2_000_398_934_016_i64, "rotational": false })
        })
        .collect();
    let nics: Vec<Value> = (0..4)
        .map(|nic| json!({ "name": format!("eno{nic}"), "macAddress": mac(nic), "driver": "ice", "link": true, "speedMbps": 25_000 }))
        .collect();
    let conditions = ["BMCReachable", "Booted", "Enrolled"].map(|kind| condition(kind, true, "Done"));
    let status = json!({ "conditions": conditions, "hardware": { "vendor": "Example", "product": "Server",
        "serial": format!("S{number:08}"), "memoryBytes": 549_755_813_888_i64, "disks": disks, "nics": nics,
        "cpu": { "model": "A processor of 64 cores", "sockets": 2, "cores": 64, "threads": 128 } },
        "agent": { "version": "0.1.0", "bootID": format!("{number:032x}") } });
    (object, status)
}

/// A controller as a process.
pub(crate) struct Controller {
    process: Process,
    /// The metric that counts what it writes.
    counter: &'static str,
    listen: SocketAddr,
    web: reqwest::Client,
}

impl Controller {
    /// Starts Bedplate's controller; it reads the cluster immediately.
    pub(super) fn start(site: &Site, place: &Path) -> Result<Self> {
        let kubeconfig = site.kubernetes.service_account("bedplate-system", "bedplate-controller")?;
        let listen = free_port()?;
        let mut command = Command::new(pxed::binary("bedplate-controller")?);
        command.arg("--kubeconfig").arg(kubeconfig).args([
            "--instance",
            "bench",
            "--listen",
            &listen.to_string(),
        ]);
        Self::spawn(&mut command, place, listen, "bedplate_controller_writes_total")
    }

    /// Starts one that shows its metrics at `listen`.
    pub(crate) fn spawn(
        command: &mut Command,
        place: &Path,
        listen: SocketAddr,
        counter: &'static str,
    ) -> Result<Self> {
        std::fs::create_dir_all(place)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let process = Process::spawn(&program, command, &place.join("controller.log"))?;
        let web = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
        Ok(Self { process, counter, listen, web })
    }

    /// Ends the controller in order, so that it releases its Lease.
    pub(crate) fn end(mut self) -> Result<()> {
        self.process.terminate(Duration::from_secs(30)).map(drop)
    }

    /// Samples of the controller's metrics, by name and labels. Empty before it listens.
    pub(crate) async fn metrics(&mut self) -> Result<BTreeMap<String, f64>> {
        ensure!(self.process.is_running(), "it has ended: {}", self.last_words());
        let Ok(answer) = self.web.get(format!("http://{}/metrics", self.listen)).send().await else {
            return Ok(BTreeMap::new());
        };
        let text = answer.text().await?;
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        Ok(samples
            .filter_map(|line| Some((line.rsplit_once(' ')?.0.to_owned(), last_number(line)?)))
            .collect())
    }

    /// All that it has written, or what has this among the labels.
    pub(super) async fn writes(&mut self, label: &str) -> Result<f64> {
        Ok(sum(&self.metrics().await?, self.counter, label))
    }

    /// Waits until ours leads.
    pub(super) async fn until_it_leads(&mut self) -> Result<()> {
        self.until(|metrics| sum(metrics, "bedplate_controller_leader", "") > 0.0).await
    }

    /// Waits until ours leads and nothing waits in its queues.
    pub(super) async fn until_idle(&mut self, writes: f64) -> Result<()> {
        let idle = |metrics: &BTreeMap<String, f64>| {
            let leads = sum(metrics, "bedplate_controller_leader", "") > 0.0;
            let waiting = sum(metrics, "bedplate_controller_queue_depth", "");
            let written = sum(metrics, "bedplate_controller_writes_total", "kind=\"Machine\"");
            leads && waiting == 0.0 && written >= writes
        };
        self.until(idle).await
    }

    /// Waits until its metrics say so.
    pub(crate) async fn until(&mut self, done: impl Fn(&BTreeMap<String, f64>) -> bool) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < STEP_TIMEOUT {
            if done(&self.metrics().await?) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("it is not done after {} s: {}", STEP_TIMEOUT.as_secs(), self.last_words())
    }

    /// The last lines of its log.
    fn last_words(&self) -> String {
        let said = self.process.said();
        let lines: Vec<&str> = said.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Waits until it has written nothing for a while: what it counts comes after seconds.
    pub(crate) async fn until_quiet(&mut self, quiet: Duration) -> Result<f64> {
        let (mut since, mut before, started) = (Instant::now(), -1.0, Instant::now());
        while since.elapsed() < quiet {
            ensure!(started.elapsed() < STEP_TIMEOUT, "it writes for ever");
            let now = self.writes("").await?;
            if now > before {
                (since, before) = (Instant::now(), now);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(before)
    }

    /// Memory in MiB: `VmRSS:` or `VmHWM:`.
    pub(crate) fn memory(&self, line: &str) -> Result<f64> {
        memory(self.process.pid(), line)
    }

    /// Seconds on a processor.
    pub(crate) fn processor(&self) -> Result<f64> {
        processor(self.process.pid())
    }
}

/// A free port of the loopback.
pub(crate) fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Samples of a metric with this in their labels, added up.
pub(crate) fn sum(metrics: &BTreeMap<String, f64>, name: &str, label: &str) -> f64 {
    let of = metrics.iter().filter(|(key, _)| {
        key.strip_prefix(name)
            .is_some_and(|rest| (rest.is_empty() || rest.starts_with('{')) && rest.contains(label))
    });
    // The sum of no numbers is -0.0, and would be printed so.
    of.map(|(_, value)| value).fold(0.0, |all, value| all + value)
}

fn last_number(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}

fn memory(pid: u32, line: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|text| text.strip_prefix(line)).context("no such line")?;
    let kibibytes = value.split_whitespace().next().context("no number")?;
    Ok(kibibytes.parse::<f64>()? / 1024.0)
}

/// Seconds on a processor since it started, of threads that ended too.
pub(crate) fn processor(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").context("no stat")?.1;
    let ticks: Vec<f64> = fields.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    // The kernel shows hundredths of a second, whatever it counts in.
    Ok(ticks.iter().sum::<f64>() / 100.0)
}
