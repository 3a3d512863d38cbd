//! User data by us and by Debian's cloud-init: rendering, encodings, types, modes, owners, scripts and the order of steps.
//!
//! Python runs cloud-init's own modules from the unpacked package, which is not installed (`cargo xtask setup` fetches it). Texts that
//! are accepted here must mean the same there. Effects are compared in two overlays of this machine's root. Needs root.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_bootstrap::jinja::{self, Facts};
use bedplate_bootstrap::user_data::{Plan, Unsupported, UserData, WriteFile, plan_user_data};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

const FACTS: Facts<'static> = Facts {
    provider_id: "bedplate://rack-1/6f9c",
    node_name: "md-0-x2x",
    local_hostname: "md-0-x2x.example",
    instance_id: "6f9c",
    platform: "bedplate",
};

/// Number of random texts that each test compares.
const TEXTS: usize = 600;

/// Directory of the unpacked packages' Python modules.
fn modules() -> PathBuf {
    let home =
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache/bedplate");
    let cache = std::env::var_os("BEDPLATE_CACHE").map_or_else(home, PathBuf::from);
    let place = cache.join("downloads/cloud-init/usr/lib/python3/dist-packages");
    assert!(place.is_dir(), "{} is missing: run `cargo xtask setup`", place.display());
    place
}

fn driver() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cloud_init/driver.py")
}

/// The facts as a data source of cloud-init gives them. cloud-init itself makes the names with underscores, and those at the top.
fn instance() -> Value {
    json!({
        "ds": {"meta_data": {
            "name": FACTS.node_name, "hostname": FACTS.local_hostname, "local-hostname": FACTS.local_hostname,
            "instance-id": FACTS.instance_id, "provider-id": FACTS.provider_id,
        }},
        "v1": {
            "local-hostname": FACTS.local_hostname, "instance-id": FACTS.instance_id, "platform": FACTS.platform,
            "cloud-name": FACTS.platform, "cloud_id": FACTS.platform,
        },
    })
}

/// Returns what cloud-init makes of each text.
fn theirs(texts: &[String]) -> Vec<Value> {
    let mut child = Command::new("/usr/bin/python3")
        .arg("-S")
        .arg(driver())
        .arg("plan")
        .env("PYTHONPATH", modules())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let task = json!({"texts": texts, "instance": instance()}).to_string();
    child.stdin.take().unwrap().write_all(task.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the driver ended with {}", output.status);
    let answers: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answers.len(), texts.len());
    answers
}

fn ours(text: &str) -> Option<Plan> {
    let data = UserData { value: text.as_bytes(), format: None };
    plan_user_data(data, &FACTS, Unsupported::Refuse).ok().map(|accepted| accepted.plan)
}

/// Returns a plan in the form of the driver.
fn shown(plan: &Plan) -> Value {
    let file = |file: &WriteFile| {
        json!({
            "path": file.path, "mode": file.mode, "append": file.append, "user": file.owner.user, "group": file.owner.group,
            "content": STANDARD.encode(&*file.content),
        })
    };
    json!({
        "files": plan.files.iter().chain(&plan.deferred_files).map(file).collect::<Vec<_>>(),
        "boot": plan.boot_script().as_str(),
        "run": plan.run_script().as_str(),
    })
}

/// Compares each text that is accepted here, and returns their number.
fn compare_plans(texts: &[String]) -> usize {
    let mut accepted = 0;
    for (text, mut answer) in texts.iter().zip(theirs(texts)) {
        let Some(plan) = ours(text) else { continue };
        accepted += 1;
        assert!(answer["error"].is_null(), "cloud-init refuses it: {}\n{text}", answer["error"]);
        for script in ["boot", "run"] {
            if answer["plan"][script].is_null() {
                answer["plan"][script] = json!("#!/bin/sh\n");
            }
        }
        assert_eq!(shown(&plan), answer["plan"], "{text}");
    }
    accepted
}

fn samples<S: Strategy>(strategy: &S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

fn pieces() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "{{ ds.meta_data.name }}",
        "{{- v1.local_hostname -}}",
        "{{+ instance_id }}",
        "{{cloud_id-}}",
        "{{ ds.meta_data['provider-id'] }}",
        "{{ ds . meta_data [ \"local_hostname\" ] }}",
        "{{\nv1.platform\n}}",
        "{% raw %}",
        "{%- raw -%}",
        "{%+ raw%}",
        "{% endraw %}",
        "{%- endraw -%}",
        "{%endraw +%}",
        "{{ x }}",
        "{% x %}",
        "{#",
        "{#-",
        "{#+",
        "#}",
        "-#}",
        "+#}",
        "{# a #}",
        "{#- a -#}",
        "{# a +#}",
        "{{",
        "}}",
        "{%",
        "%}",
        "{",
        "}",
        "-",
        "+",
        "%",
        " ",
        "  ",
        "\n",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\t",
        "\u{85}",
        "\u{a0}",
        "\u{1f}",
        "a",
        "b: c",
        "'",
        "\"",
        "é",
    ];
    proptest::collection::vec(select(PIECES), 0..14).prop_map(|pieces| pieces.concat())
}

/// The claim of `jinja`: byte for byte equal to Jinja under cloud-init.
#[test]
fn templates_are_rendered_as_by_cloud_init() {
    let texts: Vec<String> = samples(&pieces(), TEXTS * 5)
        .into_iter()
        .map(|body| format!("## template: jinja\n#cloud-config\n{body}"))
        .collect();
    let mut accepted = 0;
    for (text, answer) in texts.iter().zip(theirs(&texts)) {
        let body = jinja::template_body(text).unwrap();
        if let Ok(rendered) = jinja::render(body, &FACTS) {
            accepted += 1;
            assert_eq!(answer["rendered"], rendered.as_str(), "{text:?}");
        }
    }
    assert!(accepted > TEXTS, "only {accepted} texts were accepted");
}

#[test]
fn headers_are_recognized_as_by_cloud_init() {
    let config = "#cloud-config\nruncmd: ['{{ instance_id }}']\n";
    let heads = [
        "## template: jinja\n",
        "## template: jinja  \t\n",
        "## template: jinja\r\n",
        "## Template: JINJA\n",
        "##template: jinja\n",
        "## template:jinja\n",
        " ## template: jinja\n",
        "\n## template: jinja\n",
        "## template: jinja2\n",
        "## template: basic\n",
        "",
        "\n \n",
    ];
    let mut texts: Vec<String> = heads.iter().map(|head| format!("{head}{config}")).collect();
    for first in [
        "#cloud-config ",
        "#Cloud-Config",
        "#cloud-config\r",
        "#!/bin/sh",
        "#include",
        "#cloud-config-archive",
        "# cloud-config",
    ] {
        texts.push(format!("{first}\nruncmd: [a]\n"));
        texts.push(format!("## template: jinja\n\n{first}\nruncmd: [a]\n"));
    }
    for (text, answer) in texts.iter().zip(theirs(&texts)) {
        assert_eq!(ours(text).is_some(), answer["error"].is_null(), "{text:?}: {answer}");
    }
    assert!(compare_plans(&texts) > 8);
}

/// Values in every form that cloud-init takes, and in some that it does not. No content of null: this release fails, and later ones
/// write an empty file.
fn files() -> impl Strategy<Value = String> {
    const PERMISSIONS: &[&str] = &[
        "'0644'", "\"600\"", "0644", "0o600", "'0o750'", "420", "644", "0x1a4", "null", "' 0640'", "'1777'",
        "0", "'abc'", "1.5",
    ];
    const OWNERS: &[&str] = &[
        "root:root",
        "root",
        "':adm'",
        "' etcd : etcd '",
        "none:-1",
        "null",
        "''",
        "'-1'",
        "a:b:c",
        "1000:1000",
        "0:0",
    ];
    const FLAGS: &[&str] =
        &["true", "yes", "On", "'on'", "'1'", "1", "0", "false", "no", "'Off'", "''", "null", "2", "y"];
    const CONTENTS: &[&str] = &[
        "hi",
        "'hi\n\n\n    there'",
        "\"a\\tb\\u00e9\\x41\"",
        "|\n    a\n      b\n\n    c\n\n",
        "|-\n    a\n",
        "|+\n    a\n\n",
        ">\n    a\n    b\n\n    c\n",
        "''",
        "!!binary aGkA/w==",
        "!!str 12",
        "a b\n      c",
        "|2\n      a\n",
        "|\n    {{ x }}\n    # no comment\n",
        "12",
        "1.5",
        "yes",
    ];
    const ENCODED: &[(&str, &str)] = &[
        ("b64", "aGkA/w=="),
        ("base64", "|\n    aGkA\n    /w==\n"),
        ("' B64 '", "aGk="),
        ("text/plain", "aGk="),
        ("''", "a"),
        ("null", "a"),
        ("gzip+base64", "H4sIAAAAAAAC/8vIBACsKpPYAgAAAA=="),
        ("gz+b64", "H4sIAAAAAAAC/8vIBACsKpPYAgAAAA=="),
        ("GZ+Base64", "H4sIAAAAAAAC/8vIBACsKpPYAgAAAA=="),
        ("gz", "!!binary H4sIAAAAAAAC/8vIBACsKpPYAgAAAA=="),
        ("gzip", "aGk="),
        ("zip", "a"),
        ("b64", "'!'"),
        ("b64", "aGk"),
        ("gz+b64", "''"),
    ];
    const PATHS: &[&str] = &["/a", "/a//b", "'/a b'", "/é", "\"/a/\\u00e9\"", "/a/../b", "a", "/x:y"];
    let entry = (
        select(PATHS),
        proptest::option::of(select(PERMISSIONS)),
        proptest::option::of(select(OWNERS)),
        proptest::option::of(select(FLAGS)),
        proptest::option::of(select(FLAGS)),
        prop_oneof![
            select(CONTENTS).prop_map(|content| (None, content)),
            select(ENCODED).prop_map(|(name, content)| (Some(name), content))
        ],
    );
    let entry = entry.prop_map(|(path, permissions, owner, append, defer, (encoding, content))| {
        let mut text = format!("-   path: {path}\n");
        for (name, value) in [
            ("permissions", permissions),
            ("owner", owner),
            ("append", append),
            ("defer", defer),
            ("encoding", encoding),
        ] {
            text += &value.map(|value| format!("    {name}: {value}\n")).unwrap_or_default();
        }
        text + &format!("    content: {content}\n").replace("\n    ", "\n      ")
    });
    proptest::collection::vec(entry, 1..3).prop_map(|entries| format!("write_files:\n{}", entries.concat()))
}

#[test]
fn files_have_content_mode_and_owner_of_cloud_init() {
    let texts: Vec<String> =
        samples(&files(), TEXTS * 2).into_iter().map(|files| format!("#cloud-config\n{files}")).collect();
    let accepted = compare_plans(&texts);
    assert!(accepted > TEXTS / 4, "only {accepted} texts were accepted");
}

fn commands() -> impl Strategy<Value = String> {
    const COMMANDS: &[&str] = &[
        "echo a",
        "'echo ''a'''",
        "\"echo \\\"$HOME\\\"\\n\"",
        "|\n  a\n  b\n",
        ">-\n  a\n  b\n",
        "[ls, -l, /]",
        "[\"it's\", '', 7, -1]",
        "[echo, \"a\\nb\"]",
        "[]",
        "",
        "null",
        "~",
        "[a, ~]",
        "[a, true]",
        "[a, 0755]",
        "[a, 1.5]",
        "12",
        "yes",
        "2024-01-01",
        "[a, 2024-01-01]",
        "[a, 1:30]",
        "[a, 0:0]",
        "[a, 10.0.0.1, 1e3, 0o7, 08, 1_0]",
        "[a, [b]]",
        "{a: b}",
        "a: b",
        "set -e # comment",
        "- a",
        "[a, -.5, +1, .5, '#', 'é']",
        "!!str 12",
        "\"\\U0001F600\"",
    ];
    let list = |key: &'static str| {
        proptest::option::of(proptest::collection::vec(select(COMMANDS), 0..4).prop_map(move |commands| {
            let items: String = commands.iter().map(|command| format!("- {command}\n")).collect();
            if items.is_empty() { format!("{key}: []\n") } else { format!("{key}:\n{items}") }
        }))
    };
    (list("bootcmd"), list("runcmd"))
        .prop_map(|(boot, run)| run.unwrap_or_default() + &boot.unwrap_or_default())
}

#[test]
fn commands_become_the_scripts_of_cloud_init() {
    let texts: Vec<String> = samples(&commands(), TEXTS)
        .into_iter()
        .map(|commands| format!("#cloud-config\n{commands}"))
        .collect();
    let accepted = compare_plans(&texts);
    assert!(accepted > TEXTS / 4, "only {accepted} texts were accepted");
}

/// Texts that the kubeadm provider of the Cluster API writes.
#[test]
fn samples_of_the_kubeadm_provider_mean_the_same_to_cloud_init() {
    let read = |name: &str| {
        let path = format!("{}/goldens/user-data/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let texts = ["init-control-plane", "join-control-plane", "join-worker"].map(read);
    assert_eq!(compare_plans(&texts), 3);
}

/// Every field that our hosts carry out is in the data.
#[test]
fn kb7_data_of_the_bootstrap_provider_means_the_same_to_cloud_init() {
    let read = |name: &str| {
        let path = format!("{}/goldens/capi/{name}-1.34.yaml", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let texts = ["init", "join-control-plane", "join"].map(read);
    assert_eq!(compare_plans(&texts), 3);
}

/// Data with every kind of step. Each step proves by `/srv/order` which ones were before it.
const EFFECTS: &str = r#"#cloud-config
write_files:
- {path: /srv/deferred, owner: 'bedplate-a:bedplate-g', permissions: '0640', defer: true, content: "late\n"}
- {path: /srv/new/deep/early, permissions: '0600', content: "early\n"}
- {path: /srv/order, append: true, content: "write_files\n", owner: root}
- {path: /srv/set, permissions: 0755, owner: 'daemon:adm', encoding: b64, content: aGkA/w==}
- {path: /srv/link, content: "through a link\n"}
users:
- name: bedplate-a
  gecos: A of Bedplate
  groups: adm, bedplate-g
  shell: /bin/sh
  homedir: /srv/home-a
  passwd: $6$salt$IxDD3jeSOb5eB1CX5LBsqZFVkJdido3OUILO5Ifz5iwMuTS4XMS130MTSuDDl3aCI6WouIL9AjRbLCelDCy.g.
  lock_passwd: false
  sudo: ALL=(ALL) NOPASSWD:ALL
  ssh_authorized_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBRleHQgb2YgYW4gZXhhbXBsZSBrZXkgb25seSEh a@example]
- name: bedplate-b
  passwd: $6$salt$IxDD3jeSOb5eB1CX5LBsqZFVkJdido3OUILO5Ifz5iwMuTS4XMS130MTSuDDl3aCI6WouIL9AjRbLCelDCy.g.
  sudo: [ALL=(root) /bin/true, ALL=(root) /bin/false]
- {name: bedplate-c, primary_group: bedplate-g, inactive: '30'}
- {name: daemon, sudo: ALL=(root) /bin/true}
runcmd:
- echo "runcmd $(pwd) $(cat /srv/deferred) $(id -un bedplate-c)" >>/srv/order
- [sh, -c, 'echo "$0" "it''s"', '$HOME']
- 'false'
- read line || echo no input >>/srv/order
- echo end >>/srv/order
bootcmd:
- mkdir -p /srv && ln -s target /srv/link
- echo "bootcmd $INSTANCE_ID $(ls /srv | tr '\n' ' ')" >>/srv/order
- exit 7
"#;

/// Runs a command in an overlay of this machine's root, and prints what it changed.
const OVERLAY: &str = r#"
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
root=$1/root
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
for directory in run tmp; do mount -t tmpfs tmpfs "$root/$directory"; done
cp -a "$2/." "$root/"
rm -rf "$root/srv"/* 
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONPATH="$3" PYTHONDONTWRITEBYTECODE=1 sh -c "cd /; $4" >&2
cd "$root"
find srv -printf '%p %y %m %u:%g %l\n' | sort
find srv -type f ! -path '*/.*' ! -name order | sort | while read -r file; do echo "$file: $(sha256sum <"$file")"; done
cat srv/order
cat srv/home-a/.ssh/authorized_keys | grep -v '^#'
for user in bedplate-a bedplate-b bedplate-c daemon; do
    grep "^$user:" etc/passwd | cut -d: -f1,5-
    grep "^$user:" etc/shadow
    chroot . id -Gn "$user"
done
stat -c '%n %a %U:%G' etc/sudoers.d etc/sudoers.d/90-cloud-init-users etc/sudoers
grep -hv '^# \|^$' etc/sudoers.d/90-cloud-init-users etc/sudoers
"#;

/// Runs a command above files that are put into the root first, and returns what it changed.
fn effects(files: &Path, command: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", OVERLAY, "sh"])
        .args([place.path(), files, &modules()])
        .arg(command)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    format!("{}\n", String::from_utf8(output.stdout).unwrap())
}

#[test]
fn steps_have_the_effects_and_the_order_of_cloud_init() {
    let data = tempfile::tempdir().unwrap();
    let at = |path: &str| {
        let path = data.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    std::fs::write(at("/run/user-data"), EFFECTS).unwrap();
    std::fs::copy(driver(), at("/run/driver.py")).unwrap();
    let theirs = effects(data.path(), "/usr/bin/python3 -S /run/driver.py apply /run/user-data");
    let rendered = ours(EFFECTS).unwrap().render();
    for file in rendered.files.iter().chain(&rendered.memory) {
        std::fs::write(at(&file.path), &*file.content).unwrap();
    }
    let ours = effects(data.path(), "sh /etc/bedplate/user-data.sh || cat /var/log/bedplate/user-data.log");
    assert_eq!(ours, theirs);
    for expected in [
        "bootcmd 6f9c link",
        "write_files",
        "runcmd / late bedplate-c",
        "no input",
        "end",
        "srv/set f 755 daemon:adm",
    ] {
        assert!(
            ours.contains(&format!("{expected} ")) || ours.contains(&format!("{expected}\n")),
            "{expected}: {ours}"
        );
    }
}
