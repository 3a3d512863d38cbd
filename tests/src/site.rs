//! A site for tests of power: servers that are off behind BMCs, a pxed that drives them, with a real API server under the
//! roles of `deploy/` or with manifests alone. What fails tells pxed's log, the objects, and what became of the power.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::bmc::chassis::{Action, Source};
use crate::bmc::server::Server;
use crate::kubernetes::{Kubernetes, Objects};
use crate::pxed::{self, Pxed, Setup};
use crate::rack::{ADDRESS, Rack};
use crate::{guard, objects, timeline, wait};

/// Maximum time until pxed has seen an object and sent a request to a BMC, or an operation has ended, on a busy machine.
pub const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Number of lines of a log that a failure shows.
const MAX_LOG_LINES: usize = 30;

/// A site.
pub struct Site<'r> {
    test: &'static str,
    rack: &'r Rack,
    /// `None` only while it is killed.
    pxed: Option<Pxed<'r>>,
    kubernetes: Option<Kubernetes>,
    directory: PathBuf,
    servers: Vec<Server>,
}

impl<'r> Site<'r> {
    /// With an API server that signs certificates, and pxed as the service account that `deploy/` makes for it. No object is
    /// there yet.
    ///
    /// # Errors
    /// Something of it does not start.
    pub fn in_cluster(test: &'static str, rack: &'r Rack, servers: Vec<Server>) -> Result<Self> {
        let mut kubernetes = Kubernetes::installed_inside(rack.network(), ADDRESS.into())?;
        kubernetes.start_controllers(&["csrsigning"])?;
        Self::with_kubernetes(test, rack, servers, kubernetes)
    }

    /// With this API server in the rack's network, which has the kinds and roles of `deploy/` and signs certificates.
    ///
    /// # Errors
    /// pxed does not start.
    pub fn with_kubernetes(
        test: &'static str,
        rack: &'r Rack,
        servers: Vec<Server>,
        kubernetes: Kubernetes,
    ) -> Result<Self> {
        Self::with_image(test, rack, servers, kubernetes, pxed::host_image()?)
    }

    /// Starts a site without servers: nothing is booted, hosts are enrolled by hand.
    ///
    /// # Errors
    /// pxed does not start.
    pub fn without_servers(test: &'static str, rack: &'r Rack, kubernetes: Kubernetes) -> Result<Self> {
        Self::with_image(test, rack, Vec::new(), kubernetes, pxed::stub_image(rack.path())?)
    }

    fn with_image(
        test: &'static str,
        rack: &'r Rack,
        servers: Vec<Server>,
        kubernetes: Kubernetes,
        image: String,
    ) -> Result<Self> {
        let account = kubernetes.service_account("bedplate-system", "pxed")?;
        let mut setup = Setup::new(image);
        setup.source = Some(format!("kubernetes = {{ kubeconfig = {:?} }}\n", account.display().to_string()));
        "\n[bmc]\npoll-seconds = 5\n".clone_into(&mut setup.more);
        let directory = rack.file("pxed");
        let pxed = Some(Pxed::start(&setup, &[], rack.network(), &directory)?);
        Ok(Self { test, rack, pxed, kubernetes: Some(kubernetes), directory, servers })
    }

    /// With a directory of manifests, in which its Machines are from the start.
    ///
    /// # Errors
    /// pxed does not start.
    pub fn standalone(test: &'static str, rack: &'r Rack, servers: Vec<Server>) -> Result<Self> {
        let setup = Setup::new(pxed::host_image()?).with_bmcs(rack.path());
        let mut manifests = Vec::new();
        for (server, number) in servers.iter().zip(1..) {
            server.write_credentials(&pxed::credentials_directory(rack.path()))?;
            manifests.push(pxed::manifest(number, &server.bmc_yaml()));
        }
        let directory = rack.path().to_owned();
        let pxed = Some(Pxed::start(&setup, &manifests, rack.network(), &directory)?);
        Ok(Self { test, rack, pxed, kubernetes: None, directory, servers })
    }

    /// Its pxed.
    ///
    /// # Errors
    /// It was killed and did not come up again.
    pub fn pxed(&self) -> Result<&Pxed<'r>> {
        self.pxed.as_ref().context("pxed is not there")
    }

    /// Its servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The server of that number, counted from 1.
    ///
    /// # Errors
    /// There is none.
    pub fn server(&self, number: u8) -> Result<&Server> {
        self.servers.get(usize::from(number).wrapping_sub(1)).context("no such server")
    }

    /// Kills pxed with SIGKILL and starts it again.
    ///
    /// # Errors
    /// It does not come up again.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        let pxed = self.pxed.take().context("pxed is not there")?;
        self.pxed = Some(pxed.kill_and_restart()?);
        Ok(())
    }

    /// `kubectl` as the cluster's administrator.
    ///
    /// # Errors
    /// What it says.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let kubernetes = self.kubernetes()?;
        kubernetes.kubectl(&kubernetes.admin(), arguments)
    }

    /// Returns its API server.
    ///
    /// # Errors
    /// The site has no cluster.
    pub fn kubernetes(&self) -> Result<&Kubernetes> {
        self.kubernetes.as_ref().context("a site without a cluster")
    }

    /// Returns access to the cluster's objects as its administrator.
    ///
    /// # Errors
    /// The site has no cluster.
    pub fn objects(&self) -> Result<&Objects> {
        self.kubernetes()?.objects()
    }

    /// An object as the API server has it.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.objects()?.get(kind, name)?.with_context(|| format!("no {kind} {name}"))
    }

    /// `bedplate` on pxed's socket.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn bedplate(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(pxed::binary("bedplate")?);
        command.arg("--socket").arg(self.pxed()?.socket()).args(arguments);
        command.output().context("cannot start bedplate")
    }

    /// Applies a server's Secret and Machine, with `more` behind its `bmc`.
    ///
    /// # Errors
    /// The API server refuses one of them.
    pub fn apply(&self, number: u8, more: &str) -> Result<()> {
        self.apply_with(number, "", more)
    }

    /// Applies a Machine with `pxe` inside `spec.pxe`.
    ///
    /// # Errors
    /// The API server refuses one of them.
    pub fn apply_with(&self, number: u8, pxe: &str, more: &str) -> Result<()> {
        let server = self.server(number)?;
        let secret = self.write("secret.json", &server.secret().to_string())?;
        let machine = pxed::manifest(number, &format!("{pxe}{}{more}", server.bmc_yaml()));
        let machine = self.write(&format!("{}.yaml", server.name()), &machine)?;
        self.kubectl(&["apply", "-f", &secret, "-f", &machine]).map(drop)
    }

    /// Creates a MachineOperation and returns its name.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn create(&self, number: u8, operation: &str, parameters: &Value) -> Result<String> {
        let machine = self.server(number)?.name();
        let start = format!("{machine}-{}-", operation.to_lowercase());
        let parameters = serde_json::from_value(parameters.clone())?;
        let object = objects::operation(machine, operation).on(machine).generate_name(&start);
        let made = self.objects()?.create(&object.spec(|spec| spec.parameters = parameters).json())?;
        Ok(made["metadata"]["name"].as_str().context("an object without a name")?.to_owned())
    }

    fn write(&self, name: &str, content: &str) -> Result<String> {
        let path = self.rack.file(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.display().to_string())
    }

    /// Puts a manifest into pxed's directory, as an editor does: whole.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put_manifest(&self, name: &str, content: &str) -> Result<()> {
        let written = self.write("manifest", content)?;
        let place = self.directory.join("machines.d").join(name);
        std::fs::rename(Path::new(&written), &place)
            .with_context(|| format!("cannot put {}", place.display()))
    }

    /// Waits until an operation has completed for that reason; gives its status.
    ///
    /// # Errors
    /// It ends otherwise, or not in time.
    pub fn completes(&self, operation: &str, reason: &str) -> Result<Value> {
        let path = format!("/v1/operations/{operation}");
        let status = self.until(&format!("the end of {operation}"), CHANGE_TIMEOUT, |site| {
            let seen = pxed::ask(&site.pxed()?.socket(), &path).unwrap_or_default();
            let ended = seen["status"]["state"] == "Complete" || seen["status"]["state"] == "Failed";
            Ok(ended.then(|| seen["status"].clone()))
        })?;
        self.ensure(status["state"] == "Complete" && status["reason"] == reason, || {
            format!("{operation} ended otherwise than {reason}: {status}")
        })?;
        timeline::say(&format!("power {}: {operation}: {status}", self.test));
        Ok(status)
    }

    /// Waits until a server has reached a stage in another boot than `before`; gives the boot's id.
    ///
    /// # Errors
    /// It does not in time.
    pub fn boots(&self, number: u8, before: &str, stage: &str, limit: Duration) -> Result<String> {
        let name = self.server(number)?.name();
        let machine = self.until(&format!("{name} to reach {stage}"), limit, |site| {
            // Unknown there until pxed's watch has delivered it.
            let machine = site.pxed()?.machine(name).unwrap_or_default();
            let other = boot_of(&machine) != before;
            Ok((other && timeline::has(&machine, stage)).then_some(machine))
        })?;
        let since = self.server(number)?.changes().into_iter().rfind(|change| change.on);
        let since = since.with_context(|| format!("{name} was never switched on"))?;
        timeline::report(self.test, &machine, since.at);
        Ok(boot_of(&machine).to_owned())
    }

    /// Waits until a Machine's status has something, as pxed has it.
    ///
    /// # Errors
    /// It has not in time.
    pub fn becomes(&self, number: u8, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        let name = self.server(number)?.name();
        self.until(what, CHANGE_TIMEOUT, |site| {
            let status = site.pxed()?.machine(name).unwrap_or_default()["status"].clone();
            Ok(is(&status).then_some(status))
        })
    }

    /// Waits until pxed has asked BMCs of this protocol `times` more often.
    ///
    /// # Errors
    /// It has not in time.
    pub fn looks_again(&self, protocol: &str, times: u64) -> Result<()> {
        let name = format!("bedplate_pxed_bmc_call_duration_seconds_count{{protocol=\"{protocol}\"}}");
        let before = self.pxed()?.metric(&name).unwrap_or_default();
        self.until("another poll of the BMC", CHANGE_TIMEOUT, |site| {
            Ok((site.pxed()?.metric(&name).unwrap_or_default() >= before + times).then_some(()))
        })
    }

    /// Compares all power requests to a server, and the changes of its power.
    ///
    /// # Errors
    /// Another than this.
    pub fn has_seen(&self, number: u8, asked: &[Action], switched: &[Option<Source>]) -> Result<()> {
        let server = self.server(number)?;
        let seen: Vec<Action> = server.chassis().lock().asked().iter().map(|asked| asked.action).collect();
        let changes: Vec<Option<Source>> = server.changes().iter().map(|change| change.boot).collect();
        self.ensure(seen == asked && changes == switched, || {
            format!("{} was asked {seen:?} and came to {changes:?}", server.name())
        })
    }

    /// Fails with the whole story unless `holds`.
    ///
    /// # Errors
    /// It does not hold.
    pub fn ensure(&self, holds: bool, problem: impl FnOnce() -> String) -> Result<()> {
        ensure!(holds, "{}\n{}", problem(), self.story());
        Ok(())
    }

    /// Waits for a state.
    ///
    /// # Errors
    /// It is not reached in time; the whole story is in the message.
    pub fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut state: impl FnMut(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        wait::until(what, limit, || state(self)).with_context(|| self.story())
    }

    /// All that may tell why.
    fn story(&self) -> String {
        let mut story = String::new();
        for server in &self.servers {
            let asked = server.chassis().lock().asked().to_vec();
            let _ = writeln!(story, "{}: asked {asked:?}\n  came to {:?}", server.name(), server.changes());
            let _ = writeln!(story, "serial line:\n{}", guard::last_lines(&server.serial(), MAX_LOG_LINES));
        }
        if let Some(pxed) = &self.pxed {
            for path in ["/v1/machines", "/v1/operations"] {
                let seen =
                    pxed::ask(&pxed.socket(), path).map_or_else(|e| format!("{e:#}"), |s| s.to_string());
                let _ = writeln!(story, "{path}: {seen}");
            }
        }
        if let Ok(events) = self.kubectl(&["get", "events", "-A"]) {
            let _ = writeln!(story, "{events}");
        }
        let log = std::fs::read_to_string(self.directory.join("pxed.log")).unwrap_or_default();
        let _ = writeln!(story, "pxed:\n{}", guard::last_lines(&log, MAX_LOG_LINES));
        story
    }
}

/// The id of a Machine's latest boot.
pub fn boot_of(machine: &Value) -> &str {
    machine.pointer("/status/boot/id").and_then(Value::as_str).unwrap_or_default()
}

/// Returns true if a status has a condition with this reason.
pub fn has_condition(status: &Value, kind: &str, value: &str, reason: &str) -> bool {
    let conditions = status["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|c| c["type"] == kind && c["status"] == value && c["reason"] == reason)
}
