//! Plans of user data: order, types, bounds and refusals.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;
use crate::configuration::tests::golden;
use crate::jinja::tests::FACTS;

/// Text that no output may have.
const SECRET: &str = "Correct+Horse";

fn planned_as(value: &[u8], unsupported: Unsupported) -> Result<Accepted, PlanUserDataError> {
    plan_user_data(UserData { value, format: None }, &FACTS, unsupported)
}

fn accepted(config: &str) -> Plan {
    let text = format!("#cloud-config\n{config}");
    planned_as(text.as_bytes(), Unsupported::Refuse).unwrap_or_else(|error| panic!("{text}: {error}")).plan
}

fn refusals(config: &str) -> Vec<Refusal> {
    let error = planned_as(format!("#cloud-config\n{config}").as_bytes(), Unsupported::Refuse);
    error.map(|accepted| panic!("{config}: {accepted:?}")).unwrap_err().0
}

fn refused_keys(config: &str) -> Vec<String> {
    refusals(config).into_iter().map(|refusal| refusal.key).collect()
}

fn whole(value: &[u8], format: Option<&[u8]>) -> Refusal {
    let error = plan_user_data(UserData { value, format }, &FACTS, Unsupported::Ignore).unwrap_err();
    assert_eq!(error.0.len(), 1, "{error}");
    error.0[0].clone()
}

fn packed(content: &[u8]) -> String {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(content).unwrap();
    STANDARD.encode(packed.finish().unwrap())
}

fn shell(text: &str) -> Command {
    Command::Shell(Zeroizing::new(text.to_owned()))
}

/// Samples of the Cluster API's kubeadm provider v1.13, rendered by its own templates.
fn sample(name: &str) -> String {
    let path = format!("{}/goldens/user-data/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn samples_of_the_kubeadm_provider_are_rendered_as_their_goldens() {
    for name in ["init-control-plane", "join-control-plane", "join-worker"] {
        let plan = planned_as(sample(name).as_bytes(), Unsupported::Refuse).unwrap().plan;
        assert!(plan.names_sentinel(), "{name}");
        let rendered = plan.render();
        let text = |payload: &Payload| String::from_utf8(payload.content.to_vec()).unwrap();
        golden(&format!("user-data/{name}-steps.sh"), &text(&rendered.memory[0]));
        golden("user-data/user-data.sh", &text(&rendered.files[1]).replace(PROGRAMS, ""));
        golden(NAME, &text(&rendered.files[0]));
    }
}

/// Part of the script that only data with users has.
const PROGRAMS: &str = "for program in useradd groupadd usermod chpasswd; do
    command -v $program >/dev/null || {
        say \"users: the node image has no $program; nothing was run\"
        exit 1
    }
done
";

#[test]
fn sample_of_a_worker_is_planned_in_order() {
    let plan = planned_as(sample("join-worker").as_bytes(), Unsupported::Refuse).unwrap().plan;
    let paths: Vec<&str> = plan.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/etc/containerd/certs.d/registry.example/hosts.toml",
            "/etc/motd",
            "/run/kubeadm/kubeadm-join-config.yaml",
            "/run/cluster-api/placeholder"
        ]
    );
    let join = String::from_utf8(plan.files[2].content.to_vec()).unwrap();
    assert!(join.contains("name: 'md-0-x2x.example'"), "{join}");
    assert!(join.contains("value: 'bedplate://rack-1/6f9c'"), "{join}");
    assert_eq!(plan.files[2].mode, 0o640);
    assert!(plan.files[1].append);
    assert_eq!(plan.boot_commands, [shell("modprobe br_netfilter")]);
    assert_eq!(
        plan.run_commands,
        [
            shell("hostnamectl set-hostname \"md-0-x2x.example\""),
            shell(
                "kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml  && echo success > /run/cluster-api/bootstrap-success.complete"
            ),
            shell("echo 'joined'"),
        ]
    );
    let user = &plan.users[0];
    assert_eq!((user.name.as_str(), user.lock_passwd), ("capiuser", true));
    assert_eq!(user.groups, ["adm", "systemd-journal"]);
    assert_eq!(user.sudo, [Zeroizing::new("ALL=(ALL) NOPASSWD:ALL".to_owned())]);
}

#[test]
fn keys_that_a_slot_cannot_carry_out_are_refused_by_name() {
    let config =
        "ntp: {enabled: true}\nmounts: []\ndisk_setup: {}\nfs_setup: []\npackages: [vim]\nruncmd: [a]\n";
    let found = refusals(config);
    let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "ntp: a node uses the clock of its host; configure time servers in the host image",
            "mounts: a node has no block devices of its own; use container.binds of the MachineConfiguration",
            "disk_setup: a node has no block devices of its own; remove it; the node's root is on the state disk",
            "fs_setup: a node has no block devices of its own; remove it; the node's root is on the state disk",
            "packages: this key is not supported; remove it, or do it in runcmd",
        ]
    );
    let text = format!("#cloud-config\n{config}");
    let ignoring = planned_as(text.as_bytes(), Unsupported::Ignore).unwrap();
    assert_eq!(ignoring.ignored, found);
    assert_eq!(ignoring.plan.run_commands, [shell("a")]);
}

#[test]
fn invalid_parts_are_refused_also_if_unsupported_ones_are_ignored() {
    let text = b"#cloud-config\nntp: {}\nruncmd: {}\n";
    let error = planned_as(text, Unsupported::Ignore).unwrap_err();
    assert_eq!(error.to_string(), "runcmd: this is not a list; write a list of commands");
}

#[test]
fn other_kinds_of_user_data_are_refused_by_name() {
    for (value, reason) in [
        ("#!/bin/sh\n", "it is a shell script"),
        ("MIME-Version: 1.0\n", "it is a multipart message"),
        ("Content-Type: multipart/mixed", "it is a multipart message"),
        ("#include\nhttps://a\n", "it is an include file"),
        ("#cloud-boothook\n", "it is a boot hook"),
        ("#cloud-config-archive\n", "it is a cloud-config archive"),
        ("#cloud-config-jsonp\n", "it is a JSON patch"),
        ("#part-handler\n", "it is a part handler"),
        ("## template: basic\n#cloud-config\n", "it is a template of another kind than jinja"),
        ("{\"ignition\": {}}", "it is Ignition or another JSON document"),
        ("## template: jinja\n#!/bin/sh\n", "it is a shell script"),
        ("runcmd: []\n", "its first line is neither #cloud-config nor ## template: jinja"),
        ("#cloud-configuration\n", "its first line is neither #cloud-config nor ## template: jinja"),
        ("", "its first line is neither #cloud-config nor ## template: jinja"),
        ("\u{1f}\u{8b}", "its first line is neither #cloud-config nor ## template: jinja"),
    ] {
        assert_eq!(whole(value.as_bytes(), None).reason, reason, "{value:?}");
    }
    assert_eq!(whole(&[0x1f, 0x8b, 8], None).reason, "it is compressed as a whole");
    assert_eq!(whole(b"#cloud-config\n\xff", None).reason, "it is not UTF-8");
    let config = b"#cloud-config\nruncmd: []\n";
    assert_eq!(
        whole(config, Some(b"ignition")).to_string(),
        "format: Ignition is not supported; set format: cloud-config in the KubeadmConfig"
    );
    assert_eq!(whole(config, Some(b"other")).reason, "this format is unknown");
    let with = |format| plan_user_data(UserData { value: config, format }, &FACTS, Unsupported::Refuse);
    assert!(with(Some(b"cloud-config".as_slice())).is_ok() && with(Some(b"".as_slice())).is_ok());
}

#[test]
fn header_may_have_spaces_and_upper_case_and_lines_above_it() {
    for head in [
        "#cloud-config\n",
        "#Cloud-Config  \r\n",
        "\n\n#cloud-config\n",
        "## template: jinja  \n#cloud-config\n",
    ] {
        let text = format!("{head}runcmd: [a]\n");
        let plan = planned_as(text.as_bytes(), Unsupported::Refuse).unwrap().plan;
        assert_eq!(plan.run_commands, [shell("a")], "{head:?}");
    }
}

/// A character lies across the end of `#cloud-config`.
#[test]
fn first_line_of_wide_characters_is_refused() {
    for text in ["#cloud-confi\u{53d}\n", "## template: jinja\n#cloud-confi\u{53d}", "\u{1f600}"] {
        let reason = whole(text.as_bytes(), None).reason;
        assert_eq!(reason, "its first line is neither #cloud-config nor ## template: jinja", "{text:?}");
    }
}

#[test]
fn size_of_user_data_is_bounded() {
    let mut text = "#cloud-config\nruncmd: []\n#".to_owned();
    text += &"x".repeat(MAX_USER_DATA_BYTES - text.len());
    assert!(planned_as(text.as_bytes(), Unsupported::Refuse).is_ok());
    text.push('x');
    assert_eq!(whole(text.as_bytes(), None).reason, "it has more than 1048576 bytes");
}

#[test]
fn errors_of_templates_and_yaml_name_lines() {
    assert_eq!(whole(b"## template: jinja\n#cloud-config\na: {{ x }}\n", None).key, "value, line 3");
    assert_eq!(
        whole(b"## template: jinja\n#cloud-config\na: [\n", None).key,
        "value, line 3 after rendering"
    );
    assert_eq!(whole(b"#cloud-config\na: b\na: c\n", None).key, "value, line 3");
    assert_eq!(refused_keys("[a]"), ["value"]);
    assert_eq!(refused_keys(""), ["value"]);
}

/// Text is octal, an integer is the mode itself. YAML 1.1 reads `0644` as 420.
#[test]
fn permissions_have_the_types_of_cloud_init() {
    for (written, mode) in [
        ("'0644'", 0o644),
        ("\"600\"", 0o600),
        ("'0o750'", 0o750),
        ("' 0640 '", 0o640),
        ("0644", 0o644),
        ("0o600", 0o600),
        ("420", 0o644),
        ("644", 644),
        ("'1777'", 0o1777),
        ("null", 0o644),
    ] {
        let plan = accepted(&format!("write_files:\n- path: /a\n  permissions: {written}\n"));
        assert_eq!(plan.files[0].mode, mode, "{written}");
    }
    for written in
        ["'0888'", "''", "'-1'", "'+644'", "'10000'", "8192", "-1", "1.5", "true", "[6]", "'0_644'"]
    {
        let keys = refused_keys(&format!("write_files:\n- path: /a\n  permissions: {written}\n"));
        assert_eq!(keys, ["write_files[0].permissions"], "{written}");
    }
}

#[test]
fn owners_have_the_forms_of_cloud_init() {
    let owner = |user: Option<&str>, group: Option<&str>| Owner {
        user: user.map(str::to_owned),
        group: group.map(str::to_owned),
    };
    for (written, expected) in [
        ("root:root", owner(Some("root"), Some("root"))),
        ("root", owner(Some("root"), None)),
        ("' etcd : etcd '", owner(Some("etcd"), Some("etcd"))),
        ("':adm'", owner(None, Some("adm"))),
        ("none:-1", owner(None, None)),
        ("null", owner(None, None)),
        ("''", owner(None, None)),
    ] {
        let plan = accepted(&format!("write_files:\n- path: /a\n  owner: {written}\n"));
        assert_eq!(plan.files[0].owner, expected, "{written}");
    }
    assert_eq!(accepted("write_files:\n- path: /a\n").files[0].owner, owner(Some("root"), Some("root")));
    for written in ["'0:0'", "1000", "'a b'", "'$(id)'", "'a:b:c'", "[a]", "'-a'"] {
        let keys = refused_keys(&format!("write_files:\n- path: /a\n  owner: {written}\n"));
        assert_eq!(keys, ["write_files[0].owner"], "{written}");
    }
}

#[test]
fn encodings_have_the_names_of_cloud_init() {
    let plain = STANDARD.encode("hi\n");
    let zipped = packed(b"hi\n");
    for (encoding, content) in [
        ("text/plain", "\"hi\\n\""),
        ("''", "\"hi\\n\""),
        ("null", "\"hi\\n\""),
        ("b64", &plain),
        ("' BASE64 '", &plain),
        ("gz+base64", &zipped),
        ("gzip+base64", &zipped),
        ("gz+b64", &zipped),
        ("GZIP+B64", &zipped),
        ("gzip", &format!("!!binary {zipped}")),
        ("gz", &format!("!!binary {zipped}")),
        ("text/plain", &format!("!!binary {plain}")),
    ] {
        let plan =
            accepted(&format!("write_files:\n- path: /a\n  encoding: {encoding}\n  content: {content}\n"));
        assert_eq!(plan.files[0].content.as_slice(), b"hi\n", "{encoding} {content}");
    }
    for (encoding, content) in
        [("base64", "'!'"), ("base64", "aGk"), ("gzip+base64", "aGk="), ("gzip", "aGk="), ("b64", "12")]
    {
        let keys = refused_keys(&format!(
            "write_files:\n- path: /a\n  encoding: {encoding}\n  content: {content}\n"
        ));
        assert_eq!(keys, ["write_files[0].content"], "{encoding} {content}");
    }
}

/// Wrapped base64 is usual in a block of YAML.
#[test]
fn base64_may_be_wrapped_and_binary_contents_are_kept() {
    let content: Vec<u8> = (0..=255).collect();
    let text = STANDARD.encode(&content);
    let (first, second) = text.split_at(76);
    let plan = accepted(&format!(
        "write_files:\n- path: /a\n  encoding: b64\n  content: |\n    {first}\n    {second}\n"
    ));
    assert_eq!(plan.files[0].content.as_slice(), content);
}

#[test]
fn unknown_encoding_is_plain_text_if_it_is_ignored() {
    let config = "write_files:\n- {path: /a, encoding: zip, content: hi}\n";
    assert_eq!(refused_keys(config), ["write_files[0].encoding"]);
    let ignoring = planned_as(format!("#cloud-config\n{config}").as_bytes(), Unsupported::Ignore).unwrap();
    assert_eq!(ignoring.plan.files[0].content.as_slice(), b"hi");
}

#[test]
fn file_from_a_url_is_refused_or_skipped_unless_it_has_content() {
    let config = "write_files:\n- {path: /a, source: {uri: 'https://a'}}\n- {path: /b, source: {uri: 'https://a'}, content: b}\n";
    assert_eq!(refused_keys(config), ["write_files[0].source", "write_files[1].source"]);
    let ignoring = planned_as(format!("#cloud-config\n{config}").as_bytes(), Unsupported::Ignore).unwrap();
    let paths: Vec<&str> = ignoring.plan.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["/b"]);
}

#[test]
fn paths_of_files_are_absolute_and_plain() {
    assert_eq!(accepted("write_files: [{path: '//etc//a b'}]\n").files[0].path, "/etc/a b");
    for path in [
        "a/b",
        "''",
        "/",
        "/a/",
        "/a/../b",
        "/a/./b",
        "\"/a\\0\"",
        "\"/a\\nb\"",
        "12",
        "/run/bedplate/user-data/x",
    ] {
        assert_eq!(
            refused_keys(&format!("write_files: [{{path: {path}}}]\n")),
            ["write_files[0].path"],
            "{path}"
        );
    }
    assert_eq!(refused_keys("write_files: [{content: a}]\n"), ["write_files[0].path"]);
}

#[test]
fn all_errors_of_a_file_are_reported_together() {
    let config = "write_files:\n- {path: a, owner: '1', permissions: x, append: maybe, defer: [], encoding: b64, content: '!', mode: 1}\n";
    assert_eq!(
        refused_keys(config),
        ["path", "permissions", "owner", "append", "defer", "content", "mode"]
            .map(|name| format!("write_files[0].{name}"))
    );
    assert_eq!(refused_keys("write_files: {}\nusers: a\nbootcmd: a\n"), ["write_files", "users", "bootcmd"]);
    assert_eq!(refused_keys("write_files: [a]\nusers: [[a]]\n"), ["write_files[0]", "users[0]"]);
}

#[test]
fn deferred_files_come_after_users_in_their_own_order() {
    let plan = accepted(
        "write_files:\n- {path: /a, defer: true}\n- {path: /b}\n- {path: /c, defer: 'Yes'}\n- {path: /d, defer: off, append: 1}\n",
    );
    let of =
        |files: &[WriteFile]| files.iter().map(|file| (file.index, file.path.clone())).collect::<Vec<_>>();
    assert_eq!(of(&plan.files), [(1, "/b".to_owned()), (3, "/d".to_owned())]);
    assert_eq!(of(&plan.deferred_files), [(0, "/a".to_owned()), (2, "/c".to_owned())]);
    assert!(plan.files[1].append);
}

#[test]
fn decompressed_files_are_bounded_each_and_together() {
    let file = |content: &str| format!("- {{path: /a, encoding: gz+b64, content: {content}}}\n");
    let fits = file(&packed(&vec![0; 8 << 20]));
    let config = |files: &[&str]| format!("write_files:\n{}", files.concat());
    assert_eq!(accepted(&config(&[&fits, &fits])).files.len(), 2);
    assert_eq!(refused_keys(&config(&[&fits, &fits, &file(&packed(b"x"))])), ["write_files[2].content"]);
    assert_eq!(refused_keys(&config(&[&file(&packed(&vec![0; (8 << 20) + 1]))])), ["write_files[0].content"]);
    let bomb = file(&packed(&vec![0; 256 << 20]));
    assert_eq!(refused_keys(&config(&[&bomb, &bomb])), ["write_files[0].content", "write_files[1].content"]);
}

/// An alias costs nothing in YAML; each use of its text counts here.
#[test]
fn commands_are_bounded_in_number_and_together() {
    let long = "x".repeat(900_000);
    let config = format!("x-y: &x '{long}'\nruncmd: [{}]\n", vec!["*x"; 20].join(", "));
    let keys = refused_keys(&config);
    assert!(keys.contains(&"runcmd[18]".to_owned()) && !keys.contains(&"runcmd[17]".to_owned()), "{keys:?}");
    let many = |count: usize| format!("runcmd:\n{}", "- a\n".repeat(count));
    assert_eq!(accepted(&many(1000)).run_commands.len(), 1000);
    assert_eq!(refused_keys(&many(1001)), ["runcmd"]);
    let wide = format!("bootcmd: [[{}]]\n", vec!["a"; 10_001].join(","));
    assert_eq!(refused_keys(&wide), ["bootcmd"]);
    assert_eq!(refused_keys(&format!("write_files:\n{}", "- {path: /a}\n".repeat(1001))), ["write_files"]);
    assert_eq!(refused_keys(&format!("users:\n{}", "- a\n".repeat(101))), ["users"]);
}

#[test]
fn commands_become_the_script_of_cloud_init() {
    let plan = accepted("runcmd:\n- echo $HOME\n-\n- [echo, \"it's\", '', 7, -1]\n- |\n  a\n  b\n- []\n");
    assert_eq!(
        plan.run_script().as_str(),
        "#!/bin/sh\necho $HOME\n'echo' 'it'\\''s' '' '7' '-1'\na\nb\n\n\n"
    );
    assert_eq!(accepted("bootcmd: []\n").boot_script().as_str(), "#!/bin/sh\n");
}

/// cloud-init would write `True`, `493` and `None`.
#[test]
fn arguments_that_yaml_changes_must_be_quoted() {
    for word in ["true", "0755", "~", "1.5", "1_0", "2024-01-01", "[a]", "{a: b}", "1:30", "+1"] {
        assert_eq!(refused_keys(&format!("runcmd: [[a, {word}]]\n")), ["runcmd[0][1]"], "{word}");
    }
    for command in ["true", "5", "{a: b}"] {
        assert_eq!(refused_keys(&format!("runcmd: [a, {command}]\n")), ["runcmd[1]"], "{command}");
    }
    assert_eq!(refused_keys("runcmd: [\"a\\0\", [\"b\\0\"]]\n"), ["runcmd[0]", "runcmd[1][0]"]);
}

#[test]
fn users_have_the_keys_of_the_kubeadm_provider() {
    let plan = accepted(
        "users:\n- plain\n- name: all\n  gecos: A B\n  groups: adm, sudo\n  homedir: /srv/all\n  inactive: true\n  lock_passwd: false\n  passwd: $6$a$b\n  primary_group: all\n  shell: /bin/sh\n  sudo: [a, b]\n  ssh-authorized-keys:\n  - ssh-ed25519 AAAA a\n- {name: c, groups: [x, y], sudo: false, ssh_authorized_keys: k, inactive: '30'}\n",
    );
    let text = |value: &str| Some(value.to_owned());
    let secret = |value: &str| Zeroizing::new(value.to_owned());
    assert_eq!(plan.users[0], User { name: "plain".to_owned(), lock_passwd: true, ..User::default() });
    assert_eq!(
        plan.users[1],
        User {
            index: 1,
            name: "all".to_owned(),
            gecos: text("A B"),
            homedir: text("/srv/all"),
            inactive: None,
            primary_group: text("all"),
            groups: vec!["adm".to_owned(), "sudo".to_owned()],
            shell: text("/bin/sh"),
            passwd: Some(secret("$6$a$b")),
            lock_passwd: false,
            sudo: vec![secret("a"), secret("b")],
            ssh_authorized_keys: vec![secret("ssh-ed25519 AAAA a")],
        }
    );
    assert_eq!(plan.users[2].groups, ["x", "y"]);
    assert_eq!(plan.users[2].inactive, text("30"));
    assert!(plan.users[2].sudo.is_empty() && plan.users[2].lock_passwd);
    assert_eq!(plan.programs(), ["useradd", "groupadd", "usermod", "chpasswd"]);
    assert!(accepted("runcmd: []\n").programs().is_empty());
}

#[test]
fn users_that_are_not_valid_are_refused_by_index() {
    for (user, key) in [
        ("default", "users[0]"),
        ("{gecos: a}", "users[0]"),
        ("{name: 'a b'}", "users[0].name"),
        ("{name: -a}", "users[0].name"),
        ("{name: 7}", "users[0].name"),
        ("{name: a, groups: 'x;y'}", "users[0].groups"),
        ("{name: a, groups: [x, 'y,z']}", "users[0].groups"),
        ("{name: a, groups: {x: y}}", "users[0].groups"),
        ("{name: a, primary_group: '-x'}", "users[0].primary_group"),
        ("{name: a, lock_passwd: 'false'}", "users[0].lock_passwd"),
        ("{name: a, passwd: 'a:b'}", "users[0].passwd"),
        ("{name: a, gecos: \"a\\nb\"}", "users[0].gecos"),
        ("{name: a, shell: 5}", "users[0].shell"),
        ("{name: a, sudo: true}", "users[0].sudo"),
        ("{name: a, sudo: [\"a\\nb\"]}", "users[0].sudo"),
        ("{name: a, ssh_authorized_keys: \"a\\nb\"}", "users[0].ssh_authorized_keys"),
        ("{name: a, lock-passwd: true, lock_passwd: true}", "users[0].lock_passwd"),
        ("{name: a, uid: 7}", "users[0].uid"),
        ("{name: a, plain_text_passwd: b}", "users[0].plain_text_passwd"),
    ] {
        assert_eq!(refused_keys(&format!("users: [{user}]\n")), [key], "{user}");
    }
    assert_eq!(refused_keys("users: [a, {name: a}]\n"), ["users[1]"]);
}

#[test]
fn sentinel_is_found_in_commands_and_files() {
    for config in [
        format!("runcmd: ['a && echo success > {SENTINEL}']\n"),
        format!("bootcmd: [[touch, {SENTINEL}]]\n"),
        format!("write_files: [{{path: /a, content: 'touch {SENTINEL}'}}]\n"),
        format!("write_files: [{{path: /a, defer: true, content: 'touch {SENTINEL}'}}]\n"),
    ] {
        assert!(accepted(&config).names_sentinel(), "{config}");
    }
    assert!(!accepted("runcmd: [touch /run/cluster-api/other]\n").names_sentinel());
}

/// Every place at which a text can be wrong, with a text that must not come out.
#[test]
fn no_error_and_no_debug_output_has_content() {
    for config in [
        "{S}: a\n",
        "a: {S}\n {S}: [\n",
        "runcmd: {S}\n",
        "runcmd: [{a: {S}}]\n",
        "runcmd: [[1.5, {S}]]\n",
        "write_files: [{path: {S}, owner: '{S} x', permissions: {S}, append: {S}, defer: {S}, encoding: '{S}'}]\n",
        "write_files: [{path: /a, encoding: b64, content: '{S}!', {S}: 1}]\n",
        "users: [{name: '{S}', passwd: '{S}:', sudo: \"{S}\\n{S}\", ssh_authorized_keys: [\"{S}\\t\\e\"], {S}: 1}]\n",
    ] {
        for head in ["", "## template: jinja\n"] {
            let text = format!("{head}#cloud-config\n{}", config.replace("{S}", SECRET));
            let error = planned_as(text.as_bytes(), Unsupported::Refuse).unwrap_err();
            assert!(!format!("{error} {error:?}").contains(SECRET), "{config}: {error}");
        }
    }
    let config = "bootcmd: [{S}]\nruncmd: [[{S}]]\nwrite_files: [{path: /a, content: {S}}]\nusers: [{name: a, passwd: {S}, sudo: {S}, ssh_authorized_keys: {S}}]\n";
    let plan = accepted(&config.replace("{S}", SECRET));
    let shown =
        format!("{plan:?} {:?} {:?}", plan.render(), UserData { value: SECRET.as_bytes(), format: None });
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(shown.contains("/run/bedplate/user-data/user-0-passwd (0600, 16 bytes)"), "{shown}");
}

/// The files on the slot's disk have no content but `bootcmd`.
#[test]
fn content_is_rendered_into_memory_alone() {
    let config = "runcmd: [[{S}]]\nwrite_files: [{path: /a, content: {S}}]\nusers: [{name: a, passwd: {S}, sudo: {S}, ssh_authorized_keys: {S}}]\n";
    let rendered = accepted(&config.replace("{S}", SECRET)).render();
    for file in rendered.files.iter().chain(&rendered.memory[..1]) {
        assert!(!String::from_utf8_lossy(&file.content).contains(SECRET), "{}", file.path);
    }
    assert!(rendered.memory.iter().all(|file| file.path.starts_with("/run/bedplate/user-data/")));
    let names: Vec<&str> = rendered.memory.iter().filter_map(|file| file.path.rsplit('/').next()).collect();
    assert_eq!(names, ["steps.sh", "file-0", "user-0-passwd", "user-0-sudo", "user-0-keys", "runcmd"]);
    assert!(accepted("bootcmd: [a]\n").render().files.iter().any(|file| file.path == BOOT_SCRIPT));
}

fn any_text() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![
            any::<char>(),
            proptest::sample::select(vec!['\n', '\'', '"', '\\', '$', ' ', ':', '-', '#', '{', '}'])
        ],
        0..40,
    )
    .prop_map(|characters| characters.into_iter().filter(|c| *c != '\0').collect())
}

proptest! {
    #[test]
    fn planning_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), is_headed: bool) {
        let value = if is_headed { [b"## template: jinja\n#cloud-config\n", bytes.as_slice()].concat() } else { bytes };
        for unsupported in [Unsupported::Refuse, Unsupported::Ignore] {
            let _ = planned_as(&value, unsupported);
        }
    }

    #[test]
    fn text_of_any_kind_comes_back(texts in proptest::collection::vec(any_text(), 1..6)) {
        let files: Vec<_> = texts.iter().map(|text| serde_json::json!({"path": "/a", "content": text})).collect();
        let config = serde_json::json!({"write_files": files, "runcmd": texts, "bootcmd": [texts]});
        let value = format!("#cloud-config\n{}", serde_saphyr::to_string(&config).unwrap());
        let plan = planned_as(value.as_bytes(), Unsupported::Refuse).unwrap().plan;
        for (text, file) in texts.iter().zip(&plan.files) {
            prop_assert_eq!(file.content.as_slice(), text.as_bytes());
        }
        let commands: Vec<_> = texts.iter().map(|text| shell(text)).collect();
        prop_assert_eq!(&plan.run_commands, &commands);
        let words = texts.iter().map(|text| Zeroizing::new(text.clone())).collect();
        prop_assert_eq!(&plan.boot_commands, &[Command::Arguments(words)]);
    }

    #[test]
    fn bytes_come_back_through_every_encoding(content in proptest::collection::vec(any::<u8>(), 0..300)) {
        for (encoding, text) in [("b64", STANDARD.encode(&content)), ("gzip+base64", packed(&content))] {
            let plan = accepted(&format!("write_files: [{{path: /a, encoding: {encoding}, content: '{text}'}}]\n"));
            prop_assert_eq!(plan.files[0].content.as_slice(), content.as_slice());
        }
    }
}
