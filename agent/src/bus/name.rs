//! Names of units and containers, checked where they come in.
//!
//! Pure: text in, text out. Called by everything in `bus`.

use std::fmt;
use std::str::FromStr;

/// Suffixes that make a name one of a unit.
const KINDS: [&str; 11] = [
    "service",
    "socket",
    "mount",
    "target",
    "timer",
    "path",
    "slice",
    "scope",
    "swap",
    "device",
    "automount",
];
/// systemd's UNIT_NAME_MAX less the NUL byte.
const LONGEST_UNIT: usize = 255;

/// Name of a unit with its suffix: `kubelet.service`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitName(String);

/// Error of an invalid unit name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid unit name; use letters, digits and :-_.\\@ with a suffix like .service, at most 255"
)]
pub struct UnitNameError(String);

impl UnitName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `service` of `kubelet.service`.
    pub fn kind(&self) -> &str {
        self.0.rsplit_once('.').map_or("", |(_, kind)| kind)
    }

    /// Returns the object path of the unit.
    pub(super) fn path(&self) -> String {
        let mut path = String::from("/org/freedesktop/systemd1/unit/");
        for (place, byte) in self.0.bytes().enumerate() {
            // bus_label_escape of systemd: a leading digit is escaped too.
            if byte.is_ascii_alphabetic() || (place > 0 && byte.is_ascii_digit()) {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("_{byte:02x}"));
            }
        }
        path
    }
}

impl FromStr for UnitName {
    type Err = UnitNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
        let name = text.rsplit_once('.').filter(|(stem, kind)| !stem.is_empty() && KINDS.contains(kind));
        if name.is_none() || text.len() > LONGEST_UNIT || !text.bytes().all(allowed) {
            return Err(UnitNameError(text.chars().take(300).collect()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Name of a container, as machined and systemd-nspawn take it: `bedplate-a`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerName(String);

/// Error of an invalid container name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid container name; use lower-case letters, digits and -, not at the ends, at most 64"
)]
pub struct ContainerNameError(String);

impl ContainerName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ContainerName {
    type Err = ContainerNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let ends = text.starts_with('-') || text.ends_with('-');
        if text.is_empty() || text.len() > 64 || ends || !text.bytes().all(allowed) {
            return Err(ContainerNameError(text.chars().take(100).collect()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ContainerName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_found_on_the_bus_by_its_escaped_name() {
        let path = |name: &str| name.parse::<UnitName>().unwrap().path();
        assert_eq!(
            path("systemd-nspawn@bedplate-a.service"),
            "/org/freedesktop/systemd1/unit/systemd_2dnspawn_40bedplate_2da_2eservice"
        );
        assert_eq!(path("9p.mount"), "/org/freedesktop/systemd1/unit/_39p_2emount");
        assert_eq!(
            path("var-lib-x\\x2da.mount"),
            "/org/freedesktop/systemd1/unit/var_2dlib_2dx_5cx2da_2emount"
        );
    }

    #[test]
    fn a_units_name_has_a_suffix_and_no_path() {
        for good in ["kubelet.service", "a@b.service", "x.y.target", "var-lib-a\\x2db.mount"] {
            assert!(good.parse::<UnitName>().is_ok(), "{good}");
        }
        let long = format!("{}.service", "a".repeat(250));
        for bad in ["", "kubelet", ".service", "a/b.service", "a b.service", "a.exe", "ä.service", &long] {
            assert!(bad.parse::<UnitName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_containers_name_is_one_label() {
        assert!("bedplate-a".parse::<ContainerName>().is_ok());
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "..", &"a".repeat(65)] {
            assert!(bad.parse::<ContainerName>().is_err(), "{bad}");
        }
    }
}
