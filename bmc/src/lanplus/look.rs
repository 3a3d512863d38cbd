//! Probe of a BMC over IPMI: the channel's capabilities without an account, and the account's rights with one.
//!
//! Caller: `probe`.

use bedplate_ipmi::client::ClientError;
use bedplate_ipmi::command::channel::ChannelCapabilities;
use bedplate_ipmi::crypto::Suite;
use bedplate_ipmi::probe;
use bedplate_ipmi::session::Privilege;

use super::{Lanplus, Settings, fault, link};
use crate::error::BmcError;
use crate::model::{Bmc as _, Credentials, Deadlines};
use crate::probe::IpmiProbe;
use crate::resolve::Checked;

/// Privileges from the highest, as `bmc.ipmi.privilege` names them.
const PRIVILEGES: [(Privilege, &str); 3] = [
    (Privilege::Administrator, "Administrator"),
    (Privilege::Operator, "Operator"),
    (Privilege::User, "User"),
];
/// Power controls that every chassis has (IPMI 2.0, table 28-4).
const CONTROLS: [&str; 5] = ["on", "soft shutdown (ACPI)", "off", "cycle", "hard reset"];

/// Looks at a BMC, and ends its session.
pub(crate) async fn look(
    checked: &Checked,
    credentials: Option<Credentials>,
    deadlines: Deadlines,
) -> Result<IpmiProbe, BmcError> {
    let after = deadlines.call;
    let open = channel(checked, deadlines);
    let mut found = tokio::time::timeout(after, open).await.unwrap_or_else(|_| {
        let what = "reading its capabilities".to_owned();
        Err(BmcError::TimedOut { address: checked.address().to_string(), what, after, sent: false })
    })?;
    let Some(credentials) = credentials else { return Ok(found) };
    for (privilege, name) in PRIVILEGES {
        let settings = Settings { suite: None, privilege };
        let mut bmc = Lanplus::new(checked, credentials.clone(), settings, deadlines);
        let power = bmc.power_state().await;
        // A privilege that the account does not have proves nothing about its password.
        if privilege != Privilege::User && matches!(power, Err(BmcError::Refused { .. })) {
            continue;
        }
        let identity = bmc.identity().await;
        found.suite = bmc.link.suite().map(Suite::number);
        found.quirks = bmc.quirks();
        bmc.close().await;
        (found.power, found.identity) = (Some(power?), identity?);
        found.privilege = Some(name);
        break;
    }
    found.authenticated = true;
    Ok(found)
}

/// Reads the public capabilities of the channel, from the first address that answers.
async fn channel(checked: &Checked, deadlines: Deadlines) -> Result<IpmiProbe, BmcError> {
    let retry = link::retry(deadlines);
    let what = "reading its capabilities";
    let mut failed = None;
    for socket in checked.sockets() {
        match probe::probe(*socket, &retry).await {
            Ok(channel) => {
                let suites = probe::suites(*socket, &retry).await;
                return Ok(of_channel(&channel, suites));
            }
            Err(error) => {
                failed = Some(fault::of_client(&error, &checked.address().to_string(), what, false));
            }
        }
    }
    Err(failed.unwrap_or_else(|| BmcError::Unreachable {
        address: checked.address().to_string(),
        problem: "its name has no address".to_owned(),
        sent: false,
    }))
}

fn of_channel(channel: &ChannelCapabilities, suites: Result<Vec<u8>, ClientError>) -> IpmiProbe {
    IpmiProbe {
        ipmi_2_0: channel.ipmi_2_0,
        ipmi_1_5: channel.ipmi_1_5,
        has_key: channel.has_key,
        anonymous: channel.anonymous,
        suites: suites.ok().filter(|suites| !suites.is_empty()),
        power_controls: CONTROLS.to_vec(),
        ..IpmiProbe::default()
    }
}
