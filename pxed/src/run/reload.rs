//! SIGHUP: reads the configuration again, applies the changes that need no restart while transfers continue, and
//! names the rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bedplate_process::exit::chain;

use super::assemble::Daemon;
use crate::config::cli::Settings;
use crate::config::reload::plan_reload;
use crate::config::{Config, translate};

impl Daemon {
    /// Reads the configuration again. An invalid one is logged, and the current one stays in force.
    pub(super) async fn reload(&self, settings: &Settings) {
        let new = match Config::load(&settings.config, &settings.overrides()) {
            Ok(new) => new,
            Err(error) => {
                let error = chain(&error);
                tracing::error!(error, "new configuration rejected, keeping the current one");
                // Counted after the log: a reader of the count finds the errors there.
                self.reloads.refused.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        let plan = plan_reload(&self.config.load(), &new);
        for key in &plan.needs_restart {
            tracing::warn!(key, "configuration change takes effect after a restart");
        }
        let config = Arc::new(plan.config);
        let (boot_path, taken) = (self.boot_path.clone(), config.clone());
        if let Err(error) = tokio::task::spawn_blocking(move || boot_path.configure(&taken)).await {
            tracing::error!(%error, "failed to apply images and loaders");
        }
        if let (Some(server), Some(settings)) = (&self.dhcp, translate::dhcp_settings(&config))
            && let Err(error) = server.reload(settings)
        {
            // The engine accepts all settings that `check` accepts; a test ensures it.
            tracing::error!(%error, "new DHCP settings rejected, keeping the current ones");
        }
        if let (Some(server), Some(settings)) = (&self.tftp, translate::tftp_settings(&config))
            && let Err(error) = server.reload(settings)
        {
            tracing::error!(%error, "new TFTP settings rejected, keeping the current ones");
        }
        self.config.store(config);
        self.reloads.done.fetch_add(1, Ordering::Relaxed);
        tracing::info!(changed = plan.applied.join(", "), "configuration reloaded");
    }
}
