//! The event log of a replay: what the follower tells of each entry, and the checkpoints that the replay assumes.
//!
//! What must stay true: writing it changes nothing of the replay; times never decrease.

use muster_control_core::State;
use muster_control_core::events::{About, Follower, Line};
use muster_model::{AllocationId, AllocationState, Change, JobId};
use std::collections::BTreeSet;
use std::io::{Error, Write};

/// See the module.
pub(crate) struct EventLog<'w> {
    follower: Follower,
    to: &'w mut dyn Write,
    revision: u64,
    checkpoint_ms: u64,
    /// When running attempts save their work next.
    due: BTreeSet<(u64, AllocationId, JobId)>,
    /// The first thing that went wrong; nothing is written after it.
    failed: Option<Error>,
}

impl<'w> EventLog<'w> {
    /// Begins with the header.
    pub(crate) fn begin(
        to: &'w mut dyn Write,
        state: &State,
        (about, checkpoint_ms): (About, u64),
        now_ms: u64,
    ) -> Self {
        let (follower, header, lines) = Follower::begin(state.objects(), (0, now_ms), about);
        let mut log = EventLog { follower, to, revision: 0, checkpoint_ms, due: BTreeSet::new(), failed: None };
        log.write(&header);
        log.write_all(&lines);
        log
    }

    /// The changes of one entry, which `state` has taken over.
    pub(crate) fn entry(&mut self, state: &State, now_ms: u64, changes: &[Change]) {
        self.save(state, now_ms);
        self.revision += 1;
        let lines = self.follower.follow(self.revision, now_ms, changes);
        self.write_all(&lines);
    }

    /// All tasks of an attempt run from now on.
    pub(crate) fn started(&mut self, now_ms: u64, id: AllocationId, job: JobId) {
        if self.checkpoint_ms > 0 {
            self.due.insert((now_ms + self.checkpoint_ms, id, job));
        }
    }

    fn save(&mut self, state: &State, now_ms: u64) {
        while let Some((at_ms, id, job)) = self.due.first().copied().filter(|(at_ms, _, _)| *at_ms < now_ms) {
            self.due.pop_first();
            if state.allocations.get(&id).is_some_and(|held| held.state == AllocationState::Active) {
                let line = self.follower.saved(job, at_ms);
                self.write(&line);
                self.due.insert((at_ms + self.checkpoint_ms, id, job));
            }
        }
    }

    /// The end of the observed time.
    pub(crate) fn end(mut self, now_ms: u64) -> Result<(), Error> {
        let line = self.follower.end(now_ms);
        self.write(&line);
        self.failed.map_or_else(|| self.to.flush(), Err)
    }

    fn write_all(&mut self, lines: &[Line]) {
        lines.iter().for_each(|line| self.write(line));
    }

    fn write(&mut self, line: &impl serde::Serialize) {
        if self.failed.is_some() {
            return;
        }
        let written = serde_json::to_string(line).map_err(Error::from).and_then(|text| writeln!(self.to, "{text}"));
        self.failed = written.err();
    }
}
