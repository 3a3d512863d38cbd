//! The ways that an enrolled agent has, to pxed and to the cluster's API server, kept so that reports share a connection.
//!
//! Made with the certificate that is there, and forgotten with it. Called by `run`.

use bedplate_api::machine::Hardware;
use bedplate_api::wire::{KubernetesEndpoint, Report};

use super::api_server::ApiServer;
use super::ask::AskError;
use super::client::{PxedClient, Reporter};
use super::identity::Identity;
use super::state::Enrolment;

/// The ways, as far as they were used.
#[derive(Debug, Default)]
pub(super) struct Ways {
    pxed: Option<PxedClient>,
    api_server: Option<ApiServer>,
    /// The facts that were taken last.
    pub(super) facts_taken: Option<Hardware>,
}

impl Ways {
    /// There is another certificate.
    pub(super) fn forget(&mut self) {
        self.pxed = None;
        self.api_server = None;
    }

    /// The way to pxed.
    pub(super) fn pxed(
        &mut self,
        enrolment: &Enrolment,
        identity: &Identity,
    ) -> Result<PxedClient, AskError> {
        if let Some(client) = &self.pxed {
            return Ok(client.clone());
        }
        let key = identity.key_pem();
        let shown = (enrolment.certificate_pem.as_str(), key.as_str());
        let client = PxedClient::new(&enrolment.endpoints, &enrolment.ca_pem, Some(shown))?;
        self.pxed = Some(client.clone());
        Ok(client)
    }

    /// The way to the API server.
    pub(super) fn api_server(
        &mut self,
        enrolment: &Enrolment,
        kubernetes: &KubernetesEndpoint,
        identity: &Identity,
    ) -> Result<ApiServer, AskError> {
        if let Some(server) = &self.api_server {
            return Ok(server.clone());
        }
        let key = identity.key_pem();
        let server = ApiServer::new(kubernetes, &enrolment.machine, (&enrolment.certificate_pem, &key))?;
        self.api_server = Some(server.clone());
        Ok(server)
    }

    /// Sends a report, without facts that the reporter keeps.
    pub(super) async fn send<R: Reporter>(
        &mut self,
        reporter: &R,
        mut report: Report,
    ) -> Result<(), AskError> {
        let facts = report.facts.clone();
        if R::KEEPS_FACTS && facts == self.facts_taken {
            report.facts = None;
        }
        reporter.report(&report).await?;
        self.facts_taken = facts;
        Ok(())
    }
}
