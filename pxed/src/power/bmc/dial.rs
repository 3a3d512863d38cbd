//! Makes clients of real BMCs.
//!
//! Callers: `run` (which hands it to the supervisor); tests have their own.

use async_trait::async_trait;
use bedplate_api::machine::BmcSpec;
use bedplate_bmc::address::Reach;
use bedplate_bmc::{Bmc, BmcError, Credentials, Deadlines};

use crate::power::Dial;

/// Redfish and IPMI over the network.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetworkDial {
    /// Addresses at which BMCs may be.
    pub reach: Reach,
    /// Deadlines of requests to BMCs.
    pub deadlines: Deadlines,
}

#[async_trait]
impl Dial for NetworkDial {
    async fn dial(&self, bmc: &BmcSpec, credentials: Credentials) -> Result<Box<dyn Bmc>, BmcError> {
        bedplate_bmc::connect(bmc, credentials, &self.reach, self.deadlines).await
    }
}
