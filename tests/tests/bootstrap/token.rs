//! Machines that join: the bootstrap token in the workload cluster, the discovery of its authority, and a workload cluster that cannot be used.

use std::net::TcpListener;

use bedplate_bootstrap::ca_cert_hashes;
use bedplate_tests::guard::Directory;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::site::{PATIENCE, Site, Team, decoded, tokens, workload};

const JOIN_CONFIG: &str = "/run/kubeadm/kubeadm-join-config.yaml";
const TOKEN_ID_ANNOTATION: &str = "bedplate.dev/bootstrap-token-id";

/// Name of the token's Secret in the workload cluster.
fn token_of(config: &Value) -> String {
    let id = config["metadata"]["annotations"][TOKEN_ID_ANNOTATION].as_str();
    format!("bootstrap-token-{}", id.unwrap_or_else(|| panic!("no token: {config:#}")))
}

fn token(name: &str) -> Value {
    tokens().get("secret", name).unwrap().unwrap_or_else(|| panic!("{name} does not exist"))
}

/// Time until a token expires.
fn lifetime(token: &Value) -> SignedDuration {
    let expires: Timestamp = decoded(token, "expiration").parse().unwrap();
    expires.duration_since(Timestamp::now())
}

/// Shortens the life of a token to two minutes.
fn shorten(name: &str) {
    let soon = Timestamp::now() + SignedDuration::from_mins(2);
    let patch = json!({ "stringData": { "expiration": soon.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() } });
    tokens().merge("secret", name, &patch).unwrap();
}

#[test]
fn b1_worker_joins_by_a_token_and_the_authority_of_its_cluster() {
    let site = Site::shared();
    let team = Team::initialized("joins");
    team.worker("w-0", &json!({}));
    let config = site.until_ready(&team, "w-0");
    let data = team.data("w-0");
    assert!(data.runs("kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml"));
    let name = token_of(&config);
    let token = token(&name);
    assert_eq!(token["type"], "bootstrap.kubernetes.io/token");
    assert_eq!(decoded(&token, "usage-bootstrap-authentication"), "true");
    assert_eq!(decoded(&token, "usage-bootstrap-signing"), "true");
    assert_eq!(decoded(&token, "auth-extra-groups"), "system:bootstrappers:kubeadm:default-node-token");
    let left = lifetime(&token);
    assert!(left > SignedDuration::from_mins(10) && left <= SignedDuration::from_mins(15), "{left:?}");
    let join = data.file(JOIN_CONFIG);
    let text = format!("{}.{}", decoded(&token, "token-id"), decoded(&token, "token-secret"));
    let authority = std::fs::read_to_string(workload().ca()).unwrap();
    let hashes = ca_cert_hashes(&authority).unwrap();
    for expected in [text.as_str(), "10.7.0.9:6443", &hashes[0]] {
        assert!(join.contains(expected), "{expected} in the configuration of kubeadm");
    }
    // A worker gets no key of the cluster.
    assert_eq!(
        (data.mode("/etc/kubernetes/pki/ca.key"), data.mode("/etc/kubernetes/pki/sa.key")),
        (None, None)
    );
    let events = team.objects.list("event", "").unwrap();
    let secret = decoded(&token, "token-secret");
    assert!(!format!("{config}{events:?}").contains(&secret));
}

#[test]
fn token_is_renewed_until_the_machine_has_a_node() {
    let site = Site::shared();
    let team = Team::initialized("renewed");
    for name in ["w-0", "w-1"] {
        team.worker(name, &json!({}));
    }
    let [first, second] = ["w-0", "w-1"].map(|name| token_of(&site.until_ready(&team, name)));
    assert_ne!(first, second, "each machine has a token of its own");
    let before = token(&first);
    let until_renewed = |name: &str| {
        let is_renewed = |token: Option<&Value>| {
            token.filter(|token| lifetime(token) > SignedDuration::from_mins(10)).cloned()
        };
        tokens().until(("secret", name), PATIENCE, is_renewed).unwrap()
    };
    shorten(&first);
    team.touch("w-0");
    let renewed = until_renewed(&first);
    assert_eq!(
        decoded(&renewed, "token-secret"),
        decoded(&before, "token-secret"),
        "the data has this token"
    );
    // The token of a Node expires. The program may see the Node later than the change of the KubeadmConfig.
    team.has_node("w-0");
    let expires = || {
        shorten(&first);
        shorten(&second);
        team.touch("w-0");
        team.touch("w-1");
        until_renewed(&second);
        lifetime(&token(&first)) < SignedDuration::from_mins(3)
    };
    assert!((0..10).any(|_| expires()), "the token of a Node is renewed");
}

#[test]
fn b1_unreachable_workload_cluster_is_reported_and_asked_again() {
    let site = Site::shared();
    let team = Team::new("unreachable", &json!({}));
    team.authorities();
    team.initialize();
    let text = std::fs::read_to_string(workload().admin()).unwrap();
    // A port that is refused.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unreachable = text.replace(&workload().address().to_string(), &address.to_string());
    team.secret("kubeconfig", &json!({ "value": unreachable }));
    team.worker("w-0", &json!({}));
    site.until_waiting(&team, "w-0", "no bootstrap token can be made");
    assert!(!team.has_secret("w-0"));
    team.kubeconfig();
    site.until_ready(&team, "w-0");
}

/// A tenant may write the kubeconfig of its cluster.
#[test]
fn kubeconfig_of_a_tenant_starts_no_program() {
    let site = Site::shared();
    let place = Directory::new("kubeconfig").unwrap();
    let mark = place.path().join("started");
    let team = Team::new("tenant", &json!({}));
    team.authorities();
    team.initialize();
    let user = format!(
        "users:\n- name: tenant\n  user:\n    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      interactiveMode: Never\n      \
         command: touch\n      args: [\"{}\"]\n",
        mark.display()
    );
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: tenant\nclusters:\n- name: tenant\n  cluster: {{server: \"https://{}\"}}\n\
         contexts:\n- name: tenant\n  context: {{cluster: tenant, user: tenant}}\n{user}",
        workload().address()
    );
    team.secret("kubeconfig", &json!({ "value": kubeconfig }));
    team.worker("w-0", &json!({}));
    site.until_waiting(&team, "w-0", "no bootstrap token can be made");
    assert!(!mark.exists(), "the provider started a program of the tenant");
}
