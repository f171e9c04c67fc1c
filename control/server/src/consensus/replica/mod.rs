//! The applied state of this node: in memory to read, on disk to survive, in the hub to follow.
//!
//! What must stay true: the three see the same changes of the same entries; memory and disk change under one lock, so that a
//! finished job is found either in memory or in the history; the store on disk is named by a durable generation, so that an installed
//! snapshot takes its place in one step.

mod apply;
pub(crate) mod backup;
mod install;
mod load;
mod upgrade;

use crate::consensus::forms::FEATURE_LEVEL_NEWEST;
use crate::consensus::hub::Hub;
use crate::consensus::log::Log;
use crate::consensus::stop::Stop;
use crate::consensus::stored::{self, job_key, state_space};
use crate::consensus::types::{LogId, Membership, Types};
use muster_control_core::{Entry, Executed, State};
use muster_model::object::FinishedJob;
use muster_model::{AuditRecord, Job, JobId, Revision};
use muster_runtime::{DiskError, Host, Kv};
use openraft::Snapshot;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

/// Keys of the meta space of a state store.
mod key {
    pub(super) const APPLIED: &[u8] = b"applied";
    pub(super) const MEMBERSHIP: &[u8] = b"membership";
}

/// Ids that were ever members, with the disk each had: none is used again.
pub(crate) type UsedIds = BTreeMap<u64, u64>;

/// The applied state of this node.
pub(crate) struct Replica {
    host: Host,
    log: Log,
    stop: Stop,
    pub(crate) hub: Arc<Hub>,
    memory: RwLock<Memory>,
    store: RwLock<Generation>,
    /// The last snapshot made or installed.
    current: Mutex<Option<Snapshot<Types>>>,
    /// The number of the next state store.
    next_generation: AtomicU64,
    /// Finished jobs that were forgotten and may still take disk space.
    unreclaimed: AtomicU64,
    execute: Execute,
}

/// What is done with the commands of an entry: [`muster_control_core::execute`], but for tests of what happens when that panics.
pub(crate) type Execute = fn(&mut State, &Entry) -> Executed;

struct Memory {
    state: State,
    /// When the state's time was last moved on.
    timed: Instant,
    applied: Option<LogId>,
    membership: Membership,
    used: UsedIds,
}

/// A state store and its number.
#[derive(Clone)]
pub(super) struct Generation {
    number: u64,
    kv: Arc<dyn Kv>,
}

/// openraft's handle on the replica.
#[derive(Clone)]
pub(crate) struct Machine(pub(crate) Arc<Replica>);

fn store_name(generation: u64) -> String {
    format!("state-{generation}")
}

/// Whether this version knows that feature level.
fn check_level(what: &str, level: u32) -> Result<(), DiskError> {
    if level <= FEATURE_LEVEL_NEWEST {
        return Ok(());
    }
    let why = format!("it has feature level {level}; this version of muster knows levels up to {FEATURE_LEVEL_NEWEST}");
    Err(stored::newer(what, &why))
}

impl Replica {
    /// Looks at the state and the revision it has reached.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&State, Revision) -> R) -> R {
        let memory = self.memory.read();
        look(&memory.state, Revision(memory.applied.map_or(0, |applied| applied.index)))
    }

    /// The cluster's time now: the state's, which the leader vouches for, and what has passed since. This node's wall clock has no part in
    /// it, unless nothing has ever been applied.
    pub(crate) fn now_ms(&self) -> u64 {
        let memory = self.memory.read();
        match memory.state.meta.now_ms {
            0 => self.host.clock.wall_ms(),
            now_ms => now_ms.saturating_add(memory.timed.elapsed().as_millis() as u64),
        }
    }

    /// From here on this node writes the form of that feature level.
    ///
    /// # Errors
    /// [`DiskError::Newer`] when this version does not know it.
    fn follow_level(&self, level: u32) -> Result<(), DiskError> {
        check_level("the state", level)?;
        self.log.form().follow(level);
        Ok(())
    }

    /// The membership as applied, with the ids that were ever used.
    pub(crate) fn membership(&self) -> (Membership, UsedIds) {
        let memory = self.memory.read();
        (memory.membership.clone(), memory.used.clone())
    }

    /// Looks at the ids that were ever used and at the members as applied, without copying them.
    pub(crate) fn with_membership<R>(&self, look: impl FnOnce(&Membership, &UsedIds) -> R) -> R {
        let memory = self.memory.read();
        look(&memory.membership, &memory.used)
    }

    /// A finished job.
    pub(crate) fn finished_job(&self, id: JobId) -> Result<Option<Job>, DiskError> {
        let kv = self.store.read().kv.clone();
        kv.get(state_space::HISTORY, &job_key(id))?.map(|bytes| stored::job(&bytes)).transpose()
    }

    /// Finished jobs: after `from` ascending, or before it descending.
    pub(crate) fn finished_jobs(
        &self,
        from: Option<JobId>,
        newest_first: bool,
        limit: usize,
    ) -> Result<Vec<Job>, DiskError> {
        let kv = self.store.read().kv.clone();
        let pairs = if newest_first {
            let to = from.map(job_key);
            kv.scan(state_space::HISTORY, &[], to.as_ref().map(<[u8; 8]>::as_slice), limit, true)?
        } else {
            let first = from.map_or(JobId(0), JobId::next);
            kv.scan(state_space::HISTORY, &job_key(first), None, limit, false)?
        };
        pairs.iter().map(|(_, bytes)| stored::job(bytes)).collect()
    }

    /// Records of the audit with numbers from `from` up, or from below `from` down.
    pub(crate) fn audit_records(
        &self,
        from: Option<u64>,
        newest_first: bool,
        limit: usize,
    ) -> Result<Vec<AuditRecord>, DiskError> {
        let kv = self.store.read().kv.clone();
        let key = from.map(u64::to_be_bytes);
        let key = key.as_ref().map(<[u8; 8]>::as_slice);
        let pairs = match newest_first {
            true => kv.scan(state_space::AUDIT, &[], key, limit, true)?,
            false => kv.scan(state_space::AUDIT, key.unwrap_or_default(), None, limit, false)?,
        };
        pairs.iter().map(|(_, bytes)| stored::decode_stored("a record of the audit", bytes)).collect()
    }

    /// Finished jobs as they ended, after `after`: at most `limit`.
    pub(crate) fn first_to_end(&self, after: Option<FinishedJob>, limit: usize) -> Result<Vec<FinishedJob>, DiskError> {
        let kv = self.store.read().kv.clone();
        let mut from = after.map_or_else(Vec::new, |after| stored::ended_key(&after).to_vec());
        if after.is_some() {
            // Right after that key.
            from.push(0);
        }
        let pairs = kv.scan(state_space::ENDED, &from, None, limit, false)?;
        pairs.iter().map(|(key, _)| stored::ended(key)).collect()
    }

    /// An empty store under a number that was not used before.
    fn fresh_generation(&self) -> Result<Generation, DiskError> {
        let number = self.next_generation.fetch_add(1, Ordering::Relaxed);
        let kv = self.host.disk.open(&store_name(number), &state_space::ALL)?;
        Ok(Generation { number, kv })
    }

    /// Removes state stores that are not in use. One that is still being read from is left for the next time.
    pub(crate) fn remove_old_stores(&self) -> Result<(), DiskError> {
        let used = store_name(self.store.read().number);
        let newest = store_name(self.next_generation.load(Ordering::Relaxed).saturating_sub(1));
        for name in self.host.disk.list()? {
            if name.starts_with("state-")
                && name != used
                && name != newest
                && let Err(error) = self.host.disk.remove(&name)
            {
                tracing::info!(store = name, %error, "cannot remove an old state store yet");
            }
        }
        Ok(())
    }
}
