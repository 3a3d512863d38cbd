//! Pure: file names that may reach the owner of the files. Decides by the text only; the owner decides whether a file exists.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// Longest name, in bytes.
pub const MAX_NAME: usize = 255;

/// Reason why a name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("empty name")]
    Empty,
    /// Longer than [`MAX_NAME`].
    #[error("name too long")]
    Long,
    /// The name is not UTF-8, or has a control character.
    #[error("name is not plain text")]
    NotText,
    /// Begins with a slash or a drive letter.
    #[error("absolute path")]
    Absolute,
    /// A step up, or to nowhere (`..`, `.`, `//`, backslashes).
    #[error("path leaves the served set")]
    Escapes,
}

/// The last component of a checked name: what a log may show. The folders before it can be an owner's secret, as a boot's
/// id is.
pub fn file(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Checks that a name is relative, with plain components, below the served set.
///
/// # Errors
/// [`NameError`]; the client gets "access violation".
pub fn check(name: &[u8]) -> Result<&str, NameError> {
    if name.len() > MAX_NAME {
        return Err(NameError::Long);
    }
    let name = std::str::from_utf8(name).map_err(|_| NameError::NotText)?;
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.chars().any(char::is_control) {
        return Err(NameError::NotText);
    }
    if name.starts_with('/') || name.as_bytes().get(1) == Some(&b':') {
        return Err(NameError::Absolute);
    }
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if name.contains('\\') || !name.split('/').all(plain) {
        return Err(NameError::Escapes);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_in_a_log_has_no_folders() {
        assert_eq!(file("b/000102030405060708090a0b0c0d0e0f/snponly.efi"), "snponly.efi");
        assert_eq!(file("snponly.efi"), "snponly.efi");
    }

    #[test]
    fn loaders_and_boot_paths_pass() {
        for name in ["undionly.kpxe", "b/0123abcd/snponly.efi", "a b", "..a/b..", "-x"] {
            assert_eq!(check(name.as_bytes()), Ok(name));
        }
    }

    #[test]
    fn names_that_leave_the_set_are_refused() {
        let table: [(&[u8], NameError); 14] = [
            (b"", NameError::Empty),
            (b"/etc/passwd", NameError::Absolute),
            (b"C:\\boot.ini", NameError::Absolute),
            (b"../etc/passwd", NameError::Escapes),
            (b"b/../../etc", NameError::Escapes),
            (b"b/..", NameError::Escapes),
            (b"..", NameError::Escapes),
            (b"./a", NameError::Escapes),
            (b"a//b", NameError::Escapes),
            (b"a/", NameError::Escapes),
            (b"..\\a", NameError::Escapes),
            (b"a\nb", NameError::NotText),
            (b"a\x7f", NameError::NotText),
            (b"\xff\xfe", NameError::NotText),
        ];
        for (name, error) in table {
            assert_eq!(check(name), Err(error), "{}", String::from_utf8_lossy(name));
        }
        assert_eq!(check(&[b'a'; 256]), Err(NameError::Long));
    }
}
