//! A DHCP server with made-up clients, to try real DHCP clients and load generators against the engine by hand.
//!
//! Not a product: `standalone INTERFACE NETWORK RANGE LEASE-FILE [server|proxy]`. Every client is served as if discovery were
//! on; those whose MAC begins with 52:54:00 are known Machines, the last octet being that of their fixed address.
//! On Enter or the end of input it prints its counters; on `quit` it stops.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use bedplate_dhcp::Server;
use bedplate_dhcp::client::{BootAnswer, Client, Clients, Event, KnownClient, Loader, Query};
use bedplate_dhcp::counter::Trouble;
use bedplate_dhcp::respond::Silence;
use bedplate_dhcp::settings::{Mode, Ports, Settings, Subnet};
use bedplate_dhcp::wire::{Malformed, MessageType};
use ipnet::Ipv4Net;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

struct Everybody {
    verbose: bool,
}

impl Clients for Everybody {
    fn client(&self, query: &Query) -> Client {
        let octets = query.mac.octets();
        if !octets.starts_with(&[0x52, 0x54, 0x00]) {
            return Client::Unknown { discovery: true };
        }
        let base = u32::from(query.subnet.network()) + u32::from(octets[5]);
        let fixed = Ipv4Net::new(Ipv4Addr::from(base), query.subnet.prefix_len());
        let name = format!("machine-{}", octets[5]);
        match (fixed, name.parse()) {
            (Ok(fixed), Ok(machine)) => Client::Known(KnownClient {
                machine,
                addresses: if octets[5] > 1 { vec![fixed] } else { Vec::new() },
                gateway: None,
                nameservers: Vec::new(),
            }),
            _ => Client::Refused("no-name"),
        }
    }

    fn boot(&self, query: &Query) -> Option<BootAnswer> {
        let file = match query.loader {
            Loader::None => return None,
            Loader::Pxe => "undionly.kpxe".to_owned(),
            Loader::Http => format!("http://{}:8067/b/0/loader/ipxe.efi", query.server),
            Loader::Ipxe => format!("http://{}:8067/b/0/script.ipxe", query.server),
        };
        Some(BootAnswer { next_server: query.server, file })
    }

    fn observe(&self, query: &Query, event: &Event) {
        if self.verbose {
            println!("{} {:?} {event:?}", query.mac, query.message);
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let arguments: Vec<String> = std::env::args().collect();
    let [_, interface, network, range, file, mode @ ..] = arguments.as_slice() else {
        return Err("usage: standalone INTERFACE NETWORK RANGE LEASE-FILE [server|proxy]".into());
    };
    let settings = Settings {
        mode: if mode.first().is_some_and(|m| m == "proxy") { Mode::Proxy } else { Mode::Server },
        interfaces: interface.split(',').map(str::to_owned).collect(),
        authoritative: true,
        subnets: vec![Subnet {
            network: network.parse()?,
            ranges: vec![range.parse()?],
            reserve: 0,
            routers: vec![network.parse::<Ipv4Net>()?.hosts().next().ok_or("no hosts")?],
            nameservers: vec![Ipv4Addr::new(192, 0, 2, 53)],
            domain: Some("rack.example".into()),
            ntp_servers: vec![Ipv4Addr::new(192, 0, 2, 123)],
            lease_seconds: 3600,
            relays: Vec::new(),
        }],
        ports: Ports::default(),
    };
    let verbose = std::env::var_os("VERBOSE").is_some();
    let server = Server::bind(settings, Arc::new(Everybody { verbose }), Path::new(file))?;
    let shutdown = CancellationToken::new();
    let running = tokio::spawn({
        let (server, shutdown) = (server.clone(), shutdown.clone());
        async move { server.run(shutdown).await }
    });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        print_counters(&server);
        if line == "quit" {
            shutdown.cancel();
            break;
        }
    }
    running.await??;
    print_counters(&server);
    Ok(())
}

fn print_counters(server: &Server) {
    let counters = server.counters();
    let mut all: Vec<(String, u64)> = Vec::new();
    for message in MessageType::ALL {
        all.push((format!("received {}", message.label()), counters.received(message)));
        all.push((format!("sent {}", message.label()), counters.sent(message)));
    }
    all.extend(Malformed::ALL.iter().map(|r| (format!("malformed {}", r.label()), counters.malformed(*r))));
    all.extend(Silence::ALL.iter().map(|r| (format!("silent {}", r.label()), counters.silence(*r))));
    all.extend(Trouble::ALL.iter().map(|r| (format!("trouble {}", r.label()), counters.trouble(*r))));
    all.push(("commits".into(), counters.commits()));
    all.push(("committed changes".into(), counters.committed_changes()));
    for (name, value) in all.iter().filter(|(_, value)| *value > 0) {
        println!("{name}: {value}");
    }
    for usage in server.pool_usage() {
        println!("{usage:?}");
    }
    println!("{:?}", server.interfaces());
}
