//! A connection's place while its request is answered, over a stream in memory.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use axum::routing::get;
use futures::stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, mpsc};

use super::accept::Client;
use super::progress::Progress;
use super::*;

/// Longer than an idle connection keeps its place while others wait, and less than the stall time.
const WHILE: Duration = Duration::from_secs(5);

/// The parts of a place that its stream writes to.
fn place(seat: &Seat) -> (Arc<Completions>, Arc<Progress>) {
    (seat.completions.clone(), seat.progress.clone())
}

async fn read_until(client: &mut DuplexStream, end: &[u8]) {
    let mut read = Vec::new();
    while !read.ends_with(end) {
        read.push(client.read_u8().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_poll_and_an_answer_that_is_sent_keep_their_place() {
    let (counters, asked) = (Arc::<Counters>::default(), Arc::<Notify>::default());
    let limits = Limits { connections: 1, ..Limits::default() };
    let seats = Arc::new(Seats::new(counters.clone()));
    let take = |n| {
        let seat = seats.take(Client::Address(Ipv4Addr::from_bits(n).into()), &limits);
        seat.map_err(|full| full.cut)
    };
    let seat = Arc::new(take(1).unwrap());
    let (server, mut client) = tokio::io::duplex(1024);
    let stream = Guarded::new(server, place(&seat), limits.stall, counters.clone());

    // The first chunk ends the long poll, the others are the body.
    let (chunks, receiver) = mpsc::channel::<Vec<u8>>(1);
    let receiver = Arc::new(Mutex::new(receiver));
    let (chunks_of_service, called) = (receiver.clone(), asked.clone());
    let service = service_fn(move |_: Request<Incoming>| {
        let (chunks, called) = (chunks_of_service.clone(), called.clone());
        async move {
            let mut chunks = chunks.lock_owned().await;
            called.notify_one();
            chunks.recv().await;
            let body = stream::unfold(chunks, |mut chunks| async move {
                let chunk = chunks.recv().await?;
                Some((Ok::<_, Infallible>(chunk), chunks))
            });
            Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(body)))
        }
    });
    tokio::spawn(converse(stream, service, (limits, seat), "client", CancellationToken::new()));

    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    asked.notified().await;
    tokio::time::advance(WHILE).await;
    assert_eq!(take(2).unwrap_err(), Cut::Connections, "a long poll");

    chunks.send(Vec::new()).await.unwrap();
    read_until(&mut client, b"\r\n\r\n").await;
    tokio::time::advance(WHILE).await;
    assert_eq!(take(2).unwrap_err(), Cut::Connections, "a body that has not ended");

    // More than the stream holds, and less than hyper does.
    chunks.send(vec![7; 32 << 10]).await.unwrap();
    drop(chunks);
    drop(receiver.lock().await);
    tokio::time::advance(WHILE).await;
    assert_eq!(take(2).unwrap_err(), Cut::Connections, "a body that has ended and is not sent");

    read_until(&mut client, b"\r\n0\r\n\r\n").await;
    while take(2).is_err() {
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    assert_eq!(counters.cut.get(Cut::Silent), 1, "idle, and no place for the other client");
}

/// Reads this number of bytes in each second of an endless answer. Returns true if another client gets the place in second 41.
async fn reader_loses_its_place(bytes: usize) -> bool {
    let counters = Arc::<Counters>::default();
    let limits = Limits { connections: 1, ..Limits::default() };
    let seats = Arc::new(Seats::new(counters.clone()));
    let take = |n| seats.take(Client::Address(Ipv4Addr::from_bits(n).into()), &limits);
    let seat = Arc::new(take(1).unwrap());
    let (server, mut client) = tokio::io::duplex(64 << 10);
    let stream = Guarded::new(server, place(&seat), limits.stall, counters.clone());
    let service = service_fn(|_: Request<Incoming>| async {
        let body = stream::repeat_with(|| Ok::<_, Infallible>(vec![7; 64 << 10]));
        Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(body)))
    });
    let serving = tokio::spawn(converse(stream, service, (limits, seat), "client", CancellationToken::new()));
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut read = async |seconds: usize| {
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            client.read_exact(&mut vec![0; bytes]).await.unwrap();
        }
    };
    read(30).await;
    assert_eq!(take(2).unwrap_err().cut, Cut::Connections, "enough since the beginning");
    read(11).await;
    let is_lost = take(2).is_ok();
    serving.abort();
    is_lost
}

#[tokio::test(start_paused = true)]
async fn slow_reader_of_a_body_in_chunks_loses_its_place_to_another_client() {
    assert!(reader_loses_its_place(4 << 10).await, "4 kB/s");
    assert!(!reader_loses_its_place(16 << 10).await, "16 kB/s");
}

#[tokio::test(start_paused = true)]
async fn client_that_has_taken_all_and_waits_for_more_keeps_its_place() {
    let counters = Arc::<Counters>::default();
    let limits = Limits { connections: 1, ..Limits::default() };
    let seats = Arc::new(Seats::new(counters.clone()));
    let take = |n| seats.take(Client::Address(Ipv4Addr::from_bits(n).into()), &limits);
    let seat = Arc::new(take(1).unwrap());
    let (server, mut client) = tokio::io::duplex(1024);
    let stream = Guarded::new(server, place(&seat), limits.stall, counters.clone());
    let service = service_fn(|_: Request<Incoming>| async {
        // More than the stream holds, and then nothing.
        let chunk = stream::iter([Ok::<_, Infallible>(vec![7; 8 << 10])]);
        let body = futures::StreamExt::chain(chunk, stream::pending());
        Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(body)))
    });
    let serving = tokio::spawn(converse(stream, service, (limits, seat), "client", CancellationToken::new()));
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    read_until(&mut client, b"\r\n2000\r\n").await;
    client.read_exact(&mut vec![0; 8 << 10]).await.unwrap();
    read_until(&mut client, b"\r\n").await;
    tokio::time::sleep(limits.rate.within * 10).await;
    assert_eq!(take(2).unwrap_err().cut, Cut::Connections);
    serving.abort();
}

/// Size of an answer that no socket takes in one piece, in bytes.
const LARGE_BYTES: usize = 16 << 20;

async fn connect(address: std::net::SocketAddr, path: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    // An error shows itself by the missing answer.
    let _ = client.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
    client
}

#[tokio::test]
async fn local_probe_is_answered_despite_slow_readers_of_its_address() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (counters, shutdown) = (Arc::<Counters>::default(), CancellationToken::new());
    let large = axum::body::Bytes::from(vec![7; LARGE_BYTES]);
    let router = Router::new()
        .route("/metrics", get(move || async move { large }))
        .route("/healthz", get(|| async { "ok\n" }));
    let how = Listening {
        name: "health",
        limits: Limits::LOCAL,
        counters: counters.clone(),
        pulse: Pulse::unwatched(),
    };
    let served = tokio::spawn(serve_router(listener, how, router, shutdown.clone()));
    let mut readers = Vec::new();
    for _ in 0..Limits::LOCAL.connections_per_client {
        readers.push(connect(address, "/metrics").await);
    }
    let deadline = Instant::now() + Limits::LOCAL.stall / 2;
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\n") {
        assert!(Instant::now() < deadline, "not answered while the others read nothing");
        answer.clear();
        let _ = connect(address, "/healthz").await.read_to_end(&mut answer).await;
    }
    assert!(counters.cut.get(Cut::Slow) > 0);
    drop(readers);
    shutdown.cancel();
    served.await.unwrap();
}
