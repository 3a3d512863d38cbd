//! Pure: IPMI messages over LAN (IPMI 2.0 section 13.8): a command to the BMC, its answer, two checksums.

use super::{ParsePacketError, Reader, completion::Completion};

/// Address of the BMC.
const BMC: u8 = 0x20;
/// Address of a remote console's software.
const CONSOLE: u8 = 0x81;

/// Network function (even: request) of chassis commands.
pub(crate) const CHASSIS: u8 = 0x00;
/// Network function of sensor and event commands.
pub(crate) const SENSOR: u8 = 0x04;
/// Network function of application commands.
pub(crate) const APPLICATION: u8 = 0x06;
/// Network function of storage commands.
pub(crate) const STORAGE: u8 = 0x0a;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Network function, even, 0 to 62.
    pub function: u8,
    /// Logical unit, 0 to 3.
    pub lun: u8,
    /// Command within the network function.
    pub command: u8,
    /// Data after the command.
    pub data: Vec<u8>,
    /// True if a repetition changes the result: the request is sent once. Not a part of the packet; parsed requests do not have it.
    pub once: bool,
}

impl Request {
    /// A command to logical unit 0.
    #[must_use]
    pub fn new(function: u8, command: u8, data: &[u8]) -> Self {
        Self { function: function & 0x3e, lun: 0, command, data: data.to_vec(), once: false }
    }

    /// Returns the request, marked not to be repeated.
    #[must_use]
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }
}

/// Answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Completion code.
    pub completion: Completion,
    /// Data of the answer; most BMCs send none after an error.
    pub data: Vec<u8>,
}

/// A request with the number that its answer will carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestMessage {
    /// 0 to 63.
    pub sequence: u8,
    /// The command.
    pub request: Request,
}

/// A response with the fields that identify its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseMessage {
    /// Sequence number of the request.
    pub sequence: u8,
    /// The request's network function (even).
    pub function: u8,
    /// The logical unit that answered.
    pub lun: u8,
    /// The request's command.
    pub command: u8,
    /// Response to the request.
    pub response: Response,
}

/// The octet that makes the sum 0.
fn checksum(octets: &[u8]) -> u8 {
    octets.iter().fold(0_u8, |sum, octet| sum.wrapping_add(*octet)).wrapping_neg()
}

/// `a` in the upper six bits, `b` in the lower two.
fn six_two(a: u8, b: u8) -> u8 {
    a.wrapping_shl(2) | (b & 3)
}

fn encode(head: [u8; 2], body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    [&head[..], &[checksum(&head)], &body, &[checksum(&body)]].concat()
}

/// Checks both sums; gives the header's octet with the network function, and what lies between the sums.
fn parse(message: &[u8], to: u8) -> Result<(u8, Reader<'_>), ParsePacketError> {
    let mut reader = Reader(message);
    let [receiver, function, sum] = reader.array()?;
    let [body @ .., body_sum] = reader.0 else { return Err(ParsePacketError::Short) };
    if checksum(&[receiver, function]) != sum || checksum(body) != *body_sum {
        return Err(ParsePacketError::Checksum);
    }
    if receiver != to {
        return Err(ParsePacketError::Value("receiver's address"));
    }
    Ok((function, Reader(body)))
}

impl RequestMessage {
    /// As octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = [BMC, six_two(self.request.function, self.request.lun)];
        let middle = [CONSOLE, six_two(self.sequence, 0), self.request.command];
        encode(head, &[&middle, &self.request.data])
    }

    /// From octets.
    ///
    /// # Errors
    /// Too short, a wrong checksum, not addressed to a BMC, or a response.
    pub fn parse(message: &[u8]) -> Result<Self, ParsePacketError> {
        let (function, mut reader) = parse(message, BMC)?;
        let [_, sequence, command] = reader.array()?;
        if function & 0x04 != 0 {
            return Err(ParsePacketError::Value("network function"));
        }
        let (function, lun, data) = (function >> 2, function & 3, reader.0.to_vec());
        let request = Request { function, lun, command, data, once: false };
        Ok(Self { sequence: sequence >> 2, request })
    }
}

impl ResponseMessage {
    /// As octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = [CONSOLE, six_two(self.function | 1, 0)];
        let completion = self.response.completion.number();
        let middle = [BMC, six_two(self.sequence, self.lun), self.command, completion];
        encode(head, &[&middle, &self.response.data])
    }

    /// From octets.
    ///
    /// # Errors
    /// Too short, a wrong checksum, not addressed to a console, or a request.
    pub fn parse(message: &[u8]) -> Result<Self, ParsePacketError> {
        let (function, mut reader) = parse(message, CONSOLE)?;
        let [_, sequence, command, completion] = reader.array()?;
        if function & 0x04 == 0 {
            return Err(ParsePacketError::Value("network function"));
        }
        let response = Response { completion: Completion::from_number(completion), data: reader.0.to_vec() };
        Ok(Self {
            sequence: sequence >> 2,
            function: (function >> 2) & 0x3e,
            lun: sequence & 3,
            command,
            response,
        })
    }
}
