//! Enrollment tokens for hosts that pxed does not boot (every provider but `pxe`): a seed without a boot, valid once and for an hour.
//!
//! Asked for through the admin socket, whose users may switch power as well. A Machine that netboots gets its seed by that.

use bedplate_api::id::MachineName;
use bedplate_api::id::SiteName;
use bedplate_api::wire::Seed;
use jiff::Timestamp;
use thiserror::Error;

use crate::boot::issued_seeds::TakeSeedError;
use crate::boot::{Boots, Owner};
use crate::machines::Machines;
use crate::netboot::dhcp::Urls;

/// Error of issuing a token.
#[derive(Debug, Error)]
pub enum IssueTokenError {
    /// No such Machine.
    #[error("this pxed does not know a Machine {0:?} of this site")]
    NoMachine(String),
    /// The host gets its token when it boots.
    #[error("Machine {0} is of provider pxe; its host gets its token when it boots from the network")]
    Netbooted(MachineName),
    /// The token cannot be stored.
    #[error("the token cannot be created")]
    Seed(#[from] TakeSeedError),
}

/// Makes tokens.
#[derive(Clone)]
pub struct Tokens {
    /// The index of Machines.
    pub machines: Machines,
    /// Store of tokens.
    pub boots: Boots,
    /// URLs of pxed for agents.
    pub urls: Urls,
    /// Our site.
    pub site: SiteName,
    /// Our authority.
    pub ca_pem: String,
}

impl Tokens {
    /// Creates a token for the Machine of this name. Endpoints are set only if the configuration names the addresses of pxed.
    ///
    /// # Errors
    /// [`IssueTokenError`].
    pub async fn issue(&self, name: &str, now: Timestamp) -> Result<Seed, IssueTokenError> {
        let known = name.parse().ok().and_then(|name| self.machines.load().by_name(&name).cloned());
        let known = known.ok_or_else(|| IssueTokenError::NoMachine(name.to_owned()))?;
        if known.is_netbooted() {
            return Err(IssueTokenError::Netbooted(known.name.clone()));
        }
        let owner = Owner::Machine { name: known.name.clone(), uid: known.uid.clone() };
        let (boot_id, token) = self.boots.seeds().issue(owner, now).await?;
        tracing::info!(machine = %known.name, "token for a manual enrollment issued");
        let advertise = self.urls.advertise.iter();
        Ok(Seed {
            machine: known.name.clone(),
            site: self.site.clone(),
            boot_id,
            token: Some(token),
            ca_pem: self.ca_pem.clone(),
            endpoints: advertise.map(|host| format!("https://{host}")).collect(),
            rootfs: None,
            state_disk: None,
        })
    }
}
