//! The bootstrap provider is killed before and after each of its writes in the life of a cluster: the first machine is initialized, the control plane
//! gets a second machine, and a worker joins. The data is then as if the provider had lived. The program, both API servers, the roles and the
//! policies of `deploy/` are real.
//!
//! The proxy counts writes to the management cluster. Writes to the workload cluster, which are those of tokens, pass without a count.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod bootstrap {
    #[path = "../cluster_api/proxy.rs"]
    pub(crate) mod proxy;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod site;
}

use bedplate_tests::guard::Directory;
use serde_json::{Value, json};

use self::bootstrap::proxy::{Death, Proxy};
use self::bootstrap::site::{Site, Team, account, decoded, tokens};

const NAMESPACE: &str = "killed";
/// Kinds of the writes that a whole life needs: start and end of their lines.
const NEEDED: [(&str, &str); 7] = [
    ("POST namespaces/killed/configmaps/", "-lock"),
    ("POST namespaces/killed/secrets/", "-ca"),
    ("POST namespaces/killed/secrets/", "-sa"),
    ("POST namespaces/killed/secrets/", "-w"),
    ("DELETE namespaces/killed/configmaps/", "-lock"),
    ("PATCH namespaces/killed/kubeadmconfigs/", "-w"),
    ("PATCH namespaces/killed/kubeadmconfigs/", "/status"),
];

/// Certificates of a Cluster: UID and data of their Secrets.
fn certificates(team: &Team) -> Vec<(Value, Value)> {
    let secrets = ["ca", "etcd", "proxy", "sa"].map(|purpose| team.get("secret", &team.secret_name(purpose)));
    secrets.map(|secret| (secret["metadata"]["uid"].clone(), secret["data"].clone())).into()
}

/// A Cluster from its first machine to its first worker.
fn life(site: &Site, name: &str) {
    let team = Team::within(NAMESPACE, name, &json!({}));
    // Keys of this form are made in a moment.
    let quick = json!({ "clusterConfiguration": { "encryptionAlgorithm": "ECDSA-P256" } });
    let [first, second, worker] = ["a", "b", "w"].map(|machine| format!("{name}-{machine}"));
    team.control_plane(&first, &quick);
    team.provision();
    site.until_ready(&team, &first);
    let lock = team.get("configmap", &team.secret_name("lock"));
    let uid = &team.get("clustermachine", &first)["metadata"]["uid"];
    let information = json!({ "machineName": first, "machineUID": uid }).to_string();
    assert_eq!(lock["data"], json!({ "lock-information": information }), "{name}");
    let made = certificates(&team);
    let init = team.data(&first);
    assert!(init.runs("kubeadm init"), "{name}");
    team.kubeconfig();
    team.initialize();
    team.control_plane(&second, &quick);
    team.worker(&worker, &json!({}));
    for joining in [&second, &worker] {
        let config = site.until_ready(&team, joining);
        let data = team.data(joining);
        assert!(data.runs("kubeadm join"), "{joining}");
        let id = config["metadata"]["annotations"]["bedplate.dev/bootstrap-token-id"].as_str().unwrap();
        let token = tokens().get("secret", &format!("bootstrap-token-{id}")).unwrap();
        let token = token.unwrap_or_else(|| panic!("{joining}: the token of the data does not exist"));
        let text = format!("{id}.{}", decoded(&token, "token-secret"));
        let configuration = data.file("/run/kubeadm/kubeadm-join-config.yaml");
        assert!(configuration.contains(&text), "{joining}: the token is in the data");
    }
    site.until_gone(&team, ("configmap", &team.secret_name("lock")));
    assert_eq!(certificates(&team), made, "{name}: the certificates are those of the first machine");
    for (path, purpose) in [("ca.crt", "ca"), ("ca.key", "ca")] {
        let key = if path.ends_with("crt") { "tls.crt" } else { "tls.key" };
        let secret = team.get("secret", &team.secret_name(purpose));
        for machine in [&first, &second] {
            let file = team.data(machine).file(&format!("/etc/kubernetes/pki/{path}"));
            assert_eq!(file.trim_end(), decoded(&secret, key).trim_end(), "{machine}: {path}");
        }
    }
}

#[test]
fn b1_provider_killed_at_any_write_ends_as_if_it_had_lived() {
    let place = Directory::new("bootstrap-killed").unwrap();
    let log = place.path().join("provider.log");
    let site = Site::installed(&log);
    let proxy = Proxy::start(&account(), place.path(), &log, NAMESPACE);
    proxy.arm(None);
    life(&site, "c-0");
    let writes = proxy.writes();
    println!("{} writes: {writes:#?}", writes.len());
    for (start, end) in NEEDED {
        let is_found = writes.iter().any(|write| write.starts_with(start) && write.ends_with(end));
        assert!(is_found, "{start} {end} in {writes:#?}");
    }
    let (mut deaths, mut missed) = (0, Vec::new());
    for number in 1..=writes.len() {
        for death in [Death::Before, Death::After] {
            proxy.arm(Some((number, death)));
            life(&site, &format!("c-{number}-{death:?}").to_lowercase());
            if proxy.is_armed() {
                missed.push((number, death));
            } else {
                deaths += 1;
            }
        }
    }
    println!("{deaths} deaths; lives with fewer writes: {missed:?}");
    // Two writes of a status may be one if the states change quickly.
    assert!(deaths + 8 >= 2 * writes.len(), "{deaths} deaths, {missed:?}");
}
