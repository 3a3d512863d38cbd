//! The acts of the agent's loop: enrol, renew, report. Part of `run`, which decides when, and what follows a failure.

use std::time::Duration;

use bedplate_api::wire::{EnrolRequest, EnrolResponse, RenewRequest, Report};
use jiff::Timestamp;

use super::super::client::PxedClient;
use super::super::host::{blocking, own_addresses};
use super::super::identity::Identity;
use super::super::outcome::{ActError, Outcome, pending};
use super::super::plan::spread;
use super::super::state::Enrolment;
use super::{Agent, VERSION};
use crate::cluster::Plane;
use crate::hardware::read_text;

impl Agent {
    /// Trades the token of the seed for a certificate.
    pub(super) async fn enrol(&mut self) -> Result<Outcome, ActError> {
        let Some(seed) = self.seed.clone() else { return Ok(Outcome::Done) };
        let Some(token) = seed.token.clone() else { return Ok(Outcome::Done) };
        self.standing.machine = Some(seed.machine.clone());
        self.standing.site = Some(seed.site.clone());
        self.say("enrolling", None);
        let (state, machine) = (self.places.state.clone(), seed.machine.clone());
        let identity = blocking(move || Identity::open(&state, &machine)).await?;
        let facts = self.observe_facts().await;
        let client = PxedClient::new(&seed.endpoints, &seed.ca_pem, None)?;
        let request = EnrolRequest {
            boot_id: seed.boot_id,
            token,
            csr_pem: identity.csr_pem().to_owned(),
            agent_version: VERSION.to_owned(),
            facts: facts.clone(),
            challenge_answer: None,
        };
        match client.enrol(&request).await? {
            EnrolResponse::Enrolled { certificate_pem, kubernetes, heartbeat_seconds } => {
                let validity = identity.check(&certificate_pem)?;
                let enrolment = Enrolment {
                    machine: seed.machine,
                    site: seed.site,
                    boot_id: seed.boot_id,
                    endpoints: seed.endpoints,
                    ca_pem: seed.ca_pem,
                    certificate_pem,
                    not_before: validity.not_before,
                    not_after: validity.not_after,
                    heartbeat_seconds,
                    kubernetes,
                    machine_uid: None,
                };
                self.places.write_enrolment(&enrolment)?;
                self.adopt(Some(enrolment));
                self.ways.facts_taken = Some(facts);
                Ok(Outcome::Done)
            }
            other => pending(other),
        }
    }

    /// Gets a new certificate by the one that is there.
    pub(super) async fn renew(&mut self) -> Result<Outcome, ActError> {
        let Some(enrolment) = self.enrolment.clone() else { return Ok(Outcome::Done) };
        self.say("renewing the certificate", None);
        let (state, machine) = (self.places.state.clone(), enrolment.machine.clone());
        let identity = blocking(move || Identity::open(&state, &machine)).await?;
        let client = self.ways.pxed(&enrolment, &identity)?;
        self.ways.expect(true);
        let renewed = client.renew(&RenewRequest { csr_pem: identity.csr_pem().to_owned() }).await;
        // Where it worked, the cluster is asked by the new one in a moment.
        self.ways.expect(matches!(&renewed, Ok(EnrolResponse::Enrolled { .. })));
        match renewed? {
            EnrolResponse::Enrolled { certificate_pem, kubernetes, heartbeat_seconds } => {
                let validity = identity.check(&certificate_pem)?;
                let (not_before, not_after) = (validity.not_before, validity.not_after);
                let kubernetes = kubernetes.or(enrolment.kubernetes);
                let renewed = Enrolment {
                    certificate_pem,
                    not_before,
                    not_after,
                    heartbeat_seconds,
                    kubernetes,
                    ..enrolment
                };
                self.places.write_enrolment(&renewed)?;
                self.adopt(Some(renewed));
                Ok(Outcome::Done)
            }
            other => pending(other),
        }
    }

    /// Says what the host is.
    pub(super) async fn report(&mut self) -> Result<Outcome, ActError> {
        let Some(enrolment) = self.enrolment.clone() else { return Ok(Outcome::Done) };
        let (state, machine) = (self.places.state.clone(), enrolment.machine.clone());
        let identity = blocking(move || Identity::open(&state, &machine)).await?;
        let facts = self.observe_facts().await;
        let report = Report {
            agent_version: VERSION.to_owned(),
            kernel_boot_id: read_text(&self.places.root.join("proc/sys/kernel/random/boot_id"))
                .unwrap_or_default(),
            boot_id: Some(enrolment.boot_id),
            facts: Some(facts),
            addresses: own_addresses(),
            state_disk: self.standing.state_disk.clone(),
        };
        match &enrolment.kubernetes {
            // Nothing that pxed itself writes comes from reports: with a cluster it needs none.
            Some(kubernetes) => {
                self.standing.reports_to = Some(kubernetes.server.clone());
                self.ways.cluster(&enrolment, kubernetes, &identity).await?.report(&report).await?;
            }
            None => {
                self.standing.reports_to = Some("pxed".to_owned());
                let client = self.ways.pxed(&enrolment, &identity)?;
                self.ways.report_to_pxed(&client, report).await?;
            }
        }
        self.last_report = Some(Timestamp::now());
        self.standing.last_report = self.last_report;
        self.heartbeat =
            spread(Duration::from_secs(u64::from(enrolment.heartbeat_seconds.max(5))), rand::random());
        Ok(Outcome::Done)
    }
}
