//! Tables for people: a head and rows, aligned, without lines, as wide as the terminal where there is one.
//!
//! What must stay true: only the columns that a table names are cut, and what was cut ends in `…`; without a width nothing is.

use super::neutral::{neutral, on_one_line};
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};

/// Between two columns.
const GAP: usize = 2;

/// A part of what people read.
#[derive(Debug)]
pub enum Block {
    /// Columns with a head.
    Columns(Columns),
    /// Lines as they are.
    Text(String),
}

impl Block {
    /// As text; ends without a newline.
    #[must_use]
    pub fn render(&self, colour: bool, width: Option<usize>) -> String {
        match self {
            Block::Columns(columns) => columns.render(colour, width),
            Block::Text(text) => neutral(text),
        }
    }
}

/// A table: a head and rows, aligned, without lines.
#[derive(Debug, Default)]
pub struct Columns {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    right: Vec<&'static str>,
    cut: Vec<(&'static str, usize)>,
}

impl Columns {
    /// With these heads.
    #[must_use]
    pub fn new(head: &[&'static str]) -> Self {
        Columns { head: head.to_vec(), ..Columns::default() }
    }

    /// Aligns these columns to the right: numbers.
    #[must_use]
    pub fn right(mut self, heads: &[&'static str]) -> Self {
        self.right = heads.to_vec();
        self
    }

    /// Where the terminal is narrower than the table, cuts these columns one after the other, each to that width at least. A column may
    /// be there again with a smaller one.
    #[must_use]
    pub fn cut(mut self, columns: &[(&'static str, usize)]) -> Self {
        self.cut = columns.to_vec();
        self
    }

    /// Adds a row; one cell for each head.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.head.len(), "a cell for each head");
        // Whatever is in it, a row is a line.
        self.rows.push(cells.iter().map(|cell| on_one_line(cell)).collect());
    }

    /// As a block.
    #[must_use]
    pub fn block(self) -> Block {
        Block::Columns(self)
    }

    /// How wide each column may be in `width` columns of a terminal.
    fn widths(&self, width: usize) -> Vec<usize> {
        let of = |index: usize| {
            let cells = self.rows.iter().map(|row| row[index].chars().count());
            cells.chain([self.head[index].len()]).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.head.len()).map(of).collect();
        for (head, least) in &self.cut {
            let all = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
            let Some(index) = self.head.iter().position(|other| other == head) else { continue };
            let least = (*least).max(head.len()).min(widths[index]);
            widths[index] = widths[index].saturating_sub(all.saturating_sub(width)).max(least);
        }
        widths
    }

    fn render(&self, colour: bool, width: Option<usize>) -> String {
        let widths = width.map(|width| self.widths(width));
        let cell = |index: usize, text: &str| match &widths {
            Some(widths) => fitted(text, widths[index]),
            None => text.to_owned(),
        };
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(self.head.iter().map(|head| Cell::new(head).add_attribute(Attribute::Bold)));
        for row in &self.rows {
            table.add_row(row.iter().enumerate().map(|(index, text)| match colour_of(text) {
                Some(colour) => Cell::new(text).fg(colour),
                None => Cell::new(cell(index, text)),
            }));
        }
        for (index, head) in self.head.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, GAP as u16));
                if self.right.contains(head) {
                    column.set_cell_alignment(comfy_table::CellAlignment::Right);
                }
            }
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
    }
}

/// The text in `width` columns: of a path its end, of anything else its beginning.
fn fitted(text: &str, width: usize) -> String {
    let (count, kept) = (text.chars().count(), width.saturating_sub(1));
    if count <= width {
        return text.to_owned();
    }
    let is_path = text.contains('/') && !text.contains(char::is_whitespace);
    if is_path {
        std::iter::once('…').chain(text.chars().skip(count - kept)).collect()
    } else {
        text.chars().take(kept).chain(['…']).collect()
    }
}

/// States have colours; everything else has none.
fn colour_of(text: &str) -> Option<Color> {
    match text {
        "running" | "completed" | "ready" | "leader" => Some(Color::Green),
        "pending" | "starting" | "completing" | "silent" | "drained" | "draining" => Some(Color::Yellow),
        "failed" | "timeout" | "down" => Some(Color::Red),
        "cancelled" => Some(Color::DarkGrey),
        _ => None,
    }
}
