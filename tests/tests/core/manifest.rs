//! A manifest of upstream applies unchanged and rolls out. Fields that are not carried out are named.

use std::path::Path;

use serde_json::{Value, json};

use super::hosts::Hosts;
use super::recorder::is_available;
use super::site::{Site, Team, condition};
use super::workers::{NEXT_VERSION, Workers, names};

const DEPLOYMENT: (&str, &str) = ("machinedeployment", "upstream-md-0");

#[test]
fn k10_manifest_of_upstream_applies_unchanged_and_rolls_out() {
    let workers = Workers::of(Site::shared(), Team::without_cluster("upstream"), Hosts::start("upstream", 6));
    super::workers::control_plane(&workers.objects, "upstream-control-plane", "v1.34.5", Some("v1.34.5"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/core/upstream.yaml").display().to_string();
    // As a user does: client-side apply, which warns about each field that the definition does not have.
    let said = workers.kubectl(&["apply", "--validate=strict", "-f", &path]);
    assert_eq!(said.lines().filter(|line| line.ends_with(" created")).count(), 6, "{said}");
    workers.team.kubeconfig();
    // The infrastructure provider reports it.
    workers
        .objects
        .merge_status("bpc", "upstream", &json!({ "initialization": { "provisioned": true } }))
        .unwrap();
    workers.until(("cluster", "upstream"), "its control plane and its endpoint", |cluster| {
        cluster["status"]["initialization"]["controlPlaneInitialized"] == true
            && cluster["spec"]["controlPlaneEndpoint"] == json!({ "host": "10.7.0.9", "port": 6443 })
    });
    let deployment = workers.until_complete(DEPLOYMENT, 2);
    assert_eq!(condition(&deployment, "FieldsSupported").0, "True");
    let machines = workers.machines(DEPLOYMENT.1);
    assert!(machines.iter().all(|machine| machine["spec"]["failureDomain"] == "fd4"));
    let check = workers.until(("machinehealthcheck", "upstream-mhc-0"), "healthy Machines", |check| {
        check["status"]["currentHealthy"] == 2
    });
    assert_eq!(condition(&check, "FieldsSupported").0, "True");
    // A second apply changes nothing, and a new version rolls out.
    let said = workers.kubectl(&["apply", "--validate=strict", "-f", &path]);
    assert_eq!(said.lines().filter(|line| line.ends_with(" unchanged")).count(), 6, "{said}");
    workers.roll_out(DEPLOYMENT.1, NEXT_VERSION);
    workers.until_machines(DEPLOYMENT.1, "the new version", |machines| {
        let is_new = |machine: &&Value| machine["spec"]["version"] == NEXT_VERSION && is_available(machine);
        machines.len() == 2 && machines.iter().all(is_new)
    });
    workers.until_complete(DEPLOYMENT, 2);
    assert!(names(&workers.machines(DEPLOYMENT.1)).is_disjoint(&names(&machines)));
}
