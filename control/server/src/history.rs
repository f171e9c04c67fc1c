//! How long finished jobs and records of the audit are kept, and which of them are due to be forgotten.
//!
//! The leader looks on its own disk, which holds what every replica's holds, and names them in a command. What must stay true: the
//! look is bounded; nothing is forgotten here, only proposed.

use crate::consensus::Consensus;
use muster_control_core::Command;
use muster_control_core::bounds::{AUDIT_TRIM_MAX, FORGET_MAX};
use muster_model::object::FinishedJob;
use muster_runtime::DiskError;

/// A day.
const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// How long finished jobs and records of the audit are kept. The leader's settings count: give all control nodes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// Jobs at least so long after their end, while there are no more than `keep_max`. A month: what was run since the last report.
    pub keep_ms: u64,
    /// And no more than so many, the last to end. A month of 30,000 a day, in about a gigabyte.
    pub keep_max: u64,
    /// Records of the audit at least so long. More than a year: the auditors of the last one may ask.
    pub keep_audit_ms: u64,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        HistoryConfig { keep_ms: 30 * DAY_MS, keep_max: 1_000_000, keep_audit_ms: 400 * DAY_MS }
    }
}

impl HistoryConfig {
    /// In words, for whoever asks for a job that is forgotten.
    #[must_use]
    pub fn in_words(&self) -> String {
        const MINUTE_MS: u64 = 60_000;
        let (count, unit) = match self.keep_ms {
            ms if ms.is_multiple_of(24 * 60 * MINUTE_MS) => (ms / (24 * 60 * MINUTE_MS), "day"),
            ms if ms.is_multiple_of(60 * MINUTE_MS) => (ms / (60 * MINUTE_MS), "hour"),
            ms => (ms / MINUTE_MS, "minute"),
        };
        let plural = if count == 1 { "" } else { "s" };
        format!("finished jobs are kept for {count} {unit}{plural}, at most {} jobs", self.keep_max)
    }

    /// The jobs that are due, those that ended first and `after` that one; whether there may be more.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) fn due(&self, consensus: &Consensus, after: Option<FinishedJob>) -> Result<Option<Due>, DiskError> {
        let (kept, forgotten) = consensus.read(|state, _| (state.meta.finished_kept, state.meta.finished_forgotten));
        let excess = kept.saturating_sub(self.keep_max);
        let before_ms = consensus.now_ms().saturating_sub(self.keep_ms);
        let ended = consensus.first_to_end(after, FORGET_MAX)?.into_iter();
        let over = |(place, job): &(usize, FinishedJob)| (*place as u64) < excess || job.finished_ms < before_ms;
        let jobs: Vec<FinishedJob> = ended.enumerate().take_while(over).map(|(_, job)| job).collect();
        let Some(last) = jobs.last().copied() else { return Ok(None) };
        let more = jobs.len() == FORGET_MAX;
        Ok(Some(Due { command: Command::ForgetFinished { forgotten, jobs }, last, more }))
    }

    /// Removes the records of the audit that are due, the oldest first. Removing is itself a record, so it waits until a day's records (a tenth of the time
    /// that they are kept, if that is less) can be removed together; so many a time that the command stays small.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) fn audit_due(&self, consensus: &Consensus) -> Result<Option<Command>, DiskError> {
        let (newest, removed) = consensus.read(|state, _| (state.meta.audited, state.meta.audit_trimmed));
        let before_ms = consensus.now_ms().saturating_sub(self.keep_audit_ms);
        let slack_ms = DAY_MS.min(self.keep_audit_ms / 10);
        let records = |limit| consensus.audit_records(Some(removed.saturating_add(1)), false, limit);
        let oldest = records(1)?.into_iter().next();
        if oldest.is_none_or(|oldest| oldest.at_ms >= before_ms.saturating_sub(slack_ms)) {
            return Ok(None);
        }
        let old = records(AUDIT_TRIM_MAX as usize)?.into_iter().take_while(|record| record.at_ms < before_ms);
        // The last of all stays: the next one follows from it.
        let last = old.map(|record| record.number).take_while(|number| *number < newest).last();
        Ok(last.map(|through| Command::TrimAudit { through }))
    }
}

/// What is due to be forgotten.
pub(crate) struct Due {
    pub(crate) command: Command,
    /// The last job that it names.
    pub(crate) last: FinishedJob,
    /// There may be more after that.
    pub(crate) more: bool,
}
