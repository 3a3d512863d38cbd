//! Everything that `/metrics` shows, read at each scrape from counters that their rooms keep. Labels are closed sets: no Machine
//! name, no address, nothing that a client sent.

pub(crate) mod boot_path;
pub mod power;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bedplate_api::wire::Stage;
use bedplate_dhcp::counter::Trouble;
use bedplate_dhcp::respond::Silence;
use bedplate_dhcp::wire::{Malformed, MessageType};
use bedplate_process::counter::read;
use bedplate_process::family::{Labeled, count, gauge};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use crate::boot::timeline::next;
use crate::readiness::{View, judge, obstacle};
use crate::status::StatusRegistry;
use crate::status::write::WriteCounters;
use crate::store::Store;

/// Function that reads the state that readiness is judged by.
pub type Look = Arc<dyn Fn() -> View + Send + Sync>;

/// Sources of a scrape.
pub struct Sources {
    /// The store's commits.
    pub store: Store,
    /// The statuses.
    pub registry: StatusRegistry,
    /// Status writes.
    pub statuses: Arc<WriteCounters>,
    /// The DHCP engine, unless it is off.
    pub dhcp: Option<bedplate_dhcp::Server>,
    /// The TFTP engine, unless it is off.
    pub tftp: Option<Arc<bedplate_tftp::server::Server>>,
    /// Machines and the source.
    pub look: Look,
    /// Applied and rejected reloads.
    pub reloads: Arc<Reloads>,
    /// HTTP, enrollment, images.
    pub boot_path: boot_path::Source,
    /// BMCs and operations.
    pub power: power::Source,
}

/// SIGHUPs.
#[derive(Debug, Default)]
pub struct Reloads {
    /// Taken on.
    pub done: AtomicU64,
    /// Refused: the old configuration stays in force.
    pub refused: AtomicU64,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// The registry that the health listener shows.
pub fn registry(sources: Sources) -> Registry {
    let mut registry = Registry::default();
    sources.registry.events().register(&mut registry, "bedplate_pxed_events");
    registry.register_collector(Box::new(sources));
    registry
}

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.encode_store(&mut encoder)?;
        self.encode_statuses(&mut encoder)?;
        self.encode_machines(&mut encoder)?;
        self.encode_dhcp(&mut encoder)?;
        self.encode_tftp(&mut encoder)?;
        self.power.encode(&mut encoder)?;
        self.boot_path.encode(&mut encoder)
    }
}

impl Sources {
    fn encode_store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let store = self.store.counters();
        let commits = vec![("done", read(&store.commits)), ("failed", read(&store.failures))];
        count(encoder, "bedplate_pxed_store_commits", "Store commits", "result", commits)?;
        let changes = vec![("", read(&store.changes))];
        count(encoder, "bedplate_pxed_store_changes", "Changes in store commits", "", changes)?;
        let dropped = vec![("", read(&store.dropped))];
        let help = "Changes not persisted because too many waited for the disk";
        count(encoder, "bedplate_pxed_store_changes_dropped", help, "", dropped)
    }

    fn encode_statuses(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let s = &self.statuses;
        let writes = vec![
            ("written", read(&s.written)),
            ("retried", read(&s.retried)),
            ("rejected", read(&s.refused)),
        ];
        count(encoder, "bedplate_pxed_status_writes", "Writes of Machine status", "result", writes)?;
        let waiting = vec![("", s.unwritten(&self.registry))];
        gauge(
            encoder,
            "bedplate_pxed_status_waiting",
            "Machines whose status is not written yet",
            "",
            waiting,
        )?;
        let reloads = vec![("done", read(&self.reloads.done)), ("rejected", read(&self.reloads.refused))];
        count(encoder, "bedplate_pxed_reloads", "Configuration reloads", "result", reloads)
    }

    fn encode_machines(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let view = (self.look)();
        let known = view.machines.len() as u64;
        let blocked = view.machines.iter().filter(|m| obstacle(m).is_some()).count() as u64;
        let machines = vec![("bootable", known.saturating_sub(blocked)), ("blocked", blocked)];
        gauge(encoder, "bedplate_pxed_machines", "Known Machines", "state", machines)?;
        let ready = vec![("", u64::from(judge(&view).ready))];
        gauge(encoder, "bedplate_pxed_ready", "1 if /readyz reports ready, otherwise 0", "", ready)?;
        let counts = self.registry.boots_by_stage();
        let stages = std::iter::successors(Some(Stage::Discover), |stage| next(*stage));
        let stages = stages.map(|stage| (stage.label(), Some(stage)));
        let stages = stages.chain([("none", None)]);
        let boots = stages.map(|(word, stage)| (word, counts.get(&stage).copied().unwrap_or(0))).collect();
        gauge(encoder, "bedplate_pxed_boots", "Machines by stage of their latest boot", "stage", boots)?;
        let source = vec![
            ("synced", u64::from(view.source.synced)),
            ("reachable", u64::from(view.source.unreachable.is_none())),
            ("valid", u64::from(view.source.problems.is_empty())),
        ];
        gauge(
            encoder,
            "bedplate_pxed_source",
            "1 if the source of Machines is in this state, otherwise 0",
            "state",
            source,
        )
    }

    fn encode_dhcp(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(server) = &self.dhcp else { return Ok(()) };
        let c = server.counters();
        let by_type = |read: &dyn Fn(MessageType) -> u64| -> Labeled {
            MessageType::ALL.iter().map(|t| (t.label(), read(*t))).collect()
        };
        let received = by_type(&|t| c.received(t));
        count(encoder, "bedplate_pxed_dhcp_received", "Valid DHCP messages received", "type", received)?;
        let sent = by_type(&|t| c.sent(t));
        count(encoder, "bedplate_pxed_dhcp_sent", "DHCP messages sent", "type", sent)?;
        let malformed = Malformed::ALL.iter().map(|r| (r.label(), c.malformed(*r))).collect();
        count(
            encoder,
            "bedplate_pxed_dhcp_malformed",
            "Malformed DHCP packets dropped",
            "reason",
            malformed,
        )?;
        let silent = Silence::ALL.iter().map(|r| (r.label(), c.silence(*r))).collect();
        count(
            encoder,
            "bedplate_pxed_dhcp_unanswered",
            "Valid DHCP messages that were not answered",
            "reason",
            silent,
        )?;
        let trouble = Trouble::ALL.iter().map(|r| (r.label(), c.trouble(*r))).collect();
        count(encoder, "bedplate_pxed_dhcp_errors", "Errors of the DHCP server", "reason", trouble)?;
        let commits = vec![("", c.commits())];
        count(encoder, "bedplate_pxed_dhcp_lease_commits", "Commits of DHCP leases", "", commits)?;
        let (mut size, mut bound, mut declined) = (0_u64, 0_u64, 0_u64);
        for pool in server.pool_usage() {
            size = size.saturating_add(pool.size);
            bound = bound.saturating_add(pool.bound);
            declined = declined.saturating_add(pool.declined);
        }
        let pools = vec![("all", size), ("bound", bound), ("declined", declined)];
        gauge(encoder, "bedplate_pxed_dhcp_pool_addresses", "Addresses of the DHCP pools", "state", pools)
    }

    fn encode_tftp(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(server) = &self.tftp else { return Ok(()) };
        let c = server.counters();
        let counters = [
            ("bedplate_pxed_tftp_requests", "TFTP read requests", c.requests),
            (
                "bedplate_pxed_tftp_shared",
                "TFTP packets of new addresses that were admitted while the table of addresses was full",
                c.shared,
            ),
            ("bedplate_pxed_tftp_opened", "TFTP transfers started", c.opened),
            ("bedplate_pxed_tftp_blocks", "TFTP DATA packets sent", c.blocks),
            (
                "bedplate_pxed_tftp_acknowledged_bytes",
                "Bytes acknowledged by TFTP clients",
                c.acknowledged_bytes,
            ),
            ("bedplate_pxed_tftp_retransmissions", "TFTP retransmissions", c.retransmissions),
        ];
        for (name, help, value) in counters {
            count(encoder, name, help, "", vec![("", value)])?;
        }
        gauge(encoder, "bedplate_pxed_tftp_active", "TFTP transfers in progress", "", vec![("", c.active)])?;
        let outcomes = c.outcomes.iter().map(|(outcome, n)| (outcome.label(), *n)).collect();
        count(encoder, "bedplate_pxed_tftp_transfers", "TFTP transfers finished", "outcome", outcomes)?;
        let malformed = c.malformed.iter().map(|(reason, n)| (reason.label(), *n)).collect();
        count(encoder, "bedplate_pxed_tftp_malformed", "Malformed TFTP packets", "reason", malformed)?;
        let refusals = c.refusals.iter().map(|(reason, n)| (reason.label(), *n)).collect();
        count(
            encoder,
            "bedplate_pxed_tftp_refusals",
            "TFTP packets that started no transfer",
            "reason",
            refusals,
        )
    }
}
