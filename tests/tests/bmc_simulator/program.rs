//! The simulator as a program: many BMCs, and faults by lines of JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use bedplate_tests::bmc::service::PASSWORD;
use bedplate_tests::bmc::tool;
use serde_json::{Value, json};

struct Program {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_bedplate-bmc-simulator"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, command: &Value) -> Value {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.line()
    }
}

#[test]
fn many_bmcs_in_one_process_take_faults_one_by_one() {
    let mut program = Program::start(&["--redfish", "100", "--ipmi", "100"]);
    let mut bmcs = Vec::new();
    loop {
        let line = program.line();
        if line == json!({"ready": true}) {
            break;
        }
        bmcs.push(line);
    }
    assert_eq!(bmcs.len(), 200);
    let address = |index: usize| bmcs[index]["address"].as_str().unwrap().parse().unwrap();
    assert!(bmcs[0]["pin"].as_str().unwrap().starts_with("sha256:"));
    assert_ne!(bmcs[0]["pin"], bmcs[1]["pin"]);
    let set = json!({"bmc": "redfish-1", "do": "set-faults", "faults": {"status": 503}});
    assert_eq!(program.ask(&set), json!({"redfish-1": {}}));
    assert_eq!(tool::curl(None, address(0), "/redfish/v1/Systems", &[]).unwrap().0, 503);
    assert_eq!(tool::curl(None, address(1), "/redfish/v1/Systems", &[]).unwrap().0, 200);
    let on = tool::ipmitool(None, address(199), 17, PASSWORD, &["chassis", "power", "on"]).unwrap();
    assert!(on.status.success(), "{on:?}");
    let power = program.ask(&json!({"bmc": "ipmi-100", "do": "power"}));
    assert_eq!((&power["ipmi-100"][0]["on"], &power["ipmi-100"][0]["cycles"]), (&json!(true), &json!(0)));
    let counters = program.ask(&json!({"bmc": "*", "do": "counters"}));
    assert_eq!(counters["ipmi-100"]["logins"], 1);
    assert_eq!(counters.as_object().unwrap().len(), 200);
    let error = program.ask(&json!({"bmc": "redfish-1", "do": "set-faults", "faults": {"sloow-ms": 1}}));
    assert!(error["error"].as_str().unwrap().contains("not a command"), "{error}");
}
