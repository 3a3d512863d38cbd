//! `powerPolicy: OnClaim` with the real pxed, the real provider and a Redfish BMC (docs/guides/bmc.md, "Power on for a claim"; M6).

use bedplate_tests::bmc::chassis::Action;
use bedplate_tests::guard::Process;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::gate::Gate;
use super::site::{Agent, LONG_AGO, Site, Team, claims, condition, ready};
use crate::pods::{self, LIMIT, NAMESPACE, apply, secret};
use crate::server::Server;

/// A host that is off, behind a BMC, with its pxed site.
struct Rig {
    site: &'static Site,
    pxeds: pods::Site,
    server: Server,
    team: Team,
    agent: Agent,
}

impl Rig {
    /// Makes a host that has enrolled before, and was switched off.
    fn new(name: &'static str, number: u32) -> Self {
        let site = Site::shared();
        let pxeds = pods::Site::new(name);
        let server = Server::start(&format!("5b1e0000-0000-4000-8000-0000000003{number:02}"));
        secret(NAMESPACE, name);
        let mut spec = server.spec(NAMESPACE, name);
        spec["powerPolicy"] = json!("OnClaim");
        spec["claimPolicy"] = json!({ "namespaces": [name] });
        let host = format!("{name}-1");
        apply(&pxeds.machine_object(&host, &format!("52:54:00:00:c1:{number:02x}"), &spec));
        let (team, agent) = (Team::new(site, name), Agent::of(&host, name));
        team.provision();
        Self { site, pxeds, server, team, agent }
    }

    /// Waits until the host is on, and reports as its agent that the claim has joined.
    fn join(&self, machine: &str) {
        self.until_powered("True", "PoweredOn");
        self.agent.heartbeat();
        let is_granted = |found: &Value| condition(found, "Granted").0 == "True";
        self.site.until(&self.team, ("mcl", &self.agent.name), "the grant", is_granted);
        self.agent.report("Joined");
        self.site.until(&self.team, ("bpm", machine), "that it is ready", |found| ready(found).0 == "True");
    }

    /// Releases the host as its agent does, and waits until its claim is gone.
    fn release(&self, machine: &str) {
        self.team.objects.begin_delete("bpm", machine).unwrap();
        self.site.until(&self.team, ("mcl", &self.agent.name), "its deletion", |found| {
            found["metadata"]["deletionTimestamp"].is_string()
        });
        self.agent.report("Released");
        self.site.until_gone(&self.team, ("mcl", &self.agent.name));
    }

    /// Waits until pxed has read the power state twice more. Nothing else was asked of the BMC.
    fn stays(&self, asked: &[Action]) {
        let start = Timestamp::now();
        self.pxeds.until("two more looks", || (self.server.bmc.reports_after(start) >= 2).then_some(()));
        assert_eq!(self.server.asked(), asked);
    }

    fn until_powered(&self, status: &str, reason: &str) {
        self.pxeds.until_of(("machine", &self.agent.name), reason, |machine| {
            let found = condition(machine, "PoweredOn");
            ((found.0, found.1) == (status, reason)).then_some(())
        });
    }
}

fn ends(mut pxed: Process) {
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
}

#[test]
fn m6_bmc_sees_no_power_on_before_the_claim_exists() {
    let rig = Rig::new("on-claim", 1);
    let mut one = rig.pxeds.start("one");
    rig.until_powered("False", "ClaimPending");
    rig.team.machine("w-1", None);
    rig.site.until(&rig.team, ("bpm", "w-1"), "the data", |found| claims(found, "WaitingForBootstrapData"));
    rig.stays(&[]);
    rig.team.secret("data");
    rig.team.bootstrap_data("w-1", "data");
    rig.site.until(&rig.team, ("bpm", "w-1"), "a claim", |found| claims(found, "HostClaimed"));
    rig.join("w-1");
    rig.stays(&[Action::On]);
    // Another pxed finds a claimed host that is silent.
    one.kill();
    rig.agent.heard(LONG_AGO);
    let two = rig.pxeds.start("two");
    rig.pxeds.led_by("two");
    rig.stays(&[Action::On]);
    rig.release("w-1");
    // The claim is gone, and the host has not reported since.
    rig.stays(&[Action::On]);
    ends(two);
    let one = rig.pxeds.start("one");
    rig.pxeds.led_by("one");
    rig.stays(&[Action::On]);
    rig.agent.heartbeat();
    rig.until_powered("False", "ClaimPending");
    rig.stays(&[Action::On, Action::GracefulOff]);
    let machine = pods::get("machine", &rig.agent.name);
    assert_eq!(machine["status"]["power"]["lastAction"]["action"], "IdlePowerOff", "{machine}");
    ends(one);
}

#[test]
fn m6_unreachable_api_server_switches_no_host_off() {
    let rig = Rig::new("gated", 2);
    let kubernetes = Kubernetes::shared();
    let gate = Gate::to(kubernetes.address());
    let direct = std::fs::read_to_string(kubernetes.service_account(NAMESPACE, "pxed").unwrap()).unwrap();
    let gated = direct.replace(&kubernetes.address().to_string(), &gate.address.to_string());
    assert_ne!(gated, direct);
    let kubeconfig = rig.pxeds.path("gated.conf");
    std::fs::write(&kubeconfig, gated).unwrap();
    let mut one = rig.pxeds.start_with("one", &kubeconfig);
    rig.team.machine("w-1", Some(""));
    rig.join("w-1");
    gate.shut();
    // All that lets pxed switch the host off happens while pxed cannot see it.
    rig.release("w-1");
    rig.agent.heartbeat();
    let lease = rig.pxeds.lease();
    let renewed: Timestamp = lease["renewTime"].as_str().unwrap().parse().unwrap();
    let end = renewed + SignedDuration::from_secs(lease["leaseDurationSeconds"].as_i64().unwrap());
    wait::until("the end of the tenure", LIMIT, || Ok((Timestamp::now() > end).then_some(()))).unwrap();
    assert_eq!(rig.server.asked(), [Action::On]);
    assert!(one.is_running(), "{}", one.said());
    gate.open();
    rig.stays(&[Action::On]);
    // A report counts once pxed knows the claims again. An agent reports repeatedly.
    rig.pxeds.until_of(("machine", &rig.agent.name), "ClaimPending", |machine| {
        rig.agent.heartbeat();
        (condition(machine, "PoweredOn").1 == "ClaimPending").then_some(())
    });
    assert_eq!(rig.server.asked(), [Action::On, Action::GracefulOff]);
    ends(one);
}
