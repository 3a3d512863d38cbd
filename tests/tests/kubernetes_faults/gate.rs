//! Gate between one controller and the API server: it numbers the writes, one at a time, and does at a given one what a test requests.
//! Of lists and watches it lets through the test's own objects, by the beginning of their names: so several controllers
//! share an API server, and none knows of the others.
//!
//! Events are written in addition to all this, and nothing depends on them: they are let through without a number.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::feed::{Event, Feeds};

type Error = Box<dyn std::error::Error + Send + Sync>;
type Said = UnsyncBoxBody<Bytes, Error>;
type Answer = Result<Response<Said>, Error>;
type Hook = Box<dyn Fn(usize) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Fault of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// It is never sent: the controller dies before.
    Unsent,
    /// It is done, and the controller dies before it hears of it.
    Unheard,
    /// The connection breaks before it is sent.
    Broken,
    /// It is done, and the connection breaks.
    BrokenAfter,
    /// It is answered with this, and not done.
    Answered(u16),
}

/// Fault of all watches together, beginning with a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The version that they continue from is too old (410).
    Expired,
    /// Their connections break.
    Broken,
    /// The API server is unreachable: nothing is answered for this time, neither writes nor reads, and no connection breaks.
    Away(Duration),
}

/// A write: its words, and the how manieth of these it is, from 1.
pub(crate) type Point = (String, usize);

#[derive(Default)]
struct State {
    /// By the number of the write, from 1.
    faults: Vec<(usize, Fault)>,
    /// At a write by its words, and the how manieth of these.
    death: Option<(Point, Fault)>,
    cuts: Vec<(usize, Cut)>,
    writes: Vec<String>,
    hit: Vec<(Fault, String)>,
}

pub(crate) struct Gate {
    real: Client,
    feeds: Arc<Feeds>,
    runtime: Handle,
    scope: String,
    state: Mutex<State>,
    before: Mutex<Option<Arc<Hook>>>,
    last: Mutex<Instant>,
    turn: tokio::sync::Mutex<()>,
    /// Nothing goes through any more.
    dead: CancellationToken,
    /// The controller is to die.
    dies: Notify,
    cut: watch::Sender<Option<Cut>>,
    away: watch::Sender<Option<tokio::time::Instant>>,
}

impl Gate {
    /// For a controller that speaks by `real`, whose connections live in `runtime`, and that knows what begins with `scope`.
    pub(crate) fn new(real: Client, feeds: Arc<Feeds>, runtime: Handle, scope: &str) -> Arc<Self> {
        Arc::new(Self {
            real,
            feeds,
            runtime,
            scope: scope.to_owned(),
            state: Mutex::default(),
            before: Mutex::default(),
            last: Mutex::new(Instant::now()),
            turn: tokio::sync::Mutex::default(),
            dead: CancellationToken::new(),
            dies: Notify::new(),
            cut: watch::Sender::default(),
            away: watch::Sender::default(),
        })
    }

    /// Counts from here on, and has these things happen.
    pub(crate) fn arm(
        &self,
        death: Option<(Point, Fault)>,
        faults: Vec<(usize, Fault)>,
        cuts: Vec<(usize, Cut)>,
    ) {
        *self.state.lock().unwrap() = State { faults, death, cuts, ..State::default() };
    }

    /// Calls `hook` before each write, with its number.
    pub(crate) fn before_each(&self, hook: Hook) {
        *self.before.lock().unwrap() = Some(Arc::new(hook));
    }

    /// The writes since it was armed.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.state.lock().unwrap().writes.clone()
    }

    /// Faults that have happened, and their writes.
    pub(crate) fn hit(&self) -> Vec<(Fault, String)> {
        self.state.lock().unwrap().hit.clone()
    }

    /// Returns true if nothing was written for this time, and nothing is being written.
    pub(crate) fn is_quiet(&self, time: Duration) -> bool {
        self.turn.try_lock().is_ok() && self.last.lock().unwrap().elapsed() >= time
    }

    /// Nothing goes through any more, for ever.
    pub(crate) fn close(&self) {
        self.dead.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Ends when the controller is to die.
    pub(crate) async fn dies(&self) {
        self.dies.notified().await;
    }

    /// The client of the controller; made in the controller's runtime.
    pub(crate) fn client(self: &Arc<Self>) -> Client {
        let gate = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let gate = gate.clone();
            async move {
                let dead = gate.dead.clone();
                tokio::select! {
                    biased;
                    // A process that is gone hears nothing.
                    () = dead.cancelled() => std::future::pending().await,
                    answer = gate.pass(request) => answer,
                }
            }
        });
        Client::new(service, "default")
    }

    async fn pass(self: Arc<Self>, request: Request<Body>) -> Answer {
        if request.method() == Method::GET {
            return self.read(request).await;
        }
        if request.uri().path().contains("/events") {
            return self.forward(request).await;
        }
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let line = line(&head.method, head.uri.path(), &body).replace(&self.scope, "");
        let request = Request::from_parts(head, Body::from(body));
        let _turn = self.turn.lock().await;
        let (number, fault) = self.count(line);
        let hook = self.before.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook(number).await;
        }
        let answer = match fault {
            None => self.forward(request).await,
            Some(Fault::Unsent) => self.die().await,
            Some(Fault::Unheard) => {
                let _ = self.forward(request).await;
                self.die().await
            }
            Some(Fault::Broken) => Err(broken().into()),
            Some(Fault::BrokenAfter) => {
                let _ = self.forward(request).await;
                Err(broken().into())
            }
            Some(Fault::Answered(code)) => Ok(refusal(code)),
        };
        *self.last.lock().unwrap() = Instant::now();
        answer
    }

    fn count(&self, line: String) -> (usize, Option<Fault>) {
        let mut state = self.state.lock().unwrap();
        state.writes.push(line.clone());
        let number = state.writes.len();
        let nth = state.writes.iter().filter(|write| **write == line).count();
        let death =
            state.death.iter().find(|((at, of), _)| (at, *of) == (&line, nth)).map(|(_, fault)| *fault);
        let fault = state.faults.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault).or(death);
        if let Some(fault) = fault {
            state.hit.push((fault, line));
        }
        if let Some((_, cut)) = state.cuts.iter().find(|(at, _)| *at == number) {
            match cut {
                Cut::Away(time) => drop(self.away.send_replace(Some(tokio::time::Instant::now() + *time))),
                Cut::Expired | Cut::Broken => drop(self.cut.send_replace(Some(*cut))),
            }
        }
        (number, fault)
    }

    async fn die(&self) -> Answer {
        self.close();
        self.dies.notify_one();
        std::future::pending().await
    }

    /// In the runtime of the test: a connection outlives the controller that it was opened for.
    async fn forward(&self, request: Request<Body>) -> Answer {
        let client = self.real.clone();
        is_back(&self.away.subscribe()).await;
        let answer = self.runtime.spawn(async move { client.send(request).await }).await??;
        Ok(answer.map(|body| body.map_err(Error::from).boxed_unsync()))
    }

    async fn read(&self, request: Request<Body>) -> Answer {
        const OURS: [&str; 6] = [
            "/machines",
            "/machineconfigurations",
            "/machineconfigurationversions",
            "/machineoperations",
            "/nodes",
            "/certificatesigningrequests",
        ];
        let is_list = OURS.iter().any(|kind| request.uri().path().ends_with(kind));
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if is_list
            && is_watch
            && let Some(events) = self.feeds.subscribe(request.uri(), &self.scope)
        {
            is_back(&self.away.subscribe()).await;
            let ours = StreamBody::new(events.map(|event| Ok(Frame::data(event)))).boxed_unsync();
            return Ok(Response::new(self.watch(ours)));
        }
        let answer = self.forward(request).await?;
        if !is_list || answer.status() != StatusCode::OK {
            return Ok(answer);
        }
        let (mut head, body) = answer.into_parts();
        head.headers.remove(http::header::CONTENT_LENGTH);
        if is_watch {
            return Ok(Response::from_parts(head, self.watch(body)));
        }
        let mut list: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        let is_ours = |object: &Value| {
            object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&self.scope))
        };
        if let Some(items) = list["items"].as_array_mut() {
            items.retain(is_ours);
        }
        Ok(Response::from_parts(head, whole(&list)))
    }

    fn watch(&self, body: Said) -> Said {
        let mut cut = self.cut.subscribe();
        cut.mark_unchanged();
        let watched = Watched {
            data: Box::pin(body.into_data_stream()),
            rest: Vec::new(),
            cut,
            away: self.away.subscribe(),
            scope: self.scope.clone(),
            over: false,
        };
        StreamBody::new(stream::unfold(watched, Watched::next)).boxed_unsync()
    }
}

/// Ends when the API server is not away.
async fn is_back(away: &watch::Receiver<Option<tokio::time::Instant>>) {
    let until = *away.borrow();
    if let Some(until) = until {
        tokio::time::sleep_until(until).await;
    }
}

/// The events of a watch, a line each.
struct Watched {
    data: Pin<Box<dyn Stream<Item = Result<Bytes, Error>> + Send>>,
    rest: Vec<u8>,
    cut: watch::Receiver<Option<Cut>>,
    away: watch::Receiver<Option<tokio::time::Instant>>,
    scope: String,
    over: bool,
}

impl Watched {
    async fn next(mut self) -> Option<(Result<Frame<Bytes>, Error>, Self)> {
        loop {
            if self.over {
                return None;
            }
            tokio::select! {
                changed = self.cut.changed() => {
                    self.over = true;
                    let cut = changed.ok().and_then(|()| *self.cut.borrow());
                    return match cut? {
                        Cut::Away(_) => None,
                        Cut::Broken => Some((Err(broken().into()), self)),
                        Cut::Expired => {
                            let event = json!({ "type": "ERROR", "object": status(410, "Expired") });
                            Some((Ok(Frame::data(format!("{event}\n").into())), self))
                        }
                    };
                }
                chunk = self.data.next() => match chunk? {
                    Ok(chunk) => {
                        self.rest.extend_from_slice(&chunk);
                        let ours = self.ours();
                        if !ours.is_empty() {
                            is_back(&self.away).await;
                            return Some((Ok(Frame::data(ours.into())), self));
                        }
                    }
                    Err(error) => {
                        self.over = true;
                        return Some((Err(error), self));
                    }
                },
            }
        }
    }

    /// Complete lines of the test's own objects.
    fn ours(&mut self) -> Vec<u8> {
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.rest.split_off(end + 1);
        let whole = std::mem::replace(&mut self.rest, rest);
        let mut ours = Vec::new();
        for line in whole.split_inclusive(|byte| *byte == b'\n') {
            if is_ours(line, &self.scope) {
                ours.extend_from_slice(line);
            }
        }
        ours
    }
}

fn is_ours(line: &[u8], scope: &str) -> bool {
    Event::of(line).is_none_or(|event| event.name().starts_with(scope))
}

/// A write as a person would name it.
fn line(method: &Method, path: &str, body: &[u8]) -> String {
    let short = path.rsplit_once("/v1alpha1/").or_else(|| path.split_once("/v1/"));
    let short = short.map_or(path, |(_, short)| short);
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let made =
        body["metadata"]["name"].as_str().filter(|_| method == Method::POST && !short.ends_with("eviction"));
    made.map_or_else(|| format!("{method} {short}"), |made| format!("{method} {short}/{made}"))
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the test has broken the connection")
}

fn status(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "the test says so",
        "reason": reason, "code": code, "details": { "retryAfterSeconds": 1 } })
}

fn whole(value: &Value) -> Said {
    Full::new(Bytes::from(value.to_string())).map_err(|never| match never {}).boxed_unsync()
}

fn refusal(code: u16) -> Response<Said> {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let mut response = Response::new(whole(&status(code, reason)));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
    response
}
