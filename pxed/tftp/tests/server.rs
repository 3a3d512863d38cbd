//! The server on loopback, spoken to byte by byte. Foreign clients are in the tests crate.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use bedplate_tftp::{
    client::{Client, Reaction},
    content::{Files, OpenError, Outcome, Request},
    counters::{Refusal, Snapshot},
    gate::{Limited, Limits},
    server::{ReloadSettingsError, RunServerError, Server},
    session::Retry,
    settings::Settings,
    wire::{self, AskedOption, ErrorCode, Malformed},
};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Shelf {
    files: HashMap<String, Bytes>,
    ended: Mutex<Vec<(String, Outcome, u64)>>,
    locals: Mutex<Vec<IpAddr>>,
    /// Opened, the file "hangs" hangs no more.
    door: (Mutex<bool>, Condvar),
}

impl Files for Shelf {
    fn open(&self, request: &Request<'_>) -> Result<Bytes, OpenError> {
        self.locals.lock().unwrap().push(request.local);
        match request.name {
            "forbidden" => Err(OpenError::AccessViolation),
            "busy" => Err(OpenError::Busy),
            "hangs" => {
                let (open, opened) = (&self.door.0, &self.door.1);
                let held = open.lock().unwrap();
                drop(opened.wait_while(held, |open| !*open).unwrap());
                Err(OpenError::NotFound)
            }
            name => self.files.get(name).cloned().ok_or(OpenError::NotFound),
        }
    }

    fn finished(&self, request: &Request<'_>, outcome: Outcome, sent: u64) {
        self.ended.lock().unwrap().push((request.name.to_owned(), outcome, sent));
    }
}

struct Rig {
    server: Arc<Server>,
    shelf: Arc<Shelf>,
    shutdown: CancellationToken,
    running: tokio::task::JoinHandle<Result<(), RunServerError>>,
    address: SocketAddr,
}

fn settings() -> Settings {
    Settings {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        workers: 2,
        drain: Duration::ZERO,
        ..Settings::default()
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251).to_le_bytes()[0]).collect()
}

fn rig(settings: Settings) -> Rig {
    let files = [("small", 1000), ("large", 5_000_000), ("empty", 0), ("exact", 1024)];
    let mut files: HashMap<String, Bytes> =
        files.into_iter().map(|(name, length)| (name.to_owned(), content(length).into())).collect();
    files.insert("text".into(), Bytes::from_static(b"one\ntwo\r"));
    let shelf = Arc::new(Shelf { files, ..Shelf::default() });
    let server = Arc::new(Server::bind(settings, shelf.clone()).expect("bind"));
    let address = server.addresses()[0];
    let shutdown = CancellationToken::new();
    let (runner, token) = (server.clone(), shutdown.clone());
    let running = tokio::spawn(async move { runner.run(token).await });
    Rig { server, shelf, shutdown, running, address }
}

impl Rig {
    async fn stop(self) -> Arc<Shelf> {
        self.shutdown.cancel();
        self.running.await.expect("join").expect("clean end");
        self.shelf
    }

    async fn counts(&self, wanted: impl Fn(&Snapshot) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !wanted(&self.server.counters()) {
            assert!(Instant::now() < deadline, "{:?}", self.server.counters());
            tokio::task::yield_now().await;
        }
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    socket.set_read_timeout(Some(PATIENCE)).expect("time-out");
    socket
}

fn hear(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = vec![0; 70_000];
    let (length, from) = socket.recv_from(&mut buffer).expect("an answer");
    buffer.truncate(length);
    (buffer, from)
}

fn ask(address: SocketAddr, packet: &[u8]) -> (Vec<u8>, SocketAddr) {
    let socket = socket();
    socket.send_to(packet, address).expect("send");
    hear(&socket)
}

fn error_code(packet: &[u8]) -> Option<u8> {
    packet.starts_with(&[0, 5]).then(|| packet[3])
}

fn fetch(socket: &UdpSocket, address: SocketAddr, name: &str, options: &[AskedOption]) -> (Vec<u8>, Client) {
    let mut client = Client::new(options);
    socket.send_to(&client.request(name), address).expect("send");
    let mut received = Vec::new();
    while !client.is_done() {
        let (packet, from) = hear(socket);
        match client.receive(&packet) {
            Reaction::Nothing => {}
            Reaction::Acknowledge(ack) => {
                socket.send_to(&ack, from).expect("send");
            }
            Reaction::Block { content, acknowledge, .. } => {
                received.extend_from_slice(content);
                if let Some(ack) = acknowledge {
                    socket.send_to(&ack, from).expect("send");
                }
            }
            Reaction::Refused(code) => panic!("refused with {code}"),
            Reaction::Violation(what) => panic!("{what}"),
        }
    }
    (received, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_falls_silent_and_one_with_nothing_to_do_does_not() {
    let rig = rig(settings());
    let until = async |what: &str, reached: &dyn Fn(&[Duration]) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !reached(&rig.server.silences()) {
            assert!(Instant::now() < deadline, "not reached: {what}: {:?}", rig.server.silences());
            tokio::task::yield_now().await;
        }
    };
    until("both workers run", &|silent| silent.len() == 2).await;
    // Each worker wakes up for a pulse although there are no requests.
    until("both were quiet", &|silent| silent.iter().all(|s| *s > Duration::from_secs(1))).await;
    until("both came round", &|silent| silent.iter().all(|s| *s < Duration::from_millis(500))).await;
    let client = socket();
    client.send_to(&Client::new(&[]).request("hangs"), rig.address).expect("send");
    let limit = Duration::from_secs(4);
    until("one worker hangs", &|silent| silent.iter().any(|s| *s > limit)).await;
    assert_eq!(rig.server.silences().iter().filter(|s| **s > limit).count(), 1);
    *rig.shelf.door.0.lock().unwrap() = true;
    rig.shelf.door.1.notify_all();
    until("it goes on", &|silent| silent.iter().all(|s| *s < limit)).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_arrive_with_every_mix_of_options() {
    let rig = rig(settings());
    use AskedOption::{BlockSize, Timeout, TransferSize, WindowSize};
    let mixes: [&[AskedOption]; 5] = [
        &[],
        &[TransferSize(0)],
        &[BlockSize(1468), WindowSize(16), TransferSize(0)],
        &[WindowSize(64), BlockSize(1468), Timeout(2)],
        &[BlockSize(65464), WindowSize(64)],
    ];
    for options in mixes {
        for (name, length) in [("small", 1000), ("large", 5_000_000), ("empty", 0), ("exact", 1024)] {
            let (received, client) = fetch(&socket(), rig.address, name, options);
            assert!(received == content(length), "{name} with {options:?}");
            if options.contains(&TransferSize(0)) {
                assert_eq!(client.transfer_size(), Some(length as u64));
            }
        }
    }
    rig.counts(|counters| counters.outcome(Outcome::Complete) == 20 && counters.active == 0).await;
    let shelf = rig.stop().await;
    assert!(shelf.ended.lock().unwrap().contains(&("large".to_owned(), Outcome::Complete, 5_000_000)));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_refused_get_their_code() {
    let rig = rig(settings());
    let table: [(&[u8], ErrorCode); 16] = [
        (b"\0\x01nothing\0octet\0", ErrorCode::NotFound),
        (b"\0\x01forbidden\0octet\0", ErrorCode::AccessViolation),
        (b"\0\x01busy\0octet\0", ErrorCode::Undefined),
        (b"\0\x01../etc/passwd\0octet\0", ErrorCode::AccessViolation),
        (b"\0\x01/etc/passwd\0octet\0", ErrorCode::AccessViolation),
        (b"\0\x01\0octet\0", ErrorCode::AccessViolation),
        (b"\0\x01large\0netascii\0", ErrorCode::Undefined),
        (b"\0\x02small\0octet\0", ErrorCode::AccessViolation),
        (b"\0\x01small\0mail\0", ErrorCode::IllegalOperation),
        (b"\0\x01small", ErrorCode::IllegalOperation),
        (b"\0\x01small\0octet\0blksize\0", ErrorCode::IllegalOperation),
        (b"\0\x09what", ErrorCode::IllegalOperation),
        (b"\xff\xff", ErrorCode::IllegalOperation),
        (b"\0\x03\0\x01data", ErrorCode::UnknownTransferId),
        (b"\0\x04\0\x01", ErrorCode::UnknownTransferId),
        (b"\0\x06", ErrorCode::UnknownTransferId),
    ];
    for (packet, code) in table {
        let (answer, from) = ask(rig.address, packet);
        assert_eq!(error_code(&answer), Some(code as u8), "{}", packet.escape_ascii());
        assert_eq!(answer.last(), Some(&0), "the message has its end");
        assert_eq!(from.ip(), rig.address.ip());
    }
    let counters = rig.server.counters();
    assert_eq!(counters.refusal(Refusal::Name), 3);
    assert_eq!(counters.refusal(Refusal::Stray), 3);
    assert_eq!(counters.refusal(Refusal::Write), 1);
    assert_eq!(counters.malformed(Malformed::Operation), 2);
    assert_eq!(counters.opened, 0);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_and_short_packets_are_never_answered() {
    let rig = rig(settings());
    let socket = socket();
    for packet in [b"".as_slice(), b"\0", b"\0\x05\0\x01no\0", b"\0\x05"] {
        socket.send_to(packet, rig.address).expect("send");
    }
    socket.send_to(b"\0\x01nothing\0octet\0", rig.address).expect("send");
    assert_eq!(error_code(&hear(&socket).0), Some(1), "the first answer is to the last packet");
    assert_eq!(rig.server.counters().malformed(Malformed::Short), 3);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn size_probe_and_abort_then_request_from_the_same_port_is_served() {
    let rig = rig(settings());
    let socket = socket();
    for _ in 0..20 {
        // EDK2: asks for the size, aborts with error 8, asks again immediately from the same port.
        socket
            .send_to(&wire::read_request("small", &[AskedOption::TransferSize(0)]), rig.address)
            .expect("send");
        let (offer, transfer) = hear(&socket);
        assert_eq!(offer, b"\0\x06tsize\x001000\0");
        socket.send_to(b"\0\x05\0\x08User aborted the transfer\0", transfer).expect("send");
        let (received, _) = fetch(&socket, rig.address, "small", &[AskedOption::TransferSize(0)]);
        assert_eq!(received, content(1000));
    }
    rig.counts(|counters| counters.outcome(Outcome::ClientAborted) == 20).await;
    rig.counts(|counters| counters.outcome(Outcome::Complete) == 20).await;
    assert_eq!(rig.server.counters().repeated_requests, 0);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_request_opens_no_second_transfer() {
    let rig = rig(settings());
    let socket = socket();
    let request = wire::read_request("small", &[]);
    socket.send_to(&request, rig.address).expect("send");
    let (_, first) = hear(&socket);
    socket.send_to(&request, rig.address).expect("send");
    let (again, second) = hear(&socket);
    assert_eq!(again[..4], wire::data_header(1));
    assert_eq!(first, second, "the same transfer answers");
    socket.send_to(&wire::acknowledge(1), first).expect("send");
    assert_eq!(hear(&socket).0[..4], wire::data_header(2));
    // The network's late duplicate, when the transfer has moved on.
    socket.send_to(&request, rig.address).expect("send");
    rig.counts(|counters| counters.repeated_requests == 2).await;
    socket.send_to(&wire::acknowledge(2), first).expect("send");
    rig.counts(|counters| counters.outcome(Outcome::Complete) == 1).await;
    assert_eq!(rig.server.counters().opened, 1);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_request_from_the_same_port_replaces_the_transfer() {
    let rig = rig(settings());
    let socket = socket();
    socket.send_to(&wire::read_request("large", &[]), rig.address).expect("send");
    hear(&socket);
    let (received, _) = fetch(&socket, rig.address, "small", &[AskedOption::BlockSize(1000)]);
    assert_eq!(received, content(1000));
    rig.counts(|counters| counters.outcome(Outcome::ClientAborted) == 1).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stranger_at_a_transfers_port_gets_error_5_and_disturbs_nothing() {
    let rig = rig(settings());
    let client = socket();
    client.send_to(&wire::read_request("small", &[]), rig.address).expect("send");
    let (_, transfer) = hear(&client);
    let stranger = socket();
    stranger.send_to(&wire::acknowledge(1), transfer).expect("send");
    assert_eq!(error_code(&hear(&stranger).0), Some(5));
    stranger.send_to(&wire::error(ErrorCode::Undefined, "stop"), transfer).expect("send");
    hear(&stranger);
    client.send_to(&wire::acknowledge(1), transfer).expect("send");
    assert_eq!(hear(&client).0[..4], wire::data_header(2));
    assert_eq!(rig.server.counters().refusal(Refusal::Stranger), 2);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn netascii_text_has_its_line_ends() {
    let rig = rig(settings());
    let (packet, _) = ask(rig.address, b"\0\x01text\0NetASCII\0");
    assert_eq!(&packet[4..], b"one\r\ntwo\r\0");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_leave_from_the_address_that_was_asked() {
    let rig = rig(Settings { listen: vec!["0.0.0.0:0".parse().unwrap()], ..settings() });
    for address in [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 9, 9, 9)] {
        let asked = SocketAddr::from((address, rig.address.port()));
        let (_, transfer) = ask(asked, &wire::read_request("small", &[]));
        assert_eq!(transfer.ip(), address);
        assert_ne!(transfer.port(), asked.port());
        let (_, refusal) = ask(asked, &wire::read_request("nothing", &[]));
        assert_eq!(refusal, asked);
    }
    assert_eq!(rig.shelf.locals.lock().unwrap()[0], Ipv4Addr::LOCALHOST);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_client_is_served() {
    let rig = rig(Settings { listen: vec!["[::]:0".parse().unwrap()], ..settings() });
    let socket = UdpSocket::bind("[::1]:0").expect("loopback");
    socket.set_read_timeout(Some(PATIENCE)).expect("time-out");
    let address = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, rig.address.port()));
    let (received, client) =
        fetch(&socket, address, "large", &[AskedOption::BlockSize(65464), AskedOption::WindowSize(8)]);
    assert!(received == content(5_000_000));
    assert_eq!(client.block_size(), 1228);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_acknowledgement_is_made_up_for() {
    let retry =
        Retry { initial: Duration::from_millis(50), least: Duration::from_millis(50), ..Retry::default() };
    let rig = rig(Settings { retry, ..settings() });
    let socket = socket();
    socket.send_to(&wire::read_request("small", &[]), rig.address).expect("send");
    let (first, transfer) = hear(&socket);
    let (again, _) = hear(&socket);
    assert_eq!(first, again);
    socket.send_to(&wire::acknowledge(1), transfer).expect("send");
    while hear(&socket).0[..4] != wire::data_header(2) {}
    socket.send_to(&wire::acknowledge(2), transfer).expect("send");
    rig.counts(|counters| counters.outcome(Outcome::Complete) == 1 && counters.retransmissions > 0).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_of_a_silent_client_ends() {
    let wait = Duration::from_millis(5);
    let retry = Retry { initial: wait, least: wait, most: wait, attempts: 3, ..Retry::default() };
    let rig = rig(Settings { retry, ..settings() });
    ask(rig.address, &wire::read_request("small", &[]));
    rig.counts(|counters| counters.outcome(Outcome::TimedOut) == 1 && counters.active == 0).await;
    assert_eq!(rig.server.counters().retransmissions, 3);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_rate_of_a_client_are_limited() {
    let limits = Limits { sessions: 2, sessions_per_client: 3, requests_per_second: 1, request_burst: 4 };
    let rig = rig(Settings { limits, ..settings() });
    for _ in 0..2 {
        let client = socket();
        client.send_to(&wire::read_request("small", &[]), rig.address).expect("send");
        let (first, transfer) = hear(&client);
        assert_eq!(first[..4], wire::data_header(1));
        // A client that has answered keeps its place.
        client.send_to(&wire::acknowledge(1), transfer).expect("send");
        assert_eq!(hear(&client).0[..4], wire::data_header(2));
    }
    assert_eq!(error_code(&ask(rig.address, &wire::read_request("small", &[])).0), Some(0));
    assert_eq!(error_code(&ask(rig.address, &wire::read_request("nothing", &[])).0), Some(1));
    let socket = socket();
    socket.send_to(&wire::read_request("small", &[]), rig.address).expect("send");
    rig.counts(|counters| counters.refusal(Refusal::Limit(Limited::Rate)) == 1).await;
    assert_eq!(rig.server.counters().refusal(Refusal::Limit(Limited::Sessions)), 1);
    // A reload takes effect immediately; addresses stay.
    let generous = Settings {
        limits: Limits { sessions: 100, sessions_per_client: 100, ..Limits::default() },
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        ..settings()
    };
    rig.server.reload(generous).expect("reloads");
    let elsewhere = Settings { listen: vec!["127.0.0.1:1".parse().unwrap()], ..settings() };
    assert_eq!(rig.server.reload(elsewhere), Err(ReloadSettingsError::Listen));
    let deadline = Instant::now() + PATIENCE;
    while rig.server.counters().opened < 3 {
        assert!(Instant::now() < deadline);
        socket.send_to(&wire::read_request("small", &[]), rig.address).expect("send");
        tokio::task::yield_now().await;
    }
    rig.server.reload(Settings { drain: Duration::ZERO, ..settings() }).expect("reloads");
    let shelf = rig.stop().await;
    assert!(shelf.ended.lock().unwrap().iter().any(|(_, outcome, _)| *outcome == Outcome::Stopped));
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_lets_a_running_transfer_finish() {
    let rig = rig(Settings { drain: PATIENCE, ..settings() });
    let socket = socket();
    socket.send_to(&wire::read_request("small", &[]), rig.address).expect("send");
    let (_, transfer) = hear(&socket);
    rig.shutdown.cancel();
    // The request port is free again while the transfer continues.
    let deadline = Instant::now() + PATIENCE;
    while UdpSocket::bind(rig.address).is_err() {
        assert!(Instant::now() < deadline, "request port is not given up");
        tokio::task::yield_now().await;
    }
    assert!(!rig.running.is_finished());
    socket.send_to(&wire::acknowledge(1), transfer).expect("send");
    assert_eq!(hear(&socket).0[..4], wire::data_header(2));
    socket.send_to(&wire::acknowledge(2), transfer).expect("send");
    let shelf = rig.stop().await;
    assert_eq!(*shelf.ended.lock().unwrap(), [("small".to_owned(), Outcome::Complete, 1000)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_at_its_deadline_and_the_client_gets_an_error() {
    let rig = rig(Settings { drain: Duration::ZERO, ..settings() });
    let socket = socket();
    socket.send_to(&wire::read_request("small", &[]), rig.address).expect("send");
    hear(&socket);
    let shelf = rig.stop().await;
    assert_eq!(error_code(&hear(&socket).0), Some(0));
    assert_eq!(*shelf.ended.lock().unwrap(), [("small".to_owned(), Outcome::Stopped, 0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_server_on_the_same_port_is_refused() {
    let rig = rig(settings());
    let second = Server::bind(Settings { listen: vec![rig.address], ..settings() }, rig.shelf.clone());
    assert!(second.is_err());
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_at_once_all_get_their_file() {
    let rig = rig(settings());
    let address = rig.address;
    let clients: Vec<_> = (0..50)
        .map(|_| {
            std::thread::spawn(move || {
                fetch(
                    &socket(),
                    address,
                    "large",
                    &[AskedOption::BlockSize(1468), AskedOption::WindowSize(8)],
                )
                .0
            })
        })
        .collect();
    for client in clients {
        assert!(client.join().expect("client") == content(5_000_000));
    }
    rig.stop().await;
}
