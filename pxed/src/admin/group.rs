//! Lookup of a group ID in `/etc/group` (group(5)).
//!
//! The C library is not used: in a static binary, its lookup loads shared modules (nss-systemd) of another C library and crashes.
//! Called when the socket is created.

use std::io;

/// Path of the group file.
pub(super) const GROUPS: &str = "/etc/group";

/// Returns the ID of a group, which is given by name or as a decimal number. `None` if the group does not exist; an image may have no group
/// file at all.
///
/// # Errors
/// The file exists and cannot be read.
pub(super) fn find(name: &str) -> io::Result<Option<u32>> {
    if let Ok(id) = name.parse() {
        return Ok(Some(id));
    }
    match std::fs::read_to_string(GROUPS) {
        Ok(text) => Ok(listed(&text, name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn listed(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_found_by_name_or_number() {
        let text = "root:x:0:\nbedplate:x:997:operator,other\nbroken:x\n";
        assert_eq!(listed(text, "bedplate"), Some(997));
        assert_eq!(listed(text, "root"), Some(0));
        assert_eq!(listed(text, "broken"), None);
        assert_eq!(listed(text, "bed"), None);
        assert_eq!(find("1234").unwrap(), Some(1234));
        assert_eq!(find("root").unwrap(), Some(0));
        assert_eq!(find("no-such-group").unwrap(), None);
    }
}
