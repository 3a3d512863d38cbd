//! The core provider is killed before and after each of its writes in the life of a MachineDeployment: two replicas are made, replaced by a
//! rollout and deleted. Each life ends as if the provider had lived: no Machine and no object of one too many was ever made, and none is left.
//! The program, both API servers, the roles and the policies of `deploy/` are real.
//!
//! The proxy counts writes to the management cluster that have effects on other objects. Conditions and counts in the status of sets and deployments
//! have none.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod core {
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod hosts;
    #[allow(dead_code, reason = "each test program uses its part")]
    #[path = "../cluster_api/proxy.rs"]
    pub(crate) mod proxy;
    pub(crate) mod recorder;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod site;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod workers;
}

use std::collections::BTreeSet;

use bedplate_tests::guard::Directory;
use serde_json::{Value, json};

use self::core::proxy::{Death, Proxy, kind};
use self::core::recorder::{Recorder, is_available};
use self::core::site::{Site, account};
use self::core::workers::{NEXT_VERSION, VERSION, Workers};

const NAMESPACE: &str = "killed";
/// Machines of a life: those of two replicas, and their successors.
const MACHINES: usize = 4;
/// Number of counted writes from one death to the next one. Between two deaths the provider makes progress.
const STRIDE: usize = 7;
/// Kinds of the writes that a whole life needs.
const NEEDED: [&str; 14] = [
    "POST machinesets",
    "PATCH machinesets",
    "DELETE machinesets",
    "PATCH machinedeployments",
    "POST bedplatemachines",
    "PATCH bedplatemachines",
    "DELETE bedplatemachines",
    "POST kubeadmconfigs",
    "PATCH kubeadmconfigs",
    "DELETE kubeadmconfigs",
    "POST machines",
    "PATCH machines",
    "DELETE machines",
    "PATCH machines/status",
];

/// True for writes whose loss can have an effect on other objects.
fn counts(write: &str) -> bool {
    !["machinesets", "machinedeployments", "clusters"]
        .iter()
        .any(|kind| write.contains(&format!("/{kind}/")) && write.ends_with("/status"))
}

/// Records of the Machines, of their objects and of the sets.
struct Records {
    machines: Recorder,
    others: [Recorder; 3],
}

impl Records {
    fn start() -> Self {
        let of = |group: &str, plural: &str| Recorder::of(NAMESPACE, group, plural);
        Self {
            machines: Recorder::start(NAMESPACE),
            others: [
                of("infrastructure.cluster.x-k8s.io/v1alpha1", "bedplatemachines"),
                of("bootstrap.cluster.x-k8s.io/v1beta2", "kubeadmconfigs"),
                of("cluster.x-k8s.io/v1beta2", "machinesets"),
            ],
        }
    }

    /// Names of all objects since the start of the life, of which none is left.
    fn ended(&self) -> [BTreeSet<String>; 4] {
        let [hosts, configs, sets] = &self.others;
        [&self.machines, hosts, configs, sets].map(|record| {
            record.until("that nothing is left", |left| matches!(left, []));
            record.names().into_iter().collect()
        })
    }

    fn restart(&self) {
        self.machines.restart();
        self.others.iter().for_each(Recorder::restart);
    }
}

/// A deployment from its creation over a rollout to its end.
fn life(workers: &Workers<'_>, records: &Records, name: &str) {
    records.restart();
    workers.deployment(name, 2, &json!({}));
    let is_complete = |version: &'static str| {
        move |machines: &[&Value]| {
            machines.len() == 2
                && machines
                    .iter()
                    .all(|machine| machine["spec"]["version"] == version && is_available(machine))
        }
    };
    let (_, bounds) = records.machines.until(name, is_complete(VERSION));
    assert!(bounds.existing <= 2, "{name}: {bounds:?}");
    records.machines.restart_bounds();
    workers.roll_out(name, NEXT_VERSION);
    let (_, bounds) = records.machines.until(name, is_complete(NEXT_VERSION));
    assert!(bounds.existing <= 3 && bounds.available >= 2, "{name}: {bounds:?}");
    workers.until_complete(("machinedeployment", name), 2);
    workers.objects.begin_delete("machinedeployment", name).unwrap();
    workers.until_gone(("machinedeployment", name));
    let [machines, hosts, configs, sets] = records.ended();
    assert_eq!(machines.len(), MACHINES, "{name}: {machines:?}");
    assert_eq!((&hosts, &configs), (&machines, &machines), "{name}: each object belongs to a Machine");
    assert_eq!(sets.len(), 2, "{name}: {sets:?}");
}

#[test]
fn md6_provider_killed_at_any_write_ends_as_if_it_had_lived() {
    let place = Directory::new("core-killed").unwrap();
    let log = place.path().join("provider.log");
    let site = Site::installed(&log);
    let proxy = Proxy::start(&account(), place.path(), &log, NAMESPACE);
    let workers = Workers::with(&site, NAMESPACE, (2 * STRIDE + 1) * MACHINES);
    let records = Records::start();
    proxy.arm(None);
    life(&workers, &records, "d-0");
    let writes = proxy.writes();
    let counted = writes.iter().filter(|write| counts(write)).count();
    println!("{counted} of {} writes are counted: {writes:#?}", writes.len());
    let made: BTreeSet<String> = writes.iter().map(|write| kind(write)).collect();
    for needed in NEEDED {
        assert!(made.contains(needed), "{needed} in {made:#?}");
    }
    let mut deaths = BTreeSet::new();
    let mut number = 0;
    for first in 1..=STRIDE {
        for death in [Death::Before, Death::After] {
            proxy.arm_each((first, STRIDE), death, counts);
            life(&workers, &records, &format!("d-{first}-{death:?}").to_lowercase());
            let died = proxy.deaths();
            number += died.len();
            deaths.extend(died.iter().map(|write| (kind(write), format!("{death:?}"))));
        }
    }
    println!("{number} deaths of {} kinds: {deaths:#?}", deaths.len());
    assert!(number + 2 * STRIDE >= 2 * counted, "{number} deaths at {counted} writes");
    for needed in NEEDED {
        let hit = deaths.iter().filter(|(kind, _)| kind == needed).count();
        assert!(hit > 0, "no death at {needed}: {deaths:#?}");
    }
}
