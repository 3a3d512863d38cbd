//! A rack with its services and two hosts of a pool. The test is the provider and the controller.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_api::claim::{Claimant, ENROLLMENT_ANNOTATION};
use bedplate_api::configuration::{NodeRole, Template};
use bedplate_tests::agent_host::{AgentHost, NAME, paved};
use bedplate_tests::control_plane::{files, images, registry_files, version};
use bedplate_tests::guard::Directory;
use bedplate_tests::host::Host;
use bedplate_tests::kubernetes::Objects;
use bedplate_tests::netns::Namespace;
use bedplate_tests::objects;
use bedplate_tests::registry::Registry;
use bedplate_tests::wait;
use bedplate_tests::worker::take_turn;
use serde_json::{Value, json};

/// On a busy machine; each takes seconds on an idle one.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);
pub(crate) const RACK: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
pub(crate) const FIRST: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 21);
pub(crate) const SECOND: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 22);
/// Name of the second host.
pub(crate) const SECOND_NAME: &str = "node-2";
/// Namespace of the claimant.
pub(crate) const TENANT: &str = "team-a";
const PROVIDER: &str = "system:serviceaccount:bedplate-system:bedplate-infrastructure";
const PROVIDER_MANAGER: &str = "bedplate-cluster-infrastructure";
/// Rights that no role limits: the policies still hold.
const MASTERS: &str = "system:masters";
const FINALIZER: &str = "bedplate.dev/release";

/// The rack with its services, and the hosts.
pub(crate) struct Pool {
    pub(crate) directory: Directory,
    images: Registry,
    second: Host,
    /// The first host, and the API server of the management cluster.
    pub(crate) site: AgentHost,
    pub(crate) second_network: Namespace,
    pub(crate) rack: Namespace,
}

/// A host of the pool.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    pool: &'a Pool,
    pub(crate) name: &'static str,
    pub(crate) host: &'a Host,
}

impl Pool {
    pub(crate) fn start() -> Self {
        take_turn().unwrap();
        let directory = Directory::new("claims").unwrap();
        let rack = Namespace::new("claims").unwrap();
        rack.add_bridge("br0", Some((RACK, 24))).unwrap();
        let layout = directory.path().join("images");
        images(&layout).unwrap();
        let images = Registry::start_tls(&layout, &rack, (RACK, 5001).into()).unwrap();
        let network = connect(&rack, "claimed", FIRST);
        let site = AgentHost::start_in(network, Some((&rack, RACK)), 5).unwrap();
        let second_network = connect(&rack, "claimed2", SECOND);
        let second = site.add_host(SECOND_NAME, &second_network, "52:54:00:00:00:02", 5).unwrap();
        let pool = Self { directory, images, second, site, second_network, rack };
        for namespace in [TENANT, "bedplate-system"] {
            let object =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            pool.admin().apply(&object).unwrap();
        }
        pool.configuration();
        let policy = json!({ "spec": { "claimPolicy": { "namespaces": [TENANT] } } });
        for member in [pool.first(), pool.second()] {
            pool.admin().merge("machine", member.name, &policy).unwrap();
            member.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
        }
        pool
    }

    pub(crate) fn first(&self) -> Member<'_> {
        Member { pool: self, name: NAME, host: &self.site.host }
    }

    pub(crate) fn second(&self) -> Member<'_> {
        Member { pool: self, name: SECOND_NAME, host: &self.second }
    }

    fn admin(&self) -> &Objects {
        self.site.objects().unwrap()
    }

    fn provider(&self) -> Objects {
        self.admin().impersonating(PROVIDER, &[MASTERS])
    }

    /// The configuration of the pool, with its only version.
    fn configuration(&self) {
        let authority = self.images.authority().unwrap();
        let files = files().into_iter().chain(registry_files("10.7.0.1:5001", authority));
        let registry = self.site.registry();
        let template: Template = serde_json::from_value(json!({
            "image": { "reference": registry.reference(), "caBundle": registry.authority() },
            "kubernetes": { "version": version().unwrap() },
            "container": { "network": "Host" },
            "files": files.collect::<Vec<_>>(),
            "healthGate": { "timeoutSeconds": 600, "minReadySeconds": 1 },
        }))
        .unwrap();
        let configuration = objects::configuration("pool", &template).pool(TENANT);
        self.admin().apply(&configuration.json()).unwrap();
        self.admin().apply(&objects::version("pool", 1, &template).json()).unwrap();
    }

    /// Makes the Secret of a claimant.
    pub(crate) fn secret(&self, name: &str, data: &str) {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": { "name": name, "namespace": TENANT, "labels": { "cluster.x-k8s.io/cluster-name": "one" } },
            "data": { "value": STANDARD.encode(data), "format": STANDARD.encode("cloud-config") } });
        self.admin().within(TENANT).apply(&secret).unwrap();
    }
}

impl Member<'_> {
    /// Creates a claim as the provider does, and selects the version as the controller does.
    pub(crate) fn claim(self, name: &str, has_user_data: bool) {
        let key_id = self.status()["enrollment"]["keyID"].as_str().unwrap().to_owned();
        let claimant =
            Claimant { namespace: TENANT.into(), name: name.into(), uid: format!("uid-of-{name}") };
        let claim = objects::claim(self.name, &claimant).spec(|spec| {
            "one".clone_into(&mut spec.cluster_name);
            spec.role = NodeRole::ControlPlane;
            spec.bootstrap_secret_name = has_user_data.then(|| name.to_owned());
        });
        let claim = claim.metadata(|metadata| {
            metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
            metadata.annotations = Some([(ENROLLMENT_ANNOTATION.to_owned(), key_id)].into());
        });
        self.pool.provider().apply_as(PROVIDER_MANAGER, "", &claim.json(), "").unwrap();
        let selected =
            json!({ "name": "pool", "version": 1, "source": "Claim", "providerID": self.provider_id(name) });
        self.patch(&json!({ "selected": selected }));
    }

    pub(crate) fn provider_id(self, name: &str) -> String {
        format!("bedplate://{}/uid-of-{name}", self.name)
    }

    pub(crate) fn grant(self) {
        let condition = json!({ "type": "Granted", "status": "True", "reason": "Granted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let status = json!({ "conditions": [condition] });
        self.pool.provider().apply_status(PROVIDER_MANAGER, ("mcl", self.name), &status).unwrap();
    }

    /// Lets the host read one Secret, by its enrollment (D4).
    pub(crate) fn open_secret(self, name: &str) {
        let tenant = self.pool.admin().within(TENANT);
        let role = format!("bedplate-claim-{}", self.name);
        let key_id = self.status()["enrollment"]["keyID"].as_str().unwrap().to_owned();
        for object in [
            json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": { "name": role, "namespace": TENANT },
                "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": [name] }] }),
            json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": { "name": role, "namespace": TENANT },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role },
                "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
                    "name": format!("bedplate:enrollment:{key_id}") }] }),
        ] {
            tenant.apply(&object).unwrap();
        }
    }

    /// Removes the Role and its binding, as the provider does once the host bootstraps.
    pub(crate) fn close_secret(self) {
        let tenant = self.pool.admin().within(TENANT);
        for kind in ["rolebinding", "role"] {
            tenant.delete(kind, &format!("bedplate-claim-{}", self.name)).unwrap();
        }
    }

    /// Status of the Machine.
    pub(crate) fn status(self) -> Value {
        self.pool.admin().get("machine", self.name).unwrap().unwrap()["status"].clone()
    }

    fn patch(self, status: &Value) {
        self.pool.admin().merge_status("machine", self.name, status).unwrap();
    }

    fn claim_status(self) -> Value {
        let claim = self.pool.admin().get("mcl", self.name).unwrap().unwrap_or_default();
        claim["status"].clone()
    }

    /// Waits until the claim is in this state, and prints how long it took.
    pub(crate) fn until_state(self, state: &str) -> Value {
        let reached = || {
            let status = self.claim_status();
            let may_fail = matches!(state, "Failed" | "Released");
            assert!(may_fail || status["state"] != "Failed", "{status:#}\n{}", self.logs());
            Ok(Some(status).filter(|status| status["state"] == state))
        };
        self.until(state, reached)
    }

    /// Waits until the condition `Paved` is so, and prints how long it took.
    pub(crate) fn until_paved(self, what: &str, reached: impl Fn(&Value) -> bool) {
        self.until_status(what, |status| reached(&paved(status)));
    }

    pub(crate) fn until_status(self, what: &str, reached: impl Fn(&Value) -> bool) {
        self.until(what, || Ok(reached(&self.status()).then_some(())));
    }

    fn until<T>(self, what: &str, reached: impl FnMut() -> anyhow::Result<Option<T>>) -> T {
        let started = Instant::now();
        let found = wait::until_asked(what, LIMIT, reached);
        println!("{}: {what}: {:.1} s", self.name, started.elapsed().as_secs_f64());
        let shown =
            |error| panic!("{error:#}\n{:#}\n{:#}\n{}", self.claim_status(), self.status(), self.logs());
        found.unwrap_or_else(shown)
    }

    /// Returns the ends of the logs of agent, user data and kubelet.
    fn logs(self) -> String {
        let log = "tail -n 60 /var/lib/bedplate/slots/*/state/log/bedplate/user-data.log; journalctl --no-pager -n 25 -u kubelet.service \
                   --directory=$(ls -d /var/lib/bedplate/slots/*/state/log/journal | head -n 1) | cut -c1-300";
        let journal = self.host.journal("bedplate-agent").unwrap_or_default();
        format!("{journal}\n{}", self.host.run("sh", &["-c", log]).unwrap_or_default())
    }

    /// Ends the claim as the provider does. Both slots are empty then, and the host is free.
    pub(crate) fn release(self) {
        self.pool.provider().begin_delete("mcl", self.name).unwrap();
        self.until_state("Released");
        for path in ["/var/lib/bedplate/slots/a", "/var/lib/bedplate/slots/b", "/run/bedplate/slots/a"] {
            assert!(self.host.run("test", &["!", "-e", path]).is_ok(), "{path} is there");
        }
        // One of the directories may be missing.
        let find = "find /var/lib/bedplate/trash /run/bedplate/claim -type f 2>/dev/null || true";
        assert_eq!(self.host.run("sh", &["-c", find]).unwrap().trim(), "");
        self.until_status("the Machine reports the release", |status| {
            let is_empty = |slot: &Value| slot["state"] == "Empty";
            let slots = status["slots"].as_array().cloned().unwrap_or_default();
            status["claim"]["state"] == "Released" && !slots.is_empty() && slots.iter().all(is_empty)
        });
        let finalizers = json!({ "metadata": { "finalizers": null } });
        self.pool.provider().merge("mcl", self.name, &finalizers).unwrap();
        self.patch(&json!({ "selected": null }));
        self.until_paved("the host is free", |paved| paved["reason"] == "AwaitingClaim");
    }

    /// Asserts that a credential from another place does not read the Secret, although this host may.
    pub(crate) fn refuses(self, secret: &str, kubeconfig: &std::path::Path) {
        let read = ["get", "secret", "--namespace", TENANT, secret];
        let refused = self.pool.site.kubernetes.kubectl(kubeconfig, &read).unwrap_err().to_string();
        assert!(refused.contains("forbidden"), "{refused}");
    }
}

/// Returns a network of a host with this address in the rack.
fn connect(rack: &Namespace, name: &str, address: Ipv4Addr) -> Namespace {
    let network = Namespace::new(name).unwrap();
    let port = format!("v{}", address.octets()[3]);
    rack.add_veth(&port, &network, "eth0").unwrap();
    rack.ip(&format!("link set dev {port} master br0")).unwrap();
    network.ip(&format!("address add {address}/24 dev eth0")).unwrap();
    network.ip(&format!("route add default via {RACK}")).unwrap();
    network
}
