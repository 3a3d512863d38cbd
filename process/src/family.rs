//! Metric families of a scrape.
//!
//! `register`, `register_family` and `register_gauges` add a metric to a registry, with its name and its help. A program counts in a
//! [`Family`] of label types. The other functions write a family from plain numbers: pxed counts in atomics, without a lock for a packet.

use std::fmt;
use std::hash::Hash;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
pub use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::counter::Label;

/// Values by the word of their one label; the word of a family without labels is not shown.
pub type Labeled = Vec<(&'static str, u64)>;

/// A value with its labels, each a name and a word.
pub type Row = (Vec<(&'static str, &'static str)>, u64);

static SECONDS: Unit = Unit::Seconds;
static BYTES: Unit = Unit::Bytes;

/// Labels of the rows of a family. There is a closed set of rows.
pub trait LabelSet: EncodeLabelSet + Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static {
    /// Returns the labels of every row, in the order of a scrape.
    fn all() -> impl Iterator<Item = Self>;
}

impl<L: Label + EncodeLabelSet + Eq + Hash + fmt::Debug + Send + Sync> LabelSet for L {
    fn all() -> impl Iterator<Item = Self> {
        (0..L::VALUE_COUNT).filter_map(L::at)
    }
}

impl<A: LabelSet, B: LabelSet> LabelSet for (A, B) {
    fn all() -> impl Iterator<Item = Self> {
        A::all().flat_map(|one| B::all().map(move |other| (one.clone(), other)))
    }
}

/// Adds a metric to a registry. [`Registry::register`] would end the help with a period, and omit a family without rows.
pub fn register(registry: &mut Registry, name: &'static str, help: &'static str, metric: impl Metric) {
    let kind = metric.metric_type();
    let encode = move |encoder: MetricEncoder<'_>| metric.encode(encoder);
    registry.register_collector(Box::new(Registered { name, help, kind, encode }));
}

/// Adds a family to a registry, with every row from the start. A [`Family`] alone has a row after its first use, in any order.
pub fn register_family<L: LabelSet, M: EncodeMetric + TypedMetric + Send + Sync + 'static>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    family: &Family<L, M>,
) {
    let (kind, family) = (M::TYPE, family.clone());
    let encode = move |mut encoder: MetricEncoder<'_>| {
        L::all().try_for_each(|row| family.get_or_create(&row).encode(encoder.encode_family(&row)?))
    };
    registry.register_collector(Box::new(Registered { name, help, kind, encode }));
}

/// Adds a family of gauges to a registry. They are read at each scrape.
pub fn register_gauges<R: IntoIterator<Item = Row>>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    read: impl Fn() -> R + Send + Sync + 'static,
) {
    let encode = move |encoder: MetricEncoder<'_>| encode_gauges(encoder, read());
    registry.register_collector(Box::new(Registered { name, help, kind: MetricType::Gauge, encode }));
}

/// Metric of a registry, with the function that writes its samples.
struct Registered<E> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    encode: E,
}

impl<E> fmt::Debug for Registered<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<E: Fn(MetricEncoder<'_>) -> fmt::Result + Send + Sync + 'static> Collector for Registered<E> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.encode)(describe(&mut encoder, self.name, self.help, self.kind)?)
    }
}

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
    values: Labeled,
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
    values: Labeled,
) -> fmt::Result {
    gauge_rows(encoder, name, help, rows(label, values))
}

fn rows(label: &'static str, values: Labeled) -> impl Iterator<Item = Row> {
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
    encode_gauges(describe(encoder, name, help, MetricType::Gauge)?, rows)
}

fn encode_gauges(mut family: MetricEncoder<'_>, rows: impl IntoIterator<Item = Row>) -> fmt::Result {
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
    use prometheus_client::metrics::counter::Counter;

    use super::metrics_page::section;
    use super::*;
    use crate::counter::labels;

    labels! {
        /// A step.
        enum Step in "step" {
            /// The first.
            One => "one",
            /// The second.
            Two => "two",
        }
    }

    labels! {
        /// Result of a step.
        enum Ended in "result" {
            /// Finished.
            Done => "done",
            /// Failed.
            Failed => "failed",
        }
    }

    /// Families with this HELP text and this stage.
    #[derive(Debug)]
    struct Families(&'static str, &'static str);

    impl Collector for Families {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let encoder = &mut encoder;
            count(encoder, "bedplate_test_sent_bytes", self.0, "", vec![("", 7)])?;
            gauge(encoder, "bedplate_test_boots", "Boots", "stage", vec![(self.1, 1), ("seed", 0)])
        }
    }

    fn registry(help: &'static str) -> Registry {
        registry_with(help, "script")
    }

    fn registry_with(help: &'static str, stage: &'static str) -> Registry {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Families(help, stage)));
        let steps = Family::<(Step, Ended), Counter<f64>>::default();
        steps.get_or_create(&(Step::Two, Ended::Done)).inc_by(1.5);
        let help = "Duration of steps";
        register_family(&mut registry, "bedplate_test_step_duration_seconds", help, &steps);
        register_gauges(&mut registry, "bedplate_test_live", "1 if it is live", || [(Vec::new(), 1)]);
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
            "bedplate_test_step_duration_seconds_total{step=\"two\",result=\"done\"} 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("# UNIT").count(), 2, "{text}");
    }

    #[test]
    fn family_shows_every_row_in_order_from_the_start() {
        let (mut registry, mut text) = (Registry::default(), String::new());
        let steps = Family::<(Step, Ended), Counter>::default();
        register_family(&mut registry, "bedplate_test_steps", "Steps", &steps);
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let expected = "# HELP bedplate_test_steps Steps
# TYPE bedplate_test_steps counter
bedplate_test_steps_total{step=\"one\",result=\"done\"} 0
bedplate_test_steps_total{step=\"one\",result=\"failed\"} 0
bedplate_test_steps_total{step=\"two\",result=\"done\"} 0
bedplate_test_steps_total{step=\"two\",result=\"failed\"} 0
# EOF
";
        assert_eq!(text, expected);
    }

    #[test]
    fn page_lists_type_unit_labels_and_values_of_each_family() {
        let expected = "
| metric | type | unit | labels | meaning |
|---|---|---|---|---|
| `bedplate_test_boots` | gauge | | `stage` | Boots |
| `bedplate_test_live` | gauge | | | 1 if it is live |
| `bedplate_test_sent_bytes_total` | counter | bytes | | Bytes sent |
| `bedplate_test_step_duration_seconds_total` | counter | seconds | `step`, `result` | Duration of steps |

Label values:

- `stage` of `bedplate_test_boots`: `script`, `seed`
- `step` of `bedplate_test_step_duration_seconds_total`: `one`, `two`
- `result` of `bedplate_test_step_duration_seconds_total`: `done`, `failed`
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
