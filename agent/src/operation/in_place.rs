//! Applies changes that need no repave to a running node: kernel parameters and modules, files marked for it,
//! labels, annotations, and the kubelet's configuration. `bootstrap::diff` computes the changes.
//!
//! All checks precede the first change. Each change may be repeated. After a failed change a user must act,
//! and the selected version does not count as applied. Called by `node`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bedplate_api::configuration::{FileSpec, Taint, TaintEffect};
use bedplate_api::machine::SlotName;
use bedplate_bootstrap::Reconfiguration;
use bedplate_bootstrap::diff::{Edit, InPlace};
use bedplate_process::exit::chain;

use super::apply::ApplyError;
use super::former;
use super::guard::refusal;
use super::parameters::Place;
use crate::bus::journal::last_lines;
use crate::bus::{Exit, Leader, Output, TransientCommand, UnitName, Units};
use crate::model::Record;
use crate::node::apply::host_files;
use crate::node::effects::Parts;
use crate::node::log_excerpt::with_log;
use crate::plane::facts::template_hash;
use crate::slot::contents::{self, Secrets, SlotFile};
use crate::slot::fill_record::Filled;
use crate::slot::network;
use crate::slot::render::{MODULES_FILE, SYSCTL_FILE, SYSCTLS};
use crate::slot::store::KeepSlotError;

/// Unit of the kubelet.
const KUBELET: &str = "kubelet.service";
/// Timeout of a service restart.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of kubeadm when it writes the kubelet's configuration.
const KUBEADM_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between health checks of a restarted kubelet.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of health checks of a restarted kubelet.
const MAX_HEALTH_CHECKS: u32 = 60;
/// Delay before the second health check of a healthy kubelet, because some fail a moment after the start.
const RECHECK_DELAY: Duration = Duration::from_secs(3);
/// Maximum lines read from a journal for a message.
const MAX_JOURNAL_LINES: u32 = 40;
const MAX_MESSAGE_CHARS: usize = 1500;

/// The node that is changed.
pub(super) struct Running<'a> {
    pub(super) parts: &'a Parts,
    pub(super) slot: SlotName,
    pub(super) leader: Leader,
    pub(super) record: &'a Record,
    /// Content of the selected version.
    pub(super) wanted: &'a Filled,
}

impl Running<'_> {
    /// Makes the changes, in this order.
    pub(super) async fn change(&self, changes: &[InPlace]) -> Result<(), ApplyError> {
        let files: Vec<&FileSpec> = changes
            .iter()
            .filter_map(|change| if let InPlace::File(file) = change { Some(&**file) } else { None })
            .collect();
        let (restarts, mut contents) = (restarts(&files)?, self.contents(&files).await?);
        for change in changes {
            if let InPlace::Taints { set, remove } = change {
                self.check_taints(set, remove).await?;
            }
        }
        if !changes.iter().any(|change| matches!(change, InPlace::KubeletConfiguration(_))) {
            self.undo_unfinished().await?;
        }
        for change in changes {
            match change {
                InPlace::Sysctls(edit) => self.set_parameters(edit).await?,
                InPlace::KernelModules { load, .. } => self.load_modules(load).await?,
                InPlace::NodeLabels(edit) => self.edit(Some(edit), None).await?,
                InPlace::NodeAnnotations(edit) => self.edit(None, Some(edit)).await?,
                InPlace::KubeletConfiguration(how) => self.reconfigure(how).await?,
                // All files are written together with the first one.
                InPlace::File(_) => self.write_files(std::mem::take(&mut contents), &restarts).await?,
                // The Node has these values already.
                InPlace::Taints { .. } => {}
            }
        }
        Ok(())
    }

    fn units(&self) -> std::sync::Arc<dyn Units> {
        self.parts.machines.units(self.leader)
    }

    async fn edit(&self, labels: Option<&Edit>, annotations: Option<&Edit>) -> Result<(), ApplyError> {
        let edited = self.parts.node.edit(labels, annotations).await;
        edited.map_err(|error| match error.is_final() {
            true => ApplyError::Broken(chain(&error)),
            false => ApplyError::Failed(chain(&error)),
        })
    }

    /// Checks that the Node has these taints already. Kubernetes does not let a kubelet change taints, so
    /// that a compromised host cannot attract Pods; the agent must not either. A user may change them first.
    async fn check_taints(&self, set: &[Taint], remove: &[Taint]) -> Result<(), ApplyError> {
        let node = self.parts.node.node().await.map_err(|error| ApplyError::Failed(chain(&error)))?;
        let there = node.map(|node| node.taints).unwrap_or_default();
        let value = |taint: &Taint| taint.value.clone().unwrap_or_default();
        let same = |a: &Taint, b: &Taint| a.key == b.key && a.effect == b.effect;
        let missing = set
            .iter()
            .filter(|taint| !there.iter().any(|other| same(taint, other) && value(taint) == value(other)));
        let left = remove.iter().filter(|taint| there.iter().any(|other| same(taint, other)));
        let words: Vec<String> = missing
            .map(|taint| match value(taint).as_str() {
                "" => format!("{}:{}", taint.key, effect(taint)),
                value => format!("{}={value}:{}", taint.key, effect(taint)),
            })
            .chain(left.map(|taint| format!("{}:{}-", taint.key, effect(taint))))
            .collect();
        if words.is_empty() {
            return Ok(());
        }
        let node = &self.parts.machine;
        Err(ApplyError::Taints(format!(
            "an agent may not change the taints of a Node, so no change was applied; run `kubectl taint \
             node {node} --overwrite {}`, then create a new operation",
            words.join(" ")
        )))
    }

    /// Writes the host's file of this name for the selected version, and applies it by a restart of the unit.
    async fn apply_host_file(&self, name: &str, unit: &str) -> Result<Option<String>, ApplyError> {
        let files = host_files(self.parts, self.slot, self.record, self.wanted).await;
        let mut files = files.map_err(|error| ApplyError::Broken(chain(&error)))?;
        files.retain(|file| file.path.ends_with(name));
        let written = self.parts.on_disk(move |slots| slots.write_host(&files)).await;
        written.map_err(|error| ApplyError::Failed(chain(&error)))?;
        let (units, unit) = (self.parts.units.as_ref(), unit_name(unit)?);
        if let Some(said) = restarted(units, &unit).await? {
            return Ok(Some(said));
        }
        let state = units.state(&unit).await.map_err(|error| ApplyError::Failed(chain(&error)))?;
        let idle = || {
            format!(
                "{unit} did not run because a condition is not met; see `systemctl status` of the \
                        unit"
            )
        };
        Ok(state.active.is_down().then(idle))
    }

    async fn set_parameters(&self, edit: &Edit) -> Result<(), ApplyError> {
        let failed = self.apply_host_file(SYSCTL_FILE, "systemd-sysctl.service").await?;
        let own = network::is_own(&self.wanted.template);
        if own {
            self.write(vec![network::parameters(&self.wanted.template, &SYSCTLS)]).await?;
            restarted(self.units().as_ref(), &unit_name("systemd-sysctl.service")?).await?;
        }
        // The service may fail for another reason than this change, such as a parameter of a missing module.
        let Some(said) = failed else { return Ok(()) };
        let root = self.parts.root.clone();
        let mut set = edit.set.clone();
        // Values of the node's own network are not visible from the host.
        set.retain(|name, _| !own || !network::is_of_network(name));
        let wrong = tokio::task::spawn_blocking(move || {
            set.into_iter()
                .filter(|(name, value)| !has_value(&root, name, value))
                .map(|(name, _)| name)
                .collect()
        });
        let wrong: Vec<String> = wrong.await.unwrap_or_default();
        if wrong.is_empty() {
            return Ok(());
        }
        let reason = format!("the kernel rejected {}", wrong.join(", "));
        Err(ApplyError::Broken(with_log(&reason, &said, &[], MAX_MESSAGE_CHARS)))
    }

    async fn load_modules(&self, load: &[String]) -> Result<(), ApplyError> {
        let failed = self.apply_host_file(MODULES_FILE, "systemd-modules-load.service").await?;
        let Some(said) = failed else { return Ok(()) };
        let loaded =
            |name: &&String| !self.parts.root.join("sys/module").join(name.replace('-', "_")).exists();
        let missing: Vec<&str> = load.iter().filter(loaded).map(String::as_str).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let reason = format!("the kernel did not load {}", missing.join(", "));
        Err(ApplyError::Broken(with_log(&reason, &said, &[], MAX_MESSAGE_CHARS)))
    }

    /// Returns the files with the contents from Secrets.
    async fn contents(&self, files: &[&FileSpec]) -> Result<Vec<SlotFile>, ApplyError> {
        let mut secrets = Secrets::new();
        for from in files.iter().filter_map(|file| file.content_from.as_ref()) {
            let key = &from.secret;
            let reference = bedplate_api::configuration::SecretRef {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
            };
            let found = self.parts.decider.secret(&reference).await;
            let mut found = found.map_err(|error| ApplyError::Failed(chain(&error)))?;
            if let Some(value) = found.data.remove(&key.key) {
                secrets.insert((key.namespace.clone(), key.name.clone(), key.key.clone()), value);
            }
        }
        let made = files.iter().map(|file| {
            let place = self.wanted.template.files.iter().position(|other| other.path == file.path);
            contents::file(place.unwrap_or_default(), file, &secrets)
        });
        made.collect::<Result<_, _>>().map_err(|error| ApplyError::Broken(chain(&error)))
    }

    async fn write_files(&self, files: Vec<SlotFile>, restarts: &[UnitName]) -> Result<(), ApplyError> {
        if files.is_empty() {
            return Ok(());
        }
        let are_units = files.iter().any(|file| file.path.contains("/systemd/system/"));
        self.write(files).await?;
        let units = self.units();
        if are_units {
            units.daemon_reload().await.map_err(|error| ApplyError::Failed(chain(&error)))?;
        }
        for unit in restarts {
            if let Some(said) = restarted(units.as_ref(), unit).await? {
                let reason = format!("the files are written, but {unit} failed after its restart");
                return Err(ApplyError::Broken(with_log(&reason, &said, &[], MAX_MESSAGE_CHARS)));
            }
        }
        Ok(())
    }

    async fn write(&self, files: Vec<SlotFile>) -> Result<(), ApplyError> {
        // Written in the view of the node, in which binds cover its root.
        let written = self.parts.in_slot(self.leader, move |_, inside| {
            files.iter().try_for_each(|file| inside.write(file)).map_err(KeepSlotError::from)
        });
        written.await.map_err(|error| ApplyError::Broken(crate::fault::explained(&error)))
    }

    /// Makes kubeadm write the kubelet's configuration again. If the kubelet is not healthy with it, the
    /// former one is restored. If this attempt is killed, the next one restores it.
    async fn reconfigure(&self, how: &Reconfiguration) -> Result<(), ApplyError> {
        let former =
            former::keep(self.parts, (self.slot, self.leader), template_hash(&self.wanted.template)).await?;
        self.write(vec![contents::text(&how.file.path, how.file.mode, &how.file.content)]).await?;
        let argv = std::iter::once("/usr/bin/env".to_owned()).chain(how.command.clone()).collect();
        let command = TransientCommand {
            unit: unit_name("bedplate-kubelet-config.service")?,
            description: "Kubelet configuration of an applyConfiguration, written by kubeadm".to_owned(),
            argv,
            environment: Vec::new(),
            output: Output::Tail,
            limit: KUBEADM_TIMEOUT,
            settings: Vec::new(),
        };
        let units = self.units();
        let ran = units.run(&command).await.map_err(|error| ApplyError::Failed(chain(&error)))?;
        let kubelet = unit_name(how.restart)?;
        self.follow_health_port(units.as_ref()).await?;
        let why = if ran.exit == Exit::Code(0) {
            match self.is_well(units.as_ref(), &kubelet).await {
                Ok(()) => return former::forget(self.parts, self.leader).await,
                Err(why) => why,
            }
        } else {
            with_log(
                &format!("kubeadm failed to write the configuration ({:?})", ran.exit),
                &ran.output,
                &[],
                MAX_MESSAGE_CHARS,
            )
        };
        if let Some(former) = former {
            former::put_back(self.parts, self.leader, former).await?;
            let back = self.is_well(units.as_ref(), &kubelet).await;
            let back = back.map_or_else(
                |why| format!("and the kubelet is not healthy with the former one either ({why})"),
                |()| "the former one is restored".to_owned(),
            );
            former::forget(self.parts, self.leader).await?;
            return Err(ApplyError::Broken(format!("the kubelet's new configuration failed, {back}: {why}")));
        }
        Err(ApplyError::Broken(format!("the kubelet's new configuration failed: {why}")))
    }

    /// Restores the kubelet's configuration if an attempt for another version was killed after kubeadm had written it.
    async fn undo_unfinished(&self) -> Result<(), ApplyError> {
        let Some(former) = former::left(self.parts, (self.slot, self.leader)).await? else { return Ok(()) };
        former::put_back(self.parts, self.leader, former).await?;
        let units = self.units();
        self.follow_health_port(units.as_ref()).await?;
        let kubelet = unit_name(KUBELET)?;
        self.is_well(units.as_ref(), &kubelet).await.map_err(|why| {
            ApplyError::Failed(format!(
                "the kubelet is not healthy with the configuration restored after an interrupted change: \
                 {why}"
            ))
        })?;
        former::forget(self.parts, self.leader).await
    }

    /// Updates the port of the relay through which the agent asks a kubelet with its own loopback.
    async fn follow_health_port(&self, units: &dyn Units) -> Result<(), ApplyError> {
        let files = network::health(&self.wanted.template);
        if files.is_empty() {
            return Ok(());
        }
        self.write(files).await?;
        let failed = |error: crate::bus::BusError| ApplyError::Failed(chain(&error));
        units.daemon_reload().await.map_err(failed)?;
        units.stop(&unit_name(network::HEALTH_UNIT)?, RESTART_TIMEOUT).await.map(drop).map_err(failed)
    }

    /// Restarts the kubelet and waits until it reports that it is healthy, and stays so.
    async fn is_well(&self, units: &dyn Units, kubelet: &UnitName) -> Result<(), String> {
        let _ = units.reset_failed(kubelet).await;
        if let Some(said) = restarted(units, kubelet).await.map_err(|error| error.to_string())? {
            return Err(with_log("the kubelet does not start", &said, &[], MAX_MESSAGE_CHARS));
        }
        let mut said = String::new();
        for _ in 0..MAX_HEALTH_CHECKS {
            said = match self.parts.gate.kubelet(self.leader, self.wanted).await {
                Err(why) => why,
                Ok(()) => {
                    tokio::time::sleep(RECHECK_DELAY).await;
                    match self.parts.gate.kubelet(self.leader, self.wanted).await {
                        Ok(()) => return Ok(()),
                        Err(why) => why,
                    }
                }
            };
            tokio::time::sleep(HEALTH_CHECK_INTERVAL).await;
        }
        let log = last_lines(units, kubelet, MAX_JOURNAL_LINES, None).await.unwrap_or_default();
        Err(with_log(&format!("the kubelet is not healthy: {said}"), &log, &[], MAX_MESSAGE_CHARS))
    }
}

/// Returns the units of a slot to restart for these files, each once. Fails if one of them must not be
/// restarted.
fn restarts(files: &[&FileSpec]) -> Result<Vec<UnitName>, ApplyError> {
    let names = files.iter().filter_map(|file| file.in_place.as_ref()).flat_map(|how| &how.restart_units);
    let mut seen = BTreeSet::new();
    let mut units = Vec::new();
    for name in names.filter(|name| seen.insert(*name)) {
        let unit = unit_name(name)?;
        match refusal(&unit, Place::Slot) {
            Some(why) => return Err(ApplyError::NotSupported(why)),
            None => units.push(unit),
        }
    }
    Ok(units)
}

/// Restarts a unit. Returns its journal if it does not run then.
async fn restarted(units: &dyn Units, unit: &UnitName) -> Result<Option<String>, ApplyError> {
    match units.restart(unit, RESTART_TIMEOUT).await {
        Ok(result) if result.is_done() => Ok(None),
        Ok(result) => {
            let log = last_lines(units, unit, MAX_JOURNAL_LINES, None).await.unwrap_or_default();
            Ok(Some(format!("{unit}: {}\n{log}", result.as_str())))
        }
        Err(error) => Err(ApplyError::Failed(chain(&error))),
    }
}

/// Returns true if the kernel parameter has this value, ignoring whitespace.
fn has_value(root: &Path, name: &str, value: &str) -> bool {
    // sysctl.d(5): the first separator decides which of the two separates.
    let path = match name.find(['.', '/']).and_then(|at| name.chars().nth(at)) {
        Some('/') => name.to_owned(),
        _ => name
            .chars()
            .map(|c| {
                if c == '.' {
                    '/'
                } else if c == '/' {
                    '.'
                } else {
                    c
                }
            })
            .collect(),
    };
    let now =
        std::fs::read_to_string(root.join("proc/sys").join(path.trim_start_matches('/'))).unwrap_or_default();
    now.split_whitespace().eq(value.split_whitespace())
}

fn effect(taint: &Taint) -> &'static str {
    match taint.effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    }
}

fn unit_name(name: &str) -> Result<UnitName, ApplyError> {
    name.parse().map_err(|_| ApplyError::NotSupported(format!("{name} is not a valid unit name")))
}
