//! Columns as wide as their widest cell, the last one ragged.
//!
//! Pure: no clock, no terminal.

use super::{Look, Paint, clean};

/// Table with a heading.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<(String, Option<Paint>)>>,
    indent: usize,
}

impl Table {
    /// Makes a table with these column names.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let heading = columns.iter().map(|name| ((*name).to_owned(), Some(Paint::Faint))).collect();
        Self { rows: vec![heading], indent: 0 }
    }

    /// Makes a table without heading, `indent` columns to the right.
    pub(crate) fn indented(indent: usize) -> Self {
        Self { rows: Vec::new(), indent }
    }

    /// Adds a row; cells come from outside and are cleaned here.
    pub(crate) fn row(&mut self, cells: Vec<(String, Option<Paint>)>) {
        self.rows.push(cells.into_iter().map(|(text, paint)| (clean(&text), paint)).collect());
    }

    /// Returns the whole table, each line with its end.
    pub(crate) fn print(&self, look: Look) -> String {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            for (index, (text, _)) in row.iter().enumerate() {
                let width = text.chars().count();
                match widths.get_mut(index) {
                    Some(widest) => *widest = width.max(*widest),
                    None => widths.push(width),
                }
            }
        }
        let mut printed = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            let mut gap = 0;
            for ((text, paint), width) in row.iter().zip(&widths) {
                line.push_str(&" ".repeat(gap));
                line.push_str(&paint.map_or_else(|| text.clone(), |paint| look.paint(paint, text)));
                gap = width.saturating_sub(text.chars().count()) + 3;
            }
            printed.push_str(line.trim_end());
            printed.push('\n');
        }
        printed
    }
}
