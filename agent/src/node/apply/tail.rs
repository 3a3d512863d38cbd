//! The end of the log of what is not well in a slot whose trial failed.
//!
//! Asked of the slot's own journal; of its files, if its systemd does not answer any more. Called by `outcome`.

use bedplate_api::machine::SlotName;
use bedplate_bootstrap::unit;
use bedplate_process::exit::chain;

use super::super::effects::Parts;
use super::super::model::Log;
use super::super::observe::leader;
use super::unit_name;
use crate::bus::UnitName;
use crate::bus::journal::last_lines;
use crate::slot::places::service;
use crate::slot::store::Slots;

/// How much of kubeadm's log is looked at, in bytes.
const TAIL: u64 = 8 * 1024;
/// How many lines of a journal are looked at.
const LINES: u32 = 60;

/// What was said last, and what must not be told of it.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// The log, as it was written.
    pub(super) log: String,
    /// Values of the Secrets that the version names.
    pub(super) secrets: Vec<String>,
}

/// Reads it. What cannot be read is left out: the trial has failed all the same.
pub(super) async fn tail(parts: &Parts, slot: SlotName, log: Log) -> Tail {
    let read = parts.on_disk(move |slots: &Slots| {
        let kubeadm = slots.tail(slot, "log", "/bedplate/kubeadm.log", TAIL);
        Ok((kubeadm, slots.filled(slot)?, slots.secrets(slot)?))
    });
    let (kubeadm, filled, secrets) = read.await.unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "what a failed slot holds cannot be read");
        Default::default()
    });
    let unit = match log {
        Log::Kubeadm => {
            if let Some(log) = kubeadm.filter(|log| !log.trim().is_empty()) {
                return Tail { log, secrets };
            }
            unit::NAME.to_owned()
        }
        Log::Kubelet => "kubelet.service".to_owned(),
        Log::Runtime => {
            runtime_unit(filled.as_ref().map_or("", |filled| filled.cri_socket.as_str())).to_owned()
        }
        Log::Slot => service(slot),
    };
    let Ok(unit) = unit_name(&unit) else { return Tail::default() };
    let log = if log == Log::Slot {
        last_lines(parts.units.as_ref(), &unit, LINES, None).await.map_err(|error| chain(&error))
    } else {
        journal(parts, slot, &unit).await
    };
    let log = log.unwrap_or_else(|error| {
        tracing::warn!(%unit, error, "the log of what failed cannot be read");
        String::new()
    });
    Tail { log, secrets }
}

/// Of the slot's own systemd; else of the files that its journal has left.
async fn journal(parts: &Parts, slot: SlotName, unit: &UnitName) -> Result<String, String> {
    let asked = match leader(parts, slot).await {
        Ok(Some(leader)) => last_lines(parts.machines.units(leader).as_ref(), unit, LINES, None).await,
        Ok(None) => Ok(String::new()),
        Err(error) => Err(error),
    };
    match asked {
        Ok(text) if !text.is_empty() => Ok(text),
        _ => {
            let Some(files) = parts.slots.journal(slot) else { return Ok(String::new()) };
            let found = last_lines(parts.units.as_ref(), unit, LINES, Some(&files)).await;
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
    fn a_runtimes_unit_is_known_by_its_socket() {
        assert_eq!(runtime_unit("/run/containerd/containerd.sock"), "containerd.service");
        assert_eq!(runtime_unit("unix:///var/run/crio/crio.sock"), "crio.service");
        assert_eq!(runtime_unit("/run/cri-dockerd.sock"), "cri-docker.service");
    }
}
