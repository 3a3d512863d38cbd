//! A node from nothing on a real host: systemd 252, machined and nspawn in namespaces, a real API server, our node image with its
//! real containerd, and the real agent in its own unit. No virtual machine, and therefore no kubelet: see `agent_host`. The test is
//! the controller, and registers the Node.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_tests::agent_host::{AgentHost, JOINS, NODE_TIMEOUT, has_applied, paved};
use bedplate_tests::guard::Directory;
use bedplate_tests::secret::Secret;
use bedplate_tests::wait;
use serde_json::json;

/// A kubeadm that keeps what it is given, puts it where the real one does, and waits.
const HOLDS: &str = "cp -r /run/bedplate /root/kept; mkdir -p /etc/kubernetes; \
     cp /run/bedplate/kubeconfig /etc/kubernetes/bootstrap-kubelet.conf; touch /var/lib/kubelet/held; \
     until [ -e /var/lib/kubelet/go ]; do sleep 0.1; done";

#[test]
fn a_host_is_paved_repaved_and_rolled_back_by_an_agent_in_its_own_unit() {
    let site = AgentHost::start(5).unwrap();
    site.version(1, JOINS).unwrap();
    site.version(2, "echo no such cluster >&2; exit 1").unwrap();
    // kubeadm fails long before that.
    let gate = json!([{ "op": "replace", "path": "/spec/template/healthGate/timeoutSeconds", "value": 30 }]);
    site.objects().unwrap().edit("mcv", "workers-v2", "", &gate).unwrap();
    site.version(3, JOINS).unwrap();
    site.host.run("ip", &["link", "add", "mine0", "type", "bridge"]).unwrap();
    site.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
    site.until("nothing is selected", |status| paved(status)["reason"] == "NoVersionSelected").unwrap();

    site.select(1).unwrap();
    site.until_node_is_pending().unwrap();
    // The agent's umask is narrow; the node's users must get in nevertheless: its D-Bus is one of them.
    for path in ["/var/lib/machines/bedplate-a", "/var/lib/machines/bedplate-a/etc/cni/net.d"] {
        assert_eq!(site.host.run("stat", &["--format=%a", path]).unwrap().trim(), "755", "{path}");
    }
    site.until("the first version is applied", |status| has_applied(status, 1, "a")).unwrap();
    let plan = site.host.run("bedplate-agent", &["plan"]).unwrap();
    assert!(plan.contains("Plan"), "{plan}");

    // As a network plug-in does, with whose range of addresses the next Node would have no Pod.
    site.host.run("ip", &["link", "add", "cni0", "type", "bridge"]).unwrap();
    site.host.run("ip", &["link", "add", "veth0", "type", "veth", "peer", "name", "veth1"]).unwrap();
    // As kube-proxy and portmap do; the host's own chain is `mine`.
    let filter = |words: &str| {
        let mut command = site.network.command("iptables-nft");
        bedplate_tests::guard::run(command.args(["-t", "nat"]).args(words.split(' '))).unwrap()
    };
    for words in [
        "-N KUBE-SERVICES",
        "-N CNI-01ab",
        "-A KUBE-SERVICES -j CNI-01ab",
        "-A OUTPUT -j KUBE-SERVICES",
        "-N mine",
    ] {
        filter(words);
    }

    // A user who was root in the slot may do so: a tool that the agent will run signals a process of the host's root.
    site.host.run("systemd-run", &["--quiet", "--unit=victim.service", "sleep", "infinity"]).unwrap();
    let pid = ["show", "--property=MainPID", "--value", "victim.service"];
    let tool =
        format!("#!/bin/sh\nkill -KILL {}\nexit 1\n", site.host.run("systemctl", &pid).unwrap().trim());
    let path = "/var/lib/machines/bedplate-a/usr/sbin/ip6tables-legacy-save";
    site.host.run("rm", &["-f", path]).unwrap();
    site.host.put(path, tool.as_bytes(), 0o755).unwrap();

    // The next one fails, and the first one runs again.
    site.select(2).unwrap();
    site.until("the second version is prepared", |status| status["slots"][1]["state"] == "Prepared").unwrap();
    site.delete_node().unwrap();
    site.until("the second version is taken back", |status| {
        status["rolledBack"]["from"]["version"] == 2 && status["slots"][0]["state"] == "Running"
    })
    .unwrap();
    let reason = site.status().unwrap()["rolledBack"]["message"].as_str().unwrap().to_owned();
    assert_eq!(reason.matches("no such cluster").count(), 1, "{reason}");
    let links = site.host.run("ip", &["-o", "link"]).unwrap();
    assert!(links.contains(" mine0: "), "what was there before any slot stays: {links}");
    assert!(!links.contains("cni0") && !links.contains("veth0"), "what a slot left is gone: {links}");
    let rules = filter("-S");
    assert!(rules.contains("-N mine"), "{rules}");
    assert!(!rules.contains("KUBE-") && !rules.contains("CNI-"), "what a slot left is gone: {rules}");
    let log = ["--no-pager", "--quiet", "--output=verbose", "--unit=bedplate-agent.service"];
    let log = site.host.run("journalctl", &log).unwrap();
    assert!(log.contains("kill: Operation not permitted"), "the tool was run, and refused: {log}");
    assert_eq!(site.host.run("systemctl", &["is-active", "victim.service"]).unwrap().trim(), "active");
    let metrics = site.metrics().unwrap();
    for line in [
        "bedplate_agent_plane_live 1",
        "bedplate_agent_health_gate_failures_total{result=\"rolled_back\"} 1",
        "bedplate_agent_slot{slot=\"a\",state=\"running\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    site.register_node().unwrap();

    // The third one, with an agent that is killed on the way.
    site.select(3).unwrap();
    site.until("the third version is prepared", |status| {
        status["slots"][1]["state"] == "Prepared" && status["slots"][1]["version"] == 3
    })
    .unwrap();
    site.delete_node().unwrap();
    site.until("slot b runs", |status| status["slots"][1]["state"] == "Running").unwrap();
    site.host.run("systemctl", &["kill", "--signal=KILL", "bedplate-agent.service"]).unwrap();
    site.until_node_is_pending().unwrap();
    site.until("the third version is applied", |status| has_applied(status, 3, "b")).unwrap();
    let status = site.host.run("bedplate-agent", &["status"]).unwrap();
    assert!(status.contains("Slot b            workers-v3, running"), "{status}");
    assert!(Path::new(&site.host.root()).exists());
}

/// The attack: root in a slot, of a bad image for instance, reads all that a join leaves there. A key of the agent outlives every slot, so
/// that a repave would not evict the attacker.
#[test]
fn trust_5_agent_key_never_enters_a_slot() {
    let site = AgentHost::start(5).unwrap();
    site.version(1, &format!("{HOLDS}; {JOINS}")).unwrap();
    // Each file of the slot is read meanwhile.
    let gate = json!([{ "op": "replace", "path": "/spec/template/healthGate/timeoutSeconds", "value": 600 }]);
    site.objects().unwrap().edit("mcv", "workers-v1", "", &gate).unwrap();
    site.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
    site.select(1).unwrap();
    let kubelet = "/var/lib/bedplate/slots/a/state/kubelet";
    wait::until_asked("kubeadm has begun", NODE_TIMEOUT, || {
        Ok(site.host.read(&format!("{kubelet}/held")).ok())
    })
    .unwrap();
    let agent = Secret::key(&site.host.read("/var/lib/bedplate/agent/key.pem").unwrap()).unwrap();
    let found = || agent.files_of_slot(&site.host, "a").unwrap();
    assert_eq!(found(), Vec::<PathBuf>::new(), "while it joins");

    // A search for the key of the kubelet finds it in each place, so the search works.
    let kubeconfig = site.host.read("/run/bedplate/slots/a/kubeconfig").unwrap();
    let key = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("client-key-data: ")).unwrap();
    let key = String::from_utf8(STANDARD.decode(key.trim_matches('"')).unwrap()).unwrap();
    let mut seen = Secret::key(&key).unwrap().files_of_slot(&site.host, "a").unwrap();
    seen.sort();
    let kept =
        ["/etc/kubernetes/bootstrap-kubelet.conf", "/root/kept/kubeconfig", "/run/bedplate/kubeconfig"];
    assert_eq!(seen, kept.map(PathBuf::from));
    assert!(agent.is_in(site.host.read("/var/lib/bedplate/agent/key.pem").unwrap().as_bytes()));
    let place = Directory::new("agentnode").unwrap();
    let path = place.path().join("kubelet.conf");
    std::fs::write(&path, &kubeconfig).unwrap();
    let who =
        site.kubernetes.kubectl(&path, &["auth", "whoami", "-o", "jsonpath={.status.userInfo}"]).unwrap();
    assert!(who.contains("\"system:node:node-1\"") && who.contains("\"system:nodes\""), "{who}");

    site.host.put(&format!("{kubelet}/go"), b"", 0o600).unwrap();
    site.until_node_is_pending().unwrap();
    site.until("the version is applied", |status| has_applied(status, 1, "a")).unwrap();
    assert_eq!(found(), Vec::<PathBuf>::new(), "as a node");
    let left = site.host.run("ls", &["/run/bedplate", "/run/bedplate/slots/a"]).unwrap();
    assert!(!left.contains("kubeconfig") && !left.contains(".key"), "{left}");
}
