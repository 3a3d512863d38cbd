//! A probe of a Redfish service with a public root, and of addresses without a service.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use super::*;
use crate::arguments::parse;
use crate::command;

/// Serves the root without a login, and nothing else. Reports the first lines and headers of requests.
fn service() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut head = String::new();
            let mut reader = BufReader::new(&stream);
            while reader.read_line(&mut head).is_ok_and(|length| length > 2) {}
            let root = json!({ "RedfishVersion": "1.15.0", "Vendor": "Contoso\u{1b}[31m", "Product": "BMC 9",
                "Systems": { "@odata.id": "/redfish/v1/Systems" } });
            let (code, body) =
                if head.starts_with("GET /redfish/v1/ ") { (200, root) } else { (401, json!({})) };
            let body = body.to_string();
            let answer = format!(
                "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = (&stream).write_all(answer.as_bytes());
            if sender.send(head).is_err() {
                return;
            }
        }
    });
    (format!("http://{address}"), receiver)
}

fn bedplate(line: &str) -> (String, Result<(), RunError>) {
    let cli = parse(format!("bedplate bmc probe {line}").split(' ').map(OsString::from).collect()).unwrap();
    let mut out = Vec::new();
    let result = command::run(&cli, "bedplate".as_ref(), &mut out);
    (String::from_utf8(out).unwrap(), result)
}

#[test]
fn probe_without_a_user_does_not_log_in_and_shows_public_data() {
    let (address, asked) = service();
    let (out, result) = bedplate(&address);
    result.unwrap();
    assert!(out.contains("Redfish 1.15.0") && out.contains("needs user name and password"), "{out}");
    assert!(out.contains(&format!("    address: \"{address}\"\n")) && out.contains("plain HTTP"), "{out}");
    assert!(!out.contains('\u{1b}'), "{out}");
    let requests: Vec<String> = asked.try_iter().collect();
    assert!(requests.iter().all(|head| !head.to_lowercase().contains("authorization")), "{requests:?}");
    let (out, result) = bedplate(&format!("{address} --output json"));
    result.unwrap();
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&found["protocol"], &found["authenticated"]), (&json!("Redfish"), &json!(false)));
}

#[test]
fn a_refused_password_is_tried_once_and_shown_nowhere() {
    let (address, asked) = service();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "s3cret\n").unwrap();
    let (out, result) =
        bedplate(&format!("{address} --insecure --username root --password-file {}", file.display()));
    let error = result.unwrap_err();
    assert!(
        matches!(&error, RunError::Command { error, .. } if matches!(error.downcast_ref(), Some(ProbeError::Bmc(error)) if matches!(**error, BmcError::AuthenticationFailed { .. }))),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("lock an account"), "{error}");
    assert!(!error.to_string().contains("Secret"), "{error}");
    assert!(!format!("{out}{error}{error:?}").contains("s3cret"));
    let proofs = asked.try_iter().filter(|head| head.to_lowercase().contains("authorization: ")).count();
    assert!(proofs <= 1, "{proofs}");
}

#[test]
fn errors_are_reported_before_a_password_prompt() {
    let wrong = |line: &str| bedplate(line).1.unwrap_err().to_string();
    assert!(wrong("http://10.0.0.1/redfish/v1/Systems/1 --username root").contains("--system-id"));
    assert!(wrong("http://10.0.0.1 --username root").contains("without encryption"));
    assert!(wrong("10.0.0.1 --protocol ipmi --insecure --username root").contains("--insecure"));
    assert!(wrong("10.0.0.1 --ca-file /nonexistent/ca.pem").contains("/nonexistent/ca.pem"));
    assert!(wrong("10.0.0.1 --ca-file Cargo.toml").contains("Cargo.toml has no certificate"));
    assert!(wrong("ftp://10.0.0.1").contains("https://"));
    assert!(wrong("10.0.0.1 --username root --password-file /nonexistent/p").contains("/nonexistent/p"));
}

#[test]
fn invalid_command_line_and_failing_bmc_are_distinguished() {
    let usage = |line: &str| bedplate(line).1.unwrap_err().is_usage();
    assert!(usage("http://10.0.0.1 --username root"));
    assert!(usage("10.0.0.1 --protocol ipmi --insecure"));
    assert!(usage("10.0.0.1:0"));
    assert!(!usage("10.0.0.1 --ca-file /nonexistent/ca.pem"));
}

#[test]
fn a_closed_port_names_the_address_and_what_to_look_at() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = bedplate(&format!("http://{address}")).1.unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    // No Machine exists yet, so the error must not point to its spec.
    assert!(!error.to_string().contains("bmc.address"), "{error}");
    assert!(error.hint().unwrap().contains("--protocol ipmi"));
}
