//! Counts the root images that are on their way to each boot, so that one client cannot take the whole queue.
//!
//! Not the queue itself (`Routes::queue`). Called by `content`; a [`Stream`] gives its place back when its body is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_api::id::BootId;
use bedplate_process::lock::Lock;

/// Maximum number of concurrent root image transfers to one boot: the current one, and one that broke off a moment
/// ago unnoticed by this side.
pub(crate) const PER_BOOT: usize = 2;

/// The places taken.
#[derive(Debug, Default)]
pub struct Streams {
    by_boot: Lock<HashMap<BootId, usize>>,
}

/// A place for one root image.
#[derive(Debug)]
pub struct Stream {
    streams: Arc<Streams>,
    boot: BootId,
}

impl Streams {
    /// Takes a place, if the boot has a free one.
    pub fn take(self: &Arc<Self>, boot: BootId) -> Option<Stream> {
        let mut by_boot = self.by_boot.lock();
        let taken = by_boot.get(&boot).copied().unwrap_or_default();
        if taken >= PER_BOOT {
            return None;
        }
        by_boot.insert(boot, taken + 1);
        Some(Stream { streams: self.clone(), boot })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut by_boot = self.streams.by_boot.lock();
        if let Some(taken) = by_boot.get_mut(&self.boot) {
            *taken = taken.saturating_sub(1);
            if *taken == 0 {
                by_boot.remove(&self.boot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::{Method, Request, StatusCode, body::Bytes};

    use super::*;
    use crate::http::route::{Peer, answer};
    use crate::http::tests::Rig;

    #[tokio::test]
    async fn one_boot_cannot_take_every_root_image_stream() {
        let rig = Rig::new().with_images().await;
        let (id, other) = (rig.open(1), rig.open(2));
        let peer = Peer { address: [127, 0, 0, 1].into(), completions: Arc::default() };
        let get = async |method: Method, id: BootId| {
            let request = Request::builder().method(method).uri(format!("/b/{id}/rootfs"));
            let request = request.header("host", "pxed");
            answer(&rig.routes, &peer, request.body(Full::new(Bytes::new())).unwrap()).await
        };
        let first = get(Method::GET, id).await;
        let second = get(Method::GET, id).await;
        assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
        let third = get(Method::GET, id).await;
        assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
        let refusal = http_body_util::BodyExt::collect(third.into_body()).await.unwrap().to_bytes();
        let refusal: bedplate_api::wire::Refusal = serde_json::from_slice(&refusal).unwrap();
        assert_eq!(refusal.reason, "TooManyStreams");
        assert_eq!(get(Method::HEAD, id).await.status(), StatusCode::OK, "HEAD sends no image");
        assert_eq!(get(Method::GET, other).await.status(), StatusCode::OK, "other boots go on");
        drop(first);
        assert_eq!(get(Method::GET, id).await.status(), StatusCode::OK, "a place that was given back");
        drop(second);
        assert!(rig.routes.streams.by_boot.lock().is_empty());
    }
}
