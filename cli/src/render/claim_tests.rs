//! Golden texts of claims.

use serde_json::json;

use super::claim::{claim, claims};
use super::tests::{golden, look};
use crate::standing::tests::{claim as object, free, machine, now, record};
use crate::standing::{ClaimantSeen, HostClaim, Standing};

#[test]
fn d1_claims_are_listed_one_line_for_each_host() {
    let granted = json!([{ "type": "Granted", "status": "True", "reason": "Granted", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    let joined = object(
        &json!({}),
        &json!({ "providerID": "bedplate://host-1/u", "state": "Joined", "since": "2026-01-01T00:05:00Z", "conditions": granted }),
    );
    let fenced = json!([{ "type": "Fenced", "status": "False", "reason": "HostSilent", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    let silent = object(
        &json!({ "deletionTimestamp": "2026-01-01T00:06:00Z" }),
        &json!({ "providerID": "bedplate://host-1/u", "state": "Joined", "since": "2026-01-01T00:05:00Z", "conditions": fenced }),
    );
    let mut hosts = vec![
        HostClaim::new(&machine(&json!({}), &free()), None, now()),
        HostClaim::new(&machine(&json!({ "paused": true }), &free()), None, now()),
        HostClaim::new(&machine(&json!({}), &json!({ "claim": record("Joined", "u") })), None, now()),
        HostClaim::new(&machine(&json!({}), &json!({})), Some(&object(&json!({}), &json!({}))), now()),
        HostClaim::new(
            &machine(&json!({}), &json!({ "claim": record("Joined", "u") })),
            Some(&joined),
            now(),
        ),
        HostClaim::new(&machine(&json!({}), &json!({})), Some(&silent), now()),
    ];
    hosts[0].machine = "host-0".to_owned();
    golden("claims.txt", &claims(&hosts, look()));
    assert!(claims(&[], look()).starts_with("no Machine is in a pool; "));
}

#[test]
fn d1_claim_explains_a_host_whose_claimant_is_lost() {
    let conditions = json!([
        { "type": "Granted", "status": "True", "reason": "GrantWithdrawn", "message": "The host has started the claim.",
          "lastTransitionTime": "2026-01-01T00:02:00Z" },
        { "type": "Orphaned", "status": "True", "reason": "ClaimantNotFound", "message": "the claimant \u{1b}[31mis gone",
          "lastTransitionTime": "2026-01-01T00:09:00Z" }]);
    let status = json!({ "providerID": "bedplate://host-1/u", "state": "Joined", "since": "2026-01-01T00:05:00Z",
        "conditions": conditions });
    let host = machine(
        &json!({}),
        &json!({ "claim": record("Joined", "earlier"), "agent": { "lastHeartbeatTime": "2026-01-01T00:08:00Z" },
            "selected": { "name": "pool", "version": 3, "source": "Claim" } }),
    );
    let standing = Standing::new(&host, Some(&object(&json!({}), &status)), &ClaimantSeen::Absent, now());
    golden("claim.txt", &claim(&standing, look()));
    let free = Standing::new(&machine(&json!({}), &free()), None, &ClaimantSeen::None, now());
    let silent = Standing::new(&machine(&json!({}), &json!({})), None, &ClaimantSeen::None, now());
    golden("claim-not-enrolled.txt", &claim(&silent, look()));
    golden("claim-free.txt", &claim(&free, look()));
}
