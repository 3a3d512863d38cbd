//! Enrollment with a real cluster (docs/design/rules.md, Trust 3): a seed of pxed, the real agent, a certificate that the cluster signs, and
//! the agent's own fields written with it, all under the roles of `deploy/`. No virtual machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use bedplate_tests::draw;
use bedplate_tests::guard::Process;
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{Pxed, Setup, binary, manifest, stub_image};
use bedplate_tests::rack::{ADDRESS, Rack};
use bedplate_tests::wait;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(90);
const MACHINE: &str = "server-1";

/// A host of the rack without its firmware: the agent, its directories, its place in the network.
struct Host {
    network: Namespace,
    directory: PathBuf,
}

impl Host {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Does stage-1's part: takes the boot's seed, once, and leaves it for the agent.
    fn take_seed(&self, boot: &str) {
        let path = format!("/{}/seed", boot.splitn(4, '/').nth(3).unwrap());
        let answer = self
            .network
            .inside(|| {
                let server = SocketAddr::new(ADDRESS.into(), 8067);
                let mut stream = TcpStream::connect_timeout(&server, Duration::from_secs(10))?;
                write!(stream, "GET {path} HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\n\r\n")?;
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer)?;
                Ok(String::from_utf8_lossy(&answer).into_owned())
            })
            .unwrap();
        // A newc archive with one file, whose JSON begins with the first brace.
        let (start, end) = (answer.find('{').unwrap_or_default(), answer.rfind('}').unwrap_or_default());
        assert!(answer.starts_with("HTTP/1.1 200 ") && start < end, "{answer}");
        let place = self.path("run/seed.json");
        std::fs::write(place.with_extension("new"), &answer[start..=end]).unwrap();
        std::fs::rename(place.with_extension("new"), place).unwrap();
    }

    fn start_agent(&self) -> Process {
        let mut command = self.network.command(binary("bedplate-agent").unwrap());
        command.arg("run").arg("--state-directory").arg(self.path("state"));
        command.arg("--run-directory").arg(self.path("run"));
        Process::spawn("bedplate-agent", &mut command, &self.path("agent.log")).unwrap()
    }

    /// Output of `bedplate-agent status`.
    fn standing(&self) -> String {
        let mut command = std::process::Command::new(binary("bedplate-agent").unwrap());
        command.arg("status").arg("--state-directory").arg(self.path("state"));
        let output = command.arg("--run-directory").arg(self.path("run")).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs another command of the agent's program. Returns what it printed.
    fn agent(&self, arguments: &[&str]) -> String {
        let mut command = self.network.command(binary("bedplate-agent").unwrap());
        command.args(arguments).arg("--state-directory").arg(self.path("state"));
        let output = command.arg("--run-directory").arg(self.path("run")).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn boot_id(&self) -> String {
        let text = std::fs::read(self.path("state/enrollment.json")).unwrap_or_default();
        let enrollment: Value = serde_json::from_slice(&text).unwrap_or_default();
        enrollment["bootId"].as_str().unwrap_or_default().to_owned()
    }
}

struct Rig<'n> {
    kubernetes: Kubernetes,
    pxed: Pxed<'n>,
    host: Host,
    agent: Process,
}

impl Rig<'_> {
    fn objects(&self) -> &Objects {
        self.kubernetes.objects().unwrap()
    }

    /// Returns a Machine; null while the API server is unavailable.
    fn get(&self, machine: &str) -> Value {
        self.objects().get("machine", machine).ok().flatten().unwrap_or_default()
    }

    fn machine(&self) -> Value {
        self.get(MACHINE)
    }

    /// Waits for a state of a Machine.
    fn until_machine(&mut self, machine: &str, what: &str, is: impl Fn(&Value) -> bool) {
        let is_so = |machine: Option<&Value>| is(machine?).then_some(());
        let reached = self.objects().until(("machine", machine), LIMIT, is_so);
        reached
            .unwrap_or_else(|error| panic!("{what}: {error:#}: {:#}\n{}", self.get(machine), self.story()));
    }

    /// Returns the user as which the API server authenticates the agent.
    fn agents_user(&self) -> Value {
        let agent = self.kubernetes.objects_of(&self.host.path("state/kubeconfig")).unwrap();
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let who = agent.request(&http::Method::POST, path, "application/json", &review).unwrap();
        who["status"]["userInfo"].clone()
    }

    /// Enrolls the host by a token of pxed's socket, once pxed knows the Machine. Returns the token.
    fn enrolls_by_a_token(&mut self, machine: &str) -> String {
        let mut token = String::new();
        self.until("a token, once pxed knows the Machine", |rig| {
            let mut command = std::process::Command::new(binary("bedplate").unwrap());
            command.arg("--socket").arg(rig.pxed.socket()).args(["machine", "token", machine]);
            let output = command.output().unwrap();
            token = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success()
        });
        let file = self.host.path("token");
        std::fs::write(&file, &token).unwrap();
        let words = ["enroll", "--server", "https://10.7.0.1:8443", "--wait", "80", "--token-file"];
        let mut command = self.host.network.command(binary("bedplate-agent").unwrap());
        command.args(words).arg(file).arg("--state-directory").arg(self.host.path("state"));
        let said = command.arg("--run-directory").arg(self.host.path("run")).output().unwrap();
        let words = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success(), "{words}\n{}", self.story());
        assert_eq!(String::from_utf8_lossy(&said.stdout), format!("this host is Machine {machine}\n"));
        token
    }

    fn story(&mut self) -> String {
        let (pxed, agent) = (self.pxed.process().said(), self.agent.said());
        format!("{}\npxed:\n{pxed}\nagent:\n{agent}", self.host.standing())
    }

    fn until(&mut self, what: &str, mut state: impl FnMut(&mut Self) -> bool) {
        let reached = wait::until(what, LIMIT, || Ok(state(self).then_some(())));
        reached.unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()));
    }
}

fn is_true(machine: &Value, kind: &str) -> bool {
    let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|c| c["type"] == kind && c["status"] == "True")
}

/// The certificate is the cluster's: asked for, approved by pxed, signed, and good for who it says.
fn certificate_is_the_clusters(rig: &mut Rig<'_>) {
    let requests = rig.objects().list("csr", "").unwrap();
    let [request] = requests.as_slice() else { panic!("{requests:#?}") };
    assert!(request["metadata"]["name"].as_str().unwrap().starts_with("bedplate-machine-server-1-"));
    assert_eq!(request["spec"]["username"], "system:serviceaccount:bedplate-system:pxed");
    assert_eq!(request["spec"]["signerName"], "kubernetes.io/kube-apiserver-client");
    let [approved] = request["status"]["conditions"].as_array().unwrap().as_slice() else {
        panic!("{request}")
    };
    assert_eq!((&approved["type"], &approved["reason"]), (&"Approved".into(), &"BedplateEnrollment".into()));
    let user = rig.agents_user();
    assert_eq!(user["username"], "bedplate:machine:server-1");
    assert!(user["groups"].as_array().unwrap().contains(&"bedplate:machines".into()), "{user}");
}

/// Each writer has its own fields of the Machine's status.
fn fields_have_their_writers(rig: &mut Rig<'_>) {
    let reports = |machine: &Value| machine["status"]["agent"]["lastHeartbeatTime"].is_string();
    rig.until_machine(MACHINE, "the agent's fields", reports);
    rig.until_machine(MACHINE, "the condition Enrolled", |machine| is_true(machine, "Enrolled"));
    // The heartbeat makes the condition True, and may arrive before the stages of the boot are written.
    rig.until_machine(MACHINE, "the last stage", |machine| machine["status"]["boot"]["stage"] == "Enrolled");
    let machine = rig.machine();
    let status = &machine["status"];
    assert_eq!(status["agent"]["version"], env!("CARGO_PKG_VERSION"));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(status["agent"]["bootID"], kernel.trim());
    assert!(status["hardware"]["cpu"]["threads"].as_i64().unwrap() > 0, "{status}");
    assert!(status["conditions"].to_string().contains("no stateDisk, so state is lost"), "{status}");
    let managers = machine["metadata"]["managedFields"].as_array().cloned().unwrap();
    let fields = |manager: &str| {
        let mut own = managers.iter().filter(|m| m["manager"] == manager && m["subresource"] == "status");
        let (Some(entry), None) = (own.next(), own.next()) else { panic!("{manager}: {managers:?}") };
        assert_eq!(entry["operation"], "Apply");
        let fields = entry["fieldsV1"]["f:status"].as_object().unwrap();
        fields.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(fields("bedplate-agent"), ["f:addresses", "f:agent", "f:hardware"]);
    assert_eq!(fields("pxed"), ["f:boot", "f:conditions"]);
    assert_eq!(fields("pxed-enrollment"), ["f:enrollment"]);
}

/// The certificate opens nothing but its own Machine.
fn another_machine_is_refused(rig: &mut Rig<'_>) {
    let agent = rig.kubernetes.objects_of(&rig.host.path("state/kubeconfig")).unwrap();
    let status = json!({ "agent": { "version": "0" } });
    // Policies take effect some time after their creation.
    let refused = || Ok(agent.apply_status("kubectl", ("machine", "server-2"), &status).err());
    let said = wait::until_asked("a refusal", LIMIT, refused).unwrap().to_string();
    assert!(said.contains("bedplate:machine:server-1 is not the agent of Machine server-2"), "{said}");
}

#[test]
fn host_enrolls_and_writes_its_fields_also_after_an_api_server_outage() {
    let rack = Rack::new("kubernetes-enroll").unwrap();
    let mut kubernetes = Kubernetes::installed_inside(rack.network(), ADDRESS.into()).unwrap();
    kubernetes.start_controllers(&["csrsigning"]).unwrap();
    for number in [1, 2] {
        let path = rack.file(&format!("server-{number}.yaml"));
        std::fs::write(&path, manifest(number, "")).unwrap();
        kubernetes.kubectl(&kubernetes.admin(), &["apply", "-f", &path.display().to_string()]).unwrap();
    }
    let account = kubernetes.service_account("bedplate-system", "pxed").unwrap();
    let mut setup = Setup::new(stub_image(rack.path()).unwrap());
    setup.source = Some(format!("kubernetes = {{ kubeconfig = {:?} }}\n", account.display().to_string()));
    let pxed = Pxed::start(&setup, &[], rack.network(), &rack.file("pxed")).unwrap();

    let host = Host { network: Namespace::new("host").unwrap(), directory: rack.path().to_owned() };
    for name in ["state", "run"] {
        std::fs::create_dir(host.path(name)).unwrap();
    }
    draw::connect(&rack, &host.network, "host").unwrap();
    let draw::Lease { base: boot, address, .. } = draw::lease(&host.network, Rack::mac(1), 1).unwrap();
    host.network.ip(&format!("address add {address}/24 dev eth0")).unwrap();
    host.take_seed(&boot);
    let agent = host.start_agent();
    let mut rig = Rig { kubernetes, pxed, host, agent };
    rig.until("an enrollment", |rig| boot.ends_with(&rig.host.boot_id()) && !rig.host.boot_id().is_empty());
    certificate_is_the_clusters(&mut rig);
    fields_have_their_writers(&mut rig);
    another_machine_is_refused(&mut rig);
    assert!(rig.host.standing().contains("Reports to        https://10.7.0.1:"), "{}", rig.host.standing());

    // The next boot, while the API server is unreachable.
    rig.kubernetes.stop_server();
    let boot = draw::lease(&rig.host.network, Rack::mac(1), 2).unwrap().base;
    rig.host.take_seed(&boot);
    rig.until("word of what is awaited", |rig| {
        rig.agent.said().contains("the cluster's API server does not answer")
    });
    assert!(!boot.ends_with(&rig.host.boot_id()), "nobody has signed");
    // Before the start: the agent reports once after its enrollment, and an unchanged status only after 300 s again.
    let restarted = jiff::Timestamp::now();
    rig.kubernetes.start_server().unwrap();
    rig.until("the second enrollment", |rig| boot.ends_with(&rig.host.boot_id()));
    rig.until_machine(MACHINE, "a heartbeat since", |machine| {
        let heartbeat = machine["status"]["agent"]["lastHeartbeatTime"].as_str();
        let heartbeat = heartbeat.and_then(|text| text.parse::<jiff::Timestamp>().ok());
        heartbeat.is_some_and(|heartbeat| heartbeat.as_second() >= restarted.as_second())
    });
    rack.succeeded();
}

/// H1: pxed does not boot this host; a user brings the token of pxed's socket.
#[test]
fn h1_a_host_that_a_person_installs_enrolls_with_the_cluster_by_a_token() {
    let rack = Rack::new("kubernetes-manual").unwrap();
    let mut kubernetes = Kubernetes::installed_inside(rack.network(), ADDRESS.into()).unwrap();
    kubernetes.start_controllers(&["csrsigning"]).unwrap();
    let machine = "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata: {name: desk-1}\nspec: {provider: manual}\n";
    let path = rack.file("desk-1.yaml");
    std::fs::write(&path, machine).unwrap();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "-f", &path.display().to_string()]).unwrap();
    let account = kubernetes.service_account("bedplate-system", "pxed").unwrap();
    let mut setup = Setup::new(stub_image(rack.path()).unwrap());
    setup.source = Some(format!("kubernetes = {{ kubeconfig = {:?} }}\n", account.display().to_string()));
    let pxed = Pxed::start(&setup, &[], rack.network(), &rack.file("pxed")).unwrap();

    let host = Host { network: Namespace::new("desk").unwrap(), directory: rack.path().to_owned() };
    for name in ["state", "run"] {
        std::fs::create_dir(host.path(name)).unwrap();
    }
    draw::connect(&rack, &host.network, "desk").unwrap();
    host.network.ip(&format!("address add {}/24 dev eth0", Ipv4Addr::new(10, 7, 0, 91))).unwrap();
    let agent = host.start_agent();
    let mut rig = Rig { kubernetes, pxed, host, agent };
    let token = rig.enrolls_by_a_token("desk-1");
    let reports = |machine: &Value| machine["status"]["agent"]["lastHeartbeatTime"].is_string();
    rig.until_machine("desk-1", "the agent's fields", reports);
    rig.until_machine("desk-1", "the condition Enrolled", |machine| is_true(machine, "Enrolled"));
    let user = rig.agents_user();
    assert_eq!(user["username"], "bedplate:machine:desk-1");
    assert!(user["groups"].as_array().unwrap().contains(&"bedplate:machines".into()), "{user}");
    let machine = rig.get("desk-1");
    assert!(machine["status"]["hardware"]["cpu"]["threads"].as_i64().unwrap() > 0, "{machine}");
    for field in ["certificateFingerprint", "keyFingerprint", "keyID", "keyTime"] {
        assert!(machine["status"]["enrollment"][field].is_string(), "{field}: {machine}");
    }
    let group = format!("bedplate:enrollment:{}", machine["status"]["enrollment"]["keyID"].as_str().unwrap());
    assert!(user["groups"].as_array().unwrap().contains(&group.as_str().into()), "{group}: {user}");
    assert!(machine["status"]["power"].is_null(), "nobody switches it: {machine}");
    let said = [rig.agent.said(), rig.pxed.process().said()].concat();
    assert!(!said.contains(token.trim()), "a token in the log");
    copied_key_is_worthless_after_a_rekey(&rack, &mut rig);
    rack.succeeded();
}

/// docs/concepts/agent.md, "A copied key": after `rekey` and another enrollment, the key before renews nothing and writes nothing of the Machine.
fn copied_key_is_worthless_after_a_rekey(rack: &Rack, rig: &mut Rig<'_>) {
    let copied = rig.get("desk-1");
    let thief = Host { network: Namespace::new("thief").unwrap(), directory: rack.file("thief") };
    std::fs::create_dir_all(thief.path("run")).unwrap();
    draw::connect(rack, &thief.network, "thief").unwrap();
    thief.network.ip(&format!("address add {}/24 dev eth0", Ipv4Addr::new(10, 7, 0, 92))).unwrap();
    std::fs::create_dir_all(thief.path("state")).unwrap();
    for entry in std::fs::read_dir(rig.host.path("state")).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), thief.path("state").join(entry.file_name())).unwrap();
        }
    }
    // It names the key by its path.
    let kubeconfig = std::fs::read_to_string(thief.path("state/kubeconfig")).unwrap();
    let (own, stolen) = (rig.host.path("state"), thief.path("state"));
    let kubeconfig = kubeconfig.replace(&own.display().to_string(), &stolen.display().to_string());
    std::fs::write(thief.path("state/kubeconfig"), kubeconfig).unwrap();
    let said = rig.host.agent(&["rekey"]);
    assert!(said.contains("new key created"), "{said}");
    rig.enrolls_by_a_token("desk-1");
    rig.until_machine("desk-1", "another key", |machine| {
        key_of(machine) != key_of(&copied) && is_true(machine, "Enrolled")
    });
    let replaced = rig.get("desk-1");
    assert_ne!(
        replaced["status"]["enrollment"]["keyID"], copied["status"]["enrollment"]["keyID"],
        "another group"
    );
    let stolen = rig.kubernetes.objects_of(&thief.path("state/kubeconfig")).unwrap();
    let status = json!({ "agent": { "version": "0" } });
    let refused = || Ok(stolen.apply_status("bedplate-agent", ("machine", "desk-1"), &status).err());
    let said = wait::until_asked("a refusal", LIMIT, refused).unwrap().to_string();
    assert!(said.contains("not the certificate that Machine desk-1 was enrolled with last"), "{said}");
    // Its agent sees that another certificate counts, and asks pxed for one with the key before.
    let agent = thief.start_agent();
    rig.until("pxed refuses the key before", |_| agent.said().contains("KeyReplaced"));
    assert_eq!(key_of(&rig.get("desk-1")), key_of(&replaced));
    assert!(is_true(&rig.get("desk-1"), "Enrolled"));
}

/// Another host that boots by the MAC address of the Machine: its agent with a key of its own. The name is also its device's on the bridge.
fn another_host(rack: &Rack, name: &str, transaction: u16) -> (Host, Process) {
    let directory = rack.file(name);
    let host = Host { network: Namespace::new(name).unwrap(), directory };
    for name in ["state", "run"] {
        std::fs::create_dir_all(host.path(name)).unwrap();
    }
    let boot = draw::draw_boot(rack, &host.network, name, transaction).unwrap();
    let address = Ipv4Addr::new(10, 7, 0, 90 + u8::try_from(transaction).unwrap());
    host.network.ip(&format!("address add {address}/24 dev eth0")).unwrap();
    host.take_seed(&boot);
    let agent = host.start_agent();
    (host, agent)
}

fn key_of(machine: &Value) -> String {
    machine["status"]["enrollment"]["keyFingerprint"].as_str().unwrap_or_default().to_owned()
}

fn is_refused(machine: &Value, address: &str) -> bool {
    let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let waits = |c: &Value| {
        let message = c["message"].as_str().unwrap_or_default();
        c["reason"] == "HeardElsewhere"
            && message.contains(address)
            && message.contains("bedplate machine re-enroll server-1")
    };
    conditions.iter().any(|c| c["type"] == "Enrolled" && waits(c))
}

impl Rig<'_> {
    /// Waits for a Warning Event of the Machine.
    fn until_warned(&mut self, reason: &str) {
        let is_it = |event: &Value| {
            event["reason"] == reason && event["type"] == "Warning" && event["regarding"]["name"] == MACHINE
        };
        let reported = |events: &[&Value]| events.iter().any(|event| is_it(event)).then_some(());
        let reached = self.objects().until_among("event", LIMIT, reported);
        reached.unwrap_or_else(|error| panic!("Event {reason}: {error:#}\n{}", self.story()));
    }

    fn permit(&self, rack: &Rack) {
        let mut command = rack.network().command(binary("bedplate").unwrap());
        command.arg("--kubeconfig").arg(self.kubernetes.admin()).args(["machine", "re-enroll", MACHINE]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Trust 6 in a cluster: a new key waits while the key in force is heard; a permission is for one key; an announced end needs none.
#[test]
fn trust_6_new_key_waits_for_a_permission_or_an_announced_end() {
    let rack = Rack::new("kubernetes-another").unwrap();
    let mut kubernetes = Kubernetes::installed_inside(rack.network(), ADDRESS.into()).unwrap();
    kubernetes.start_controllers(&["csrsigning"]).unwrap();
    let path = rack.file("server-1.yaml");
    std::fs::write(&path, manifest(1, "")).unwrap();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "-f", &path.display().to_string()]).unwrap();
    let account = kubernetes.service_account("bedplate-system", "pxed").unwrap();
    let mut setup = Setup::new(stub_image(rack.path()).unwrap());
    setup.source = Some(format!("kubernetes = {{ kubeconfig = {:?} }}\n", account.display().to_string()));
    // All three hosts draw the Machine's one address.
    setup.more = "[http]\nrequire-leased-address = false\n".to_owned();
    let pxed = Pxed::start(&setup, &[], rack.network(), &rack.file("pxed")).unwrap();
    let (host, agent) = another_host(&rack, "first", 1);
    let mut rig = Rig { kubernetes, pxed, host, agent };
    rig.until_machine(MACHINE, "a heartbeat", |machine| {
        machine["status"]["agent"]["lastHeartbeatTime"].is_string() && is_true(machine, "Enrolled")
    });
    let first = key_of(&rig.machine());

    // Its key is heard: another one waits, with a condition and a Warning Event.
    let (second, second_agent) = another_host(&rack, "second", 2);
    rig.until_machine(MACHINE, "the refusal", |machine| is_refused(machine, "10.7.0.92"));
    rig.until_warned("HeardElsewhere");
    rig.until("word of the wait", |_| second_agent.said().contains("pxed reports: host at 10.7.0.92"));
    assert_eq!(key_of(&rig.machine()), first);

    rig.permit(&rack);
    rig.until_machine(MACHINE, "another key", |machine| {
        key_of(machine) != first && is_true(machine, "Enrolled")
    });
    let replaced = key_of(&rig.machine());
    // The host before asks for a new certificate, and gets none.
    rig.until("the end of the old key", |rig| rig.agent.said().contains("KeyReplaced"));
    rig.until_warned("KeyReplaced");
    assert_eq!(key_of(&rig.machine()), replaced);

    // The permission was for one key.
    let (_third, third_agent) = another_host(&rack, "third", 3);
    rig.until_machine(MACHINE, "the second refusal", |machine| is_refused(machine, "10.7.0.93"));
    assert_eq!(key_of(&rig.machine()), replaced);

    // The agent of the host in force announces its end, by the right that it has, and is heard no more.
    drop(second_agent);
    let own = rig.kubernetes.objects_of(&second.path("state/kubeconfig")).unwrap();
    let end = json!({ "agent": { "version": "0.1.0", "lastHeartbeatTime": jiff::Timestamp::now().to_string(),
        "goingDownTime": jiff::Timestamp::now().to_string() } });
    own.apply_status("bedplate-agent", ("machine", MACHINE), &end).unwrap();
    rig.until_machine(MACHINE, "the third key", |machine| {
        !["", first.as_str(), replaced.as_str()].contains(&key_of(machine).as_str())
            && is_true(machine, "Enrolled")
    });
    assert!(!third_agent.said().contains("KeyReplaced"), "{}", third_agent.said());
    rack.succeeded();
}
