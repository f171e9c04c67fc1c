//! What commands print: tables for people, JSON and YAML for scripts, colour only where a terminal will show it.
//!
//! What must stay true: results go to standard output and everything else to standard error, so that a pipe gets results only;
//! everything that is printed goes through [`Out`] or [`note`], so that a reader who has gone away ends a command quietly; nothing that somebody else has written makes a
//! terminal do anything ([`neutral`]).

mod columns;
pub mod neutral;

pub use columns::{Block, Columns};
use neutral::neutral;

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::io::{IsTerminal, Write};

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Table.
    #[default]
    Table,
    /// Table with more columns.
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
    /// Standard output is a terminal.
    pub is_terminal: bool,
    /// Columns of the terminal; none where standard output is no terminal: whoever reads a file or a pipe wants all of it.
    pub width: Option<usize>,
}

impl Out {
    /// For this process's standard output.
    #[must_use]
    pub fn new(format: Format, colour: Colour) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let width = || Some(usize::from(terminal_size::terminal_size_of(std::io::stdout())?.0.0));
        let width = if is_terminal { width() } else { None };
        Out { format, colour: colour.decide(is_terminal), is_terminal, width }
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
                let wide = self.format == Format::Wide;
                let width = self.width.filter(|_| !wide);
                for block in table(wide) {
                    // Its cells are harmless, and its colours are ours.
                    self.bytes(format!("{}\n", block.render(self.colour, width)).as_bytes())?;
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
        let text = if self.is_terminal { neutral(text) } else { text.to_owned() };
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

/// The order of names in lists: numbers in them count as numbers, so that `cell-10` comes after `cell-2`.
#[must_use]
pub fn by_number(a: &str, b: &str) -> Ordering {
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).count();
    let (mut left, mut right) = (a, b);
    loop {
        let (x, y) = (digits(left), digits(right));
        if x > 0 && y > 0 {
            let number = |text: &str, length: usize| text[..length].trim_start_matches('0').to_owned();
            let (m, n) = (number(left, x), number(right, y));
            let order = m.len().cmp(&n.len()).then(m.cmp(&n));
            if order.is_ne() {
                return order;
            }
            (left, right) = (&left[x..], &right[y..]);
            continue;
        }
        let (mut one, mut other) = (left.chars(), right.chars());
        match (one.next(), other.next()) {
            (Some(p), Some(q)) if p == q => (left, right) = (one.as_str(), other.as_str()),
            (p, q) if p == q => return a.cmp(b),
            (p, q) => return p.cmp(&q),
        }
    }
}

/// Prints a line for people to standard error: progress, warnings, errors. Nobody may be reading it, which harms nothing.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", neutral(text));
}

fn encode(why: &str) -> Failure {
    Failure::Server { what: "encoding the result".to_owned(), why: why.to_owned() }
}
