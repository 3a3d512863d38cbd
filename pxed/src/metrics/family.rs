//! One family of a scrape: its name, its help, its values by label.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

/// Values by the word of their one label; the word of a family without labels is not shown.
pub(super) type Labelled = Vec<(&'static str, u64)>;

/// A value with its labels.
type Row = (Vec<(&'static str, &'static str)>, u64);

/// Writes one family of counters with at most one label.
pub(super) fn count(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: Labelled,
) -> fmt::Result {
    count_rows(encoder, name, help, rows(label, values))
}

/// Writes one family of gauges with at most one label.
pub(super) fn gauge(
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
pub(super) fn count_rows(
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

/// Writes one family of gauges.
pub(super) fn gauge_rows(
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
