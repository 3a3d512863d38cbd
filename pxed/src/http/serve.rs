//! The plain listener: hands each request to `route`. Accepting and limits are `listen`'s.

use std::sync::Arc;

use bedplate_process::listen::{Listening, converse, listen};
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::route::{self, Peer, Routes};

/// Serves until `shutdown`; then connections end after the answer that they are sending, and this returns when all have.
pub async fn serve(listener: TcpListener, routes: Arc<Routes>, how: Listening, shutdown: CancellationToken) {
    let limits = how.limits;
    listen(listener, how, shutdown.clone(), |accepted| {
        let peer = Peer {
            address: accepted.peer.remote.ip().to_canonical(),
            completions: accepted.completions.clone(),
        };
        let routes = routes.clone();
        let service = service_fn(move |request| {
            let (routes, peer) = (routes.clone(), peer.clone());
            async move { Ok::<_, std::convert::Infallible>(route::answer(&routes, &peer, request).await) }
        });
        converse(accepted.stream, service, (limits, accepted.seat), accepted.peer, shutdown.clone())
    })
    .await;
}
