//! DHCPv4 on the wire: what a packet must look like to be taken (decode) and how an answer is written (encode).
//!
//! Bytes in, bytes out; decides nothing about clients. Called by `respond` and `serve`.
//!
//! Pure: no clock, no socket, no randomness.
//!
//! Options are walked here rather than by a library: one that cannot be understood never hides those after it, options
//! may lie in `file` and `sname` (RFC 2132, 9.3) and may be split over several instances (RFC 3396).

mod decode;
mod encode;
pub(crate) mod option;

pub use decode::{RelayInformation, Request, decode};
pub use encode::{Reply, encode};

/// Octets before the options: the BOOTP header and the magic cookie.
const HEADER_OCTETS: usize = 240;

/// RFC 2131, 3: the first four octets of the options field.
const COOKIE: [u8; 4] = [99, 130, 83, 99];

/// DHCP message types (RFC 2132, 9.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageType {
    /// DHCPDISCOVER
    Discover,
    /// DHCPOFFER
    Offer,
    /// DHCPREQUEST
    Request,
    /// DHCPDECLINE
    Decline,
    /// DHCPACK
    Ack,
    /// DHCPNAK
    Nak,
    /// DHCPRELEASE
    Release,
    /// DHCPINFORM
    Inform,
}

impl MessageType {
    /// Every type, in the order of its code.
    pub const ALL: [Self; 8] = [
        Self::Discover,
        Self::Offer,
        Self::Request,
        Self::Decline,
        Self::Ack,
        Self::Nak,
        Self::Release,
        Self::Inform,
    ];

    /// The value of option 53.
    pub const fn code(self) -> u8 {
        match self {
            Self::Discover => 1,
            Self::Offer => 2,
            Self::Request => 3,
            Self::Decline => 4,
            Self::Ack => 5,
            Self::Nak => 6,
            Self::Release => 7,
            Self::Inform => 8,
        }
    }

    /// The type with this value of option 53.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.code() == code)
    }

    /// A word for metrics and logs.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Discover => "discover",
            Self::Offer => "offer",
            Self::Request => "request",
            Self::Decline => "decline",
            Self::Ack => "ack",
            Self::Nak => "nak",
            Self::Release => "release",
            Self::Inform => "inform",
        }
    }
}

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// A word for metrics and logs.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }

            /// The position in [`Self::ALL`].
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}
pub(crate) use reasons;

reasons! {
    /// Reason why a packet is not a valid DHCP message. It is counted and dropped.
    Malformed {
        /// Shorter than header and cookie.
        TooShort => "too_short",
        /// Longer than any link of ours carries.
        TooLong => "too_long",
        /// `op` is not BOOTREQUEST.
        NotARequest => "not_a_request",
        /// `htype` is not Ethernet or `hlen` is not 6.
        HardwareType => "hardware_type",
        /// `chaddr` is zero or a group address.
        HardwareAddress => "hardware_address",
        /// No magic cookie: BOOTP or something else.
        Cookie => "cookie",
        /// More than 16 hops (RFC 1542, 4.1.1).
        Hops => "hops",
        /// `giaddr` can be no relay's address.
        RelayAddress => "relay_address",
        /// `ciaddr` can be no client's address.
        ClientAddress => "client_address",
        /// An option runs past the end of its field.
        OptionTruncated => "option_truncated",
        /// A field of options has no END (RFC 2131, 4.1).
        NoEnd => "no_end",
        /// Option 52 is not 1, 2 or 3.
        Overload => "overload",
        /// No option 53.
        NoMessageType => "no_message_type",
        /// Option 53 has a type that RFC 2132 does not define.
        MessageType => "message_type",
        /// A message that only servers send.
        ServerMessage => "server_message",
        /// Option 50 is not one address.
        RequestedAddress => "requested_address",
        /// Option 54 is not one address.
        ServerIdentifier => "server_identifier",
        /// Options 50, 54 and `ciaddr` fit no state of RFC 2131, 4.3.2, or a required one is missing.
        NoState => "no_state",
    }
}

#[cfg(test)]
mod tests;
