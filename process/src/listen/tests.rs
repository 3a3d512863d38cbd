//! A connection's place while its request is answered, over a stream in memory.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use futures::stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::{Mutex, Notify, mpsc};

use super::accept::Client;
use super::*;

/// Longer than an idle connection keeps its place while others wait, and less than the stall time.
const WHILE: Duration = Duration::from_secs(5);

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
    let take = |n| seats.take(Client::Address(Ipv4Addr::from_bits(n).into()), &limits);
    let seat = Arc::new(take(1).unwrap());
    let (server, mut client) = tokio::io::duplex(1024);
    let stream = Guarded::new(server, seat.completions.clone(), limits.stall, counters.clone());

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
