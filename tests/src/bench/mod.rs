//! Measurements of pxed's engines against their peers: what a measurement is, how it is printed and kept.
//!
//! Each module measures one protocol, subjects in turn within each round (a busy minute of the machine hits all of them), and gives rows;
//! `bedplate-bench` prints them. Median of the rounds; a ratio is ours over the best peer's.

pub mod dhcp;
pub mod http;
pub mod load;
pub mod tftp;

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use crate::guard::Directory;

/// The subject that is ours, in every table.
pub const OURS: &str = "bedplate";

/// What a bench is run with.
#[derive(Debug)]
pub struct Context {
    /// Rounds; the median counts. At least 1.
    pub rounds: usize,
    /// Where files and logs go; removed at the end.
    pub directory: Directory,
}

/// Which of two numbers is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Throughput.
    More,
    /// Memory, size, time.
    Less,
}

/// One subject under one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// What is measured, with the load: rows of one title are compared.
    pub title: String,
    /// Who: [`OURS`] or a peer, with its version where it says one.
    pub subject: String,
    /// Unit of the numbers.
    pub unit: &'static str,
    /// Which number is the better one.
    pub better: Better,
    /// Each round's number.
    pub rounds: Vec<f64>,
    /// What a reader must know, else empty.
    pub note: String,
}

impl Row {
    /// The middle of the rounds; of an even number, the mean of the two in the middle.
    pub fn median(&self) -> f64 {
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
pub fn ratio(rows: &[Row], title: &str) -> Option<f64> {
    let of_title = || rows.iter().filter(|row| row.title == title && row.median().is_finite());
    let ours = of_title().find(|row| row.subject == OURS)?;
    let peers = of_title().filter(|row| row.subject != OURS).map(Row::median);
    match ours.better {
        Better::More => peers.max_by(f64::total_cmp).map(|best| ours.median() / best),
        Better::Less => peers.min_by(f64::total_cmp).map(|best| best / ours.median()),
    }
}

/// The rows as a table, a title after the other, with the ratio at the end of ours.
pub fn table(rows: &[Row]) -> String {
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

/// The rows as JSON, with their medians and ratios.
///
/// # Errors
/// A number is not finite in a way JSON cannot hold.
pub fn json(rows: &[Row]) -> Result<String> {
    let of_row = |row: &Row| -> Result<serde_json::Value> {
        let mut value = serde_json::to_value(row)?;
        value["median"] = row.median().into();
        if row.subject == OURS {
            value["ratioToBestPeer"] = ratio(rows, &row.title).into();
        }
        Ok(value)
    };
    let rows = rows.iter().map(of_row).collect::<Result<Vec<_>>>()?;
    Ok(serde_json::to_string_pretty(&serde_json::json!({ "rows": rows }))?)
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
        assert!(table(&rows).contains("2.00 x the best peer"));
    }
}
