//! A DHCPv4 server for racks: server, proxyDHCP and relay-fed (RFC 2131, 2132, 3046, 3527, 4578; PXE 2.1).
//!
//! Decides nothing about machines: whom to serve and what they boot is asked from [`client::Clients`].

pub mod client;
