//! HTTP throughput of pxed's image route against nginx.

use anyhow::Result;

use crate::bench::{Context, Row};

/// Measures.
///
/// # Errors
/// None yet.
pub fn run(_: &Context) -> Result<Vec<Row>> {
    Ok(Vec::new())
}
