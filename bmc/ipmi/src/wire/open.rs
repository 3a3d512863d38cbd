//! Pure: Open Session Request and Response (IPMI 2.0 sections 13.17 and 13.18): both sides' session ids and the algorithms.

use super::{
    ParsePacketError, Reader,
    rakp::{Status, refusal},
};

/// Three algorithms by number, as a cipher suite is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithms {
    /// Authentication algorithm: proof of the password.
    pub authentication: u8,
    /// Integrity algorithm of packets.
    pub integrity: u8,
    /// Confidentiality algorithm of payloads.
    pub confidentiality: u8,
}

impl Algorithms {
    fn encode(self) -> [u8; 24] {
        let Self { authentication: a, integrity: i, confidentiality: c } = self;
        [0, 0, 0, 8, a, 0, 0, 0, 1, 0, 0, 8, i, 0, 0, 0, 2, 0, 0, 8, c, 0, 0, 0]
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParsePacketError> {
        let mut one = |kind: u8| {
            let [is, _, _, length, algorithm, ..] = reader.array::<8>()?;
            // Length 0 asks for "any", which neither side here allows.
            if is != kind || length != 8 {
                return Err(ParsePacketError::Value("algorithm"));
            }
            Ok(algorithm & 0x3f)
        };
        Ok(Self { authentication: one(0)?, integrity: one(1)?, confidentiality: one(2)? })
    }
}

/// Open Session Request, from the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRequest {
    /// Repeated in the answer.
    pub tag: u8,
    /// Highest privilege wanted, by number; 0: the highest that the algorithms allow.
    pub privilege: u8,
    /// The console's id of the session, not 0.
    pub console: u32,
    /// Proposed algorithms; one choice.
    pub algorithms: Algorithms,
}

impl OpenRequest {
    /// As octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = [self.tag, self.privilege, 0, 0];
        [&head[..], &self.console.to_le_bytes(), &self.algorithms.encode()].concat()
    }

    /// From octets.
    ///
    /// # Errors
    /// Too short, or "any algorithm".
    pub fn parse(payload: &[u8]) -> Result<Self, ParsePacketError> {
        let mut reader = Reader(payload);
        let [tag, privilege, _, _] = reader.array()?;
        let console = reader.u32()?;
        let algorithms = Algorithms::parse(&mut reader)?;
        Ok(Self { tag, privilege: privilege & 0x0f, console, algorithms })
    }
}

/// Open Session Response, from the BMC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenResponse {
    /// Tag of the request.
    pub tag: u8,
    /// The console's id of the session, as asked.
    pub console: u32,
    /// Decision of the BMC.
    pub outcome: Result<Opened, Status>,
}

/// Session that a BMC granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Highest privilege, by number.
    pub privilege: u8,
    /// The BMC's id of the session.
    pub managed: u32,
    /// Chosen algorithms.
    pub algorithms: Algorithms,
}

impl OpenResponse {
    /// As octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let console = self.console.to_le_bytes();
        match &self.outcome {
            Ok(opened) => {
                let head = [self.tag, 0, opened.privilege, 0];
                [&head[..], &console, &opened.managed.to_le_bytes(), &opened.algorithms.encode()].concat()
            }
            Err(status) => [&[self.tag, status.number(), 0, 0][..], &console].concat(),
        }
    }

    /// From octets.
    ///
    /// # Errors
    /// Too short, or no algorithms where there should be.
    pub fn parse(payload: &[u8]) -> Result<Self, ParsePacketError> {
        if let Some((tag, console, status)) = refusal(payload) {
            return Ok(Self { tag, console, outcome: Err(status) });
        }
        let mut reader = Reader(payload);
        let [tag, _, privilege, _] = reader.array()?;
        let console = reader.u32()?;
        let (privilege, managed) = (privilege & 0x0f, reader.u32()?);
        let opened = Opened { privilege, managed, algorithms: Algorithms::parse(&mut reader)? };
        Ok(Self { tag, console, outcome: Ok(opened) })
    }
}
