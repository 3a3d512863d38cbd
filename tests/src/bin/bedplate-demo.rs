//! The demonstration: two virtual servers, one BIOS and one UEFI, and a real cluster. What a person does is done with kubectl and shown:
//! a MachineConfiguration and two Machines are applied, the servers come up over BMC and network and become Nodes; the configuration is
//! edited, a Node deleted, the other one updated by a rolling update. All of it is watched live.
//!
//! `cargo xtask demo` has prepared everything before it starts this. Everything is removed at the end, also after Ctrl-C.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bedplate_tests::bmc::server::{BmcKind, Server};
use bedplate_tests::guest::GuestSlot;
use bedplate_tests::nodes::{self, CONFIGURATION, Nodes, has_applied};
use bedplate_tests::qemu::{Firmware, Spec};
use bedplate_tests::rack::Rack;
use bedplate_tests::site::Site;
use bedplate_tests::table::{Row, Table, bold, colour};
use bedplate_tests::{guard, kubernetes, pxed, timeline, wait};
use jiff::Timestamp;
use serde_json::json;

/// Maximum time from power-on, or from a Node's end, to a Ready Node, with two servers on two emulated processors each.
const NODE_TIMEOUT: Duration = Duration::from_secs(1800);
/// Maximum time until a program has written a short change.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Memory of each server: the host, the node image and its processes are in memory.
const MEMORY_MIB: u32 = 3072;
/// The Node's version, and from which configuration, as its annotations say.
const COLUMNS: &str = "custom-columns=NAME:.metadata.name,CONFIGURATION:.metadata.annotations.bedplate\\.dev/machine-configuration,\
                       VERSION:.metadata.annotations.bedplate\\.dev/machine-configuration-version,UID:.metadata.uid,\
                       GENERATION:.metadata.labels.example\\.com/generation";

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
}

fn main() -> ExitCode {
    let keep = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--keep") => true,
        Some(other) => {
            eprintln!("error: {other:?} is not known; there is --keep");
            return ExitCode::from(64);
        }
    };
    match run(keep) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(keep: bool) -> Result<()> {
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
    let site = Site::beside("demo", &rack, servers, kubernetes)?;
    println!("  pxed        DHCP server for the Machines of the cluster, whose servers it switches on");
    let demo = Demo { nodes, site, rack: &rack };
    demo.become_nodes()?;
    demo.edit()?;
    demo.repave()?;
    demo.roll()?;
    demo.print(&["get", "machines,mc,mcv"])?;
    bedplate(&demo.site, &["machine", "list"])?;
    rack.succeeded();
    print_total(begin);
    // With --keep, tests that boot guests need not wait for the person who looks around.
    drop(slots);
    look_around(&demo, &admin, keep)?;
    println!("\nremoving servers, pxed, cluster and network ...");
    drop(demo);
    drop(rack);
    println!("{}", colour("32", "done: two servers became Nodes, and both have the edited version"));
    Ok(())
}

impl Demo<'_> {
    /// Applies the configuration and the Machines, and shows the servers become Nodes.
    fn become_nodes(&self) -> Result<()> {
        let since = Timestamp::now();
        println!("\n{}", bold("$ kubectl apply -f workers.json -f server-1.yaml -f server-2.yaml"));
        self.configure("OnDelete", "first")?;
        for exhibit in &SERVERS {
            self.site.apply(exhibit.number, "")?;
        }
        let ready = |server: &Server| self.runs(server.name(), 1);
        self.watch("two Ready Nodes", || self.site.servers().iter().all(ready))?;
        println!();
        for server in self.site.servers() {
            print_times(&self.nodes, server, since)?;
        }
        self.print(&["get", "nodes", "-o", "wide"])
    }

    /// C4: an edit makes a version, and disturbs nothing.
    fn edit(&self) -> Result<()> {
        println!("\n{}", bold("$ kubectl apply -f workers.json      # edited: another label of the Nodes"));
        self.configure("OnDelete", "second")?;
        wait::until("the edit's version", CHANGE_TIMEOUT, || {
            let configuration = self.nodes.seen("MachineConfiguration", CONFIGURATION).unwrap_or_default();
            let outdated = &configuration["status"]["machines"]["outdated"];
            Ok((*outdated == SERVERS.len()).then_some(()))
        })?;
        println!("  workers-v2 is made, and nothing is disturbed: updateStrategy is OnDelete");
        self.print(&["get", "mc,mcv"])?;
        self.print(&["get", "nodes", "-o", COLUMNS])
    }

    /// H6: a Node that is deleted comes again with the newest version.
    fn repave(&self) -> Result<()> {
        println!("\n{}", bold("$ kubectl delete node server-1"));
        self.site.kubectl(&["delete", "node", "server-1"])?;
        self.watch("server-1 with version 2", || self.runs("server-1", 2))?;
        self.print(&["get", "nodes", "-o", COLUMNS])
    }

    /// C4: a rolling update drains, deletes and waits by itself.
    fn roll(&self) -> Result<()> {
        println!(
            "\n{}",
            bold("$ kubectl apply -f workers.json      # edited: updateStrategy.type: RollingUpdate")
        );
        self.configure("RollingUpdate", "second")?;
        self.watch("server-2 with version 2", || self.runs("server-2", 2))?;
        self.print(&["get", "nodes", "-o", COLUMNS])
    }

    fn configure(&self, strategy: &str, generation: &str) -> Result<()> {
        let mut template = self.nodes.template(&json!({}))?;
        template["kubernetes"]["nodeLabels"] = json!({"example.com/generation": generation});
        self.nodes.configure(&self.site, &json!({"type": strategy}), &template)
    }

    /// Returns true if a server is a Ready Node of this version.
    fn runs(&self, name: &str, version: u32) -> bool {
        let machine = self.nodes.seen("Machine", name).unwrap_or_default();
        let node = self.nodes.seen("Node", name).unwrap_or_default();
        has_applied(&machine, version) && nodes::is_of(&node, version)
    }

    /// Shows the table until something is reached.
    fn watch(&self, what: &str, reached: impl Fn() -> bool) -> Result<()> {
        let (started, mut table) = (Instant::now(), Table::default());
        let row = |server: &Server| {
            let machine = self.nodes.seen("Machine", server.name()).unwrap_or_default();
            Row::of(&machine, self.nodes.seen("Node", server.name()).as_ref())
        };
        let watched = wait::until_asked(what, NODE_TIMEOUT, || {
            let rows: Vec<Row> = self.site.servers().iter().map(row).collect();
            table.show(&rows, started.elapsed());
            Ok(reached().then_some(()))
        });
        watched.with_context(|| {
            let serial =
                |server: &Server| format!("{}:\n{}", server.name(), guard::last_lines(&server.serial(), 25));
            let serial: Vec<String> = self.site.servers().iter().map(serial).collect();
            format!("{}\n{}", self.nodes.story(), serial.join("\n"))
        })
    }

    /// Shows what kubectl says, and the command.
    fn print(&self, arguments: &[&str]) -> Result<()> {
        println!("\n{}", bold(&format!("$ kubectl {}", arguments.join(" "))));
        print!("{}", self.site.kubectl(arguments)?);
        Ok(())
    }
}

/// Prints the time of the demo, and that of the whole command, whose start is in `BEDPLATE_DEMO_STARTED` (seconds since 1970).
fn print_total(begin: Instant) {
    let minutes = |seconds: u64| format!("{} min {:02} s", seconds / 60, seconds % 60);
    let started = std::env::var("BEDPLATE_DEMO_STARTED").ok().and_then(|text| text.parse::<i64>().ok());
    let total = started.and_then(|started| u64::try_from(Timestamp::now().as_second() - started).ok());
    let total = total.map_or(String::new(), |total| format!("; {} with the preparation", minutes(total)));
    println!("\n  the demo took {}{total}", minutes(begin.elapsed().as_secs()));
}

/// When a server was switched on, and when its boot came to each stage.
fn print_times(nodes: &Nodes, server: &Server, since: Timestamp) -> Result<()> {
    let on = server.changes().into_iter().rfind(|change| change.on);
    let on = on.with_context(|| format!("{} was never switched on", server.name()))?;
    let seconds = (on.at - since).total(jiff::Unit::Second).unwrap_or_default();
    let machine = nodes.object("Machine", server.name()).unwrap_or_default();
    println!("  {}  power on {seconds:.1}  {}", bold(server.name()), timeline::line(&machine, since));
    Ok(())
}

/// Runs `bedplate` on the demonstration's pxed and shows the command as well.
fn bedplate(site: &Site<'_>, arguments: &[&str]) -> Result<()> {
    println!("\n{}", bold(&format!("$ bedplate {}", arguments.join(" "))));
    let output = site.bedplate(arguments)?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        bail!("bedplate {} ended with {}", arguments.join(" "), output.status);
    }
    Ok(())
}

/// Prints how to look around, and waits for Ctrl-C if the rack is to stay.
fn look_around(demo: &Demo<'_>, admin: &std::path::Path, keep: bool) -> Result<()> {
    let (network, socket) = (demo.rack.network().name(), demo.site.pxed()?.socket());
    let kubectl = kubernetes::programs()?.join("kubectl");
    let bedplate = pxed::binary("bedplate")?;
    let place = demo.rack.path().display();
    match keep {
        true => println!("\n{}", bold("The rack runs until Ctrl-C. In another terminal:")),
        false => {
            println!("\n{}", bold("With --keep the rack would run on until Ctrl-C, for another terminal:"));
        }
    }
    println!(
        "  k() {{ nsenter --net=/run/netns/{network} {} --kubeconfig {} \"$@\"; }}",
        kubectl.display(),
        admin.display()
    );
    for command in [
        "get machines --watch",
        "get mc,mcv,nodes -o wide",
        "describe machine server-1",
        "get events --watch",
        "edit mc workers                          # another version",
        "delete node server-1                     # has it paved with that",
        &format!("apply --server-side -f {place}/workers.json"),
    ] {
        println!("  k {command}");
    }
    for command in ["machine list", "machine show server-2", "power cycle server-2 --wait"] {
        println!("  {} --socket {} {command}", bedplate.display(), socket.display());
    }
    println!("  tail -f {place}/server-1.serial {place}/controller.log");
    if !keep {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::signal::ctrl_c()).context("cannot wait for Ctrl-C")
}
