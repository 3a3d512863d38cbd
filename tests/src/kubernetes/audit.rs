//! Requests of agents and of pxed, read from the API server's audit log.
//!
//! The server writes a line when a request arrives, before any other part of the server sees the request. It writes another line
//! after the answer, when the client may know the answer already. A test therefore counts arrivals before that of a request of its own,
//! the mark, and waits for the answers to these.
//!
//! The core controllers make too many requests for that. Of theirs, the log has the answered writes only, which [`Writes`] counts.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
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
/// User of pxed's service account.
const PXED: &str = "system:serviceaccount:bedplate-system:pxed";
/// Policy of the log: it has requests of agents and of pxed in every stage, and answered writes of the core controllers.
const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n\
    - level: Metadata\n  userGroups: [\"bedplate:machines\"]\n\
    - level: Metadata\n  users: [\"system:serviceaccount:bedplate-system:pxed\"]\n\
    - level: Metadata\n  users: [\"system:serviceaccount:bedplate-system:bedplate-core\", \"system:serviceaccount:capi-system:capi-manager\"]\n\
    \x20 verbs: [create, update, patch, delete, deletecollection]\n  omitStages: [RequestReceived]\n\
    - level: None\n";
/// Size in MB after which the API server renames the log. No test writes this much: [`Writes`] reads one file.
const MAX_SIZE: u32 = 4096;
/// Stage of the line that is written when a request arrives. All other stages follow an answer or its beginning.
const RECEIVED: &str = "RequestReceived";
/// Maximum time until the answers are in the log.
const LOG_TIMEOUT: Duration = Duration::from_secs(60);

impl Kubernetes {
    /// Returns the API server arguments that enable the log.
    pub(super) fn audit_arguments(&self) -> Result<[String; 3]> {
        let policy = self.path("audit.yaml");
        std::fs::write(&policy, POLICY).context("cannot write the audit policy")?;
        let log = self.path("audit.log");
        Ok([
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
            format!("--audit-log-maxsize={MAX_SIZE}"),
        ])
    }

    /// Returns the counter of the writes of a core controller's user.
    pub fn writes_of(&self, user: &str) -> Writes {
        Writes {
            log: self.path("audit.log"),
            user: user.to_owned(),
            offset: 0,
            rest: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Returns the requests that an agent's user has made since the start, in the order of arrival: all that were answered before
    /// this call, and maybe some more. Each is an audit event (JSON) with the status of the answer. Requests of tests are omitted.
    ///
    /// # Errors
    /// The API server does not answer, or writes no log.
    pub fn asked_by(&self, user: &str) -> Result<Vec<Value>> {
        let credentials = user_of(&self.certificate(user, &[GROUP])?);
        self.asked_with(user, self.kubeconfig(user, &credentials)?)
    }

    /// Returns the requests that pxed has made, as [`Self::asked_by`] does for an agent. `kubeconfig`: one of pxed's service account.
    ///
    /// # Errors
    /// As for [`Self::asked_by`], or the kubeconfig cannot be read.
    pub fn asked_by_pxed(&self, kubeconfig: &Path) -> Result<Vec<Value>> {
        self.asked_with(PXED, std::fs::read_to_string(kubeconfig).context("cannot read the kubeconfig")?)
    }

    fn asked_with(&self, user: &str, kubeconfig: String) -> Result<Vec<Value>> {
        static MARKS: AtomicU32 = AtomicU32::new(0);
        let mark = format!("/version?mark={}", MARKS.fetch_add(1, Ordering::Relaxed));
        Objects::connect(&self.reactor, kubeconfig)?.text(&mark)?;
        let log = self.path("audit.log");
        wait::until("the audit log's lines of all requests before a mark", LOG_TIMEOUT, || {
            let log = std::fs::read_to_string(&log).context("cannot read the audit log")?;
            Ok(answers_before(&mark, user, &log))
        })
    }
}

/// Counter of the writes of one user, by verb, resource and subresource, such as `patch machines/status`. Rejected writes count too.
#[derive(Debug)]
pub struct Writes {
    log: PathBuf,
    user: String,
    /// Number of bytes that are counted.
    offset: u64,
    /// Beginning of a line whose end is not written yet.
    rest: Vec<u8>,
    counts: BTreeMap<String, u64>,
}

impl Writes {
    /// Counts the lines that were added, and returns all counts since the start of the API server.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn count(&mut self) -> Result<&BTreeMap<String, u64>> {
        let mut file = File::open(&self.log).context("cannot open the audit log")?;
        file.seek(SeekFrom::Start(self.offset)).context("cannot seek in the audit log")?;
        let read = file.read_to_end(&mut self.rest).context("cannot read the audit log")?;
        self.offset += u64::try_from(read)?;
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let lines: Vec<u8> = self.rest.drain(..end).collect();
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let event: Value = serde_json::from_slice(line).context("a line of the audit log")?;
            if event["user"]["username"] == *self.user {
                *self.counts.entry(written(&event)).or_default() += 1;
            }
        }
        Ok(&self.counts)
    }
}

/// Returns verb, resource and subresource of an audit event.
fn written(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let sub = text(&object["subresource"]);
    let sub = if sub.is_empty() { sub } else { format!("/{sub}") };
    format!("{} {}{sub}", text(&event["verb"]), text(&object["resource"]))
}

/// Returns verb, resource and selectors or name of an audit event, such as `list machines fieldSelector=metadata.name=a`.
pub fn request_line(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let uri = text(&event["requestURI"]);
    let query = uri.split_once('?').map(|(_, query)| query).unwrap_or_default();
    let selectors: Vec<_> = query.split('&').filter(|part| part.contains("Selector=")).collect();
    let mut selectors = selectors.join(" ");
    for (code, character) in [("%3D", "="), ("%2F", "/"), ("%21", "!"), ("%2C", ",")] {
        selectors = selectors.replace(code, character);
    }
    let sub = text(&object["subresource"]);
    let sub = if sub.is_empty() { sub } else { format!("/{sub}") };
    let whose = if selectors.is_empty() { text(&object["name"]) } else { selectors };
    format!("{} {}{sub} {whose}", text(&event["verb"]), text(&object["resource"]))
}

/// Returns the first answer to each request of a user that arrived before the mark; `None` while the log lacks one of them, or the mark.
fn answers_before(mark: &str, user: &str, log: &str) -> Option<Vec<Value>> {
    // The last line may be incomplete.
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let events = events.filter(|event| event["user"]["username"] == user);
    let (received, answers): (Vec<Value>, Vec<Value>) = events.partition(|event| event["stage"] == RECEIVED);
    let end = received.iter().position(|event| event["requestURI"] == mark)?;
    let mut first_answers = HashMap::new();
    for answer in answers {
        // A watch has two: when it starts and, much later, when it ends.
        first_answers.entry(answer["auditID"].to_string()).or_insert(answer);
    }
    let counted = received.iter().take(end).filter(|event| event["userAgent"] != USER_AGENT);
    counted.map(|event| first_answers.remove(&event["auditID"].to_string())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(id: u32, stage: &str, uri: &str) -> String {
        let agent = if uri.starts_with("/version") { USER_AGENT } else { "bedplate-agent" };
        let event = json!({ "auditID": id.to_string(), "stage": stage, "requestURI": uri, "userAgent": agent,
            "user": { "username": "a" }, "responseStatus": { "code": 200 } });
        format!("{event}\n")
    }

    #[test]
    fn answer_that_is_logged_after_the_mark_is_counted_once() {
        let mark = "/version?mark=1";
        let mut log = [
            line(1, RECEIVED, "/list"),
            line(2, RECEIVED, "/watch"),
            line(2, "ResponseStarted", "/watch"),
            line(3, RECEIVED, mark),
            line(3, "ResponseComplete", mark),
            line(4, RECEIVED, "/later"),
        ]
        .concat();
        assert_eq!(answers_before(mark, "a", &log), None, "an answer is missing");
        log.push_str(&line(1, "ResponseComplete", "/list"));
        log.push_str(&line(2, "ResponseComplete", "/watch"));
        log.push_str("{\"stage\": \"Resp");
        let answers = answers_before(mark, "a", &log).unwrap();
        let shown: Vec<_> = answers.iter().map(|answer| (&answer["requestURI"], &answer["stage"])).collect();
        assert_eq!(
            shown,
            [(&json!("/list"), &json!("ResponseComplete")), (&json!("/watch"), &json!("ResponseStarted"))]
        );
        assert_eq!(answers_before("/version?mark=2", "a", &log), None, "no mark");
        assert_eq!(answers_before(mark, "b", &log), None, "another user");
    }

    #[test]
    fn writes_are_counted_once_each_line_is_complete() {
        let write = |user: &str, sub: &str| {
            let object = json!({ "resource": "machines", "subresource": sub });
            format!("{}\n", json!({ "user": { "username": user }, "verb": "patch", "objectRef": object }))
        };
        let place = crate::guard::Directory::new("audit").unwrap();
        let log = place.path().join("audit.log");
        let (offset, rest, counts) = Default::default();
        let mut writes = Writes { log: log.clone(), user: "a".to_owned(), offset, rest, counts };
        let lines = [write("a", "status"), write("b", "status"), write("a", "")].concat();
        let (first, second) = lines.split_at(lines.len() - 9);
        std::fs::write(&log, first).unwrap();
        assert_eq!(
            writes.count().unwrap().clone(),
            BTreeMap::from([("patch machines/status".to_owned(), 1)])
        );
        std::fs::write(&log, [first, second].concat()).unwrap();
        let both = [("patch machines".to_owned(), 1), ("patch machines/status".to_owned(), 1)];
        assert_eq!(writes.count().unwrap().clone(), BTreeMap::from(both));
        assert_eq!(writes.count().unwrap().len(), 2, "no line counts twice");
    }
}
