//! A peer: Tinkerbell's tink-controller of its Go module, with a Hardware and a Workflow for each machine and one Template.
//!
//! For a Workflow it renders the Template with the Hardware, and writes the result and a state into the status: one PATCH. It runs once as it
//! is, and once without its limits (`tests/kubernetes/tink`). As it is it writes 10 objects and then 5 a second, the defaults of client-go:
//! its first pass over all of them is cut off. Kinds, role and Template are those of its module.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::latency::watch;
use super::site::{AT_ONCE, Controller, Site, Size, free_port, sum};
use super::{PHASES, QUIET_TIME, Round, What, count};
use bedplate_tests::kubernetes::{programs, required};
use bedplate_tests::timeline;

/// As it is, by its program's name.
pub(super) const LIMITED: &str = "tink-controller";
/// Without its limits.
const RAISED: &str = "tink-controller-raised";
/// Duration for which its first pass is measured with its limits, and with `--quick`.
const WINDOW: (Duration, Duration) = (Duration::from_secs(120), Duration::from_secs(20));
/// Delay between two changes, so that none waits for its limit.
const CHANGE_DELAY: Duration = Duration::from_millis(250);

impl Round<'_> {
    /// Both, in one cluster.
    pub(super) async fn tink(&mut self) -> Result<()> {
        let started = Instant::now();
        let tink = Tink::start(self.size, self.context.directory.path()).await?;
        timeline::say(&format!("bench controller: objects made in {:.1} s", started.elapsed().as_secs_f64()));
        self.raised(&tink).await?;
        self.limited(&tink).await
    }

    async fn raised(&mut self, tink: &Tink) -> Result<()> {
        let all = count(self.size.machines);
        let before = (tink.site.processor()?, tink.site.requests().await?);
        let started = Instant::now();
        let mut controller = tink.controller(RAISED)?;
        controller.until(|metrics| waiting(metrics) == 0.0 && written(metrics) >= all).await?;
        let took = started.elapsed().as_secs_f64();
        let (server, own) = (tink.site.processor()? - before.0, controller.processor()?);
        let done = tink.with_state().await?.len();
        ensure!(done == self.size.machines, "{done} Workflows have a state");
        controller.until_quiet(QUIET_TIME).await?;
        let note = format!("{:.0} writes until it was quiet", written(&controller.metrics().await?));
        let asked = tink.site.requests().await?;
        self.put(What::SyncRequests, RAISED, (asked[1] - before.1[1]) / all, note);
        self.synced(RAISED, took, server, own)?;
        let changes = if self.context.quick { PHASES.1 } else { PHASES.0 };
        self.start_actions(tink, &mut controller, RAISED, 0..changes, Duration::ZERO).await?;
        self.rest(&controller, RAISED).await?;
        controller.end()?;
        self.again(tink, RAISED).await?.end()
    }

    async fn limited(&mut self, tink: &Tink) -> Result<()> {
        let mut controller = self.again(tink, LIMITED).await?;
        let (first, changes) =
            if self.context.quick { (PHASES.1, PHASES.1) } else { (PHASES.0, PHASES.0 / 4) };
        self.start_actions(tink, &mut controller, LIMITED, first..first + changes, CHANGE_DELAY).await?;
        self.rest(&controller, LIMITED).await?;
        controller.end()?;
        tink.forget().await?;
        let window = if self.context.quick { WINDOW.1 } else { WINDOW.0 };
        let controller = tink.controller(LIMITED)?;
        tokio::time::sleep(window).await;
        controller.end()?;
        let done = tink.with_state().await?.len();
        ensure!(done > 0, "no Workflow has a state");
        let note = format!("of {done}: cut off after {} s; its limit is 5 writes/s", window.as_secs());
        self.put(What::Each, LIMITED, 1000.0 * window.as_secs_f64() / count(done), note);
        Ok(())
    }

    /// Machines start their first action, one after the other.
    async fn start_actions(
        &mut self,
        tink: &Tink,
        controller: &mut Controller,
        who: &'static str,
        changes: std::ops::Range<usize>,
        pause: Duration,
    ) -> Result<()> {
        let (number, before) = (changes.len(), written(&controller.metrics().await?));
        let times = tink.start_actions(changes, pause).await?;
        self.times((What::Phase, What::PhaseLate), who, times)?;
        controller.until_quiet(QUIET_TIME).await?;
        let writes = written(&controller.metrics().await?) - before;
        self.put(What::PhaseWrites, who, writes / count(number), String::new());
        Ok(())
    }

    /// Starts it over a cluster that needs no changes.
    async fn again(&mut self, tink: &Tink, who: &'static str) -> Result<Controller> {
        let all = count(self.size.machines);
        let started = Instant::now();
        let mut controller = tink.controller(who)?;
        controller.until(|metrics| waiting(metrics) == 0.0 && looked(metrics) >= all).await?;
        let note = "without leader election".to_owned();
        self.put(What::Restart, who, started.elapsed().as_secs_f64(), note);
        controller.until_quiet(QUIET_TIME).await?;
        self.put(What::RestartWrites, who, written(&controller.metrics().await?), String::new());
        Ok(controller)
    }
}

fn waiting(metrics: &BTreeMap<String, f64>) -> f64 {
    sum(metrics, "workqueue_depth", "name=\"workflow\"")
}

/// Status of Workflows is all it writes here, with PATCH.
fn written(metrics: &BTreeMap<String, f64>) -> f64 {
    sum(metrics, "rest_client_requests_total", "method=\"PATCH\"")
}

fn looked(metrics: &BTreeMap<String, f64>) -> f64 {
    sum(metrics, "controller_runtime_reconcile_total", "result=\"success\"")
}

/// A cluster with its objects, and its programs.
struct Tink {
    site: Site,
    kubeconfig: PathBuf,
    programs: PathBuf,
    place: PathBuf,
    workflows: Api<DynamicObject>,
}

impl Tink {
    async fn start(size: Size, place: &Path) -> Result<Self> {
        let version = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/tink/go.mod");
        let version = required(&version, "github.com/tinkerbell/tink")?;
        let program = programs()?;
        let programs = program.parent().context("programs lie somewhere")?.join(format!("tink-{version}"));
        for program in [LIMITED, RAISED] {
            let path = programs.join(program);
            ensure!(path.is_file(), "{} is missing: `cargo xtask bench` builds it", path.display());
        }
        let site = Site::bare(size).await?;
        let kubeconfig = install(&site, &programs)?;
        let workflows = api(&site, "Workflow", "workflows");
        let tink = Self { kubeconfig, programs, place: place.to_owned(), workflows, site };
        tink.fill().await?;
        Ok(tink)
    }

    async fn fill(&self) -> Result<()> {
        let hardware = api(&self.site, "Hardware", "hardware");
        let make = |number: usize| {
            let (hardware, workflows) = (hardware.clone(), self.workflows.clone());
            async move {
                let [machine, work] = objects(number);
                hardware.create(&PostParams::default(), &serde_json::from_value(machine)?).await?;
                workflows.create(&PostParams::default(), &serde_json::from_value(work)?).await?;
                anyhow::Ok(())
            }
        };
        let all = 0..self.site.size.machines;
        stream::iter(all.map(make)).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    fn controller(&self, program: &str) -> Result<Controller> {
        let listen = free_port()?;
        let mut command = Command::new(self.programs.join(program));
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .args([format!("--metrics-bind-address={listen}"), "--health-probe-bind-address=0".to_owned()]);
        Controller::spawn(&mut command, &self.place.join(program), listen, "rest_client_requests_total")
    }

    /// The names of the Workflows that have a state.
    async fn with_state(&self) -> Result<Vec<String>> {
        let mut parameters = ListParams::default().limit(1000);
        let mut names = Vec::new();
        loop {
            let page = self.workflows.list(&parameters).await?;
            let done = page.items.into_iter().filter(|workflow| workflow.data["status"]["state"].is_string());
            names.extend(done.filter_map(|workflow| workflow.metadata.name));
            let Some(next) = page.metadata.continue_.filter(|next| !next.is_empty()) else {
                return Ok(names);
            };
            parameters = ListParams::default().limit(1000).continue_token(&next);
        }
    }

    /// Takes all states away.
    async fn forget(&self) -> Result<()> {
        let nothing = Patch::Merge(json!({ "status": null }));
        let one = |name: String| {
            let (workflows, nothing) = (&self.workflows, &nothing);
            async move {
                workflows.patch_status(&name, &PatchParams::default(), nothing).await?;
                anyhow::Ok(())
            }
        };
        let names = self.with_state().await?;
        stream::iter(names.into_iter().map(one)).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        let left = self.with_state().await?.len();
        ensure!(left == 0, "{left} Workflows still have a state");
        Ok(())
    }

    /// Reports of machines that they have started their first action, as Tinkerbell's server does for its agent: milliseconds from the request
    /// until the controller's summary names the action.
    async fn start_actions(&self, changes: std::ops::Range<usize>, pause: Duration) -> Result<Vec<f64>> {
        let mut seen = watch(&self.workflows).await?;
        let mut times = Vec::new();
        for change in changes {
            let name = Size::machine(change * 37 % self.site.size.machines);
            let mut workflow = self.workflows.get(&name).await?;
            let status = &mut workflow.data["status"];
            status["state"] = "STATE_RUNNING".into();
            let action = status.pointer_mut("/tasks/0/actions/0");
            let action = action.with_context(|| format!("{name} has no actions"))?;
            action["status"] = "STATE_RUNNING".into();
            action["startedAt"] = format!("{:.0}", Timestamp::now()).into();
            let action = action["name"].clone();
            let started = Instant::now();
            self.workflows.replace_status(&name, &PostParams::default(), &workflow).await?;
            let shown = |workflow: &DynamicObject| {
                workflow.metadata.name.as_ref() == Some(&name)
                    && workflow.data["status"]["currentAction"] == action
            };
            seen.until(shown).await?;
            times.push(started.elapsed().as_secs_f64() * 1000.0);
            tokio::time::sleep(pause).await;
        }
        Ok(times)
    }
}

/// Its kinds, its role and its Template; gives the kubeconfig of its service account.
fn install(site: &Site, manifests: &Path) -> Result<PathBuf> {
    let admin = site.kubernetes.admin();
    let kubectl = |arguments: &[&str]| site.kubernetes.kubectl(&admin, arguments);
    let apply = |file: &str| {
        let path = manifests.join(file).display().to_string();
        kubectl(&["apply", "--server-side", "-f", &path])
    };
    for kind in ["hardware", "templates", "workflows"] {
        apply(&format!("tinkerbell.org_{kind}.yaml"))?;
        let definition = format!("crd/{kind}.tinkerbell.org");
        kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &definition])?;
    }
    for file in ["role.yaml", "template.yaml"] {
        apply(file)?;
    }
    kubectl(&["create", "serviceaccount", LIMITED])?;
    let account = format!("--serviceaccount=default:{LIMITED}");
    kubectl(&["create", "clusterrolebinding", LIMITED, "--clusterrole=manager-role", &account])?;
    site.kubernetes.service_account("default", LIMITED)
}

fn api(site: &Site, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("tinkerbell.org", "v1alpha1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    Api::namespaced_with(site.client.clone(), "default", &resource)
}

/// The Hardware of a machine, in the manner of its module's example, with as many disks as our Machines have; and its Workflow.
fn objects(number: usize) -> [Value; 2] {
    let name = Size::machine(number);
    let mac = |nic: usize| format!("52:54:{nic:02x}:{:02x}:{:02x}:00", number / 256, number % 256);
    let interface = |nic: usize| {
        let ip = json!({ "address": format!("10.{nic}.{}.{}", number / 256, number % 256),
            "gateway": "10.0.0.1", "netmask": "255.0.0.0" });
        json!({ "dhcp": { "arch": "x86_64", "hostname": name, "ip": ip, "lease_time": 86_400, "mac": mac(nic),
                "name_servers": ["10.0.0.1", "10.0.0.2"], "uefi": true },
            "netboot": { "allowPXE": true, "allowWorkflow": true } })
    };
    let disks: Vec<Value> = (0..8)
        .map(|disk| json!({ "device": format!("/dev/disk/by-id/nvme-SERIAL{number:06}{disk}") }))
        .collect();
    let metadata = json!({ "facility": { "facility_code": "onprem" }, "manufacturer": { "slug": "example" },
        "instance": { "hostname": name, "id": mac(0), "userdata": "",
            "operating_system": { "distro": "debian", "os_slug": "debian_12", "version": "12" } } });
    let labels = json!({ "rack": format!("r{}", number / 40) });
    let hardware =
        json!({ "disks": disks, "interfaces": [interface(0), interface(1)], "metadata": metadata });
    let workflow =
        json!({ "templateRef": "debian", "hardwareRef": name, "hardwareMap": { "device_1": mac(0) } });
    [("Hardware", hardware), ("Workflow", workflow)].map(|(kind, spec)| {
        json!({ "apiVersion": "tinkerbell.org/v1alpha1", "kind": kind, "spec": spec,
            "metadata": { "name": name, "namespace": "default", "labels": labels } })
    })
}
