//! Makes the client configuration of a cluster by a kubeconfig, with the proxy that kubectl would use.
//!
//! The proxy is `proxy-url` of the kubeconfig, otherwise that of the environment (`proxy`). kube 5.0 has its own idea of `NO_PROXY` and
//! rejects a kubeconfig over an entry that it cannot parse. Called by `bedplate`, pxed and the controller.

use kube::Config;
use kube::config::{
    AuthInfo, Cluster, Context, ExecAuthCluster, KubeConfigOptions, Kubeconfig, KubeconfigError,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use thiserror::Error;

use crate::BoxError;
use crate::proxy::{Environment, Server, of_environment};

/// Reason why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigureError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// The proxy of the environment cannot be used.
    #[error("{variable} is not the URL of a proxy")]
    Variable {
        /// Name of the variable.
        variable: &'static str,
        /// The cause.
        source: BoxError,
    },
}

/// Returns the configuration for a context of a kubeconfig, or for its current one.
///
/// # Errors
/// [`ConfigureError`]
pub async fn configure(file: Kubeconfig, context: Option<&str>) -> Result<Config, ConfigureError> {
    let variable = |names: [&str; 2]| {
        names.into_iter().filter_map(|name| std::env::var(name).ok()).find(|value| !value.is_empty())
    };
    let environment = Environment {
        http_proxy: variable(["HTTP_PROXY", "http_proxy"]),
        https_proxy: variable(["HTTPS_PROXY", "https_proxy"]),
        no_proxy: variable(["NO_PROXY", "no_proxy"]),
    };
    configure_in(&environment, file, context).await
}

async fn configure_in(
    environment: &Environment,
    file: Kubeconfig,
    context: Option<&str>,
) -> Result<Config, ConfigureError> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = match Config::from_custom_kubeconfig(file.clone(), &options).await {
        Err(KubeconfigError::ParseNoProxy(_) | KubeconfigError::ParseProxyUrl(_)) => {
            assemble(&file, context)?
        }
        other => other?,
    };
    let named = selected(&file, context).ok().and_then(|selected| selected.cluster.proxy_url.as_deref());
    config.proxy_url = match named.filter(|named| !named.is_empty()) {
        Some(named) => Some(named.parse().map_err(KubeconfigError::ParseProxyUrl)?),
        None => {
            let url = &config.cluster_url;
            let is_tls = url.scheme_str() != Some("http");
            let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
            let server = Server { is_tls, host: url.host().unwrap_or_default(), port };
            let proxy = of_environment(environment, server).map(|proxy| proxy.parse());
            let invalid =
                |error| ConfigureError::Variable { variable: server.variable(), source: Box::new(error) };
            proxy.transpose().map_err(invalid)?
        }
    };
    Ok(config)
}

/// Parts of a kubeconfig that a context selects.
struct Selected<'a> {
    context: &'a Context,
    cluster: &'a Cluster,
    user: Option<&'a AuthInfo>,
}

fn selected<'a>(file: &'a Kubeconfig, context: Option<&str>) -> Result<Selected<'a>, KubeconfigError> {
    let name = context.or(file.current_context.as_deref()).ok_or(KubeconfigError::CurrentContextNotSet)?;
    let context = file.contexts.iter().find(|named| named.name == name);
    let context = context.and_then(|named| named.context.as_ref());
    let context = context.ok_or_else(|| KubeconfigError::LoadContext(name.to_owned()))?;
    let cluster = file.clusters.iter().find(|named| named.name == context.cluster);
    let cluster = cluster.and_then(|named| named.cluster.as_ref());
    let cluster = cluster.ok_or_else(|| KubeconfigError::LoadClusterOfContext(context.cluster.clone()))?;
    let user = file.auth_infos.iter().find(|named| Some(&named.name) == context.user.as_ref());
    Ok(Selected { context, cluster, user: user.and_then(|named| named.auth_info.as_ref()) })
}

/// Makes the configuration without a proxy. kube reads the proxy last, so that it has accepted all else of this file.
fn assemble(file: &Kubeconfig, context: Option<&str>) -> Result<Config, KubeconfigError> {
    let Selected { context, cluster, user } = selected(file, context)?;
    let known = ExecAuthCluster::try_from(cluster)?;
    let url = cluster.server.as_deref().ok_or(KubeconfigError::MissingClusterUrl)?;
    let mut config = Config::new(url.parse().map_err(KubeconfigError::ParseClusterUrl)?);
    config.default_namespace = context.namespace.clone().unwrap_or_else(|| "default".to_owned());
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or(false);
    config.disable_compression = cluster.disable_compression.unwrap_or(false);
    config.tls_server_name.clone_from(&cluster.tls_server_name);
    config.root_cert = known.certificate_authority_data.as_deref().map(|pem| {
        let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
        certificates.map(|certificate| certificate.to_vec()).collect()
    });
    config.auth_info = user.cloned().unwrap_or_default();
    if let Some(exec) = config.auth_info.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        exec.cluster = Some(known);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::Client;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// Self-signed authority; no server of these tests has a certificate by it.
    const AUTHORITY: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJkRENDQVJ1Z0F3SUJBZ0lVWllTOFhsRzdTcWVDZ3V5bjJGTGpReVpwSFln\
        d0NnWUlLb1pJemowRUF3SXcKRHpFTk1Bc0dBMVVFQXd3RWRHVnpkREFnRncweU5qRXhNalF4T1RJM01qaGFHQTh5TVRJMk1UQXpN\
        VEU1TWpjeQpPRm93RHpFTk1Bc0dBMVVFQXd3RWRHVnpkREJaTUJNR0J5cUdTTTQ5QWdFR0NDcUdTTTQ5QXdFSEEwSUFCT0orCm5K\
        Z3JiWjM4WWRSRC81cGlWekUwZlNVVWdyU0o3SThGVWl3TjVlUzRhVHBFNTFGWFBKTWJMbGYyK3ArYWZsZ0UKVitPZzJFdEU3M0tn\
        ZXVxOXliMmpVekJSTUIwR0ExVWREZ1FXQkJSVWd6ZUdYdlNKaHFoUnRScWdqSm1JQTFtZAptREFmQmdOVkhTTUVHREFXZ0JSVWd6\
        ZUdYdlNKaHFoUnRScWdqSm1JQTFtZG1EQVBCZ05WSFJNQkFmOEVCVEFECkFRSC9NQW9HQ0NxR1NNNDlCQU1DQTBjQU1FUUNJQ001\
        dys3d0NqQUZ3Z3VRcEdZazFVdVk0bThzZlEzZUtSRmkKTWF1NFM2Z3FBaUFYemsxMmh1ajkwLzUxeGgrT0RMTk82ZnZ2VXAzQzU5\
        a1NhNUlTc3BOdHZBPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=";

    fn file(cluster: &str) -> Kubeconfig {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
             clusters: [{{name: c, cluster: {{server: 'https://192.0.2.1:6443', certificate-authority-data: '{AUTHORITY}'{cluster}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u, namespace: n}}}}]\nusers: [{{name: u, user: {{token: hush}}}}]\n"
        );
        Kubeconfig::from_yaml(&text).unwrap()
    }

    fn environment(https_proxy: &str, no_proxy: &str) -> Environment {
        let (https_proxy, no_proxy) = (Some(https_proxy.to_owned()), Some(no_proxy.to_owned()));
        Environment { https_proxy, no_proxy, ..Environment::default() }
    }

    async fn proxy_of(environment: Environment, cluster: &str) -> Option<String> {
        let config = configure_in(&environment, file(cluster), None).await.unwrap();
        config.proxy_url.map(|url| url.to_string())
    }

    #[tokio::test]
    async fn proxy_of_a_kubeconfig_comes_before_that_of_the_environment() {
        let exempt = || environment("http://10.1.2.3:3128", "192.0.2.0/24");
        let outside = || environment("http://10.1.2.3:3128", "10.0.0.0/8");
        assert_eq!(proxy_of(outside(), "").await.as_deref(), Some("http://10.1.2.3:3128/"));
        assert_eq!(proxy_of(exempt(), "").await, None);
        let named = ", proxy-url: 'socks5://10.1.2.4:1080'";
        for environment in [outside(), exempt(), Environment::default()] {
            let found = proxy_of(environment, named).await;
            assert_eq!(found.as_deref(), Some("socks5://10.1.2.4:1080/"), "NO_PROXY does not concern it");
        }
    }

    #[tokio::test]
    async fn server_without_tls_is_asked_by_http_proxy() {
        let plain = |port: &str| {
            let mut file = file("");
            let cluster = file.clusters[0].cluster.as_mut().unwrap();
            cluster.server = Some(format!("http://192.0.2.1{port}"));
            file
        };
        let value = |text: &str| Some(text.to_owned());
        let mut environment = Environment { http_proxy: value("10.1.2.3:3128"), ..environment("a:1", "") };
        let config = configure_in(&environment, plain(":8080"), None).await.unwrap();
        assert_eq!(config.proxy_url.unwrap().to_string(), "http://10.1.2.3:3128/");
        environment.no_proxy = value("192.0.2.1:80");
        assert_eq!(configure_in(&environment, plain(""), None).await.unwrap().proxy_url, None);
        environment = Environment { http_proxy: value("a b"), ..Environment::default() };
        let bad = configure_in(&environment, plain(""), None).await.unwrap_err();
        assert_eq!(bad.to_string(), "HTTP_PROXY is not the URL of a proxy");
    }

    #[tokio::test]
    async fn invalid_proxy_names_where_it_is_written() {
        let bad = configure_in(&environment("http://a b", ""), file(""), None).await.unwrap_err();
        assert_eq!(bad.to_string(), "HTTPS_PROXY is not the URL of a proxy");
        let named = file(", proxy-url: 'http://a b'");
        let bad = configure_in(&Environment::default(), named, None).await.unwrap_err();
        assert!(matches!(bad, ConfigureError::Kubeconfig(KubeconfigError::ParseProxyUrl(_))), "{bad:?}");
        let exempt = environment("http://a b", "192.0.2.1");
        assert!(configure_in(&exempt, file(""), None).await.is_ok(), "it is not used");
    }

    #[tokio::test]
    async fn configuration_without_kubes_proxy_is_as_kube_makes_it() {
        for context in [None, Some("x")] {
            let own = assemble(&file(""), context).unwrap();
            let options =
                KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
            let mut kube = Config::from_custom_kubeconfig(file(""), &options).await.unwrap();
            kube.proxy_url = None;
            assert_eq!(format!("{own:?}"), format!("{kube:?}"));
            assert_eq!(own.root_cert.unwrap().len(), 1);
        }
    }

    /// Reads the request of a client that asks the API server by this listener.
    async fn asked(listener: TcpListener, config: Config) -> String {
        crate::tls::install_crypto_provider();
        let client = Client::try_from(config).unwrap();
        let asking = tokio::spawn(async move { client.apiserver_version().await.map(drop) });
        let wait = Duration::from_secs(20);
        let (mut stream, _) = tokio::time::timeout(wait, listener.accept()).await.unwrap().unwrap();
        let mut request = vec![0; 512];
        let length = tokio::time::timeout(wait, stream.read(&mut request)).await.unwrap().unwrap();
        asking.abort();
        String::from_utf8_lossy(&request[..length]).into_owned()
    }

    /// The environment of a process is that of all its threads, so that this test runs itself in another process.
    #[tokio::test]
    async fn no_proxy_with_a_trailing_comma_sends_the_client_to_its_proxy() {
        const CHILD: &str = "kubeconfig::tests::no_proxy_with_a_trailing_comma_sends_the_client_to_its_proxy";
        let Ok(port) = std::env::var("BEDPLATE_TEST_PROXY_PORT") else {
            let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args([CHILD, "--exact"]).env("BEDPLATE_TEST_PROXY_PORT", port.to_string());
            // The address of the proxy is in NO_PROXY, that of the API server is not.
            child.env("HTTPS_PROXY", format!("http://127.0.0.1:{port}")).env("NO_PROXY", "127.0.0.0/8,");
            let output = child.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        };
        let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await.unwrap();
        let config = configure(file(""), None).await.unwrap();
        let request = asked(listener, config).await;
        assert!(request.starts_with("CONNECT 192.0.2.1:6443 "), "{request}");
    }
}
