//! Pure: negotiation of a transfer's options (RFC 2347, 2348, 2349, 7440). Neither parses nor sends; called for each
//! request.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::time::Duration;

use crate::wire::{AskedOption, BLOCK_SIZES, DEFAULT_BLOCK_SIZE};

/// The largest window, in blocks.
pub const MAX_WINDOW: u16 = 64;

/// A window's content is at most this many bytes: more does not fit a common receive buffer (212,992 bytes with its overhead),
/// so that the end of each window would be lost.
const MAX_WINDOW_BYTES: usize = 96 * 1024;

/// Longest wait in seconds that a client may ask for (RFC 2349). A longer one would hold a transfer of a silent client for minutes: the wait
/// is repeated for each attempt.
const MAX_TIMEOUT: u64 = 10;

/// Maximum values that the server grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Block size in bytes, by the path or the configuration.
    pub block_size: u16,
    /// Window in blocks.
    pub window: u16,
}

/// Negotiated options of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// Bytes in a block.
    pub block_size: u16,
    /// Number of blocks that are sent before an acknowledgment is expected.
    pub window: u16,
    /// The time after which to send again, where the client named one.
    pub timeout: Option<Duration>,
    /// Options to acknowledge, in the order of the request; empty: no OACK, the first block is the answer.
    pub acknowledged: Vec<AskedOption>,
}

/// Agrees on the options of a request for `length` bytes. An option out of its range is not acknowledged and thereby not in force.
pub fn negotiate(asked: &[AskedOption], length: u64, grant: Grant) -> Agreed {
    let mut agreed =
        Agreed { block_size: DEFAULT_BLOCK_SIZE, window: 1, timeout: None, acknowledged: Vec::new() };
    for option in asked {
        if let AskedOption::BlockSize(bytes) = *option
            && bytes >= u64::from(*BLOCK_SIZES.start())
        {
            // RFC 2348: the answer is at most what was asked.
            let most = grant.block_size.clamp(*BLOCK_SIZES.start(), *BLOCK_SIZES.end());
            agreed.block_size = u16::try_from(bytes).unwrap_or(u16::MAX).min(most);
        }
    }
    for option in asked {
        match *option {
            AskedOption::BlockSize(bytes) if bytes >= u64::from(*BLOCK_SIZES.start()) => {
                agreed.acknowledged.push(AskedOption::BlockSize(agreed.block_size.into()));
            }
            AskedOption::Timeout(seconds @ 1..=MAX_TIMEOUT) => {
                agreed.timeout = Some(Duration::from_secs(seconds));
                agreed.acknowledged.push(*option);
            }
            AskedOption::TransferSize(_) => agreed.acknowledged.push(AskedOption::TransferSize(length)),
            AskedOption::WindowSize(blocks @ 1..=65535) => {
                let fits = MAX_WINDOW_BYTES.checked_div(agreed.block_size.into()).unwrap_or(1);
                let most = grant.window.min(MAX_WINDOW).min(u16::try_from(fits).unwrap_or(u16::MAX)).max(1);
                agreed.window = u16::try_from(blocks).unwrap_or(u16::MAX).min(most);
                agreed.acknowledged.push(AskedOption::WindowSize(agreed.window.into()));
            }
            AskedOption::BlockSize(_) | AskedOption::Timeout(_) | AskedOption::WindowSize(_) => {}
        }
    }
    agreed
}

#[cfg(test)]
mod tests {
    use super::*;
    use AskedOption::{BlockSize, Timeout, TransferSize, WindowSize};

    const ETHERNET: Grant = Grant { block_size: 1468, window: 64 };

    fn acknowledged(asked: &[AskedOption]) -> Vec<AskedOption> {
        negotiate(asked, 1000, ETHERNET).acknowledged
    }

    #[test]
    fn without_options_rfc_1350_is_in_force() {
        let agreed = negotiate(&[], 1000, ETHERNET);
        assert_eq!((agreed.block_size, agreed.window, agreed.timeout), (512, 1, None));
        assert!(agreed.acknowledged.is_empty());
    }

    #[test]
    fn answer_keeps_the_order_asked() {
        let asked = [WindowSize(4), TransferSize(0), Timeout(3), BlockSize(1024)];
        assert_eq!(acknowledged(&asked), [WindowSize(4), TransferSize(1000), Timeout(3), BlockSize(1024)]);
    }

    #[test]
    fn block_size_never_exceeds_path_nor_request() {
        assert_eq!(acknowledged(&[BlockSize(65464)]), [BlockSize(1468)]);
        assert_eq!(acknowledged(&[BlockSize(u64::MAX)]), [BlockSize(1468)]);
        assert_eq!(acknowledged(&[BlockSize(8)]), [BlockSize(8)]);
        let generous = Grant { block_size: u16::MAX, window: 64 };
        assert_eq!(negotiate(&[BlockSize(70000)], 0, generous).block_size, 65464);
    }

    #[test]
    fn values_out_of_range_are_not_in_force() {
        let asked = [BlockSize(7), Timeout(0), WindowSize(0)];
        let agreed = negotiate(&asked, 1000, ETHERNET);
        assert_eq!((agreed.block_size, agreed.window, agreed.timeout), (512, 1, None));
        assert!(agreed.acknowledged.is_empty());
        assert_eq!(acknowledged(&[Timeout(256), WindowSize(65536)]), []);
    }

    #[test]
    fn rfc2349_timeout_is_granted_as_asked_or_omitted() {
        assert_eq!(acknowledged(&[Timeout(MAX_TIMEOUT)]), [Timeout(MAX_TIMEOUT)]);
        for seconds in [MAX_TIMEOUT + 1, 255] {
            let agreed = negotiate(&[Timeout(seconds), TransferSize(0)], 1000, ETHERNET);
            assert_eq!((agreed.timeout, agreed.acknowledged), (None, vec![TransferSize(1000)]), "{seconds}");
        }
    }

    #[test]
    fn window_is_capped_by_blocks_and_by_bytes() {
        assert_eq!(acknowledged(&[WindowSize(65535)]), [WindowSize(64)]);
        let jumbo = Grant { block_size: 65464, window: 64 };
        assert_eq!(negotiate(&[WindowSize(64), BlockSize(65464)], 0, jumbo).window, 1);
        assert_eq!(negotiate(&[BlockSize(8192), WindowSize(64)], 0, jumbo).window, 12);
    }
}
