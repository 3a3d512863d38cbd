//! Client for the objects of a test API server, as one user. A request costs 2 ms of CPU time; a kubectl process costs 60 ms.
//!
//! Tests of what users see start the real kubectl ([`super::Kubernetes::kubectl`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::kind::Kind;
use super::reactor::Reactor;
use super::store::{Store, typed, version};

/// Maximum time of one request on a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay between two attempts while the API server answers that it is too busy.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum time until a deleted object is gone.
const GONE_TIMEOUT: Duration = Duration::from_secs(120);
/// Field manager of a test's apply requests. It is that of kubectl, so both can apply the same object.
const MANAGER: &str = "kubectl";
/// User agent of these clients in the audit log.
pub(super) const USER_AGENT: &str = "bedplate-tests";

/// Access to objects as one user. Clones share connections and watches.
#[derive(Clone)]
pub struct Objects {
    shared: Arc<Shared>,
    /// Headers that are added to each request.
    headers: Vec<(&'static str, String)>,
    /// Default namespace of objects.
    namespace: String,
}

struct Shared {
    client: Client,
    reactor: Arc<Reactor>,
    /// Watched kinds, by plural.
    stores: Mutex<BTreeMap<&'static str, Arc<Store>>>,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Type of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patch {
    Apply,
    Merge,
    Json,
}

impl Patch {
    const fn media_type(self) -> &'static str {
        match self {
            Self::Apply => "application/apply-patch+yaml",
            Self::Merge => "application/merge-patch+json",
            Self::Json => "application/json-patch+json",
        }
    }
}

impl Objects {
    /// Connects as the user of a kubeconfig, which is given as text.
    pub(super) fn connect(reactor: &Arc<Reactor>, text: String) -> Result<Self> {
        let client = reactor.run(async move {
            let kubeconfig = Kubeconfig::from_yaml(&text).context("not a kubeconfig")?;
            let mut config =
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            // Tests must see an API server that is stopped or not ready.
            config.default_retry = false;
            Client::try_from(config).context("no client")
        })?;
        let shared = Arc::new(Shared { client, reactor: reactor.clone(), stores: Mutex::default() });
        Ok(Self { shared, headers: Vec::new(), namespace: "default".to_owned() })
    }

    /// Returns this access with another default namespace.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    /// Returns access as another user, whom this user may impersonate.
    #[must_use]
    pub fn impersonating(&self, user: &str, groups: &[&str]) -> Self {
        let mut headers = vec![("Impersonate-User", user.to_owned())];
        headers.extend(groups.iter().map(|group| ("Impersonate-Group", (*group).to_owned())));
        Self { headers, ..self.clone() }
    }

    /// Sends a request and returns the JSON body of its answer.
    ///
    /// # Errors
    /// The API server refuses the request, with reason and message, or does not answer.
    pub fn request(&self, method: &Method, path: &str, media_type: &str, body: &Value) -> Result<Value> {
        self.send(method, path, media_type, body)?
            .map_err(|refusal| anyhow!("{}: {}", refusal.reason, refusal.message))
    }

    fn send(
        &self,
        method: &Method,
        path: &str,
        media_type: &str,
        body: &Value,
    ) -> Result<Result<Value, Box<kube::core::Status>>> {
        let mut request = Request::builder().method(method).uri(path).header("Content-Type", media_type);
        request = request.header("User-Agent", USER_AGENT);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = request.body(body)?;
        let (client, line) = (self.shared.client.clone(), format!("{method} {path}"));
        // A request may have been carried out after its timeout, so only an idempotent request is repeated.
        let is_idempotent = *method != Method::POST && media_type != Patch::Json.media_type();
        let answer = async move {
            loop {
                let answer = client.request::<Value>(request.clone()).await;
                // 429: it sets up a new kind. 504: its store was slower than the API server waits, on a busy machine.
                let is_busy = |code| code == 429 || (code == 504 && is_idempotent);
                if !matches!(&answer, Err(kube::Error::Api(refusal)) if is_busy(refusal.code)) {
                    return answer;
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        self.shared.reactor.run(async move {
            match tokio::time::timeout(REQUEST_TIMEOUT, answer)
                .await
                .with_context(|| format!("{line}: no answer"))?
            {
                Ok(answer) => Ok(Ok(answer)),
                Err(kube::Error::Api(refusal)) => Ok(Err(refusal)),
                Err(error) => Err(anyhow!(error).context(line)),
            }
        })
    }

    /// Returns the text at a path that is not JSON, such as `/readyz`.
    ///
    /// # Errors
    /// The API server does not answer, or answers with an error.
    pub fn text(&self, path: &str) -> Result<String> {
        let request = Request::get(path).header("User-Agent", USER_AGENT).body(Vec::new())?;
        let client = self.shared.client.clone();
        self.shared.reactor.run(async move {
            let answer = tokio::time::timeout(REQUEST_TIMEOUT, client.request_text(request)).await;
            Ok(answer.context("no answer")??)
        })
    }

    fn path(&self, kind: &Kind, name: &str) -> String {
        format!("{}/{name}", kind.path(Some(&self.namespace)))
    }

    /// Returns the current state of an object; `None` if the object does not exist.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn get(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        let path = self.path(Kind::named(kind)?, name);
        match self.send(&Method::GET, &path, "application/json", &Value::Null)? {
            Ok(object) => Ok(Some(object)),
            Err(refusal) if refusal.code == 404 => Ok(None),
            Err(refusal) => Err(anyhow!("{}: {}", refusal.reason, refusal.message)),
        }
    }

    /// Returns the current objects of a kind; for a namespaced kind, those of this access's namespace. Example of `query`:
    /// `labelSelector=app%3Dweb`.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn list(&self, kind: &str, query: &str) -> Result<Vec<Value>> {
        Ok(self.list_with_version(Kind::named(kind)?, query)?.0)
    }

    fn list_with_version(&self, kind: &Kind, query: &str) -> Result<(Vec<Value>, u64)> {
        let path = format!("{}?{query}", kind.path(Some(&self.namespace)));
        let mut list = self.request(&Method::GET, &path, "application/json", &Value::Null)?;
        let items = list["items"].take();
        let items = items.as_array().context("a list without items")?;
        Ok((items.iter().map(|item| typed(item.clone(), kind)).collect(), version(&list)?))
    }

    /// Creates an object.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn create(&self, object: &Value) -> Result<Value> {
        self.create_with(object, "")
    }

    /// Returns the object that [`Self::create`] would create.
    ///
    /// # Errors
    /// The API server would refuse the request.
    pub fn try_create(&self, object: &Value) -> Result<Value> {
        self.create_with(object, "&dryRun=All")
    }

    fn create_with(&self, object: &Value, more: &str) -> Result<Value> {
        let kind = Kind::of(object)?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(&self.namespace);
        let path = format!("{}?fieldValidation=Strict{more}", kind.path(Some(namespace)));
        self.request(&Method::POST, &path, "application/json", object)
    }

    /// Applies an object (server-side) and takes ownership of conflicting fields.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn apply(&self, object: &Value) -> Result<Value> {
        self.apply_as(MANAGER, "", object, "")
    }

    /// Applies an object or its subresource (`/status`) as this field manager. `more` has further query parameters, such as
    /// `&dryRun=All`.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn apply_as(&self, manager: &str, subresource: &str, object: &Value, more: &str) -> Result<Value> {
        let kind = Kind::of(object)?;
        let name = object["metadata"]["name"].as_str().context("an object without a name")?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(&self.namespace);
        let path = format!(
            "{}/{name}{subresource}?fieldManager={manager}&force=true&fieldValidation=Strict{more}",
            kind.path(Some(namespace))
        );
        self.request(&Method::PATCH, &path, Patch::Apply.media_type(), object)
    }

    /// Applies the status of an object as this field manager.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn apply_status(&self, manager: &str, (kind, name): (&str, &str), status: &Value) -> Result<Value> {
        let Kind { version, kind, .. } = Kind::named(kind)?;
        let object =
            json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "status": status });
        self.apply_as(manager, "/status", &object, "")
    }

    /// Merges a patch into an object (RFC 7396).
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn merge(&self, kind: &str, name: &str, patch: &Value) -> Result<Value> {
        let path = self.path(Kind::named(kind)?, name);
        self.request(&Method::PATCH, &path, Patch::Merge.media_type(), patch)
    }

    /// Returns the object that [`Self::merge`] would produce.
    ///
    /// # Errors
    /// The API server would refuse the request.
    pub fn try_merge(&self, kind: &str, name: &str, patch: &Value) -> Result<Value> {
        let path = format!("{}?dryRun=All", self.path(Kind::named(kind)?, name));
        self.request(&Method::PATCH, &path, Patch::Merge.media_type(), patch)
    }

    /// Merges a patch into an object's status. `status` is the content of that field.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn merge_status(&self, kind: &str, name: &str, status: &Value) -> Result<Value> {
        let path = format!("{}/status", self.path(Kind::named(kind)?, name));
        self.request(&Method::PATCH, &path, Patch::Merge.media_type(), &json!({ "status": status }))
    }

    /// Does what [`Self::merge_status`] does, as this field manager.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn merge_status_as(&self, manager: &str, kind: &str, name: &str, status: &Value) -> Result<Value> {
        let path = format!("{}/status?fieldManager={manager}", self.path(Kind::named(kind)?, name));
        self.request(&Method::PATCH, &path, Patch::Merge.media_type(), &json!({ "status": status }))
    }

    /// Changes an object or its subresource (`/status`) with JSON Patch operations (RFC 6902).
    ///
    /// # Errors
    /// The API server refuses the request.
    pub fn edit(&self, kind: &str, name: &str, subresource: &str, operations: &Value) -> Result<Value> {
        let path = format!("{}{subresource}", self.path(Kind::named(kind)?, name));
        self.request(&Method::PATCH, &path, Patch::Json.media_type(), operations)
    }

    /// Changes an object with one JSON Patch operation and gives all its managed fields this time. The API server takes no times from a
    /// write that changes nothing else.
    ///
    /// # Errors
    /// The API server refuses the request, or takes no time.
    pub fn edit_at(&self, kind: &str, name: &str, operation: &Value, time: &str) -> Result<()> {
        let times = || -> Result<Vec<Value>> {
            let object = self.get(kind, name)?.with_context(|| format!("{kind} {name} does not exist"))?;
            let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
            Ok(entries.iter().map(|entry| entry["time"].clone()).collect())
        };
        // A program may add an entry, and the API server sorts entries by their times: all of them get this time.
        let count = times()?.len();
        let path = |entry| format!("/metadata/managedFields/{entry}/time");
        let times_edit =
            (0..count).map(|entry| json!({ "op": "replace", "path": path(entry), "value": time }));
        let operations = std::iter::once(operation.clone()).chain(times_edit).collect();
        self.edit(kind, name, "", &operations)?;
        let written = times()?;
        ensure!(
            written.iter().any(|written| written == time),
            "no managed field of {name} has the time {time}: {written:?}"
        );
        Ok(())
    }

    /// Requests the deletion of an object.
    ///
    /// # Errors
    /// The object does not exist, or the API server refuses the request.
    pub fn begin_delete(&self, kind: &str, name: &str) -> Result<Value> {
        let path = self.path(Kind::named(kind)?, name);
        self.request(&Method::DELETE, &path, "application/json", &Value::Null)
    }

    /// Checks whether an object can be deleted (`dryRun=All`); deletes nothing.
    ///
    /// # Errors
    /// The object does not exist, or the API server refuses the request.
    pub fn can_delete(&self, kind: &str, name: &str) -> Result<Value> {
        let path = format!("{}?dryRun=All", self.path(Kind::named(kind)?, name));
        self.request(&Method::DELETE, &path, "application/json", &Value::Null)
    }

    /// Deletes an object and waits until it does not exist. A re-created object of the same name counts as another object.
    ///
    /// # Errors
    /// The object does not exist, the API server refuses the request, or the deletion times out.
    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let uid = |object: Option<&Value>| object.map(|object| object["metadata"]["uid"].clone());
        let before = uid(self.get(kind, name)?.as_ref());
        self.begin_delete(kind, name)?;
        let gone = |object: Option<&Value>| (uid(object) != before).then_some(());
        self.until((kind, name), GONE_TIMEOUT, gone).with_context(|| format!("deletion of {kind} {name}"))
    }

    /// Waits until `look` returns a value for an object. `look` gets `None` while the object does not exist.
    ///
    /// # Errors
    /// The deadline has passed, or the API server refuses the request.
    pub fn until<T>(
        &self,
        (kind, name): (&str, &str),
        limit: Duration,
        mut look: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> Result<T> {
        let query = format!("fieldSelector=metadata.name%3D{name}");
        let is_it = |object: &Value| object["metadata"]["name"] == name;
        self.until_of(kind, &query, limit, is_it, |objects| look(objects.first().copied()))
    }

    /// Waits until `look` returns a value for the objects of a kind; for a namespaced kind, those of this access's namespace.
    ///
    /// # Errors
    /// The deadline has passed, or the API server refuses the request.
    pub fn until_among<T>(
        &self,
        kind: &str,
        limit: Duration,
        look: impl FnMut(&[&Value]) -> Option<T>,
    ) -> Result<T> {
        self.until_of(kind, "", limit, |_| true, look)
    }

    fn until_of<T>(
        &self,
        kind: &str,
        query: &str,
        limit: Duration,
        is_meant: impl Fn(&Value) -> bool,
        mut look: impl FnMut(&[&Value]) -> Option<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let kind = Kind::named(kind)?;
        let (now, since) = self.list_with_version(kind, query)?;
        if let Some(found) = look(&now.iter().collect::<Vec<_>>()) {
            return Ok(found);
        }
        let own = |object: &Value| !kind.is_namespaced || object["metadata"]["namespace"] == *self.namespace;
        let store = self.store(kind);
        let shown = store.wait(since, started + limit, |objects| {
            let meant =
                objects.iter().map(|object| &**object).filter(|object| own(object) && is_meant(object));
            look(&meant.collect::<Vec<_>>())
        });
        if let Some(found) = shown {
            return Ok(found);
        }
        let standing = format!("in {:.1} s ({})", started.elapsed().as_secs_f64(), store.standing());
        let last = self.list_with_version(kind, query);
        let (now, _) = last.with_context(|| format!("not reached {standing}; last list"))?;
        if look(&now.iter().collect::<Vec<_>>()).is_none() {
            bail!("not reached {standing}");
        }
        let newest = now.iter().filter_map(|object| version(object).ok()).max().unwrap_or_default();
        bail!("reached, but the watch has not shown it {standing}; object at {newest}")
    }

    /// Returns the last state of an object from its watch, which may be slightly stale. For waits that check several objects.
    ///
    /// # Errors
    /// The kind cannot be watched.
    pub fn seen(&self, kind: &str, name: &str) -> Result<Option<Arc<Value>>> {
        let kind = Kind::named(kind)?;
        self.store(kind).get(if kind.is_namespaced { &self.namespace } else { "" }, name)
    }

    /// Returns the last state of all objects of a kind from their watch; for a namespaced kind, those of this access's namespace.
    ///
    /// # Errors
    /// The kind cannot be watched.
    pub fn all_seen(&self, kind: &str) -> Result<Vec<Arc<Value>>> {
        let kind = Kind::named(kind)?;
        let own =
            |object: &Arc<Value>| !kind.is_namespaced || object["metadata"]["namespace"] == *self.namespace;
        Ok(self.store(kind).all()?.into_iter().filter(own).collect())
    }

    /// Returns a number that changes whenever an object of the kind changes, for tasks that wait for changes.
    ///
    /// # Errors
    /// The kind is unknown.
    pub fn changes(&self, kind: &str) -> Result<watch::Receiver<u64>> {
        Ok(self.store(Kind::named(kind)?).versions())
    }

    /// Returns the store of a kind. Its watch starts with the first use.
    pub(super) fn store(&self, kind: &'static Kind) -> Arc<Store> {
        let mut stores = self.shared.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = || {
            let store = Arc::new(Store::default());
            self.shared.reactor.spawn(store.clone().follow(self.shared.client.clone(), kind));
            store
        };
        stores.entry(kind.plural).or_insert_with(begin).clone()
    }
}
