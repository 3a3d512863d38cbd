//! Rate limits for one host: far more than an agent ever needs, and low enough that a compromised host cannot keep
//! the store, the signer or the cluster's API server busy for all others.
//!
//! Limits are per key of the host: an earlier key of its Machine uses nothing of the present one. Enrollments are
//! limited per boot of the token, because a client can create any number of keys. Called by `serve` before a body is
//! read, and by `service` for an enrollment after its token was verified.

use std::time::{Duration, Instant};

use bedplate_api::id::{Digest, MachineName};
use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_process::token_bucket::{Allowances, Rate};

use super::service::Refused;

/// Kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Asked {
    /// A first certificate.
    Enrollment,
    /// A further one.
    Renewal,
    /// To take a report: a heartbeat, twice a minute.
    Report,
    /// Interval between reports of the node's state: 5 s.
    Node,
    /// To take how an operation goes: what people have asked of the host.
    Operation,
    /// Request that changes nothing in pxed.
    Look,
}

/// Remaining allowance of each host, by its key or its boot.
pub(crate) type Paces = Allowances<(MachineName, Digest, Asked)>;

impl Asked {
    /// Returns the kind of request of a path with a client certificate.
    pub(super) fn by(path: &str) -> Self {
        match path {
            "/v1/renew" => Self::Renewal,
            "/v1/report" => Self::Report,
            "/v1/node" => Self::Node,
            "/v1/operation" => Self::Operation,
            _ => Self::Look,
        }
    }

    /// Returns the rate. The refill time of an enrollment or renewal is the delay after which a waiting agent asks again.
    const fn rate(self) -> Rate {
        let (burst, each) = match self {
            Self::Enrollment => (30, 2000),
            Self::Renewal => (20, 10_000),
            Self::Report | Self::Node => (30, 1000),
            Self::Operation => (120, 250),
            // One for each Secret of a version, and one for whatever is new.
            Self::Look => (600, 50),
        };
        Rate { burst, each: Duration::from_millis(each) }
    }
}

/// Lets a host ask once more.
///
/// # Errors
/// The refusal, with how long to wait.
pub(super) fn admit(
    paces: &Paces,
    (machine, host): (&MachineName, &Digest),
    asked: Asked,
) -> Result<(), Refused> {
    let taken = paces.take((machine.clone(), *host, asked), asked.rate(), Instant::now());
    taken.map_err(|wait| {
        tracing::debug!(%machine, ?asked, "rate limit of a host exceeded");
        Refused {
            reason: AgentRefusal::RateLimited,
            message: format!("Machine {machine} sends too many requests; retry in {} s", seconds(wait)),
            after: Some(wait),
        }
    })
}

/// Whole seconds, at least one, for `Retry-After`.
pub(super) fn seconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}
