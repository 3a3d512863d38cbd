//! Conversion of a BMC's answers over IPMI to the model.
//!
//! Pure: no clock, no file, no socket. Caller: `lanplus`.

use bedplate_ipmi::command::chassis::ChassisStatus;
use bedplate_ipmi::command::device::DeviceId;
use bedplate_ipmi::command::sel::SelRecord;
use bedplate_ipmi::command::sensor::{Sensor, Trouble};
use bedplate_ipmi::fru::Fru;
use jiff::Timestamp;

use crate::error::printable;
use crate::model::{Health, HealthState, Identity, LogEntry, PowerState};

/// Event type of sensors with thresholds (IPMI 2.0, table 42-1).
const THRESHOLD: u8 = 0x01;
/// Maximum number of reported concerns.
const MOST_CONCERNS: usize = 16;

/// Names of machine and maker are in the FRU; in a device id are numbers of those of the BMC.
pub(super) fn identity(device: &DeviceId, fru: &Fru) -> Identity {
    let (major, minor) = device.ipmi;
    let name = |text: &Option<String>| text.as_deref().map(printable).filter(|text| !text.is_empty());
    Identity {
        vendor: name(&fru.manufacturer),
        product: name(&fru.product),
        serial: name(&fru.serial),
        firmware: Some(format!("{}.{:02}", device.major, device.minor)),
        controller: Some(format!(
            "manufacturer {}, product {:#06x}, device {:#04x}",
            device.manufacturer, device.product, device.device
        )),
        protocol: Some(format!("IPMI {major}.{minor}")),
        ..Identity::default()
    }
}

pub(super) fn power(status: &ChassisStatus) -> PowerState {
    if status.is_on() { PowerState::On } else { PowerState::Off }
}

/// The chassis and its sensors.
pub(super) fn health(status: &ChassisStatus, sensors: &[Sensor]) -> Health {
    let chassis = status.concerns().map(|concern| (HealthState::Critical, format!("chassis: {concern}")));
    let sensors = sensors.iter().filter_map(|sensor| {
        let (trouble, text) = sensor.trouble()?;
        let state = match trouble {
            Trouble::Warning => HealthState::Warning,
            Trouble::Critical => HealthState::Critical,
        };
        let number = || format!("sensor {:#04x}", sensor.record.number);
        let name =
            sensor.name.as_deref().map(printable).filter(|name| !name.is_empty()).unwrap_or_else(number);
        Some((state, format!("{name}: {text}")))
    });
    let mut all: Vec<(HealthState, String)> = chassis.chain(sensors).collect();
    // The worst first, because the list is limited.
    all.sort_by_key(|(state, _)| std::cmp::Reverse(*state));
    let overall = all.first().map_or(HealthState::Ok, |(state, _)| *state);
    Health { overall, concerns: all.into_iter().map(|(_, concern)| concern).take(MOST_CONCERNS).collect() }
}

pub(super) fn log_entry(record: &SelRecord) -> LogEntry {
    LogEntry {
        time: record.time.and_then(|seconds| Timestamp::from_second(seconds.into()).ok()),
        severity: severity(record),
        message: record.to_string(),
    }
}

/// Returns the severity of an event if its type defines one: thresholds do (IPMI 2.0, table 42-2), in steps of two
/// offsets.
fn severity(record: &SelRecord) -> HealthState {
    let [first, ..] = record.data;
    match (record.kind, record.asserted, record.event, first & 0x0f) {
        (0x02, false, ..) => HealthState::Ok,
        (0x02, true, THRESHOLD, 0 | 1 | 6 | 7) => HealthState::Warning,
        (0x02, true, THRESHOLD, 2..=5 | 8..=11) => HealthState::Critical,
        _ => HealthState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(asserted: bool, event: u8, first: u8) -> SelRecord {
        let (id, next, kind, time) = (1, 0xffff, 0x02, Some(1_704_067_200));
        SelRecord { id, next, kind, time, sensor_type: 1, sensor: 0x30, asserted, event, data: [first, 0, 0] }
    }

    #[test]
    fn a_threshold_event_is_as_bad_as_its_offset_says() {
        for (asserted, event, first, severity) in [
            (true, 1, 0x57, HealthState::Warning),
            (true, 1, 0x59, HealthState::Critical),
            (true, 1, 0x52, HealthState::Critical),
            (true, 1, 0x5f, HealthState::Unknown),
            (false, 1, 0x59, HealthState::Ok),
            (true, 0x6f, 0x01, HealthState::Unknown),
        ] {
            let entry = log_entry(&record(asserted, event, first));
            assert_eq!(entry.severity, severity, "{asserted} {event} {first}");
            assert_eq!(entry.time.map(|time| time.to_string()).as_deref(), Some("2024-01-01T00:00:00Z"));
        }
    }
}
