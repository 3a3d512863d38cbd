//! Creates a [`Bmc`] from the fields of a Machine.
//!
//! Asks the name server, once; sends nothing to the BMC. Caller: pxed.

use bedplate_api::machine::{BmcProtocol, BmcSpec};

use crate::address::{Address, Reach};
use crate::error::BmcError;
use crate::lanplus::{Lanplus, Settings};
use crate::model::{Bmc, Credentials, Deadlines};
use crate::redfish::Redfish;
use crate::resolve::resolve;
use crate::tls::Trust;

/// A client for this BMC. Its first call logs in.
pub async fn connect(
    spec: &BmcSpec,
    credentials: Credentials,
    reach: &Reach,
    deadlines: Deadlines,
) -> Result<Box<dyn Bmc>, BmcError> {
    let address = Address::parse(&spec.address, spec.protocol)?;
    let checked = resolve(&address, reach, deadlines.connect).await?;
    Ok(match spec.protocol {
        BmcProtocol::Redfish => {
            let trust = Trust::of(spec.tls());
            let system = spec.system_id().map(str::to_owned);
            Box::new(Redfish::new(&checked, &trust, credentials, system, deadlines)?)
        }
        BmcProtocol::Ipmi => {
            let settings = Settings::of(spec.ipmi.as_ref())?;
            Box::new(Lanplus::new(&checked, credentials, settings, deadlines))
        }
    })
}
