//! Snapshot of the state of all parts: for readiness, metrics and the admin socket. From memory, without waiting.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use bedplate_api::id::{MacAddress, MachineName};
use bedplate_api::wire::Explanation;
use bedplate_dhcp::InterfaceState;
use bedplate_dhcp::respond::Silence;
use bedplate_dhcp::settings::Mode;
use bedplate_process::health::{Health, Readiness};
use bedplate_process::liveness::Liveness;
use serde_json::{Value, json};

use crate::boot_policy::{ImageState, State};
use crate::config::{Config, translate};
use crate::machines::KnownMachine;
use crate::machines::source::SourceState;
use crate::netboot::dhcp::subject;
use crate::placement::{self, Networks};
use crate::readiness::{MachineView, View, judge};
use crate::run::boot_path::BootPath;
use crate::site::Site;
use crate::standalone::versions::NodeChoice;

/// Access to the parts; clones share it.
#[derive(Clone)]
pub(super) struct Look {
    pub(super) config: Arc<ArcSwap<Config>>,
    pub(super) site: Site,
    /// Configurations and selected versions, if pxed selects them.
    pub(super) choice: Option<NodeChoice>,
    pub(super) boot_path: BootPath,
    pub(super) dhcp: Option<bedplate_dhcp::Server>,
    pub(super) liveness: Liveness,
}

impl Look {
    /// Returns the state of everything that a boot needs.
    pub(super) fn view(&self) -> View {
        let config = self.config.load();
        let default_image = config.default_image.as_deref();
        let snapshot = self.site.machines.load();
        let networks = self.networks();
        let netbooted = snapshot.iter().filter(|known| known.is_netbooted());
        let machines = netbooted.map(|known| {
            let image = subject(known, default_image).image;
            let contested = snapshot.contested(&known.name);
            let mut contested: Vec<_> = contested.into_iter().flat_map(|(_, others)| others).collect();
            contested.sort();
            contested.dedup();
            MachineView {
                name: known.name.clone(),
                contested,
                misplaced: placement::obstacle(known, &networks),
                remark: placement::remark(known, &networks),
                image_state: self.boot_path.present().image(&image),
                image: image.to_string(),
            }
        });
        let (mut serving, mut waiting) = (0_usize, Vec::new());
        for (name, state) in self.dhcp.iter().flat_map(bedplate_dhcp::Server::interfaces) {
            match state {
                InterfaceState::Serving { .. } => serving = serving.saturating_add(1),
                InterfaceState::Waiting(why) => waiting.push((name, why)),
            }
        }
        let missing = self.boot_path.loaders().missing().iter().map(|m| m.problem.clone()).collect();
        View {
            source: self.source(),
            machines: machines.collect(),
            interfaces_serving: serving,
            interfaces_waiting: waiting,
            missing_loaders: missing,
        }
    }

    /// Returns the Machines that asked of late from a subnet in which they have no fixed address, although they have one elsewhere.
    pub(super) fn strays(&self) -> Vec<(MachineName, String)> {
        let Some(dhcp) = &self.dhcp else { return Vec::new() };
        let snapshot = self.site.machines.load();
        let netbooted = snapshot.iter().filter(|known| known.is_netbooted());
        let stray = |known: &Arc<KnownMachine>| {
            let mut ignored = known.interfaces.iter().filter_map(|interface| dhcp.ignored(interface.mac));
            let ignored = ignored.find(|ignored| ignored.reason == Silence::FixedOutside)?;
            Some((known.name.clone(), ignored.advice()))
        };
        netbooted.filter_map(stray).collect()
    }

    /// Returns the networks in which pxed gives addresses.
    fn networks(&self) -> Networks {
        let settings = translate::dhcp_settings(&self.config.load()).filter(|s| s.mode == Mode::Server);
        let mut own = Vec::new();
        for state in self.dhcp.iter().flat_map(|dhcp| dhcp.interfaces().into_values()) {
            if let InterfaceState::Serving { addresses } = state {
                own.extend(addresses.iter().map(ipnet::Ipv4Net::addr));
            }
        }
        Networks { subnets: settings.map(|settings| settings.subnets).unwrap_or_default(), own }
    }

    /// Returns the offer for a machine, and other obstacles to its boot; `None`: no such name.
    pub(super) fn explain(&self, subject: &str) -> Option<Explanation> {
        let mut explanation = self.boot_path.explain(subject)?;
        let snapshot = self.site.machines.load();
        let known = explanation.machine.as_ref().and_then(|name| snapshot.by_name(name));
        let asked: Vec<MacAddress> = match subject.parse() {
            Ok(mac) => vec![mac],
            Err(_) => known.into_iter().flat_map(|known| known.interfaces.iter().map(|i| i.mac)).collect(),
        };
        let networks = self.networks();
        let misplaced = known.into_iter().flat_map(|known| placement::misplaced(known, &networks));
        let ignored = asked.iter().filter_map(|mac| Some((mac, self.dhcp.as_ref()?.ignored(*mac)?)));
        let ignored =
            ignored.map(|(mac, ignored)| format!("messages of {mac} are ignored: {}", ignored.advice()));
        explanation.notes = misplaced.map(|(_, why)| why).chain(ignored).collect();
        Some(explanation)
    }

    /// Returns the state of the source, with problems of its configurations, and work that needs a controller.
    fn source(&self) -> SourceState {
        let mut state = self.site.source.borrow().clone();
        state.problems.extend(self.choice.iter().flat_map(|choice| choice.problems().to_vec()));
        state
    }

    /// `/v1/status` beyond readiness.
    pub(super) fn about(&self) -> Value {
        let config = self.config.load();
        let images = self.boot_path.images().seen().into_iter().map(|seen| {
            let (state, note) = match seen.state {
                ImageState::Ready => ("Ready", String::new()),
                ImageState::Fetching(note) => ("Fetching", note),
                ImageState::Failed(note) => ("Failed", note),
                ImageState::Unusable(note) => ("Unusable", note),
                ImageState::Unknown => ("Unknown", String::new()),
            };
            json!({ "name": seen.name.to_string(), "state": state, "note": note, "digest": seen.digest })
        });
        let pools = self.dhcp.iter().flat_map(bedplate_dhcp::Server::pool_usage).map(|pool| {
            json!({ "network": pool.network.to_string(), "size": pool.size, "bound": pool.bound,
                    "offered": pool.offered, "declined": pool.declined })
        });
        let interfaces = self.dhcp.iter().flat_map(bedplate_dhcp::Server::interfaces).map(|(name, state)| {
            let waiting = match state {
                InterfaceState::Serving { .. } => None,
                InterfaceState::Waiting(why) => Some(why),
            };
            json!({ "name": name, "waiting": waiting })
        });
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "site": config.site,
            "source": self.source(),
            "machines": self.site.machines.load().len(),
            "images": images.collect::<Vec<_>>(),
            "statusWrites": {
                "written": self.site.writes.written.load(Ordering::Relaxed),
                "waiting": self.site.writes.unwritten(&self.site.registry),
            },
            "dhcp": { "pools": pools.collect::<Vec<_>>(), "interfaces": interfaces.collect::<Vec<_>>() },
        })
    }
}

impl Health for Look {
    fn readiness(&self) -> Readiness {
        judge(&self.view())
    }

    fn liveness(&self) -> Result<(), String> {
        self.liveness.check()
    }
}
