//! HTTP/1.1 (RFC 9112) as far as stage-1 speaks it: plain URLs, request heads, response heads.
//!
//! Pure: bytes in, bytes out. No chunked bodies (pxed always sends Content-Length), no redirects, no TLS: the
//! fetched files are public and verified by digest. Called by `http`.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt;

use thiserror::Error;

/// Maximum size of a response head, in bytes.
pub(crate) const MAX_HEAD: usize = 16 * 1024;

/// An absolute `http` URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpUrl {
    host: String,
    port: u16,
    path: String,
}

/// Reason for which stage-1 cannot fetch a URL.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseUrlError {
    /// Another scheme, or none.
    #[error("{0:?} does not start with http://")]
    Scheme(String),
    /// Host or port cannot be read.
    #[error("{0:?} has no usable host and port")]
    Authority(String),
    /// A space or a control character, which would break the request line.
    #[error("{0:?} has a character that is not valid in a URL")]
    Character(String),
}

impl HttpUrl {
    /// Reads an absolute `http` URL; the port is 80 if none is given.
    pub fn parse(text: &str) -> Result<Self, ParseUrlError> {
        let shown = || text.chars().take(120).collect::<String>();
        let rest = text.strip_prefix("http://").ok_or_else(|| ParseUrlError::Scheme(shown()))?;
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(ParseUrlError::Character(shown()));
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (host, port) = match authority.strip_prefix('[') {
            Some(inside) => {
                let (host, after) =
                    inside.split_once(']').ok_or_else(|| ParseUrlError::Authority(shown()))?;
                (host, after.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = port.map_or(Ok(80), str::parse).map_err(|_| ParseUrlError::Authority(shown()))?;
        if host.is_empty() || host.contains('@') || port == 0 {
            return Err(ParseUrlError::Authority(shown()));
        }
        Ok(Self { host: host.to_owned(), port, path: path.to_owned() })
    }

    /// The URL of something below this one.
    pub fn join(&self, below: &str) -> Self {
        let path = format!("{}/{below}", self.path.trim_end_matches('/'));
        Self { host: self.host.clone(), port: self.port, path }
    }

    /// Address or name of the server, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

/// The head of a GET from byte `from` on (RFC 9110, 14.2); without a Range header if it starts at 0.
pub(crate) fn get_head(url: &HttpUrl, from: u64) -> Vec<u8> {
    let range = if from == 0 { String::new() } else { format!("Range: bytes={from}-\r\n") };
    head("GET", url, &range)
}

/// The head of a POST whose body is `length` bytes of JSON.
pub(crate) fn post_head(url: &HttpUrl, length: usize) -> Vec<u8> {
    head("POST", url, &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"))
}

fn head(method: &str, url: &HttpUrl, extra: &str) -> Vec<u8> {
    let path = if url.path.is_empty() { "/" } else { &url.path };
    let agent = concat!("bedplate-agent/", env!("CARGO_PKG_VERSION"));
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {agent}\r\nConnection: close\r\n{extra}\r\n",
        url.authority()
    )
    .into_bytes()
}

/// Fields of a response's head that stage-1 needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    /// Status code.
    pub status: u16,
    /// Bytes of the body.
    pub content_length: Option<u64>,
    /// First byte of a 206's range, and the total length, if it is known.
    pub content_range: Option<(u64, Option<u64>)>,
    /// The server's clock, as sent (RFC 9110, 6.6.1).
    pub date: Option<String>,
}

/// Reason for which a response head cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ParseHeadError {
    /// The response is not HTTP/1.x.
    #[error("the answer is not HTTP")]
    NotHttp,
    /// The head does not end within [`MAX_HEAD`].
    #[error("the answer's head is longer than {MAX_HEAD} bytes")]
    TooLong,
    /// A header that decides about the body's bounds cannot be read, or is given twice differently.
    #[error("the answer's {0} header is not valid")]
    Header(&'static str),
}

/// Reads a response head from the start of `bytes`: `None` while it is
/// incomplete, otherwise the head and its length.
pub(crate) fn parse_head(bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, ParseHeadError> {
    let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
        return if bytes.len() >= MAX_HEAD { Err(ParseHeadError::TooLong) } else { Ok(None) };
    };
    let length = end.saturating_add(4);
    if length > MAX_HEAD {
        return Err(ParseHeadError::TooLong);
    }
    let text = bytes.get(..end).and_then(|b| std::str::from_utf8(b).ok()).ok_or(ParseHeadError::NotHttp)?;
    let mut lines = text.split("\r\n");
    let mut head = ResponseHead {
        status: lines.next().and_then(parse_status).ok_or(ParseHeadError::NotHttp)?,
        content_length: None,
        content_range: None,
        date: None,
    };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        read_header(&mut head, &name.to_ascii_lowercase(), value.trim())?;
    }
    Ok(Some((head, length)))
}

fn parse_status(line: &str) -> Option<u16> {
    let rest = line.strip_prefix("HTTP/1.")?;
    let code = rest.split(' ').nth(1)?;
    (code.len() == 3).then(|| code.parse().ok()).flatten()
}

fn read_header(head: &mut ResponseHead, name: &str, value: &str) -> Result<(), ParseHeadError> {
    match name {
        "content-length" => {
            let length = value.parse().map_err(|_| ParseHeadError::Header("Content-Length"))?;
            if head.content_length.is_some_and(|earlier| earlier != length) {
                return Err(ParseHeadError::Header("Content-Length"));
            }
            head.content_length = Some(length);
        }
        "transfer-encoding" => return Err(ParseHeadError::Header("Transfer-Encoding")),
        "content-range" => {
            head.content_range = Some(parse_range(value).ok_or(ParseHeadError::Header("Content-Range"))?);
        }
        "date" => head.date = Some(value.to_owned()),
        _ => {}
    }
    Ok(())
}

/// `bytes 5-9/10`, `bytes 5-9/*`; an unsatisfied `bytes */10` has no first byte and is not one.
fn parse_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _last) = range.split_once('-')?;
    let whole = if whole == "*" { None } else { Some(whole.parse().ok()?) };
    Some((first.parse().ok()?, whole))
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_shown_the_same() {
        for (text, host, port) in [
            ("http://10.7.0.1:8067/b/00", "10.7.0.1", 8067),
            ("http://pxe.rack.example:80/", "pxe.rack.example", 80),
            ("http://[fd00::1]:8067/x", "fd00::1", 8067),
        ] {
            let url = HttpUrl::parse(text).unwrap();
            assert_eq!((url.host(), url.port(), url.to_string().as_str()), (host, port, text));
        }
        assert_eq!(HttpUrl::parse("http://h").unwrap().join("stage").to_string(), "http://h:80/stage");
    }

    #[test]
    fn unusable_urls_are_refused() {
        for text in [
            "",
            "https://h/",
            "http://",
            "http://:80/",
            "http://h:0/",
            "http://h:99999/",
            "http://u@h/",
            "http://h/a b",
            "http://[::1/",
            "http://h/\r\nX: y",
        ] {
            assert!(HttpUrl::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_resumed_get_asks_for_the_rest() {
        let url = HttpUrl::parse("http://h:1/r").unwrap();
        let first = String::from_utf8(get_head(&url, 0)).unwrap();
        assert!(first.starts_with("GET /r HTTP/1.1\r\nHost: h:1\r\n") && !first.contains("Range"), "{first}");
        assert!(String::from_utf8(get_head(&url, 7)).unwrap().contains("Range: bytes=7-\r\n"));
    }

    #[test]
    fn head_is_incomplete_until_its_empty_line() {
        let whole = b"HTTP/1.1 206 Partial Content\r\ncontent-length: 5\r\nContent-Range: bytes 5-9/10\r\nDate: x\r\n\r\nabcde";
        for cut in 0..whole.len() - 5 {
            assert_eq!(parse_head(&whole[..cut]), Ok(None), "{cut}");
        }
        let (head, length) = parse_head(whole).unwrap().unwrap();
        assert_eq!(&whole[length..], b"abcde");
        assert_eq!(
            head,
            ResponseHead {
                status: 206,
                content_length: Some(5),
                content_range: Some((5, Some(10))),
                date: Some("x".to_owned())
            }
        );
    }

    #[test]
    fn heads_that_leave_the_body_unbounded_are_refused() {
        for text in [
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 206 OK\r\nContent-Range: bytes */10\r\n\r\n",
        ] {
            assert!(parse_head(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(parse_head(&vec![b'a'; MAX_HEAD]), Err(ParseHeadError::TooLong));
    }
}
