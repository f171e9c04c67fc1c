//! Applying entries: executed, written with `last_applied` in one batch, then published.

use super::install::Builder;
use super::{Execute, Machine, Memory, Replica, key};
use crate::consensus::Applied;
use crate::consensus::forms::form_of;
use crate::consensus::frozen::Frozen;
use crate::consensus::stored::{encode, ended_key, job_key, object_key, state_space};
use crate::consensus::types::{Answer, LogEntry, LogId, Member, Membership, StorageError, Types};
use muster_control_core::State;
use muster_model::node::Repair;
use muster_model::object::FinishedJob;
use muster_model::{Change, GpuUnits, Key, MoveFate, MovedJob, Object, Revision};
use muster_runtime::{Batch, DiskError};
use openraft::storage::RaftStateMachine;
use openraft::{AnyError, EntryPayload, OptionalSend, Snapshot, SnapshotMeta, StorageIOError};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// Commands applied under one lock and one write; other tasks run in between. Readers wait for this many at most.
const CHUNK_COMMANDS: usize = 1_024;
/// And entries, when they are small.
const CHUNK_ENTRIES: usize = 64;

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), StorageError> {
        let memory = self.0.memory.read();
        Ok((memory.applied, memory.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Answer>, StorageError>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut answers = Vec::new();
        let mut chunk = Vec::new();
        let mut commands = 0;
        for entry in entries {
            self.0.log.shown(entry.log_id.index).await.map_err(|error| self.0.fatal(error))?;
            if let EntryPayload::Normal(batch) = &entry.payload {
                commands += batch.entry.commands.len();
            }
            chunk.push(entry);
            if commands >= CHUNK_COMMANDS || chunk.len() >= CHUNK_ENTRIES {
                self.0.apply_or_stop(std::mem::take(&mut chunk), &mut answers).map_err(|stopped| *stopped)?;
                commands = 0;
                tokio::task::yield_now().await;
            }
        }
        if !chunk.is_empty() {
            self.0.apply_or_stop(chunk, &mut answers).map_err(|stopped| *stopped)?;
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder(self.0.clone())
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Frozen>, StorageError> {
        let incoming = self.0.begin_receiving().map_err(|error| self.0.fatal(error))?;
        Ok(Box::new(incoming))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, Member>,
        snapshot: Box<Frozen>,
    ) -> Result<(), StorageError> {
        self.0.install(meta, *snapshot).await.map_err(|error| self.0.fatal(error))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        Ok(self.0.current.lock().clone())
    }
}

impl Replica {
    /// A failing state store ends this node.
    pub(crate) fn fatal(&self, error: DiskError) -> StorageError {
        self.stop.failed("the state store", &error);
        StorageIOError::write_state_machine(AnyError::new(&error)).into()
    }

    /// Applies entries. Whatever prevents it ends this node: a failing disk, or a bug in the state machine, which every replica meets at
    /// the same entry. Nothing of such an entry is stored, so each start meets it again and stops again.
    fn apply_or_stop(&self, entries: Vec<LogEntry>, answers: &mut Vec<Answer>) -> Result<(), Box<StorageError>> {
        let (first, last) = (entries.first().map_or(0, index_of), entries.last().map_or(0, index_of));
        // What a panic leaves half done in memory is looked at by nobody any more: the node stops serving with it.
        match catch_unwind(AssertUnwindSafe(|| self.apply_chunk(entries, answers))) {
            Ok(applied) => applied.map_err(|error| Box::new(self.fatal(error))),
            Err(panic) => {
                let why = format!(
                    "internal error (a bug): the state machine panicked at a log entry {first} to {last}: {}. No control node can apply it; keep \
                     the data folders, and start a version of muster in which the bug is fixed",
                    message_of(&*panic)
                );
                tracing::error!("{why}");
                metrics::counter!("muster_state_machine_panics_total").increment(1);
                self.stop.because(why.clone());
                Err(Box::new(StorageIOError::apply(LogId::new(Default::default(), first), AnyError::error(why)).into()))
            }
        }
    }

    fn apply_chunk(&self, entries: Vec<LogEntry>, answers: &mut Vec<Answer>) -> Result<(), DiskError> {
        let mut batch = Batch::default();
        let mut published = Vec::with_capacity(entries.len());
        let (forgotten_before, forgotten);
        {
            let mut memory = self.memory.write();
            forgotten_before = memory.state.meta.finished_forgotten;
            for entry in entries {
                let index = entry.log_id.index;
                let (answer, changes) = memory.apply(entry, self.execute, &mut batch);
                let form = memory.form();
                let bytes = write_changes(form, &mut batch, &changes);
                count_moves(&changes);
                let now_ms = memory.state.meta.now_ms;
                published.push((Applied { revision: Revision(index), now_ms, changes: Arc::new(changes) }, bytes));
                answers.push(answer);
            }
            self.follow_level(memory.state.meta.feature_level)?;
            batch.put(state_space::META, key::APPLIED, encode(memory.form(), &memory.applied));
            // Under the lock: whoever reads memory finds the same on disk.
            self.store.read().kv.write(&batch)?;
            forgotten = memory.state.meta.finished_forgotten;
            count_nodes(&memory.state);
            metrics::gauge!("muster_finished_jobs").set(memory.state.meta.finished_kept as f64);
            metrics::counter!("muster_finished_jobs_forgotten_total").absolute(forgotten);
        }
        self.reclaim(forgotten.saturating_sub(forgotten_before))?;
        for (applied, bytes) in published {
            self.hub.publish(applied, bytes);
        }
        Ok(())
    }
}

/// Nodes that need somebody; each of them is few in a healthy fleet.
fn count_nodes(state: &State) {
    let index = state.index();
    metrics::gauge!("muster_nodes_quarantined").set(index.quarantined.len() as f64);
    metrics::gauge!("muster_nodes_restored").set(index.restored.len() as f64);
    let nodes = index.sparing.iter().filter_map(|id| state.nodes.get(id));
    let spared: usize = nodes.map(|node| node.notes.verdicts.spared_cards().len()).sum();
    metrics::gauge!("muster_gpus_spared").set(spared as f64);
    for repair in Repair::ALL {
        let withheld = index.withheld.get(&repair).copied().unwrap_or(0);
        metrics::gauge!("muster_gpus_withheld", "repair" => repair.word()).set(withheld as f64);
    }
}

/// Finished jobs that are forgotten before their disk space is given back: reading past so many costs a few milliseconds, and so many
/// take about a hundred megabytes.
const RECLAIM_JOBS: u64 = 100_000;

impl Replica {
    /// Gives back the disk space of finished jobs, when enough have been forgotten since the last time.
    fn reclaim(&self, forgotten: u64) -> Result<(), DiskError> {
        if forgotten == 0 {
            return Ok(());
        }
        let oldest_ms = self.first_to_end(None, 1)?.first().map_or(0, |job| job.finished_ms);
        metrics::gauge!("muster_finished_jobs_oldest_seconds").set((oldest_ms / 1_000) as f64);
        if self.unreclaimed.fetch_add(forgotten, Ordering::Relaxed) + forgotten >= RECLAIM_JOBS {
            self.unreclaimed.store(0, Ordering::Relaxed);
            let kv = self.store.read().kv.clone();
            kv.reclaim(state_space::ENDED);
            kv.reclaim(state_space::HISTORY);
        }
        Ok(())
    }
}

impl Memory {
    /// The form of what is written now.
    fn form(&self) -> u8 {
        form_of(self.state.meta.feature_level)
    }

    fn apply(&mut self, entry: LogEntry, execute: Execute, batch: &mut Batch) -> (Answer, Vec<Change>) {
        let log_id = entry.log_id;
        let (mut answer, mut changes) = (None, Vec::new());
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => {
                self.used.extend(membership.nodes().map(|(id, member)| (*id, member.disk)));
                self.membership = Membership::new(Some(log_id), membership);
                batch.put(state_space::META, key::MEMBERSHIP, encode(self.form(), &(&self.membership, &self.used)));
            }
            EntryPayload::Normal(normal) => {
                if normal.only_in_term.is_none_or(|term| term == log_id.leader_id.term) {
                    let before_ms = self.state.meta.now_ms;
                    let executed = execute(&mut self.state, &normal.entry);
                    if self.state.meta.now_ms != before_ms {
                        self.timed = Instant::now();
                    }
                    answer = Some(executed.decided);
                    changes = executed.changes;
                }
            }
        }
        // The first entry after the one that names the members begins the cluster's history.
        if self.state.meta.cluster == 0
            && log_id.index > 0
            && let Some((_, member)) = self.membership.nodes().next()
            && member.cluster != 0
        {
            let mut meta = self.state.meta.clone();
            meta.cluster = member.cluster;
            meta.feature_level = meta.feature_level.max(member.level);
            let change = Change::put(Object::Meta(meta));
            self.state.apply(&change);
            changes.push(change);
        }
        self.applied = Some(log_id);
        (answer, changes)
    }
}

fn index_of(entry: &LogEntry) -> u64 {
    entry.log_id.index
}

/// What a panic said.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it left no message".to_owned())
}

/// Writes the changes and says how many bytes they are.
pub(super) fn write_changes(form: u8, batch: &mut Batch, changes: &[Change]) -> usize {
    let mut bytes = 0;
    for change in changes {
        match change {
            Change::Put(object) => {
                let stored = encode(form, &**object);
                bytes += stored.len();
                batch.put(state_space::OBJECTS, object_key(&object.key()), stored);
            }
            Change::Delete(Key::Finished(job)) => {
                let key = ended_key(job);
                bytes += key.len();
                batch.delete(state_space::ENDED, key);
                batch.delete(state_space::HISTORY, job_key(job.id));
            }
            Change::Delete(Key::Audited(number)) => {
                bytes += size_of::<u64>();
                batch.delete(state_space::AUDIT, number.0.to_be_bytes());
            }
            Change::Audit(record) => {
                let stored = encode(form, &**record);
                bytes += stored.len();
                batch.put(state_space::AUDIT, record.number.to_be_bytes(), stored);
            }
            Change::Delete(key) => {
                let key = object_key(key);
                bytes += key.len();
                batch.delete(state_space::OBJECTS, key);
            }
            Change::Retire(job) => {
                let stored = encode(form, &**job);
                bytes += stored.len();
                batch.put(state_space::HISTORY, job_key(job.id), stored);
                batch.put(state_space::ENDED, ended_key(&FinishedJob::of(job)), []);
                batch.delete(state_space::OBJECTS, object_key(&Key::Job(job.id)));
            }
        }
    }
    bytes
}

/// A record of a move is put first with nothing known of what comes of it, and last when everything is.
fn count_moves(changes: &[Change]) {
    for change in changes {
        let Change::Put(object) = change else { continue };
        let Object::Move(record) = &**object else { continue };
        let untouched = |moved: &MovedJob| moved.fate == MoveFate::Stopping;
        if record.started_ms.is_none() && record.given_up_ms.is_none() && record.moved.iter().all(untouched) {
            metrics::counter!("muster_moves_begun_total").increment(record.moved.len() as u64);
        }
        if record.is_closed() {
            for moved in &record.moved {
                metrics::counter!("muster_moves_ended_total", "state" => moved.fate.to_string()).increment(1);
            }
            let gpu_s = |unit_s: u64| unit_s.div_ceil(GpuUnits::CARD.0);
            let (most, lost) = (record.promised_unit_s(), record.lost_unit_s().unwrap_or(0));
            metrics::counter!("muster_moves_promised_gpu_seconds_total").increment(gpu_s(most));
            metrics::counter!("muster_moves_lost_gpu_seconds_total").increment(gpu_s(lost));
        }
    }
}
