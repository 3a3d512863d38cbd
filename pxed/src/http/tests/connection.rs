//! The listener over TCP: `Host`, limits, stalls, the queue and the liveness pulse.

use bedplate_process::listen::{Counters as Connections, Cut};
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::http::queue::tests::client;
use crate::http::serve::serve;

struct Serving {
    address: std::net::SocketAddr,
    connections: Arc<Connections>,
    shutdown: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

async fn serving(rig: &Rig, limits: Limits) -> Serving {
    serving_as(rig, listening(limits)).await
}

async fn serving_as(rig: &Rig, how: Listening) -> Serving {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let connections = how.counters.clone();
    let served = tokio::spawn(serve(listener, rig.routes.clone(), how, shutdown.clone()));
    Serving { address, connections, shutdown, served }
}

impl Serving {
    async fn stop(self) {
        self.shutdown.cancel();
        self.served.await.unwrap();
    }
}

#[tokio::test]
async fn rfc9112_3_2_request_with_bad_host_gets_400() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    let serving = serving(&rig, Limits::default()).await;
    for (version, fields, status) in HOST_CASES {
        let mut stream = TcpStream::connect(serving.address).await.unwrap();
        let head = format!("GET /b/{id}/kernel HTTP/{version}\r\n{fields}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        if status == 200 {
            until_contains(&mut stream, &mut Vec::new(), b"kernel").await;
            continue;
        }
        // The connection is closed after the answer: this ends, and the second request is not answered.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("HTTP/1.") && text[8..].starts_with(" 400 "), "{fields:?}: {text}");
        assert!(
            text.contains("\"InvalidHost\"") && text.matches("\r\n\r\n").count() == 1,
            "{fields:?}: {text}"
        );
    }
    serving.stop().await;
}

#[tokio::test]
async fn rfc9112_3_2_seed_is_not_taken_by_a_request_without_host() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    let serving = serving(&rig, Limits::default()).await;
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    stream.write_all(format!("GET /b/{id}/seed HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = Vec::new();
    until_contains(&mut stream, &mut text, b"400 Bad Request").await;
    assert_eq!(rig.ask(Method::GET, &format!("/b/{id}/seed"), &[]).await.status, StatusCode::OK);
    serving.stop().await;
}

async fn get(address: std::net::SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn over_tcp_bodies_have_a_length_and_count_only_when_whole() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    let serving = serving(&rig, Limits::default()).await;
    let address = serving.address;
    rig.ask(Method::GET, &format!("/b/{id}/script.ipxe"), &[]).await;
    let mut cut = get(address, &format!("/b/{id}/rootfs")).await;
    let mut some = vec![0; 100_000];
    cut.read_exact(&mut some).await.unwrap();
    drop(cut);
    let mut whole = get(address, &format!("/b/{id}/kernel")).await;
    let mut text = Vec::new();
    until_contains(&mut whole, &mut text, b"kernel").await;
    let text = String::from_utf8(text).unwrap().to_lowercase();
    assert!(text.contains("content-length: 6\r\n") && !text.contains("chunked"), "{text}");
    until(|| rig.stage() == Stage::Kernel).await;
    let mut rest = get(address, &format!("/b/{id}/rootfs")).await;
    let mut all = vec![0; 12_000_000];
    rest.read_exact(&mut all).await.unwrap();
    until(|| rig.stage() == Stage::RootFs).await;
    assert!(bedplate_process::counter::read(&serving.connections.sent_bytes) > 12_000_000);
    drop((whole, rest));
    serving.stop().await;
}

async fn until_contains(stream: &mut TcpStream, text: &mut Vec<u8>, wanted: &[u8]) {
    while !text.windows(wanted.len()).any(|w| w == wanted) {
        assert_ne!(stream.read_buf(text).await.unwrap(), 0, "{}", String::from_utf8_lossy(text));
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_off_and_its_permit_is_free() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    rig.ask(Method::GET, &format!("/b/{id}/script.ipxe"), &[]).await;
    let limits = Limits { stall: Duration::from_millis(300), ..Limits::default() };
    let serving = serving(&rig, limits).await;
    let address = serving.address;
    let queue = rig.routes.queue.clone();
    let all = queue.free();
    let stalled = get(address, &format!("/b/{id}/rootfs")).await;
    until(|| queue.free() == all - 1).await;
    until(|| queue.free() == all).await;
    assert_ne!(rig.stage(), Stage::RootFs);
    drop(stalled);
    assert_eq!(serving.connections.cut.get(Cut::Stalled), 1);
    serving.stop().await;
}

#[tokio::test]
async fn a_head_that_does_not_come_and_too_many_connections_are_cut_off() {
    let rig = Rig::new();
    let limits = Limits { head: Duration::from_millis(200), connections_per_client: 2, ..Limits::default() };
    let serving = serving(&rig, limits).await;
    let address = serving.address;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HT").await.unwrap();
        held.push(stream);
    }
    let mut third = TcpStream::connect(address).await.unwrap();
    let mut byte = [0];
    assert!(matches!(third.read(&mut byte).await, Ok(0) | Err(_)), "the third connection is refused");
    for mut stream in held {
        let mut text = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut text)).await;
        assert!(ended.is_ok(), "a head that does not come ends the connection");
    }
    assert_eq!(serving.connections.cut.get(Cut::OfAddress), 1);
    let connections = serving.connections.clone();
    serving.stop().await;
    assert_eq!(connections.open.now(), 0, "every place is given back");
}

#[tokio::test]
async fn root_images_wait_in_a_queue_and_kernels_do_not() {
    let rig = Rig::new().with_images().await;
    let id = rig.open(1);
    rig.ask(Method::GET, &format!("/b/{id}/script.ipxe"), &[]).await;
    let routes = rig.routes.clone();
    let all = u32::try_from(routes.queue.free()).unwrap();
    let held: Vec<_> = (0..all).map(|n| routes.queue.enter(client(n, n))).collect();
    let kernel = rig.ask(Method::GET, &format!("/b/{id}/kernel"), &[]).await;
    assert_eq!(kernel.status, StatusCode::OK);
    let peer = Peer { address: [127, 0, 0, 1].into(), completions: Arc::default() };
    let request = Request::get(format!("/b/{id}/rootfs")).header("host", "pxed");
    let request = request.body(Full::new(Bytes::new())).unwrap();
    let response = answer(&routes, &peer, request).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    let levels = || (routes.counters.sending.now(), routes.counters.queued.now());
    assert_eq!(levels(), (all.into(), 1));
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.len() <= 4096, "a body that waits sends a little: {}", first.len());
    drop(held);
    let second = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(levels(), (1, 0));
    let rest = body.collect().await.unwrap().to_bytes();
    assert_eq!(first.len() + second.len() + rest.len(), 12_000_000);
    assert_eq!(levels(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_idle_listener_gives_signs_of_life_and_one_that_died_is_named() {
    let rig = Rig::new();
    let liveness = Liveness::new(CancellationToken::new());
    let pulse = liveness.part("http", SILENCE_TIMEOUT);
    let serving = serving_as(&rig, Listening { pulse, ..listening(Limits::default()) }).await;
    tokio::time::sleep(SILENCE_TIMEOUT * 4).await;
    assert_eq!(liveness.check(), Ok(()));
    serving.served.abort();
    assert!(serving.served.await.is_err());
    assert_eq!(liveness.check(), Err("http has ended".to_owned()));
}
