//! Text of an installation: one line for each object.
//!
//! Pure: the look is an argument.

use super::table::Table;
use super::{Look, Paint};
use crate::changes;
use crate::step::{Action, Step};

/// Returns a line for each object, and the number of objects per kind of change.
pub(crate) fn steps(steps: &[Step], dry_run: bool, look: Look) -> String {
    let mut table = Table::indented(0);
    for step in steps {
        let (word, paint) = match step.action {
            Action::Create => ("create", Paint::Good),
            Action::Change => ("change", Paint::Waiting),
            Action::Unchanged => ("unchanged", Paint::Faint),
            Action::Conflict => ("conflict", Paint::Bad),
        };
        table.row(vec![
            (word.to_owned(), Some(paint)),
            (step.object(), None),
            (changes::line(&step.changes), None),
        ]);
    }
    let count = |action: Action| steps.iter().filter(|step| step.action == action).count();
    let mut sum = format!(
        "{} to create, {} to change, {} unchanged",
        count(Action::Create),
        count(Action::Change),
        count(Action::Unchanged)
    );
    if count(Action::Conflict) > 0 {
        sum.push_str(&format!(", {} in conflict", count(Action::Conflict)));
    }
    if dry_run {
        sum.push_str("; nothing was changed (--dry-run)");
    }
    format!("{}{sum}\n", table.print(look))
}
