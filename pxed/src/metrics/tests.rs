//! A scrape, over TCP and as docs/reference/metrics.md lists it.

#[path = "../../../process/tests/metrics_page/mod.rs"]
mod metrics_page;

use std::sync::atomic::Ordering;

use bedplate_process::health;
use bedplate_process::liveness::Pulse;
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

/// Returns the sources of a boot path with idle DHCP and TFTP engines.
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
async fn requests_are_counted_at_the_next_scrape() {
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
    let shown = tokio::spawn(health::serve(listener, health, registry, Pulse::unwatched(), shutdown.clone()));
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
        "seeds_total{result=\"issued\"} 1",
        "seeds_total{result=\"requested_again\"} 1",
        "boots_open 1",
        "image_fetches_total{result=\"fetched\"} 1",
        "enrollments_total{result=\"enrolled\"} 0",
        "agent_refusals_total{reason=\"WrongToken\"} 0",
        "reloads_total{result=\"rejected\"} 1",
        "events_total{result=\"written\"} 0",
        "events_total{result=\"dropped\"} 0",
        "events_total{result=\"failed\"} 0",
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

#[tokio::test]
async fn scrape_matches_the_page_of_metrics() {
    let rig = Rig::new();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
    metrics_page::compare(page, "pxed", &registry(sources(&rig)));
}
