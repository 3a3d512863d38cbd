//! Pure: sensors: the records that name them (IPMI 2.0 sections 33 and 43), and what they say now (section 35.14). Values in degrees or volts
//! are not computed: what is wrong, a BMC says itself.

use super::Command;
use crate::wire::{
    ParsePacketError, Reader,
    message::{Request, SENSOR, STORAGE},
};

/// The number by which the first record is asked for.
pub(crate) const FIRST_RECORD: u16 = 0x0000;
/// The number after the last record.
pub(crate) const NO_RECORD: u16 = 0xffff;
/// Octets of a record by which it is known what it is.
pub const HEAD: u8 = 16;

const FULL: u8 = 0x01;
const COMPACT: u8 = 0x02;
/// Address of the BMC: sensors of others are behind bridges.
const BMC: u8 = 0x20;
/// Event type of sensors with thresholds.
const THRESHOLD: u8 = 0x01;
/// Event type of states that mean something by the sensor's type.
const SPECIFIC: u8 = 0x6f;

/// Reserve SDR Repository: reads in parts need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReserveRecords;

impl Command for ReserveRecords {
    type Answer = u16;

    fn request(&self) -> Request {
        Request::new(STORAGE, 0x22, &[])
    }

    fn answer(&self, data: &[u8]) -> Result<u16, ParsePacketError> {
        Reader(data).u16()
    }
}

/// Get SDR: a part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GetRecord {
    /// The reservation.
    pub reservation: u16,
    /// The record's number, or [`FIRST_RECORD`].
    pub record: u16,
    /// From which octet.
    pub offset: u8,
    /// Number of octets.
    pub count: u8,
}

impl Command for GetRecord {
    /// The number of the record after it, and the octets.
    type Answer = (u16, Vec<u8>);

    fn request(&self) -> Request {
        let ([a, b], [c, d]) = (self.reservation.to_le_bytes(), self.record.to_le_bytes());
        Request::new(STORAGE, 0x23, &[a, b, c, d, self.offset, self.count])
    }

    fn answer(&self, data: &[u8]) -> Result<Self::Answer, ParsePacketError> {
        let mut reader = Reader(data);
        let next = reader.u16()?;
        Ok((next, reader.0.get(..self.count.into()).unwrap_or(reader.0).to_vec()))
    }
}

/// Description of a sensor in its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SensorRecord {
    /// Logical unit that answers for it.
    pub lun: u8,
    /// The sensor's number there.
    pub number: u8,
    /// Sensor type (IPMI 2.0 table 42-3).
    pub kind: u8,
    /// Event type, which defines its states (table 42-1).
    pub event: u8,
    /// Position of its name in the record: offset, and maximum number of octets.
    pub name: (u8, u8),
}

impl SensorRecord {
    /// Reads a record's first [`HEAD`] octets; `None`: it is not one of a sensor of the BMC itself.
    #[must_use]
    pub fn parse(head: &[u8]) -> Option<Self> {
        let mut reader = Reader(head);
        let [_, _, _, kind, length, owner, lun, number] = reader.array().ok()?;
        let [_, _, _, _, sensor, event] = reader.array().ok()?;
        let name: u8 = match kind {
            FULL => 47,
            COMPACT => 31,
            _ => return None,
        };
        let most = length.checked_add(5)?.saturating_sub(name).min(17);
        let own = owner == BMC && lun & 0xf0 == 0;
        own.then_some(Self { lun: lun & 3, number, kind: sensor, event: event & 0x7f, name: (name, most) })
    }
}

/// Name in a record: its type and length, then its text. Only eight-bit text is read.
#[must_use]
pub(crate) fn sensor_name(octets: &[u8]) -> Option<String> {
    let (head, rest) = octets.split_first()?;
    let length = usize::from(head & 0x1f);
    if head >> 6 != 3 || length == 0 {
        return None;
    }
    let text = rest.get(..length).unwrap_or(rest);
    let text: String = text.iter().map(|octet| char::from(*octet)).collect();
    let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    (!text.is_empty()).then(|| text.to_owned())
}

/// Get Sensor Reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GetSensorReading {
    /// Logical unit that answers for it.
    pub lun: u8,
    /// The sensor's number there.
    pub number: u8,
}

impl Command for GetSensorReading {
    /// The states, a bit each; `None`: it has none now.
    type Answer = Option<u16>;

    fn request(&self) -> Request {
        Request { lun: self.lun & 3, ..Request::new(SENSOR, 0x2d, &[self.number]) }
    }

    fn answer(&self, data: &[u8]) -> Result<Option<u16>, ParsePacketError> {
        let mut reader = Reader(data);
        let [_, flags] = reader.array()?;
        // BMCs may omit states that the sensor does not have.
        let low = reader.byte().unwrap_or(0);
        let high = reader.byte().unwrap_or(0);
        // Not scanned, or not (yet) available.
        let is_there = flags & 0x40 != 0 && flags & 0x20 == 0;
        Ok(is_there.then_some(u16::from_le_bytes([low, high]) & 0x7fff))
    }
}

/// A sensor and its current states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sensor {
    /// The name; `None`: it has none, or in letters that are not read here.
    pub name: Option<String>,
    /// Record of the sensor.
    pub record: SensorRecord,
    /// The states now, a bit each; `None`: it has none.
    pub states: Option<u16>,
}

/// Severity of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// The sensor reports a warning.
    Warning,
    /// The sensor reports a failure or a predicted failure.
    Critical,
}

/// Sensor type, offset of the state, how bad, text: of [`SPECIFIC`] sensors (IPMI 2.0 table 42-3).
const SPECIFICS: [(u8, u8, Trouble, &str); 21] = [
    (0x07, 0, Trouble::Critical, "internal error"),
    (0x07, 1, Trouble::Critical, "thermal trip"),
    (0x07, 5, Trouble::Critical, "configuration error"),
    (0x08, 1, Trouble::Critical, "failure"),
    (0x08, 2, Trouble::Warning, "failure is predicted"),
    (0x08, 3, Trouble::Critical, "input lost"),
    (0x08, 6, Trouble::Warning, "configuration error"),
    (0x09, 4, Trouble::Critical, "input lost"),
    (0x09, 5, Trouble::Critical, "control failed"),
    (0x09, 6, Trouble::Critical, "failure"),
    (0x0c, 1, Trouble::Critical, "uncorrectable error"),
    (0x0c, 3, Trouble::Critical, "scrub failed"),
    (0x0c, 5, Trouble::Warning, "limit of correctable errors reached"),
    (0x0d, 1, Trouble::Critical, "drive fault"),
    (0x0d, 2, Trouble::Warning, "failure is predicted"),
    (0x0d, 5, Trouble::Warning, "in a critical array"),
    (0x0d, 6, Trouble::Critical, "in a failed array"),
    (0x13, 8, Trouble::Critical, "uncorrectable bus error"),
    (0x28, 4, Trouble::Warning, "sensor failure"),
    (0x29, 0, Trouble::Warning, "battery low"),
    (0x29, 1, Trouble::Critical, "battery failed"),
];

/// Event type, offset of the state, how bad, text: of thresholds and generic states (IPMI 2.0 tables 42-2 and 35-15).
const GENERICS: [(u8, u8, Trouble, &str); 17] = [
    (THRESHOLD, 0, Trouble::Warning, "below the lower non-critical threshold"),
    (THRESHOLD, 1, Trouble::Critical, "below the lower critical threshold"),
    (THRESHOLD, 2, Trouble::Critical, "below the lower non-recoverable threshold"),
    (THRESHOLD, 3, Trouble::Warning, "above the upper non-critical threshold"),
    (THRESHOLD, 4, Trouble::Critical, "above the upper critical threshold"),
    (THRESHOLD, 5, Trouble::Critical, "above the upper non-recoverable threshold"),
    (0x04, 1, Trouble::Warning, "failure is predicted"),
    (0x05, 1, Trouble::Warning, "limit exceeded"),
    (0x07, 1, Trouble::Warning, "non-critical"),
    (0x07, 2, Trouble::Critical, "critical"),
    (0x07, 3, Trouble::Critical, "non-recoverable"),
    (0x07, 4, Trouble::Warning, "non-critical"),
    (0x07, 5, Trouble::Critical, "critical"),
    (0x07, 6, Trouble::Critical, "non-recoverable"),
    (0x0b, 1, Trouble::Warning, "redundancy lost"),
    (0x0b, 2, Trouble::Warning, "redundancy degraded"),
    (0x0b, 5, Trouble::Critical, "not redundant, insufficient resources"),
];

impl Sensor {
    /// Returns the most severe state with its text. `None`: no problem, or no state that the specification defines.
    #[must_use]
    pub fn trouble(&self) -> Option<(Trouble, &'static str)> {
        let states = self.states?;
        let (table, key) = match self.record.event {
            SPECIFIC => (&SPECIFICS[..], self.record.kind),
            event => (&GENERICS[..], event),
        };
        let on = |offset: &u8| states.checked_shr((*offset).into()).is_some_and(|bits| bits & 1 != 0);
        let said = table.iter().filter(|(is, offset, ..)| *is == key && on(offset));
        said.max_by_key(|(_, _, trouble, _)| *trouble).map(|(_, _, trouble, text)| (*trouble, *text))
    }
}
