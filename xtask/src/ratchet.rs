//! The ratchet: files that are longer than they should be, each with the length it has. It only turns one way.
//!
//! `xtask/ratchet.txt` holds `path lines` per row. A file may not grow beyond its row, and a row must come down with its file.

use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Reads the rows.
///
/// # Errors
/// When a row is not `path lines`.
pub fn parse(text: &str) -> Result<BTreeMap<String, usize>> {
    let rows = text.lines().map(str::trim).filter(|row| !row.is_empty() && !row.starts_with('#'));
    rows.map(|row| {
        let (path, lines) = row.split_once(' ').with_context(|| format!("ratchet row {row:?} is not `path lines`"))?;
        let lines = lines.trim().parse().with_context(|| format!("ratchet row {row:?} has no number of lines"))?;
        Ok((path.to_owned(), lines))
    })
    .collect()
}
