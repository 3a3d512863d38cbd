//! One family of a scrape: its name, its help, its values by label.
//!
//! Called by collectors of the programs, which read their own counters at each scrape.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Values by the word of their one label; the word of a family without labels is not shown.
pub type Labelled = Vec<(&'static str, u64)>;

/// A value with its labels, each a name and a word.
pub type Row<N = u64> = (Vec<(&'static str, &'static str)>, N);

/// Writes one family of counters with at most one label.
///
/// # Errors
/// The text cannot be written.
pub fn count(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: Labelled,
) -> fmt::Result {
    count_rows(encoder, name, help, rows(label, values))
}

/// Writes one family of gauges with at most one label.
///
/// # Errors
/// The text cannot be written.
pub fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: Labelled,
) -> fmt::Result {
    gauge_rows(encoder, name, help, rows(label, values))
}

fn rows(label: &'static str, values: Labelled) -> impl Iterator<Item = Row> {
    let labels = move |word| if label.is_empty() { Vec::new() } else { vec![(label, word)] };
    values.into_iter().map(move |(word, value)| (labels(word), value))
}

/// Writes one family of counters.
///
/// # Errors
/// The text cannot be written.
pub fn count_rows(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = Row>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in rows {
        if labels.is_empty() {
            family.encode_counter::<[(&str, &str); 0], _, u64>(&value, None)?;
        } else {
            family.encode_family(&labels)?.encode_counter::<[(&str, &str); 0], _, u64>(&value, None)?;
        }
    }
    Ok(())
}

/// Writes one family of counters of seconds.
///
/// # Errors
/// The text cannot be written.
pub fn seconds_rows(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = Row<Duration>>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
    for (labels, time) in rows {
        let time = time.as_secs_f64();
        family.encode_family(&labels)?.encode_counter::<[(&str, &str); 0], _, u64>(&time, None)?;
    }
    Ok(())
}

/// Writes one family of gauges.
///
/// # Errors
/// The text cannot be written.
pub fn gauge_rows(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = Row>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in rows {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        if labels.is_empty() {
            family.encode_gauge(&value)?;
        } else {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}
