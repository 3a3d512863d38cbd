//! Real `ipmitool` against our BMC: it agrees with us on both suites' keys and codes, and on what commands mean.

#![allow(clippy::unwrap_used)]

mod machine;

use std::process::{Command, Output};

use machine::{Machine, PASSWORD, USER};

fn ipmitool(machine: &Machine, suite: &str, password: &str, arguments: &[&str]) -> Output {
    let port = machine.address.port().to_string();
    Command::new("ipmitool")
        .args(["-I", "lanplus", "-H", "127.0.0.1", "-p", &port, "-U", USER, "-P", password, "-C", suite])
        .args(["-N", "2", "-R", "3"])
        .args(arguments)
        .output()
        .expect("ipmitool is installed: cargo xtask setup")
}

/// Returns the output of a successful run.
fn good(machine: &Machine, suite: &str, arguments: &[&str]) -> String {
    let output = ipmitool(machine, suite, PASSWORD, arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
    text
}

fn work_with(suite: &str) {
    let machine = Machine::start();
    let info = good(&machine, suite, &["mc", "info"]);
    assert!(info.contains("Firmware Revision         : 2.45"), "{info}");
    assert!(info.contains("Product ID                : 4660 (0x1234)"), "{info}");
    let status = good(&machine, suite, &["chassis", "status"]);
    assert!(status.contains("System Power         : off"), "{status}");
    assert!(status.contains("Cooling/Fan Fault    : true"), "{status}");
    good(&machine, suite, &["chassis", "bootdev", "pxe", "options=efiboot"]);
    assert_eq!(machine.state().boot_flags, Some(vec![0xa0, 0x04, 0, 0, 0]));
    let flags = good(&machine, suite, &["chassis", "bootparam", "get", "5"]);
    assert!(flags.contains("Force PXE"), "{flags}");
    for action in ["on", "cycle", "reset", "soft", "off"] {
        good(&machine, suite, &["chassis", "power", action]);
    }
    assert_eq!(machine.state().controls, [1, 2, 3, 5, 0]);
    let log = good(&machine, suite, &["sel", "list"]);
    assert!(log.contains("Temperature") && log.contains("Power Supply") && log.contains("Fan"), "{log}");
    let state = machine.state();
    assert_eq!((state.wrong_passwords, state.sessions), (0, 0), "each session is closed");
}

#[test]
fn ipmitool_works_with_suite_3() {
    work_with("3");
}

#[test]
fn ipmitool_works_with_suite_17() {
    work_with("17");
}

#[test]
fn ipmitool_is_refused_with_a_wrong_password() {
    let machine = Machine::start();
    for suite in ["3", "17"] {
        let output = ipmitool(&machine, suite, "wrong", &["mc", "info"]);
        assert!(!output.status.success());
    }
    // It never proves its password, because ours does not fit it: what it began is dropped after a minute.
    assert_eq!(machine.state().right_passwords, 0);
}

#[test]
fn ipmitool_is_refused_with_weaker_suites() {
    let machine = Machine::start();
    for suite in ["0", "1", "2"] {
        assert!(!ipmitool(&machine, suite, PASSWORD, &["mc", "info"]).status.success(), "suite {suite}");
    }
    let state = machine.state();
    assert_eq!((state.right_passwords, state.sessions), (0, 0));
}
