//! What the experiments found, as one table.

use anyhow::Result;
use std::process::ExitCode;

/// Narrow enough for a terminal and for a log of CI.
const WIDTH_COLUMNS: u16 = 150;

/// How an experiment ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// What must hold held.
    Holds,
    /// It did not.
    Broken(Vec<String>),
    /// The machine lacks something.
    Skipped(String),
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) name: &'static str,
    /// What was done.
    pub(crate) done: String,
    /// What was seen, with figures.
    pub(crate) seen: String,
    pub(crate) verdict: Verdict,
}

/// What an experiment tells of itself: what was done, what was seen, and what was found broken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) done: String,
    pub(crate) seen: Vec<String>,
    pub(crate) broken: Vec<String>,
}

impl Findings {
    /// Nothing seen yet.
    pub(crate) fn of(done: impl Into<String>) -> Findings {
        Findings { done: done.into(), ..Findings::default() }
    }

    /// A figure.
    pub(crate) fn see(&mut self, what: impl Into<String>) {
        self.seen.push(what.into());
    }

    /// What must hold.
    pub(crate) fn must(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(otherwise());
        }
    }

    /// The row.
    pub(crate) fn report(self, name: &'static str) -> Report {
        let verdict = if self.broken.is_empty() { Verdict::Holds } else { Verdict::Broken(self.broken) };
        Report { name, done: self.done, seen: self.seen.join("\n"), verdict }
    }
}

/// Prints the table, then what is broken and what was skipped. Fails when something is broken.
pub(crate) fn show(reports: &[Report]) -> Result<ExitCode> {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(WIDTH_COLUMNS);
    table.set_header(["experiment", "what was done", "what was seen", ""]);
    for report in reports {
        let verdict = match &report.verdict {
            Verdict::Holds => "holds",
            Verdict::Broken(_) => "BROKEN",
            Verdict::Skipped(_) => "skipped",
        };
        table.add_row([report.name, &report.done, &report.seen, verdict]);
    }
    println!("{table}");
    let mut broken = 0;
    for report in reports {
        match &report.verdict {
            Verdict::Broken(findings) => {
                broken += 1;
                findings.iter().for_each(|finding| println!("BROKEN {}: {finding}", report.name));
            }
            Verdict::Skipped(why) => println!("SKIPPED {}: {why}", report.name),
            Verdict::Holds => {}
        }
    }
    let count = |verdict: fn(&Verdict) -> bool| reports.iter().filter(|report| verdict(&report.verdict)).count();
    let (held, skipped) = (count(|v| *v == Verdict::Holds), count(|v| matches!(v, Verdict::Skipped(_))));
    println!("chaos: {held} experiments hold, {broken} broken, {skipped} skipped");
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says that nothing could be done here.
pub(crate) fn all_skipped(chosen: &[&'static str], why: &str) -> ExitCode {
    for name in chosen {
        println!("SKIPPED {name}: {why}");
    }
    println!("chaos: 0 experiments hold, 0 broken, {} skipped", chosen.len());
    ExitCode::SUCCESS
}
