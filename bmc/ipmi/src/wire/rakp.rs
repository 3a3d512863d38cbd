//! Pure: RAKP messages 1 to 4 (IPMI 2.0 sections 13.20 to 13.24), by which both sides prove that they know the password.

use super::{ParsePacketError, Reader};

/// Reason why a BMC or console refuses (IPMI 2.0 table 13-15). There is no variant for "no errors".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Status {
    /// 0x01.
    #[error("no resources for another session")]
    NoResources,
    /// 0x0B.
    #[error("no resources for another session with this role")]
    NoResourcesForRole,
    /// 0x02.
    #[error("the session ID does not exist")]
    SessionId,
    /// 0x08.
    #[error("the session ID is not active")]
    InactiveSessionId,
    /// 0x03.
    #[error("invalid payload type")]
    PayloadType,
    /// 0x04.
    #[error("unsupported authentication algorithm")]
    AuthenticationAlgorithm,
    /// 0x05.
    #[error("unsupported integrity algorithm")]
    IntegrityAlgorithm,
    /// 0x06.
    #[error("no matching authentication payload")]
    AuthenticationPayload,
    /// 0x07.
    #[error("no matching integrity payload")]
    IntegrityPayload,
    /// 0x09 and 0x0A: an invalid role, and one that the user may not have.
    #[error("the account does not have the role or privilege (status {0:#04x})")]
    Role(u8),
    /// 0x0C: the name is longer than it may be.
    #[error("invalid length of the user name")]
    NameLength,
    /// 0x0D: the user does not exist, or has no access over this channel.
    #[error("the user does not exist, or has no access over LAN")]
    Name,
    /// 0x0E.
    #[error("unauthorized GUID")]
    Guid,
    /// 0x0F.
    #[error("wrong key exchange or integrity code")]
    IntegrityCode,
    /// 0x10.
    #[error("unsupported confidentiality algorithm")]
    ConfidentialityAlgorithm,
    /// 0x11.
    #[error("unsupported cipher suite")]
    NoCipherSuite,
    /// Any other.
    #[error("status {0:#04x}")]
    Other(u8),
}

impl Status {
    /// The status of a number; 0 is none.
    #[must_use]
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0x00 => return None,
            0x01 => Self::NoResources,
            0x02 => Self::SessionId,
            0x03 => Self::PayloadType,
            0x04 => Self::AuthenticationAlgorithm,
            0x05 => Self::IntegrityAlgorithm,
            0x06 => Self::AuthenticationPayload,
            0x07 => Self::IntegrityPayload,
            0x08 => Self::InactiveSessionId,
            0x09 | 0x0a => Self::Role(number),
            0x0b => Self::NoResourcesForRole,
            0x0c => Self::NameLength,
            0x0d => Self::Name,
            0x0e => Self::Guid,
            0x0f => Self::IntegrityCode,
            0x10 => Self::ConfidentialityAlgorithm,
            0x11 => Self::NoCipherSuite,
            other => Self::Other(other),
        })
    }

    /// The number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::NoResources => 0x01,
            Self::SessionId => 0x02,
            Self::PayloadType => 0x03,
            Self::AuthenticationAlgorithm => 0x04,
            Self::IntegrityAlgorithm => 0x05,
            Self::AuthenticationPayload => 0x06,
            Self::IntegrityPayload => 0x07,
            Self::InactiveSessionId => 0x08,
            Self::NoResourcesForRole => 0x0b,
            Self::NameLength => 0x0c,
            Self::Name => 0x0d,
            Self::Guid => 0x0e,
            Self::IntegrityCode => 0x0f,
            Self::ConfidentialityAlgorithm => 0x10,
            Self::NoCipherSuite => 0x11,
            Self::Role(number) | Self::Other(number) => number,
        }
    }
}

/// Tag, receiver's session id and status of a message that refuses. Some BMCs (`ipmi_sim` among them) end it after the status; the id is
/// then 0.
pub(super) fn refusal(payload: &[u8]) -> Option<(u8, u32, Status)> {
    let mut reader = Reader(payload);
    let [tag, status] = reader.array().ok()?;
    let status = Status::from_number(status)?;
    let session = reader.bytes(2).and_then(|_| reader.u32()).unwrap_or(0);
    Some((tag, session, status))
}

/// RAKP message 1, from the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rakp1<'a> {
    /// Repeated in the answer.
    pub tag: u8,
    /// The BMC's id of the session.
    pub managed: u32,
    /// The console's random number.
    pub random: [u8; 16],
    /// Privilege in the lower four bits; bit 4: the user is looked up by name alone.
    pub role: u8,
    /// At most 16 octets.
    pub user: &'a [u8],
}

impl<'a> Rakp1<'a> {
    /// As octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let user = self.user.get(..16).unwrap_or(self.user);
        let length = u8::try_from(user.len()).unwrap_or(16);
        let head = [self.tag, 0, 0, 0];
        let role = [self.role, 0, 0, length];
        [&head[..], &self.managed.to_le_bytes(), &self.random, &role, user].concat()
    }

    /// From octets.
    ///
    /// # Errors
    /// Too short, or the user's name is longer than 16 octets.
    pub fn parse(payload: &'a [u8]) -> Result<Self, ParsePacketError> {
        let mut reader = Reader(payload);
        let [tag, ..] = reader.array::<4>()?;
        let (managed, random) = (reader.u32()?, reader.array()?);
        let [role, _, _, length] = reader.array()?;
        if length > 16 {
            return Err(ParsePacketError::Value("length of the user name"));
        }
        Ok(Self { tag, managed, random, role, user: reader.bytes(length.into())? })
    }
}

/// RAKP message 2, from the BMC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rakp2<'a> {
    /// Tag of message 1.
    pub tag: u8,
    /// The console's id of the session.
    pub console: u32,
    /// Decision of the BMC.
    pub outcome: Result<Challenge<'a>, Status>,
}

/// Proof of the BMC, and the values that the console must answer with its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// The BMC's random number.
    pub random: [u8; 16],
    /// The BMC's GUID.
    pub guid: [u8; 16],
    /// Key exchange authentication code.
    pub code: &'a [u8],
}

impl<'a> Rakp2<'a> {
    /// As octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let console = self.console.to_le_bytes();
        match &self.outcome {
            Ok(challenge) => {
                let head = [self.tag, 0, 0, 0];
                [&head[..], &console, &challenge.random, &challenge.guid, challenge.code].concat()
            }
            Err(status) => [&[self.tag, status.number(), 0, 0][..], &console].concat(),
        }
    }

    /// From octets.
    ///
    /// # Errors
    /// Too short.
    pub fn parse(payload: &'a [u8]) -> Result<Self, ParsePacketError> {
        if let Some((tag, console, status)) = refusal(payload) {
            return Ok(Self { tag, console, outcome: Err(status) });
        }
        let mut reader = Reader(payload);
        let [tag, ..] = reader.array::<4>()?;
        let console = reader.u32()?;
        let challenge = Challenge { random: reader.array()?, guid: reader.array()?, code: reader.0 };
        Ok(Self { tag, console, outcome: Ok(challenge) })
    }
}

/// RAKP message 3 (from the console) or 4 (from the BMC), which have one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof<'a> {
    /// Message 3: chosen by the console; message 4: of message 3.
    pub tag: u8,
    /// The receiver's id of the session.
    pub session: u32,
    /// The code: key exchange in message 3, integrity check in message 4.
    pub outcome: Result<&'a [u8], Status>,
}

impl<'a> Proof<'a> {
    /// As octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (status, code) = match self.outcome {
            Ok(code) => (0, code),
            Err(status) => (status.number(), &[][..]),
        };
        [&[self.tag, status, 0, 0][..], &self.session.to_le_bytes(), code].concat()
    }

    /// From octets.
    ///
    /// # Errors
    /// Too short.
    pub fn parse(payload: &'a [u8]) -> Result<Self, ParsePacketError> {
        if let Some((tag, session, status)) = refusal(payload) {
            return Ok(Self { tag, session, outcome: Err(status) });
        }
        let mut reader = Reader(payload);
        let [tag, ..] = reader.array::<4>()?;
        Ok(Self { tag, session: reader.u32()?, outcome: Ok(reader.0) })
    }
}
