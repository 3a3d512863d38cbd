//! The one interface that netboots: found by its MAC address, set up, given its address.
//!
//! No other interface is touched. Called by the driver.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use bedplate_api::id::MacAddress;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

use super::dhcp_wire::Lease;
use super::error::StageError;
use super::netlink::{Change, acknowledgement, encode};
use crate::hardware::{names_in, read_text};

const CARRIER_WAIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Kernel name.
    pub name: String,
    /// Kernel index.
    pub index: u32,
    /// Hardware address.
    pub mac: MacAddress,
}

/// The interface with this address, below `root`; hardware before made-up ones (a bond has its members' address).
pub(crate) fn find_interface(root: &Path, mac: MacAddress) -> Option<Interface> {
    let class = root.join("sys/class/net");
    let mut found: Vec<(bool, Interface)> = Vec::new();
    for name in names_in(&class) {
        let path = class.join(&name);
        let own = read_text(&path.join("address")).and_then(|text| text.parse::<MacAddress>().ok());
        let index = read_text(&path.join("ifindex")).and_then(|text| text.parse().ok());
        if let (true, Some(index)) = (own == Some(mac), index) {
            found.push((!path.join("device").exists(), Interface { name, index, mac }));
        }
    }
    found.sort_by_key(|(made_up, _)| *made_up);
    found.into_iter().next().map(|(_, interface)| interface)
}

/// Returns the existing interfaces as text for a message.
pub(crate) fn describe_interfaces(root: &Path) -> String {
    let class = root.join("sys/class/net");
    let words = names_in(&class).into_iter().filter(|name| name != "lo").map(|name| {
        let address = read_text(&class.join(&name).join("address")).unwrap_or_default();
        format!("{name} {address}")
    });
    let words: Vec<String> = words.take(16).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// Sets the interface up.
pub fn set_up(interface: &Interface) -> Result<(), StageError> {
    apply(Change::Up { index: interface.index }, &interface.name)
}

/// Waits until the interface, which is up, has a carrier.
pub(crate) fn await_carrier(interface: &Interface) -> Result<(), StageError> {
    let carrier = Path::new("/sys/class/net").join(&interface.name).join("carrier");
    let deadline = Instant::now() + CARRIER_WAIT;
    while read_text(&carrier).as_deref() != Some("1") {
        if Instant::now() > deadline {
            let seconds = CARRIER_WAIT.as_secs();
            return Err(StageError::NoCarrier { interface: interface.name.clone(), seconds });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Gives the interface the lease's address and routes, after removing those of an `earlier` lease.
pub fn configure(interface: &Interface, earlier: Option<&Lease>, lease: &Lease) -> Result<(), StageError> {
    let index = interface.index;
    if let Some(earlier) = earlier.filter(|e| (e.address, e.prefix) != (lease.address, lease.prefix)) {
        // The address may be gone already, and has no users.
        let _ = apply(
            Change::NoAddress { index, address: earlier.address, prefix: earlier.prefix },
            &interface.name,
        );
    }
    apply(Change::Address { index, address: lease.address, prefix: lease.prefix }, &interface.name)?;
    for (network, prefix, gateway) in &lease.routes {
        let network = masked(*network, *prefix);
        apply(Change::Route { index, network, prefix: *prefix, gateway: *gateway }, &interface.name)?;
    }
    Ok(())
}

fn masked(network: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let host_bits = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
    Ipv4Addr::from_bits(network.to_bits() & !host_bits)
}

/// Sends one change to the kernel and waits for its answer.
fn apply(change: Change, name: &str) -> Result<(), StageError> {
    let act = match change {
        Change::Up { .. } => "set up",
        Change::Address { .. } => "give an address to",
        Change::NoAddress { .. } => "remove an address from",
        Change::Route { .. } => "add a route to",
    };
    let answer = exchange(&encode(change, 1)).map_err(StageError::system(act, name))?;
    match Errno::from_raw(answer.saturating_neg()) {
        _ if answer == 0 => Ok(()),
        Errno::EEXIST => Ok(()),
        errno => Err(StageError::system(act, name)(errno)),
    }
}

fn exchange(message: &[u8]) -> Result<i32, Errno> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(5, 0))?;
    sendto(socket.as_raw_fd(), message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut buffer = [0; 4096];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        if let Some(code) = acknowledgement(&buffer[..length], 1) {
            return Ok(code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::fixture::{server, vm, write};

    #[test]
    fn the_interface_is_found_by_its_address_and_no_other() {
        let root = vm();
        let mac = MacAddress::new([0x52, 0x54, 0, 0, 0, 1]);
        assert_eq!(
            find_interface(root.path(), mac),
            Some(Interface { name: "eth0".to_owned(), index: 2, mac })
        );
        assert_eq!(find_interface(root.path(), MacAddress::new([2; 6])), None);
        assert_eq!(describe_interfaces(root.path()), "eth0 52:54:00:00:00:01");
    }

    #[test]
    fn hardware_goes_before_a_bond_with_the_same_address() {
        let root = server();
        write(root.path(), &[("sys/class/net/bond0/ifindex", "9\n"), ("sys/class/net/eno1/ifindex", "3\n")]);
        let mac = MacAddress::new([0xaa, 0xbb, 0xcc, 0, 0, 1]);
        assert_eq!(find_interface(root.path(), mac).unwrap().name, "eno1");
    }

    #[test]
    fn a_routes_network_has_no_host_bits() {
        for (network, prefix, expected) in
            [("10.8.1.7", 24, "10.8.1.0"), ("10.8.1.7", 32, "10.8.1.7"), ("10.8.1.7", 0, "0.0.0.0")]
        {
            assert_eq!(masked(network.parse().unwrap(), prefix).to_string(), expected);
        }
    }
}
