//! A scrape, over TCP and as the document lists it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use bedplate_process::health;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::boot_path::Counters;
use super::*;
use crate::boot_policy::ImageState;
use crate::http::tests::{Rig, listening};
use crate::readiness::MachineView;
use bedplate_process::listen::Limits;

/// Two Machines, of which one can boot.
fn view() -> View {
    let machine = |name: &str, image_state| MachineView {
        name: name.parse().unwrap(),
        contested: Vec::new(),
        misplaced: None,
        remark: None,
        image: "host".to_owned(),
        image_state,
    };
    let source = crate::machines::source::SourceState { synced: true, ..Default::default() };
    let failed = ImageState::Failed("registry away".to_owned());
    let machines = vec![machine("node1", ImageState::Ready), machine("node2", failed)];
    View { source, machines, interfaces_serving: 1, ..View::default() }
}

/// The sources of a boot path, with DHCP and TFTP engines that nobody speaks to.
fn sources(rig: &Rig) -> Sources {
    let dhcp = bedplate_dhcp::settings::Settings {
        mode: bedplate_dhcp::settings::Mode::Server,
        interfaces: vec!["not-there".to_owned()],
        authoritative: false,
        subnets: Vec::new(),
        ports: Default::default(),
    };
    let clients = crate::netboot::dhcp::BootClients {
        machines: rig.machines.clone(),
        boots: rig.boots().clone(),
        present: rig.routes.present.clone(),
        urls: rig.routes.urls.clone(),
        discovered: Arc::new(|_| {}),
    };
    let files =
        crate::netboot::tftp::LoaderFiles { loaders: rig.routes.loaders.clone(), boots: rig.boots().clone() };
    let tftp = bedplate_tftp::settings::Settings {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        ..bedplate_tftp::settings::Settings::default()
    };
    let leases = rig.directory.path().join("leases.redb");
    let counters = Counters { requests: rig.routes.counters.clone(), ..Counters::default() };
    Sources {
        store: rig.store.clone(),
        registry: rig.registry.clone(),
        statuses: Arc::default(),
        dhcp: Some(bedplate_dhcp::Server::bind(dhcp, Arc::new(clients), &leases).unwrap()),
        tftp: Some(Arc::new(bedplate_tftp::server::Server::bind(tftp, Arc::new(files)).unwrap())),
        look: Arc::new(view),
        reloads: Arc::default(),
        power: power::Source { counters: Arc::default(), leads: Arc::new(|| true) },
        boot_path: boot_path::Source {
            counters,
            images: rig.routes.images.clone(),
            boots: rig.boots().clone(),
        },
    }
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn what_was_asked_for_is_counted_at_the_next_scrape() {
    let rig = Rig::new().with_images().await;
    let sources = sources(&rig);
    let (plain, reloads) = (sources.boot_path.counters.plain.clone(), sources.reloads.clone());
    let shutdown = CancellationToken::new();
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let boots = http.local_addr().unwrap();
    let how = bedplate_process::listen::Listening { counters: plain, ..listening(Limits::default()) };
    let served = tokio::spawn(crate::http::serve::serve(http, rig.routes.clone(), how, shutdown.clone()));
    let listener = health::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let metrics = listener.local_addr().unwrap();
    let (health, registry) = (Arc::new(health::AlwaysReady), Arc::new(registry(sources)));
    let shown = tokio::spawn(health::serve(listener, health, registry, shutdown.clone()));
    let id = rig.open(1);
    get(boots, &format!("/b/{id}/script.ipxe")).await;
    get(boots, &format!("/b/{id}/kernel")).await;
    get(boots, &format!("/b/{id}/seed")).await;
    get(boots, &format!("/b/{id}/seed")).await;
    get(boots, "/nothing").await;
    reloads.refused.fetch_add(1, Ordering::Relaxed);
    let text = get(metrics, "/metrics").await;
    for line in [
        "http_requests_total{route=\"script\",status=\"2xx\"} 1",
        "http_requests_total{route=\"kernel\",status=\"2xx\"} 1",
        "http_requests_total{route=\"seed\",status=\"2xx\"} 1",
        "http_requests_total{route=\"seed\",status=\"4xx\"} 1",
        "http_requests_total{route=\"unknown\",status=\"4xx\"} 1",
        "http_requests_total{route=\"rootfs\",status=\"2xx\"} 0",
        "http_connections_accepted_total{listener=\"http\"} 5",
        "http_connections_accepted_total{listener=\"https\"} 0",
        "http_streams{state=\"queued\"} 0",
        "seeds_total{result=\"given\"} 1",
        "seeds_total{result=\"asked-again\"} 1",
        "boots_open 1",
        "image_fetches_total{result=\"fetched\"} 1",
        "enrollments_total{result=\"enrolled\"} 0",
        "agent_refusals_total{reason=\"WrongToken\"} 0",
        "reloads_total{result=\"refused\"} 1",
        "boots{stage=\"script\"} 0",
        "machines{state=\"bootable\"} 1",
        "machines{state=\"blocked\"} 1",
        "ready 1",
    ] {
        assert!(text.lines().any(|l| l == format!("bedplate_pxed_{line}")), "{line}\n{text}");
    }
    assert!(!text.contains("node1") && !text.contains(&id.to_string()), "no name, no id:\n{text}");
    shutdown.cancel();
    served.await.unwrap();
    shown.await.unwrap().unwrap();
}

/// `name{label,label}` of everything in a scrape.
fn exposed(text: &str) -> BTreeSet<String> {
    // Of a histogram the sum stands for its three kinds of samples.
    let shown = |line: &&str| {
        !line.starts_with('#') && !line.contains("_seconds_bucket") && !line.contains("_seconds_count")
    };
    let samples = text.lines().filter(shown);
    let described = samples.map(|line| {
        let name = line.split(['{', ' ']).next().unwrap();
        let labels: Vec<_> = line.split_once('{').map_or_else(Vec::new, |(_, rest)| {
            let rest = rest.rsplit_once('}').unwrap().0;
            rest.split(',').map(|pair| pair.split_once('=').unwrap().0).collect()
        });
        let name = name.strip_prefix("bedplate_pxed_").unwrap_or(name);
        let name = name.strip_suffix("_sum").unwrap_or(name);
        if labels.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", labels.join(",")) }
    });
    described.collect()
}

/// The same from the document's table.
fn documented(text: &str) -> BTreeSet<String> {
    let section = text.split("## Metrics").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn every_metric_is_in_the_document_and_nothing_else_is() {
    let rig = Rig::new();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry(sources(&rig))).unwrap();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (exposed, documented) = (exposed(&text), documented(&document));
    let missing: Vec<_> = exposed.difference(&documented).collect();
    let made_up: Vec<_> = documented.difference(&exposed).collect();
    assert!(missing.is_empty(), "not in docs/operations.md: {missing:?}");
    assert!(made_up.is_empty(), "in docs/operations.md, and nowhere else: {made_up:?}");
}
