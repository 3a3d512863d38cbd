//! The units are complete, are understood by systemd, and expose little. No unit is started here.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The exposure that the units of pxed and the controller must stay below, of 10 (`systemd-analyze security`).
const MOST_EXPOSURE: f64 = 3.0;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn folder() -> PathBuf {
    repository().join("systemd")
}

/// Every unit of the programs and of the host image.
fn units() -> Vec<PathBuf> {
    let mut found = Vec::new();
    find(&folder(), &mut found);
    find(&repository().join("images"), &mut found);
    find(&repository().join("bootstrap/goldens"), &mut found);
    found
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) {
    const KINDS: [&str; 5] = ["service", "socket", "timer", "mount", "target"];
    for entry in std::fs::read_dir(folder).expect("a readable folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            find(&path, found);
        } else if path.extension().is_some_and(|extension| KINDS.iter().any(|kind| extension == *kind)) {
            found.push(path);
        }
    }
}

/// Copies of the units with programs that exist here, for systemd-analyze looks whether they do.
fn copies() -> (tempfile::TempDir, Vec<PathBuf>) {
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut copies = Vec::new();
    for unit in units() {
        let text = std::fs::read_to_string(&unit).expect("a readable unit");
        let copy = place.path().join(unit.file_name().expect("a unit has a name"));
        std::fs::write(&copy, with_programs_that_exist(&text)).expect("a writable temporary directory");
        copies.push(copy);
    }
    (place, copies)
}

/// `ExecStart=-/not/there run` with `/bin/true` for what is not installed; prefixes and arguments stay.
fn with_programs_that_exist(unit: &str) -> String {
    let line = |line: &str| {
        let Some((key, value)) = line.split_once('=').filter(|(key, _)| key.starts_with("Exec")) else {
            return line.to_owned();
        };
        let (prefix, rest) = value.split_at(value.find('/').unwrap_or(value.len()));
        let program = rest.split_whitespace().next().unwrap_or_default();
        if program.is_empty() || Path::new(program).exists() {
            return line.to_owned();
        }
        format!("{key}={prefix}/bin/true{}", &rest[program.len()..])
    };
    unit.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

fn analyze(arguments: &[&str], unit: &[PathBuf]) -> (bool, String) {
    let output = Command::new("systemd-analyze").args(arguments).args(unit).output();
    let output = output.expect("systemd-analyze is installed; if not: cargo xtask setup");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// "→ Overall exposure level for pxed.service: 1.9 OK"
fn exposure(report: &str) -> f64 {
    let (_, rest) = report.rsplit_once("Overall exposure level").expect("a summary line");
    let (_, rest) = rest.split_once(": ").expect("a number");
    let number = rest.split_whitespace().next().unwrap_or_default();
    number.parse().expect("a number")
}

#[test]
fn units_are_understood_without_complaint() {
    let (place, copies) = copies();
    let named = |name: &str| copies.iter().any(|copy| copy.ends_with(name));
    assert!(named("pxed.service") && named("bedplate-agent.service") && named("bedplate-host.service"));
    assert!(named("bedplate-kubeadm.service"));
    let (success, said) = analyze(&["verify", "--man=no", "--recursive-errors=no"], &copies);
    let mine = place.path().display().to_string();
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains(&mine)).collect();
    assert!(success && complaints.is_empty(), "{said}");
}

#[test]
fn exposure_of_pxed_and_the_controller_is_below_3() {
    let (_place, copies) = copies();
    for unit in ["pxed.service", "bedplate-controller.service"] {
        let copy: Vec<PathBuf> = copies.iter().filter(|copy| copy.ends_with(unit)).cloned().collect();
        let (_, report) = analyze(&["security", "--offline=true", "--no-pager"], &copy);
        let exposure = exposure(&report);
        assert!(exposure < MOST_EXPOSURE, "exposure of {unit} is {exposure}:\n{report}");
    }
}

#[test]
fn units_notify_restart_and_are_watched() {
    for unit in ["pxed.service", "bedplate-agent.service", "bedplate-controller.service"] {
        let text = std::fs::read_to_string(folder().join(unit)).expect(unit);
        for line in [
            "Type=notify",
            "Restart=always",
            "WatchdogSec=",
            "RestartPreventExitStatus=64",
            "NoNewPrivileges=yes",
        ] {
            assert!(text.lines().any(|has| has.starts_with(line)), "{unit} has no {line}");
        }
    }
}

/// Both units use /var/lib/bedplate and /run/bedplate: the first to start would lock the other out.
#[test]
fn units_of_pxed_and_agent_refuse_one_machine() {
    for (unit, line) in [
        ("pxed.service", "AssertPathExists=!/usr/bin/bedplate-agent"),
        ("bedplate-agent.service", "AssertPathExists=!/etc/bedplate/pxed.toml"),
    ] {
        let text = std::fs::read_to_string(folder().join(unit)).expect(unit);
        assert!(text.lines().any(|has| has == line), "{unit} has no {line}");
    }
}

/// The agent removes files of slots that a Pod has made immutable or append-only, which only this capability permits.
#[test]
fn unit_of_the_agent_keeps_the_capability_to_clear_file_flags() {
    let text = std::fs::read_to_string(folder().join("bedplate-agent.service")).expect("the unit");
    let lines = text.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    // systemd.exec(5): lists are merged, an empty one resets what is before it, and one after "~" is removed.
    let kept = lines.fold(Vec::new(), |mut kept, line| {
        let names: Vec<&str> = line.trim_start_matches('~').split_whitespace().collect();
        if line.is_empty() {
            kept.clear();
        } else if line.starts_with('~') {
            kept.retain(|name| !names.contains(name));
        } else {
            kept.extend(names);
        }
        kept
    });
    assert!(kept.contains(&"CAP_LINUX_IMMUTABLE"), "{kept:?}");
}

#[test]
fn capabilities_of_pxed_are_the_two_that_are_explained() {
    let text = std::fs::read_to_string(folder().join("pxed.service")).expect("pxed.service");
    let wanted = "CAP_NET_BIND_SERVICE CAP_NET_RAW";
    for key in ["AmbientCapabilities", "CapabilityBoundingSet"] {
        assert!(text.lines().any(|line| line == format!("{key}={wanted}")), "{key} is not exactly {wanted}");
    }
}

/// The controller's user is made at its start, so it reads nothing of root's but what systemd loads for it.
#[test]
fn unit_of_the_controller_loads_what_its_kubeconfig_names() {
    let unit = std::fs::read_to_string(folder().join("bedplate-controller.service")).expect("the unit");
    assert!(
        unit.contains("\nDynamicUser=yes\n")
            && unit.contains(" --kubeconfig ${CREDENTIALS_DIRECTORY}/kubeconfig ")
    );
    let loaded = |name: &str| {
        let found = unit
            .lines()
            .find_map(|line| line.strip_prefix("LoadCredential=")?.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_else(|| panic!("the unit loads no {name}")).to_owned()
    };
    let document = std::fs::read_to_string(repository().join("docs/concepts/controller.md"))
        .expect("docs/concepts/controller.md");
    let named = document.lines().find_map(|line| {
        let (_, rest) = line.split_once("kubectl config set users.bedplate-controller.tokenFile ")?;
        rest.split_whitespace().next()
    });
    let named = named.expect("the document names the file of the token");
    assert!(
        !named.contains('/'),
        "{named}: looked for beside the kubeconfig, in the directory of credentials"
    );
    let installed =
        document.lines().find(|line| line.trim_start().starts_with("install ") && line.contains(".token"));
    let installed: Vec<&str> =
        installed.expect("the document installs the token").split_whitespace().collect();
    let directory = installed.iter().position(|word| *word == "-t").and_then(|at| installed.get(at + 1));
    for credential in ["kubeconfig", named] {
        let loaded = loaded(credential);
        let (folder, file) = loaded.rsplit_once('/').expect("an absolute path");
        assert_eq!(directory, Some(&folder), "{credential}");
        assert!(installed.contains(&file), "{credential}: {installed:?} does not install {file}");
    }
}

/// On the machine of a pxed its own token would be replaced, and it would act as the controller's ServiceAccount.
#[test]
fn documented_credentials_of_pxed_and_the_controller_have_different_files() {
    let files = |document: &str| {
        let text = std::fs::read_to_string(repository().join("docs").join(document)).expect(document);
        let lines = text.lines().filter(|line| {
            let line = line.trim_start();
            line.starts_with("install ") && line.contains("token") && line.contains("/etc/bedplate")
        });
        let words = lines.flat_map(str::split_whitespace);
        words.filter(|word| word.contains("token")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        (files("getting-started/install.md"), files("concepts/controller.md")),
        (vec!["token".to_owned()], vec!["controller.token".to_owned()])
    );
}

#[test]
fn user_of_pxed_is_made_by_sysusers() {
    let unit = std::fs::read_to_string(folder().join("pxed.service")).expect("pxed.service");
    let user = unit.lines().find_map(|line| line.strip_prefix("User=")).expect("User=");
    let sysusers = std::fs::read_to_string(folder().join("bedplate.conf")).expect("bedplate.conf");
    assert!(sysusers.lines().any(|line| line.starts_with(&format!("u {user} "))), "no line for {user}");
}
