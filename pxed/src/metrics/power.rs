//! Metrics of power: operations, calls of BMCs, breakers, the queue, the leader.

use std::fmt;
use std::sync::Arc;

use bedplate_api::machine::BmcProtocol;
use bedplate_process::counter::read;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::power::Counters;
use bedplate_process::family::{count, count_rows, describe, gauge};

/// Sources of power's counters.
pub struct Source {
    /// Counters of power control.
    pub counters: Arc<Counters>,
    /// Function that returns true if this pxed leads its site now.
    pub leads: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Source {
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let c = &self.counters;
        let operations = c.operations();
        let operations =
            operations.map(|(name, result, n)| (vec![("operation", name), ("result", result)], n));
        let help = "Power operations that finished";
        count_rows(encoder, "bedplate_pxed_power_operations", help, operations)?;
        self.encode_calls(encoder)?;
        let help = "BMC requests that failed";
        count(encoder, "bedplate_pxed_bmc_failures", help, "reason", c.failures.all().collect())?;
        let help = "BMCs by state of their circuit breaker";
        gauge(encoder, "bedplate_pxed_bmc_breakers", help, "state", c.breakers().collect())?;
        let help = "Power operations that are not finished";
        gauge(encoder, "bedplate_pxed_power_queue_depth", help, "", vec![("", read(&c.queue))])?;
        let leads = u64::from((self.leads)());
        gauge(
            encoder,
            "bedplate_pxed_leader",
            "1 if this pxed is the power leader of its site, otherwise 0",
            "",
            vec![("", leads)],
        )
    }

    fn encode_calls(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("bedplate_pxed_bmc_call_duration_seconds", "Duration of BMC calls");
        let mut family = describe(encoder, name, help, MetricType::Histogram)?;
        for (word, protocol) in [("redfish", BmcProtocol::Redfish), ("ipmi", BmcProtocol::Ipmi)] {
            let now = self.counters.calls(protocol).now();
            let labels = [("protocol", word)];
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<[(&str, &str); 0]>(now.sum, now.count, &now.buckets, None)?;
        }
        Ok(())
    }
}
