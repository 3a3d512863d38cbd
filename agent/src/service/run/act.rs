//! The acts of the agent's loop: enroll, renew, report. Part of `run`, which decides when, and what follows a failure.

use std::time::Duration;

use bedplate_api::machine::Hardware;
use bedplate_api::wire::{EnrollRequest, EnrollResponse, MAX_ENROLL_BYTES, RenewRequest, Report};
use bedplate_process::backoff::spread;
use bedplate_process::exit::chain;
use jiff::Timestamp;
use zeroize::Zeroizing;

use super::{Agent, VERSION};
use crate::bus::Bus;
use crate::hardware::read_text;
use crate::https::pxed::PxedClient;
use crate::plane::Decider as _;
use crate::service::host::{blocking, own_addresses};
use crate::service::identity::Identity;
use crate::service::outcome::{ActError, Outcome, pending};
use crate::service::state::Enrollment;

impl Agent {
    /// Trades the token of the seed for a certificate.
    pub(super) async fn enroll(&mut self) -> Result<Outcome, ActError> {
        let Some(seed) = self.seed.clone() else { return Ok(Outcome::Done) };
        let Some(token) = seed.token.clone() else { return Ok(Outcome::Done) };
        self.standing.machine = Some(seed.machine.clone());
        self.standing.site = Some(seed.site.clone());
        self.say("enrolling", None);
        let (state, machine) = (self.places.state.clone(), seed.machine.clone());
        let identity = blocking(move || Identity::open_for_enrollment(&state, &machine)).await?;
        let facts = self.observe_facts().await;
        let client = PxedClient::new(&seed.endpoints, &seed.ca_pem, None)?;
        let request = bounded(EnrollRequest {
            boot_id: seed.boot_id,
            token,
            csr_pem: identity.csr_pem().to_owned(),
            agent_version: VERSION.to_owned(),
            facts,
            challenge_answer: None,
        });
        match client.enroll(&request).await? {
            EnrollResponse::Enrolled { certificate_pem, kubernetes, heartbeat_seconds } => {
                let validity = identity.check(&certificate_pem)?;
                let enrollment = Enrollment {
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
                self.places.write_enrollment(&enrollment)?;
                Identity::adopt_next(&self.places.state, &enrollment.machine, &enrollment.certificate_pem)?;
                self.adopt(Some(enrollment));
                self.ways.facts_taken = Some(request.facts);
                Ok(Outcome::Done)
            }
            other => pending(other),
        }
    }

    /// Gets a new certificate by the one that is there.
    pub(super) async fn renew(&mut self) -> Result<Outcome, ActError> {
        let Some(enrollment) = self.enrollment.clone() else { return Ok(Outcome::Done) };
        self.say("renewing the certificate", None);
        let (state, machine) = (self.places.state.clone(), enrollment.machine.clone());
        let identity = blocking(move || Identity::open(&state, &machine)).await?;
        let client = self.ways.pxed(&enrollment, &identity)?;
        self.ways.expect(true);
        let renewed = client.renew(&RenewRequest { csr_pem: identity.csr_pem().to_owned() }).await;
        // After a renewal that succeeded, the cluster is asked with the new certificate in a moment.
        self.ways.expect(matches!(&renewed, Ok(EnrollResponse::Enrolled { .. })));
        match renewed? {
            EnrollResponse::Enrolled { certificate_pem, kubernetes, heartbeat_seconds } => {
                let validity = identity.check(&certificate_pem)?;
                let (not_before, not_after) = (validity.not_before, validity.not_after);
                let kubernetes = kubernetes.or(enrollment.kubernetes);
                let renewed = Enrollment {
                    certificate_pem,
                    not_before,
                    not_after,
                    heartbeat_seconds,
                    kubernetes,
                    ..enrollment
                };
                self.places.write_enrollment(&renewed)?;
                self.adopt(Some(renewed));
                Ok(Outcome::Done)
            }
            other => pending(other),
        }
    }

    /// Says what the host is.
    pub(super) async fn report(&mut self) -> Result<Outcome, ActError> {
        let Some(enrollment) = self.enrollment.clone() else { return Ok(Outcome::Done) };
        self.send_report(&enrollment, false).await?;
        self.last_report = Some(Timestamp::now());
        self.standing.last_report = self.last_report;
        self.heartbeat =
            spread(Duration::from_secs(u64::from(enrollment.heartbeat_seconds.max(5))), rand::random());
        Ok(Outcome::Done)
    }

    /// Announces that the host goes down or reboots, if it does: another key need not wait until this one is silent. A restart of the agent
    /// alone is not announced.
    pub(super) async fn announce_end(&mut self) {
        let Some(enrollment) = self.enrollment.clone().filter(|_| self.last_report.is_some()) else { return };
        match Bus::at(&self.places.root).manager().is_stopping().await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                return tracing::debug!(error = chain(&error), "failed to read the state of systemd");
            }
        }
        match self.send_report(&enrollment, true).await {
            Ok(()) => tracing::info!("shutdown of the host announced"),
            Err(error) => tracing::warn!(
                error = chain(&error),
                "failed to announce the shutdown of the \
                 host"
            ),
        }
    }

    async fn send_report(&mut self, enrollment: &Enrollment, going_down: bool) -> Result<(), ActError> {
        let (state, machine) = (self.places.state.clone(), enrollment.machine.clone());
        let identity = blocking(move || Identity::open(&state, &machine)).await?;
        let facts = self.observe_facts().await;
        let report = Report {
            agent_version: VERSION.to_owned(),
            kernel_boot_id: read_text(&self.places.root.join("proc/sys/kernel/random/boot_id"))
                .unwrap_or_default(),
            boot_id: Some(enrollment.boot_id),
            facts: Some(facts),
            addresses: own_addresses(&self.places.root),
            state_disk: self.standing.state_disk.clone(),
            going_down,
        };
        match &enrollment.kubernetes {
            // Nothing that pxed itself writes comes from reports: with a cluster it needs none.
            Some(kubernetes) => {
                self.standing.reports_to = Some(kubernetes.server.clone());
                self.ways.cluster(enrollment, kubernetes, &identity).await?.report(&report).await?;
            }
            None => {
                self.standing.reports_to = Some("pxed".to_owned());
                let client = self.ways.pxed(enrollment, &identity)?;
                self.ways.report_to_pxed(&client, report).await?;
            }
        }
        Ok(())
    }
}

/// Returns the request of a host, without its facts if these would make it too large. The facts follow with the first report.
fn bounded(mut request: EnrollRequest) -> EnrollRequest {
    // Plain data with text keys: it always has a JSON form.
    let bytes = serde_json::to_vec(&request).map_or(0, |bytes| Zeroizing::new(bytes).len());
    if bytes > MAX_ENROLL_BYTES {
        request.facts = Hardware::default();
    }
    request
}

#[cfg(test)]
mod tests {
    use bedplate_api::id::BootId;
    use bedplate_api::machine::Disk;
    use bedplate_api::wire::SecretText;

    use super::*;

    #[test]
    fn facts_of_hundreds_of_disks_do_not_make_an_enrollment_too_large() {
        let disk = Disk { by_id: vec!["x".repeat(100); 4], ..Disk::default() };
        for (disks, fits) in [(10, true), (500, false)] {
            let request = bounded(EnrollRequest {
                boot_id: BootId::from_random([1; 16]),
                token: SecretText("t".to_owned()),
                csr_pem: "PEM".to_owned(),
                agent_version: VERSION.to_owned(),
                facts: Hardware { disks: vec![disk.clone(); disks], ..Hardware::default() },
                challenge_answer: None,
            });
            assert_eq!(request.facts.disks.len() == disks, fits);
            assert!(serde_json::to_vec(&request).unwrap().len() <= MAX_ENROLL_BYTES);
        }
    }
}
