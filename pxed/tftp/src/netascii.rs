//! Pure: text as the netascii mode sends it: LF becomes CR LF, CR becomes CR NUL (RFC 1350, RFC 764). For small texts only.

use bytes::Bytes;

/// Longest text translated, in bytes: a translation is a copy of its own, so that it is bounded.
pub const MAX_TEXT: usize = 1 << 20;

/// The translation; `None` when the text is longer than [`MAX_TEXT`].
pub fn translate(text: &Bytes) -> Option<Bytes> {
    if text.len() > MAX_TEXT {
        return None;
    }
    if !text.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        return Some(text.clone());
    }
    let mut translated = Vec::with_capacity(text.len().saturating_add(text.len() / 16));
    for byte in text {
        match byte {
            b'\n' => translated.extend(b"\r\n"),
            b'\r' => translated.extend(b"\r\0"),
            other => translated.push(*other),
        }
    }
    Some(translated.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_translated() {
        let translated = translate(&Bytes::from_static(b"a\nb\r\nc\rd")).expect("short");
        assert_eq!(translated, b"a\r\nb\r\0\r\nc\r\0d".as_slice());
        assert_eq!(translate(&Bytes::from_static(b"plain")).expect("short"), b"plain".as_slice());
    }

    #[test]
    fn long_text_is_refused() {
        assert!(translate(&Bytes::from(vec![b'\n'; MAX_TEXT + 1])).is_none());
    }
}
