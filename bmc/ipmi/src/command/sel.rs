//! Pure: the system event log: how long it is, one record, a record's text. Never clears it.

use std::fmt;

use super::Command;
use crate::wire::{
    ParsePacketError, Reader,
    message::{Request, STORAGE},
};

/// The number by which the last record is asked for.
pub(crate) const LAST_RECORD: u16 = 0xffff;
/// The number by which the first record is asked for.
pub(crate) const FIRST_RECORD: u16 = 0x0000;
/// Below it a time counts seconds since the BMC started.
const SINCE_START: u32 = 0x2000_0000;

/// Get SEL Info.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetSelInfo;

/// Usage of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelInfo {
    /// Records in it.
    pub entries: u16,
    /// Free space in octets; 0xffff: that much or more.
    pub free: u16,
    /// True if records were lost because it was full.
    pub overflow: bool,
}

impl Command for GetSelInfo {
    type Answer = SelInfo;

    fn request(&self) -> Request {
        Request::new(STORAGE, 0x40, &[])
    }

    fn answer(&self, data: &[u8]) -> Result<SelInfo, ParsePacketError> {
        let mut reader = Reader(data);
        reader.byte()?;
        let (entries, free) = (reader.u16()?, reader.u16()?);
        let [.., support] = reader.array::<9>()?;
        Ok(SelInfo { entries, free, overflow: support & 0x80 != 0 })
    }
}

/// Get SEL Entry: a whole record, by its number, [`FIRST_RECORD`] or [`LAST_RECORD`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GetSelEntry(pub u16);

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelRecord {
    /// The number.
    pub id: u16,
    /// The number of the record after it; [`LAST_RECORD`]: there is none.
    pub next: u16,
    /// 0x02: a system event; 0xC0 and above: the vendor's own form.
    pub kind: u8,
    /// Seconds since 1970 by the BMC's clock; `None` if its clock was not set, or the record has no time.
    pub time: Option<u32>,
    /// Sensor type (IPMI 2.0 table 42-3).
    pub sensor_type: u8,
    /// The number of the sensor.
    pub sensor: u8,
    /// True if the event started; false if it ended.
    pub asserted: bool,
    /// Event type, 7 bits.
    pub event: u8,
    /// The event's data.
    pub data: [u8; 3],
}

impl Command for GetSelEntry {
    type Answer = SelRecord;

    fn request(&self) -> Request {
        let [low, high] = self.0.to_le_bytes();
        Request::new(STORAGE, 0x43, &[0, 0, low, high, 0, 0xff])
    }

    fn answer(&self, data: &[u8]) -> Result<SelRecord, ParsePacketError> {
        let mut reader = Reader(data);
        let (next, id, kind, time) = (reader.u16()?, reader.u16()?, reader.byte()?, reader.u32()?);
        let [_, _, _, sensor_type, sensor, event] = reader.array()?;
        let timed = kind < 0xe0 && time != u32::MAX && time >= SINCE_START;
        Ok(SelRecord {
            id,
            next,
            kind,
            time: timed.then_some(time),
            sensor_type,
            sensor,
            asserted: event & 0x80 == 0,
            event: event & 0x7f,
            data: reader.array()?,
        })
    }
}

/// Names of sensor types that users look for in a log.
fn sensor_name(sensor_type: u8) -> Option<&'static str> {
    Some(match sensor_type {
        0x01 => "temperature",
        0x02 => "voltage",
        0x03 => "current",
        0x04 => "fan",
        0x05 => "chassis intrusion",
        0x06 => "security violation",
        0x07 => "processor",
        0x08 => "power supply",
        0x09 => "power unit",
        0x0a => "cooling device",
        0x0c => "memory",
        0x0d => "drive",
        0x0f => "firmware progress",
        0x10 => "event logging",
        0x11 | 0x23 => "watchdog",
        0x12 => "system event",
        0x13 => "critical interrupt",
        0x14 => "button",
        0x19 => "chip set",
        0x1d => "system boot",
        0x1e => "boot error",
        0x1f => "operating system boot",
        0x20 => "operating system stop",
        0x21 => "slot or connector",
        0x22 => "ACPI power state",
        0x28 => "management subsystem",
        0x29 => "battery",
        _ => return None,
    })
}

impl fmt::Display for SelRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, two, three] = self.data;
        if self.kind != 0x02 {
            return write!(f, "vendor-specific record {:#04x}", self.kind);
        }
        match sensor_name(self.sensor_type) {
            Some(name) => write!(f, "{name}")?,
            None => write!(f, "sensor type {:#04x}", self.sensor_type)?,
        }
        let how = if self.asserted { "asserted" } else { "deasserted" };
        write!(
            f,
            ", sensor {:#04x}: event {:#04x} {how}, data {one:02x} {two:02x} {three:02x}",
            self.sensor, self.event
        )
    }
}
