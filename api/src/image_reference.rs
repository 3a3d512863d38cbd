//! Pure: the reference of an image in a registry taken apart, as Docker writes it: `[registry/]repository[:tag][@digest]`.
//!
//! By hand: a regular expression for it costs every program that links this crate a megabyte. Called by the crates that fetch images, and
//! that check templates.

use thiserror::Error;

use crate::id::Digest;

const MAX_REPOSITORY_BYTES: usize = 255;
const MAX_TAG_BYTES: usize = 128;
/// The registry that is meant where none is named, and how it is reached.
const HUB: &str = "docker.io";
const HUB_HOST: &str = "index.docker.io";

/// A reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Host name or IPv4 address of the registry, with its port if there is one.
    pub registry: String,
    /// Path of the repository.
    pub repository: String,
    /// Tag, if there is one.
    pub tag: Option<String>,
    /// Digest, if there is one.
    pub digest: Option<Digest>,
}

/// Error of a text that is not a reference.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ParseReferenceError {
    /// Not the host of a registry.
    #[error("{0:?} is not a valid registry; use a host name, with or without a port")]
    Registry(String),
    /// Not the path of a repository.
    #[error(
        "{0:?} is not a valid repository; use lower-case letters and digits, separated by `/`, `.`, `_`, `__` or `-`"
    )]
    Repository(String),
    /// Not a tag.
    #[error("{0:?} is not a valid tag; use letters, digits, `_`, `.` and `-`, at most {MAX_TAG_BYTES}")]
    Tag(String),
    /// Not a digest.
    #[error("{0:?} is not a valid digest; use `sha256:` and 64 hex digits")]
    Digest(String),
}

impl Reference {
    /// Takes a text apart.
    ///
    /// # Errors
    /// The part that is invalid.
    pub fn parse(text: &str) -> Result<Self, ParseReferenceError> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                (rest, Some(digest.parse().map_err(|_| ParseReferenceError::Digest(digest.to_owned()))?))
            }
            None => (text, None),
        };
        // A colon before the last slash is a port's.
        let tagged = rest.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
        let (name, tag) = tagged.map_or((rest, None), |(name, tag)| (name, Some(tag)));
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(ParseReferenceError::Tag(tag.to_owned()));
        }
        let named =
            name.split_once('/').filter(|(first, _)| first.contains(['.', ':']) || *first == "localhost");
        let (registry, repository) = named.unwrap_or((HUB, name));
        if !is_registry(registry) {
            return Err(ParseReferenceError::Registry(registry.to_owned()));
        }
        let registry = if registry == HUB_HOST { HUB } else { registry };
        if repository.len() > MAX_REPOSITORY_BYTES || !repository.split('/').all(is_component) {
            return Err(ParseReferenceError::Repository(repository.to_owned()));
        }
        let official = registry == HUB && !repository.contains('/');
        let repository = if official { format!("library/{repository}") } else { repository.to_owned() };
        Ok(Self { registry: registry.to_owned(), repository, tag: tag.map(str::to_owned), digest })
    }

    /// Returns the host to which requests for the registry go.
    pub fn host(&self) -> &str {
        if self.registry == HUB { HUB_HOST } else { &self.registry }
    }
}

fn is_tag(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= MAX_TAG_BYTES
        && text.starts_with(word)
        && text.chars().all(|c| word(c) || c == '.' || c == '-')
}

fn is_registry(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    host.split('.').all(label) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Runs of letters and digits, between them one of `.`, `_`, `__` or any number of `-`.
fn is_component(text: &str) -> bool {
    let alone = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let allowed = text.chars().all(|c| alone(c) || matches!(c, '.' | '_' | '-'));
    let parted =
        |between: &str| matches!(between, "" | "." | "_" | "__") || between.chars().all(|c| c == '-');
    allowed && text.starts_with(alone) && text.ends_with(alone) && text.split(alone).all(parted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_taken_apart_as_docker_does() {
        let digest = format!("sha256:{}", "f".repeat(64));
        for (text, registry, repository, tag) in [
            ("busybox", "docker.io", "library/busybox", None),
            ("test.com:tag", "docker.io", "library/test.com", Some("tag")),
            ("test.com/repo:tag", "test.com", "repo", Some("tag")),
            ("test:5000/repo", "test:5000", "repo", None),
            ("127.0.0.1:5001/node", "127.0.0.1:5001", "node", None),
            ("localhost/repo", "localhost", "repo", None),
            ("index.docker.io/busybox", "docker.io", "library/busybox", None),
            ("lowercase:Uppercase", "docker.io", "library/lowercase", Some("Uppercase")),
            (
                "sub-dom1.foo.com/bar/baz/quux:some-long-tag",
                "sub-dom1.foo.com",
                "bar/baz/quux",
                Some("some-long-tag"),
            ),
            ("foo/foo_bar.com:8080", "docker.io", "foo/foo_bar.com", Some("8080")),
            ("a.example/x__y/z---w.v", "a.example", "x__y/z---w.v", None),
        ] {
            for (text, pinned) in [(text.to_owned(), false), (format!("{text}@{digest}"), true)] {
                let read = Reference::parse(&text).unwrap();
                let seen = (read.registry.as_str(), read.repository.as_str(), read.tag.as_deref());
                assert_eq!(seen, (registry, repository, tag), "{text}");
                assert_eq!(
                    read.digest.map(|digest| digest.to_string()),
                    pinned.then(|| digest.clone()),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn invalid_reference_is_refused_with_the_part_that_is_wrong() {
        let digest = format!("@sha256:{}", "f".repeat(64));
        for (text, part) in [
            ("", "repository"),
            (":justtag", "repository"),
            (digest.as_str(), "repository"),
            ("repo@sha256:ffff", "digest"),
            ("repo@md5:ffff", "digest"),
            ("Uppercase:tag", "repository"),
            ("test:5000/Uppercase/lowercase:tag", "repository"),
            ("a.example//x", "repository"),
            ("a.example/x___y", "repository"),
            ("a.example/../x", "repository"),
            ("a.example/x?y", "repository"),
            ("a.example:99999/x", "registry"),
            ("-a.example/x", "registry"),
            ("user@a.example/x", "digest"),
            ("a.example/x:.tag", "tag"),
            ("a.example/x:", "tag"),
        ] {
            let error = Reference::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("is not a valid {part}")), "{text:?}: {error}");
        }
        assert!(Reference::parse(&"a".repeat(256)).is_err());
    }

    #[test]
    fn the_hub_is_asked_at_its_own_host() {
        assert_eq!(Reference::parse("busybox").unwrap().host(), "index.docker.io");
        assert_eq!(Reference::parse("a.example/x").unwrap().host(), "a.example");
    }
}
