//! BMCs that mean ill: a Redfish service over plain HTTP that answers every request in one wicked way.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine as _;
use serde_json::json;

/// Made for terminals, and for who reads a log line by line.
const WORDS: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\nBMCReachable: True\u{202e}\u{9b}31m";

/// Form of an answer.
#[derive(Debug, Clone)]
pub(super) enum Trick {
    /// A document of this number of bytes.
    Huge(usize),
    /// Somewhere else.
    Redirect(String),
    /// Words with terminal escapes, in errors.
    Escapes,
    /// A system whose maker, model and serial number have terminal escapes.
    Dressed,
    /// An error that repeats what came, credentials too.
    Echo,
    /// This number of systems.
    Systems(usize),
    /// Brackets in brackets, and so on.
    Nested(usize),
    /// A byte now and then, without end.
    Dripping,
    /// Nothing that is HTTP.
    Noise,
}

/// It counts connections, and lives as long as the test's process.
pub(super) struct Crooked {
    pub(super) address: SocketAddr,
    connections: Arc<AtomicU32>,
}

impl Crooked {
    /// On a port of `ip`.
    pub(super) fn start(ip: &str, trick: Trick) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                let trick = trick.clone();
                std::thread::spawn(move || serve(stream, &trick));
            }
        });
        Self { address, connections }
    }

    pub(super) fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Requests of one connection; who goes away is not missed.
fn serve(mut stream: TcpStream, trick: &Trick) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut path, mut said) = (String::new(), String::new());
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if path.is_empty() {
                line.split(' ').nth(1)?.clone_into(&mut path);
            }
            said.push_str(line.trim_end());
        }
        answer(&mut stream, trick, &path, &said)?;
    }
}

fn head(stream: &mut TcpStream, status: &str, more: &str, length: usize) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()
}

fn document(stream: &mut TcpStream, status: &str, body: &str) -> Option<()> {
    head(stream, status, "", body.len())?;
    stream.write_all(body.as_bytes()).ok()
}

fn answer(stream: &mut TcpStream, trick: &Trick, path: &str, said: &str) -> Option<()> {
    match trick {
        Trick::Huge(length) => {
            head(stream, "200 OK", "", *length)?;
            let block = [b' '; 1 << 16];
            for _ in 0..length / block.len() {
                stream.write_all(&block).ok()?;
            }
            None
        }
        Trick::Redirect(to) => {
            head(stream, "307 Temporary Redirect", &format!("Location: {to}{path}\r\n"), 0)
        }
        Trick::Nested(depth) => document(stream, "200 OK", &"[".repeat(*depth)),
        Trick::Dripping => {
            head(stream, "200 OK", "", 1 << 20)?;
            loop {
                stream.write_all(b" ").ok()?;
                std::thread::park_timeout(Duration::from_millis(200));
            }
        }
        Trick::Noise => stream.write_all(&[0x1b; 1 << 16]).ok(),
        Trick::Systems(number) => systems(stream, path, *number),
        Trick::Escapes => escapes(stream, path),
        Trick::Dressed => dressed(stream, path),
        Trick::Echo => echo(stream, path, said),
    }
}

fn root() -> String {
    json!({
        "@odata.id": "/redfish/v1/", "@odata.type": "#ServiceRoot.v1_11_0.ServiceRoot", "Id": "Root", "Name": "Root",
        "RedfishVersion": "1.15.0", "Systems": { "@odata.id": "/redfish/v1/Systems" },
    })
    .to_string()
}

fn systems(stream: &mut TcpStream, path: &str, number: usize) -> Option<()> {
    if path.trim_end_matches('/') == "/redfish/v1" {
        return document(stream, "200 OK", &root());
    }
    let member = |number| json!({ "@odata.id": format!("/redfish/v1/Systems/a-rather-long-name-of-a-system-{number}") });
    let members: Vec<_> = (0..number).map(member).collect();
    let body = json!({
        "@odata.id": "/redfish/v1/Systems", "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection",
        "Name": "Systems", "Members@odata.count": number, "Members": members,
    });
    document(stream, "200 OK", &body.to_string())
}

fn escapes(stream: &mut TcpStream, path: &str) -> Option<()> {
    if path.trim_end_matches('/') == "/redfish/v1" {
        return document(stream, "200 OK", &root());
    }
    let info = json!([{ "MessageId": WORDS, "Message": WORDS, "Resolution": WORDS }]);
    let body = json!({ "error": { "code": WORDS, "message": WORDS, "@Message.ExtendedInfo": info } });
    document(stream, "400 Bad Request", &body.to_string())
}

fn dressed(stream: &mut TcpStream, path: &str) -> Option<()> {
    let system = "/redfish/v1/Systems/1";
    let body = match path.trim_end_matches('/') {
        "/redfish/v1" => root(),
        "/redfish/v1/Systems" => json!({
            "@odata.id": "/redfish/v1/Systems", "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection",
            "Name": "Systems", "Members@odata.count": 1, "Members": [{ "@odata.id": system }],
        })
        .to_string(),
        _ if path == system => json!({
            "@odata.id": system, "@odata.type": "#ComputerSystem.v1_16_0.ComputerSystem", "Id": WORDS, "Name": WORDS,
            "Manufacturer": WORDS, "Model": WORDS.repeat(1_000), "SerialNumber": WORDS, "PowerState": "On",
        })
        .to_string(),
        _ => return document(stream, "404 Not Found", "{}"),
    };
    document(stream, "200 OK", &body)
}

fn echo(stream: &mut TcpStream, path: &str, said: &str) -> Option<()> {
    if path.trim_end_matches('/') == "/redfish/v1" {
        return document(stream, "200 OK", &root());
    }
    let encoded = said.split("uthorization: Basic ").nth(1).unwrap_or_default();
    let encoded: String =
        encoded.chars().take_while(|c| c.is_ascii_alphanumeric() || "+/=".contains(*c)).collect();
    let decoded = base64::engine::general_purpose::STANDARD.decode(&encoded).unwrap_or_default();
    let words = format!("{said} {encoded} {}", String::from_utf8_lossy(&decoded));
    let info = json!([{ "MessageId": words, "Message": words }]);
    document(stream, "400 Bad Request", &json!({ "error": { "@Message.ExtendedInfo": info } }).to_string())
}
