//! Proxy of the API server for one program. It numbers the writes of the program, kills the program at one of them, and starts it again.
//!
//! Events pass without a number, because nothing depends on them. A test may omit more writes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bedplate_tests::guard::Process;
use bytes::Bytes;
use http::{HeaderName, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use super::site::provider;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Answer = Result<Response<UnsyncBoxBody<Bytes, Error>>, Error>;

/// Returns true if a write has a number.
type Counts = Box<dyn Fn(&str) -> bool + Send>;

/// When the program dies at a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    /// The write is not sent.
    Before,
    /// The write is done, and the program does not read the answer.
    After,
}

/// The proxy. It ends with its program when dropped.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    _runtime: Runtime,
}

struct Shared {
    real: Client,
    kubeconfig: PathBuf,
    log: PathBuf,
    /// Namespace whose objects the program reconciles.
    namespace: &'static str,
    state: Mutex<State>,
    /// Writes pass one at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    program: Option<Process>,
    writes: Vec<String>,
    /// Number of the write, from 1.
    death: Option<(usize, Death)>,
    /// Number of writes from one death to the next one. None: the program dies once.
    stride: Option<usize>,
    /// Writes at which the program has died.
    deaths: Vec<String>,
    /// Returns true if a write has a number. None: each has one.
    counts: Option<Counts>,
}

impl Proxy {
    /// Starts the proxy and the program. The proxy has the rights of `account`; its kubeconfig for the program is written to `place`. The program
    /// reconciles the objects of one namespace.
    pub(crate) fn start(account: &Path, place: &Path, log: &Path, namespace: &'static str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (real, listener) = runtime.block_on(async {
            let kubeconfig = Kubeconfig::read_from(account).unwrap();
            let config =
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
            (Client::try_from(config).unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap())
        });
        let kubeconfig = place.join("proxy.conf");
        std::fs::write(&kubeconfig, text(listener.local_addr().unwrap())).unwrap();
        let (state, turn) = Default::default();
        let shared = Arc::new(Shared { real, kubeconfig, log: log.to_owned(), namespace, state, turn });
        let listening = shared.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, listening.clone()));
            }
        });
        shared.start_program(&mut shared.state.lock().unwrap());
        Self { shared, _runtime: runtime }
    }

    /// Numbers the writes from here on. The program dies at one of them.
    pub(crate) fn arm(&self, death: Option<(usize, Death)>) {
        self.shared.state.lock().unwrap().arm(death, None, None);
    }

    /// Numbers the writes of one kind from here on. The program dies at one of them. The order of writes of different kinds may differ between
    /// lives, because each kind has its own watch.
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) fn arm_kind(&self, wanted: &str, death: (usize, Death)) {
        let wanted = wanted.to_owned();
        let counts: Counts = Box::new(move |write| kind(write) == wanted);
        self.shared.state.lock().unwrap().arm(Some(death), None, Some(counts));
    }

    /// Numbers the writes from here on for which `counts` returns true. The program dies at the write `first` and at each `stride`-th write after
    /// it.
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) fn arm_each(&self, (first, stride): (usize, usize), death: Death, counts: fn(&str) -> bool) {
        self.shared.state.lock().unwrap().arm(Some((first, death)), Some(stride), Some(Box::new(counts)));
    }

    /// Returns the writes at which the program has died since the proxy is armed.
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) fn deaths(&self) -> Vec<String> {
        self.shared.state.lock().unwrap().deaths.clone()
    }

    /// Returns the writes since the last call of [`Self::arm`].
    pub(crate) fn writes(&self) -> Vec<String> {
        self.shared.state.lock().unwrap().writes.clone()
    }

    /// True if the program has still to die.
    pub(crate) fn is_armed(&self) -> bool {
        self.shared.state.lock().unwrap().death.is_some()
    }
}

impl State {
    fn arm(&mut self, death: Option<(usize, Death)>, stride: Option<usize>, counts: Option<Counts>) {
        let program = self.program.take();
        *self = Self { program, death, stride, counts, ..Self::default() };
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request| shared.clone().pass(request));
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Shared {
    fn start_program(&self, state: &mut State) {
        let namespace = format!("--namespace={}", self.namespace);
        state.program = Some(provider(&self.kubeconfig, &self.log, &["--leader-elect=false", &namespace]));
    }

    async fn pass(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        head.uri = head.uri.path_and_query().ok_or("no path")?.as_str().parse()?;
        let unwanted: [HeaderName; 3] = [header::HOST, header::CONTENT_LENGTH, header::AUTHORIZATION];
        unwanted.iter().for_each(|name| drop(head.headers.remove(name)));
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        let request = Request::from_parts(head, Body::from(body.clone()));
        if method == Method::GET || path.contains("/events") || path.contains("/selfsubject") {
            return self.forward(request).await;
        }
        let _turn = self.turn.lock().await;
        match self.count(line(&method, &path, &body)) {
            None => self.forward(request).await,
            Some(death) => {
                if death == Death::After {
                    self.forward(request).await?;
                }
                let mut state = self.state.lock().unwrap();
                state.program.take().iter_mut().for_each(Process::kill);
                self.start_program(&mut state);
                let mut gone = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
                *gone.status_mut() = StatusCode::BAD_GATEWAY;
                Ok(gone)
            }
        }
    }

    fn count(&self, line: String) -> Option<Death> {
        let mut state = self.state.lock().unwrap();
        if state.counts.as_ref().is_some_and(|counts| !counts(&line)) {
            return None;
        }
        let number = state.writes.len() + 1;
        let (_, death) = state.death.take_if(|(at, _)| *at == number).unzip();
        if let Some(death) = death {
            state.death = state.stride.map(|stride| (number + stride, death));
            state.deaths.push(line.clone());
        }
        state.writes.push(line);
        death
    }

    async fn forward(&self, request: Request<Body>) -> Answer {
        let answer = self.real.send(request).await?;
        Ok(answer.map(|body| body.map_err(Error::from).boxed_unsync()))
    }
}

/// Returns method, kind and subresource of a write.
#[allow(dead_code, reason = "each test program uses its part")]
pub(crate) fn kind(write: &str) -> String {
    let (method, path) = write.split_once(' ').unwrap();
    let parts: Vec<&str> = path.split('/').collect();
    match &parts[..] {
        ["namespaces", _, kind, _] | [kind, _] => format!("{method} {kind}"),
        ["namespaces", _, kind, _, subresource] | [kind, _, subresource] => {
            format!("{method} {kind}/{subresource}")
        }
        _ => write.to_owned(),
    }
}

/// Returns the number of writes of each kind. Each needed kind must be among them.
#[allow(dead_code, reason = "each test program uses its part")]
pub(crate) fn numbers(writes: &[String], needed: &[&str]) -> BTreeMap<String, usize> {
    println!("{} writes: {writes:#?}", writes.len());
    let mut numbers = BTreeMap::new();
    writes.iter().for_each(|write| *numbers.entry(kind(write)).or_default() += 1);
    needed.iter().for_each(|kind| assert!(numbers.contains_key(*kind), "{kind} in {writes:#?}"));
    numbers
}

/// A write without the names of its group and version.
fn line(method: &Method, path: &str, body: &[u8]) -> String {
    let versions = ["/v1alpha1/", "/v1beta2/", "/v1/"];
    let short = versions.iter().find_map(|version| path.rsplit_once(version));
    let short = short.map_or(path, |(_, short)| short);
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let made = body["metadata"]["name"].as_str().filter(|_| method == Method::POST);
    made.map_or_else(|| format!("{method} {short}"), |made| format!("{method} {short}/{made}"))
}

fn text(server: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: proxy\nclusters:\n- name: proxy\n  cluster: {{server: \"http://{server}\"}}\n\
         contexts:\n- name: proxy\n  context: {{cluster: proxy, user: proxy}}\nusers:\n- name: proxy\n  user: {{}}\n"
    )
}
