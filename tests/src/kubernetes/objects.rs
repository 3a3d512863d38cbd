//! Objects of a test API server, read and written as one user without a kubectl: a request costs 2 ms of processor time, a kubectl 60.
//!
//! Not here: what users see of kubectl. Tests of that start the real one ([`super::Kubernetes::kubectl`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::kind::Kind;
use super::reactor::Reactor;
use super::store::{Store, typed, version};

/// Maximum time of one request on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Delay between two attempts while the API server answers 429.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum time until a deleted object is gone.
const GONE_TIMEOUT: Duration = Duration::from_secs(120);
/// Owner of fields that a test applies. The same as kubectl's, so that both may apply one object.
const MANAGER: &str = "kubectl";
/// Name of these clients in the audit log.
pub(super) const USER_AGENT: &str = "bedplate-tests";

/// Access to objects as one user. Clones share connections and watches.
#[derive(Clone)]
pub struct Objects {
    shared: Arc<Shared>,
    /// Headers of each request.
    headers: Vec<(&'static str, String)>,
    /// Namespace of objects that name none.
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

/// How a patch is meant.
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
    /// Connects as the user of a kubeconfig (its text).
    pub(super) fn connect(reactor: &Arc<Reactor>, text: String) -> Result<Self> {
        let client = reactor.run(async move {
            let kubeconfig = Kubeconfig::from_yaml(&text).context("not a kubeconfig")?;
            let mut config =
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            // An API server that is stopped or not ready is an answer, too.
            config.default_retry = false;
            Client::try_from(config).context("no client")
        })?;
        let shared = Arc::new(Shared { client, reactor: reactor.clone(), stores: Mutex::default() });
        Ok(Self { shared, headers: Vec::new(), namespace: "default".to_owned() })
    }

    /// The same access with another namespace for objects that name none.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    /// The same access as somebody else, whom this user may impersonate.
    #[must_use]
    pub fn impersonating(&self, user: &str, groups: &[&str]) -> Self {
        let mut headers = vec![("Impersonate-User", user.to_owned())];
        headers.extend(groups.iter().map(|group| ("Impersonate-Group", (*group).to_owned())));
        Self { headers, ..self.clone() }
    }

    /// Sends a request and returns the JSON body of its answer.
    ///
    /// # Errors
    /// The API server refuses it, with reason and message, or does not answer.
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
        let answer = async move {
            loop {
                let answer = client.request::<Value>(request.clone()).await;
                // 429: so it answers while it gets to know a new kind.
                if !matches!(&answer, Err(kube::Error::Api(refusal)) if refusal.code == 429) {
                    return answer;
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        self.shared.reactor.run(async move {
            match tokio::time::timeout(TIMEOUT, answer).await.with_context(|| format!("{line}: no answer"))? {
                Ok(answer) => Ok(Ok(answer)),
                Err(kube::Error::Api(refusal)) => Ok(Err(refusal)),
                Err(error) => Err(anyhow!(error).context(line)),
            }
        })
    }

    /// Returns the text at a path that is not JSON, such as `/readyz`.
    ///
    /// # Errors
    /// The API server does not answer, or not with success.
    pub fn text(&self, path: &str) -> Result<String> {
        let request = Request::get(path).header("User-Agent", USER_AGENT).body(Vec::new())?;
        let client = self.shared.client.clone();
        self.shared.reactor.run(async move {
            let answer = tokio::time::timeout(TIMEOUT, client.request_text(request)).await;
            Ok(answer.context("no answer")??)
        })
    }

    fn path(&self, kind: &Kind, name: &str) -> String {
        format!("{}/{name}", kind.path(Some(&self.namespace)))
    }

    /// Returns an object as it is now; `None` if there is none.
    ///
    /// # Errors
    /// The API server refuses.
    pub fn get(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        let path = self.path(Kind::named(kind)?, name);
        match self.send(&Method::GET, &path, "application/json", &Value::Null)? {
            Ok(object) => Ok(Some(object)),
            Err(refusal) if refusal.code == 404 => Ok(None),
            Err(refusal) => Err(anyhow!("{}: {}", refusal.reason, refusal.message)),
        }
    }

    /// Returns the objects of a kind as they are now, of the own namespace if it has any. `query` is as in
    /// `labelSelector=app%3Dweb`.
    ///
    /// # Errors
    /// The API server refuses.
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

    /// Makes an object.
    ///
    /// # Errors
    /// The API server refuses.
    pub fn create(&self, object: &Value) -> Result<Value> {
        self.create_with(object, "")
    }

    /// Returns the object that a creation would make.
    ///
    /// # Errors
    /// The API server would refuse.
    pub fn try_create(&self, object: &Value) -> Result<Value> {
        self.create_with(object, "&dryRun=All")
    }

    fn create_with(&self, object: &Value, more: &str) -> Result<Value> {
        let kind = Kind::of(object)?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(&self.namespace);
        let path = format!("{}?fieldValidation=Strict{more}", kind.path(Some(namespace)));
        self.request(&Method::POST, &path, "application/json", object)
    }

    /// Applies an object (server-side), over the fields of others.
    ///
    /// # Errors
    /// The API server refuses.
    pub fn apply(&self, object: &Value) -> Result<Value> {
        self.apply_as(MANAGER, "", object, "")
    }

    /// Applies an object as a writer of this name: the object itself, or its subresource (`/status`). `more` are further
    /// parameters, as in `&dryRun=All`.
    ///
    /// # Errors
    /// The API server refuses.
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

    /// Merges into an object (RFC 7396).
    ///
    /// # Errors
    /// The API server refuses.
    pub fn merge(&self, kind: &str, name: &str, patch: &Value) -> Result<Value> {
        let path = self.path(Kind::named(kind)?, name);
        self.request(&Method::PATCH, &path, Patch::Merge.media_type(), patch)
    }

    /// Returns the object that [`Self::merge`] would make.
    ///
    /// # Errors
    /// The API server would refuse.
    pub fn try_merge(&self, kind: &str, name: &str, patch: &Value) -> Result<Value> {
        let path = format!("{}?dryRun=All", self.path(Kind::named(kind)?, name));
        self.request(&Method::PATCH, &path, Patch::Merge.media_type(), patch)
    }

    /// Merges into an object's status, which is given without its name.
    ///
    /// # Errors
    /// The API server refuses.
    pub fn merge_status(&self, kind: &str, name: &str, status: &Value) -> Result<Value> {
        let path = format!("{}/status", self.path(Kind::named(kind)?, name));
        self.request(&Method::PATCH, &path, Patch::Merge.media_type(), &json!({ "status": status }))
    }

    /// Changes an object or its subresource (`/status`) by operations (RFC 6902).
    ///
    /// # Errors
    /// The API server refuses.
    pub fn edit(&self, kind: &str, name: &str, subresource: &str, operations: &Value) -> Result<Value> {
        let path = format!("{}{subresource}", self.path(Kind::named(kind)?, name));
        self.request(&Method::PATCH, &path, Patch::Json.media_type(), operations)
    }

    /// Asks for the deletion of an object.
    ///
    /// # Errors
    /// There is none, or the API server refuses.
    pub fn begin_delete(&self, kind: &str, name: &str) -> Result<Value> {
        let path = self.path(Kind::named(kind)?, name);
        self.request(&Method::DELETE, &path, "application/json", &Value::Null)
    }

    /// Asks whether an object could be deleted (`dryRun=All`), which deletes nothing.
    ///
    /// # Errors
    /// There is none, or the API server refuses.
    pub fn can_delete(&self, kind: &str, name: &str) -> Result<Value> {
        let path = format!("{}?dryRun=All", self.path(Kind::named(kind)?, name));
        self.request(&Method::DELETE, &path, "application/json", &Value::Null)
    }

    /// Deletes an object and waits until it is gone. An object that is made again under the name counts as another one.
    ///
    /// # Errors
    /// There is none, the API server refuses, or it is not gone in time.
    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let uid = |object: Option<&Value>| object.map(|object| object["metadata"]["uid"].clone());
        let before = uid(self.get(kind, name)?.as_ref());
        self.begin_delete(kind, name)?;
        let gone = |object: Option<&Value>| (uid(object) != before).then_some(());
        self.until((kind, name), GONE_TIMEOUT, gone).with_context(|| format!("the end of {kind} {name}"))
    }

    /// Waits until `look` finds something of an object, which it gets as `None` while there is none.
    ///
    /// # Errors
    /// The deadline has passed, or the API server refuses.
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

    /// Waits until `look` finds something among the objects of a kind, in the own namespace if it has any.
    ///
    /// # Errors
    /// The deadline has passed, or the API server refuses.
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
        let deadline = Instant::now() + limit;
        let kind = Kind::named(kind)?;
        let (now, since) = self.list_with_version(kind, query)?;
        if let Some(found) = look(&now.iter().collect::<Vec<_>>()) {
            return Ok(found);
        }
        let own = |object: &Value| !kind.is_namespaced || object["metadata"]["namespace"] == *self.namespace;
        let found = self.store(kind).wait(since, deadline, |objects| {
            let meant =
                objects.iter().map(|object| &**object).filter(|object| own(object) && is_meant(object));
            look(&meant.collect::<Vec<_>>())
        });
        found.with_context(|| format!("not reached within {} s", limit.as_secs()))
    }

    /// Returns an object as its watch has shown it last, which may be a moment behind: for waits that look at more than one thing.
    ///
    /// # Errors
    /// The kind cannot be watched.
    pub fn seen(&self, kind: &str, name: &str) -> Result<Option<Arc<Value>>> {
        let kind = Kind::named(kind)?;
        self.store(kind).get(if kind.is_namespaced { &self.namespace } else { "" }, name)
    }

    /// Returns all objects of a kind as the watch has shown them last, in the own namespace if it has any.
    ///
    /// # Errors
    /// The kind cannot be watched.
    pub fn all_seen(&self, kind: &str) -> Result<Vec<Arc<Value>>> {
        let kind = Kind::named(kind)?;
        let own =
            |object: &Arc<Value>| !kind.is_namespaced || object["metadata"]["namespace"] == *self.namespace;
        Ok(self.store(kind).all()?.into_iter().filter(own).collect())
    }

    /// Returns a number that changes whenever an object of the kind does, for tasks that wait for that.
    ///
    /// # Errors
    /// The kind is not known.
    pub fn changes(&self, kind: &str) -> Result<watch::Receiver<u64>> {
        Ok(self.store(Kind::named(kind)?).versions())
    }

    /// The store of a kind, which is followed from the first use on.
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
