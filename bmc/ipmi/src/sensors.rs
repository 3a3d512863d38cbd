//! Reads a BMC's sensors: records first, then what each says. Two or three requests a sensor, so it takes seconds; bounded in records and
//! by the caller's time.

use crate::{
    client::{Client, ClientError},
    command::sensor::{
        FIRST_RECORD, GetRecord, GetSensorReading, HEAD, NO_RECORD, ReserveRecords, Sensor, SensorRecord,
        sensor_name,
    },
    wire::completion::Completion,
};

/// Maximum number of reservations, which other readers and writers can cancel.
const MOST_RESERVATIONS: u32 = 8;
/// Octets of a record's header, without which there is nothing.
const HEADER: u8 = 5;

/// Reader of sensors one by one, so that the values read so far are available when time is up: the caller may drop a
/// step at any time and continue or stop.
#[derive(Debug)]
pub struct SensorReader {
    next: u16,
    reservation: Option<u16>,
    reservations: u32,
    /// Records that may still be read.
    left: u16,
}

impl SensorReader {
    /// Reads `most` records at most.
    #[must_use]
    pub fn new(most: u16) -> Self {
        Self { next: FIRST_RECORD, reservation: None, reservations: 0, left: most }
    }

    /// The next sensor; `None`: there are no more, or no more are read.
    ///
    /// # Errors
    /// As [`Client::request`]. A refused sensor is skipped. A refused record ends the read, because only it names the next one.
    pub async fn step(&mut self, client: &Client) -> Result<Option<Sensor>, ClientError> {
        while self.left > 0 && self.next != NO_RECORD {
            let record = self.next;
            let (next, head) = match self.part(client, record, 0, HEAD).await {
                // Short ones, of other kinds, are refused as a whole by some.
                Err(error) if error.completion().is_some() => self.part(client, record, 0, HEADER).await?,
                read => read?,
            };
            self.left = self.left.saturating_sub(1);
            // A chain that points to itself would be read until the limit.
            self.next = if next == record { NO_RECORD } else { next };
            let Some(found) = SensorRecord::parse(&head) else { continue };
            let states = client.request(&GetSensorReading { lun: found.lun, number: found.number }).await;
            let Some(states) = optional(states)? else { continue };
            let (offset, most) = found.name;
            let name =
                if most == 0 { None } else { optional(self.part(client, record, offset, most).await)? };
            let name = name.and_then(|(_, octets)| sensor_name(&octets));
            return Ok(Some(Sensor { name, record: found, states }));
        }
        Ok(None)
    }

    async fn part(
        &mut self,
        client: &Client,
        record: u16,
        offset: u8,
        count: u8,
    ) -> Result<(u16, Vec<u8>), ClientError> {
        loop {
            let reservation = match self.reservation {
                Some(reservation) => reservation,
                // A BMC without reservations takes 0.
                None => optional(client.request(&ReserveRecords).await)?.unwrap_or(0),
            };
            self.reservation = Some(reservation);
            let read = client.request(&GetRecord { reservation, record, offset, count }).await;
            let lost = read.as_ref().is_err_and(|error| error.completion() == Some(Completion::Reservation));
            if !lost || self.reservations >= MOST_RESERVATIONS {
                return read;
            }
            self.reservations = self.reservations.saturating_add(1);
            self.reservation = None;
        }
    }
}

/// Treats a refusal of the BMC as absence.
fn optional<T>(result: Result<T, ClientError>) -> Result<Option<T>, ClientError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(ClientError::Command(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
