//! The lines that tasks leave of themselves: who started, who ended, when, by the machine's own clock.

use crate::failure::Failure;
use std::collections::BTreeMap;
use std::path::Path;

/// What one rank of a job left.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rank {
    /// Attempt and second of each start.
    pub starts: Vec<(u32, f64)>,
    /// Attempt and second of each end.
    pub ends: Vec<(u32, f64)>,
}

impl Rank {
    /// It started once and ended once, in the same attempt.
    #[must_use]
    pub fn ran_once(&self) -> bool {
        matches!((&self.starts[..], &self.ends[..]), ([(first, _)], [(last, _)]) if first == last)
    }

    /// Seconds from its start to its end, where it has both.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        match (self.starts.first(), self.ends.last()) {
            (Some((_, start)), Some((_, end))) => end - start,
            _ => 0.0,
        }
    }
}

/// By job and rank.
pub type Record = BTreeMap<u64, BTreeMap<u32, Rank>>;

/// Reads them all. A folder without the file is a record without lines.
///
/// # Errors
/// When it cannot be read, or a line is not one of ours.
pub fn read(path: &Path) -> Result<Record, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Record::new()),
        Err(error) => Err(Failure::io(format!("reading {}", path.display()), error)),
    }
}

/// `start|end JOB RANK ATTEMPT SECONDS`, one a line.
///
/// # Errors
/// When a line is not one of these.
pub fn parse(text: &str) -> Result<Record, Failure> {
    let mut record = Record::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let parsed = (|| {
            let [what, job, rank, attempt, seconds] = words[..] else { return None };
            let at = (attempt.parse().ok()?, seconds.parse().ok()?);
            Some((what, job.parse().ok()?, rank.parse().ok()?, at))
        })();
        let Some((what, job, rank, at)) = parsed else {
            return Err(Failure::Job(format!("a task wrote an unexpected line: {line:?}")));
        };
        let rank: &mut Rank = record.entry(job).or_default().entry(rank).or_default();
        match what {
            "start" => rank.starts.push(at),
            _ => rank.ends.push(at),
        }
    }
    Ok(record)
}
