//! Pure: encodings of a file's content. Bounded, and never quoted. Called by `template` and `user_data`.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Failure to decode a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// The content does not match its encoding.
    Invalid,
    /// The decoded content is larger than the limit.
    Large,
}

/// Decodes base64. White space is ignored.
pub(crate) fn base64(text: &[u8]) -> Result<Zeroizing<Vec<u8>>, DecodeError> {
    let mut plain = Zeroizing::new(Vec::with_capacity(text.len()));
    plain.extend(text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()));
    STANDARD.decode(&*plain).map(Zeroizing::new).map_err(|_| DecodeError::Invalid)
}

/// Decompresses gzip up to a size.
pub(crate) fn gunzip(packed: &[u8], max_bytes: u64) -> Result<Zeroizing<Vec<u8>>, DecodeError> {
    let mut content = Zeroizing::new(Vec::new());
    let mut reader = flate2::read::MultiGzDecoder::new(packed).take(max_bytes.saturating_add(1));
    reader.read_to_end(&mut content).map_err(|_| DecodeError::Invalid)?;
    if content.len() as u64 > max_bytes { Err(DecodeError::Large) } else { Ok(content) }
}
