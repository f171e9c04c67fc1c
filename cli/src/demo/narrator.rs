//! Tells what happens, with the time since the beginning. When nobody listens any more the demonstration ends.

use crate::failure::Failure;
use crate::output::{Colour, Format, Out};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// The teller.
pub struct Narrator {
    began: Instant,
    out: Out,
}

impl Narrator {
    /// From now on.
    #[must_use]
    pub fn new() -> Self {
        Narrator { began: Instant::now(), out: Out::new(Format::Table, Colour::Never) }
    }

    /// How long it has been.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Text as it is.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn text(&self, text: &str) -> Result<(), Failure> {
        self.out.line(text)
    }

    /// One event.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        self.out.line(&format!("[{:5.1} s] {text}", self.elapsed().as_secs_f64()))
    }

    /// A command and what it answered.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn quote(&self, command: &str, answer: &str) -> Result<(), Failure> {
        self.out.line(&format!("          $ {command}"))?;
        answer.lines().try_for_each(|line| self.out.line(&format!("          {line}")))
    }

    /// A bar, on a terminal.
    #[must_use]
    pub fn progress(&self, length: u64) -> ProgressBar {
        let usual = ProgressStyle::default_bar();
        let style = ProgressStyle::with_template("{elapsed} [{bar:40}] {pos}/{len} jobs ended").unwrap_or(usual);
        ProgressBar::new(length).with_style(style)
    }
}

impl Default for Narrator {
    fn default() -> Self {
        Self::new()
    }
}
