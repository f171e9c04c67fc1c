//! Tells what happens, with the time since the beginning.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// The teller.
pub struct Narrator {
    began: Instant,
}

impl Narrator {
    /// From now on.
    #[must_use]
    pub fn new() -> Self {
        Narrator { began: Instant::now() }
    }

    /// How long it has been.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The heading.
    pub fn title(&self, text: &str) {
        println!("muster demo: {text}\n");
    }

    /// One event.
    pub fn line(&self, text: &str) {
        println!("[{:5.1} s] {text}", self.elapsed().as_secs_f64());
    }

    /// A command and what it answered.
    pub fn quote(&self, command: &str, answer: &str) {
        println!("          $ {command}");
        answer.lines().for_each(|line| println!("          {line}"));
    }

    /// A bar, on a terminal.
    #[must_use]
    pub fn progress(&self, length: u64) -> ProgressBar {
        let usual = ProgressStyle::default_bar();
        let style = ProgressStyle::with_template("{elapsed} [{bar:40}] {pos}/{len} jobs over").unwrap_or(usual);
        ProgressBar::new(length).with_style(style)
    }
}

impl Default for Narrator {
    fn default() -> Self {
        Self::new()
    }
}
