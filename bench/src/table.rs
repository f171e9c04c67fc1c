//! What a benchmark found: figures with their anchors, for people and for scripts.

use serde::Serialize;

/// Narrow enough for a terminal and for a page of documentation.
const WIDTH_COLUMNS: u16 = 140;

/// One line: a figure with its anchor.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was measured, with its conditions.
    pub what: String,
    /// The figure, with its unit.
    pub measured: String,
    /// What it is held against, and where that comes from.
    pub anchor: String,
    /// The target.
    pub target: String,
}

impl Row {
    /// A new line.
    pub fn new(
        what: impl Into<String>,
        measured: impl Into<String>,
        anchor: impl Into<String>,
        target: impl Into<String>,
    ) -> Self {
        Row { what: what.into(), measured: measured.into(), anchor: anchor.into(), target: target.into() }
    }
}

/// What one benchmark found.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What was measured, under which conditions.
    pub title: String,
    /// What the four fields of a row are, in their order.
    pub columns: [&'static str; 4],
    /// The figures.
    pub rows: Vec<Row>,
}

impl Table {
    /// A new one.
    pub fn new(title: impl Into<String>, rows: Vec<Row>) -> Self {
        Table { title: title.into(), columns: ["what", "measured", "compared with", "target"], rows }
    }

    /// The same with other columns.
    #[must_use]
    pub fn with_columns(self, columns: [&'static str; 4]) -> Self {
        Table { columns, ..self }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(WIDTH_COLUMNS);
        table.set_header(self.columns);
        for row in &self.rows {
            table.add_row([&row.what, &row.measured, &row.anchor, &row.target]);
        }
        format!("\n{}\n{table}", self.title)
    }
}

/// The value at `share` (0–1) of a sorted list, by the nearest rank; zero for an empty one.
#[must_use]
pub fn percentile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    if sorted.is_empty() {
        return T::default();
    }
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Microseconds as `1.23 ms`, `45 µs` or `6.7 s`.
#[must_use]
pub fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.2} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_take_the_nearest_rank() {
        let check = |sorted: &[u64], share, expected: u64| assert_eq!(percentile(sorted, share), expected);
        check(&[], 0.5, 0);
        check(&[7], 0.99, 7);
        check(&[1, 2, 3, 4], 0.5, 2);
        check(&[1, 2, 3, 4], 0.51, 3);
        check(&[1, 2, 3, 4], 1.0, 4);
    }
}
