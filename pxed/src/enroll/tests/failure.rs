//! Enrollment with a slow signer, and with writes that fail.

use super::*;
use crate::enroll::csr::CertificateRequest;
use crate::enroll::signer::{KeyRecord, SignError, Signed};

/// Says Pending twice, then signs.
struct Slow {
    local: LocalSigner,
    asked: std::sync::atomic::AtomicU32,
}

impl Signer for Slow {
    fn sign<'a>(
        &'a self,
        machine: (&'a bedplate_api::id::MachineName, &'a str),
        request: &'a CertificateRequest,
        purpose: &'a str,
    ) -> futures::future::BoxFuture<'a, Result<Signed, SignError>> {
        if self.asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2 {
            return Box::pin(std::future::ready(Ok(Signed::Pending("the signer".to_owned()))));
        }
        self.local.sign(machine, request, purpose)
    }

    fn put_in_force<'a>(
        &'a self,
        machine: (&'a bedplate_api::id::MachineName, &'a str),
        key: KeyRecord,
        certificate: String,
    ) -> futures::future::BoxFuture<'a, Result<Signed, SignError>> {
        self.local.put_in_force(machine, key, certificate)
    }

    fn needs_whole_subject(&self) -> bool {
        true
    }

    fn kubernetes(&self) -> Option<bedplate_api::wire::KubernetesEndpoint> {
        None
    }
}

#[tokio::test]
async fn a_slow_signer_is_pending_and_the_same_request_is_asked_again() {
    let rig = Rig::new().with_images().await;
    let local = LocalSigner { authority: rig.authority.clone() };
    let agents = Agents::start_with(rig, Arc::new(Slow { local, asked: 0.into() })).await;
    let seed = agents.seed(1).await;
    let key = KeyPair::generate().unwrap();
    let nameless = agents.enroll(&request(&seed, &csr(&key, None))).await;
    assert!(
        same(&nameless, &refusal(400, "InvalidCertificateRequest")),
        "a cluster takes the subject as it is"
    );
    let good = request(&seed, &csr(&key, Some("node1")));
    for _ in 0..2 {
        assert!(matches!(agents.enroll(&good).await, Ok(EnrollResponse::Pending { .. })));
        assert_ne!(agents.condition("Enrolled").0, "True");
    }
    assert!(matches!(agents.enroll(&good).await, Ok(EnrollResponse::Enrolled { .. })));
    agents.stop().await;
}

/// Writes of an enrollment, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    Claim,
    /// The key, the tokens that end, and the answer.
    Key,
}

/// Local signer that makes one write of an enrollment fail.
struct Breaking {
    local: LocalSigner,
    store: crate::store::Store,
    fails: std::sync::Mutex<Option<Write>>,
}

impl Breaking {
    /// Makes the next write fail once, if `write` is the write that should fail.
    async fn before(&self, write: Write) {
        let fails = self.fails.lock().unwrap().take_if(|fails| *fails == write).is_some();
        if fails {
            self.store.answers().await.unwrap();
            crate::store::tests::break_next_write(&self.store);
        }
    }
}

impl Signer for Breaking {
    fn sign<'a>(
        &'a self,
        machine: (&'a bedplate_api::id::MachineName, &'a str),
        request: &'a CertificateRequest,
        purpose: &'a str,
    ) -> futures::future::BoxFuture<'a, Result<Signed, SignError>> {
        self.local.sign(machine, request, purpose)
    }

    fn put_in_force<'a>(
        &'a self,
        machine: (&'a bedplate_api::id::MachineName, &'a str),
        key: KeyRecord,
        certificate: String,
    ) -> futures::future::BoxFuture<'a, Result<Signed, SignError>> {
        Box::pin(async move {
            self.before(Write::Key).await;
            self.local.put_in_force(machine, key, certificate).await
        })
    }

    fn needs_whole_subject(&self) -> bool {
        false
    }

    fn kubernetes(&self) -> Option<bedplate_api::wire::KubernetesEndpoint> {
        None
    }
}

#[tokio::test]
async fn no_certificate_is_sent_if_a_write_of_its_enrollment_fails() {
    for write in [Write::Claim, Write::Key] {
        let rig = Rig::new().with_images().await;
        let local = LocalSigner { authority: rig.authority.clone() };
        let signer = Breaking { local, store: rig.store.clone(), fails: std::sync::Mutex::default() };
        let signer = Arc::new(signer);
        let agents = Agents::start_with(rig, signer.clone()).await;
        let seed = agents.seed(1).await;
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let own = request(&seed, &csr(&key, Some("node1")));
        *signer.fails.lock().unwrap() = Some(write);
        signer.before(Write::Claim).await;
        let failed = agents.enroll(&own).await;
        assert!(same(&failed, &refusal(503, "StoreFailed")), "{write:?}: {failed:?}");
        // A request fails as well while the writer opens the file again.
        agents.rig.store.answers().await.unwrap();
        let enrolled = agents.enroll(&own).await;
        assert!(matches!(enrolled, Ok(EnrollResponse::Enrolled { .. })), "{write:?}: {enrolled:?}");
        let directory = agents.stop().await.directory;
        drop(signer);
        // Everything is on disk: a restarted pxed gives the same answer, and refuses another key.
        let agents = Agents::start(Rig::reopen(directory)).await;
        assert!(same(&agents.enroll(&own).await, &enrolled), "{write:?}");
        let Ok(EnrollResponse::Enrolled { certificate_pem, .. }) = &enrolled else { panic!("{enrolled:?}") };
        let host = agents.client(Some((certificate_pem, &key)));
        let report = serde_json::json!({ "agentVersion": "0.1.0", "kernelBootId": "k", "addresses": [] });
        assert_eq!(agents.post(&host, "/v1/report", &report).await.0, 204, "{write:?}");
        let stolen = agents.enroll(&request(&seed, &csr(&other, Some("node1")))).await;
        assert!(same(&stolen, &refusal(409, "TokenUsed")), "{write:?}: {stolen:?}");
        agents.stop().await;
    }
}
