//! Common faults of a host: their texts in other programs, and the remedy for the operator.
//!
//! Code that shows an error to an operator adds this text. For example,
//! "invalid peer certificate" does not point to a wrong clock. The texts are
//! those of rustls, of Go's crypto/x509 and net, of the kernel and of systemd.
//!
//! Pure: text in, text out. Called by all modules that show errors.

use std::error::Error;
use std::io;

use bedplate_process::exit::chain;

/// Words of an error, in lower case, and what to do. The first that fits counts.
const FAULTS: [(&[&str], &str); 7] = [
    (
        &["certificate not valid yet", "certificate has expired or is not yet valid", "notvalidyet"],
        "a clock is wrong or a certificate is out of date; compare `date -u` on this host and on the server",
    ),
    (
        &["received fatal alert: certificateexpired", "received fatal alert: the certificate has expired"],
        "the server reports that this host's certificate is out of date, or a clock is wrong; compare \
         `date -u` on both, then reboot this host",
    ),
    (
        &["peer certificate: certificate expired", "certificate has expired"],
        "the server's certificate is out of date, or this host's clock is ahead; compare `date -u` on both",
    ),
    (
        &[
            "was not resolved",
            "no such host",
            "temporary failure in name resolution",
            "name or service not known",
            "server misbehaving",
            "failed to lookup address",
        ],
        "a host name was not resolved; check the name servers in /etc/resolv.conf of this host",
    ),
    (
        &["no space left on device", "disk quota exceeded"],
        "no space is left; add a (larger) state disk or memory, or remove other files",
    ),
    (
        &["oom-kill", "oom killer", "out of memory", "cannot allocate memory"],
        "memory is too small; raise container.memoryMax, or add memory or a state disk to the machine",
    ),
    (
        &["status 401"],
        "the server rejects this host's certificate because it is out of date or belongs to another \
         cluster; reboot this host to re-enroll it",
    ),
];

/// Returns the remedy for a common fault that this text names.
pub fn advice(text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let found = FAULTS.iter().find(|(words, _)| words.iter().any(|word| text.contains(word)));
    found.map(|(_, advice)| *advice).filter(|advice| !text.contains(&advice.to_ascii_lowercase()))
}

/// An error with all of its causes, and what to do about it.
pub fn explained(error: &dyn Error) -> String {
    let text = chain(error);
    match advice(&text) {
        Some(advice) => format!("{text}; {advice}"),
        None => text,
    }
}

/// Returns true if a disk, or the memory that replaces one, is full.
pub(crate) fn is_no_room(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_fault_is_explained() {
        for (text, expected) in [
            (
                "invalid peer certificate: certificate not valid yet: verification time 5 (UNIX)",
                "compare `date -u`",
            ),
            (
                "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2020-01-01T00:00:00Z \
                 is before 2026-01-01T00:00:00Z",
                "compare `date -u`",
            ),
            (
                "invalid peer certificate: certificate expired: verification time 5",
                "this host's clock is ahead",
            ),
            ("received fatal alert: CertificateExpired", "this host's certificate is out of date"),
            (
                "Get \"https://k8s.example:6443\": dial tcp: lookup k8s.example: no such host",
                "/etc/resolv.conf",
            ),
            ("cannot write /x: No space left on device (os error 28)", "no space is left"),
            ("kubelet.service: Failed with result 'oom-kill'.", "memory is too small"),
            ("the list was refused with status 401: Unauthorized (Unauthorized)", "re-enroll it"),
        ] {
            assert!(
                advice(text).is_some_and(|advice| advice.contains(expected)),
                "{text}: {:?}",
                advice(text)
            );
        }
        assert_eq!(advice("connection refused"), None);
        let of_pxed = "https://p:8443/v1/report refused the request with status 401: the certificate expired at \
                       2026-01-01T00:00:00Z; boot the host again (CertificateExpired)";
        assert!(
            advice(of_pxed).unwrap().starts_with("the server rejects this host's certificate"),
            "not the server's"
        );
        let twice = format!("no such host; {}", advice("no such host").unwrap());
        assert_eq!(advice(&twice), None, "said once");
    }

    #[tokio::test]
    async fn name_that_is_not_resolved_is_explained_by_the_name_servers() {
        use reqwest::dns::Resolve as _;
        // Not a host name: no server is asked.
        let unresolved = bedplate_oci::resolver::HostResolver.resolve("a..b".parse().unwrap());
        let text = unresolved.await.err().unwrap().to_string();
        assert!(advice(&text).is_some_and(|advice| advice.contains("/etc/resolv.conf")), "{text}");
    }

    #[test]
    fn a_full_disk_is_known_wherever_it_is_in_the_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] io::Error);
        assert!(is_no_room(&Outer(io::Error::from_raw_os_error(28))));
        assert!(is_no_room(&Outer(io::Error::from_raw_os_error(122))));
        assert!(!is_no_room(&Outer(io::Error::from_raw_os_error(2))));
    }

    /// Asks a server whose certificate is valid between two years, with an
    /// agent's own client. Returns the text for the operator.
    async fn asked(from: i32, until: i32) -> String {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut authority = CertificateParams::new(vec![]).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = authority.self_signed(&authority_key).unwrap().pem();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &Issuer::new(authority, &authority_key)).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = acceptor.accept(stream).await;
        };
        let client = crate::https::request::builder(&ca_pem, None).unwrap().build().unwrap();
        let (answer, ()) = tokio::join!(client.get(&url).send(), serve);
        explained(&answer.unwrap_err())
    }

    #[tokio::test]
    async fn certificate_out_of_its_time_is_explained_by_a_wrong_clock() {
        let early = asked(2080, 2090).await;
        assert!(early.ends_with("compare `date -u` on this host and on the server"), "{early}");
        let late = asked(2010, 2020).await;
        assert!(
            late.contains("the server's certificate is out of date, or this host's clock is ahead"),
            "{late}"
        );
    }
}
