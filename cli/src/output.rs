//! What commands print: tables for people, JSON and YAML for scripts, colour only where a terminal will show it.
//!
//! What must stay true: results go to standard output and everything else to standard error, so that a pipe gets results only.

use crate::failure::Failure;
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};
use std::io::{IsTerminal, Write};

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// The same with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Colour {
    /// What it means for a stream that is a terminal or not.
    #[must_use]
    pub fn decide(self, is_terminal: bool) -> bool {
        match self {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        }
    }
}

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// Format.
    pub format: Format,
    /// Whether standard output takes colour.
    pub colour: bool,
}

impl Out {
    /// For this process's standard output.
    #[must_use]
    pub fn new(format: Format, colour: Colour) -> Self {
        Out { format, colour: colour.decide(std::io::stdout().is_terminal()) }
    }

    /// Prints `value`, or the table for people.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn show<T: Serialize>(&self, value: &T, table: impl FnOnce(bool) -> Vec<Block>) -> Result<(), Failure> {
        match self.format {
            Format::Json => {
                let text = serde_json::to_string_pretty(value).map_err(|error| encode(&error.to_string()))?;
                self.line(&text)
            }
            Format::Yaml => {
                let text = serde_yaml_ng::to_string(value).map_err(|error| encode(&error.to_string()))?;
                self.line(text.trim_end())
            }
            Format::Table | Format::Wide => {
                for block in table(self.format == Format::Wide) {
                    self.line(&block.render(self.colour))?;
                }
                Ok(())
            }
        }
    }

    /// Prints one line, or several.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        self.bytes(format!("{text}\n").as_bytes())
    }

    /// Prints bytes as they are, at once.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| Failure::io("writing output", error))
    }
}

fn encode(why: &str) -> Failure {
    Failure::Server { what: "encoding the result".to_owned(), why: why.to_owned() }
}

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
    pub fn render(&self, colour: bool) -> String {
        match self {
            Block::Columns(columns) => columns.render(colour),
            Block::Text(text) => text.clone(),
        }
    }
}

/// A table: a head and rows, aligned, without lines.
#[derive(Debug, Default)]
pub struct Columns {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    right: Vec<&'static str>,
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

    /// Adds a row; one cell for each head.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.head.len(), "a cell for each head");
        self.rows.push(cells);
    }

    /// As a block.
    #[must_use]
    pub fn block(self) -> Block {
        Block::Columns(self)
    }

    fn render(&self, colour: bool) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(self.head.iter().map(|head| Cell::new(head).add_attribute(Attribute::Bold)));
        for row in &self.rows {
            table.add_row(row.iter().map(|text| match colour_of(text) {
                Some(colour) => Cell::new(text).fg(colour),
                None => Cell::new(text),
            }));
        }
        for (index, head) in self.head.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, 2));
                if self.right.contains(head) {
                    column.set_cell_alignment(comfy_table::CellAlignment::Right);
                }
            }
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
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
