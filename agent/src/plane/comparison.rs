//! Checks that the API server at an address belongs to the cluster of this
//! host's Machine, before a version that names it is paved.
//!
//! One read, with the agent's own certificate. The same cluster under another name answers with the Machine
//! of the same UID; another cluster does not. Called by `cluster`.

use std::error::Error;
use std::io;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::machine::Machine;
use kube::{Api, Client, ResourceExt};
use rustls::CertificateError;

use super::Compared;
use super::error::ask;
use crate::fault::explained;

/// Asks the API server behind `client` for the Machine, whose UID is `uid` in the cluster of this host.
pub(super) async fn compare(client: &Client, name: &str, uid: &str) -> Compared {
    let machines: Api<BoundedTimes<Machine>> = Api::all(client.clone());
    let error = match ask(format!("Machine {name}"), machines.get(name)).await {
        Ok(machine) if machine.uid().as_deref() == Some(uid) => return Compared::Same,
        Ok(_) => return Compared::Other("its Machine of this name has another UID".to_owned()),
        Err(error) => error,
    };
    let why = explained(&error);
    let is_other = matches!(error.status(), Some(401 | 403 | 404)) || is_not_trusted(&error);
    if is_other { Compared::Other(why) } else { Compared::Unknown(why) }
}

/// Returns true if a join would reject the certificate of the API server. A wrong clock is not a reason.
fn is_not_trusted(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
            return !matches!(
                why,
                CertificateError::Expired
                    | CertificateError::ExpiredContext { .. }
                    | CertificateError::NotValidYet
                    | CertificateError::NotValidYetContext { .. }
            );
        }
        // `source` of an I/O error skips the error that it wraps.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plane::AskServerError;
    use crate::plane::fake::fake;

    async fn compared(status: u16, body: Value) -> Compared {
        compare(&fake(vec![(status, body)]), "node-1", "uid-1").await
    }

    fn machine(uid: &str) -> Value {
        json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "node-1", "uid": uid },
            "spec": { "provider": "manual" } })
    }

    fn refusal(code: u16) -> Value {
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "R", "message": "m", "code": code })
    }

    #[tokio::test]
    async fn only_the_machine_of_the_same_uid_shows_the_same_cluster() {
        assert_eq!(compared(200, machine("uid-1")).await, Compared::Same);
        assert!(matches!(compared(200, machine("uid-2")).await, Compared::Other(_)));
        for code in [401, 403, 404] {
            assert!(matches!(compared(code, refusal(code)).await, Compared::Other(_)), "{code}");
        }
        for code in [429, 500, 503] {
            assert!(matches!(compared(code, refusal(code)).await, Compared::Unknown(_)), "{code}");
        }
        assert!(matches!(compare(&fake(Vec::new()), "node-1", "uid-1").await, Compared::Unknown(_)));
    }

    #[test]
    fn certificate_of_another_authority_is_untrusted_and_clock_is_no_proof() {
        let wrapped = |why: CertificateError| AskServerError::Transport {
            what: "Machine node-1".to_owned(),
            source: io::Error::other(rustls::Error::InvalidCertificate(why)).into(),
        };
        assert!(is_not_trusted(&wrapped(CertificateError::UnknownIssuer)));
        assert!(is_not_trusted(&wrapped(CertificateError::NotValidForName)));
        assert!(!is_not_trusted(&wrapped(CertificateError::Expired)));
        assert!(!is_not_trusted(&io::Error::from(io::ErrorKind::ConnectionRefused)));
    }

    /// Through the client that is really used: how it wraps the words of TLS is not this crate's.
    #[tokio::test]
    async fn server_of_another_authority_is_another_cluster_or_unknown_if_silent() {
        use bedplate_api::wire::KubernetesEndpoint;
        use rustls_pki_types::PrivateKeyDer;
        use tokio::net::TcpListener;

        let make = || rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let (own, theirs) = (make(), make());
        let key = PrivateKeyDer::try_from(theirs.signing_key.serialize_der()).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![theirs.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = acceptor.accept(stream).await;
            }
        });
        let (pem, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let ask = async |server: String| {
            let endpoint = KubernetesEndpoint { server, ca_pem: pem.clone() };
            let machine = "node-1".parse().unwrap();
            let access = crate::plane::Access::new(&endpoint, &machine, (&pem, &key)).unwrap();
            compare(access.client(), "node-1", "uid-1").await
        };
        let other = ask(format!("https://{address}")).await;
        assert!(matches!(other, Compared::Other(_)), "{other:?}");
        let silent = ask("https://127.0.0.1:1".to_owned()).await;
        assert!(matches!(silent, Compared::Unknown(_)), "{silent:?}");
    }
}
