//! Each branch of the planner, by its rule.

use std::sync::Arc;

use bedplate_api::cluster::kubeadm::KubeadmConfig;
use bedplate_bootstrap::capi::CertificatePurpose;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::super::lock::Held;
use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A turn over objects that are merged into complete ones: config, Machine, Cluster.
pub(super) fn observed(config: Value, machine: Value, cluster: Value) -> Observed {
    let merged = |mut base: Value, change: Value| {
        json_merge(&mut base, change);
        base
    };
    let config = merged(
        json!({ "metadata": { "name": "m-config", "namespace": "team", "uid": "k", "generation": 1 }, "spec": {} }),
        config,
    );
    let machine = merged(
        json!({ "metadata": { "name": "m", "namespace": "team", "uid": "m" },
            "spec": { "clusterName": "c", "version": "v1.34.4",
                "bootstrap": { "configRef": { "apiGroup": "bootstrap.cluster.x-k8s.io",
                    "kind": "KubeadmConfig", "name": "m-config" } },
                "infrastructureRef": { "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateMachine", "name": "m" } } }),
        machine,
    );
    let cluster = merged(
        json!({ "metadata": { "name": "c", "namespace": "team", "uid": "c" },
            "spec": { "controlPlaneEndpoint": { "host": "10.0.0.9", "port": 6443 } },
            "status": { "initialization": { "infrastructureProvisioned": true } } }),
        cluster,
    );
    Observed {
        config: Arc::new(serde_json::from_value(config).unwrap()),
        owner: Owner::Machine(Arc::new(serde_json::from_value(machine).unwrap())),
        cluster: Some(Arc::new(serde_json::from_value(cluster).unwrap())),
        live: Live::default(),
    }
}

fn json_merge(base: &mut Value, change: Value) {
    match (base, change) {
        (Value::Object(base), Value::Object(change)) => {
            for (key, value) in change {
                json_merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, change) => *base = change,
    }
}

fn control_plane() -> Value {
    json!({ "metadata": { "labels": { "cluster.x-k8s.io/control-plane": "" } } })
}

fn initialized() -> Value {
    json!({ "status": { "initialization": { "controlPlaneInitialized": true } } })
}

/// A worker that joins, with its data absent.
fn worker() -> Observed {
    let mut observed = observed(json!({}), json!({}), initialized());
    (observed.live.data, observed.live.lock) = (Some(Data::Absent), Some(Lock::Free));
    observed
}

/// The first machine of a control plane, with its data absent.
fn first(cluster: Value) -> Observed {
    let mut observed = observed(json!({}), control_plane(), cluster);
    observed.live.data = Some(Data::Absent);
    observed
}

/// A Machine that holds the lock of an uninitialized cluster.
fn holder(cluster: Value) -> Observed {
    let mut observed = first(cluster);
    (observed.live.lock, observed.live.may_init) = (Some(Lock::Held(held("m"))), Some(true));
    observed
}

fn held(machine: &str) -> Held {
    let (cluster_uid, uid) = (Some("c".to_owned()), Some("1".to_owned()));
    Held { machine: machine.to_owned(), machine_uid: None, cluster_uid, uid }
}

pub(super) fn certificate(purpose: CertificatePurpose) -> Found {
    const PEM: &str = include_str!("../../../../../bootstrap/goldens/capi/ca.crt");
    let certificate = PEM.as_bytes().to_vec();
    Found::Certificate(Certificate { purpose, certificate, key: Some(Zeroizing::new(b"key".to_vec())) })
}

pub(super) const PURPOSES: [CertificatePurpose; 4] = [
    CertificatePurpose::ClusterAuthority,
    CertificatePurpose::EtcdAuthority,
    CertificatePurpose::FrontProxyAuthority,
    CertificatePurpose::ServiceAccount,
];

fn with_certificates(mut observed: Observed) -> Observed {
    observed.live.certificates = PURPOSES.map(|purpose| (purpose, certificate(purpose))).into();
    observed
}

fn with_id(mut observed: Observed, id: &str) -> Observed {
    let mut config = (*observed.config).clone();
    config.metadata.annotations = Some([(TOKEN_ID_ANNOTATION.to_owned(), id.to_owned())].into());
    observed.config = Arc::new(config);
    observed
}

/// Returns the conditions that a step writes, as `type status reason: message`.
fn conditions(act: &Act) -> Vec<String> {
    let Act::Status(status, _) = act else { panic!("{act:?}") };
    let line = |one: &Condition| format!("{} {} {}: {}", one.type_, one.status, one.reason, one.message);
    status.conditions.iter().map(line).collect()
}

/// Returns the message of `DataSecretAvailable` that a step writes.
fn cause(observed: &Observed) -> String {
    let shown = conditions(&plan(observed, now()));
    let cause = shown.iter().find_map(|line| line.strip_prefix("DataSecretAvailable False NotAvailable: "));
    cause.unwrap_or_else(|| panic!("{shown:?}")).to_owned()
}

/// Applies the status that a step writes.
fn settled(mut observed: Observed) -> Observed {
    let Act::Status(status, _) = plan(&observed, now()) else { panic!() };
    let mut config = (*observed.config).clone();
    config.status = Some(*status);
    observed.config = Arc::new(config);
    observed
}

#[test]
fn b1_config_without_machine_or_cluster_is_left() {
    let mut without = worker();
    without.owner = Owner::None;
    assert_eq!(plan(&without, now()), Act::Done(None));
    let mut without = worker();
    without.cluster = None;
    assert_eq!(plan(&without, now()), Act::Done(None));
    let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    assert_eq!(plan(&observed(deleted, json!({}), initialized()), now()), Act::Done(None));
}

#[test]
fn b1_paused_config_has_that_condition_only() {
    let cluster = observed(json!({}), json!({}), json!({ "spec": { "paused": true } }));
    let annotated = json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "" } } });
    for paused in [cluster, observed(annotated, json!({}), initialized())] {
        assert_eq!(conditions(&plan(&paused, now())), ["Paused True Paused: "]);
        assert_eq!(plan(&settled(paused), now()), Act::Done(None));
    }
}

#[test]
fn b1_config_of_a_machine_pool_is_reported() {
    let mut pool = worker();
    pool.owner = Owner::Pool;
    let shown = conditions(&plan(&pool, now()));
    assert!(shown[1].starts_with("FieldsSupported False UnsupportedFields: "), "{shown:?}");
    assert_eq!(plan(&settled(pool), now()), Act::Done(None));
}

#[test]
fn b1_data_waits_for_the_infrastructure_of_the_cluster() {
    let status = json!({ "status": { "initialization": { "infrastructureProvisioned": false } } });
    let waiting = observed(json!({}), json!({}), status);
    assert!(cause(&waiting).starts_with("infrastructure of the Cluster is not provisioned"));
    let shown = conditions(&plan(&waiting, now()));
    assert_eq!(shown[0], "Paused False NotPaused: ");
    assert!(shown[3].starts_with("Ready False NotReady: * DataSecretAvailable: infra"), "{shown:?}");
    assert_eq!(plan(&settled(waiting), now()), Act::Done(None));
}

#[test]
fn b1_unsupported_fields_make_no_data() {
    let ignition = observed(json!({ "spec": { "format": "ignition" } }), json!({}), initialized());
    assert!(cause(&ignition).contains("spec.format"));
}

#[test]
fn b1_machine_without_a_version_makes_no_data() {
    let without = observed(json!({}), json!({ "spec": { "version": null } }), initialized());
    assert!(cause(&without).starts_with("Machine has no version"));
}

#[test]
fn b1_secret_of_the_config_is_adopted_and_never_replaced() {
    let mut adopted = worker();
    adopted.live.data = Some(Data::Own);
    let Act::Status(status, _) = plan(&adopted, now()) else { panic!() };
    assert_eq!(status.data_secret_name.as_deref(), Some("m-config"));
    assert_eq!(status.initialization.unwrap().data_secret_created, Some(true));
    let mut foreign = worker();
    foreign.live.data = Some(Data::Foreign);
    assert!(cause(&foreign).starts_with("Secret m-config exists"));
    assert_eq!(plan(&settled(foreign), now()), Act::Done(Some(POLL_INTERVAL)));
    let mut unread = worker();
    unread.live.data = None;
    assert_eq!(plan(&unread, now()), Act::Read(Read::Data));
}

#[test]
fn b1_stored_data_is_not_made_again() {
    let status = json!({ "status": { "dataSecretName": "m-config", "initialization": { "dataSecretCreated": true } } });
    let stored = observed(status, json!({}), json!({ "status": { "initialization": null } }));
    let shown = conditions(&plan(&stored, now()));
    assert!(shown.contains(&"Ready True Ready: ".to_owned()), "{shown:?}");
    assert_eq!(plan(&settled(stored), now()), Act::Done(None));
}

#[test]
fn b1_restored_config_takes_the_name_from_its_machine() {
    let machine = json!({ "spec": { "bootstrap": { "dataSecretName": "kept" } } });
    let Act::Status(status, _) = plan(&observed(json!({}), machine, initialized()), now()) else { panic!() };
    assert_eq!(status.data_secret_name.as_deref(), Some("kept"));
}

#[test]
fn b1_values_of_secrets_are_read_once_and_bounded() {
    let files = json!({ "spec": { "files": [{ "path": "/a", "contentFrom": { "secret": { "name": "s", "key": "k" } } }] } });
    let mut from = observed(files, json!({}), initialized());
    from.live.data = Some(Data::Absent);
    assert_eq!(plan(&from, now()), Act::Read(Read::Contents));
    from.live.contents = Some(Contents::TooLarge);
    assert!(cause(&from).contains("larger than 1 MiB"));
    from.live.contents = Some(Contents::Read(BTreeMap::new()));
    from.live.lock = Some(Lock::Free);
    from.live.certificates = PURPOSES.map(|purpose| (purpose, certificate(purpose))).into();
    from.live.token = Some(TokenState::Made(Token::parse("abcdef.0123456789abcdef").unwrap()));
    assert!(cause(&with_id(from, "abcdef")).contains("key \"k\" of Secret \"s\""));
}

#[test]
fn kb9_worker_waits_for_the_first_machine() {
    let mut waiting = observed(json!({}), json!({}), json!({}));
    waiting.live.data = Some(Data::Absent);
    assert!(cause(&waiting).starts_with("control plane is not initialized"));
    assert_eq!(plan(&settled(waiting), now()), Act::Done(None), "the Cluster is watched");
}

#[test]
fn kb9_machine_that_makes_no_data_does_not_take_the_lock() {
    let old = json!({ "metadata": { "labels": { "cluster.x-k8s.io/control-plane": "" } }, "spec": { "version": "v1.20.0" } });
    let mut old = observed(json!({}), old, json!({}));
    old.live.data = Some(Data::Absent);
    assert!(cause(&old).starts_with("bootstrap data cannot be made"));
    assert_eq!(plan(&first(json!({})), now()), Act::Read(Read::Lock));
}

#[test]
fn kb9_one_machine_holds_the_lock() {
    let mut machine = first(json!({}));
    machine.live.lock = Some(Lock::Free);
    assert_eq!(plan(&machine, now()), Act::TakeLock);
    machine.live.lock = Some(Lock::Held(held("other")));
    assert_eq!(plan(&machine, now()), Act::Read(Read::Holder(held("other"))));
    machine.live.holder_exists = Some(true);
    assert_eq!(cause(&machine), "control plane is being initialized by Machine other");
    assert_eq!(plan(&settled(machine.clone()), now()), Act::Done(Some(POLL_INTERVAL)));
    machine.live.holder_exists = Some(false);
    assert_eq!(plan(&machine, now()), Act::ReleaseLock(held("other")));
    machine.live.lock = Some(Lock::Unreadable);
    assert!(cause(&machine).starts_with("ConfigMap c-lock does not name a Machine"));
}

#[test]
fn kb9_lock_of_an_earlier_machine_of_the_name_is_deleted() {
    let mut machine = first(json!({}));
    let Owner::Machine(owner) = &machine.owner else { panic!("a Machine owns it") };
    let own = Held { machine_uid: owner.metadata.uid.clone(), ..held("m") };
    let earlier = Held { machine_uid: Some("earlier".to_owned()), ..held("m") };
    machine.live.may_init = Some(true);
    machine.live.lock = Some(Lock::Held(own));
    assert_eq!(plan(&machine, now()), Act::Read(Read::Certificate(CertificatePurpose::ClusterAuthority)));
    machine.live.lock = Some(Lock::Held(earlier.clone()));
    // The store may be behind: the holder may be a later Machine.
    assert_eq!(plan(&machine, now()), Act::Read(Read::Holder(earlier.clone())));
    machine.live.holder_exists = Some(false);
    assert_eq!(plan(&machine, now()), Act::ReleaseLock(earlier));
}

#[test]
fn kb9_lock_of_an_earlier_cluster_of_the_name_is_deleted() {
    let mut machine = first(json!({}));
    for name in ["m", "other"] {
        let earlier = Held { cluster_uid: Some("earlier".to_owned()), ..held(name) };
        machine.live.lock = Some(Lock::Held(earlier.clone()));
        machine.live.may_init = Some(true);
        assert_eq!(plan(&machine, now()), Act::ReleaseLock(earlier), "{name}");
    }
}

#[test]
fn kb9_machine_that_is_deleted_takes_no_lock_and_gets_no_data() {
    let mut machine = first(json!({}));
    machine.live.lock = Some(Lock::Free);
    let Owner::Machine(owner) = &mut machine.owner else { panic!("a Machine owns it") };
    let deleted = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    std::sync::Arc::make_mut(owner).metadata.deletion_timestamp = Some(deleted);
    assert_eq!(plan(&machine, now()), Act::Done(None));
}

#[test]
fn kb9_holder_reads_the_cluster_live_before_it_makes_anything() {
    let mut machine = holder(json!({}));
    machine.live.may_init = None;
    assert_eq!(plan(&machine, now()), Act::Read(Read::Cluster));
    machine.live.may_init = Some(false);
    assert_eq!(plan(&machine, now()), Act::Done(Some(CATCH_UP_DELAY)));
}

#[test]
fn kb9_lock_is_released_after_initialization() {
    let mut worker = worker();
    worker.live.lock = None;
    assert_eq!(plan(&worker, now()), Act::Read(Read::Lock));
    worker.live.lock = Some(Lock::Held(held("gone")));
    assert_eq!(plan(&worker, now()), Act::ReleaseLock(held("gone")));
    let other = Held { cluster_uid: Some("other".to_owned()), ..held("gone") };
    worker.live.lock = Some(Lock::Held(other));
    assert_eq!(plan(&worker, now()), Act::Read(Read::Certificate(CertificatePurpose::ClusterAuthority)));
}

#[test]
fn b3_authorities_are_made_only_without_a_control_plane_object() {
    let mut machine = holder(json!({}));
    for purpose in PURPOSES {
        assert_eq!(plan(&machine, now()), Act::Read(Read::Certificate(purpose)));
        machine.live.certificates.insert(purpose, Found::Absent);
    }
    assert_eq!(plan(&machine, now()), Act::MakeCertificate(CertificatePurpose::ClusterAuthority));
    let reference =
        json!({ "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "c" });
    let mut managed = holder(json!({ "spec": { "controlPlaneRef": reference } }));
    managed.live.certificates = machine.live.certificates.clone();
    let shown = conditions(&plan(&managed, now()));
    let line = "CertificatesAvailable Unknown InternalError: Secret c-ca does not exist, ";
    assert!(shown.iter().any(|one| one.starts_with(line)), "{shown:?}");
}

#[test]
fn k7_authority_of_a_running_cluster_is_never_made() {
    for machine in [control_plane(), json!({})] {
        let mut joining = observed(json!({}), machine, initialized());
        (joining.live.data, joining.live.lock) = (Some(Data::Absent), Some(Lock::Free));
        joining.live.certificates = PURPOSES.map(|purpose| (purpose, Found::Absent)).into();
        let shown = conditions(&plan(&joining, now()));
        assert!(shown.iter().any(|one| one.ends_with("restore it from a backup")), "{shown:?}");
    }
}

#[test]
fn k7_invalid_secret_of_a_certificate_is_not_replaced() {
    let mut machine = with_certificates(holder(json!({})));
    machine.live.certificates.insert(CertificatePurpose::EtcdAuthority, Found::Empty);
    let Found::Certificate(mut keyless) = certificate(CertificatePurpose::ServiceAccount) else { panic!() };
    keyless.key = None;
    machine.live.certificates.insert(CertificatePurpose::ServiceAccount, Found::Certificate(keyless));
    let shown = conditions(&plan(&machine, now()));
    let line = "Secret c-etcd has no tls.crt, Secret c-sa has no tls.key; create it";
    assert!(shown.iter().any(|one| one.ends_with(line)), "{shown:?}");
}

#[test]
fn k7_external_etcd_is_given_by_users() {
    let etcd = json!({ "etcd": { "external": { "endpoints": ["https://10.0.0.1:2379"],
        "caFile": "/e/ca", "certFile": "/e/crt", "keyFile": "/e/key" } } });
    let mut machine = holder(json!({}));
    let mut config = (*machine.config).clone();
    config.spec.cluster_configuration = Some(serde_json::from_value(etcd).unwrap());
    machine.config = Arc::new(config);
    machine.live.certificates = PURPOSES.map(|purpose| (purpose, certificate(purpose))).into();
    let external = CertificatePurpose::ApiServerEtcdClient;
    assert_eq!(plan(&machine, now()), Act::Read(Read::Certificate(external)));
    machine.live.certificates.insert(external, Found::Absent);
    let shown = conditions(&plan(&machine, now()));
    assert!(shown.iter().any(|one| one.contains("c-apiserver-etcd-client does not exist")), "{shown:?}");
}

#[test]
fn kb9_first_machine_inits_without_a_token() {
    let Act::Store(data) = plan(&with_certificates(holder(json!({}))), now()) else { panic!() };
    assert!(data.text.contains("kubeadm init --config") && !data.text.contains("kubeadm join"));
}

#[test]
fn b1_machine_waits_for_the_endpoint_before_it_joins() {
    let without = json!({ "spec": { "controlPlaneEndpoint": null },
        "status": { "initialization": { "controlPlaneInitialized": true } } });
    let mut without = observed(json!({}), json!({}), without);
    (without.live.data, without.live.lock) = (Some(Data::Absent), Some(Lock::Free));
    assert!(cause(&without).starts_with("Cluster has no control plane endpoint"));
}

#[test]
fn kb6_token_is_recorded_before_it_is_made() {
    let joining = with_certificates(worker());
    assert_eq!(plan(&joining, now()), Act::RecordToken);
    let mut joining = with_id(joining, "abcdef");
    assert_eq!(plan(&joining, now()), Act::Read(Read::Token("abcdef".to_owned())));
    joining.live.token = Some(TokenState::Absent);
    assert_eq!(plan(&joining, now()), Act::MakeToken("abcdef".to_owned()));
    joining.live.token = Some(TokenState::Made(Token::parse("abcdef.0123456789abcdef").unwrap()));
    let Act::Store(data) = plan(&joining, now()) else { panic!() };
    assert!(data.text.contains("abcdef.0123456789abcdef") && data.text.contains("kubeadm join --config"));
}

#[test]
fn kb6_token_of_an_earlier_turn_is_not_used() {
    let mut joining = with_id(with_certificates(worker()), "abcdef");
    joining.live.token = Some(TokenState::There(None));
    assert_eq!(plan(&joining, now()), Act::RecordToken);
    assert_eq!(plan(&with_id(joining, "../../x"), now()), Act::RecordToken, "not an ID");
}

#[test]
fn kb6_silent_cluster_is_a_condition() {
    let mut joining = with_id(with_certificates(worker()), "abcdef");
    joining.live.token = Some(TokenState::Unknown("timed out".to_owned()));
    assert_eq!(cause(&joining), "no bootstrap token can be made: timed out");
    assert_eq!(plan(&settled(joining), now()), Act::Done(Some(POLL_INTERVAL)));
}

#[test]
fn kb6_given_token_is_used_as_it_is() {
    let given = json!({ "spec": { "joinConfiguration": { "discovery": { "bootstrapToken": { "token": "uvwxyz.0123456789abcdef" } } } } });
    let mut given = with_certificates(observed(given, json!({}), initialized()));
    (given.live.data, given.live.lock) = (Some(Data::Absent), Some(Lock::Free));
    let Act::Store(data) = plan(&given, now()) else { panic!() };
    assert!(data.text.contains("uvwxyz.0123456789abcdef"));
}

#[test]
fn kb6_token_is_renewed_until_the_node_exists() {
    let config = json!({ "metadata": { "annotations": { TOKEN_ID_ANNOTATION: "abcdef" } },
        "status": { "dataSecretName": "m-config", "initialization": { "dataSecretCreated": true } } });
    let mut stored = settled(observed(config.clone(), json!({}), initialized()));
    assert_eq!(plan(&stored, now()), Act::Read(Read::Token("abcdef".to_owned())));
    let mut with = |state| {
        stored.live.token = Some(state);
        plan(&stored, now())
    };
    let expires = |text: &str| TokenState::There(Some(text.to_owned()));
    assert_eq!(with(expires("2026-01-01T00:09:00Z")), Act::RenewToken("abcdef".to_owned()));
    assert_eq!(with(expires("2026-01-01T00:15:00Z")), Act::Done(Some(Duration::from_mins(5))));
    assert_eq!(with(TokenState::Absent), Act::Done(None));
    assert_eq!(with(TokenState::Unknown(String::new())), Act::Done(Some(POLL_INTERVAL)));
    let node = json!({ "status": { "nodeRef": { "name": "m" } } });
    assert_eq!(plan(&settled(observed(config, node, initialized())), now()), Act::Done(None));
}

#[test]
fn kb6_answer_of_a_workload_server_makes_no_loop() {
    let there = |text: &str| TokenState::There(Some(text.to_owned()));
    for (state, expected) in [
        (there("2026-01-01T00:15:00Z"), Some(Duration::from_mins(5))),
        (there("2020-01-01T00:00:00Z"), Some(POLL_INTERVAL)),
        (there("soon"), Some(POLL_INTERVAL)),
        (TokenState::There(None), Some(POLL_INTERVAL)),
        (TokenState::Unknown(String::new()), Some(POLL_INTERVAL)),
        (TokenState::Absent, None),
    ] {
        assert_eq!(after_renewal(&state, now()), expected, "{state:?}");
    }
}

#[test]
fn kb6_token_of_data_that_cannot_be_stored_is_replaced_after_a_delay() {
    let mut joining = with_id(with_certificates(worker()), "abcdef");
    let mut with = |text: &str| {
        joining.live.token = Some(TokenState::There(Some(text.to_owned())));
        plan(&joining, now())
    };
    assert_eq!(with("2026-01-01T00:14:57Z"), Act::Done(Some(Duration::from_secs(7))));
    for text in ["2026-01-01T00:14:50Z", "2026-01-01T00:00:00Z", "2026-01-01T00:16:00Z", "later"] {
        assert_eq!(with(text), Act::RecordToken, "{text}");
    }
}

#[test]
fn kb9_lock_that_is_deleted_is_waited_for() {
    let mut machine = first(json!({}));
    machine.live.lock = Some(Lock::Deleting);
    assert_eq!(cause(&machine), "ConfigMap c-lock is being deleted; remove its finalizers");
    let mut worker = worker();
    worker.live.lock = Some(Lock::Deleting);
    assert_eq!(plan(&worker, now()), Act::Read(Read::Certificate(CertificatePurpose::ClusterAuthority)));
}

#[test]
fn b1_status_that_is_the_same_is_not_written() {
    let mut waiting: Observed = observed(json!({}), json!({}), json!({}));
    waiting.live.data = Some(Data::Absent);
    let first = settled(waiting);
    let later = "2026-01-02T00:00:00Z".parse().unwrap();
    assert_eq!(plan(&first, later), Act::Done(None));
    let _: &KubeadmConfig = &first.config;
}

#[test]
fn kb6_no_token_is_made_for_data_that_cannot_be_rendered() {
    let worker = json!({ "spec": { "joinConfiguration": { "controlPlane": {} } } });
    let mut joining = with_certificates(observed(worker, json!({}), initialized()));
    (joining.live.data, joining.live.lock) = (Some(Data::Absent), Some(Lock::Free));
    assert!(cause(&joining).starts_with("bootstrap data cannot be made"));
}

#[test]
fn kb9_data_that_no_secret_holds_does_not_take_the_lock() {
    let content = "x".repeat(1024 * 1024);
    let mut large = first(json!({}));
    let mut config = (*large.config).clone();
    config.spec.files = vec![serde_json::from_value(json!({ "path": "/a", "content": content })).unwrap()];
    large.config = Arc::new(config);
    assert!(cause(&large).starts_with("bootstrap data has "));
}
