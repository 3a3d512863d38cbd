//! One lease as octets in the lease file. Released files hold them: a change needs a new version number.
//!
//! Pure.
//!
//! ```text
//! version=1 | state | since u64 | until u64 | mac 6 | network 4 | prefix 1 | key kind | key length u16 | key |
//! machine length u8 | machine                                                        (numbers big-endian)
//! ```
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::net::Ipv4Addr;

use bedplate_api::id::MacAddress;
use ipnet::Ipv4Net;

use crate::lease::{ClientKey, Holder, Lease, LeaseState};

const VERSION: u8 = 1;

const fn state_code(state: LeaseState) -> u8 {
    match state {
        LeaseState::Offered => 0,
        LeaseState::Bound => 1,
        LeaseState::Declined => 2,
        LeaseState::Free => 3,
    }
}

fn state(code: u8) -> Option<LeaseState> {
    [LeaseState::Offered, LeaseState::Bound, LeaseState::Declined, LeaseState::Free]
        .into_iter()
        .find(|state| state_code(*state) == code)
}

pub(super) fn encode(lease: &Lease, out: &mut Vec<u8>) {
    out.extend([VERSION, state_code(lease.state)]);
    out.extend(lease.since.to_be_bytes());
    out.extend(lease.until.to_be_bytes());
    out.extend(lease.mac.octets());
    out.extend(lease.holder.network.addr().octets());
    out.push(lease.holder.network.prefix_len());
    match &lease.holder.key {
        ClientKey::Mac(mac) => key(out, 0, &mac.octets()),
        ClientKey::Id(id) => key(out, 1, id),
    }
    // A DNS label: at most 63 octets.
    let machine = lease.machine.as_ref().map_or("", |machine| machine.as_str());
    out.push(u8::try_from(machine.len()).unwrap_or(u8::MAX));
    out.extend(machine.bytes());
}

fn key(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    out.push(kind);
    out.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend(value);
}

pub(super) fn decode(address: u32, value: &[u8]) -> Option<Lease> {
    let (&[version, state_octet], rest) = value.split_first_chunk()?;
    if version != VERSION {
        return None;
    }
    let (since, rest) = rest.split_first_chunk()?;
    let (until, rest) = rest.split_first_chunk()?;
    let (mac, rest) = rest.split_first_chunk()?;
    let (network, rest) = rest.split_first_chunk::<4>()?;
    let (&[prefix, kind], rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    let (&length, machine) = rest.split_first()?;
    let key = match kind {
        0 => ClientKey::Mac(MacAddress::new(key.try_into().ok()?)),
        1 => ClientKey::Id(key.into()),
        _ => return None,
    };
    if machine.len() != usize::from(length) {
        return None;
    }
    let machine = match std::str::from_utf8(machine).ok()? {
        "" => None,
        name => Some(name.parse().ok()?),
    };
    let network = Ipv4Net::new(Ipv4Addr::from(*network), prefix).ok()?.trunc();
    Some(Lease {
        address: Ipv4Addr::from(address),
        holder: Holder { network, key },
        mac: MacAddress::new(*mac),
        machine,
        state: state(state_octet)?,
        since: u64::from_be_bytes(*since),
        until: u64::from_be_bytes(*until),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        Lease {
            address: Ipv4Addr::new(10, 7, 0, 100),
            holder: Holder {
                network: "10.7.0.0/24".parse().unwrap(),
                key: ClientKey::Id(vec![0xff, 1, 2].into()),
            },
            mac: "52:54:00:00:00:01".parse().unwrap(),
            machine: Some("node-1".parse().unwrap()),
            state: LeaseState::Bound,
            since: 1_700_000_000,
            until: 1_700_003_600,
        }
    }

    #[test]
    fn record_version_1_is_frozen() {
        let mut out = Vec::new();
        encode(&lease(), &mut out);
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "0101000000006553f100000000006553ff105254000000010a070000180100\
             03ff0102066e6f64652d31"
        );
        assert_eq!(decode(0x0a07_0064, &out), Some(lease()));
    }

    #[test]
    fn a_record_cut_anywhere_is_refused() {
        let mut out = Vec::new();
        encode(&lease(), &mut out);
        for length in 0..out.len() {
            assert_eq!(decode(1, out.get(..length).unwrap()), None, "{length}");
        }
    }
}
