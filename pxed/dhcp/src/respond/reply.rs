//! The answers' contents and where they go (RFC 2131, table 3 and 4.1; RFC 4578; RFC 6842).
//!
//! Pure.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::request::lease_seconds;
use super::{Asked, Destination, Packet};
use crate::client::{BootAnswer, Loader};
use crate::settings::{Mode, Subnet};
use crate::wire::{MessageType, Reply, encode, option};

/// `file` holds 127 octets and a zero.
const FILE_TEXT: usize = 127;

type Options = Vec<(u8, Vec<u8>)>;

impl Asked<'_> {
    /// DHCPOFFER or DHCPACK; `address` is `None` for DHCPINFORM.
    pub(super) fn lease_reply(
        &self,
        message: MessageType,
        address: Option<Ipv4Addr>,
        boot: Option<&BootAnswer>,
    ) -> Option<Packet> {
        let subnet = self.subnet?;
        let mut options = vec![server_id(self.server_id)];
        if address.is_some() {
            options.extend(times(lease_seconds(self, subnet)));
        }
        options.extend(self.wanted(subnet, boot));
        options.extend(self.always(boot));
        let mut reply = self.reply(message, options);
        reply.your_address = address.unwrap_or(Ipv4Addr::UNSPECIFIED);
        reply.client_address = match message {
            MessageType::Ack => self.request.client_address.unwrap_or(Ipv4Addr::UNSPECIFIED),
            _ => Ipv4Addr::UNSPECIFIED,
        };
        fill_boot(&mut reply, boot);
        let to = match (address, message) {
            // A relay cannot deliver to a client whose address is not in the answer, except by broadcast.
            (None, _) => {
                reply.broadcast |= self.request.relay.is_some();
                self.relayed().unwrap_or_else(|| self.informed())
            }
            (Some(address), _) => self.relayed().unwrap_or_else(|| self.local(message, address)),
        };
        self.packet(&reply, to)
    }

    /// DHCPNAK: to everybody on the client's link, since it may have lost its address (RFC 2131, 4.3.2).
    pub(super) fn nak(&self) -> Option<Packet> {
        let mut options = vec![server_id(self.server_id)];
        options.push((option::MESSAGE, b"this address is not yours here".to_vec()));
        options.extend(self.client_id());
        let mut reply = self.reply(MessageType::Nak, options);
        reply.broadcast = reply.broadcast || self.request.relay.is_some();
        self.packet(&reply, self.relayed().unwrap_or(Destination::Broadcast))
    }

    /// A proxyDHCP offer or a boot server's acknowledgement: boot information and nothing else.
    pub(super) fn proxy_reply(&self, message: MessageType, boot: &BootAnswer) -> Option<Packet> {
        let mut options = vec![server_id(self.server_id)];
        options.extend(self.boot_options(Some(boot), true));
        options.extend(self.always(Some(boot)));
        let mut reply = self.reply(message, options);
        reply.client_address = self.request.client_address.unwrap_or(Ipv4Addr::UNSPECIFIED);
        fill_boot(&mut reply, Some(boot));
        let to = if self.arrival.boot_server {
            Destination::BootServer(self.arrival.peer)
        } else {
            reply.broadcast = true;
            let direct = || match message {
                MessageType::Ack => self.informed(),
                _ => Destination::Broadcast,
            };
            self.relayed().unwrap_or_else(direct)
        };
        self.packet(&reply, to)
    }

    fn reply(&self, message: MessageType, options: Options) -> Reply {
        Reply {
            message,
            transaction: self.request.transaction,
            broadcast: self.request.broadcast,
            client_address: Ipv4Addr::UNSPECIFIED,
            your_address: Ipv4Addr::UNSPECIFIED,
            next_server: Ipv4Addr::UNSPECIFIED,
            relay: self.request.relay.unwrap_or(Ipv4Addr::UNSPECIFIED),
            mac: self.request.mac,
            file: Vec::new(),
            options,
            relay_information: self.request.relay_information.as_ref().map(|i| i.raw.to_vec()),
        }
    }

    fn packet(&self, reply: &Reply, to: Destination) -> Option<Packet> {
        let payload = encode(reply, self.request.max_size)?;
        Some(Packet { message: reply.message, to, mac: reply.mac, source: self.source(), payload })
    }

    /// The address that the packet leaves from: one of ours, also where a relay made up another for option 54.
    fn source(&self) -> Ipv4Addr {
        let own = self.arrival.addresses.iter().map(ipnet::Ipv4Net::addr);
        let server = self.query.server;
        if own.clone().any(|address| address == server) {
            return server;
        }
        own.clone()
            .find(|own| self.query.subnet.contains(own))
            .or_else(|| own.clone().next())
            .unwrap_or(server)
    }

    fn relayed(&self) -> Option<Destination> {
        let relay = self.request.relay?;
        let by_source_port = self.request.relay_information.as_ref().is_some_and(|i| i.source_port);
        let port = if by_source_port { self.arrival.peer.port() } else { self.settings.ports.server };
        Some(Destination::Routed(SocketAddrV4::new(relay, port)))
    }

    fn local(&self, message: MessageType, address: Ipv4Addr) -> Destination {
        match self.request.client_address {
            // `ciaddr` counts in DHCPREQUEST only: elsewhere it would let anybody direct our answers.
            Some(client) if message == MessageType::Ack && self.request.server_id.is_none() => {
                Destination::Routed(SocketAddrV4::new(client, self.settings.ports.client))
            }
            Some(_) | None if self.request.broadcast => Destination::Broadcast,
            Some(_) | None => Destination::Hardware(address),
        }
    }

    fn informed(&self) -> Destination {
        let address = self.request.client_address.unwrap_or(*self.arrival.peer.ip());
        Destination::Routed(SocketAddrV4::new(address, self.settings.ports.client))
    }

    /// Options that the client may ask for, in its order; all of them if it has no parameter request list (RFC 2131,
    /// 4.3.1). The subnet mask may come earlier.
    fn wanted(&self, subnet: &Subnet, boot: Option<&BootAnswer>) -> Options {
        let mut available = vec![(option::SUBNET_MASK, subnet.network.netmask().octets().to_vec())];
        available.extend(self.configured(subnet));
        available.extend(self.boot_options(boot, false));
        let Some(parameters) = self.request.parameters.as_deref() else { return available };
        let rank = |code: u8| parameters.iter().position(|wanted| *wanted == code);
        let boot_file = boot.is_some_and(must_have_option);
        available.retain(|(code, _)| {
            rank(*code).is_some() || *code == option::SUBNET_MASK || (*code == option::BOOT_FILE && boot_file)
        });
        // RFC 2132, 3.3: the subnet mask precedes the router in any order that the client requests.
        let router = rank(option::ROUTER).unwrap_or(usize::MAX);
        available.sort_by_key(|(code, _)| match (*code, rank(*code).unwrap_or(usize::MAX)) {
            (option::SUBNET_MASK, own) => (own.min(router), 0),
            (_, own) => (own, 1),
        });
        available
    }

    /// The subnet's settings, the Machine's own before them.
    fn configured(&self, subnet: &Subnet) -> Options {
        let routers = match self.known.and_then(|known| known.gateway) {
            Some(gateway) => addresses(&[gateway]),
            None => addresses(&subnet.routers),
        };
        let nameservers = match self.known {
            Some(known) if !known.nameservers.is_empty() => addresses(&known.nameservers),
            Some(_) | None => addresses(&subnet.nameservers),
        };
        let mut options = vec![
            (option::ROUTER, routers),
            (option::NAME_SERVER, nameservers),
            (option::HOST_NAME, self.known.map(|k| k.machine.as_str().into()).unwrap_or_default()),
            (option::DOMAIN_NAME, subnet.domain.as_deref().unwrap_or_default().into()),
            (option::NTP_SERVER, addresses(&subnet.ntp_servers)),
        ];
        if subnet.network.prefix_len() < 31 {
            options.push((option::BROADCAST, subnet.network.broadcast().octets().to_vec()));
        }
        options.retain(|(_, value)| !value.is_empty());
        options
    }

    fn boot_options(&self, boot: Option<&BootAnswer>, proxy: bool) -> Options {
        let Some(boot) = boot else { return Vec::new() };
        let mut options = Vec::new();
        if !proxy || self.wants(option::TFTP_SERVER) {
            options.push((option::TFTP_SERVER, boot.next_server.to_string().into_bytes()));
        }
        if !proxy || must_have_option(boot) || self.wants(option::BOOT_FILE) {
            options.push((option::BOOT_FILE, boot.file.clone().into_bytes()));
        }
        options
    }

    fn wants(&self, code: u8) -> bool {
        self.request.parameters.as_deref().is_some_and(|list| list.contains(&code))
    }

    /// Returns options that are sent without being requested.
    fn always(&self, boot: Option<&BootAnswer>) -> Options {
        let mut options = self.client_id();
        let netboots = self.request.loader != Loader::None;
        if let Some(id) = self.request.machine_id.as_deref().filter(|_| netboots) {
            options.push((option::MACHINE_ID, id.to_vec()));
        }
        let gives_addresses = self.settings.mode == Mode::Server && !self.arrival.boot_server;
        match (self.request.loader, boot) {
            // UEFI HTTP boot takes only offers that say so (UEFI 2.10, 24.7.2).
            (Loader::Http, Some(_)) => options.push((option::VENDOR_CLASS, b"HTTPClient".to_vec())),
            // In an offer with an address, firmware would take it for a hint to ask at port 4011 first.
            (Loader::Pxe | Loader::Ipxe, Some(_)) if !gives_addresses => {
                options.push((option::VENDOR_CLASS, b"PXEClient".to_vec()));
            }
            _ => {}
        }
        if self.request.loader == Loader::Ipxe && gives_addresses {
            options.push((option::IPXE, vec![option::IPXE_NO_PROXY, 1, 1]));
        }
        if let Some(item) = self.request.boot_item.filter(|_| self.arrival.boot_server) {
            let mut value = vec![option::pxe::BOOT_ITEM, 4];
            value.extend(item);
            value.push(option::END);
            options.push((option::VENDOR_SPECIFIC, value));
        }
        options
    }

    /// RFC 6842: echoed, changed in nothing.
    fn client_id(&self) -> Options {
        self.request.client_id.iter().map(|id| (option::CLIENT_ID, id.to_vec())).collect()
    }
}

/// Longer than `file` holds, or a URL, which UEFI HTTP boot looks for in option 67.
fn must_have_option(boot: &BootAnswer) -> bool {
    boot.file.len() > FILE_TEXT || boot.file.contains("://")
}

fn fill_boot(reply: &mut Reply, boot: Option<&BootAnswer>) {
    let Some(boot) = boot else { return };
    reply.next_server = boot.next_server;
    if boot.file.len() <= FILE_TEXT {
        reply.file = boot.file.clone().into_bytes();
    }
}

fn server_id(address: Ipv4Addr) -> (u8, Vec<u8>) {
    (option::SERVER_ID, address.octets().to_vec())
}

/// Options 51, 58 and 59: renewal after half, rebinding after seven eighths (RFC 2131, 4.4.5).
fn times(seconds: u32) -> Options {
    let rebinding = u64::from(seconds) * 7 / 8;
    [
        (option::LEASE_TIME, seconds),
        (option::RENEWAL_TIME, seconds / 2),
        (option::REBINDING_TIME, u32::try_from(rebinding).unwrap_or(seconds)),
    ]
    .map(|(code, value)| (code, value.to_be_bytes().to_vec()))
    .into()
}

fn addresses(list: &[Ipv4Addr]) -> Vec<u8> {
    list.iter().flat_map(Ipv4Addr::octets).collect()
}
