//! pxed and the controller as pods, without a kubelet: what `deploy/` makes is taken by a real API server, and what
//! `deploy/Containerfile` puts together runs with the rights, the files and the configuration that DaemonSet and Deployment give it.

use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bedplate_tests::guard::{self, Directory, Process};
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::netns::Namespace;
use bedplate_tests::objects::{self, NODE_IMAGE};
use bedplate_tests::pxed::binary;
use bedplate_tests::wait;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(90);

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

fn daemon_set(kubernetes: &Kubernetes) -> Value {
    installed(kubernetes, "daemonset", "pxed")
}

fn installed(kubernetes: &Kubernetes, kind: &str, name: &str) -> Value {
    kubernetes.objects().unwrap().within("bedplate-system").get(kind, name).unwrap().unwrap()
}

#[test]
fn everything_is_installed_by_one_command_and_again_by_the_same() {
    let kubernetes = Kubernetes::shared();
    kubernetes.install().expect("nothing that cannot be applied twice");
    let set = daemon_set(kubernetes);
    let spec = &set["spec"]["template"]["spec"];
    assert_eq!(spec["nodeSelector"], json!({ "bedplate.dev/pxed": "" }), "nothing starts by itself");
    let map = spec["volumes"][0]["configMap"]["name"].as_str().unwrap();
    installed(kubernetes, "configmap", map);
}

/// Admission of pods (PodSecurity, priority, service account) checks pods only.
#[test]
fn a_pod_of_the_daemon_set_is_admitted() {
    let kubernetes = Kubernetes::shared();
    let template = daemon_set(kubernetes)["spec"]["template"].clone();
    is_admitted(kubernetes, &template["spec"], "bedplate-system");
}

/// Nothing of the node's: the strictest of Kubernetes' own levels takes it.
#[test]
fn a_pod_of_the_controller_is_admitted_where_only_restricted_pods_are() {
    let kubernetes = Kubernetes::shared();
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": "strict", "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "bedplate-controller", "namespace": "strict" } });
    for object in [namespace, account] {
        kubernetes.objects().unwrap().apply(&object).unwrap();
    }
    let spec = installed(kubernetes, "deployment", "bedplate-controller")["spec"]["template"]["spec"].clone();
    is_admitted(kubernetes, &spec, "strict");
    is_admitted(kubernetes, &spec, "bedplate-system");
    let mut lax = spec;
    lax["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
    let refused = admission(kubernetes, &lax, "strict").unwrap_err();
    assert!(format!("{refused:#}").contains("violates PodSecurity \"restricted"), "{refused:#}");
}

fn is_admitted(kubernetes: &Kubernetes, spec: &Value, namespace: &str) {
    wait::until_asked("a pod", LIMIT, || {
        match admission(kubernetes, spec, namespace) {
            Ok(()) => Ok(Some(())),
            // Made by the API server itself, soon after its start.
            Err(why) if why.to_string().contains("no PriorityClass") => Ok(None),
            Err(why) => Err(why),
        }
    })
    .unwrap();
}

fn admission(kubernetes: &Kubernetes, spec: &Value, namespace: &str) -> anyhow::Result<()> {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "try", "namespace": namespace },
        "spec": spec });
    kubernetes.objects()?.try_create(&pod).map(drop)
}

/// A directory as the image's root: what a stage of the Containerfile copies. What it takes from Debian is this machine's.
fn image(root: &Path, from: &str, entry: &str) {
    let text = std::fs::read_to_string(deploy("Containerfile")).unwrap();
    let (_, stage) = text.rsplit_once(&format!("{from}\n")).expect("nothing is below our files");
    let stage = stage.split("\nFROM ").next().unwrap();
    let mut copied = Vec::new();
    for line in stage.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let words: Vec<&str> = line.split(' ').filter(|word| *word != "--from=debian").collect();
        let [from, to] = words[..] else { panic!("{line}") };
        let from = match from.strip_prefix("target/static/") {
            Some(program) => binary(program).unwrap(),
            None => PathBuf::from(from),
        };
        let to = root.join(to.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        // Links stay links, as `COPY` leaves them.
        guard::run(Command::new("cp").arg("-RP").args([&from, &to])).unwrap();
        copied.push(to);
    }
    assert!(copied.len() >= 2, "{text}");
    assert!(stage.contains(&format!("ENTRYPOINT [\"{entry}\"]")), "{stage}");
}

/// Mounts that the kubelet adds for pxed: the volumes and the service account.
fn mounts(root: &Path, kubernetes: &Kubernetes) {
    for directory in ["etc/bedplate", "var/lib/bedplate", "run/bedplate"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    std::fs::copy(deploy("pxed.toml"), root.join("etc/bedplate/pxed.toml")).unwrap();
    account(root, kubernetes, "pxed");
}

/// Mount that the kubelet adds to every pod: the service account. The runtime adds devices.
fn account(root: &Path, kubernetes: &Kubernetes, name: &str) {
    let account = root.join("var/run/secrets/kubernetes.io/serviceaccount");
    std::fs::create_dir_all(&account).unwrap();
    let token = ["create", "token", name, "-n", "bedplate-system"];
    let token = kubernetes.kubectl(&kubernetes.admin(), &token).unwrap();
    std::fs::write(account.join("token"), token.trim()).unwrap();
    std::fs::write(account.join("namespace"), "bedplate-system").unwrap();
    std::fs::copy(kubernetes.ca(), account.join("ca.crt")).unwrap();
    // As every container has it (OCI runtime specification, "Default Devices").
    std::fs::create_dir_all(root.join("dev")).unwrap();
    let random = root.join("dev/urandom");
    guard::run(Command::new("mknod").args(["-m", "666"]).arg(&random).args(["c", "1", "9"])).unwrap();
    std::os::unix::fs::symlink("urandom", root.join("dev/random")).unwrap();
    // The root file system is read-only: it is another's, and user 0 has no right over others' files.
    for directory in ["", "etc", "etc/bedplate", "usr", "usr/bin", "var", "var/lib", "run"] {
        let directory = root.join(directory);
        if !directory.is_dir() {
            continue;
        }
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        chown(&directory, Some(65534), Some(65534)).unwrap();
    }
}

/// `/readyz` names those that are not.
fn loaders_are_there(network: &Namespace) {
    let ready = guard::run(network.command("curl").args(["-sS", "http://127.0.0.1:9067/readyz"])).unwrap();
    assert!(!ready.contains("loader"), "{ready}");
}

#[test]
fn the_image_runs_with_the_rights_and_files_of_the_pod() {
    let network = Namespace::new("pod").unwrap();
    let address = Ipv4Addr::new(10, 7, 0, 2);
    network.add_bridge("eth0", Some((address, 24))).unwrap();
    let kubernetes = Kubernetes::installed_inside(&network, address.into()).unwrap();
    let directory = Directory::new("pod-root").unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let root = directory.path().join("root");
    image(&root, "FROM scratch", "/usr/bin/pxed");
    mounts(&root, &kubernetes);

    let spec = daemon_set(&kubernetes)["spec"]["template"]["spec"].clone();
    let container = &spec["containers"][0];
    let rights = &container["securityContext"];
    assert_eq!(rights["capabilities"]["drop"], json!(["ALL"]));
    let mut bounding = "-all,+sys_chroot".to_owned();
    for right in rights["capabilities"]["add"].as_array().unwrap() {
        bounding.push_str(&format!(",+{}", right.as_str().unwrap().to_lowercase()));
    }
    let inside = |program: &str, arguments: &[String]| {
        let mut command = network.command("setpriv");
        // `chroot` needs a right that the pod does not have; pxed does not use it.
        command.args(["--no-new-privs", "--bounding-set", &bounding, "chroot"]).arg(&root).arg(program);
        command.args(arguments).env("KUBERNETES_SERVICE_HOST", address.to_string());
        command.env("KUBERNETES_SERVICE_PORT", kubernetes.address().port().to_string());
        command
    };
    let arguments: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
    let mut pxed =
        Process::spawn("pxed", &mut inside("/usr/bin/pxed", &arguments), &directory.path().join("log"))
            .unwrap();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let get = &container[probe]["httpGet"];
        let url = format!(
            "http://{}:{}{}",
            get["host"].as_str().unwrap(),
            get["port"],
            get["path"].as_str().unwrap()
        );
        wait::until_asked(probe, LIMIT, || {
            assert!(pxed.is_running(), "{}", pxed.said());
            Ok(guard::run(network.command("curl").args(["-sSf", &url])).ok())
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", pxed.said()));
    }
    loaders_are_there(&network);

    let machine = objects::machine("server-1").pxe("52:54:00:00:00:01");
    kubernetes.objects().unwrap().apply(&machine.json()).unwrap();
    let list = ["machine", "list"].map(str::to_owned);
    wait::until_asked("the Machine in `bedplate machine list`", LIMIT, || {
        let listed = guard::run(&mut inside("/usr/bin/bedplate", &list))?;
        Ok(listed.contains("server-1").then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", pxed.said()));
    assert!(root.join("var/lib/bedplate/pxed").is_dir(), "state is in the volume");
    pxed.terminate(LIMIT).unwrap();
}

/// The Deployment's pods have no network of the node's; here each has the address of the API server's network.
fn controller(kubernetes: &Kubernetes, network: &Namespace, root: &Path, pod: &str) -> Process {
    let spec = installed(kubernetes, "deployment", "bedplate-controller")["spec"]["template"]["spec"].clone();
    let container = &spec["containers"][0];
    let (all, own) = (&spec["securityContext"], &container["securityContext"]);
    assert_eq!((&all["runAsNonRoot"], &own["readOnlyRootFilesystem"]), (&json!(true), &json!(true)));
    assert_eq!(
        (&own["allowPrivilegeEscalation"], &own["capabilities"]),
        (&json!(false), &json!({ "drop": ["ALL"] }))
    );
    let user = format!("--userspec={}:{}", all["runAsUser"], all["runAsGroup"]);
    let read_only = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && shift && exec \"$@\"";
    let mut command = network.command("unshare");
    command.args(["--mount", "sh", "-c", read_only, "sh"]).arg(root);
    // Rights that `chroot` itself needs end with the change of the user: none of it is inherited.
    command.args(["setpriv", "--no-new-privs", "--bounding-set", "-all,+sys_chroot,+setuid,+setgid"]);
    command.args(["chroot", &user]).arg(root).arg("/usr/bin/bedplate-controller");
    command.args(container["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap()));
    let server = kubernetes.address();
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("KUBERNETES_SERVICE_HOST", server.ip().to_string());
    command.env("KUBERNETES_SERVICE_PORT", server.port().to_string());
    command.env("POD_NAME", pod).env("POD_NAMESPACE", "bedplate-system");
    Process::spawn(pod, &mut command, &root.with_extension(format!("{pod}.log"))).unwrap()
}

#[test]
fn the_controllers_image_runs_as_the_deployment_has_it() {
    let network = Namespace::new("cpod").unwrap();
    let address = Ipv4Addr::new(10, 7, 0, 2);
    network.add_bridge("eth0", Some((address, 24))).unwrap();
    let kubernetes = Kubernetes::installed_inside(&network, address.into()).unwrap();
    let directory = Directory::new("controller-root").unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let root = directory.path().join("root");
    image(&root, "FROM scratch AS controller", "/usr/bin/bedplate-controller");
    account(&root, &kubernetes, "bedplate-controller");

    let mut pod = controller(&kubernetes, &network, &root, "bedplate-controller-7d4b9-x2x4k");
    let spec =
        installed(&kubernetes, "deployment", "bedplate-controller")["spec"]["template"]["spec"].clone();
    let container = &spec["containers"][0];
    let port = &container["ports"][0]["containerPort"];
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["port"], container["ports"][0]["name"]);
        // A kubelet asks the pod's address, not its loopback.
        let url = format!("http://{address}:{port}{}", get["path"].as_str().unwrap());
        wait::until_asked(probe, LIMIT, || {
            assert!(pod.is_running(), "{}", pod.said());
            Ok(guard::run(network.command("curl").args(["-sSf", &url])).ok())
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", pod.said()));
    }
    let objects = kubernetes.objects().unwrap();
    let holds = |lease: Option<&Value>| {
        let holder = lease?["spec"]["holderIdentity"].as_str()?;
        holder.starts_with("bedplate-controller-7d4b9-x2x4k").then_some(())
    };
    objects
        .within("bedplate-system")
        .until(("lease", "bedplate-controller"), LIMIT, holds)
        .unwrap_or_else(|error| panic!("its Lease: {error:#}\n{}", pod.said()));

    let configuration = objects::configuration("workers", &objects::template(NODE_IMAGE));
    objects.apply(&configuration.json()).unwrap();
    objects
        .until(("mcv", "workers-v1"), LIMIT, |version| version.map(drop))
        .unwrap_or_else(|error| panic!("the first version: {error:#}\n{}", pod.said()));
    pod.terminate(LIMIT).unwrap();
}
