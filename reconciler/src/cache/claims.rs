//! Claims to addresses by the API server and the Services. They are read live and count for some seconds. Updated by `csr::holders`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

/// Time for which a value counts after it was read.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Another object that claims an address or a name of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The address or the name.
    pub(crate) has: String,
    /// The object, such as `Machine b`.
    pub(crate) by: String,
    /// Weight of the claim.
    pub(crate) claim: Claim,
}

/// Weight of a claim to an address or a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Claim of the cluster itself. The address does not belong to the kubelet.
    Certain,
    /// Claim of an administrator, like those of the Machine. A user decides.
    Defined,
    /// Claim of a kubelet, an agent or the author of a Service, which may be wrong or forged. The definition of the Machine outweighs it.
    Said,
}

/// Addresses that the API server and the Services have.
#[derive(Debug, Default)]
pub struct Claims {
    /// Endpoints of the API server.
    pub(crate) endpoints: Vec<String>,
    /// Servers of kubeadm's public kubeconfig.
    pub(crate) servers: Vec<String>,
    /// All addresses of all Services.
    pub(crate) services: Vec<Holder>,
}

/// Claims of the last read. Locked during a read, so that concurrent requests read them once.
pub(crate) type RecentClaims = Mutex<Recent<Claims>>;

/// Value of the last read, with the time at which the read started.
#[derive(Debug, Default)]
pub struct Recent<T>(Option<(Instant, Arc<T>)>);

impl<T> Recent<T> {
    /// Returns the value, unless it is too old.
    pub fn get(&self, now: Instant) -> Option<Arc<T>> {
        let (read, value) = self.0.as_ref()?;
        (now.saturating_duration_since(*read) < MAX_AGE).then(|| value.clone())
    }

    /// Replaces the value. `started`: the time at which its read started.
    pub fn put(&mut self, started: Instant, value: T) -> Arc<T> {
        let value = Arc::new(value);
        self.0 = Some((started, value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_counts_for_ten_seconds_from_the_start_of_its_reading() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        assert_eq!(recent.get(start), None);
        recent.put(start, 1);
        let at = |recent: &Recent<i32>, millis: u64| {
            recent.get(start + Duration::from_millis(millis)).as_deref().copied()
        };
        assert_eq!([at(&recent, 0), at(&recent, 9_999), at(&recent, 10_000)], [Some(1), Some(1), None]);
        recent.put(start + Duration::from_secs(10), 2);
        assert_eq!([at(&recent, 10_000), at(&recent, 20_000)], [Some(2), None]);
    }
}
