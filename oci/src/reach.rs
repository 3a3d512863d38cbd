//! Confines references whose authors must not reach every network of this program. Each address of such a reference, also after a redirect or
//! of a token place, is looked up and checked before this program connects to it.
//!
//! The caller decides which addresses are allowed. A proxy of the environment belongs to the operator and makes its own checks. Caller: `registry`.

use std::error::Error;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use thiserror::Error;

use crate::resolver::resolve;

/// Maximum number of redirects.
pub(crate) const MAX_REDIRECTS: usize = 5;

/// The addresses that a confined reference may lead to.
pub trait Reach: Debug + Send + Sync {
    /// Refuses an address.
    ///
    /// # Errors
    /// The reason that the address must not be reached.
    fn check(&self, ip: IpAddr) -> Result<(), String>;

    /// Resolves the addresses of a host name.
    fn lookup(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, String>> {
        Box::pin(async move { resolve(name).await.map_err(|error| error.to_string()) })
    }
}

/// A reference leads to a forbidden address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{host} has an address that the image reference may not lead to: {problem}")]
pub(crate) struct ForbiddenHost {
    host: String,
    problem: String,
}

/// Checks the host of a URL if it is a literal address: it is never looked up.
pub(crate) fn check_literal(reach: &dyn Reach, url: &Url) -> Result<(), ForbiddenHost> {
    let host = url.host_str().unwrap_or_default();
    match host.trim_start_matches('[').trim_end_matches(']').parse() {
        Ok(ip) => check(reach, host, ip),
        Err(_) => Ok(()),
    }
}

fn check(reach: &dyn Reach, host: &str, ip: IpAddr) -> Result<(), ForbiddenHost> {
    reach.check(ip).map_err(|problem| ForbiddenHost { host: host.to_owned(), problem })
}

/// Follows redirects to hosts that are not forbidden.
pub(crate) fn redirects(reach: Arc<dyn Reach>) -> reqwest::redirect::Policy {
    reqwest::redirect::Policy::custom(move |attempt| {
        if attempt.previous().len() > MAX_REDIRECTS {
            return attempt.error("too many redirects");
        }
        match check_literal(reach.as_ref(), attempt.url()) {
            Ok(()) => attempt.follow(),
            Err(forbidden) => attempt.error(forbidden),
        }
    })
}

/// Resolver of the HTTP client; the client connects to the checked addresses only.
#[derive(Debug)]
pub(crate) struct Confined(pub(crate) Arc<dyn Reach>);

impl Resolve for Confined {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, name) = (self.0.clone(), name.as_str().to_owned());
        Box::pin(async move {
            let found = reach.lookup(name.clone()).await?;
            for ip in &found {
                check(reach.as_ref(), &name, *ip)?;
            }
            // The client puts the URL's port into them.
            let addresses: Addrs = Box::new(found.into_iter().map(|ip| SocketAddr::new(ip, 0)));
            Ok(addresses)
        })
    }
}

/// Returns the forbidden host among the causes of an error.
pub(crate) fn forbidden<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ForbiddenHost> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(forbidden) = error.downcast_ref() {
            return Some(forbidden);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NoLoopback;

    impl Reach for NoLoopback {
        fn check(&self, ip: IpAddr) -> Result<(), String> {
            if ip.is_loopback() { Err("it is loopback".to_owned()) } else { Ok(()) }
        }

        fn lookup(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, String>> {
            Box::pin(async move {
                match name.as_str() {
                    "mixed.example" => Ok(vec![[192, 0, 2, 1].into(), [127, 0, 0, 1].into()]),
                    "good.example" => Ok(vec![[192, 0, 2, 1].into()]),
                    _ => Err("no such name".to_owned()),
                }
            })
        }
    }

    #[test]
    fn literal_addresses_are_checked_and_names_are_left_to_the_lookup() {
        for (url, allowed) in [
            ("https://127.0.0.1/v2/", false),
            ("https://[::1]:5000/v2/", false),
            ("https://192.0.2.1/v2/", true),
            ("https://localhost/v2/", true),
        ] {
            assert_eq!(check_literal(&NoLoopback, &url.parse().unwrap()).is_ok(), allowed, "{url}");
        }
    }

    #[tokio::test]
    async fn a_name_with_one_forbidden_address_is_refused() {
        let resolve = |name: &str| Confined(Arc::new(NoLoopback)).resolve(name.parse().unwrap());
        assert_eq!(resolve("good.example").await.unwrap().count(), 1);
        let error = resolve("mixed.example").await.err().unwrap();
        assert!(forbidden(error.as_ref()).unwrap().to_string().starts_with("mixed.example has an address"));
        let error = resolve("none.example").await.err().unwrap();
        assert_eq!((forbidden(error.as_ref()), error.to_string().as_str()), (None, "no such name"));
    }
}
