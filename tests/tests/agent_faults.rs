//! Failures of a node as a host shows them, and changes of a running node: the real agent in its own unit, systemd 252, nspawn,
//! a real API server, as in `agent_node`. The kubelet and kubeadm are stand-ins; the identity of the kubelet is real.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;

use bedplate_tests::agent_host::{AgentHost, JOINS, NAME, NODE_TIMEOUT, has_applied, paved};
use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Objects;
use bedplate_tests::objects;
use bedplate_tests::secret::Secret;
use bedplate_tests::wait;
use serde_json::{Value, json};

/// A kubelet that does not start, and says a secret.
const ILL: &str = "#!/bin/sh\necho 'E1122 06:56:12.123456    1234 run.go:72] \"command failed\" err=\"no such flag: --color\" \
                   token=\"abcdef.0123456789abcdef\"' >&2\nexit 1\n";
/// A kubelet that finds a way to another certificate takes it, as a real one does by a request.
const RENEWS: &str = "[Service]\nExecStartPre=/bin/sh -c 'cd /var/lib/kubelet; if [ -e /etc/kubernetes/bootstrap-kubelet.conf ]; then \
                      cp -L /etc/kubernetes/bootstrap-kubelet.conf copy.conf; mv copy.conf seen.conf; mv pki/next.pem pki/kubelet-client-current.pem; fi'\n";
const APP: &str = "[Service]\nExecStart=/bin/sh -c 'cp /etc/app.conf /run/app.seen; exec sleep infinity'\n";

struct Site {
    host: AgentHost,
    directory: Directory,
}

impl Site {
    /// A version like the first one, but for this.
    fn version(&self, number: u32, change: impl FnOnce(&mut Value)) {
        let first = self.objects().get("mcv", "workers-v1").unwrap().unwrap();
        let mut template = first["spec"]["template"].clone();
        change(&mut template);
        let template = serde_json::from_value(template).unwrap();
        self.create(&objects::version("workers", number, &template).json());
    }

    fn objects(&self) -> &Objects {
        self.host.objects().unwrap()
    }

    fn create(&self, object: &Value) {
        self.objects().create(object).unwrap();
    }

    /// Asks for an applyConfiguration; its status when it has ended.
    fn apply_configuration(&self, name: &str) -> Value {
        let operation = objects::operation(name, "applyConfiguration").on(NAME);
        self.create(&operation.label("bedplate.dev/machine", NAME).json());
        self.objects().merge_status("mop", name, &json!({ "state": "Pending" })).unwrap();
        let ended = |operation: Option<&Value>| {
            let status = &operation?["status"];
            matches!(status["state"].as_str(), Some("Complete" | "Failed")).then(|| status.clone())
        };
        let ended = self.objects().until(("mop", name), NODE_TIMEOUT, ended);
        ended.unwrap_or_else(|error| panic!("{name}: {error:#}: {:#?}", self.objects().get("mop", name)))
    }

    fn in_slot(&self, path: &str) -> String {
        let leader = self
            .host
            .host
            .run("machinectl", &["show", "--property=Leader", "--value", "bedplate-a"])
            .unwrap();
        self.host.host.run("cat", &[&format!("/proc/{}/root{path}", leader.trim())]).unwrap()
    }
}

/// A kubelet's certificate with its key that ends in this year.
fn certificate(year: i32) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    params.self_signed(&key).unwrap().pem() + &key.serialize_pem()
}

/// A host that was off for too long recovers: the Node is not Ready, and the kubelet's certificate has expired.
fn a_kubelet_gets_another_certificate(site: &Site) {
    let host = &site.host;
    let kubelet = "/var/lib/bedplate/slots/a/state/kubelet";
    for (name, year) in [("kubelet-client-current.pem", 2020), ("next.pem", 2090)] {
        host.host.put(&format!("{kubelet}/pki/{name}"), certificate(year).as_bytes(), 0o600).unwrap();
    }
    host.set_ready("Unknown").unwrap();
    let seen = wait::until("the kubelet's way to a certificate", NODE_TIMEOUT, || {
        Ok(host.host.read(&format!("{kubelet}/seen.conf")).ok())
    });
    let path = site.directory.path().join("seen.conf");
    std::fs::write(&path, seen.unwrap()).unwrap();
    let who =
        host.kubernetes.kubectl(&path, &["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]);
    assert_eq!(who.unwrap(), format!("system:node:{NAME}"), "by a certificate of the kubelet");
    // The stand-in has kept a copy of what it was given.
    let agent = Secret::key(&host.host.read("/var/lib/bedplate/agent/key.pem").unwrap()).unwrap();
    assert_eq!(agent.files_of_slot(&host.host, "a").unwrap(), Vec::<PathBuf>::new());
    let leader =
        host.host.run("machinectl", &["show", "--property=Leader", "--value", "bedplate-a"]).unwrap();
    let link = format!("/proc/{}/root/etc/kubernetes/bootstrap-kubelet.conf", leader.trim());
    let gone = ["-L", &link, "-o", "-e", "/run/bedplate/slots/a/kubelet-bootstrap.conf"];
    let left = || Ok(host.host.run("test", &gone).is_err().then_some(()));
    wait::until_asked("the key is removed", NODE_TIMEOUT, left).unwrap();
    host.until("the kubelet has another certificate", |status| paved(status)["reason"] == "Applied").unwrap();
    host.set_ready("True").unwrap();
}

/// kubeadm as it leaves a node: joined, with the kubelet's way to the API server.
fn kubeadm(host: &AgentHost) -> String {
    let kubeconfig = host.kubernetes.user(&format!("system:node:{NAME}"), &["system:nodes"]).unwrap();
    let kubeconfig = std::fs::read_to_string(kubeconfig).unwrap();
    format!(
        "if [ \"$1\" = upgrade ]; then cat \"${{8}}\"/kubeletconfiguration*; cp \"${{8}}\"/kubeletconfiguration* /var/lib/kubelet/config.yaml; \
         exit; fi\nmkdir -p /etc/kubernetes\ncat >/etc/kubernetes/kubelet.conf <<'END'\n{kubeconfig}\nEND\n{JOINS}"
    )
}

#[test]
fn node_is_changed_in_place_and_log_of_failing_kubelet_is_reported() {
    let host = AgentHost::start(5).unwrap();
    let site = Site { host, directory: Directory::new("faults").unwrap() };
    let host = &site.host;
    host.version(1, &kubeadm(host)).unwrap();
    // The first one is not in use yet: it may still be changed.
    let more = json!([
        { "op": "add", "path": "/spec/template/kubernetes/nodeAnnotations", "value": { "example.com/note": "first" } },
        { "op": "add", "path": "/spec/template/units/0/dropins/-", "value": { "name": "98-renews.conf", "contents": RENEWS } },
        { "op": "add", "path": "/spec/template/units/-", "value": { "name": "app.service", "enabled": true, "contents": APP } },
        { "op": "add", "path": "/spec/template/files/-", "value": { "path": "/etc/app.conf", "content": "one\n",
            "inPlace": { "restartUnits": ["app.service"] } } },
    ]);
    site.objects().edit("mcv", "workers-v1", "", &more).unwrap();
    host.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
    host.select(1).unwrap();
    host.until_node_is_pending().unwrap();
    host.until("the first version is applied", |status| has_applied(status, 1, "a")).unwrap();
    let annotated = |node: Option<&Value>| {
        (node?["metadata"]["annotations"]["example.com/note"] == "first").then_some(())
    };
    site.objects().until(("node", NAME), NODE_TIMEOUT, annotated).expect("the version's annotations");

    // Everything that needs no repave, but taints.
    let changed = |template: &mut Value| {
        template["kubernetes"]["nodeLabels"] = json!({ "example.com/row": "8" });
        template["kubernetes"]["kubeletConfiguration"] = json!({ "maxPods": 50 });
        template["kernelModules"] = json!([]);
        template["sysctls"] = json!({ "net.ipv4.tcp_fin_timeout": "33" });
        let file =
            template["files"].as_array_mut().unwrap().iter_mut().find(|file| file["path"] == "/etc/app.conf");
        file.unwrap()["content"] = json!("two\n");
    };
    site.version(2, changed);
    let parameter = || host.host.read("/proc/sys/net/ipv4/tcp_fin_timeout").unwrap().trim().to_owned();
    assert_ne!(parameter(), "33");
    host.select(2).unwrap();
    host.until("the second version is prepared", |status| status["slots"][1]["version"] == 2).unwrap();
    let status = site.apply_configuration("in-place");
    assert_eq!(status["state"], "Complete", "{status:#}");
    host.until("the second version is applied", |status| has_applied(status, 2, "a")).unwrap();
    assert_eq!(parameter(), "33", "a kernel parameter");
    assert_eq!(site.in_slot("/etc/app.conf"), "two\n");
    assert_eq!(site.in_slot("/run/app.seen"), "two\n", "its unit was restarted");
    assert!(site.in_slot("/var/lib/kubelet/config.yaml").contains("maxPods: 50"));
    let node = site.objects().get("node", NAME).unwrap().unwrap();
    assert_eq!(node["metadata"]["labels"]["example.com/row"], "8");

    // Taints are a person's.
    site.version(3, |template| {
        changed(template);
        template["kubernetes"]["taints"] =
            json!([{ "key": "dedicated", "value": "gpu", "effect": "NoSchedule" }]);
    });
    host.select(3).unwrap();
    let status = site.apply_configuration("taints");
    assert_eq!(status["reason"], "TaintChangeRequired", "{status:#}");
    let taint =
        json!({ "spec": { "taints": [{ "key": "dedicated", "value": "gpu", "effect": "NoSchedule" }] } });
    site.objects().merge("node", NAME, &taint).unwrap();
    let status = site.apply_configuration("tainted");
    assert_eq!(status["state"], "Complete", "{status:#}");

    a_kubelet_gets_another_certificate(&site);

    // The next one's kubelet does not start: the former slot runs again, and the kubelet's journal is reported.
    site.version(4, |template| {
        let file = template["files"].as_array_mut().unwrap().iter_mut();
        let kubelet = file.into_iter().find(|file| file["path"] == "/usr/local/sbin/kubelet-stand-in");
        kubelet.unwrap()["content"] = json!(ILL);
    });
    host.select(4).unwrap();
    host.until("the fourth version is prepared", |status| {
        status["slots"][1]["state"] == "Prepared" && status["slots"][1]["version"] == 4
    })
    .unwrap();
    host.delete_node().unwrap();
    host.until("the fourth version is taken back", |status| {
        status["rolledBack"]["from"]["version"] == 4 && status["slots"][0]["state"] == "Running"
    })
    .unwrap();
    let status = host.status().unwrap();
    let reason = status["rolledBack"]["message"].as_str().unwrap();
    assert!(reason.starts_with("the kubelet is not healthy: "), "{reason}");
    assert!(
        reason.contains("\"command failed\" err=\"no such flag: --color\" token=\"[hidden]\""),
        "{reason}"
    );
}
