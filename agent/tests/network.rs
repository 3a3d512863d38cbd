//! Stage-1's network code against independent DHCP servers: dnsmasq and busybox's udhcpd.
//!
//! Each test has two network namespaces of its own and removes them. Needs
//! root, ip and the servers; a missing one fails.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step fails the test")]

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_agent::stage1::dhcp::get_lease;
use bedplate_agent::stage1::link::{Interface, configure, set_up};
use bedplate_api::id::MacAddress;
use nix::sched::{CloneFlags, unshare};

const MAC: &str = "52:54:00:00:00:01";

/// Script that reads names of namespaces and, at the end of its input, deletes the namespaces with all processes in them. The script
/// ignores signals, so Ctrl-C does not end it before the cleanup.
const REAPER: &str = r#"
trap '' HUP INT QUIT TERM
for name in $(cat); do
  if [ -e "/run/netns/$name" ]; then ip netns pids "$name" | xargs -r kill -9; ip netns del "$name"; fi
done
"#;

/// Registers a namespace for deletion at any end of this process. No other process has the write end of the reaper's pipe.
fn remember(name: &str) {
    static REAPER_PROCESS: Mutex<Option<Child>> = Mutex::new(None);
    let mut reaper = REAPER_PROCESS.lock().unwrap();
    let reaper = reaper.get_or_insert_with(|| {
        let mut shell = Command::new("sh");
        shell.args(["-c", REAPER]).current_dir("/").process_group(0).stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    });
    writeln!(reaper.stdin.as_ref().unwrap(), "{name}").unwrap();
}

/// The server's namespace and what runs in it.
struct Network {
    name: String,
    server: Option<Child>,
}

fn ip(arguments: &str) -> String {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().expect("ip (Debian package iproute2)");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Network {
    /// Moves the calling thread into a new namespace with one end of a cable; the other end is the server's.
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("bpa{}x{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace: this test needs root");
        remember(&name);
        ip(&format!("netns add {name}"));
        let network = Self { name, server: None };
        ip(&format!("link add client address {MAC} type veth peer name server netns {}", network.name));
        network.ip("addr add 10.7.0.1/24 dev server");
        network.ip("link set server up");
        network.ip("link set lo up");
        network
    }

    fn ip(&self, arguments: &str) -> String {
        ip(&format!("-n {} {arguments}", self.name))
    }

    fn run(&mut self, program: &str, arguments: &[&str]) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]).args(arguments).stdin(Stdio::null());
        let log = Stdio::null;
        self.server = Some(command.stdout(log()).stderr(log()).spawn().unwrap());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Gets a lease from what `start` started and gives the interface its address.
fn check_lease(start: impl FnOnce(&mut Network, &Path) + Send + 'static) {
    // A thread of its own: the namespace is the thread's.
    let thread = std::thread::spawn(move || {
        let mut network = Network::new();
        let directory = tempfile::tempdir().unwrap();
        start(&mut network, directory.path());
        let mac: MacAddress = MAC.parse().unwrap();
        let text = ip("-o link show client");
        let interface = Interface {
            name: "client".to_owned(),
            index: text.split(':').next().unwrap().parse().unwrap(),
            mac,
        };
        set_up(&interface).unwrap();
        let mut number = 0x1234_5678_u64;
        let mut random = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            number
        };
        let (lease, server) = get_lease(&interface, &mut random).unwrap();
        assert_eq!((lease.address, lease.prefix), (Ipv4Addr::new(10, 7, 0, 50), 24));
        assert_eq!(server, Ipv4Addr::new(10, 7, 0, 1));
        assert_eq!(lease.nameservers, [Ipv4Addr::new(10, 7, 0, 1)]);
        assert_eq!(lease.domain.as_deref(), Some("rack.example"));
        configure(&interface, None, &lease).unwrap();
        let mut moved = lease.clone();
        moved.address = Ipv4Addr::new(10, 7, 0, 51);
        configure(&interface, Some(&lease), &moved).unwrap();
        configure(&interface, Some(&moved), &lease).unwrap();
        let addresses = ip("-4 -o addr show client");
        assert!(addresses.contains("inet 10.7.0.50/24 brd 10.7.0.255"), "{addresses}");
        assert!(!addresses.contains("10.7.0.51"), "{addresses}");
        let routes = ip("route show");
        assert!(routes.contains("default via 10.7.0.1 dev client proto dhcp"), "{routes}");
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_lease_of_dnsmasq_is_taken_and_set() {
    check_lease(|network, directory| {
        let leases = format!("--dhcp-leasefile={}", directory.join("leases").display());
        network.run(
            "dnsmasq",
            &[
                "--keep-in-foreground",
                "--no-resolv",
                "--no-hosts",
                "--conf-file=/dev/null",
                "--port=0",
                "--user=root",
                "--interface=server",
                "--bind-interfaces",
                "--dhcp-authoritative",
                "--dhcp-range=10.7.0.50,10.7.0.50,1h",
                "--dhcp-option=option:dns-server,10.7.0.1",
                "--dhcp-option=option:router,10.7.0.1",
                "--domain=rack.example",
                "--pid-file=",
                &leases,
            ],
        );
    });
}

#[test]
fn a_lease_of_udhcpd_is_taken_and_set() {
    check_lease(|network, directory| {
        let file = |name: &str| directory.join(name).display().to_string();
        std::fs::write(file("leases"), "").unwrap();
        let text = format!(
            "start 10.7.0.50\nend 10.7.0.50\ninterface server\nlease_file {}\npidfile {}\nopt dns 10.7.0.1\nopt router 10.7.0.1\n\
             opt subnet 255.255.255.0\nopt domain rack.example\nopt lease 3600\n",
            file("leases"),
            file("pid"),
        );
        std::fs::write(file("conf"), text).unwrap();
        network.run("busybox", &["udhcpd", "-f", "-S", &file("conf")]);
    });
}

#[test]
fn chains_of_a_stopped_node_leave_the_packet_filter_and_all_else_stays() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace: this test needs root");
    let shell = |script: &str| {
        let output = Command::new("/bin/sh").args(["-c", script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{script}: {said} (iptables is Debian's package of that name)");
        String::from_utf8(output.stdout).unwrap()
    };
    let tools = ["iptables-nft", "ip6tables-nft", "iptables-legacy"];
    let rules = |tool: &str| {
        let saved = shell(&format!("{tool}-save"));
        let lines = saved.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let clean = || shell(include_str!("../src/node/apply/rules.sh"));
    for tool in tools {
        shell(&format!(
            "set -e; {tool} -N mine; {tool} -A INPUT -p tcp --dport 22 -j mine; {tool} -t nat -A POSTROUTING -o eth9 -j MASQUERADE"
        ));
    }
    let before = tools.map(rules);
    clean();
    assert_eq!(tools.map(rules), before, "nothing of a node is there");
    for tool in tools {
        shell(&format!(
            "set -e; n='{tool} -t nat'; $n -N KUBE-SERVICES; $n -N KUBE-MARK-MASQ; $n -N CNI-01ab; {tool} -N KUBE-FIREWALL
             $n -A KUBE-SERVICES -m comment --comment 'a \"quoted\" name' -p tcp -j KUBE-MARK-MASQ
             $n -A PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES
             $n -A POSTROUTING -m comment --comment 'name: \"cni0\" id: \"x\"' -j CNI-01ab
             $n -A CNI-01ab -j MASQUERADE; {tool} -I INPUT -j KUBE-FIREWALL"
        ));
    }
    clean();
    assert_eq!(tools.map(rules), before);
}
