//! Reference page of metrics: checks what the registry of a program shows, and compares it with the section of the program in
//! docs/reference/metrics.md.
//!
//! Included by the unit tests of `process` and of each program. Not part of the libraries.

use std::collections::BTreeSet;

use prometheus_client::registry::Registry;

/// Variable that makes [`compare`] write the section instead of failing.
const RECORD: &str = "BEDPLATE_RECORD_METRICS";
/// Endings of names that a sample gets from the encoding.
const SAMPLE_ENDINGS: [&str; 5] = ["_total", "_bucket", "_sum", "_count", "_created"];
/// Units that the naming of Prometheus replaces by base units.
const OTHER_UNITS: [&str; 10] = [
    "ms",
    "millis",
    "milliseconds",
    "micros",
    "microseconds",
    "nanoseconds",
    "minutes",
    "hours",
    "kib",
    "percent",
];
/// Labels whose values may be words of the API, in its spelling: reasons, kinds and names of operations.
const API_LABELS: [&str; 3] = ["reason", "kind", "operation"];
/// Width of a line of label values.
const LINE_WIDTH: usize = 140;

/// A label with its values in the order of the scrape.
type Label = (String, Vec<String>);

/// A metric family as a scrape shows it.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    unit: String,
    help: String,
    /// Labels in their order.
    labels: Vec<Label>,
    /// Samples without their values.
    samples: Vec<String>,
}

/// Compares the section of a program in the page at `path` with its registry. Each family must have a sample for each value of its labels.
pub(crate) fn compare(path: &str, program: &str, registry: &Registry) {
    compare_all(path, program, &[registry]);
}

/// Compares the section of a program that has a registry for each of its forms. A family has the label values of all of them.
pub(crate) fn compare_all(path: &str, program: &str, registries: &[&Registry]) {
    let section = section(program, registries);
    let page = std::fs::read_to_string(path).expect(path);
    let (before, rest) = page.split_once(&format!("\n## {program}\n")).expect("a heading for the program");
    let (committed, after) = rest.split_at(rest.find("\n## ").unwrap_or(rest.len()));
    if committed == section {
        return;
    }
    if std::env::var_os(RECORD).is_some() {
        let page = format!("{before}\n## {program}\n{section}{after}");
        std::fs::write(path, page).expect("a writable page");
        return;
    }
    let lines = |one: &str, other: &str| -> Vec<String> {
        one.lines().filter(|line| !other.lines().any(|known| known == *line)).map(str::to_owned).collect()
    };
    panic!(
        "docs/reference/metrics.md differs from the metrics of {program}; run the test again with {RECORD}=1\n\
         only in the page: {:#?}\nonly in the program: {:#?}",
        lines(committed, &section),
        lines(&section, committed)
    );
}

/// Returns the section without its heading.
pub(crate) fn section(program: &str, registries: &[&Registry]) -> String {
    let mut families: Vec<Family> = Vec::new();
    let mut wrong: Vec<String> = Vec::new();
    for registry in registries {
        let mut scrape = String::new();
        prometheus_client::encoding::text::encode(&mut scrape, registry).expect("a scrape");
        for family in self::families(&scrape) {
            wrong.extend(complaints(&family));
            match families.iter_mut().find(|known| known.name == family.name) {
                Some(known) => known.merge(family),
                None => families.push(family),
            }
        }
    }
    families.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(wrong.is_empty(), "metrics of {program} against the naming rules:\n{}", wrong.join("\n"));
    let mut text = String::from("\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
    for family in &families {
        let labels: Vec<_> = family.labels.iter().map(|(name, _)| format!("`{name}`")).collect();
        let (name, labels) = (exposed(family), labels.join(", "));
        let row = format!("| `{name}` | {} | {} | {labels} | {} |\n", family.kind, family.unit, family.help);
        text.push_str(&row.replace("|  |", "| |").replace("|  |", "| |"));
    }
    text.push_str("\nLabel values:\n\n");
    for line in values(&families) {
        wrap(&line, &mut text);
    }
    text
}

/// Name of the samples; of a histogram its common part.
fn exposed(family: &Family) -> String {
    let end = if family.kind == "counter" { "_total" } else { "" };
    format!("{}{end}", family.name)
}

/// One line for each label with the same values.
fn values(families: &[Family]) -> Vec<String> {
    let mut groups: Vec<(&Label, Vec<String>)> = Vec::new();
    for family in families {
        for label in &family.labels {
            let name = format!("`{}`", exposed(family));
            match groups.iter_mut().find(|(known, _)| *known == label) {
                Some((_, names)) => names.push(name),
                None => groups.push((label, vec![name])),
            }
        }
    }
    let marked = |values: &[String]| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>();
    let line = |((label, values), names): &(&Label, Vec<String>)| {
        format!("- `{label}` of {}: {}", names.join(", "), marked(values).join(", "))
    };
    groups.iter().map(line).collect()
}

/// Adds a list item, with a line break where it becomes too wide.
fn wrap(item: &str, text: &mut String) {
    let mut width = 0;
    for word in item.split(' ') {
        if width + word.len() >= LINE_WIDTH {
            text.push_str("\n  ");
            width = 2;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += word.len();
    }
    text.push('\n');
}

/// Parses a scrape.
fn families(scrape: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in scrape.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a text");
            families.push(Family { name: name.to_owned(), help: help.to_owned(), ..Family::default() });
            continue;
        }
        let family = families.last_mut().expect("HELP comes first");
        let described = |rest: &str| {
            let (name, word) = rest.split_once(' ').expect("a name and a word");
            assert_eq!(name, family.name, "{line}");
            word.to_owned()
        };
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family.kind = described(rest);
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            family.unit = described(rest);
        } else {
            family.take(line);
        }
    }
    families
}

impl Family {
    /// Adds the labels of the family in another scrape.
    fn merge(&mut self, other: Self) {
        for (name, values) in other.labels {
            match self.labels.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => {
                    let new: Vec<String> =
                        values.into_iter().filter(|value| !known.contains(value)).collect();
                    known.extend(new);
                }
                None => self.labels.push((name, values)),
            }
        }
    }

    /// Adds a sample.
    fn take(&mut self, line: &str) {
        let (sample, _) = line.rsplit_once(' ').expect("a sample and its value");
        self.samples.push(sample.to_owned());
        let Some((_, rest)) = line.split_once('{') else { return };
        let (labels, _) = rest.rsplit_once('}').expect("an end of the labels");
        for pair in labels.split(',') {
            let (name, value) = pair.split_once('=').expect("a label and its value");
            let value = value.trim_matches('"').to_owned();
            match self.labels.iter_mut().find(|(known, _)| known == name) {
                _ if name == "le" => {}
                Some((_, values)) if values.contains(&value) => {}
                Some((_, values)) => values.push(value),
                None => self.labels.push((name.to_owned(), vec![value])),
            }
        }
    }
}

/// Violations of the naming rules of OpenMetrics and of the project.
fn complaints(family: &Family) -> Vec<String> {
    let (name, help) = (&family.name, &family.help);
    let mut found = Vec::new();
    let mut hold = |holds: bool, rule: &str| {
        if !holds {
            found.push(format!("{name}: {rule}"));
        }
    };
    let is_snake = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    hold(
        name.starts_with("bedplate_") && is_snake(name),
        "not a name of the form bedplate_PROGRAM_NOUN_UNIT",
    );
    hold(!SAMPLE_ENDINGS.iter().any(|end| name.ends_with(end)), "ends like a sample of another type");
    let base = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(&format!("_{unit}")));
    hold(family.unit == base.unwrap_or_default(), "unit differs from the end of the name");
    hold(!name.split('_').any(|word| OTHER_UNITS.contains(&word)), "not in base units");
    hold(!family.samples.is_empty(), "has no sample in this test");
    let is_counter = family.kind == "counter";
    let samples: BTreeSet<_> = family.samples.iter().collect();
    hold(samples.len() == family.samples.len(), "shows a sample twice");
    let name_of = |sample: &str| sample.split('{').next().unwrap_or_default().to_owned();
    let ends = samples.iter().all(|sample| name_of(sample).ends_with("_total") == is_counter);
    hold(ends, "only the samples of counters end in _total");
    let ends = family.samples.iter().any(|sample| sample.contains("le=\"+Inf\""));
    hold(ends == (family.kind == "histogram"), "a histogram ends with the bucket +Inf");
    hold(help.starts_with(|c: char| c.is_ascii_uppercase() || c == '1'), "HELP starts in lower case");
    hold(!help.ends_with('.') && !help.contains(['|', '`', '\\']), "HELP ends with a period or has markup");
    hold(family.labels.iter().all(|(label, _)| is_snake(label)), "has a label that is not in snake case");
    let are_words = |(label, values): &Label| {
        values.iter().all(|value| is_snake(value.trim_start_matches(|c: char| c.is_ascii_digit())))
            || API_LABELS.contains(&label.as_str())
                && values
                    .iter()
                    .all(|value| !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric()))
    };
    let rule = "has a label value that is neither in snake case nor a word of the API";
    hold(family.labels.iter().all(are_words), rule);
    found
}
