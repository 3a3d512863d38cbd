//! Measurements of pxed against its peers: what a measurement is, how it is printed and stored.
//!
//! Bedplate's subject is the static release binary, as a process. Each module measures one protocol, subjects in turn within each
//! round (a busy minute of the machine hits all of them), and returns rows; `bedplate-bench` prints them. Median of the rounds; a ratio is
//! ours over the best peer's. A subject that fails is noted and skipped; the others continue. Nothing here asserts a speed.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use serde::Serialize;

use bedplate_tests::guard::Directory;

/// The subject that is ours, in every table.
pub(crate) const OURS: &str = "bedplate";

/// Options and results of a run.
#[derive(Debug)]
pub(crate) struct Context {
    /// Rounds; the median counts. At least 1.
    pub(crate) rounds: usize,
    /// Short loads, for a trial: do not use the numbers as results.
    pub(crate) quick: bool,
    /// Seconds for which the agent rests while it is measured; none: ten minutes, or one for a trial.
    pub(crate) idle: Option<u32>,
    /// Directory of files and logs; removed at the end.
    pub(crate) directory: Directory,
    failures: Mutex<Vec<Failure>>,
}

/// A measurement that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    /// Title of the measurement.
    pub(crate) title: String,
    /// Subject of the measurement.
    pub(crate) subject: String,
    /// Cause of the failure, with its own causes.
    pub(crate) reason: String,
}

impl Context {
    /// A context with a directory of its own.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(crate) fn new(rounds: usize, quick: bool) -> Result<Self> {
        Ok(Self {
            rounds,
            quick,
            idle: None,
            directory: Directory::new("bench")?,
            failures: Mutex::default(),
        })
    }

    /// Seconds of one load.
    pub(crate) const fn seconds(&self) -> u32 {
        if self.quick { 1 } else { 3 }
    }

    /// Seconds of the agent's rest.
    pub(crate) fn idle_seconds(&self) -> u32 {
        self.idle.unwrap_or(if self.quick { 60 } else { 600 })
    }

    /// The value, or nothing and a note of the failure, which is printed immediately.
    pub(crate) fn noted<T>(&self, title: &str, subject: &str, result: Result<T>) -> Option<T> {
        result.inspect_err(|error| self.fail(title, subject, error)).ok()
    }

    /// Notes a failure.
    pub(crate) fn fail(&self, title: &str, subject: &str, error: &anyhow::Error) {
        let reason = format!("{error:#}");
        bedplate_tests::timeline::say(&format!("FAILED {title}: {subject}: {reason}"));
        let failure = Failure { title: title.to_owned(), subject: subject.to_owned(), reason };
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
    }

    /// Failures so far.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The configuration of a pxed whose files are in `place`, with one image of small stand-in files; `more` is appended.
///
/// # Errors
/// The files cannot be written.
pub(crate) fn configuration(place: &Path, more: &str) -> Result<String> {
    std::fs::create_dir_all(place.join("machines.d"))?;
    let at = |name: &str| place.join(name).display().to_string();
    Ok(format!(
        "state-directory = {:?}\nsocket = {:?}\ndefault-image = \"host\"\ndiscovery-image = \"host\"\n\n\
         [source]\ndirectory = {:?}\n\n{more}\n[images.host]\n{}",
        at("state"),
        at("pxed.sock"),
        at("machines.d"),
        bedplate_tests::pxed::stub_image(place)?
    ))
}

/// Which of two numbers is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Better {
    /// Throughput.
    More,
    /// Memory, size, time.
    Less,
}

/// One subject under one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// Title with the load: rows of one title are compared.
    pub(crate) title: String,
    /// [`OURS`] or a peer, with its version if it reports one.
    pub(crate) subject: String,
    /// Unit of the numbers.
    pub(crate) unit: &'static str,
    /// Which number is the better one.
    pub(crate) better: Better,
    /// Each round's number.
    pub(crate) rounds: Vec<f64>,
    /// Note for the reader; otherwise empty.
    pub(crate) note: String,
}

impl Row {
    /// The middle of the rounds; of an even number, the mean of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match (
            sorted.len() % 2,
            sorted.get(middle),
            middle.checked_sub(1).and_then(|before| sorted.get(before)),
        ) {
            (1, Some(value), _) => *value,
            (0, Some(above), Some(below)) => f64::midpoint(*above, *below),
            _ => f64::NAN,
        }
    }
}

/// Ours over the best peer's, so that more than 1 is better, whatever the unit. `None` without ours or without a peer.
pub(crate) fn ratio(rows: &[Row], title: &str) -> Option<f64> {
    let of_title = || rows.iter().filter(|row| row.title == title && row.median().is_finite());
    let ours = of_title().find(|row| row.subject == OURS)?;
    let peers = of_title().filter(|row| row.subject != OURS).map(Row::median);
    let ratio = match ours.better {
        Better::More => peers.max_by(f64::total_cmp).map(|best| ours.median() / best),
        Better::Less => peers.min_by(f64::total_cmp).map(|best| best / ours.median()),
    };
    // A count of 0 has no ratio.
    ratio.filter(|ratio| ratio.is_finite())
}

/// The rows as a table, a title after the other, with the ratio at the end of ours.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut titles: Vec<&str> = Vec::new();
    for row in rows {
        if !titles.contains(&row.title.as_str()) {
            titles.push(&row.title);
        }
    }
    for title in titles {
        let _ = writeln!(text, "{title}");
        for row in rows.iter().filter(|row| row.title == title) {
            let (least, most) =
                row.rounds.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), round| {
                    (least.min(*round), most.max(*round))
                });
            let _ = write!(
                text,
                "  {:<24} {:>10.1} {:<8} ({least:.1} to {most:.1})",
                row.subject,
                row.median(),
                row.unit
            );
            let ratio = (row.subject == OURS).then(|| ratio(rows, title)).flatten();
            if let Some(ratio) = ratio {
                let _ = write!(text, "  {ratio:.2} x the best peer");
            }
            let _ = writeln!(text, "{}{}", if row.note.is_empty() { "" } else { "  " }, row.note);
        }
    }
    text
}

/// The rows as JSON, with their medians and ratios, what failed, and under `about` what a reader must know to compare.
///
/// # Errors
/// A number is not finite in a way JSON cannot hold.
pub(crate) fn json(about: &serde_json::Value, rows: &[Row], failures: &[Failure]) -> Result<String> {
    let of_row = |row: &Row| -> Result<serde_json::Value> {
        let mut value = serde_json::to_value(row)?;
        value["median"] = row.median().into();
        if row.subject == OURS {
            value["ratioToBestPeer"] = ratio(rows, &row.title).into();
        }
        Ok(value)
    };
    let rows = rows.iter().map(of_row).collect::<Result<Vec<_>>>()?;
    let all = serde_json::json!({ "about": about, "rows": rows, "failures": failures });
    Ok(serde_json::to_string_pretty(&all)?)
}

/// Rows of one title from what each subject's rounds gave: a subject without a number has no row, one that lacks rounds says so.
pub(crate) fn rows(
    context: &Context,
    title: &str,
    unit: &'static str,
    better: Better,
    subjects: impl IntoIterator<Item = (String, Vec<f64>, String)>,
) -> Vec<Row> {
    let measured = subjects.into_iter().filter(|(_, rounds, _)| !rounds.is_empty());
    let row = |(subject, rounds, mut note): (String, Vec<f64>, String)| {
        if rounds.len() < context.rounds {
            let _ = write!(note, "{}{} rounds only", if note.is_empty() { "" } else { "; " }, rounds.len());
        }
        Row { title: title.to_owned(), subject, unit, better, rounds, note }
    };
    measured.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: &str, better: Better, rounds: &[f64]) -> Row {
        let (title, unit) = ("one client".to_owned(), "MiB/s");
        Row { title, subject: subject.to_owned(), unit, better, rounds: rounds.to_vec(), note: String::new() }
    }

    #[test]
    fn median_is_the_middle() {
        assert_eq!(row("a", Better::More, &[9.0, 1.0, 3.0]).median(), 3.0);
        assert_eq!(row("a", Better::More, &[1.0, 2.0, 4.0, 9.0]).median(), 3.0);
        assert!(row("a", Better::More, &[]).median().is_nan());
    }

    #[test]
    fn ratio_is_to_the_best_peer_and_above_1_is_better() {
        let rows = [
            row(OURS, Better::More, &[30.0]),
            row("slow", Better::More, &[5.0]),
            row("fast", Better::More, &[10.0]),
        ];
        assert_eq!(ratio(&rows, "one client"), Some(3.0));
        let rows = [
            row(OURS, Better::Less, &[10.0]),
            row("small", Better::Less, &[20.0]),
            row("big", Better::Less, &[90.0]),
        ];
        assert_eq!(ratio(&rows, "one client"), Some(2.0));
        assert_eq!(ratio(&rows[..1], "one client"), None);
        let rows = [row(OURS, Better::Less, &[0.0]), row("none either", Better::Less, &[0.0])];
        assert_eq!(ratio(&rows, "one client"), None);
        assert!(!table(&rows).contains("the best peer"));
    }

    #[test]
    fn a_failed_subject_is_kept_with_its_reason_and_has_no_row() {
        let context = Context::new(2, true).expect("a directory");
        let refused = context.noted("one client", "slow", Err::<f64, _>(anyhow::anyhow!("no answer")));
        assert_eq!(refused, None);
        let subjects =
            [("slow".to_owned(), Vec::new(), String::new()), (OURS.to_owned(), vec![4.0], String::new())];
        let rows = rows(&context, "one client", "MiB/s", Better::More, subjects);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].note, "1 rounds only");
        let kept = json(&serde_json::json!({}), &rows, &context.failures()).expect("JSON");
        assert!(kept.contains("no answer") && kept.contains("\"ratioToBestPeer\": null"), "{kept}");
    }
}
