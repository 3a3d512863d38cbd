//! Pure: difference of two texts by lines (Myers, "An O(ND) Difference Algorithm", 1986), and its unified form.

use std::fmt::Write as _;

/// Number of unchanged lines around a difference.
const CONTEXT_LINES: usize = 3;

/// Maximum number of differing lines that are compared. A larger difference is shown as one removal and one
/// addition, because the cost grows quadratically.
const MAX_CHANGED_LINES: usize = 2000;

/// Line of one text or of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// Line of both texts.
    Same(&'a str),
    /// Line of only the first text.
    Removed(&'a str),
    /// Line of only the second text.
    Added(&'a str),
}

/// Returns the edits from the first text to the second.
pub(crate) fn lines<'a>(from: &'a str, to: &'a str) -> Vec<Line<'a>> {
    let (from, to): (Vec<&str>, Vec<&str>) = (from.lines().collect(), to.lines().collect());
    let head = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let rest = from.len().min(to.len()) - head;
    let tail = from.iter().rev().zip(to.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let (one, other) = (&from[head..from.len() - tail], &to[head..to.len() - tail]);
    let mut found: Vec<Line<'a>> = from[..head].iter().copied().map(Line::Same).collect();
    found.extend(shortest(one, other).unwrap_or_else(|| {
        one.iter().copied().map(Line::Removed).chain(other.iter().copied().map(Line::Added)).collect()
    }));
    found.extend(from[from.len() - tail..].iter().copied().map(Line::Same));
    found
}

/// Returns the shortest edit. None: it has too many lines.
fn shortest<'a>(from: &[&'a str], to: &[&'a str]) -> Option<Vec<Line<'a>>> {
    // `reach[k]`: furthest line of `from` on diagonal `k` (line in `from` minus line in `to`, plus the middle).
    let middle = from.len() + to.len() + 1;
    let mut reach = vec![0_usize; 2 * middle + 1];
    let mut trace: Vec<Vec<usize>> = Vec::new();
    for depth in 0..=(from.len() + to.len()).min(MAX_CHANGED_LINES) {
        trace.push(reach[middle - depth - 1..=middle + depth + 1].to_vec());
        for k in (middle - depth..=middle + depth).step_by(2) {
            let down = k == middle - depth || (k != middle + depth && reach[k - 1] < reach[k + 1]);
            let mut x = if down { reach[k + 1] } else { reach[k - 1] + 1 };
            let mut y = (x + middle) - k;
            while x < from.len() && y < to.len() && from[x] == to[y] {
                (x, y) = (x + 1, y + 1);
            }
            reach[k] = x;
            if x >= from.len() && y >= to.len() {
                return Some(back(from, to, &trace, middle));
            }
        }
    }
    None
}

/// Returns the edits from the end to the start, by the furthest lines of each depth.
fn back<'a>(from: &[&'a str], to: &[&'a str], trace: &[Vec<usize>], middle: usize) -> Vec<Line<'a>> {
    let (mut x, mut y) = (from.len(), to.len());
    let mut found = Vec::new();
    for (depth, reach) in trace.iter().enumerate().rev() {
        let at = |k: usize| reach[k + depth + 1 - middle];
        let k = x + middle - y;
        let down = k == middle - depth || (k != middle + depth && at(k - 1) < at(k + 1));
        let before = if down { k + 1 } else { k - 1 };
        // At depth 0 all lines are the same.
        let (start_x, start_y) = if depth == 0 { (0, 0) } else { (at(before), at(before) + middle - before) };
        while x > start_x && y > start_y {
            (x, y) = (x - 1, y - 1);
            found.push(Line::Same(from[x]));
        }
        if depth > 0 && down {
            y -= 1;
            found.push(Line::Added(to[y]));
        } else if depth > 0 {
            x -= 1;
            found.push(Line::Removed(from[x]));
        }
    }
    found.reverse();
    found
}

/// Returns a difference in the format of `diff -u`, each line painted for display. Empty if nothing differs.
pub(crate) fn unified(from: (&str, &str), to: (&str, &str), paint: &dyn Fn(char, &str) -> String) -> String {
    let all = lines(from.1, to.1);
    let changed: Vec<usize> = (0..all.len()).filter(|index| !matches!(all[*index], Line::Same(_))).collect();
    let Some(first) = changed.first() else { return String::new() };
    let mut hunks = vec![(*first, *first)];
    for index in &changed[1..] {
        match hunks.last_mut() {
            Some(last) if index - last.1 <= 2 * CONTEXT_LINES => last.1 = *index,
            _ => hunks.push((*index, *index)),
        }
    }
    let mut text =
        format!("{}\n{}\n", paint('-', &format!("--- {}", from.0)), paint('+', &format!("+++ {}", to.0)));
    for (first, last) in hunks {
        let (first, end) = (first.saturating_sub(CONTEXT_LINES), (last + CONTEXT_LINES + 1).min(all.len()));
        let count = |lines: &[Line<'_>], without: fn(&Line<'_>) -> bool| {
            lines.iter().filter(|line| !without(line)).count()
        };
        let (added, removed) = (
            |line: &Line<'_>| matches!(line, Line::Added(_)),
            |line: &Line<'_>| matches!(line, Line::Removed(_)),
        );
        let place = |without: fn(&Line<'_>) -> bool| {
            let count_in = count(&all[first..end], without);
            format!("{},{count_in}", count(&all[..first], without) + usize::from(count_in > 0))
        };
        let _ = writeln!(text, "{}", paint('@', &format!("@@ -{} +{} @@", place(added), place(removed))));
        for line in &all[first..end] {
            let (sign, line) = match line {
                Line::Same(line) => (' ', line),
                Line::Removed(line) => ('-', line),
                Line::Added(line) => ('+', line),
            };
            let _ = writeln!(text, "{}", paint(sign, &format!("{sign}{line}")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(from: &str, to: &str) -> String {
        unified(("a", from), ("b", to), &|_, line| line.to_owned())
    }

    #[test]
    fn differences_are_shown_with_three_context_lines() {
        let from = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n";
        let to = from.replace("5\n6\n", "five\n6\n").replace("16\n", "16\n17\n");
        let expected = "--- a\n+++ b\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n\
                        @@ -14,3 +14,4 @@\n 14\n 15\n 16\n+17\n";
        assert_eq!(plain(from, &to), expected);
        assert_eq!(plain(from, from), "");
        assert_eq!(plain("", "x\n"), "--- a\n+++ b\n@@ -0,0 +1,1 @@\n+x\n");
    }

    #[test]
    fn both_texts_are_in_the_difference_and_nothing_else() {
        // A linear congruential generator (Knuth): texts of few different lines, so that they have much in common.
        let mut state = 1_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let mut text = || (0..draw(12)).map(|_| format!("{}\n", draw(4))).collect::<String>();
            let (from, to) = (text(), text());
            let (mut one, mut other) = (String::new(), String::new());
            for line in lines(&from, &to) {
                let (Line::Same(text) | Line::Removed(text) | Line::Added(text)) = line;
                if !matches!(line, Line::Added(_)) {
                    one.push_str(&format!("{text}\n"));
                }
                if !matches!(line, Line::Removed(_)) {
                    other.push_str(&format!("{text}\n"));
                }
            }
            assert_eq!((one, other), (from, to));
        }
    }

    #[test]
    fn texts_without_anything_in_common_end_too() {
        let text = |from: u32| (from..from + 1500).map(|line| format!("{line}\n")).collect::<String>();
        assert_eq!(lines(&text(0), &text(1500)).len(), 3000);
    }
}
