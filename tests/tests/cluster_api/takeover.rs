//! Two processes of the provider: one holds the Lease, and the other takes over (docs/reference/infrastructure-provider.md, "Failures"; D1).

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Kubernetes;

use super::site::{Agent, PATIENCE, Site, Team, claims, provider};

const LEADS: &str = "Lease acquired, leading";

/// The process that holds the Lease.
fn holder() -> String {
    let objects = Kubernetes::shared().objects().unwrap().within("bedplate-system");
    let lease = objects.get("lease", "bedplate-cluster-infrastructure").unwrap().expect("a process leads");
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// The providers of the other tests of this program need no Lease.
#[test]
fn d1_second_provider_waits_and_takes_over_from_a_killed_one() {
    let place = Directory::new("takeover").unwrap();
    let (first_log, second_log) = (place.path().join("first.log"), place.path().join("second.log"));
    let site = Site::installed(&first_log);
    let account = Kubernetes::shared().service_account("bedplate-system", "bedplate-infrastructure").unwrap();
    let mut first = provider(&account, &first_log, &["--namespace=takeover"]);
    first.wait_said(LEADS, PATIENCE).unwrap();
    let team = Team::new(&site, "takeover");
    for name in ["takeover-1", "takeover-2"] {
        Agent::new(name, team.name);
    }
    let until_claimed = |name: &str| {
        site.until(&team, ("bpm", name), "a claim", |found| claims(found, "HostClaimed"));
    };
    team.provision();
    let mut second = provider(&account, &second_log, &["--namespace=takeover", "--instance=second"]);
    second.wait_said("caches synced", PATIENCE).unwrap();
    team.machine("w-1", Some(""));
    until_claimed("w-1");
    assert!(holder().starts_with("bedplate-cluster_"), "{}", holder());
    assert!(!second.said().contains(LEADS), "{}", second.said());
    first.kill();
    team.machine("w-2", Some(""));
    second.wait_said(LEADS, PATIENCE).unwrap();
    until_claimed("w-2");
    assert!(holder().starts_with("second_"), "{}", holder());
    // The former leader's claim is as it was, and no host has two claimants.
    let mut claimants: Vec<_> = ["takeover-1", "takeover-2"]
        .iter()
        .map(|host| {
            team.objects.get("mcl", host).unwrap().expect("a claim")["spec"]["claimant"]["name"].clone()
        })
        .collect();
    claimants.sort_by_key(ToString::to_string);
    assert_eq!(claimants, ["w-1", "w-2"]);
}
