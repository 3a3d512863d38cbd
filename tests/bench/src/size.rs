//! Size of the three static release binaries, as they are installed.

use anyhow::{Context as _, Result};

use crate::measurement::{Better, Context, OURS, Row, rows};
use bedplate_tests::pxed;

const PROGRAMS: [&str; 3] = ["pxed", "bedplate-agent", "bedplate"];

/// Looks at each.
///
/// # Errors
/// None of its own; what is missing is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    for program in PROGRAMS {
        let title = format!("Size of {program}, static");
        if let Some(size) = context.noted(&title, OURS, size(program)) {
            // One look is enough: every round would say the same.
            all.extend(rows(
                context,
                &title,
                "MiB",
                Better::Less,
                [(OURS.to_owned(), vec![size; context.rounds], String::new())],
            ));
        }
    }
    Ok(all)
}

fn size(program: &str) -> Result<f64> {
    let path = pxed::binary(program)?;
    let data = std::fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(data.len() as f64 / f64::from(1 << 20))
}
