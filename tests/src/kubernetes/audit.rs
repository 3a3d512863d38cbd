//! Requests of agents, read from the API server's audit log.
//!
//! The server logs a request after its response, so a client may get the response first. A reader of the log therefore sends its own
//! request, waits for the line of that request, and reads the log up to there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::credentials::user_of;
use super::objects::USER_AGENT;
use super::{Kubernetes, Objects};
use crate::wait;

/// Members of this group are agents.
const GROUP: &str = "bedplate:machines";
/// Audit policy that logs only requests of agents.
const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
    - level: Metadata\n  userGroups: [\"bedplate:machines\"]\n- level: None\n";
/// Maximum time until a request is in the log.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Kubernetes {
    /// Returns the API server arguments that enable the log.
    pub(super) fn audit_arguments(&self) -> Result<[String; 2]> {
        let policy = self.path("audit.yaml");
        std::fs::write(&policy, POLICY).context("cannot write the audit policy")?;
        let log = self.path("audit.log");
        Ok([
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
        ])
    }

    /// Returns the requests of an agent's user since the start, each as an audit event (JSON). All requests that were answered before
    /// this call are included. Requests of the tests themselves are omitted.
    ///
    /// # Errors
    /// The API server does not answer, or writes no log.
    pub fn asked_by(&self, user: &str) -> Result<Vec<Value>> {
        static MARKS: AtomicU32 = AtomicU32::new(0);
        let mark = format!("/version?mark={}", MARKS.fetch_add(1, Ordering::Relaxed));
        let credentials = user_of(&self.certificate(user, &[GROUP])?);
        Objects::connect(&self.reactor, self.kubeconfig(user, &credentials)?)?.text(&mark)?;
        let uri = Value::from(mark.as_str()).to_string();
        let log = self.path("audit.log");
        let log = wait::until("the audit log's line of a request", TIMEOUT, || {
            let log = std::fs::read_to_string(&log).context("cannot read the audit log")?;
            let has_it = log.lines().any(|line| line.contains(&uri) && line.ends_with('}'));
            Ok(has_it.then_some(log))
        })?;
        // The last line may be incomplete. It belongs to a request after the mark.
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(events
            .filter(|event| event["user"]["username"] == user && event["userAgent"] != USER_AGENT)
            .collect())
    }
}
