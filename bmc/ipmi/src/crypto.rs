//! Pure: cipher suites 3 and 17 (IPMI 2.0 sections 13.28 to 13.32): proofs of the password, session keys, sealed
//! packets.
//!
//! Suites 0, 1 and 2 do not exist here, so that they cannot be negotiated by accident. Codes are compared in constant
//! time, keys and passwords are erased when dropped and never printed. Randomness is an argument. SHA-1 stays because
//! most BMCs of the last fifteen years have only suite 3; suite 17 should be requested if the BMC has it.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt;

use aws_lc_rs::{
    cipher::{AES_128, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey},
    constant_time,
    hmac::{self, HMAC_SHA1_FOR_LEGACY_USE_ONLY, HMAC_SHA256},
    iv::FixedLength,
};
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use crate::wire::{
    ParsePacketError, Reader,
    header::{PayloadKind, Plus, encode_covered},
    open::Algorithms,
};

/// Octets of an AES block, an initialization vector and a key.
const BLOCK_OCTETS: usize = 16;

/// A cipher suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Suite {
    /// Suite 3: RAKP-HMAC-SHA1, HMAC-SHA1-96, AES-CBC-128.
    Sha1,
    /// Suite 17: RAKP-HMAC-SHA256, HMAC-SHA256-128, AES-CBC-128.
    Sha256,
}

impl Suite {
    /// 3 or 17.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Sha1 => 3,
            Self::Sha256 => 17,
        }
    }

    /// The three algorithms.
    #[must_use]
    pub fn algorithms(self) -> Algorithms {
        let (authentication, integrity) = match self {
            Self::Sha1 => (1, 1),
            Self::Sha256 => (3, 4),
        };
        Algorithms { authentication, integrity, confidentiality: 1 }
    }

    /// The suite that has exactly these algorithms.
    #[must_use]
    pub fn of(algorithms: Algorithms) -> Option<Self> {
        [Self::Sha1, Self::Sha256].into_iter().find(|suite| suite.algorithms() == algorithms)
    }

    /// Octets of the code of each packet, and of RAKP message 4.
    #[must_use]
    fn code_length(self) -> usize {
        match self {
            Self::Sha1 => 12,
            Self::Sha256 => 16,
        }
    }

    fn hmac(self, key: &[u8], parts: &[&[u8]]) -> hmac::Tag {
        let algorithm = match self {
            Self::Sha1 => HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => HMAC_SHA256,
        };
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
        for part in parts {
            context.update(part);
        }
        context.sign()
    }
}

/// A secret that IPMI cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CheckPasswordError {
    /// More than 20 octets: some BMCs would cut it silently, and accept less than was set.
    #[error("the password is longer than the 20 octets that IPMI allows")]
    TooLong,
    /// A zero octet ends a password on the BMC.
    #[error("the password contains a zero octet")]
    Zero,
}

/// A user's password, or a BMC's key (Kg), as IPMI has it: 20 octets, padded with zeros.
#[derive(Clone)]
pub struct Password(Zeroizing<[u8; 20]>);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

impl Password {
    /// Takes a password of up to 20 octets.
    ///
    /// # Errors
    /// The text is too long, or contains a zero octet. The error does not repeat it.
    pub fn new(password: &SecretString) -> Result<Self, CheckPasswordError> {
        let given = password.expose_secret().as_bytes();
        if given.contains(&0) {
            return Err(CheckPasswordError::Zero);
        }
        let mut padded = Zeroizing::new([0; 20]);
        padded.get_mut(..given.len()).ok_or(CheckPasswordError::TooLong)?.copy_from_slice(given);
        Ok(Self(padded))
    }
}

/// A user's name: at most 16 octets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserName(String);

/// The name is longer than IPMI allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the user name is longer than the 16 octets that IPMI allows")]
pub struct UserNameTooLong;

impl UserName {
    /// Takes a name.
    ///
    /// # Errors
    /// The text is longer than 16 octets.
    pub fn new(name: &str) -> Result<Self, UserNameTooLong> {
        if name.len() > 16 { Err(UserNameTooLong) } else { Ok(Self(name.to_owned())) }
    }

    /// Returns the name as sent.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Values that both sides know after RAKP message 2, from which all proofs and keys are derived.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// The suite agreed on.
    pub suite: Suite,
    /// The console's session id.
    pub console: u32,
    /// The BMC's session id.
    pub managed: u32,
    /// The console's random number.
    pub console_random: [u8; 16],
    /// The BMC's random number.
    pub managed_random: [u8; 16],
    /// The BMC's GUID.
    pub guid: [u8; 16],
    /// As in RAKP message 1.
    pub role: u8,
    /// As in RAKP message 1.
    pub user: UserName,
}

impl Exchange {
    fn user(&self) -> Vec<u8> {
        let name = self.user.as_bytes();
        [&[self.role, u8::try_from(name.len()).unwrap_or(16)][..], name].concat()
    }

    /// RAKP message 2's code: the BMC knows the password.
    #[must_use]
    pub(crate) fn managed_proof(&self, password: &Password) -> hmac::Tag {
        let (console, managed) = (self.console.to_le_bytes(), self.managed.to_le_bytes());
        let (user, password) = (self.user(), &password.0[..]);
        let parts = [&console[..], &managed, &self.console_random, &self.managed_random, &self.guid, &user];
        self.suite.hmac(password, &parts)
    }

    /// RAKP message 3's code: the console knows the password.
    #[must_use]
    pub(crate) fn console_proof(&self, password: &Password) -> hmac::Tag {
        let parts = [&self.managed_random[..], &self.console.to_le_bytes(), &self.user()];
        self.suite.hmac(&password.0[..], &parts)
    }

    /// Derives the session's keys. `key` is the BMC's own key (Kg) if one is set, otherwise the user's password.
    #[must_use]
    pub fn keys(&self, key: &Password) -> Keys {
        let parts = [&self.console_random[..], &self.managed_random, &self.user()];
        let sik = Secret::of(&self.suite.hmac(&key.0[..], &parts));
        let derive = |constant: u8| Secret::of(&self.suite.hmac(sik.octets(), &[&[constant; 20]]));
        let (k1, k2) = (derive(1), derive(2));
        Keys { suite: self.suite, sik, k1, k2 }
    }
}

/// Returns true if two codes are equal, in a time that does not depend on where they differ.
#[must_use]
pub fn same(expected: &[u8], given: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(expected, given).is_ok()
}

/// A derived key, erased when dropped.
struct Secret {
    octets: Zeroizing<[u8; 32]>,
    length: usize,
}

impl Secret {
    fn of(tag: &hmac::Tag) -> Self {
        let mut octets = Zeroizing::new([0; 32]);
        let mut length = 0_usize;
        for (to, from) in octets.iter_mut().zip(tag.as_ref()) {
            *to = *from;
            length = length.saturating_add(1);
        }
        Self { octets, length }
    }

    fn octets(&self) -> &[u8] {
        self.octets.get(..self.length).unwrap_or(&self.octets[..])
    }
}

/// A session's keys.
pub struct Keys {
    suite: Suite,
    sik: Secret,
    k1: Secret,
    k2: Secret,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({:?}, ..)", self.suite)
    }
}

/// Reason why a packet of a session is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenPacketError {
    /// The packet is not both authenticated and encrypted.
    #[error("the packet is not authenticated and encrypted")]
    Unprotected,
    /// The trailer is malformed.
    #[error("the trailer is malformed")]
    Trailer(#[source] ParsePacketError),
    /// The code is wrong: damaged or forged.
    #[error("the integrity code is wrong")]
    Code,
    /// The authenticated data is not a vector, complete blocks and IPMI's pad.
    #[error("the payload is not encrypted as negotiated")]
    Payload,
}

impl Keys {
    /// RAKP message 4's code: both sides have the same keys.
    #[must_use]
    pub(crate) fn final_proof(&self, exchange: &Exchange) -> Vec<u8> {
        let parts = [&exchange.console_random[..], &exchange.managed.to_le_bytes(), &exchange.guid];
        let tag = self.suite.hmac(self.sik.octets(), &parts);
        tag.as_ref().iter().copied().take(self.suite.code_length()).collect()
    }

    /// An IPMI packet (without RMCP header), encrypted and authenticated. `vector` is random and used once. `None` if the payload is too
    /// long for a packet.
    #[must_use]
    pub(crate) fn seal(
        &self,
        kind: PayloadKind,
        session: u32,
        sequence: u32,
        payload: &[u8],
        vector: [u8; BLOCK_OCTETS],
    ) -> Option<Vec<u8>> {
        let mut sealed = payload.to_vec();
        // IPMI's own pad: 1, 2, 3 ... and then how many.
        let mut pad = 0_u8;
        while sealed.len().checked_add(1)? % BLOCK_OCTETS != 0 {
            pad = pad.checked_add(1)?;
            sealed.push(pad);
        }
        sealed.push(pad);
        let key = EncryptingKey::cbc(self.cipher_key()?).ok()?;
        key.less_safe_encrypt(&mut sealed, EncryptionContext::Iv128(FixedLength::from(vector))).ok()?;
        let mut packet = encode_covered(kind, session, sequence, &[&vector[..], &sealed].concat())?;
        let code = self.code(&packet);
        packet.extend(code.as_ref().iter().take(self.suite.code_length()));
        Some(packet)
    }

    /// Verifies and decrypts a packet's payload.
    ///
    /// # Errors
    /// The other side of this session did not seal the packet.
    pub fn open(&self, packet: &Plus<'_>) -> Result<Vec<u8>, OpenPacketError> {
        if !packet.authenticated || !packet.encrypted {
            return Err(OpenPacketError::Unprotected);
        }
        let (covered, code) =
            packet.split_code(self.suite.code_length()).map_err(OpenPacketError::Trailer)?;
        let expected = self.code(covered);
        let expected = expected.as_ref().get(..self.suite.code_length()).ok_or(OpenPacketError::Code)?;
        if !same(expected, code) {
            return Err(OpenPacketError::Code);
        }
        self.decrypt(packet.payload).ok_or(OpenPacketError::Payload)
    }

    fn decrypt(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let mut reader = Reader(payload);
        let vector: [u8; BLOCK_OCTETS] = reader.array().ok()?;
        if reader.0.is_empty() || reader.0.len() % BLOCK_OCTETS != 0 {
            return None;
        }
        let mut octets = reader.0.to_vec();
        let key = DecryptingKey::cbc(self.cipher_key()?).ok()?;
        key.decrypt(&mut octets, DecryptionContext::Iv128(FixedLength::from(vector))).ok()?;
        let pad = usize::from(octets.pop()?);
        let length = octets.len().checked_sub(pad)?;
        let good = (1..=BLOCK_OCTETS).zip(octets.get(length..)?).all(|(is, octet)| usize::from(*octet) == is);
        // A pad of a whole block, as some BMCs send it, is read; more is not.
        (good && pad <= BLOCK_OCTETS).then(|| octets.truncate(length))?;
        Some(octets)
    }

    fn code(&self, covered: &[u8]) -> hmac::Tag {
        self.suite.hmac(self.k1.octets(), &[covered])
    }

    fn cipher_key(&self) -> Option<UnboundCipherKey> {
        UnboundCipherKey::new(&AES_128, self.k2.octets().get(..BLOCK_OCTETS)?).ok()
    }
}

#[cfg(test)]
mod tests;
