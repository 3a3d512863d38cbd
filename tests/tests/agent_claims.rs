//! Hosts of a pool in a real cluster, claimed with user data as the kubeadm provider of the Cluster API writes it: the real agent, and the
//! slot's real kubeadm, kubelet, containerd and runc (see `control_plane` for what is omitted). The test is the provider and the controller.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod agent_claims {
    pub(crate) mod pool;
    pub(crate) mod user_data;
}

use bedplate_tests::control_plane::{Etcd, Member as EtcdMember, join_token};
use bedplate_tests::guard::run;
use bedplate_tests::kubernetes::programs;
use bedplate_tests::nodes::is_ready;
use bedplate_tests::wait;
use serde_json::{Value, json};

use self::agent_claims::pool::{FIRST, LIMIT, Member, Pool, SECOND};
use self::agent_claims::user_data::Cluster;

/// kubectl with the administrator's file of the claimant's cluster.
fn kubectl(pool: &Pool, arguments: &[&str]) -> anyhow::Result<String> {
    let path = pool.directory.path().join("admin.conf");
    let config = pool.first().host.read("/var/lib/bedplate/slots/a/state/kubernetes/admin.conf")?;
    std::fs::write(&path, config)?;
    let mut kubectl = pool.rack.command(programs()?.join("kubectl"));
    run(kubectl.arg("--kubeconfig").arg(&path).args(arguments))
}

fn node(pool: &Pool, name: &str) -> Value {
    serde_json::from_str(&kubectl(pool, &["get", "node", name, "-o", "json"]).unwrap()).unwrap()
}

/// Asserts that the Node is the claim's (D5).
fn assert_is_claimed(node: &Value, status: &Value, member: Member<'_>, name: &str) {
    assert_eq!(node["spec"]["providerID"], member.provider_id(name), "D5");
    assert_eq!(node["metadata"]["labels"]["bedplate.dev/machine"], member.name, "D5");
    assert!(node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"].is_string(), "{node:#}");
    assert_eq!(status["node"], json!({ "name": name, "uid": node["metadata"]["uid"] }));
}

/// kubeadm init in a claimed host.
fn init(pool: &Pool, cluster: &Cluster) {
    let member = pool.first();
    member.until_paved("no claim holds the host", |paved| paved["reason"] == "AwaitingClaim");
    pool.secret("w-1", &cluster.init());
    member.claim("w-1", true);
    member.until_state("Preparing");
    member.grant();
    // D4: the Role comes later. The host waits and does not fail.
    let waits = |paved: &Value| {
        paved["reason"] == "Preparing"
            && paved["message"].as_str().is_some_and(|text| text.contains("Secret team-a/w-1"))
    };
    member.until_paved("the host waits for the Secret", waits);
    member.open_secret("w-1");
    member.until_state("Bootstrapping");
    // D4: a certificate of the same Machine with another key, as an earlier tenant may have copied it. The host itself has read the Secret.
    let (copied, _) = pool.site.kubernetes.agent(member.name).unwrap();
    member.refuses("w-1", &copied);
    member.close_secret();
    let status = member.until_state("Joined");

    assert_is_claimed(&node(pool, "w-1"), &status, member, "w-1");
    let log = member.host.read("/var/lib/bedplate/slots/a/state/log/bedplate/user-data.log").unwrap();
    assert_eq!(log.matches("bedplate: runcmd\n").count(), 1, "{log}");
    // D3: nothing of the user data is left in the memory of the host.
    let left = member.host.run("ls", &["-A", "/run/bedplate/claim", "/run/bedplate/slots/a"]).unwrap();
    assert!(!left.contains("user-data"), "{left}");
    member.until_status("the Machine reports the claim", |status| status["claim"]["state"] == "Joined");
}

/// A second host joins the cluster as a control plane, and is released while the cluster continues.
fn join(pool: &Pool, cluster: &Cluster) {
    let (first, member) = (pool.first(), pool.second());
    let token = join_token(first.host, "bedplate-a").unwrap();
    pool.secret("w-2", &cluster.join(SECOND, &token));
    member.claim("w-2", true);
    member.grant();
    member.until_state("Preparing");
    member.open_secret("w-2");
    member.until_state("Bootstrapping");
    // D4: root of another claimed host of the same cluster.
    member.refuses("w-2", &pool.site.stolen_credential(first.host, first.name).unwrap());
    member.close_secret();
    let status = member.until_state("Joined");

    assert_is_claimed(&node(pool, "w-2"), &status, member, "w-2");
    wait::until_asked("the Node is Ready", LIMIT, || Ok(is_ready(&node(pool, "w-2")).then_some(()))).unwrap();
    let names = |members: Vec<EtcdMember>| members.into_iter().map(|member| member.name).collect::<Vec<_>>();
    let etcd = Etcd::of(member.host, &pool.second_network, SECOND, "a");
    assert_eq!(names(etcd.members().unwrap()), ["w-1", "w-2"]);
    let ready = |address| {
        let server = format!("https://{address}:6443");
        kubectl(pool, &["--server", &server, "get", "--raw", "/readyz"])
    };
    assert_eq!(ready(SECOND).unwrap().trim(), "ok");

    // In the place of the control plane's owner: the agent removes no member of etcd.
    let etcd = Etcd::of(first.host, &pool.site.network, FIRST, "a");
    etcd.remove("w-2").unwrap();
    kubectl(pool, &["delete", "node", "w-2"]).unwrap();
    member.release();
    assert_eq!(names(etcd.members().unwrap()), ["w-1"]);
    assert_eq!(ready(FIRST).unwrap().trim(), "ok");
    assert!(is_ready(&node(pool, "w-1")));
}

/// The host loses its power while the user data runs: memory and processes are lost, and the boot ID is another one. The texts that must be
/// hidden were in memory.
fn interrupted(pool: &Pool) {
    const KEY: &str = "e6a2eb8581237ab72a4f494f30285ec12a9694d750b9785706a83bfcbbbd2204";
    let member = pool.first();
    let data = format!(
        "#cloud-config\nbootcmd:\n- echo phrase hush-of-bootcmd\nwrite_files:\n- path: /etc/phrase\n  permissions: '0600'\n  content: hush-of-file\n\
         runcmd:\n- cat /etc/phrase\n- echo key {KEY}\n- echo reached the end\n- sleep infinity\n"
    );
    pool.secret("w-3", &data);
    member.claim("w-3", true);
    member.grant();
    member.open_secret("w-3");
    member.until_state("Bootstrapping");
    let log = || member.host.read("/var/lib/bedplate/slots/a/state/log/bedplate/user-data.log");
    let ran = || Ok(log().is_ok_and(|log| log.contains("reached the end")).then_some(()));
    wait::until_asked("the last command of the user data", LIMIT, ran).unwrap();
    let shell = |script: &str| member.host.run("sh", &["-ec", script]).unwrap();
    shell(
        "systemctl kill --signal=KILL bedplate-agent.service; systemctl stop bedplate-agent.service; machinectl terminate bedplate-a",
    );
    let gone = || Ok(member.host.run("machinectl", &["show", "bedplate-a"]).is_err().then_some(()));
    wait::until_asked("the slot has ended", LIMIT, gone).unwrap();
    shell(
        "rm -rf /run/bedplate/claim /run/bedplate/slots; cat /proc/sys/kernel/random/uuid >/run/next-boot; \
         mount --bind /run/next-boot /proc/sys/kernel/random/boot_id; systemctl start bedplate-agent.service",
    );
    let status = member.until_state("Failed");
    member.close_secret();
    assert_eq!(status["reason"], "Interrupted", "{status:#}");
    member.until_paved("the Machine reports it", |paved| paved["reason"] == "Interrupted");
    let journal = member.host.journal("bedplate-agent").unwrap();
    let shown = format!("{status} {} {journal}", member.status());
    for secret in ["hush-of", &KEY[..20]] {
        assert!(log().unwrap().contains(secret), "the slot itself keeps its log");
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
    assert_eq!(log().unwrap().matches("bedplate: runcmd\n").count(), 1, "it does not run twice");
    member.release();
}

/// 95 CPU seconds.
#[test]
fn d3_claimed_hosts_run_kubeadm_init_and_join_and_are_claimed_again() {
    let pool = Pool::start();
    let cluster = Cluster::create(pool.directory.path().join("pki"), FIRST);
    init(&pool, &cluster);
    join(&pool, &cluster);
    pool.first().release();

    interrupted(&pool);

    // Without user data the host has joined when its slot runs.
    let member = pool.second();
    member.claim("w-4", false);
    member.grant();
    let status = member.until_state("Joined");
    assert_eq!(status["providerID"], member.provider_id("w-4"));
    assert_eq!(member.host.read("/var/lib/machines/bedplate-a/etc/hostname").unwrap(), "w-4\n");
    member.release();
}
