//! Bugs that were found and fixed once, brought back in voters made from the library: an experiment that does not find them shows nothing.

use super::{clocks, power};
use crate::lab::Lab;
use crate::report::Findings;
use anyhow::Result;

/// Rounds of power loss in one try, and how many tries. Most tries find the bug.
const ROUNDS: u32 = 4;
const TRIES: u32 = 10;

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    let mut findings =
        Findings::of("power loss of voters that resume leadership; a wrong clock on a leader that believes it");
    let mut found = Vec::new();
    let mut rounds = 0;
    while found.is_empty() && rounds < ROUNDS * TRIES {
        found = power::run_with(lab, ROUNDS, Some("leadership-resumed")).await?.broken;
        rounds += ROUNDS;
    }
    findings.must(!found.is_empty(), || format!("leadership that is resumed was not found in {rounds} power losses"));
    findings.see(format!("resumed leadership: {} in {rounds} power losses", first_words(&found)));
    let found = clocks::run_with(lab, Some("clock-believed"))
        .await
        .map_or_else(|error| vec![format!("{error:#}")], |found| found.broken);
    findings.must(!found.is_empty(), || "a leader that believes its own clock was not found".to_owned());
    findings.see(format!("a clock that is believed: {}", first_words(&found)));
    Ok(findings)
}

/// How much was found, and the beginning of the first of it.
fn first_words(found: &[String]) -> String {
    let first: String = found.first().map(|text| text.chars().take(90).collect()).unwrap_or_default();
    format!("{} findings, the first: {}", found.len(), first.replace('\n', " "))
}
