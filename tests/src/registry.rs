//! A read-only OCI registry: serves an OCI layout inside a namespace until it is dropped, by plain HTTP or by TLS.
//!
//! A tag is that of an image which the layout names so (`repository:tag`), otherwise the layout's first image.
//!
//! Of the distribution specification it knows pull by digest or tag, HEAD and single ranges.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::PrivateKeyDer;

use crate::netns::Namespace;

/// The annotation by which an OCI layout names an image.
pub const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// The served layout.
struct Served {
    layout: PathBuf,
    /// The digest of the first image.
    first: String,
    /// Digests by `repository:tag`.
    named: BTreeMap<String, String>,
}

/// A running registry. Dropped: it no longer listens, as if it had been switched off.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    digest: String,
    authority: Option<String>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Registry {
    /// Serves the OCI layout `layout` at `address` inside `network`.
    ///
    /// # Errors
    /// The layout has no index, or the address is taken.
    pub fn start(layout: &Path, network: &Namespace, address: SocketAddr) -> Result<Self> {
        Self::serve(layout, bind_inside(network, address)?, None)
    }

    /// Starts a registry by TLS, with a certificate of an authority of its own: [`Self::authority`].
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub fn start_tls(layout: &Path, network: &Namespace, address: SocketAddr) -> Result<Self> {
        Self::serve_tls(layout, bind_inside(network, address)?)
    }

    /// Starts a registry by TLS on this machine's loopback, at a free port.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub fn start_tls_on_loopback(layout: &Path) -> Result<Self> {
        Self::serve_tls(layout, TcpListener::bind("127.0.0.1:0")?)
    }

    fn serve_tls(layout: &Path, listener: TcpListener) -> Result<Self> {
        let address = listener.local_addr()?;
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let own = CertificateParams::new(vec![address.ip().to_string()])?.signed_by(&key, &issuer)?;
        let secret = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone(), issuer.der().clone()], secret)?;
        let mut registry = Self::serve(layout, listener, Some(Arc::new(tls)))?;
        registry.authority = Some(issuer.pem());
        Ok(registry)
    }

    fn serve(layout: &Path, listener: TcpListener, tls: Option<Arc<ServerConfig>>) -> Result<Self> {
        let address = listener.local_addr()?;
        let index = std::fs::read(layout.join("index.json")).with_context(|| {
            format!("{} is no OCI layout: run `cargo xtask image host`", layout.display())
        })?;
        let index: Value = serde_json::from_slice(&index)?;
        let digest =
            index.pointer("/manifests/0/digest").and_then(Value::as_str).context("the layout is empty")?;
        let digest = digest.to_owned();
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let named = index["manifests"].as_array().into_iter().flatten().filter_map(|manifest| {
            let name = manifest["annotations"][REFERENCE].as_str()?;
            Some((name.to_owned(), manifest["digest"].as_str()?.to_owned()))
        });
        let served = Served { layout: layout.to_owned(), first: digest.clone(), named: named.collect() };
        let (stopped, served) = (stop.clone(), Arc::new(served));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let (served, tls) = (served.clone(), tls.clone());
                        std::thread::spawn(move || answer_all(stream, tls, &served));
                    }
                    // No client: this is the polling interval.
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        });
        Ok(Self { address, digest, authority: None, stop, thread: Some(thread) })
    }

    /// The image as a configuration names it.
    pub fn reference(&self) -> String {
        format!("{}/bedplate/host@{}", self.address, self.digest)
    }

    /// Address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The digest of the image that it gives for every tag that it does not know.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The certificate (PEM) of the authority that its own is of, if it speaks TLS.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }
}

fn bind_inside(network: &Namespace, address: SocketAddr) -> Result<TcpListener> {
    network.inside(|| TcpListener::bind(address).with_context(|| format!("cannot listen on {address}")))
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers one connection until the client ends it.
fn answer_all(stream: TcpStream, tls: Option<Arc<ServerConfig>>, served: &Served) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    match tls {
        None => answer_each(BufReader::new(stream), served),
        Some(tls) => {
            let connection = ServerConnection::new(tls)?;
            answer_each(BufReader::new(StreamOwned::new(connection, stream)), served)
        }
    }
}

fn answer_each<S: Read + Write>(mut stream: BufReader<S>, served: &Served) -> Result<()> {
    loop {
        let mut request = String::new();
        if stream.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let mut range = None;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 || line.trim().is_empty() {
                break;
            }
            let line = line.to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("range: bytes=") {
                range = Some(value.trim().to_owned());
            }
        }
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        answer(stream.get_mut(), method == "HEAD", path, range.as_deref(), served)?;
        stream.get_mut().flush()?;
    }
}

fn answer(
    stream: &mut impl Write,
    head_only: bool,
    path: &str,
    range: Option<&str>,
    served: &Served,
) -> Result<()> {
    if path == "/v2/" {
        return Ok(write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{{}}")?);
    }
    let Some((manifest, wanted, file)) = find(path, served) else {
        return Ok(write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?);
    };
    let mut file = std::fs::File::open(file)?;
    let size = file.metadata()?.len();
    let media =
        if manifest { "application/vnd.oci.image.manifest.v1+json" } else { "application/octet-stream" };
    let start =
        range.and_then(|range| range.split('-').next()?.parse::<u64>().ok()).filter(|start| *start < size);
    let end = range
        .and_then(|range| range.split('-').nth(1)?.parse::<u64>().ok())
        .map_or(size, |last| size.min(last + 1));
    let (line, from, to) = match start {
        Some(start) => {
            (format!("206 Partial Content\r\nContent-Range: bytes {start}-{}/{size}", end - 1), start, end)
        }
        None => ("200 OK".to_owned(), 0, size),
    };
    write!(
        stream,
        "HTTP/1.1 {line}\r\nContent-Length: {}\r\nContent-Type: {media}\r\nDocker-Content-Digest: {wanted}\r\n\r\n",
        to - from
    )?;
    if !head_only {
        file.seek(SeekFrom::Start(from))?;
        std::io::copy(&mut file.take(to - from), stream)?;
    }
    Ok(())
}

/// True for a manifest, with its digest and its file.
fn find(path: &str, served: &Served) -> Option<(bool, String, PathBuf)> {
    let (rest, reference) = path.rsplit_once('/')?;
    let repository = rest.strip_suffix("/manifests");
    let manifest = repository.is_some();
    let tagged = repository.filter(|_| !reference.contains(':')).map(|repository| {
        let name = format!("{}:{reference}", repository.trim_start_matches("/v2/"));
        served.named.get(&name).unwrap_or(&served.first).as_str()
    });
    let wanted = tagged.unwrap_or(reference);
    let hex = wanted.strip_prefix("sha256:").filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let file = served.layout.join("blobs/sha256").join(hex);
    file.is_file().then(|| (manifest, wanted.to_owned(), file))
}
