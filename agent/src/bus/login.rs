//! logind on the host's bus: reboot, power off, and their inhibitors.
//!
//! Called by `operation` through the trait `Power`.

use std::sync::Arc;

use async_trait::async_trait;

use super::Power;
use super::error::BusError;
use super::link::{Link, Object, Service};

const SERVICE: Service = Service { name: "org.freedesktop.login1", package: Some("systemd") };
const MANAGER: Object<'static> =
    Object { service: SERVICE, path: "/org/freedesktop/login1", interface: "org.freedesktop.login1.Manager" };

/// Inhibitor of logind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inhibitor {
    /// Holder, in its own words.
    pub who: String,
    /// Reason, in its own words.
    pub why: String,
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

    async fn end(&self, act: &'static str, method: &'static str) -> Result<(), BusError> {
        // Before systemd 257, logind lets root do it in spite of an inhibitor.
        if let Some(one) = self.blocker().await? {
            return Err(BusError::Inhibited { act: act.to_owned(), who: one.who, why: one.why });
        }
        self.link.call(act, MANAGER, method, &false).await
    }
}

#[async_trait]
impl Power for Logind {
    async fn blocker(&self) -> Result<Option<Inhibitor>, BusError> {
        type Listed = Vec<(String, String, String, String, u32, u32)>;
        let listed: Listed = self.link.call("list of inhibitors", MANAGER, "ListInhibitors", &()).await?;
        let blocking = listed
            .into_iter()
            .find(|(what, _, _, mode, ..)| mode == "block" && what.split(':').any(|what| what == "shutdown"));
        Ok(blocking.map(|(_, who, why, ..)| Inhibitor { who, why }))
    }

    async fn reboot(&self) -> Result<(), BusError> {
        self.end("reboot", "Reboot").await
    }

    async fn power_off(&self) -> Result<(), BusError> {
        self.end("power off", "PowerOff").await
    }
}
