//! A metric family of a scrape: its name, its help, its values by label.
//!
//! Called by collectors of the programs, which read their own counters at each scrape.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Values by the word of their one label; the word of a family without labels is not shown.
pub type Labelled = Vec<(&'static str, u64)>;

/// A value with its labels, each a name and a word.
pub type Row<N = u64> = (Vec<(&'static str, &'static str)>, N);

static SECONDS: Unit = Unit::Seconds;
static BYTES: Unit = Unit::Bytes;

/// Writes name, HELP, TYPE and UNIT of a family. The unit is the end of the name: `_seconds` or `_bytes`.
///
/// # Errors
/// The text cannot be written.
pub fn describe<'s>(
    encoder: &'s mut DescriptorEncoder<'_>,
    name: &'s str,
    help: &str,
    kind: MetricType,
) -> Result<MetricEncoder<'s>, fmt::Error> {
    let units = [("_seconds", &SECONDS), ("_bytes", &BYTES)];
    let mut known = units.into_iter().filter_map(|(end, unit)| Some((name.strip_suffix(end)?, Some(unit))));
    let (name, unit) = known.next().unwrap_or((name, None));
    encoder.encode_descriptor(name, help, unit, kind)
}

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
    let mut family = describe(encoder, name, help, MetricType::Counter)?;
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
    let mut family = describe(encoder, name, help, MetricType::Counter)?;
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
    let mut family = describe(encoder, name, help, MetricType::Gauge)?;
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

#[cfg(test)]
#[allow(dead_code, reason = "only programs have a section of the page")]
#[path = "../tests/metrics_page/mod.rs"]
mod metrics_page;

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::registry::Registry;

    use super::metrics_page::section;
    use super::*;

    /// Families with this HELP text and this stage.
    #[derive(Debug)]
    struct Families(&'static str, &'static str);

    impl Collector for Families {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let encoder = &mut encoder;
            count(encoder, "bedplate_test_sent_bytes", self.0, "", vec![("", 7)])?;
            let took = [(vec![("step", "one"), ("result", "done")], Duration::from_millis(1500))];
            seconds_rows(encoder, "bedplate_test_step_duration_seconds", "Duration of steps", took)?;
            gauge(encoder, "bedplate_test_boots", "Boots", "stage", vec![(self.1, 1), ("seed", 0)])
        }
    }

    fn registry(help: &'static str) -> Registry {
        registry_with(help, "script")
    }

    fn registry_with(help: &'static str, stage: &'static str) -> Registry {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Families(help, stage)));
        registry
    }

    #[test]
    fn unit_is_the_end_of_the_name() {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry("Bytes sent")).unwrap();
        for line in [
            "# UNIT bedplate_test_sent_bytes bytes",
            "bedplate_test_sent_bytes_total 7",
            "# UNIT bedplate_test_step_duration_seconds seconds",
            "bedplate_test_step_duration_seconds_total{step=\"one\",result=\"done\"} 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("# UNIT").count(), 2, "{text}");
    }

    #[test]
    fn page_lists_type_unit_labels_and_values_of_each_family() {
        let expected = "
| metric | type | unit | labels | meaning |
|---|---|---|---|---|
| `bedplate_test_boots` | gauge | | `stage` | Boots |
| `bedplate_test_sent_bytes_total` | counter | bytes | | Bytes sent |
| `bedplate_test_step_duration_seconds_total` | counter | seconds | `step`, `result` | Duration of steps |

Label values:

- `stage` of `bedplate_test_boots`: `script`, `seed`
- `step` of `bedplate_test_step_duration_seconds_total`: `one`
- `result` of `bedplate_test_step_duration_seconds_total`: `done`
";
        assert_eq!(section("test", &[&registry("Bytes sent")]), expected);
    }

    #[test]
    #[should_panic(expected = "bedplate_test_sent_bytes: HELP ends with a period")]
    fn page_requires_help_without_a_period() {
        section("test", &[&registry("Bytes sent.")]);
    }

    /// Histogram whose last bucket has this upper bound.
    #[derive(Debug)]
    struct Last(f64);

    impl Collector for Last {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let name = "bedplate_test_call_duration_seconds";
            let mut family = describe(&mut encoder, name, "Duration of calls", MetricType::Histogram)?;
            family.encode_histogram::<[(&str, &str); 0]>(0.0, 0, &[(1.0, 0), (self.0, 0)], None)
        }
    }

    #[test]
    fn page_requires_a_histogram_to_end_with_infinity() {
        for (last, is_accepted) in [(f64::INFINITY, true), (f64::MAX, false)] {
            let shown = std::panic::catch_unwind(|| {
                let mut registry = Registry::default();
                registry.register_collector(Box::new(Last(last)));
                section("test", &[&registry])
            });
            assert_eq!(shown.is_ok(), is_accepted, "{last}");
        }
    }

    #[test]
    fn page_requires_label_values_in_snake_case() {
        for (stage, is_accepted) in
            [("root_fs", true), ("2xx", true), ("root-fs", false), ("RootFS", false), ("root fs", false)]
        {
            let shown = std::panic::catch_unwind(|| section("test", &[&registry_with("Bytes sent", stage)]));
            assert_eq!(shown.is_ok(), is_accepted, "{stage}");
        }
    }
}
