//! Blocking HTTP client for the two requests of stage-1: a file from an offset, and a report of its stage.
//!
//! Every wait is bounded. One connection for each request. Called by `root_image` and the driver.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use bedplate_api::wire::{Refusal, StageReport};
use bedplate_oci::resolver;

use super::error::StageError;
use super::http_wire::{HttpUrl, MAX_HEAD, ResponseHead, get_head, parse_head, post_head};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum silence of an image stream. pxed queues image streams; one that is silent for longer has failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// A response whose body can be read.
#[derive(Debug)]
pub struct Response {
    /// Head of the response.
    pub head: ResponseHead,
    early: io::Cursor<Vec<u8>>,
    stream: TcpStream,
}

impl Read for Response {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.early.read(buffer)? {
            0 => self.stream.read(buffer),
            length => Ok(length),
        }
    }
}

/// Requests `url` from byte `from` on. Answers other than 200 and 206 are errors.
pub fn get(url: &HttpUrl, from: u64, nameservers: &[Ipv4Addr]) -> Result<Response, StageError> {
    let mut response = exchange(url, nameservers, &get_head(url, from), &[], STALL_TIMEOUT)?;
    if matches!(response.head.status, 200 | 206) {
        return Ok(response);
    }
    Err(refused(url, &mut response))
}

/// Sends a stage report.
pub(crate) fn post_stage(
    boot: &HttpUrl,
    report: &StageReport,
    nameservers: &[Ipv4Addr],
) -> Result<(), StageError> {
    let url = boot.join("stage");
    let body = serde_json::to_vec(report).map_err(|_| StageError::Internal("a stage report is not JSON"))?;
    let mut response = exchange(&url, nameservers, &post_head(&url, body.len()), &body, REPORT_TIMEOUT)?;
    if (200..300).contains(&response.head.status) { Ok(()) } else { Err(refused(&url, &mut response)) }
}

fn refused(url: &HttpUrl, response: &mut Response) -> StageError {
    let mut body = Vec::new();
    let _ = response.by_ref().take(4096).read_to_end(&mut body);
    let detail = match serde_json::from_slice::<Refusal>(&body) {
        Ok(refusal) => format!(": {} ({})", refusal.message, refusal.reason),
        Err(_) => String::new(),
    };
    StageError::Status { url: url.to_string(), status: response.head.status, detail }
}

fn exchange(
    url: &HttpUrl,
    nameservers: &[Ipv4Addr],
    head: &[u8],
    body: &[u8],
    timeout: Duration,
) -> Result<Response, StageError> {
    let address = match url.host().parse::<IpAddr>() {
        Ok(address) => address,
        Err(_) => IpAddr::V4(resolver::ipv4(url.host(), nameservers).ok_or_else(|| StageError::Resolve {
            host: url.host().to_owned(),
            servers: format!("{nameservers:?}"),
        })?),
    };
    let address = SocketAddr::new(address, url.port());
    let reach = || StageError::system::<io::Error>("reach", url);
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT.min(timeout)).map_err(reach())?;
    stream.set_read_timeout(Some(timeout)).map_err(reach())?;
    stream.set_write_timeout(Some(timeout)).map_err(reach())?;
    stream.write_all(head).and_then(|()| stream.write_all(body)).map_err(StageError::system("ask", url))?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let parsed =
            parse_head(&bytes).map_err(|source| StageError::Answer { url: url.to_string(), source })?;
        if let Some((head, length)) = parsed {
            let early = io::Cursor::new(bytes.split_off(length));
            return Ok(Response { head, early, stream });
        }
        let length = stream.read(&mut buffer).map_err(StageError::system("hear from", url))?;
        if length == 0 || bytes.len() > MAX_HEAD {
            return Err(StageError::system("hear from", url)(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        bytes.extend(&buffer[..length]);
    }
}
