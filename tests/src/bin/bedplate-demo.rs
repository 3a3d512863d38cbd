//! The demonstration: two virtual servers, one BIOS and one UEFI, and a real cluster. What a person does is done with kubectl and shown:
//! a MachineConfiguration and two Machines are applied, the servers come up over BMC and network and become Nodes; the configuration is
//! edited, a Node deleted, the other one updated by a rolling update. All of it is watched live.
//!
//! `cargo xtask demo` has prepared everything before it starts this. Everything is removed at the end, also after Ctrl-C.
//! docs/getting-started/demo.md shows transcripts of a run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bedplate_tests::bmc::server::{BmcKind, Server};
use bedplate_tests::guest::GuestSlot;
use bedplate_tests::nodes::{self, CONFIGURATION, Nodes, has_applied};
use bedplate_tests::qemu::{Firmware, Spec};
use bedplate_tests::rack::Rack;
use bedplate_tests::screen::{Moment, Screen};
use bedplate_tests::site::Site;
use bedplate_tests::table::{Row, Table, bold, color};
use bedplate_tests::{guard, kubernetes, pxed, wait};
use clap::Parser;
use jiff::Timestamp;
use serde_json::json;

/// Maximum time from power-on, or from a Node's end, to a Ready Node, with two servers on two emulated processors each.
const NODE_TIMEOUT: Duration = Duration::from_secs(1800);
/// Maximum time until a program has written a short change.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Memory of each server: the host, the node image and its processes are in memory.
const MEMORY_MIB: u32 = 3072;
/// Label of the Nodes that the edit of the configuration changes.
const LABEL: &str = "example.com/generation";
/// File of the rack with the functions of a shell.
const SHELL: &str = "shell";
/// Command that lists the Nodes with the label.
const GET_NODES: [&str; 4] = ["get", "nodes", "-L", LABEL];

/// Arguments of the demonstration.
#[derive(Parser)]
struct Arguments {
    /// Leaves the rack running until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Stores transcripts in this folder.
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
}

/// A server of the demonstration.
struct Exhibit {
    number: u8,
    firmware: (&'static str, Firmware),
    bmc: (&'static str, BmcKind),
}

/// The servers of the demonstration: the BMC of the one is the rack's own simulator, that of the other is OpenIPMI's.
const SERVERS: [Exhibit; 2] = [
    Exhibit { number: 1, firmware: ("BIOS", Firmware::Bios), bmc: ("Redfish", BmcKind::Redfish) },
    Exhibit { number: 2, firmware: ("UEFI", Firmware::UefiPxe), bmc: ("IPMI", BmcKind::IpmiSim) },
];

/// State of the demonstration.
struct Demo<'r> {
    /// Ends before the cluster that it reads.
    nodes: Nodes,
    site: Site<'r>,
    rack: &'r Rack,
    admin: PathBuf,
    screen: Screen,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let begin = Instant::now();
    let rack = Rack::new("demo")?;
    println!("  network     {} with bridge br0, 10.7.0.1/24", rack.network().name());
    let add = |exhibit: &Exhibit| {
        let spec = Spec { memory_mib: MEMORY_MIB, ..Rack::spec(exhibit.number, exhibit.firmware.1) };
        rack.machine(spec).with_bmc(exhibit.bmc.1)
    };
    let servers = SERVERS.iter().map(add).collect::<Result<Vec<Server>>>()?;
    let described = |(server, exhibit): (&Server, &Exhibit)| {
        format!("{} ({}, {} at {})", server.name(), exhibit.firmware.0, exhibit.bmc.0, server.address().ip())
    };
    let described: Vec<String> = servers.iter().zip(&SERVERS).map(described).collect();
    println!("  servers     {}, both off", described.join(", "));
    let kubernetes = nodes::control_plane(&rack)?;
    println!("  cluster     kube-apiserver at {}, as kubeadm leaves one", kubernetes.address());
    let admin = kubernetes.admin();
    let nodes = Nodes::start(&rack, &kubernetes)?;
    println!("  controller  bedplate-controller under its own role");
    let slots = GuestSlot::take_two()?;
    let site = Site::with_kubernetes("demo", &rack, servers, kubernetes)?;
    println!("  pxed        DHCP server for the Machines of the cluster, whose servers it switches on");
    let screen = Screen::new(arguments.record);
    let demo = Demo { nodes, site, rack: &rack, admin, screen };
    demo.become_nodes()?;
    demo.edit()?;
    demo.repave()?;
    demo.roll()?;
    demo.bedplate(&["machine", "list"])?;
    demo.screen.store()?;
    rack.succeeded();
    print_total(begin);
    // With --keep, tests that boot guests need not wait for the person who looks around.
    drop(slots);
    look_around(&demo, arguments.keep)?;
    println!("\nremoving servers, pxed, cluster and network ...");
    drop(demo);
    drop(rack);
    println!("{}", color("32", "done: two servers became Nodes, and both have the edited version"));
    Ok(())
}

impl Demo<'_> {
    /// Applies the configuration and the Machines, and shows the servers become Nodes.
    fn become_nodes(&self) -> Result<()> {
        for server in self.site.servers() {
            self.nodes.apply(&self.site, &server.secret())?;
        }
        let machines: Vec<String> =
            self.site.servers().iter().map(|server| format!("{}.yaml", server.name())).collect();
        for (file, (server, exhibit)) in machines.iter().zip(self.site.servers().iter().zip(&SERVERS)) {
            std::fs::write(self.rack.file(file), pxed::manifest(exhibit.number, &server.bmc_yaml()))?;
        }
        let started = Instant::now();
        self.screen.record(Some("boot"));
        self.apply("OnDelete", "first", &machines, "")?;
        let paves = |server: &Server| {
            let phase =
                self.nodes.seen("Machine", server.name()).unwrap_or_default()["status"]["phase"].clone();
            phase == "Paving" || phase == "Ready"
        };
        let booting: [Moment; 2] = [|rows| rows.iter().all(Row::is_on), |rows| rows.iter().any(has_root)];
        self.watch("a host that prepares its node", started, &booting, || {
            self.site.servers().iter().any(paves)
        })?;
        self.screen.record(Some("waiting"));
        self.bedplate(&["machine", "explain"])?;
        println!();
        self.screen.record(Some("boot"));
        let ready = |server: &Server| self.runs(server.name(), 1);
        let paving: [Moment; 1] = [|rows| rows.iter().any(|row| row.is_in("Ready"))];
        self.watch("two Ready Nodes", started, &paving, || self.site.servers().iter().all(ready))?;
        self.screen.record(Some("ready"));
        self.kubectl(&["get", "machines"])?;
        self.kubectl(&GET_NODES)?;
        self.screen.record(Some("timeline"));
        self.bedplate(&["machine", "show", "server-1"])?;
        self.screen.record(None);
        Ok(())
    }

    /// C4: an edit makes a version, and disturbs nothing.
    fn edit(&self) -> Result<()> {
        self.screen.record(Some("version"));
        self.apply("OnDelete", "second", &[], "      # edited: another label of the Nodes")?;
        wait::until("the edit's version", CHANGE_TIMEOUT, || {
            let configuration = self.nodes.seen("MachineConfiguration", CONFIGURATION).unwrap_or_default();
            let outdated = &configuration["status"]["machines"]["outdated"];
            Ok((*outdated == SERVERS.len()).then_some(()))
        })?;
        self.kubectl(&["get", "machineconfigurations"])?;
        self.kubectl(&["get", "machineconfigurationversions"])?;
        self.bedplate(&["config", "history", CONFIGURATION])?;
        self.screen.record(None);
        println!("\n  No Node is disturbed, because updateStrategy.type is OnDelete.");
        Ok(())
    }

    /// H6: a Node that is deleted comes again with the newest version.
    fn repave(&self) -> Result<()> {
        self.kubectl(&["delete", "node", "server-1"])?;
        self.watch("server-1 with version 2", Instant::now(), &[], || self.runs("server-1", 2))?;
        self.kubectl(&GET_NODES)
    }

    /// C4: a rolling update drains, deletes and waits by itself.
    fn roll(&self) -> Result<()> {
        self.screen.record(Some("rollout"));
        self.apply("RollingUpdate", "second", &[], "      # edited: updateStrategy.type: RollingUpdate")?;
        let moments: [Moment; 2] =
            [|rows| rows.iter().any(Row::is_cordoned), |rows| rows.iter().any(|row| row.is_in("Repaving"))];
        self.watch("server-2 with version 2", Instant::now(), &moments, || self.runs("server-2", 2))?;
        self.kubectl(&["get", "machines"])?;
        self.kubectl(&GET_NODES)?;
        self.screen.record(None);
        Ok(())
    }

    /// Writes and applies the configuration with this strategy of updates and label, and further files of the rack.
    fn apply(&self, strategy: &str, generation: &str, machines: &[String], note: &str) -> Result<()> {
        let mut template = self.nodes.template(&json!({}))?;
        template["kubernetes"]["nodeLabels"] = json!({LABEL: generation});
        let configuration = self.nodes.configuration(&json!({"type": strategy}), &template)?;
        std::fs::write(self.rack.file("workers.yaml"), serde_saphyr::to_string(&configuration)?)?;
        let (mut shown, mut arguments) = ("kubectl apply".to_owned(), vec!["apply".to_owned()]);
        for file in ["workers.yaml"].into_iter().chain(machines.iter().map(String::as_str)) {
            shown.push_str(&format!(" -f {file}"));
            arguments.extend(["-f".to_owned(), self.rack.file(file).display().to_string()]);
        }
        self.screen.command(&format!("{shown}{note}"));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.screen.output(&self.site.kubectl(&arguments)?);
        Ok(())
    }

    /// Returns true if a server is a Ready Node of this version.
    fn runs(&self, name: &str, version: u32) -> bool {
        let machine = self.nodes.seen("Machine", name).unwrap_or_default();
        let node = self.nodes.seen("Node", name).unwrap_or_default();
        has_applied(&machine, version) && nodes::is_of(&node, version)
    }

    /// Shows the table until something is reached. The transcript has its state at these moments, in this order, and the last one.
    fn watch(
        &self,
        what: &str,
        started: Instant,
        moments: &[Moment],
        reached: impl Fn() -> bool,
    ) -> Result<()> {
        let (mut table, mut left, mut rows) = (Table::default(), moments.iter().peekable(), Vec::new());
        let row = |server: &Server| {
            let machine = self.nodes.seen("Machine", server.name()).unwrap_or_default();
            Row::of(&machine, self.nodes.seen("Node", server.name()).as_ref())
        };
        let watched = wait::until_asked(what, NODE_TIMEOUT, || {
            // Before the rows, so that the last table shows the state that was reached.
            let done = reached();
            rows = self.site.servers().iter().map(row).collect();
            table.show(&rows, started.elapsed());
            if left.next_if(|moment| moment(&rows)).is_some() {
                self.screen.table(&rows, started.elapsed());
            }
            Ok(done.then_some(()))
        });
        if watched.is_ok() {
            self.screen.table(&rows, started.elapsed());
        }
        watched.with_context(|| {
            let serial =
                |server: &Server| format!("{}:\n{}", server.name(), guard::last_lines(&server.serial(), 25));
            let serial: Vec<String> = self.site.servers().iter().map(serial).collect();
            format!("{}\n{}", self.nodes.story(), serial.join("\n"))
        })
    }

    /// Runs kubectl as the cluster's administrator, and shows the command and its output.
    fn kubectl(&self, arguments: &[&str]) -> Result<()> {
        self.screen.command(&format!("kubectl {}", arguments.join(" ")));
        self.screen.output(&self.site.kubectl(arguments)?);
        Ok(())
    }

    /// Runs `bedplate` on the cluster, and shows the command and its output.
    fn bedplate(&self, arguments: &[&str]) -> Result<()> {
        self.screen.command(&format!("bedplate {}", arguments.join(" ")));
        let mut command = self.rack.network().command(pxed::binary("bedplate")?);
        // By the variable: with `--kubeconfig`, the hints of the output would have its path.
        self.screen.output(&guard::run(command.env("KUBECONFIG", &self.admin).args(arguments))?);
        Ok(())
    }

    /// Writes a file that makes `kubectl` and `bedplate` of a shell those of the rack.
    fn write_shell(&self) -> Result<()> {
        let (network, admin) = (self.rack.network().name(), self.admin.display());
        let (kubectl, bedplate) = (kubernetes::programs()?.join("kubectl"), pxed::binary("bedplate")?);
        let cache = self.rack.file("kubectl-cache");
        let function = |name: &str, program: &Path, more: &str| {
            format!(
                "{name}() {{ nsenter --net=/run/netns/{network} '{}'{more} \"$@\"; }}\n",
                program.display()
            )
        };
        let cache = format!(" --cache-dir '{}'", cache.display());
        let text = format!(
            "export KUBECONFIG='{admin}'\n{}{}",
            function("kubectl", &kubectl, &cache),
            function("bedplate", &bedplate, "")
        );
        let path = self.rack.file(SHELL);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns true if a server has read its root file system.
fn has_root(row: &Row) -> bool {
    row.has_reached("RootFS")
}

/// Prints the time of the demo, and that of the whole command, whose start is in `BEDPLATE_DEMO_STARTED` (seconds since 1970).
fn print_total(begin: Instant) {
    let minutes = |seconds: u64| format!("{} min {:02} s", seconds / 60, seconds % 60);
    let started = std::env::var("BEDPLATE_DEMO_STARTED").ok().and_then(|text| text.parse::<i64>().ok());
    let total = started.and_then(|started| u64::try_from(Timestamp::now().as_second() - started).ok());
    let total = total.map_or(String::new(), |total| format!("; {} with the preparation", minutes(total)));
    println!("\n  the demo took {}{total}", minutes(begin.elapsed().as_secs()));
}

/// Prints how to look around, and waits for Ctrl-C if the rack stays.
fn look_around(demo: &Demo<'_>, keep: bool) -> Result<()> {
    if !keep {
        println!("\n  `cargo xtask demo --keep` leaves all of it running until Ctrl-C");
        return Ok(());
    }
    demo.write_shell()?;
    let place = demo.rack.path().display();
    println!("\n{}", bold("The rack runs until Ctrl-C. In another terminal:"));
    for command in [
        format!("cd {place} && . ./{SHELL}        # kubectl and bedplate of this rack"),
        "kubectl get machines --watch".to_owned(),
        "kubectl edit machineconfiguration workers        # another version".to_owned(),
        "kubectl delete node server-1                     # returns with the newest version".to_owned(),
        "bedplate machine show server-2".to_owned(),
        "bedplate power cycle server-2 --wait".to_owned(),
        "tail -f server-1.serial controller.log".to_owned(),
    ] {
        println!("  {command}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::signal::ctrl_c()).context("cannot wait for Ctrl-C")
}
