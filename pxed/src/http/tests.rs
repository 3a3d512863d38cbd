//! The plain listener in process: a whole boot, the seed once, limits, the queue. `connection` has the claims over TCP.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bedplate_api::id::BootId;
use bedplate_api::machine::Machine;
use bedplate_api::wire::{Refusal, Seed, Stage};
use bedplate_process::listen::{Limits, Listening};
use bedplate_process::liveness::Pulse;
use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use proptest::prelude::*;
use tokio_util::sync::CancellationToken;

use super::body::Payload;
use super::counters::SeedAnswer;
use super::queue::Queue;
use super::route::{Peer, Routes, answer};
use crate::boot::report::Teller;
use crate::boot::{Boots, LoaderKind, Opening, Owner};
use crate::boot_policy::{ImageName, ImageState, Platform};
use crate::config::Config;
use crate::enroll::authority::Authority;
use crate::heard::Heard;
use crate::images::Images;
use crate::machines::{Machines, Snapshot};
use crate::netboot::dhcp::Urls;
use crate::netboot::loaders::Loaders;
use crate::netboot::state::Present;
use crate::status::StatusRegistry;
use crate::store::Store;
use crate::system_of_record::SystemOfRecord;

mod connection;

const MAC: &str = "52:54:00:00:00:01";

/// A boot path over a state directory of its own.
pub(crate) struct Rig {
    pub(crate) routes: Arc<Routes>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) store: Store,
    pub(crate) machines: Machines,
    pub(crate) registry: StatusRegistry,
    pub(crate) heard: Heard,
    pub(crate) events: std::sync::Mutex<bedplate_process::events::Queue>,
    pub(crate) directory: Arc<tempfile::TempDir>,
}

pub(crate) fn machine(name: &str, spec: &serde_json::Value) -> Machine {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": name, "uid": "u1" },
        "spec": spec,
    }))
    .unwrap()
}

pub(crate) fn plain() -> serde_json::Value {
    serde_json::json!({ "provider": "pxe", "pxe": { "interfaces": [{ "macAddress": MAC }] } })
}

impl Rig {
    pub(crate) fn new() -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let rootfs: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        for (name, bytes) in [
            ("kernel", b"kernel".as_slice()),
            ("initrd", &[7; 100]),
            ("rootfs", &rootfs),
            ("ipxe.efi", b"MZ loader"),
        ] {
            std::fs::write(directory.path().join(name), bytes).unwrap();
        }
        Self::reopen(directory)
    }

    pub(crate) fn reopen(directory: Arc<tempfile::TempDir>) -> Self {
        let at = directory.path().display();
        let text = format!(
            "site = 'default'\nstate-directory = '{at}/state'\ndefault-image = 'host'\n\
             [source]\ndirectory = '{at}/machines'\n[dhcp]\nmode = 'off'\n\
             [loaders]\ndirectory = '{at}'\nuefi-x64-http = 'ipxe.efi'\n\
             [images.host]\nkernel = '{at}/kernel'\ninitrd = '{at}/initrd'\nrootfs = '{at}/rootfs'\n\
             kernel-arguments = ['console=ttyS0']\n[images.other]\nkernel = '{at}/none'\ninitrd = '{at}/none'\n"
        );
        let config = Config::parse(&text, &[]).unwrap();
        std::fs::create_dir_all(directory.path().join("state")).unwrap();
        let store = Store::open(&directory.path().join("state/store")).unwrap();
        let machines = Machines::default();
        machines.store(Snapshot::build(&config.site, [machine("node1", &plain())]));
        let (registry, events) = StatusRegistry::new(machines.clone(), &store, SystemOfRecord::Pxed).unwrap();
        // However full the disk of the tests is.
        let options =
            bedplate_oci::Options { keep_free: 0, keep_free_percent: 0, ..bedplate_oci::Options::default() };
        let cache = bedplate_oci::Store::open_with(directory.path().join("images"), options).unwrap();
        let images = Images::new(cache, &config);
        let loaders = Arc::new(ArcSwap::from_pointee(Loaders::load(&config.loaders)));
        let now = Timestamp::now();
        let lifetime = jiff::SignedDuration::from_mins(10);
        let authority = Authority::open(&directory.path().join("ca"), "default", now).unwrap();
        let heard = Heard::new(SystemOfRecord::Pxed);
        let teller = Teller { registry: registry.clone(), machines: machines.clone(), heard: heard.clone() };
        let counters = Arc::<super::counters::Counters>::default();
        let routes = Routes {
            machines: machines.clone(),
            boots: Boots::load(store.clone(), Arc::new(teller), lifetime, now).unwrap(),
            present: Arc::new(Present::new(loaders.clone(), images.clone(), &config)),
            images,
            loaders,
            urls: Urls { advertise: None, port: 8067 },
            agent_urls: Urls { advertise: None, port: 8443 },
            site: config.site.clone(),
            ca_pem: authority.pem().into(),
            queue: Arc::new(Queue::new(64, counters.clone())),
            streams: Arc::default(),
            counters,
            reports: Arc::default(),
            leases: crate::http::leased::Leases::default(),
        };
        let (routes, authority) = (Arc::new(routes), Arc::new(authority));
        let events = std::sync::Mutex::new(events);
        Self { routes, authority, store, machines, registry, heard, events, directory }
    }

    /// Fetches the images; the boot path's own tasks do not run otherwise.
    pub(crate) async fn with_images(self) -> Self {
        let shutdown = CancellationToken::new();
        let run = tokio::spawn(self.routes.images.clone().run(
            self.routes.boots.clone(),
            Pulse::unwatched(),
            shutdown.clone(),
        ));
        let host = ImageName::Configured("host".to_owned());
        until(|| match self.routes.images.state(&host) {
            ImageState::Ready => true,
            ImageState::Failed(why) | ImageState::Unusable(why) => panic!("the image is not ready: {why}"),
            ImageState::Fetching(_) | ImageState::Unknown => false,
        })
        .await;
        shutdown.cancel();
        run.await.unwrap();
        self
    }

    pub(crate) fn set_machine(&self, spec: &serde_json::Value) {
        let site = "default".parse().unwrap();
        self.machines.store(Snapshot::build(&site, [machine("node1", spec)]));
    }

    pub(crate) fn boots(&self) -> &Boots {
        &self.routes.boots
    }

    /// Returns all reports about node1 so far: its status and its Events.
    pub(crate) fn reports(&self) -> String {
        self.boots().flush(Timestamp::now());
        let status = self.registry.get(&"node1".parse().unwrap()).unwrap();
        let mut reports = serde_json::to_string(&status).unwrap();
        let mut events = self.events.lock().unwrap();
        while let Some(event) = events.try_next() {
            reports.push_str(&format!("\nreason: {}, message: {:?}", event.reason, event.note));
        }
        reports
    }

    pub(crate) fn open(&self, transaction: u32) -> BootId {
        self.boots().open(&self.opening(transaction), Timestamp::now()).unwrap()
    }

    pub(crate) fn opening(&self, transaction: u32) -> Opening {
        Opening {
            owner: Owner::Machine { name: "node1".parse().unwrap(), uid: "u1".to_owned() },
            mac: MAC.parse().unwrap(),
            transaction,
            loader: LoaderKind::Ipxe,
            platform: Some(Platform::UefiX64),
            server: [127, 0, 0, 1].into(),
        }
    }

    fn stage(&self) -> Stage {
        let owner = Owner::Machine { name: "node1".parse().unwrap(), uid: "u1".to_owned() };
        self.boots().timeline(&owner).unwrap().stage
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask_with(method, path, headers, Bytes::new()).await
    }

    async fn ask_with(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if headers.iter().all(|(name, _)| *name != "host") {
            request = request.header("host", "pxed");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let peer = Peer { address: [127, 0, 0, 1].into(), completions: Arc::default() };
        let response = answer(&self.routes, &peer, request.body(Full::new(body)).unwrap()).await;
        let answer = Answer::read(response).await;
        peer.completions.run();
        answer
    }
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    async fn read(response: Response<Payload>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn reason(&self) -> String {
        serde_json::from_slice::<Refusal>(&self.body).unwrap().reason
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The seed inside the archive.
    pub(crate) fn seed(&self) -> Seed {
        let start = self.body.windows(2).position(|w| w == b"{\"").unwrap();
        let mut values = serde_json::Deserializer::from_slice(&self.body[start..]).into_iter();
        values.next().unwrap().unwrap()
    }
}

pub(crate) async fn until(mut reached: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    while !reached() {
        assert!(tokio::time::Instant::now() < deadline, "the state was not reached in 120 s");
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn trust_6_script_and_seed_are_for_the_leased_address_alone() {
    let rig = Rig::new().with_images().await;
    let leased: Arc<std::sync::Mutex<Vec<std::net::Ipv4Addr>>> = Arc::default();
    let source = leased.clone();
    let own = MAC.parse().unwrap();
    let leases = move |mac| Some(if mac == own { source.lock().unwrap().clone() } else { Vec::new() });
    rig.routes.leases.ask(Box::new(leases));
    let barred = rig.open(1);
    for (what, addresses) in [("script.ipxe", vec![[10, 7, 0, 9].into()]), ("seed", Vec::new())] {
        *leased.lock().unwrap() = addresses;
        let answer = rig.ask(Method::GET, &format!("/b/{barred}/{what}"), &[]).await;
        assert_eq!((answer.status, answer.reason().as_str()), (StatusCode::FORBIDDEN, "AddressNotLeased"));
    }
    let kernel = rig.ask(Method::GET, &format!("/b/{barred}/kernel"), &[]).await;
    assert_eq!(kernel.status, StatusCode::OK, "the image is public");
    assert_eq!(rig.routes.counters.seeds.all().find(|(answer, _)| *answer == "wrong_address").unwrap().1, 1);
    assert_eq!(bedplate_process::counter::read(&rig.routes.leases.refused), 2);
    *leased.lock().unwrap() = vec![[10, 7, 0, 9].into(), [127, 0, 0, 1].into()];
    for what in ["script.ipxe", "seed"] {
        let answer = rig.ask(Method::GET, &format!("/b/{barred}/{what}"), &[]).await;
        assert_eq!(answer.status, StatusCode::OK, "{what}");
    }
    // The seed has gone out, and another address asks for it.
    *leased.lock().unwrap() = Vec::new();
    let again = rig.ask(Method::GET, &format!("/b/{barred}/seed"), &[]).await;
    assert_eq!(again.reason(), "AddressNotLeased");
    let reports = rig.reports();
    assert!(reports.contains("reason: SeedRequestedTwice"), "{reports}");
}

#[tokio::test]
async fn a_boot_goes_from_script_to_rootfs_and_its_stages_follow() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    let script = rig.ask(Method::GET, &format!("/b/{id}/script.ipxe"), &[]).await;
    assert_eq!(script.status, StatusCode::OK);
    assert!(script.text().starts_with("#!ipxe\n"), "{}", script.text());
    assert!(
        script
            .text()
            .contains(&format!("http://127.0.0.1:8067/b/{id}/kernel initrd=seed.img initrd=initrd.img"))
    );
    assert!(script.text().contains(&format!("bedplate.mac={MAC} console=ttyS0")));
    assert_eq!(rig.stage(), Stage::Script);
    for (name, size, stage) in
        [("kernel", 6, Stage::Kernel), ("initrd", 100, Stage::Initrd), ("rootfs", 12_000_000, Stage::RootFs)]
    {
        let path = format!("/b/{id}/{name}");
        let head = rig.ask(Method::HEAD, &path, &[("range", "bytes=0-0")]).await;
        assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
        assert_eq!(head.header("content-length"), size.to_string());
        assert!(rig.stage() < stage);
        let whole = rig.ask(Method::GET, &path, &[]).await;
        assert_eq!((whole.status, whole.body.len()), (StatusCode::OK, size));
        assert_eq!(rig.stage(), stage);
        let tag = whole.header("etag").to_owned();
        let known = rig.ask(Method::GET, &path, &[("if-none-match", &tag)]).await;
        assert_eq!((known.status, known.body.len()), (StatusCode::NOT_MODIFIED, 0));
        let rest = rig.ask(Method::GET, &path, &[("range", "bytes=3-"), ("if-range", &tag)]).await;
        assert_eq!(rest.status, StatusCode::PARTIAL_CONTENT);
        assert_eq!(rest.body, whole.body.slice(3..));
        assert_eq!(rest.header("content-range"), format!("bytes 3-{}/{size}", size - 1));
        let none = rig.ask(Method::GET, &path, &[("range", "bytes=99999999-")]).await;
        assert_eq!(none.status, StatusCode::RANGE_NOT_SATISFIABLE);
        assert_eq!(none.header("content-range"), format!("bytes */{size}"));
    }
}

#[tokio::test]
async fn a_seed_goes_out_once_and_names_its_boot() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    let path = format!("/b/{id}/seed");
    let head = rig.ask(Method::HEAD, &path, &[]).await;
    assert_eq!((head.status, head.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, "GET"));
    let first = rig.ask(Method::GET, &path, &[("range", "bytes=0-1")]).await;
    assert_eq!(first.status, StatusCode::OK);
    let seed = first.seed();
    assert_eq!((seed.machine.as_str(), seed.boot_id), ("node1", id));
    assert_eq!(seed.endpoints, ["https://127.0.0.1:8443"]);
    assert_eq!(seed.rootfs.unwrap().url, format!("http://127.0.0.1:8067/b/{id}/rootfs"));
    assert!(seed.ca_pem.starts_with("-----BEGIN CERTIFICATE-----"));
    let second = rig.ask(Method::GET, &path, &[]).await;
    assert_eq!((second.status, second.reason().as_str()), (StatusCode::GONE, "SeedAlreadyIssued"));
    let status = || rig.registry.get(&"node1".parse().unwrap()).unwrap();
    let is_reported =
        || status().conditions.iter().any(|c| c.type_ == "Enrolled" && c.reason == "SeedRequestedTwice");
    assert!(is_reported());
    rig.boots().flush(Timestamp::now());
    assert!(is_reported(), "the boot's own news comes later and wipes nothing");
}

#[tokio::test]
async fn seed_is_sent_after_its_mark_and_not_if_the_mark_fails() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    // Pins the image, so that the mark is the only thing that a request for the seed writes.
    assert_eq!(rig.ask(Method::GET, &format!("/b/{id}/script.ipxe"), &[]).await.status, StatusCode::OK);
    let path = format!("/b/{id}/seed");
    let count = |answer| rig.routes.counters.seeds.get(answer);
    rig.store.answers().await.unwrap();
    crate::store::tests::break_next_write(&rig.store);
    let failed = rig.ask(Method::GET, &path, &[]).await;
    assert_eq!((failed.status.as_u16(), failed.reason().as_str()), (503, "SeedUnavailable"));
    assert_eq!((count(SeedAnswer::Failed), count(SeedAnswer::Given)), (1, 0));
    let held = crate::store::tests::Held::new(&rig.store);
    let mut asking = std::pin::pin!(rig.ask(Method::GET, &path, &[]));
    until(|| {
        assert!(asking.as_mut().now_or_never().is_none(), "answered before the mark is on disk");
        held.waiting() == 1
    })
    .await;
    held.release();
    assert_eq!(asking.await.status, StatusCode::OK);
    assert_eq!((count(SeedAnswer::Failed), count(SeedAnswer::Given)), (1, 1));
}

#[tokio::test]
async fn reports_of_a_boot_never_contain_the_id_of_its_url() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    let seed = format!("/b/{id}/seed");
    rig.ask(Method::GET, &seed, &[]).await;
    rig.ask(Method::GET, &seed, &[]).await;
    let failure =
        format!("{{\"stage\":\"RootFS\",\"failure\":\"http://127.0.0.1:8067/b/{id}/rootfs: reset\"}}");
    rig.ask_with(Method::POST, &format!("/b/{id}/stage"), &[], failure.into()).await;
    let first = rig.reports();
    assert!(first.contains("SeedRequestedTwice") && first.contains("/rootfs: reset"), "{first}");
    rig.ask(Method::GET, &format!("/b/{id}/script.ipxe"), &[]).await;
    rig.ask(Method::GET, &format!("/b/{id}/kernel"), &[]).await;
    let second = rig.open(2);
    let after = rig.reports();
    assert!(after.contains("previous"), "{after}");
    for (text, ids) in [(&first, [id, id]), (&after, [id, second])] {
        for id in ids {
            assert!(!text.contains(&id.to_string()), "{text}");
        }
    }
}

#[tokio::test]
async fn flooding_boot_is_rate_limited_and_other_boot_is_not() {
    let rig = Rig::new().with_images().await;
    let (flood, other) = (rig.open(1), rig.open(2));
    let report = async |id: BootId, number: usize| {
        let failure = format!("{{\"stage\":\"RootFS\",\"failure\":\"failure {number}\"}}");
        rig.ask_with(Method::POST, &format!("/b/{id}/stage"), &[], failure.into()).await
    };
    let mut refused = 0;
    for number in 0..100 {
        let answer = report(flood, number).await;
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!((answer.reason().as_str(), answer.header("retry-after")), ("RateLimited", "2"));
            refused += 1;
        }
    }
    assert!((50..=70).contains(&refused), "{refused}");
    assert_eq!(report(other, 0).await.status, StatusCode::NO_CONTENT);

    let last = [("range", "bytes=-1")];
    let kernel = format!("/b/{flood}/kernel");
    assert_eq!(rig.ask(Method::GET, &kernel, &last).await.status, StatusCode::PARTIAL_CONTENT);
    let changes = || rig.store.counters().changes.load(std::sync::atomic::Ordering::Relaxed);
    // After it what was written behind is there.
    let settle = async || rig.store.put(crate::store::Table::Discovered, b"x", Vec::new()).await.unwrap();
    settle().await;
    let before = changes();
    for _ in 0..100 {
        assert_eq!(rig.ask(Method::GET, &kernel, &last).await.status, StatusCode::PARTIAL_CONTENT);
    }
    settle().await;
    // The hundred may be in two minutes.
    assert!(changes() - before <= 2, "that one alone");
}

#[tokio::test]
async fn a_restart_keeps_a_boot_in_its_middle_and_its_seed_gone() {
    let rig = Rig::new().with_images().await;
    let (id, fresh) = (rig.open(1), rig.open(2));
    for path in [format!("/b/{id}/script.ipxe"), format!("/b/{id}/seed")] {
        assert_eq!(rig.ask(Method::GET, &path, &[]).await.status, StatusCode::OK);
    }
    let directory = rig.directory.clone();
    drop(rig);
    let rig = Rig::reopen(directory);
    let kernel = rig.ask(Method::GET, &format!("/b/{id}/kernel"), &[]).await;
    assert_eq!(kernel.status, StatusCode::OK);
    assert_eq!(rig.ask(Method::GET, &format!("/b/{id}/seed"), &[]).await.status, StatusCode::GONE);
    assert_eq!(rig.ask(Method::GET, &format!("/b/{fresh}/seed"), &[]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn unknown_or_forbidden_request_is_refused_with_a_reason() {
    let rig = Rig::new();
    let id = rig.open(1);
    let table = [
        (Method::GET, "/".to_owned(), 404, "UnknownPath"),
        (Method::GET, format!("/b/{id}/nothing"), 404, "UnknownPath"),
        (Method::GET, format!("/b/{}/kernel", BootId::from_random([9; 16])), 404, "UnknownBoot"),
        (Method::POST, format!("/b/{id}/kernel"), 405, "MethodNotAllowed"),
        (Method::GET, format!("/b/{id}/stage"), 405, "MethodNotAllowed"),
        (Method::PUT, format!("/b/{id}/seed"), 405, "MethodNotAllowed"),
        (Method::GET, format!("/b/{id}/loader/no.efi"), 404, "UnknownLoader"),
        (Method::GET, format!("/b/{id}/kernel"), 503, "Held"),
        (Method::GET, format!("/b/{id}/seed"), 503, "Held"),
    ];
    for (method, path, status, reason) in table {
        let answer = rig.ask(method, &path, &[]).await;
        assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (status, reason), "{path}");
    }
    rig.machines.store(Snapshot::default());
    assert_eq!(rig.ask(Method::GET, &format!("/b/{id}/script.ipxe"), &[]).await.reason(), "MachineGone");
}

#[tokio::test]
async fn machine_is_held_with_the_pending_step_until_it_may_boot() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    let path = format!("/b/{id}/script.ipxe");
    let mut spec = plain();
    spec["paused"] = true.into();
    rig.set_machine(&spec);
    let held = rig.ask(Method::GET, &path, &[]).await;
    assert!(held.text().contains("held: the Machine is paused"), "{}", held.text());
    rig.boots().flush(Timestamp::now());
    let status = rig.registry.get(&"node1".parse().unwrap()).unwrap();
    assert!(
        status.conditions.iter().any(|c| c.type_ == "Booted" && c.reason == "MachinePaused"),
        "{status:?}"
    );
    spec["paused"] = false.into();
    spec["pxe"]["image"] = serde_json::json!({ "name": "other" });
    rig.set_machine(&spec);
    assert!(
        rig.ask(Method::GET, &path, &[]).await.text().contains("held: failed to fetch image other, retrying")
    );
    rig.set_machine(&plain());
    assert!(rig.ask(Method::GET, &path, &[]).await.text().contains(&format!("/b/{id}/kernel")));
}

#[tokio::test]
async fn machine_of_another_architecture_is_held_and_its_condition_says_so() {
    let rig = Rig::new();
    let mut kernel = vec![0; 4096];
    kernel[0x38..0x3c].copy_from_slice(b"ARM\x64");
    std::fs::write(rig.directory.path().join("kernel"), kernel).unwrap();
    let rig = rig.with_images().await;
    let id = rig.open(1);
    assert_eq!(
        rig.boots().get(id, Timestamp::now()).unwrap().record().opening.platform,
        Some(Platform::UefiX64)
    );
    let held = rig.ask(Method::GET, &format!("/b/{id}/script.ipxe"), &[]).await;
    let pending = "image host is for arm64, but the machine is amd64 (UEFI x64)";
    assert!(held.text().contains(&format!("held: {pending}")), "{}", held.text());
    assert_eq!(rig.ask(Method::GET, &format!("/b/{id}/kernel"), &[]).await.reason(), "Held");
    rig.boots().flush(Timestamp::now());
    let status = rig.registry.get(&"node1".parse().unwrap()).unwrap();
    let booted = status.conditions.iter().find(|c| c.type_ == "Booted").unwrap();
    assert!(booted.reason == "ImageUnavailable" && booted.message.contains(pending), "{booted:?}");
}

#[tokio::test]
async fn stage_reports_need_the_boot_id_and_a_stage_pxed_cannot_see() {
    let rig = Rig::new();
    let id = rig.open(1);
    let path = format!("/b/{id}/stage");
    let post =
        |body: &'static str| rig.ask_with(Method::POST, &path, &[], Bytes::from_static(body.as_bytes()));
    assert_eq!(post("{\"stage\":\"RootFS\",\"failure\":\"no link\"}").await.status, StatusCode::NO_CONTENT);
    assert_eq!(rig.stage(), Stage::Discover);
    assert_eq!(post("{\"stage\":\"Userspace\"}").await.status, StatusCode::NO_CONTENT);
    assert_eq!(rig.stage(), Stage::Userspace);
    assert_eq!(post("{\"stage\":\"Enrolled\"}").await.reason(), "StageNotReported");
    assert_eq!(post("{").await.reason(), "InvalidReport");
    let large = Bytes::from(vec![b' '; 20_000]);
    assert_eq!(rig.ask_with(Method::POST, &path, &[], large).await.reason(), "BodyTooLarge");
}

#[tokio::test]
async fn neither_forwarded_headers_nor_the_source_address_identify_anybody() {
    let rig = Rig::new();
    let id = rig.open(1);
    let headers =
        [("x-forwarded-for", "10.7.0.99"), ("forwarded", "for=10.7.0.99"), ("host", "evil.example")];
    let with = rig.ask(Method::GET, &format!("/b/{id}/script.ipxe"), &headers).await;
    assert!(!with.text().contains("evil") && !with.text().contains("10.7.0.99"));
    assert_eq!(rig.ask(Method::GET, "/b/script.ipxe", &headers).await.status, StatusCode::NOT_FOUND);
}

pub(crate) fn listening(limits: Limits) -> Listening {
    Listening { name: "http", limits, counters: Arc::default(), pulse: Pulse::unwatched() }
}

/// A request head with its version and field lines, and the status that it is answered with.
pub(crate) const HOST_CASES: [(&str, &str, u16); 17] = [
    ("1.1", "Host: 10.7.0.1:8067\r\n", 200),
    ("1.1", "Host: 10.7.0.1\r\n", 200),
    ("1.1", "host:  pxed.rack-1.example:\r\n", 200),
    ("1.1", "Host: [fd00::1]:8067\r\n", 200),
    ("1.1", "Host: [fe80::1%25eth0]\r\n", 200),
    ("1.1", "Host:\r\n", 200),
    ("1.0", "", 200),
    ("1.0", "Host: pxed\r\n", 200),
    ("1.1", "", 400),
    ("1.1", "Host: pxed\r\nHost: pxed\r\n", 400),
    ("1.1", "Host: pxed\r\nhost: other\r\n", 400),
    ("1.1", "Host: user@pxed\r\n", 400),
    ("1.1", "Host: pxed/path\r\n", 400),
    ("1.1", "Host: pxed, other\r\n", 400),
    ("1.1", "Host: pxed:80:80\r\n", 400),
    ("1.1", "Host: [fd00::g]\r\n", 400),
    ("1.0", "Host: pxed\r\nHost: pxed\r\n", 400),
];

#[derive(Debug, Clone)]
enum Step {
    Script(u8),
    Head(u8),
    Seed(u8),
    Kernel(u8),
    Open(u8),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..3_u8).prop_map(Step::Script),
        (0..3_u8).prop_map(Step::Head),
        (0..3_u8).prop_map(Step::Seed),
        (0..3_u8).prop_map(Step::Seed),
        (0..3_u8).prop_map(Step::Kernel),
        (0..3_u8).prop_map(Step::Open),
        Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_requests_gives_a_seed_twice(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut rig = Rig::new().with_images().await;
            let mut given = std::collections::HashMap::<BootId, u32>::new();
            for step in steps {
                let (method, what, n) = match step {
                    Step::Script(n) => (Method::GET, "script.ipxe", n),
                    Step::Head(n) => (Method::HEAD, "seed", n),
                    Step::Seed(n) => (Method::GET, "seed", n),
                    Step::Kernel(n) => (Method::GET, "kernel", n),
                    Step::Open(n) => {
                        rig.open(u32::from(n));
                        continue;
                    }
                    Step::Restart => {
                        let directory = rig.directory.clone();
                        drop(rig);
                        rig = Rig::reopen(directory);
                        continue;
                    }
                };
                let id = rig.open(u32::from(n));
                let path = format!("/b/{id}/{what}");
                let both = tokio::join!(rig.ask(method.clone(), &path, &[]), rig.ask(method, &path, &[]));
                for answer in [both.0, both.1] {
                    if what == "seed" && answer.status.is_success() {
                        *given.entry(id).or_default() += 1;
                    }
                }
            }
            assert!(given.values().all(|count| *count == 1), "{given:?}");
        });
    }
}
