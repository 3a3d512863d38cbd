//! Forms of kubeconfigs that are accepted, and each field that is refused.

use serde_json::{Value, json};

use super::*;

const SECRET: &str = "hush-hush";

fn authority_data() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    STANDARD.encode(rcgen::CertificateParams::default().self_signed(&key).unwrap().pem())
}

#[expect(clippy::needless_pass_by_value, reason = "values are made where they are used")]
fn document(cluster: Value, user: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Config", "current-context": "x", "preferences": {},
        "clusters": [{ "name": "c", "cluster": cluster }], "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u", "namespace": "n" } }] })
}

fn cluster() -> Value {
    json!({ "server": "https://10.0.0.1:6443", "certificate-authority-data": authority_data() })
}

fn with(mut object: Value, field: &str, value: Value) -> Value {
    object[field] = value;
    object
}

fn parse(document: &Value) -> Result<Kubeconfig, KubeconfigError> {
    Kubeconfig::parse(document.to_string().as_bytes())
}

#[track_caller]
fn error(document: &Value) -> String {
    let error = parse(document).err().expect("an error").to_string();
    assert!(!error.contains(SECRET), "{error}");
    error
}

#[test]
fn token_and_certificate_are_accepted() {
    let token = parse(&document(cluster(), json!({ "token": SECRET }))).unwrap();
    assert!(matches!(token.credential, Credential::Token(_)));
    assert_eq!(
        (&*token.server, &*token.host, token.authority.len()),
        ("https://10.0.0.1:6443", "10.0.0.1", 1)
    );
    let pair = json!({ "client-certificate-data": "YQ==", "client-key-data": "Yg==", "token": SECRET });
    let pair = parse(&document(with(cluster(), "tls-server-name", json!("api")), pair)).unwrap();
    assert!(matches!(pair.credential, Credential::Certificate(..)));
    assert_eq!(pair.tls_server_name.as_deref(), Some("api"));
}

#[test]
fn trust_4_field_that_runs_reads_or_redirects_is_refused_by_name() {
    let exec = json!({ "apiVersion": "client.authentication.k8s.io/v1", "command": SECRET });
    for (field, value) in [
        ("exec", exec),
        ("auth-provider", json!({ "name": SECRET })),
        ("client-certificate", json!(SECRET)),
        ("client-key", json!(SECRET)),
        ("tokenFile", json!(SECRET)),
        ("as", json!(SECRET)),
        ("as-groups", json!([SECRET])),
        ("as-uid", json!(SECRET)),
        ("as-user-extra", json!({ "a": [SECRET] })),
        ("username", json!(SECRET)),
        ("password", json!(SECRET)),
    ] {
        let user = with(json!({ "token": SECRET }), field, value);
        let expected = format!("kubeconfig has {field}, which is not accepted");
        assert!(error(&document(cluster(), user)).starts_with(&expected), "{field}");
    }
    for (field, value) in [
        ("insecure-skip-tls-verify", json!(true)),
        ("certificate-authority", json!(SECRET)),
        ("proxy-url", json!(SECRET)),
    ] {
        let expected = format!("kubeconfig has {field}, which is not accepted");
        let found = error(&document(with(cluster(), field, value), json!({ "token": SECRET })));
        assert!(found.starts_with(&expected), "{field}: {found}");
    }
    let harmless = with(with(cluster(), "insecure-skip-tls-verify", json!(false)), "proxy-url", json!(""));
    assert!(parse(&document(harmless, with(json!({ "token": SECRET }), "exec", Value::Null))).is_ok());
}

#[test]
fn server_must_be_an_https_url_without_a_user() {
    for server in [
        "http://10.0.0.1",
        "10.0.0.1:6443",
        "https://",
        "https://hush-hush@10.0.0.1",
        "unix:///x",
        "",
        "https://a?b=c",
    ] {
        let found = error(&document(with(cluster(), "server", json!(server)), json!({ "token": SECRET })));
        assert_eq!(found, "server of the kubeconfig cannot be used", "{server}");
    }
    let six = parse(&document(
        with(cluster(), "server", json!("https://[fd00::1]:6443/k")),
        json!({ "token": SECRET }),
    ));
    assert_eq!(six.unwrap().host, "fd00::1");
}

#[test]
fn missing_and_unusable_parts_are_named() {
    let token = || json!({ "token": SECRET });
    for (cluster_of, user, expected) in [
        (json!({ "server": "https://a" }), token(), "kubeconfig has no certificate-authority-data"),
        (
            with(cluster(), "certificate-authority-data", json!("YQ==")),
            token(),
            "certificate-authority-data of the kubeconfig cannot be used",
        ),
        (
            with(cluster(), "certificate-authority-data", json!(SECRET)),
            token(),
            "certificate-authority-data of the kubeconfig cannot be used",
        ),
        (cluster(), json!({}), "kubeconfig has no token and no client certificate"),
        (cluster(), json!({ "client-certificate-data": "YQ==" }), "kubeconfig has no client-key-data"),
        (cluster(), json!({ "client-key-data": "YQ==" }), "kubeconfig has no client-certificate-data"),
        (
            cluster(),
            json!({ "client-certificate-data": "YQ==", "client-key-data": "hush-hush!" }),
            "client-key-data of the kubeconfig cannot be used",
        ),
    ] {
        assert_eq!(error(&document(cluster_of, user)), expected);
    }
    let other = |field: &str, value: Value| with(document(cluster(), token()), field, value);
    assert_eq!(error(&other("current-context", json!("y"))), "kubeconfig has no current-context");
    assert_eq!(error(&other("clusters", json!([]))), "kubeconfig has no cluster of its current context");
    assert_eq!(error(&other("users", json!([]))), "kubeconfig has no user of its current context");
    let many = vec![json!({ "name": "u", "user": {} }); 17];
    assert_eq!(error(&other("users", json!(many))), "kubeconfig has more than 16 users");
}

#[test]
fn hostile_documents_are_errors() {
    let bomb = format!("a: &a [x]\n{}", (0..20).map(|n| format!("b{n}: [*a, *a]\n")).collect::<String>());
    let nested = "[".repeat(60_000);
    for text in [SECRET, "", "[]", "clusters: 1", "\u{0}", &bomb, &nested] {
        let found = Kubeconfig::parse(text.as_bytes()).err().expect("an error").to_string();
        assert!(!found.contains(SECRET), "{found}");
    }
    assert_eq!(Kubeconfig::parse(&[0xff, 0xfe]).err(), Some(KubeconfigError::Invalid));
    assert_eq!(Kubeconfig::parse(&vec![b' '; MAX_SIZE + 1]).err(), Some(KubeconfigError::TooLarge));
}
