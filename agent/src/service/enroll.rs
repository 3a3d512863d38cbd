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
const MOST: u64 = 64 << 10;
/// Between two looks whether the service has enrolled.
const LOOK: Duration = Duration::from_millis(250);

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// pxed's addresses in place of those in the token.
    pub servers: Vec<String>,
    /// Where the token is; `-`: standard input.
    pub token: PathBuf,
    /// How long it is waited for the service.
    pub wait: Duration,
}

/// Why the host is not enrolled.
#[derive(Debug, Error)]
pub enum EnrollError {
    /// The token's file.
    #[error("cannot read the token from {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Something else.
    #[error("this is no token of pxed's: copy all of what `bedplate machine token` printed")]
    NoToken,
    /// Nobody knows where pxed is.
    #[error("the token does not say where pxed is: name it with --server https://HOST:8443")]
    NoServer,
    /// Not the URL of pxed's listener for agents.
    #[error("--server takes a URL such as https://10.7.0.1:8443, not {0:?}")]
    BadServer(String),
    /// It cannot be left for the service.
    #[error("the token cannot be handed to the service")]
    Keep(#[from] FileError),
    /// It was handed over, and is not used yet.
    #[error("not enrolled within {seconds} s, the service goes on trying: {why}")]
    Waits {
        /// How long was waited.
        seconds: u64,
        /// What it says.
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
        std::thread::sleep(LOOK);
    }
}

fn read(path: &Path) -> Result<Zeroizing<String>, EnrollError> {
    let failed = |source| EnrollError::Read { path: path.to_owned(), source };
    let mut text = Zeroizing::new(String::new());
    if path == Path::new("-") {
        std::io::stdin().lock().take(MOST).read_to_string(&mut text).map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MOST).read_to_string(&mut text).map_err(failed)?;
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

/// What the service says of it.
fn why(places: &Places) -> String {
    match places.read_standing() {
        Ok(Some(standing)) => standing.last_error.unwrap_or(standing.doing),
        Ok(None) | Err(_) => "does it run? `systemctl start bedplate-agent`".to_owned(),
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
    fn what_is_no_token_is_refused_without_an_echo_of_it() {
        for text in ["", "hunter2", &token(&["https://a:1"], None), &"A".repeat(4096)] {
            let error = seed(text, &[]).unwrap_err();
            assert!(matches!(error, EnrollError::NoToken) && !format!("{error:?}").contains("hunter2"));
        }
    }

    #[test]
    fn a_host_without_the_service_keeps_the_token_for_root_only_and_says_what_to_start() {
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
