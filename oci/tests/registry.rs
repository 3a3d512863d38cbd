//! A registry that breaks, lies, forgets and refuses; the store gets complete blobs or none.

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

mod fixture;

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bedplate_api::id::Digest;
use bedplate_oci::{
    Access, BootImage, EnsureImageError, Options, Progress, Reach, Source, Store, resolve_tag,
};
use fixture::{Fault, ROOTFS, Registry, content, digest, layout, quiet, store};
use futures::future::BoxFuture;

struct Case {
    directory: tempfile::TempDir,
    registry: Registry,
    manifest: Digest,
    rootfs: Digest,
}

impl Case {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::start().await;
        let (path, manifest) = layout(directory.path(), 1);
        registry.push(&path, &manifest);
        let rootfs = digest(&content(10 + ROOTFS as u64, ROOTFS));
        Self { directory, registry, manifest, rootfs }
    }

    fn store(&self) -> Store {
        store(&self.directory.path().join("store"))
    }

    fn source(&self) -> Source {
        self.source_with(plain())
    }

    fn source_with(&self, access: Access) -> Source {
        let reference = self.registry.reference(&self.manifest);
        Source::Registry { reference, allow_tag: false, access }
    }

    /// A credentials file with this user name and password for the registry.
    fn login(&self, user: &str, password: &str) -> PathBuf {
        let path = self.directory.path().join("config.json");
        let entry = serde_json::json!({ "username": user, "password": password });
        let text = serde_json::json!({ "auths": { self.registry.address.clone(): entry } }).to_string();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    async fn ensure(&self) -> Result<BootImage, EnsureImageError> {
        self.store().ensure(&self.source(), &quiet).await
    }

    fn whole(&self) -> bool {
        let path = self.store().path(&self.rootfs);
        fs::read(path).is_ok_and(|bytes| digest(&bytes) == self.rootfs)
    }
}

/// Without TLS, as the registries here speak.
fn plain() -> Access {
    Access { insecure_http: true, ..Access::default() }
}

#[tokio::test]
async fn image_is_fetched_once_and_then_read_from_the_store() {
    let case = Case::new().await;
    let image = case.ensure().await.unwrap();
    assert_eq!(image.digest, case.manifest);
    assert_eq!(image.rootfs.unwrap().size, ROOTFS as u64);
    assert_eq!(image.kernel_arguments, ["quiet"]);
    assert!(case.whole());
    let seen = case.registry.content().seen.len();
    assert_eq!(case.ensure().await.unwrap(), image);
    assert_eq!(case.registry.content().seen.len(), seen);
}

/// Refuses these addresses. Every name is that of 127.0.0.1.
#[derive(Debug)]
struct Forbidding(&'static [&'static str]);

impl Reach for Forbidding {
    fn check(&self, ip: IpAddr) -> Result<(), String> {
        if self.0.contains(&ip.to_string().as_str()) { Err(format!("{ip} is forbidden")) } else { Ok(()) }
    }

    fn lookup(&self, _: String) -> BoxFuture<'static, Result<Vec<IpAddr>, String>> {
        Box::pin(async { Ok(vec![[127, 0, 0, 1].into()]) })
    }
}

impl Case {
    /// Fetches as a Machine's author may; gives the error.
    async fn confined(&self, forbidden: &'static [&'static str], reference: String) -> String {
        let reach: Arc<dyn Reach> = Arc::new(Forbidding(forbidden));
        let options = Options { reach: Some(reach), ..fixture::options() };
        let store = Store::open_with(self.directory.path().join("confined"), options).unwrap();
        let access = Access { is_confined: true, ..plain() };
        let source = Source::Registry { reference, allow_tag: false, access };
        let error = store.ensure(&source, &quiet).await.unwrap_err();
        assert!(matches!(error, EnsureImageError::Refused { .. }), "{error}");
        error.to_string()
    }
}

#[tokio::test]
async fn a_confined_reference_does_not_lead_to_forbidden_addresses() {
    let case = Case::new().await;
    let literal = case.registry.reference(&case.manifest);
    let name = literal.replace("127.0.0.1", "localhost");
    for reference in [literal.clone(), name] {
        let error = case.confined(&["127.0.0.1"], reference).await;
        assert!(error.contains("may not lead to: 127.0.0.1 is forbidden"), "{error}");
    }
    assert!(case.registry.content().seen.is_empty(), "nothing was connected to");
    case.registry.content().redirect = Some("http://127.0.0.2:1".to_owned());
    let error = case.confined(&["127.0.0.2"], literal).await;
    assert!(error.contains("127.0.0.2 is forbidden"), "{error}");
    case.registry.content().redirect = None;
    case.ensure().await.unwrap();
}

#[tokio::test]
async fn a_confined_reference_shows_no_text_of_an_answer() {
    let case = Case::new().await;
    let missing = digest(b"missing");
    let reference = case.registry.reference(&missing);
    let error = case.confined(&[], reference.clone()).await;
    assert!(error.contains("404 Not Found") && !error.contains("UNKNOWN"), "{error}");
    let source = Source::Registry { reference, allow_tag: false, access: plain() };
    let error = case.store().ensure(&source, &quiet).await.unwrap_err().to_string();
    assert!(error.contains("UNKNOWN"), "an operator sees it: {error}");
}

#[tokio::test]
async fn cached_image_survives_restart_with_the_registry_away() {
    let case = Case::new().await;
    assert!(case.store().cached(&case.source()).is_none());
    let image = case.ensure().await.unwrap();
    case.registry.stop();
    assert_eq!(case.store().cached(&case.source()), Some(image.clone()));
    assert_eq!(case.ensure().await.unwrap(), image);
}

#[tokio::test]
async fn tag_is_resolved_again_and_its_last_image_stays_cached() {
    let case = Case::new().await;
    let reference = format!("{}/bedplate/host:latest", case.registry.address);
    let source = |allow_tag| Source::Registry { reference: reference.clone(), allow_tag, access: plain() };
    let refused = case.store().ensure(&source(false), &quiet).await.unwrap_err();
    assert!(matches!(refused, EnsureImageError::TagNotAllowed { .. }), "{refused}");
    let first = case.store().ensure(&source(true), &quiet).await.unwrap();
    let (path, next) = layout(case.directory.path(), 2);
    case.registry.push(&path, &next);
    let second = case.store().ensure(&source(true), &quiet).await.unwrap();
    assert_ne!(first.digest, second.digest);
    assert_eq!(second.digest, next);
    case.registry.stop();
    assert!(case.store().ensure(&source(true), &quiet).await.is_err());
    assert_eq!(case.store().cached(&source(true)), Some(second));
}

#[tokio::test]
async fn a_broken_transfer_goes_on_where_it_broke() {
    let case = Case::new().await;
    case.registry.fault(&case.rootfs, Fault::Break(2 << 20));
    case.ensure().await.unwrap();
    assert!(case.whole());
    let asked = case.registry.asked(&case.rootfs);
    assert_eq!(asked.len(), 2);
    let from: u64 = asked[1].as_deref().unwrap().trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
    assert!(from > 1 << 20, "{asked:?}");
}

#[tokio::test]
async fn faults_of_every_kind_end_in_the_whole_blob() {
    for faults in [
        vec![Fault::Break(3_000_000), Fault::ForgetRange],
        vec![Fault::Break(3_000_000), Fault::WrongRange],
        vec![Fault::Break(3_000_000), Fault::Status(503, None), Fault::Break(1)],
        vec![Fault::Status(429, Some(3600)), Fault::Status(500, None), Fault::Status(408, None)],
        vec![Fault::Short(1_000_000), Fault::Short(0)],
        vec![Fault::Break(0), Fault::Silence],
        // Pieces that do not fit together are fetched again, once.
        vec![Fault::Break(3_000_000), Fault::Lie],
    ] {
        let case = Case::new().await;
        faults.iter().for_each(|fault| case.registry.fault(&case.rootfs, fault.clone()));
        let result = case.ensure().await;
        assert!(result.is_ok(), "{faults:?}: {}", result.unwrap_err());
        assert!(case.whole(), "{faults:?}");
        assert!(case.registry.content().faults.is_empty(), "{faults:?}");
    }
}

#[tokio::test]
async fn a_blob_that_lies_is_refused_and_nothing_of_it_is_kept() {
    let case = Case::new().await;
    case.registry.fault(&case.rootfs, Fault::Lie);
    let error = case.ensure().await.unwrap_err();
    assert!(matches!(error, EnsureImageError::DigestMismatch { .. }), "{error}");
    assert!(!case.store().path(&case.rootfs).exists());
    assert!(case.store().cached(&case.source()).is_none());
    case.ensure().await.unwrap();
    assert!(case.whole());
}

#[tokio::test]
async fn a_blob_longer_than_its_descriptor_is_refused() {
    let case = Case::new().await;
    case.registry.fault(&case.rootfs, Fault::Long);
    let error = case.ensure().await.unwrap_err();
    assert!(matches!(error, EnsureImageError::SizeMismatch { .. }), "{error}");
    assert!(!case.store().path(&case.rootfs).exists());
}

#[tokio::test]
async fn a_manifest_other_than_the_digest_is_refused() {
    let case = Case::new().await;
    case.registry.fault(&case.manifest, Fault::Lie);
    let error = case.ensure().await.unwrap_err();
    assert!(matches!(error, EnsureImageError::DigestMismatch { .. }), "{error}");
}

#[tokio::test]
async fn an_endless_manifest_is_cut_off() {
    let case = Case::new().await;
    let big = vec![b' '; 5 << 20];
    case.registry.content().blobs.insert(case.manifest.to_string(), big);
    let error = case.ensure().await.unwrap_err();
    assert!(matches!(error, EnsureImageError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn unreachable_registry_ends_the_download_with_a_remedy() {
    let case = Case::new().await;
    (0..20).for_each(|_| case.registry.fault(&case.rootfs, Fault::Status(503, None)));
    let retries = Mutex::new(0);
    let count = |progress| {
        if matches!(progress, Progress::Retry { .. }) {
            *retries.lock().unwrap() += 1;
        }
    };
    let error = case.store().ensure(&case.source(), &count).await.unwrap_err();
    assert!(matches!(error, EnsureImageError::Unreachable { attempts: 6, .. }), "{error}");
    assert_eq!(*retries.lock().unwrap(), 5);
    let text = error.to_string();
    assert!(text.contains("503 not now") && text.contains(&case.rootfs.to_string()), "{text}");
}

#[tokio::test]
async fn a_refusal_is_not_repeated() {
    let case = Case::new().await;
    case.registry.fault(&case.rootfs, Fault::Status(403, None));
    let error = case.ensure().await.unwrap_err();
    assert!(matches!(error, EnsureImageError::Refused { .. }), "{error}");
    assert_eq!(case.registry.asked(&case.rootfs).len(), 1);
}

/// `user:secret`.
const BASIC: &str = "Basic dXNlcjpzZWNyZXQ=";

#[tokio::test]
async fn a_token_is_fetched_anonymously_or_with_credentials() {
    for password in [None, Some(BASIC)] {
        let case = Case::new().await;
        case.registry.content().token = Some("t0ken".into());
        case.registry.content().password = password.map(str::to_owned);
        let anonymous = case.ensure().await;
        assert_eq!(anonymous.is_ok(), password.is_none());
        let access = Access { credentials_file: Some(case.login("user", "secret")), ..plain() };
        case.store().ensure(&case.source_with(access), &quiet).await.unwrap();
    }
}

#[tokio::test]
async fn credentials_are_read_again_for_each_pull_and_sent_on_request_only() {
    let case = Case::new().await;
    case.registry.content().basic = Some(BASIC.to_owned());
    let access = Access { credentials_file: Some(case.login("user", "old")), ..plain() };
    let (store, source) = (case.store(), case.source_with(access));
    let error = store.ensure(&source, &quiet).await.unwrap_err();
    assert!(matches!(error, EnsureImageError::Refused { .. }), "{error}");
    assert!(!format!("{error} {error:?} {source:?}").contains("old\""), "{error:?}");
    case.login("user", "secret");
    store.ensure(&source, &quiet).await.unwrap();
    assert_eq!(case.registry.content().authorizations.first(), Some(&None));
}

#[tokio::test]
async fn credentials_that_others_can_read_or_that_are_for_elsewhere_are_refused() {
    let case = Case::new().await;
    let path = case.login("user", "secret");
    let access = Access { credentials_file: Some(path.clone()), ..plain() };
    let (store, source) = (case.store(), case.source_with(access));
    for mode in [0o660, 0o604, 0o644] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let text = store.ensure(&source, &quiet).await.unwrap_err().to_string();
        assert!(text.contains(&format!("mode {mode:04o}")) && text.ends_with("chmod 0600"), "{text}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let text = fs::read_to_string(&path).unwrap().replace(&case.registry.address, "elsewhere.example");
    fs::remove_file(&path).unwrap();
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let text = store.ensure(&source, &quiet).await.unwrap_err().to_string();
    assert!(text.contains("there is no entry for 127.0.0.1:"), "{text}");
    fs::remove_file(&path).unwrap();
    let error = store.ensure(&source, &quiet).await.unwrap_err();
    assert!(matches!(error, EnsureImageError::ReadFile { .. }), "{error}");
    assert_eq!(case.registry.content().seen.len(), 0, "nothing was asked without them");
}

#[tokio::test]
async fn a_redirect_to_another_host_carries_no_credentials() {
    for (token, basic) in [(Some("t0ken"), None), (None, Some(BASIC))] {
        let case = Case::new().await;
        let elsewhere = Registry::start().await;
        elsewhere.push(&case.directory.path().join("layout-1"), &case.manifest);
        let here = &case.registry;
        here.content().token = token.map(str::to_owned);
        here.content().basic = basic.map(str::to_owned);
        here.content().redirect = Some(format!("http://{}", elsewhere.address));
        let access = Access { credentials_file: Some(case.login("user", "secret")), ..plain() };
        // First a host that asks for credentials of its own, by a token place of its choice: it gets none.
        elsewhere.content().token = Some("phished".to_owned());
        let store = case.store();
        let error = store.ensure(&case.source_with(access.clone()), &quiet).await.unwrap_err();
        assert!(error.to_string().contains("which gets no credentials"), "{error}");
        elsewhere.content().token = None;
        store.ensure(&case.source_with(access), &quiet).await.unwrap();
        assert!(case.whole());
        let seen = elsewhere.content();
        assert!(!seen.seen.iter().any(|(path, _)| path == "/token"), "{:?}", seen.seen);
        assert!(seen.authorizations.iter().all(Option::is_none), "{:?}", seen.authorizations);
    }
}

#[tokio::test]
async fn a_registry_of_a_private_authority_is_believed_with_its_ca_file_only() {
    let directory = tempfile::tempdir().unwrap();
    let (registry, pem) = Registry::start_tls().await;
    let (path, manifest) = layout(directory.path(), 1);
    registry.push(&path, &manifest);
    let ca = directory.path().join("ca.pem");
    let reference = registry.reference(&manifest);
    let source = |ca_file: Option<PathBuf>| {
        let access = Access { ca_file, ..Access::default() };
        Source::Registry { reference: reference.clone(), allow_tag: false, access }
    };
    let store = store(&directory.path().join("store"));
    let error = store.ensure(&source(None), &quiet).await.unwrap_err();
    assert!(matches!(error, EnsureImageError::Unreachable { .. }), "{error}");
    assert_eq!(registry.content().seen.len(), 0);
    for rubbish in ["", "no certificate"] {
        fs::write(&ca, rubbish).unwrap();
        let error = store.ensure(&source(Some(ca.clone())), &quiet).await.unwrap_err();
        assert!(matches!(error, EnsureImageError::ReadFile { .. }), "{error}");
    }
    fs::write(&ca, pem).unwrap();
    let image = store.ensure(&source(Some(ca)), &quiet).await.unwrap();
    assert_eq!(image.digest, manifest);
}

#[tokio::test]
async fn a_blob_is_fetched_once_however_many_ask() {
    let case = Case::new().await;
    let store = case.store();
    let source = case.source();
    let all = (0..20).map(|_| store.ensure(&source, &quiet));
    for image in futures::future::join_all(all).await {
        assert_eq!(image.unwrap().digest, case.manifest);
    }
    assert_eq!(case.registry.asked(&case.rootfs).len(), 1);
}

#[tokio::test]
async fn two_stores_of_one_directory_fetch_a_blob_once() {
    let case = Case::new().await;
    let (one, two, source) = (case.store(), case.store(), case.source());
    let (a, b) = tokio::join!(one.ensure(&source, &quiet), two.ensure(&source, &quiet));
    assert_eq!(a.unwrap(), b.unwrap());
    assert_eq!(case.registry.asked(&case.rootfs).len(), 1);
}

#[tokio::test]
async fn dropped_transfer_is_resumed_and_never_served_incomplete() {
    let case = Case::new().await;
    // The rest never comes; the caller loses patience when two mebibytes are there.
    case.registry.fault(&case.rootfs, Fault::Break(3 << 20));
    case.registry.fault(&case.rootfs, Fault::Silence);
    let (store, source) = (case.store(), case.source());
    let (enough, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let task = tokio::spawn({
        let rootfs = case.rootfs;
        async move {
            let tell = move |progress| {
                if matches!(progress, Progress::Transfer { digest, done, .. } if digest == rootfs && done >= 2 << 20)
                {
                    let _ = enough.send(());
                }
            };
            store.ensure(&source, &tell).await
        }
    });
    arrived.recv().await.unwrap();
    task.abort();
    let _ = task.await;
    case.registry.content().faults.clear();
    assert!(!case.store().path(&case.rootfs).exists());
    assert!(case.store().cached(&case.source()).is_none());
    case.ensure().await.unwrap();
    assert!(case.whole());
    assert!(case.registry.asked(&case.rootfs).last().unwrap().is_some(), "asked for the rest only");
}

#[tokio::test]
async fn partial_file_with_garbage_is_fetched_again() {
    for length in [1, 1 << 20, ROOTFS, ROOTFS + 1] {
        let case = Case::new().await;
        let store = case.store();
        let partial = case.directory.path().join("store/partial").join(case.rootfs.hex());
        fs::write(&partial, vec![7; length]).unwrap();
        store.ensure(&case.source(), &quiet).await.unwrap();
        assert!(case.whole(), "{length}");
        assert!(!partial.exists());
    }
}

#[tokio::test]
async fn references_that_are_none_are_refused_before_anything_is_sent() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    for reference in ["", "HTTP://x", "a b", "host@sha256:zz", "x/../../y@z", "x:y:z:w", "r/n@sha512:00"] {
        let source = Source::Registry { reference: reference.into(), allow_tag: false, access: plain() };
        let error = store(directory.path()).ensure(&source, &quiet).await.unwrap_err();
        let expected = matches!(
            error,
            EnsureImageError::InvalidReference { .. } | EnsureImageError::TagNotAllowed { .. }
        );
        assert!(expected, "{reference}: {error}");
    }
}

#[tokio::test]
async fn collection_keeps_what_an_unfinished_image_already_has() {
    let case = Case::new().await;
    let store = case.store();
    let kernel = digest(&content(10 + 300_000, 300_000));
    // The root file system never comes; what is on its way then may be cut off, and comes with the next try.
    while !store.path(&kernel).exists() {
        (0..20).for_each(|_| case.registry.fault(&case.rootfs, Fault::Status(503, None)));
        store.ensure(&case.source(), &quiet).await.unwrap_err();
        case.registry.content().faults.clear();
    }
    let keep = case.source().pinned().into_iter().collect();
    let collected = store.collect(&keep).unwrap();
    assert_eq!(collected.blobs, 0, "{collected:?}");
    assert!(store.path(&kernel).exists());
    let asked = case.registry.asked(&kernel).len();
    store.ensure(&case.source(), &quiet).await.unwrap();
    assert!(case.whole());
    assert_eq!(case.registry.asked(&kernel).len(), asked, "what is there is not fetched again");
}

#[tokio::test]
async fn collection_keeps_blobs_of_an_unfinished_image_pinned_by_index() {
    let case = Case::new().await;
    let store = case.store();
    let kernel = digest(&content(10 + 300_000, 300_000));
    let manifest = case.registry.content().blobs[&case.manifest.to_string()].clone();
    let entry = |bytes: &[u8], architecture: &str, media_type: &str| {
        serde_json::json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len(),
            "platform": { "architecture": architecture, "os": "linux" } })
    };
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let index_type = "application/vnd.oci.image.index.v1+json";
    let index = |entries: &[serde_json::Value]| {
        let index = serde_json::json!({ "schemaVersion": 2, "mediaType": index_type, "manifests": entries });
        index.to_string().into_bytes()
    };
    let inner = index(&[entry(b"other", "arm64", manifest_type), entry(&manifest, "amd64", manifest_type)]);
    let outer = index(&[entry(&inner, "amd64", index_type)]);
    for bytes in [&inner, &outer] {
        case.registry.content().blobs.insert(digest(bytes).to_string(), bytes.clone());
    }
    let source = Source::Registry {
        reference: case.registry.reference(&digest(&outer)),
        allow_tag: false,
        access: plain(),
    };
    while !store.path(&kernel).exists() {
        (0..20).for_each(|_| case.registry.fault(&case.rootfs, Fault::Status(503, None)));
        store.ensure(&source, &quiet).await.unwrap_err();
        case.registry.content().faults.clear();
    }
    let keep = source.pinned().into_iter().collect();
    let collected = store.collect(&keep).unwrap();
    assert_eq!(collected.blobs, 0, "{collected:?}");
    assert!(store.path(&kernel).exists());
    let asked = case.registry.asked(&kernel).len();
    assert_eq!(store.ensure(&source, &quiet).await.unwrap().digest, case.manifest);
    assert_eq!(case.registry.asked(&kernel).len(), asked, "what is there is not fetched again");
    assert_eq!(store.collect(&keep).unwrap().blobs, 0);
    assert_eq!(store.cached(&source).unwrap().digest, case.manifest);
}

#[tokio::test]
async fn tag_resolves_to_the_registrys_digest_without_a_fetch() {
    let directory = tempfile::tempdir().unwrap();
    let (registry, pem) = Registry::start_tls().await;
    let (path, manifest) = layout(directory.path(), 1);
    registry.push(&path, &manifest);
    let reference = format!("{}/bedplate/node:latest", registry.address);
    let options = Options { attempts: 1, ..fixture::options() };
    let access = Access::default();
    let ask = |authorities| resolve_tag(&reference, &access, authorities, &options);
    assert_eq!(ask(Some(&pem)).await.unwrap(), manifest);
    assert_eq!(registry.content().seen.len(), 1, "the manifest alone");
    // An untrusted registry is rejected, and an invalid authority too.
    assert!(matches!(ask(None).await, Err(EnsureImageError::Unreachable { .. })));
    assert!(matches!(ask(Some("x")).await, Err(EnsureImageError::Client { .. })));
    registry.content().tags.insert("latest".into(), b"<html>sign in</html>".to_vec());
    assert!(matches!(ask(Some(&pem)).await, Err(EnsureImageError::Refused { .. })), "a page is no manifest");
    registry.content().tags.clear();
    assert!(matches!(ask(Some(&pem)).await, Err(EnsureImageError::Refused { .. })));
}

#[tokio::test]
async fn dripping_registry_ends_the_download_at_the_answer_timeout() {
    let case = Case::new().await;
    let manifest = case.manifest.to_string();
    let reference = format!("{}/bedplate/host:latest", case.registry.address);
    // Never silent for long, and far from whole when its time is over.
    let options = Options { attempts: 1, whole: fixture::DRIP * 4, ..Options::default() };
    for fault in ["latest", "token"] {
        case.registry.content().token = (fault == "token").then(|| "t".repeat(1000));
        case.registry.content().faults.push_back((fault.to_owned(), Fault::Drip));
        let error = resolve_tag(&reference, &plain(), None, &options).await.unwrap_err();
        assert!(matches!(error, EnsureImageError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("too slow: no complete answer within "), "{fault}: {error}");
        case.registry.content().token = None;
    }
    let store = Store::open_with(case.directory.path().join("store"), options).unwrap();
    for (which, word) in [(manifest, "too slow: no complete answer"), (case.rootfs.to_string(), "too slow: ")]
    {
        case.registry.content().faults.push_back((which.clone(), Fault::Drip));
        let error = store.ensure(&case.source(), &quiet).await.unwrap_err().to_string();
        assert!(error.contains(word) && error.contains(&which), "{error}");
    }
    store.ensure(&case.source(), &quiet).await.unwrap();
    assert!(case.whole());
}
