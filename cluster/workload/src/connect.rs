//! Makes the client of a workload cluster. It dials only addresses of the allowed networks, and it bounds connections and answers.
//!
//! The address is checked when it is dialed, so a name that resolves to another address later is checked again. Called by [`Connections`].
//!
//! [`Connections`]: crate::Connections

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Limited;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use kube::config::AuthInfo;
use kube::{Client, Config};
use thiserror::Error;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};

use crate::kubeconfig::{Credential, Kubeconfig, KubeconfigError};
use crate::networks::Networks;

/// Timeout of a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an unused connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of unused connections to a cluster.
const MAX_IDLE_CONNECTIONS: usize = 2;
/// Maximum size of an answer in bytes.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Reason why a workload cluster cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// The kubeconfig is not accepted.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// The address of the server is not in the allowed networks.
    #[error("server address {0} of the kubeconfig is not in the networks of --workload-networks")]
    Network(IpAddr),
    /// Certificates or keys of the kubeconfig do not fit.
    #[error("certificates or key of the kubeconfig cannot be used")]
    Tls,
}

/// Makes a client. Sends no request.
pub(crate) fn client(kubeconfig: &Kubeconfig, networks: &Arc<Networks>) -> Result<Client, ConnectError> {
    // An address is dialed without the resolver.
    if let Ok(address) = kubeconfig.host.parse::<IpAddr>()
        && !networks.allows(address)
    {
        return Err(ConnectError::Network(address));
    }
    let config = configuration(kubeconfig)?;
    let resolver = Allowed { resolver: GaiResolver::new(), networks: networks.clone() };
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    let connector = config.rustls_https_connector_with_connector(connector).map_err(|_| ConnectError::Tls)?;
    let sender: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .build(connector);
    let bounded = sender
        .map_err(BoxError::from)
        .map_response(|answer: http::Response<_>| answer.map(|body| Limited::new(body, MAX_ANSWER)));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(|_| ConnectError::Tls)?)
        .service(bounded);
    Ok(Client::new(service, "default"))
}

fn configuration(kubeconfig: &Kubeconfig) -> Result<Config, ConnectError> {
    let server = kubeconfig.server.parse().map_err(|_| KubeconfigError::Unusable("server"))?;
    let mut config = Config::new(server);
    config.root_cert = Some(kubeconfig.authority.clone());
    config.tls_server_name.clone_from(&kubeconfig.tls_server_name);
    config.auth_info = match kubeconfig.credential.clone() {
        Credential::Token(token) => AuthInfo { token: Some(token), ..AuthInfo::default() },
        Credential::Certificate(certificate, key) => AuthInfo {
            client_certificate_data: Some(certificate),
            client_key_data: Some(key),
            ..AuthInfo::default()
        },
    };
    Ok(config)
}

/// Resolver that yields only allowed addresses.
#[derive(Clone)]
struct Allowed {
    resolver: GaiResolver,
    networks: Arc<Networks>,
}

impl Service<Name> for Allowed {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.resolver.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (found, networks) = (self.resolver.call(name), self.networks.clone());
        Box::pin(async move {
            let allowed: Vec<SocketAddr> =
                found.await?.filter(|address| networks.allows(address.ip())).collect();
            if allowed.is_empty() {
                return Err(io::Error::other("no address of the name is in --workload-networks"));
            }
            Ok(allowed.into_iter())
        })
    }
}
