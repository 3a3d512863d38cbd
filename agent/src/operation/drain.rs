//! Cordons the Node, evicts its Pods, and uncordons it. Part of `run`; `rules::drain` selects the Pods.
//!
//! The Node is that of the kubelet's certificate (D5). Without its name no Pod is evicted, and the operation fails.
//! Each turn reads the Pods again, so that the next agent continues after a kill. Only a Node that was
//! cordoned for an operation is uncordoned after it, as its annotation records.

use bedplate_api::reason::operation::AgentOutcome;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bedplate_process::exit::chain;
use bedplate_rules::drain::{Drain, Evicted, Pod, Refusal, again, list, refusal};
use jiff::Timestamp;
use tokio::time::sleep;

use super::outcome::Outcome;
use super::plan::later;
use super::progress::{End, cordoned, is_cordoned, taken_of};
use super::run::{POLL_INTERVAL, Runner};
use crate::kubelet::client::{AskNodeError, NodeView};

impl Runner {
    /// Drains until no Pod is left to evict. The limit counts from the time at which the operation was taken.
    pub(super) async fn drain(&mut self, drain: &Drain, deadline: Timestamp) -> Outcome {
        let status = self.running.as_ref().and_then(|running| running.object.status.as_ref());
        let taken = taken_of(status, self.now()).map(|taken| taken.start);
        self.drain_since(taken.unwrap_or_else(|| self.now()), drain, deadline).await
    }

    /// Drains until no Pod is left to evict. The limit counts from `since`.
    pub(super) async fn drain_since(
        &mut self,
        since: Timestamp,
        drain: &Drain,
        deadline: Timestamp,
    ) -> Outcome {
        let Some(running) = &self.running else { return Outcome::Interrupted };
        let uid = running.object.metadata.uid.clone().unwrap_or_default();
        let until = later(since, drain.limit).min(deadline);
        let mut held = BTreeMap::new();
        loop {
            self.beat.beat();
            let (reason, left) = match self.drain_once(drain, &mut held).await {
                Ok(Progress::Done) => return Outcome::Ready,
                Ok(Progress::Cordon(seen)) => match self.cordon(&seen, &uid).await {
                    Ok(()) => continue,
                    Err(why) => (AgentOutcome::DrainTimedOut, why),
                },
                Ok(Progress::Refused(reason, message)) => return Outcome::End(End::failed(reason, message)),
                Ok(Progress::Left(message)) => (AgentOutcome::DrainTimedOut, message),
                Err(error) if error.is_final() || error.is_of_certificate() => {
                    return Outcome::End(End::failed(AgentOutcome::DrainFailed, chain(&error)));
                }
                Err(error @ AskNodeError::Kubeconfig(_)) => (AgentOutcome::DrainFailed, chain(&error)),
                Err(error) => (AgentOutcome::DrainTimedOut, chain(&error)),
            };
            if self.now() >= until {
                let seconds = drain.limit.as_secs();
                return Outcome::End(End::failed(reason, format!("not drained within {seconds} s: {left}")));
            }
            self.tell(&format!("draining: {left}")).await;
            tokio::select! {
                () = sleep(POLL_INTERVAL) => {}
                () = self.shutdown.cancelled() => return Outcome::Interrupted,
            }
            if !self.is_wanted() {
                if let Err(why) = self.uncordon(&uid).await {
                    tracing::warn!(why, "failed to uncordon the Node of a canceled operation");
                }
                return Outcome::Interrupted;
            }
        }
    }

    /// Cordons the Node. The object records it first, so that every writer that
    /// ends the operation uncordons the Node.
    async fn cordon(&mut self, seen: &NodeView, uid: &str) -> Result<(), String> {
        let Some(running) = &self.running else { return Err("the operation has finished".to_owned()) };
        let object = Arc::clone(&running.object);
        if !is_cordoned(object.status.as_ref()) {
            let status = cordoned(&object, self.now());
            if self.write(&object, status).await != Some(Duration::ZERO) {
                return Err("failed to write the operation".to_owned());
            }
        }
        self.parts.node.cordon(seen, Some(uid)).await.map_err(|error| chain(&error))
    }

    async fn drain_once(
        &self,
        drain: &Drain,
        held: &mut BTreeMap<String, (Timestamp, String)>,
    ) -> Result<Progress, AskNodeError> {
        let node = &self.parts.node;
        // Without a slot that has joined there is no Pod of a cluster here.
        let Some(seen) = node.node().await? else { return Ok(Progress::Done) };
        let pods = node.pods().await?;
        if let Some(refusal) = refusal(&pods, drain) {
            return Ok(refused(&refusal));
        }
        if !seen.cordoned {
            // The next read has Pods that were scheduled before the cordon.
            return Ok(Progress::Cordon(seen));
        }
        let leaving: Vec<&Pod> = pods.iter().filter(|pod| pod.has_to_leave()).collect();
        if leaving.is_empty() {
            return Ok(Progress::Done);
        }
        for pod in leaving.iter().filter(|pod| !pod.leaving) {
            let now = self.now();
            if held.get(&pod.uid).is_some_and(|(until, _)| now < *until) {
                continue;
            }
            match node.evict(pod, drain.grace).await? {
                Evicted::Accepted | Evicted::Gone => drop(held.remove(&pod.uid)),
                Evicted::Held { again: named, why } => {
                    held.insert(pod.uid.clone(), (again(now, named), why));
                }
            }
        }
        let names: Vec<String> = leaving
            .iter()
            .map(|pod| match held.get(&pod.uid) {
                Some((_, why)) => format!("{} ({why})", pod.full_name()),
                None => pod.full_name(),
            })
            .collect();
        Ok(Progress::Left(format!("waiting for {}", list(&names))))
    }

    /// Uncordons the Node if the operation of this UID has cordoned it. The error is a human-readable text.
    pub(super) async fn uncordon(&self, uid: &str) -> Result<(), String> {
        let node = &self.parts.node;
        let seen = node.node().await.map_err(|error| chain(&error))?;
        let seen = seen.ok_or("no slot runs, so there is no kubelet credential to uncordon with")?;
        if seen.cordoned_by.as_deref() != Some(uid) {
            return Ok(());
        }
        node.cordon(&seen, None).await.map_err(|error| chain(&error))
    }
}

/// Returns the failure, with the parameter that permits to evict these Pods.
fn refused(refusal: &Refusal) -> Progress {
    match refusal {
        Refusal::Unmanaged(names) => {
            let message =
                format!("no controller re-creates these Pods: {}; parameter force evicts them", list(names));
            Progress::Refused(AgentOutcome::UnmanagedPods, message)
        }
        Refusal::EmptyDir(names) => {
            let message = format!(
                "these Pods would lose their emptyDir data: {}; parameter deleteEmptyDirData evicts them",
                list(names)
            );
            Progress::Refused(AgentOutcome::EmptyDirData, message)
        }
    }
}

enum Progress {
    Done,
    Cordon(NodeView),
    Refused(AgentOutcome, String),
    Left(String),
}
