//! A Machine that runs and is then deleted. Each step of the deletion is held by the test.

use serde_json::{Value, json};

use super::owned::{CONTROL_PLANE, MACHINE, Owned, from_config};
use super::site::{Site, workload};

/// Finalizer of the test. It stands for the work of a provider.
pub(crate) const HOLD: &str = "test.example/hold";

/// Creates a namespace with Machine `m`, which has a KubeadmConfig and runs, and with Machine `cp` of the control plane.
pub(crate) fn running(name: &'static str) -> Owned {
    let owned = Owned::initialized(name);
    // The Node of a cluster without a control plane is not drained.
    owned.bare_machine("cp", &json!({ "data": "" }), &json!({ CONTROL_PLANE: "" }));
    // The Machine runs as soon as it has its ID.
    owned.join("m", "True");
    owned.config("m");
    owned.machine("m", &from_config("m"), &json!({}));
    owned.until("kubeadmconfig", "m", "its owner", |found| super::owned::owner(found, "Machine").is_some());
    owned.make_data("m");
    owned.until_phase("m", "Provisioning");
    owned.provision("m");
    owned.identify("m");
    owned.until_phase("m", "Running");
    owned
}

/// Keeps an object until [`release`].
pub(crate) fn hold(owned: &Owned, kind: &str, name: &str) {
    owned.objects.merge(kind, name, &json!({ "metadata": { "finalizers": [HOLD] } })).unwrap();
}

/// Ends the work of the provider for an object.
pub(crate) fn release(owned: &Owned, kind: &str, name: &str) {
    owned.objects.merge(kind, name, &json!({ "metadata": { "finalizers": null } })).unwrap();
}

/// Sets an annotation of a Machine, or removes it.
#[expect(clippy::needless_pass_by_value, reason = "values are made where they are used")]
pub(crate) fn annotate(owned: &Owned, name: &str, key: &str, value: Value) {
    owned.objects.merge(MACHINE, name, &json!({ "metadata": { "annotations": { key: value } } })).unwrap();
}

/// Starts a turn of a Machine. Without a change the next turn follows up to 20 s later.
pub(crate) fn poke(owned: &Owned, name: &str) {
    let version = owned.get(MACHINE, name)["metadata"]["resourceVersion"].clone();
    annotate(owned, name, "test.example/poke", version);
}

/// Requests the deletion of a Machine, as a user does.
pub(crate) fn begin(owned: &Owned, name: &str) {
    owned.objects.begin_delete(MACHINE, name).unwrap();
}

/// Waits until condition `Deleting` of Machine `m` has a reason and a text.
pub(crate) fn until(owned: &Owned, reason: &str, text: &str) -> Value {
    owned.until_condition((MACHINE, "m"), "Deleting", ["True", reason, text])
}

/// Waits until a Machine does not exist.
pub(crate) fn until_gone(owned: &Owned, name: &str) {
    Site::shared().until_gone(&owned.team, (MACHINE, name));
}

/// True if an object exists and is not being deleted.
pub(crate) fn is_alive(owned: &Owned, kind: &str, name: &str) -> bool {
    owned.get(kind, name)["metadata"]["deletionTimestamp"].is_null()
}

/// Points the kubeconfig of the Cluster to a port without a server.
pub(crate) fn disconnect(owned: &Owned) {
    let text = std::fs::read_to_string(workload().admin()).unwrap();
    let server = workload().address().to_string();
    assert!(text.contains(&server), "{server}");
    let change = json!({ "stringData": { "value": text.replace(&server, "127.0.0.1:1") } });
    owned.objects.merge("secret", &format!("{}-kubeconfig", owned.name), &change).unwrap();
}
