//! User name and password of a BMC: rules for both planes, which read them when they are needed (`cluster::secrets`,
//! `standalone::bmc_secrets`).
//!
//! Only from the configured namespaces, and with the addresses that each Secret lists (`destination`): a user who may write Machines must
//! not be able to send a Secret to an address of their own. The bytes are zeroized when they are dropped, and never stored or logged.

use bedplate_api::secret::SecretReference;
use bedplate_bmc::Credentials;
use secrecy::SecretString;
use zeroize::Zeroizing;

use crate::power::CredentialsError;

/// Maximum size of a user name or a password, in bytes. BMCs take far less.
pub(crate) const MAX_BYTES: usize = 4096;

/// Cause that there are no credentials.
pub(crate) struct Problem {
    pub(crate) text: String,
    /// True if a later attempt may succeed without a change.
    pub(crate) transient: bool,
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self { text, transient: false }
    }
}

/// Makes credentials of the bytes that were read.
pub(crate) fn credentials(
    username: Option<Zeroizing<Vec<u8>>>,
    password: Option<Zeroizing<Vec<u8>>>,
    place: &str,
) -> Result<Credentials, String> {
    let text = |name: &str, bytes: Option<Zeroizing<Vec<u8>>>| -> Result<Zeroizing<String>, String> {
        let bytes = bytes.ok_or_else(|| format!("it has no {place} {name}"))?;
        if bytes.len() > MAX_BYTES {
            return Err(format!("its {place} {name} is longer than {MAX_BYTES} bytes"));
        }
        let text =
            std::str::from_utf8(&bytes).map_err(|_| format!("its {place} {name} is not UTF-8 text"))?;
        if text.is_empty() {
            return Err(format!("its {place} {name} is empty"));
        }
        // Allocates the exact length: converting to a boxed text would otherwise move it and leave a copy behind.
        let mut exact = String::with_capacity(text.len());
        exact.push_str(text);
        Ok(Zeroizing::new(exact))
    };
    let (username, mut password) = (text("username", username)?, text("password", password)?);
    let password = SecretString::from(std::mem::take(&mut *password));
    Ok(Credentials { username: username.to_string(), password })
}

/// Checks that pxed may read Secrets of this namespace.
pub(crate) fn check_namespace(namespaces: &[String], secret: &SecretReference) -> Result<(), String> {
    if namespaces.contains(&secret.namespace) {
        return Ok(());
    }
    Err(format!(
        "pxed does not read Secrets of the namespace {}; add it to bmc.secret-namespaces in pxed's configuration, or name one of {}",
        secret.namespace,
        if namespaces.is_empty() { "none".to_owned() } else { namespaces.join(", ") }
    ))
}

/// Makes the error about a Secret.
pub(crate) fn failed(secret: &SecretReference, problem: Problem) -> CredentialsError {
    let Problem { text: problem, transient } = problem;
    CredentialsError { namespace: secret.namespace.clone(), name: secret.name.clone(), problem, transient }
}
