//! A node with a network of its own on a real host: systemd 252, nspawn and networkd in namespaces, the real agent, our node image with its
//! networkd and containerd, and on the wire of the host a real API server, and pxed for addresses. As in `agent_node` the kubelet is
//! a stand-in.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use bedplate_api::id::MacAddress;
use bedplate_tests::agent_host::{AgentHost, JOINS, NAME, has_applied, paved};
use bedplate_tests::guard::Directory;
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{Pxed, Setup, stub_image};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 10);
/// File with the slot's view of its network, as the host sees the file, and as the slot does.
const NOTE: &str = "var/lib/kubelet/network";

/// A wire with a server, and a host's network at it.
fn wire() -> (Namespace, Namespace) {
    let (wire, host) = (Namespace::new("wire").unwrap(), Namespace::new("agentnet").unwrap());
    wire.add_bridge("br0", Some((SERVER, 24))).unwrap();
    wire.add_veth("port1", &host, "eth0").unwrap();
    wire.ip("link set port1 master br0").unwrap();
    host.ip(&format!("address add {HOST}/24 brd + dev eth0")).unwrap();
    host.ip(&format!("route add default via {SERVER}")).unwrap();
    (wire, host)
}

/// A kubeadm that notes how the network stands and fails if the API server is not to be reached, then is content.
fn kubeadm(site: &AgentHost) -> String {
    let server = site.kubernetes.address();
    format!(
        "{{ ip -4 -o address; ip -o link; getent hosts {NAME}; cat /proc/sys/net/ipv4/ip_forward; }} >/{NOTE}\n\
         perl -MIO::Socket::INET -e 'IO::Socket::INET->new(PeerAddr => \"{server}\", Timeout => 20) or die \"no API server: $@\"' || exit 1\n\
         {JOINS}"
    )
}

fn note(site: &AgentHost, slot: &str) -> String {
    site.host.read(&format!("/var/lib/bedplate/slots/{slot}/state/kubelet/network")).unwrap()
}

/// Paves the first version, then repaves with the second one into the other slot; gives what both noted.
fn paved_and_repaved(site: &AgentHost) -> [String; 2] {
    site.until_node_is_pending().unwrap();
    site.until("the first version is applied", |status| has_applied(status, 1, "a")).unwrap();
    // Slot a is filled again once it is retired.
    let first = note(site, "a");
    site.select(2).unwrap();
    site.until("the second version is prepared", |status| status["slots"][1]["state"] == "Prepared").unwrap();
    site.delete_node().unwrap();
    site.until_node_is_pending().unwrap();
    site.until("the second version is applied", |status| has_applied(status, 2, "b")).unwrap();
    [first, note(site, "b")]
}

/// Answer of a service at this address of the wire.
fn ask(from: &Namespace, address: Ipv4Addr, port: u16) -> anyhow::Result<String> {
    from.inside(|| {
        let mut stream = TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(10))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
}

#[test]
fn macvlan_node_gets_its_own_address_and_keeps_it_over_a_repave() {
    let (wire, host) = wire();
    let directory = Directory::new("agentnet").unwrap();
    let setup = Setup::new(stub_image(directory.path()).unwrap());
    let machine = format!(
        "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata:\n  name: {NAME}\nspec:\n  provider: pxe\n  pxe:\n    interfaces:\n    - macAddress: \"52:54:00:00:00:01\"\n"
    );
    let _pxed = Pxed::start(&setup, &[machine], &wire, directory.path()).unwrap();
    let site = AgentHost::start_in(host, Some((&wire, SERVER)), 5).unwrap();
    for version in [1, 2] {
        site.version_in(version, &kubeadm(&site), "Macvlan").unwrap();
    }
    site.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
    site.select(1).unwrap();
    let [first, second] = paved_and_repaved(&site);

    let mac = MacAddress::of_slot(&NAME.parse().unwrap()).to_string();
    let address = |note: &str| -> Ipv4Addr {
        assert!(note.contains(&mac), "{mac} is not in {note}");
        let line = note.lines().find(|line| line.contains("mv-eth0") && line.contains("inet ")).unwrap();
        line.split_whitespace().nth(3).unwrap().split('/').next().unwrap().parse().unwrap()
    };
    println!("{first}");
    assert!((100..200).contains(&address(&first).octets()[3]), "{first}");
    assert_eq!(address(&first), address(&second));
    assert!(first.ends_with("\n1\n"), "it forwards what Pods send: {first}");
    // Others on the wire reach the node; its host, as the kernel has it, does not, and the gate was passed all the same.
    assert!(ask(&wire, address(&second), 10250).unwrap().ends_with("ok"));
    assert!(ask(&site.network, address(&second), 10250).is_err());
}

#[test]
fn veth_node_reaches_the_cluster_and_is_reached_at_its_hosts_address() {
    let (wire, host) = wire();
    let site = AgentHost::start_in(host, Some((&wire, SERVER)), 5).unwrap();
    for version in [1, 2] {
        site.version_in(version, &kubeadm(&site), "Veth").unwrap();
    }
    site.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
    site.select(1).unwrap();
    site.until("networkd is missed", |status| paved(status)["reason"] == "HostUnsupported").unwrap();
    let message = paved(&site.status().unwrap())["message"].to_string();
    assert!(message.contains("systemctl enable --now systemd-networkd.service"), "{message}");
    site.host.run("systemctl", &["start", "systemd-networkd.service"]).unwrap();
    let notes = paved_and_repaved(&site);

    println!("{}", notes[0]);
    for note in &notes {
        assert!(note.contains(" 198.18.255.254/30 "), "{note}");
        let own = note.lines().find(|line| line.ends_with(NAME)).unwrap();
        assert!(own.starts_with(&HOST.to_string()), "what a kubelet takes for its Node's: {own}");
        assert!(note.contains(&format!(" {HOST}/32 scope host ")), "{note}");
    }
    assert!(ask(&wire, HOST, 10250).unwrap().ends_with("ok"));
    assert!(ask(&wire, HOST, 10248).is_err(), "nothing else of the node is published");
}
