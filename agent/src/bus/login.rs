//! logind on the host's bus: reboot and power off, and who does not want that now.
//!
//! Called by `operation` through the trait `Power`.

use std::sync::Arc;

use async_trait::async_trait;

use super::Power;
use super::error::BusError;
use super::link::{Link, Object, Service, is_unknown};

const SERVICE: Service = Service { name: "org.freedesktop.login1", package: Some("systemd") };
const MANAGER: Object<'static> =
    Object { service: SERVICE, path: "/org/freedesktop/login1", interface: "org.freedesktop.login1.Manager" };
/// Goes ahead against inhibitors, since systemd 257; before that root always did.
const SKIP_INHIBITORS: u64 = 1 << 4;

/// Handling of inhibitors that block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inhibition {
    /// Blocking inhibitors are an error that names them.
    Heed,
    /// Blocking inhibitors are overridden.
    Override,
}

/// Mode of an inhibitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InhibitorMode {
    /// A shutdown is refused.
    Block,
    /// A shutdown waits some seconds.
    Delay,
    /// Anything else, in systemd's word (`block-weak` since 257).
    Other(String),
}

/// Inhibitor of logind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inhibitor {
    /// Inhibited actions: `shutdown`, `sleep`, `idle`, `handle-power-key`.
    pub what: Vec<String>,
    /// Holder, in its own words.
    pub who: String,
    /// Reason, in its own words.
    pub why: String,
    /// Mode.
    pub mode: InhibitorMode,
    /// Process of the holder.
    pub pid: u32,
}

impl Inhibitor {
    /// Returns true if it blocks a shutdown.
    pub fn blocks_shutdown(&self) -> bool {
        self.mode == InhibitorMode::Block && self.what.iter().any(|what| what == "shutdown")
    }
}

/// logind of the host.
#[derive(Debug, Clone)]
pub struct Logind {
    link: Arc<Link>,
}

impl Logind {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }

    async fn end(
        &self,
        act: &'static str,
        method: &'static str,
        with_flags: &'static str,
        inhibition: Inhibition,
    ) -> Result<(), BusError> {
        if inhibition == Inhibition::Heed {
            // Root is not asked before 257.
            if let Some(one) = self.inhibitors().await?.into_iter().find(Inhibitor::blocks_shutdown) {
                return Err(BusError::Inhibited { act: act.to_owned(), who: one.who, why: one.why });
            }
        } else {
            match self.link.call::<_, ()>(act, MANAGER, with_flags, &SKIP_INHIBITORS).await {
                Err(error) if error.refusal().is_some_and(is_unknown) => {}
                other => return other,
            }
        }
        self.link.call(act, MANAGER, method, &false).await
    }
}

#[async_trait]
impl Power for Logind {
    async fn inhibitors(&self) -> Result<Vec<Inhibitor>, BusError> {
        type Listed = Vec<(String, String, String, String, u32, u32)>;
        let listed: Listed = self.link.call("list of inhibitors", MANAGER, "ListInhibitors", &()).await?;
        let inhibitor =
            |(what, who, why, mode, _, pid): (String, String, String, String, u32, u32)| Inhibitor {
                what: what.split(':').map(str::to_owned).collect(),
                who,
                why,
                mode: match mode.as_str() {
                    "block" => InhibitorMode::Block,
                    "delay" => InhibitorMode::Delay,
                    _ => InhibitorMode::Other(mode),
                },
                pid,
            };
        Ok(listed.into_iter().map(inhibitor).collect())
    }

    async fn reboot(&self, inhibition: Inhibition) -> Result<(), BusError> {
        self.end("reboot", "Reboot", "RebootWithFlags", inhibition).await
    }

    async fn power_off(&self, inhibition: Inhibition) -> Result<(), BusError> {
        self.end("power off", "PowerOff", "PowerOffWithFlags", inhibition).await
    }
}
