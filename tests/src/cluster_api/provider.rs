//! A group of `bedplate-cluster` on the shared API server, and waits that show its log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::guard::{Directory, Process};
use crate::kubernetes::{Kubernetes, Objects};
use crate::pxed;

/// Timeout of waits for a provider. It is longer than the interval at which a provider decides again without a change.
pub const PROVIDER_TIMEOUT: Duration = Duration::from_secs(150);

/// Log of a provider, which may end with this value.
#[derive(Debug)]
pub struct Provider {
    log: PathBuf,
    _process: Option<(Process, Directory)>,
}

impl Provider {
    /// Starts the provider of a group under the role of its ServiceAccount.
    ///
    /// # Errors
    /// The program is missing or does not start.
    pub fn start(group: &str, more: &[&str]) -> Result<Self> {
        let place = Directory::new(group)?;
        let log = place.path().join("provider.log");
        let process = Self::spawn(group, &Self::kubeconfig(group)?, &log, more)?;
        Ok(Self { log, _process: Some((process, place)) })
    }

    /// Returns the provider with this log, which the test itself starts.
    pub fn of_log(log: &Path) -> Self {
        Self { log: log.to_owned(), _process: None }
    }

    /// Returns a kubeconfig of the ServiceAccount of a group.
    ///
    /// # Errors
    /// The API server gives no token.
    pub fn kubeconfig(group: &str) -> Result<PathBuf> {
        Kubernetes::shared().service_account("bedplate-system", &format!("bedplate-{group}"))
    }

    /// Starts the provider of a group with the permissions of a kubeconfig.
    ///
    /// # Errors
    /// The program is missing or does not start.
    pub fn spawn(group: &str, kubeconfig: &Path, log: &Path, more: &[&str]) -> Result<Process> {
        let mut command = Command::new(pxed::binary("bedplate-cluster")?);
        command.arg(format!("--controllers={group}")).args(["--listen=127.0.0.1:0", "--log-format=text"]);
        command.args(more).arg("--kubeconfig").arg(kubeconfig);
        Process::spawn("bedplate-cluster", &mut command, log)
    }

    /// Returns the log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until an object is in a state. Panics at the end of the timeout.
    #[expect(clippy::panic, reason = "only tests call it, and they have failed then")]
    pub fn until(
        &self,
        objects: &Objects,
        (kind, name): (&str, &str),
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let is_so = |object: Option<&Value>| object.filter(|object| is(object)).cloned();
        objects.until((kind, name), PROVIDER_TIMEOUT, is_so).unwrap_or_else(|error| {
            let found = objects.get(kind, name).ok().flatten().unwrap_or_default();
            panic!("{kind} {name}: {what}: {error:#}\n{found:#}\n{}", self.log())
        })
    }

    /// Waits until an object does not exist. Panics at the end of the timeout.
    #[expect(clippy::panic, reason = "only tests call it, and they have failed then")]
    pub fn until_gone(&self, objects: &Objects, (kind, name): (&str, &str)) {
        let gone = |object: Option<&Value>| object.is_none().then_some(());
        objects.until((kind, name), PROVIDER_TIMEOUT, gone).unwrap_or_else(|error| {
            let found = objects.get(kind, name).ok().flatten().unwrap_or_default();
            panic!("deletion of {kind} {name}: {error:#}\n{found:#}\n{}", self.log())
        });
    }
}
