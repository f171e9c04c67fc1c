//! Runs that an earlier call has finished: a file of lines of JSON, one for each run.
//!
//! What must stay true: a run is written whole, in one line, before it counts as finished; runs of other options are refused, not mixed in.

use super::figures::Figures;
use super::{Options, Policy, Source};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// One line.
#[derive(Serialize, Deserialize)]
struct Line {
    /// The options by which the run was made, without those that do not change it.
    made_by: String,
    figures: Figures,
    assumptions: Vec<String>,
}

/// What changes a run, beside its trace, load, seed and policy.
fn made_by(options: &Options, judged: bool) -> String {
    let Options {
        days, warm_days, drain_days, limit_percent, grace_s, checkpoint_s, cool_down_s, estimates_every, ..
    } = options;
    let estimates =
        if *estimates_every > 0 { format!(", estimates of one in {estimates_every}") } else { String::new() };
    format!(
        "days {days}, warm {warm_days}, drain {drain_days}, limits {limit_percent} %, grace {grace_s} s, checkpoint {checkpoint_s} s, \
         cool-down {cool_down_s} s, judged {judged}{estimates}"
    )
}

/// The finished runs of the file; none where there is no file yet. A last line that was cut off is left out.
pub(super) fn read(path: &Path, options: &Options, judged: bool) -> Result<Vec<(Figures, Vec<String>)>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let (expected, mut finished) = (made_by(options, judged), Vec::new());
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else { continue };
        ensure!(
            line.made_by == expected,
            "{}: its runs were made with other options ({}; these are {expected}); name another file",
            path.display(),
            line.made_by,
        );
        finished.push((line.figures, line.assumptions));
    }
    Ok(finished)
}

/// Appends a finished run.
pub(super) fn append(
    path: &Path,
    options: &Options,
    judged: bool,
    (figures, assumptions): &(Figures, Vec<String>),
) -> Result<()> {
    let line = Line { made_by: made_by(options, judged), figures: figures.clone(), assumptions: assumptions.clone() };
    // A line that was cut off before stays alone on its line.
    let text = format!("\n{}\n", serde_json::to_string(&line)?);
    let mut file = OpenOptions::new().create(true).append(true).open(path);
    let written = file
        .as_mut()
        .map_err(|error| std::io::Error::from(error.kind()))
        .and_then(|file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("writing {}", path.display()))
}

/// Whether these are the figures of that run.
pub(super) fn is_of(figures: &Figures, (source, load_permille, seed, policy): (Source, u32, u64, Policy)) -> bool {
    (figures.source, figures.load_permille, figures.seed, figures.policy) == (source, load_permille, seed, policy)
}
