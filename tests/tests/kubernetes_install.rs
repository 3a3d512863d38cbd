//! `bedplate install` on a real API server: from nothing, again, over another manager's fields, without storing anything; and its output.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use serde_json::{Value, json};

/// For anything on a busy machine.
const DEADLINE: Duration = Duration::from_secs(90);

const IMAGE: &str = "registry.example/bedplate/controller:1";

fn command(kubeconfig: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(bedplate_tests::pxed::binary("bedplate").unwrap());
    command.arg("install").args(arguments).arg("--kubeconfig").arg(kubeconfig);
    command
}

fn install(kubernetes: &Kubernetes, arguments: &[&str]) -> Output {
    command(&kubernetes.admin(), arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The JSON output, and every object's action.
fn report(output: &Output) -> (Value, BTreeMap<String, String>) {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(output)));
    let word = |object: &Value, field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let objects = report["objects"].as_array().unwrap();
    let actions = objects
        .iter()
        .map(|object| (format!("{} {}", word(object, "kind"), word(object, "name")), word(object, "action")))
        .collect();
    (report, actions)
}

/// Name and resource version of everything that is there of these kinds.
fn versions(kubernetes: &Kubernetes) -> BTreeMap<String, String> {
    let kinds = "crd,validatingadmissionpolicy,validatingadmissionpolicybinding,clusterrole,clusterrolebinding,\
                 role,rolebinding,serviceaccount,deployment,poddisruptionbudget";
    let list = kubernetes.kubectl(&kubernetes.admin(), &["get", kinds, "-A", "-o", "json"]).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let ours = |item: &&Value| {
        let metadata = &item["metadata"];
        item.to_string().contains("bedplate") && metadata["name"] != "default"
    };
    let items = list["items"].as_array().unwrap().iter().filter(ours);
    items
        .map(|item| {
            let name = format!("{} {}", item["kind"], item["metadata"]["name"]);
            (name, item["metadata"]["resourceVersion"].as_str().unwrap().to_owned())
        })
        .collect()
}

#[test]
fn a_cluster_gets_everything_once_and_the_same_again_changes_nothing() {
    let kubernetes = Kubernetes::start().unwrap();
    let refused = install(&kubernetes, &[]);
    assert_eq!(refused.status.code(), Some(64), "{}", text(&refused));
    assert!(text(&refused).contains("deploy/Containerfile"), "{}", text(&refused));

    let nowhere = Directory::new("install").unwrap();
    let mut lost = Command::new(bedplate_tests::pxed::binary("bedplate").unwrap());
    lost.arg("install").env("HOME", nowhere.path()).env_remove("KUBECONFIG").env_remove("BEDPLATE_SOCKET");
    let lost = lost.output().unwrap();
    assert_eq!(lost.status.code(), Some(1), "{}", text(&lost));
    assert!(text(&lost).contains("hint: name the administrator's kubeconfig"), "{}", text(&lost));

    for line in ["machine list", "machine show a", "machine explain a", "config show a", "operation list"] {
        let mut command = Command::new(bedplate_tests::pxed::binary("bedplate").unwrap());
        command.args(line.split(' ')).arg("--kubeconfig").arg(kubernetes.admin());
        let before = command.output().unwrap();
        assert_eq!(before.status.code(), Some(1), "{line}: {}", text(&before));
        let said = text(&before);
        assert!(said.contains("the cluster rejected the request: machine"), "{line}: {said}");
        assert!(
            said.contains("hint: check that the kinds are installed; `bedplate install --kubeconfig"),
            "{line}: {said}"
        );
    }

    let dry = install(&kubernetes, &["--dry-run", "--image", IMAGE, "-o", "json"]);
    assert_eq!(dry.status.code(), Some(0), "{}", text(&dry));
    let (dry_run, actions) = report(&dry);
    assert!(actions.len() > 30 && actions.values().all(|action| action == "create"), "{actions:?}");
    assert_eq!((&dry_run["dryRun"], &dry_run["apiServer"]), (&json!(true), &json!("v1.34.4")));
    assert!(versions(&kubernetes).is_empty(), "{:?}", versions(&kubernetes));

    let first = install(&kubernetes, &["--image", IMAGE, "--no-wait"]);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first));
    let said = text(&first);
    assert!(said.contains("create   CustomResourceDefinition machines.bedplate.dev\n"), "{said}");
    assert!(said.contains(&format!("{} to create, 0 to change, 0 unchanged\n", actions.len())), "{said}");
    assert!(!said.contains('\u{1b}') && !said.contains('\r'), "{said}");

    let before = versions(&kubernetes);
    assert!(before.len() > 30, "{before:?}");
    let again = install(&kubernetes, &["--no-wait", "-o", "json"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again));
    let (again, actions) = report(&again);
    assert!(actions.values().all(|action| action == "unchanged"), "{again:#}");
    assert_eq!(again["controller"]["image"], IMAGE, "the one that is installed");
    assert_eq!(versions(&kubernetes), before);

    let other = install(&kubernetes, &["--dry-run", "--image", "registry.example/bedplate/controller:2"]);
    let line = "change      Deployment bedplate-system/bedplate-controller";
    let said = text(&other);
    let line = said.lines().find(|found| found.starts_with(line)).unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.ends_with("containers[controller].image registry.example/bedplate/controller:1 -> registry.example/bedplate/controller:2"),
        "{line}"
    );
    let without = install(&kubernetes, &["--dry-run", "--without-controller"]);
    assert!(!text(&without).contains("Deployment"), "{}", text(&without));
}

/// `kubectl apply -k` applies in the order of its kustomize, which has unknown kinds last unless `deploy/kustomization.yaml` sets another order. If a cluster
/// rejects the policies, kubectl still applies the other objects.
#[test]
fn kubectl_applies_policies_before_the_rights_that_they_narrow() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let kubectl = bedplate_tests::kubernetes::programs().unwrap().join("kubectl");
    let made = Command::new(kubectl).arg("kustomize").arg(&deploy).output().unwrap();
    assert!(made.status.success(), "{}", text(&made));
    let text = String::from_utf8(made.stdout).unwrap();
    let kinds: Vec<&str> = text
        .split("\n---\n")
        .map(|object| object.lines().find_map(|line| line.strip_prefix("kind: ")).unwrap())
        .collect();
    let places = |kind: &str| {
        let mut places =
            kinds.iter().enumerate().filter(|(_, found)| **found == kind).map(|(place, _)| place);
        let first = places.next().unwrap_or_else(|| panic!("no {kind} in {kinds:?}"));
        (first, places.next_back().unwrap_or(first))
    };
    let policies = places("ValidatingAdmissionPolicyBinding").1.max(places("ValidatingAdmissionPolicy").1);
    assert!(places("CustomResourceDefinition").1 < places("Namespace").0, "{kinds:?}");
    for right in ["ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "Deployment", "DaemonSet"] {
        assert!(policies < places(right).0, "{right} before a policy: {kinds:?}");
    }
}

/// The folder of a provider in a GitOps repository, by the kustomization.yaml of the page.
#[test]
fn overlay_of_the_page_keeps_the_namespace_and_names_the_image() {
    let page = include_str!("../../docs/getting-started/install.md");
    let mut fences = page.split("```text\n").filter_map(|rest| rest.split_once("```"));
    let (overlay, _) = fences.find(|(fence, _)| fence.starts_with("sortOptions:")).unwrap();
    let kubectl = bedplate_tests::kubernetes::programs().unwrap().join("kubectl");
    for provider in ["core", "bootstrap", "infrastructure"] {
        let folder = Directory::new("overlay").unwrap();
        let file = format!("{provider}-components.yaml");
        let components = std::fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api").join(&file),
        )
        .unwrap();
        std::fs::write(folder.path().join(&file), &components).unwrap();
        let overlay = overlay.replace("core-components.yaml", &file);
        std::fs::write(folder.path().join("kustomization.yaml"), overlay).unwrap();
        let made = Command::new(&kubectl).arg("kustomize").arg(folder.path()).output().unwrap();
        assert!(made.status.success(), "{}", text(&made));
        let made = String::from_utf8(made.stdout).unwrap();
        let is_namespace = |object: &&str| object.lines().any(|line| line == "kind: Namespace");
        let objects = |text: &str| text.split("\n---\n").filter(|object| object.contains("kind: ")).count();
        assert_eq!(made.split("\n---\n").filter(is_namespace).count(), 0, "{provider}");
        assert_eq!(objects(&made), objects(&components) - 1, "{provider}");
        assert!(made.contains("image: registry.internal/bedplate/cluster:0.1.0\n"), "{provider}");
        assert!(!made.contains("registry.example"), "{provider}");
        let kinds: Vec<&str> = made.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
        let last_policy =
            kinds.iter().rposition(|kind| kind.starts_with("ValidatingAdmissionPolicy")).unwrap();
        let first_right = kinds.iter().position(|kind| kind.ends_with("RoleBinding")).unwrap();
        assert!(last_policy < first_right, "{provider}: a right before its policy: {kinds:?}");
    }
}

/// As `kubectl apply -k deploy`, but for pxed as a pod.
#[test]
fn equal_fields_of_kubectl_are_adopted_and_other_values_need_force() {
    let kubernetes = Kubernetes::start().unwrap();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").display().to_string();
    let apply = ["apply", "--server-side", "-k", &deploy];
    kubernetes.kubectl(&kubernetes.admin(), &apply).unwrap();
    let image = ["-n", "bedplate-system", "get", "deployment", "bedplate-controller", "-o"];
    let image = [&image[..], &["jsonpath={.spec.template.spec.containers[0].image}"]].concat();
    let installed = kubernetes.kubectl(&kubernetes.admin(), &image).unwrap();

    let same = install(&kubernetes, &["--no-wait", "-o", "json"]);
    let (same, actions) = report(&same);
    assert!(actions.values().all(|action| action == "unchanged"), "{same:#}");

    let before = versions(&kubernetes);
    kubernetes.kubectl(&kubernetes.admin(), &apply).expect("it is still kubectl's");
    assert_eq!(versions(&kubernetes), before);
    let other = install(&kubernetes, &["--no-wait", "--image", IMAGE]);
    assert_eq!(other.status.code(), Some(1), "{}", text(&other));
    let said = text(&other);
    assert!(said.contains("conflict    Deployment bedplate-system/bedplate-controller"), "{said}");
    assert!(
        said.contains("conflict with \"kubectl\"")
            && said.contains("hint: ")
            && said.contains("--force-conflicts"),
        "{said}"
    );
    assert_eq!(versions(&kubernetes), before, "nothing at all");
    assert_eq!(kubernetes.kubectl(&kubernetes.admin(), &image).unwrap(), installed);

    let forced = install(&kubernetes, &["--no-wait", "--image", IMAGE, "--force-conflicts"]);
    assert_eq!(forced.status.code(), Some(0), "{}", text(&forced));
    assert_eq!(kubernetes.kubectl(&kubernetes.admin(), &image).unwrap(), IMAGE);
}

#[test]
fn install_names_missing_rights_before_it_changes_anything() {
    let kubernetes = Kubernetes::start().unwrap();
    let anybody = kubernetes.user("anybody", &[]).unwrap();
    let refused = command(&anybody, &["--image", IMAGE]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused);
    assert!(said.contains("kubectl auth can-i get customresourcedefinitions.apiextensions.k8s.io"), "{said}");
    assert!(versions(&kubernetes).is_empty());
}

#[test]
fn it_waits_until_the_controller_runs_and_says_what_keeps_it() {
    let kubernetes = Kubernetes::start().unwrap();
    let place = Directory::new("install").unwrap();
    let log = place.path().join("log");
    let mut running =
        Process::spawn("bedplate", &mut command(&kubernetes.admin(), &["--image", IMAGE]), &log).unwrap();
    let log_text = || std::fs::read_to_string(&log).unwrap_or_default();
    let until =
        |what: &str| wait::until(what, DEADLINE, || Ok(log_text().contains(what).then_some(()))).unwrap();
    // No controller of Deployments runs here: the test is it.
    until("bedplate-controller: not seen yet");
    let spec = ["-n", "bedplate-system", "get", "deployment", "bedplate-controller", "-o", "json"];
    let deployment: Value =
        serde_json::from_str(&kubernetes.kubectl(&kubernetes.admin(), &spec).unwrap()).unwrap();
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "controller-1", "namespace": "bedplate-system",
        "labels": deployment["spec"]["template"]["metadata"]["labels"] }, "spec": deployment["spec"]["template"]["spec"] });
    pod["spec"]["priorityClassName"] = Value::Null;
    let file = place.path().join("pod.json");
    std::fs::write(&file, pod.to_string()).unwrap();
    kubernetes.kubectl(&kubernetes.admin(), &["create", "-f", &file.display().to_string()]).unwrap();
    let status = |kind: &str, name: &str, status: Value| {
        let patch = json!({ "status": status }).to_string();
        let patch = [
            "-n",
            "bedplate-system",
            "patch",
            kind,
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        kubernetes.kubectl(&kubernetes.admin(), &patch).unwrap();
    };
    let waiting = json!({ "reason": "ImagePullBackOff", "message": "Back-off pulling image" });
    status(
        "pod",
        "controller-1",
        json!({ "containerStatuses": [{ "name": "controller", "image": IMAGE, "imageID": "",
        "ready": false, "restartCount": 0, "state": { "waiting": waiting } }] }),
    );
    let generation = &deployment["metadata"]["generation"];
    let counts = |available: u32| json!({ "observedGeneration": generation, "replicas": 2, "updatedReplicas": 2, "readyReplicas": available, "availableReplicas": available });
    status("deployment", "bedplate-controller", counts(1));
    until(
        "bedplate-controller: 1 of 2 run, 2 updated; controller-1: ImagePullBackOff Back-off pulling image\n",
    );
    assert!(running.is_running());
    status("deployment", "bedplate-controller", counts(2));
    wait::until("its end", DEADLINE, || Ok((!running.is_running()).then_some(()))).unwrap();
    assert!(log_text().ends_with("installed; bedplate-controller: 2 of 2 run\n"), "{}", log_text());

    status("deployment", "bedplate-controller", counts(0));
    let late = install(&kubernetes, &["--timeout", "1"]);
    assert_eq!(late.status.code(), Some(1), "{}", text(&late));
    assert!(
        text(&late).contains("the controller does not run after 1 s: bedplate-controller: 0 of 2 run"),
        "{}",
        text(&late)
    );
    assert!(text(&late).contains("hint: see `kubectl -n bedplate-system describe pods"), "{}", text(&late));
}

/// The only thing that it asks an API server that is too old.
#[test]
fn an_api_server_that_is_too_old_is_named_and_left_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = vec![0; 8192];
        let length = stream.read(&mut asked).unwrap();
        let body = json!({ "major": "1", "minor": "29+", "gitVersion": "v1.29.3-eks", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "" })
        .to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        String::from_utf8_lossy(&asked[..length]).into_owned()
    });
    let place = Directory::new("old").unwrap();
    let kubeconfig = place.path().join("kubeconfig");
    let content = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "old",
        "clusters": [{ "name": "old", "cluster": { "server": format!("http://{address}") } }],
        "contexts": [{ "name": "old", "context": { "cluster": "old", "user": "me" } }], "users": [{ "name": "me", "user": {} }] });
    std::fs::write(&kubeconfig, content.to_string()).unwrap();
    let refused = command(&kubeconfig, &["--image", IMAGE]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(
        text(&refused).contains("this API server is v1.29.3-eks: Bedplate needs Kubernetes 1.31 or newer"),
        "{}",
        text(&refused)
    );
    assert!(server.join().unwrap().starts_with("GET /version "));
}
