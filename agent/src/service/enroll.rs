//! `bedplate-agent enroll`: leaves the seed of a token where the service looks for it, and waits until that has enrolled.
//!
//! The token is a whole seed as one word; it comes by a file or by standard input, never on a command line, which every user of the
//! host can read. Called by `cli`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use bedplate_api::id::MachineName;
use bedplate_api::wire::Seed;
use bedplate_process::file::FileError;
use thiserror::Error;
use zeroize::Zeroizing;

use super::state::Places;

/// A longer token is none: a seed is some 1.5 KiB.
const MAX_TOKEN_BYTES: u64 = 64 << 10;
/// Interval between two checks for the enrollment.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Arguments of an enrollment.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// pxed's addresses in place of those in the token.
    pub servers: Vec<String>,
    /// File of the token; `-`: standard input.
    pub token: PathBuf,
    /// Timeout for the service.
    pub wait: Duration,
}

/// Reason for which the host is not enrolled.
#[derive(Debug, Error)]
pub enum EnrollError {
    /// The token's file.
    #[error("cannot read the token from {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// Something else.
    #[error("not an enrollment token; copy the complete output of `bedplate machine token`")]
    NoToken,
    /// The URL of pxed is unknown.
    #[error("the token has no URL of pxed; add --server https://HOST:8443")]
    NoServer,
    /// The URL is not that of pxed's listener for agents.
    #[error("--server takes a URL such as https://10.7.0.1:8443, not {0:?}")]
    BadServer(String),
    /// The token cannot be stored for the service.
    #[error("failed to pass the token to the service")]
    Keep(#[from] FileError),
    /// It was handed over, and is not used yet.
    #[error("not enrolled within {seconds} s, the service keeps retrying: {why}")]
    Waits {
        /// Timeout in seconds.
        seconds: u64,
        /// Last error of the service.
        why: String,
    },
}

/// Hands the token to the service; the Machine that this host then is.
pub fn enroll(places: &Places, wanted: &Wanted) -> Result<MachineName, EnrollError> {
    let seed = seed(&read(&wanted.token)?, &wanted.servers)?;
    places.write_seed(&seed)?;
    let end = Instant::now() + wanted.wait;
    loop {
        let enrollment = places.read_enrollment()?;
        if enrollment.is_some_and(|enrollment| enrollment.boot_id == seed.boot_id) {
            return Ok(seed.machine);
        }
        if Instant::now() >= end {
            let seconds = wanted.wait.as_secs();
            return Err(EnrollError::Waits { seconds, why: why(places) });
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

fn read(path: &Path) -> Result<Zeroizing<String>, EnrollError> {
    let failed = |source| EnrollError::Read { path: path.to_owned(), source };
    let mut text = Zeroizing::new(String::new());
    if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_TOKEN_BYTES).read_to_string(&mut text).map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_TOKEN_BYTES).read_to_string(&mut text).map_err(failed)?;
    }
    Ok(text)
}

/// The seed that a token is.
fn seed(text: &str, servers: &[String]) -> Result<Seed, EnrollError> {
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text.trim());
    let bytes = Zeroizing::new(bytes.map_err(|_| EnrollError::NoToken)?);
    let mut seed: Seed = serde_json::from_slice(&bytes).map_err(|_| EnrollError::NoToken)?;
    if seed.token.is_none() {
        return Err(EnrollError::NoToken);
    }
    if let Some(bad) = servers.iter().find(|server| !server.starts_with("https://")) {
        return Err(EnrollError::BadServer(bad.clone()));
    }
    if !servers.is_empty() {
        servers.clone_into(&mut seed.endpoints);
    }
    if seed.endpoints.is_empty() { Err(EnrollError::NoServer) } else { Ok(seed) }
}

/// Returns the service's reason for not being enrolled.
fn why(places: &Places) -> String {
    match places.read_standing() {
        Ok(Some(standing)) => standing.last_error.unwrap_or(standing.doing),
        Ok(None) | Err(_) => {
            "no state of bedplate-agent found; run `systemctl start bedplate-agent`".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::id::BootId;
    use bedplate_api::wire::SecretText;

    use super::*;

    fn token(endpoints: &[&str], secret: Option<&str>) -> String {
        let seed = Seed {
            machine: "node-9".parse().unwrap(),
            site: "default".parse().unwrap(),
            boot_id: BootId::from_random([7; 16]),
            token: secret.map(|secret| SecretText(secret.to_owned())),
            ca_pem: "CA".to_owned(),
            endpoints: endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect(),
            rootfs: None,
            state_disk: None,
        };
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(serde_json::to_vec(&seed).unwrap())
    }

    #[test]
    fn a_token_is_a_seed_and_the_server_of_the_command_line_goes_first() {
        let text = format!("{}\n", token(&["https://a:1"], Some("s")));
        assert_eq!(seed(&text, &[]).unwrap().endpoints, ["https://a:1"]);
        assert_eq!(seed(&text, &["https://b:2".to_owned()]).unwrap().endpoints, ["https://b:2"]);
        assert!(matches!(seed(&token(&[], Some("s")), &[]), Err(EnrollError::NoServer)));
        assert!(matches!(seed(&text, &["http://b:2".to_owned()]), Err(EnrollError::BadServer(_))));
    }

    #[test]
    fn invalid_token_is_refused_without_an_echo() {
        for text in ["", "hunter2", &token(&["https://a:1"], None), &"A".repeat(4096)] {
            let error = seed(text, &[]).unwrap_err();
            assert!(matches!(error, EnrollError::NoToken) && !format!("{error:?}").contains("hunter2"));
        }
    }

    #[test]
    fn token_is_stored_for_root_only_and_the_missing_service_is_named() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        std::fs::write(path.join("token"), token(&["https://a:1"], Some("s"))).unwrap();
        let places = Places { state: path.join("state"), run: path.join("run"), root: path.clone() };
        let wanted = Wanted { servers: Vec::new(), token: path.join("token"), wait: Duration::ZERO };
        let error = enroll(&places, &wanted).unwrap_err();
        assert!(error.to_string().contains("systemctl start bedplate-agent"), "{error}");
        let mode = std::fs::metadata(path.join("run/seed.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(places.read_seed().unwrap().unwrap().machine.as_str(), "node-9");
    }
}
