//! Metrics of the boot path: connections, HTTP requests, seeds, enrollment, images.

use std::fmt;
use std::sync::Arc;

use bedplate_process::counter::read;
use bedplate_process::family::{count, count_rows, gauge, gauge_rows};
use bedplate_process::listen;
use prometheus_client::encoding::DescriptorEncoder;

use crate::boot::Boots;
use crate::enroll;
use crate::http;
use crate::http::leased::Leases;
use crate::images::Images;

/// Counters of the boot path; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Connections of the plain listener.
    pub plain: Arc<listen::Counters>,
    /// Connections of agents.
    pub agents: Arc<listen::Counters>,
    /// Requests to the plain listener.
    pub requests: Arc<http::counters::Counters>,
    /// Certificates, reports and refusals of agents.
    pub enroll: Arc<enroll::counters::Counters>,
    /// Leases of the machines that boot, with the requests that were refused by them.
    pub leases: Leases,
}

/// Sources of the boot path's counters.
pub struct Source {
    /// The counters of its rooms.
    pub counters: Counters,
    /// The images.
    pub images: Images,
    /// The boots.
    pub boots: Boots,
}

impl Source {
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_connections(encoder)?;
        self.encode_requests(encoder)?;
        self.encode_agents(encoder)?;
        self.encode_images(encoder)
    }

    fn encode_connections(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let listeners = [("http", &self.counters.plain), ("https", &self.counters.agents)];
        let accepted = listeners.map(|(name, c)| (vec![("listener", name)], read(&c.accepted)));
        let help = "Connections accepted, including those refused immediately";
        count_rows(encoder, "bedplate_pxed_http_connections_accepted", help, accepted)?;
        let open = listeners.map(|(name, c)| (vec![("listener", name)], c.open.now()));
        gauge_rows(encoder, "bedplate_pxed_http_connections", "Open connections", open)?;
        let cut = listeners.into_iter().flat_map(|(name, c)| {
            c.cut.all().map(move |(why, n)| (vec![("listener", name), ("reason", why)], n))
        });
        let help = "Connections refused or cut off";
        count_rows(encoder, "bedplate_pxed_http_connections_refused", help, cut)?;
        let sent = listeners.map(|(name, c)| (vec![("listener", name)], read(&c.sent_bytes)));
        count_rows(
            encoder,
            "bedplate_pxed_http_sent_bytes",
            "Bytes handed to the kernel, including headers and TLS",
            sent,
        )
    }

    fn encode_requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let c = &self.counters.requests;
        let requests = c.requests().map(|(route, class, n)| (vec![("route", route), ("status", class)], n));
        count_rows(encoder, "bedplate_pxed_http_requests", "Requests to the plain listener", requests)?;
        let streams = vec![("sending", c.sending.now()), ("queued", c.queued.now())];
        gauge(
            encoder,
            "bedplate_pxed_http_streams",
            "Root images that are sent or queued",
            "state",
            streams,
        )?;
        let refused = vec![("", read(&c.streams_refused))];
        let help = "Root images refused because the boot receives one already";
        count(encoder, "bedplate_pxed_http_streams_refused", help, "", refused)?;
        let refused = vec![("", read(&self.counters.leases.refused))];
        let help =
            "Requests for a script or seed from an address that is not leased to the Machine of the boot";
        count(encoder, "bedplate_pxed_http_address_refused", help, "", refused)?;
        let seeds = c.seeds.all().collect();
        count(encoder, "bedplate_pxed_seeds", "Requests for the seed of a boot", "result", seeds)?;
        let open = u64::try_from(self.boots.open_now()).unwrap_or(u64::MAX);
        gauge(encoder, "bedplate_pxed_boots_open", "Boots whose URLs are valid", "", vec![("", open)])
    }

    fn encode_agents(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let c = &self.counters.enroll;
        let enrollments = c.enrollments.all().collect();
        count(encoder, "bedplate_pxed_enrollments", "Enrollment requests", "result", enrollments)?;
        let renewals = c.renewals.all().collect();
        count(encoder, "bedplate_pxed_renewals", "Certificate renewal requests", "result", renewals)?;
        let reports = c.reports.all().collect();
        count(encoder, "bedplate_pxed_agent_reports", "Reports of agents", "result", reports)?;
        let refusals = c.refusals.all().collect();
        count(
            encoder,
            "bedplate_pxed_agent_refusals",
            "Requests of agents that were refused",
            "reason",
            refusals,
        )
    }

    fn encode_images(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let c = self.images.counters();
        let fetches = c.fetches.all().collect();
        count(encoder, "bedplate_pxed_image_fetches", "Fetches of images", "result", fetches)?;
        let bytes = vec![("", read(&c.cached_bytes))];
        gauge(encoder, "bedplate_pxed_image_cache_bytes", "Size of the image cache", "", bytes)
    }
}
