//! TLS client for pxed: enrolls by token, renews and reports by certificate.
//!
//! Tries pxed's endpoints in order. Called by `run`.

use bedplate_api::wire::{
    EnrollRequest, EnrollResponse, NodeReport, OperationWrite, OperationWritten, RenewRequest, Report,
    SecretRequest, SecretResponse, WatchRequest, WatchResponse,
};
use reqwest::Method;
use serde::Serialize;

use super::request::{AskError, Https};

/// Client of pxed.
#[derive(Debug, Clone)]
pub struct PxedClient {
    https: Https,
    endpoints: Vec<String>,
}

impl PxedClient {
    /// Creates a client that trusts `ca_pem`, and authenticates with `identity` (certificate chain and key,
    /// PEM).
    pub fn new(endpoints: &[String], ca_pem: &str, identity: Option<(&str, &str)>) -> Result<Self, AskError> {
        Ok(Self { https: Https::new(ca_pem, identity)?, endpoints: endpoints.to_vec() })
    }

    /// Trades the token for a certificate.
    pub async fn enroll(&self, request: &EnrollRequest) -> Result<EnrollResponse, AskError> {
        self.ask("/v1/enroll", request, read_json).await
    }

    /// Gets a new certificate.
    pub async fn renew(&self, request: &RenewRequest) -> Result<EnrollResponse, AskError> {
        self.ask("/v1/renew", request, read_json).await
    }

    /// Reports the host. Facts may be omitted while they equal those of the last accepted report.
    pub async fn report(&self, report: &Report) -> Result<(), AskError> {
        self.ask("/v1/report", report, |_| Ok(())).await
    }

    /// Waits for a change of this host's Machine and the objects that belong to it, when standalone. pxed
    /// answers when they differ from the known revision.
    pub async fn watch(&self, request: &WatchRequest) -> Result<WatchResponse, AskError> {
        self.ask("/v1/watch", request, read_json).await
    }

    /// Reports the state of an operation, when standalone.
    pub async fn write_operation(&self, write: &OperationWrite) -> Result<OperationWritten, AskError> {
        self.ask("/v1/operation", write, read_json).await
    }

    /// Reports the state of the node, when standalone.
    pub async fn report_node(&self, node: &NodeReport) -> Result<(), AskError> {
        self.ask("/v1/node", node, |_| Ok(())).await
    }

    /// Reads a Secret that the selected version names, when standalone.
    pub async fn secret(&self, request: &SecretRequest) -> Result<SecretResponse, AskError> {
        self.ask("/v1/secret", request, read_json).await
    }

    /// Sends the request to one endpoint after another until one answers. A final refusal is an answer.
    async fn ask<T>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
        read: fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, AskError> {
        let mut last = AskError::NoEndpoint;
        for endpoint in &self.endpoints {
            let url = format!("{}{path}", endpoint.trim_end_matches('/'));
            let request = self.https.request(Method::POST, &url).json(body);
            match self.https.ask(request, &url, read).await {
                Err(error) if !error.is_final() => last = error,
                answer => return answer,
            }
        }
        Err(last)
    }
}

fn read_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}
