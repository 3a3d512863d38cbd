//! The HTTP side of an OCI registry (OCI distribution specification 1.1, "Pull"): manifests with a size limit, blobs from
//! an offset, anonymous and password-bought tokens.
//!
//! Not here: retrying blobs (`download`), what the documents mean (`manifest`). Caller: the store.
//!
//! Answers of a registry are not trusted: sizes are limits, digests are compared by the caller, redirects and
//! token services must be https unless the registry was configured for plain http. Credentials are sent to
//! the registry itself and to the token service that it names (as every client does), never to a redirect
//! target.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::Digest;
use bedplate_api::image_reference::Reference;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_RANGE, RANGE, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::{Certificate, Client, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::answer::{Answer, within};
use crate::challenge::{self, Challenge};
use crate::credentials::{self, Credentials};
use crate::download::Waits;
use crate::error::EnsureImageError;
use crate::layout::read_limited;
use crate::manifest::{INDEX_TYPE, LARGEST_MANIFEST, MANIFEST_TYPE};
use crate::node::{DOCKER_INDEX_TYPE, DOCKER_MANIFEST_TYPE};
use crate::partial::blocking;
use crate::reach::{self, Confined, MAX_REDIRECTS, Reach};
use crate::resolver::HostResolver;
use crate::source::{Access, Options};
use crate::store::{Tell, digest_of};

/// Largest answer of a token service, in bytes.
const LARGEST_TOKEN: u64 = 64 << 10;
/// Maximum bytes of an error's body that are shown.
const LARGEST_MESSAGE: u64 = 400;
/// Largest file of certificates, in bytes.
const LARGEST_CERTIFICATES: u64 = 1 << 20;

/// Reason for which a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A retry may succeed, not before `after`.
    Again { problem: String, after: Option<Duration> },
    /// A retry cannot succeed.
    Refused { problem: String },
    /// The answer exceeds the size limit.
    TooLarge { limit: u64 },
}

impl Failure {
    pub(crate) fn transport(error: reqwest::Error) -> Self {
        // The URL may be a signed one.
        let error = error.without_url();
        let mut problem = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            problem.push_str(": ");
            problem.push_str(&cause.to_string());
            source = cause.source();
        }
        let is_forbidden = reach::forbidden(&error).is_some();
        if is_forbidden || error.is_redirect() || error.is_builder() {
            Self::Refused { problem }
        } else {
            Self::Again { problem, after: None }
        }
    }
}

/// One repository of a registry.
#[derive(Debug)]
pub(crate) struct Repository {
    client: Client,
    base: String,
    repository: String,
    reference: String,
    pinned: Option<Digest>,
    credentials: Option<Credentials>,
    /// Check of the addresses, for references whose authors must not reach all of them.
    reach: Option<Arc<dyn Reach>>,
    /// True if error texts of a registry are shown.
    shows_errors: bool,
    options: Options,
    authorization: Mutex<Option<String>>,
}

impl Repository {
    /// A repository by its reference; reads the files that `access` names.
    pub(crate) async fn new(
        name: &str,
        reference: &str,
        allow_tag: bool,
        access: &Access,
        options: &Options,
    ) -> Result<Self, EnsureImageError> {
        let authorities = match &access.ca_file {
            Some(path) => authorities(name, path).await?,
            None => Vec::new(),
        };
        Self::trusting(authorities, name, (reference, allow_tag), access, options).await
    }

    /// Creates a client that trusts these authorities in addition to the
    /// system's, whatever file `access` names.
    pub(crate) async fn trusting(
        authorities: Vec<Certificate>,
        name: &str,
        (reference, allow_tag): (&str, bool),
        access: &Access,
        options: &Options,
    ) -> Result<Self, EnsureImageError> {
        let image = || name.to_owned();
        let invalid = |problem: String| EnsureImageError::InvalidReference { image: image(), problem };
        let parsed = Reference::parse(reference).map_err(|e| invalid(e.to_string()))?;
        let pinned = parsed.digest;
        if pinned.is_none() && !allow_tag {
            return Err(EnsureImageError::TagNotAllowed { image: image() });
        }
        let which = pinned.map(|d| d.to_string()).or(parsed.tag.clone());
        let registry = parsed.host();
        let scheme = if access.insecure_http { "http" } else { "https" };
        let credentials = match &access.credentials_file {
            Some(path) => {
                let names = [registry, parsed.registry.as_str()];
                Some(credentials::read(name, path, &names, &parsed.repository).await?)
            }
            None => None,
        };
        let reach = options.reach.clone().filter(|_| access.is_confined);
        Ok(Self {
            client: client(access.insecure_http, authorities, reach.clone(), options)
                .map_err(|problem| EnsureImageError::Client { image: image(), problem })?,
            reach,
            shows_errors: !access.is_confined,
            base: format!("{scheme}://{registry}/v2/{}", parsed.repository),
            repository: parsed.repository,
            reference: which.unwrap_or_else(|| "latest".to_owned()),
            pinned,
            credentials,
            options: options.clone(),
            authorization: Mutex::new(None),
        })
    }

    /// Fetches the document of the reference: an index or a manifest, verified if the reference has a digest.
    pub(crate) async fn root(&self, name: &str, tell: Tell<'_>) -> Result<Vec<u8>, EnsureImageError> {
        let bytes = self.document(name, &self.reference, tell).await?;
        match (self.pinned, digest_of(&bytes)) {
            (Some(digest), found) if digest != found => {
                Err(EnsureImageError::DigestMismatch { image: name.to_owned(), digest, found })
            }
            _ => Ok(bytes),
        }
    }

    /// A manifest or index by tag or digest; the caller compares the digest.
    pub(crate) async fn document(
        &self,
        name: &str,
        which: &str,
        tell: Tell<'_>,
    ) -> Result<Vec<u8>, EnsureImageError> {
        let mut waits = Waits::new(&self.options);
        loop {
            match within(self.options.whole, self.try_document(which)).await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => {
                    waits.sleep_or_fail(name, &format!("manifest {which}"), failure, tell).await?;
                }
            }
        }
    }

    async fn try_document(&self, which: &str) -> Result<Vec<u8>, Failure> {
        let url = format!("{}/manifests/{which}", self.base);
        let accept = [MANIFEST_TYPE, INDEX_TYPE, DOCKER_MANIFEST_TYPE, DOCKER_INDEX_TYPE].join(", ");
        let response = self.get(|| self.client.get(&url).header(ACCEPT, &accept)).await?;
        bounded(response, LARGEST_MANIFEST).await
    }

    /// A blob from `offset` on; a registry that does not know ranges answers from 0.
    pub(crate) async fn blob(&self, digest: &Digest, offset: u64) -> Result<Answer, Failure> {
        let url = format!("{}/blobs/{digest}", self.base);
        let request = |from: u64| {
            let request = self.client.get(&url);
            if from > 0 { request.header(RANGE, format!("bytes={from}-")) } else { request }
        };
        let limit = self.options.whole;
        let response = match within(limit, self.get(|| request(offset))).await {
            // 416: the stored part is larger than the blob.
            Err(Failure::Refused { problem }) if offset > 0 && problem.starts_with("416") => {
                within(limit, self.get(|| request(0))).await?
            }
            answer => answer?,
        };
        let offset = if response.status() == StatusCode::PARTIAL_CONTENT {
            range_start(&response).ok_or_else(|| Failure::Again {
                problem: "206 without a valid Content-Range".to_owned(),
                after: None,
            })?
        } else {
            0
        };
        Ok(Answer::new(offset, response, limit))
    }

    /// Sends a request, with a token if the registry requires one, and classifies the answer.
    async fn get(&self, request: impl Fn() -> RequestBuilder) -> Result<Response, Failure> {
        self.check_literal(&self.base)?;
        let authorization = self.authorization.lock().await.clone();
        let response = send(request(), authorization.as_deref()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return self.accepted(response).await;
        }
        let authorization = self.authorize(&response).await?;
        *self.authorization.lock().await = Some(authorization.clone());
        self.accepted(send(request(), Some(&authorization)).await?).await
    }

    /// Refuses a URL with a literal address that it may not lead to; names are checked when they are looked up.
    fn check_literal(&self, url: &str) -> Result<(), Failure> {
        let (Some(reach), Ok(url)) = (&self.reach, reqwest::Url::parse(url)) else { return Ok(()) };
        reach::check_literal(reach.as_ref(), &url)
            .map_err(|forbidden| Failure::Refused { problem: forbidden.to_string() })
    }

    /// Meets the challenge of a 401.
    async fn authorize(&self, response: &Response) -> Result<String, Failure> {
        let own = reqwest::Url::parse(&self.base).map(|url| url.origin());
        if own.as_ref().ok() != Some(&response.url().origin()) {
            let host = response.url().host_str().unwrap_or_default();
            let problem = format!("401 of redirect target {host}, which gets no credentials");
            return Err(Failure::Refused { problem });
        }
        let header = response.headers().get(WWW_AUTHENTICATE).and_then(|h| h.to_str().ok());
        let refused = |problem: &str| Failure::Refused { problem: format!("401, {problem}") };
        match header.and_then(challenge::parse) {
            None => Err(refused("without a supported challenge")),
            Some(Challenge::Basic) => {
                let credentials = self
                    .credentials
                    .as_ref()
                    .ok_or_else(|| refused("user name and password are required"))?;
                Ok(credentials.basic())
            }
            Some(Challenge::Bearer { realm, service, scope }) => {
                self.token(&realm, service.as_deref(), scope.as_deref()).await
            }
        }
    }

    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
    ) -> Result<String, Failure> {
        #[derive(Deserialize)]
        struct Token {
            #[serde(alias = "access_token")]
            token: String,
        }
        let refused = |problem: String| Failure::Refused { problem };
        let mut url = reqwest::Url::parse(realm).map_err(|error| {
            let realm = if self.shows_errors { format!(" {realm:?}") } else { String::new() };
            refused(format!("token service{realm}: {error}"))
        })?;
        self.check_literal(url.as_str())?;
        let own_scope = format!("repository:{}:pull", self.repository);
        url.query_pairs_mut().append_pair("scope", scope.unwrap_or(&own_scope));
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        let authorization = self.credentials.as_ref().map(Credentials::basic);
        let response = send(self.client.get(url), authorization.as_deref()).await?;
        let bytes = bounded(self.accepted(response).await?, LARGEST_TOKEN).await?;
        let token: Token = serde_json::from_slice(&bytes)
            .map_err(|e| refused(format!("the token service's answer is not a token: {e}")))?;
        Ok(format!("Bearer {}", token.token))
    }

    /// Returns answers with 200 and 206. All others become failures.
    async fn accepted(&self, response: Response) -> Result<Response, Failure> {
        let status = response.status();
        if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Ok(response);
        }
        let after =
            response.headers().get(RETRY_AFTER).and_then(|h| h.to_str().ok()).and_then(|t| t.parse().ok());
        let text: String = if self.shows_errors {
            let body = bounded_prefix(response, LARGEST_MESSAGE).await;
            String::from_utf8_lossy(&body).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
        } else {
            // Any service may have answered, and the reader of the error may not have access to that service.
            status.canonical_reason().unwrap_or_default().to_owned()
        };
        let problem = format!("{} {}", status.as_str(), text.trim()).trim().to_owned();
        let again = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        if again {
            Err(Failure::Again { problem, after: after.map(Duration::from_secs) })
        } else {
            Err(Failure::Refused { problem })
        }
    }
}

/// The certificates of a PEM file.
async fn authorities(name: &str, path: &Path) -> Result<Vec<Certificate>, EnsureImageError> {
    let at = path.to_owned();
    let read =
        blocking(move || certificates(&read_limited(&at, LARGEST_CERTIFICATES)?).map_err(io::Error::other));
    read.await.map_err(|source| EnsureImageError::ReadFile {
        image: name.to_owned(),
        path: path.to_owned(),
        source,
    })
}

/// The certificates of a text in PEM form, of which there is at least one.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<Certificate>, String> {
    match Certificate::from_pem_bundle(pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err("it has no certificate in PEM form".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn client(
    insecure_http: bool,
    authorities: Vec<Certificate>,
    reach: Option<Arc<dyn Reach>>,
    options: &Options,
) -> Result<Client, String> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err("this process has installed no TLS provider".to_owned());
    }
    let builder = Client::builder();
    // In addition to the system's, because a redirect may lead to a public host.
    let builder = if authorities.is_empty() { builder } else { builder.tls_certs_merge(authorities) };
    let builder = match reach {
        Some(reach) => {
            builder.redirect(reach::redirects(reach.clone())).dns_resolver(Arc::new(Confined(reach)))
        }
        None => {
            let redirects = reqwest::redirect::Policy::limited(MAX_REDIRECTS);
            builder.redirect(redirects).dns_resolver(Arc::new(HostResolver))
        }
    };
    builder
        .https_only(!insecure_http)
        .connect_timeout(options.stall.min(Duration::from_secs(10)))
        .read_timeout(options.stall)
        .user_agent(concat!("bedplate/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|e| e.to_string())
}

async fn send(request: RequestBuilder, authorization: Option<&str>) -> Result<Response, Failure> {
    let request = match authorization {
        Some(value) => request.header(AUTHORIZATION, value),
        None => request,
    };
    request.send().await.map_err(Failure::transport)
}

async fn bounded(mut response: Response, limit: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Failure::transport)? {
        if bytes.len() as u64 + chunk.len() as u64 > limit {
            return Err(Failure::TooLarge { limit });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

async fn bounded_prefix(mut response: Response, limit: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    while (bytes.len() as u64) < limit {
        let Ok(Some(chunk)) = response.chunk().await else { break };
        bytes.extend(chunk.iter().take(usize::try_from(limit).unwrap_or(usize::MAX) - bytes.len()));
    }
    bytes
}

/// The first position of `Content-Range: bytes 10-19/20` (RFC 9110, 14.4).
fn range_start(response: &Response) -> Option<u64> {
    let value = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    value.trim().strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}
