//! End of the log that explains the failed trial of a slot.
//!
//! Read from the slot's systemd, or from its journal files if its systemd does not answer. Called by
//! `outcome`.

use bedplate_api::machine::SlotName;
use bedplate_bootstrap::unit;
use bedplate_process::exit::chain;

use crate::bus::UnitName;
use crate::bus::journal::last_lines;
use crate::model::Log;
use crate::node::effects::Parts;
use crate::node::log_excerpt::last_message;
use crate::slot::paths::service;
use crate::slot::store::Slots;

/// Maximum bytes read from the end of kubeadm's log.
const TAIL_BYTES: u64 = 8 * 1024;
/// Maximum lines read from the end of a journal.
const MAX_LINES: u32 = 60;
const KUBELET: &str = "kubelet.service";
const SCRIPTS: &str = "bedplate: kubeadm ";
/// Texts in kubeadm's last line while it waits for the kubelet, or after that wait timed out.
const AWAITS_KUBELET: [&str; 4] = ["[kubelet-", "phase kubelet-", "[wait-control-plane]", "TLS Bootstrap"];

/// End of a log, and the secrets that must be hidden in it.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// The log, as it was written.
    pub(super) log: String,
    /// Values of the Secrets that the version names.
    pub(super) secrets: Vec<String>,
}

/// Reads the log. Unreadable parts are omitted, because the trial has failed in any case.
pub(super) async fn tail(parts: &Parts, slot: SlotName, log: Log) -> Tail {
    let read = parts.on_disk(move |slots: &Slots| {
        let kubeadm = slots.tail(slot, "log", "/bedplate/kubeadm.log", TAIL_BYTES);
        Ok((kubeadm, slots.filled(slot)?, slots.secrets(slot)?))
    });
    let (kubeadm, filled, secrets) = read.await.unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "failed to read the files of a failed slot");
        Default::default()
    });
    let socket = filled.as_ref().map_or("", |filled| filled.cri_socket.as_str());
    let log = match log {
        Log::Kubeadm => of_kubeadm(parts, slot, kubeadm.unwrap_or_default()).await,
        Log::Kubelet => of_unit(parts, slot, KUBELET).await,
        Log::Runtime => of_unit(parts, slot, runtime_unit(socket)).await,
        Log::Slot => of_slot(parts, slot).await,
    };
    Tail { log, secrets }
}

/// Returns kubeadm's output. Returns the kubelet's log if kubeadm has no output yet or waits for the kubelet.
async fn of_kubeadm(parts: &Parts, slot: SlotName, kubeadm: String) -> String {
    // The script logs the failure and the retry.
    let own: String =
        kubeadm.lines().filter(|line| !line.starts_with(SCRIPTS)).map(|line| format!("{line}\n")).collect();
    let last = last_message(&own);
    if last.is_some_and(|last| !waits_for_kubelet(last)) {
        return kubeadm;
    }
    let kubelet = of_unit(parts, slot, KUBELET).await;
    if last_message(&kubelet).is_some() {
        kubelet
    } else if last.is_some() {
        kubeadm
    } else {
        of_unit(parts, slot, unit::NAME).await
    }
}

fn waits_for_kubelet(last: &str) -> bool {
    AWAITS_KUBELET.iter().any(|phase| last.contains(phase))
}

/// Returns the log of a unit in the slot.
async fn of_unit(parts: &Parts, slot: SlotName, unit: &str) -> String {
    let Ok(unit) = unit.parse() else { return String::new() };
    readable(&unit, journal(parts, slot, &unit).await)
}

/// Returns the log of the slot's own unit on the host.
async fn of_slot(parts: &Parts, slot: SlotName) -> String {
    let Ok(unit) = service(slot).parse() else { return String::new() };
    let said = last_lines(parts.units.as_ref(), &unit, MAX_LINES, None).await;
    readable(&unit, said.map_err(|error| chain(&error)))
}

fn readable(unit: &UnitName, said: Result<String, String>) -> String {
    said.unwrap_or_else(|error| {
        tracing::warn!(%unit, error, "failed to read the log of a failed trial");
        String::new()
    })
}

/// Reads a journal from the slot's systemd; if the slot does not run, from the files that its journal left.
async fn journal(parts: &Parts, slot: SlotName, unit: &UnitName) -> Result<String, String> {
    let asked = match parts.leader(slot).await {
        Ok(Some(leader)) => last_lines(parts.machines.units(leader).as_ref(), unit, MAX_LINES, None).await,
        Ok(None) => Ok(String::new()),
        Err(error) => Err(error),
    };
    match asked {
        Ok(text) if !text.is_empty() => Ok(text),
        _ => {
            let Some(files) = parts.slots.journal(slot) else { return Ok(String::new()) };
            let found = last_lines(parts.units.as_ref(), unit, MAX_LINES, Some(&files)).await;
            found.map_err(|error| chain(&error))
        }
    }
}

/// The unit behind a socket of a container runtime.
fn runtime_unit(socket: &str) -> &'static str {
    match socket {
        _ if socket.contains("crio") => "crio.service",
        _ if socket.contains("cri-dockerd") => "cri-docker.service",
        _ => "containerd.service",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeadm_that_waits_for_the_kubelet_is_known_by_its_last_line() {
        for (last, expected) in [
            (
                "[kubelet-check] Waiting for a healthy kubelet at http://127.0.0.1:10248/healthz. This can take up to 4m0s",
                true,
            ),
            ("[kubelet-start] Waiting for the kubelet to perform the TLS Bootstrap", true),
            (
                "error: error execution phase kubelet-start: failed while waiting for the kubelet to start",
                true,
            ),
            ("[preflight] Running pre-flight checks", false),
            (
                "error: error execution phase preflight: couldn't validate the identity of the API Server",
                false,
            ),
            ("bedplate: preKubeadmCommands 1", false),
        ] {
            assert_eq!(waits_for_kubelet(last), expected, "{last}");
        }
    }

    #[test]
    fn kubeadm_timeout_is_recognized_by_its_error() {
        let log = "[kubelet-check] Waiting for a healthy kubelet at http://127.0.0.1:10248/healthz. This can take up to 10s\n\
                   [kubelet-check] The kubelet is not healthy after 10.000925s\n\n\
                   Unfortunately, an error has occurred, likely caused by:\n\t- The kubelet is not running\n\n\
                   If you are on a systemd-powered system, you can try to troubleshoot the error with the following commands:\n\
                   \t- 'systemctl status kubelet'\n\t- 'journalctl -xeu kubelet'\n\n\
                   error: error execution phase kubelet-wait-bootstrap: failed while waiting for the kubelet to start: The HTTP call \
                   equal to 'curl -sSL http://127.0.0.1:10248/healthz' returned error: context deadline exceeded\n\n\
                   To see the stack trace of this error execute with --v=5 or higher\n";
        assert!(last_message(log).is_some_and(waits_for_kubelet));
    }

    #[test]
    fn a_runtimes_unit_is_known_by_its_socket() {
        assert_eq!(runtime_unit("/run/containerd/containerd.sock"), "containerd.service");
        assert_eq!(runtime_unit("unix:///var/run/crio/crio.sock"), "crio.service");
        assert_eq!(runtime_unit("/run/cri-dockerd.sock"), "cri-docker.service");
    }
}
