//! Reads the arguments of the boot loader on the kernel command line: the boot's URL and the MAC address that
//! netboots.
//!
//! Pure: text in, values out. Called by stage-1 at its start and by the agent, which reports to the same URL.

use bedplate_api::id::MacAddress;
use bedplate_api::wire::{BOOT_MAC_ARGUMENT, BOOT_URL_ARGUMENT};
use thiserror::Error;

use super::http_wire::{HttpUrl, ParseUrlError};

/// Parameters of this boot from the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BootArguments {
    /// The boot's base URL, without a slash at the end.
    pub url: HttpUrl,
    /// The interface that netboots.
    pub mac: MacAddress,
}

/// Reason for which the command line does not describe a Bedplate boot.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadArgumentsError {
    /// There is no `bedplate.url`.
    #[error(
        "the kernel command line has no {BOOT_URL_ARGUMENT}= argument; start the kernel by pxed's boot \
         script"
    )]
    NoUrl,
    /// `bedplate.url` cannot be used.
    #[error("the kernel argument {BOOT_URL_ARGUMENT}= is not valid")]
    Url(#[source] ParseUrlError),
    /// Neither `bedplate.mac` nor a usable `BOOTIF`.
    #[error("the kernel command line has no MAC address in {BOOT_MAC_ARGUMENT}= or BOOTIF=")]
    NoMac,
}

/// Reads the boot's arguments. The first value counts: pxed's own arguments
/// precede those of image and Machine.
pub(crate) fn read_arguments(command_line: &str) -> Result<BootArguments, ReadArgumentsError> {
    let url = argument(command_line, BOOT_URL_ARGUMENT).ok_or(ReadArgumentsError::NoUrl)?;
    let url = HttpUrl::parse(url.trim_end_matches('/')).map_err(ReadArgumentsError::Url)?;
    let named = argument(command_line, BOOT_MAC_ARGUMENT).and_then(|text| text.parse().ok());
    let mac = named.or_else(|| argument(command_line, "BOOTIF").and_then(read_bootif));
    Ok(BootArguments {
        url,
        mac: mac.filter(|mac: &MacAddress| mac.is_unicast()).ok_or(ReadArgumentsError::NoMac)?,
    })
}

/// Returns the value of the first `name=value` on the command line, without double quotes around it.
pub fn argument<'a>(command_line: &'a str, name: &str) -> Option<&'a str> {
    command_line
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        .map(|value| value.trim_matches('"'))
}

/// `BOOTIF=01-52-54-00-12-34-56` (PXELINUX): the ARP hardware type, 01 for Ethernet, before the address.
fn read_bootif(text: &str) -> Option<MacAddress> {
    text.strip_prefix("01-").unwrap_or(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "bedplate.url=http://10.7.0.1:8067/b/000102030405060708090a0b0c0d0e0f";

    #[test]
    fn url_and_mac_are_read_wherever_they_stand() {
        let line = format!("initrd=initrd.img quiet {URL}/ bedplate.mac=52:54:00:00:00:01 console=ttyS0\n");
        let read = read_arguments(&line).unwrap();
        assert_eq!(read.url.to_string(), URL.trim_start_matches("bedplate.url="));
        assert_eq!(read.mac.to_string(), "52:54:00:00:00:01");
    }

    #[test]
    fn bootif_is_the_fall_back_for_the_mac() {
        for (extra, mac) in [
            ("BOOTIF=01-52-54-00-00-00-02", "52:54:00:00:00:02"),
            ("BOOTIF=01-52-54-00-00-00-02 bedplate.mac=52:54:00:00:00:01", "52:54:00:00:00:01"),
            ("bedplate.mac= BOOTIF=52:54:00:00:00:03", "52:54:00:00:00:03"),
        ] {
            assert_eq!(read_arguments(&format!("{URL} {extra}")).unwrap().mac.to_string(), mac, "{extra}");
        }
    }

    #[test]
    fn first_argument_of_pxed_wins_over_later_ones() {
        let line = format!("{URL} bedplate.mac=52:54:00:00:00:01 bedplate.mac=52:54:00:00:00:09");
        assert_eq!(read_arguments(&line).unwrap().mac.to_string(), "52:54:00:00:00:01");
    }

    #[test]
    fn a_line_that_names_no_boot_says_what_is_missing() {
        assert_eq!(read_arguments("quiet"), Err(ReadArgumentsError::NoUrl));
        assert_eq!(read_arguments(URL), Err(ReadArgumentsError::NoMac));
        assert_eq!(
            read_arguments(&format!("{URL} bedplate.mac=ff:ff:ff:ff:ff:ff")),
            Err(ReadArgumentsError::NoMac)
        );
        assert!(matches!(read_arguments("bedplate.url=ftp://x/ quiet"), Err(ReadArgumentsError::Url(_))));
    }
}
