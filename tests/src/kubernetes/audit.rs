//! Requests of agents, as the API server's audit log has them.
//!
//! The server writes the line of a request when it has answered, so that a client may know the answer first. What a test counts
//! is therefore read up to a request of its own, of which the line is awaited.

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
/// The log has requests of agents, and of nobody else.
const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
    - level: Metadata\n  userGroups: [\"bedplate:machines\"]\n- level: None\n";
/// Maximum time until a request is in the log.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Kubernetes {
    /// Arguments with which the API server keeps the log.
    pub(super) fn audit_arguments(&self) -> Result<[String; 2]> {
        let policy = self.path("audit.yaml");
        std::fs::write(&policy, POLICY).context("cannot write the audit policy")?;
        let log = self.path("audit.log");
        Ok([
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
        ])
    }

    /// Returns the requests that an agent's user has made since the start, an audit event (JSON) for each: all that were answered
    /// before this call. Requests of tests themselves are left out.
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
        // The last line may be being written: it is of a request after the mark.
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(events
            .filter(|event| event["user"]["username"] == user && event["userAgent"] != USER_AGENT)
            .collect())
    }
}
