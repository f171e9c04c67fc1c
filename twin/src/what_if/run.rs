//! One run: a copy of a state goes forward in virtual time.
//!
//! What must stay true: no decision is made here that a fleet's cores would make; nodes do what the state machine tells them, by the model of
//! [`crate::nodes`]; cells without a shard get one, since a fleet's shards take over such cells.

use super::edits::Edit;
use super::forecast::{Reaction, Stories};
use super::{Options, Submission, WhatIfError};
use crate::events::Events;
use crate::import::EndState;
use crate::nodes::{last_words, reports};
use crate::shard::Shard;
use muster_control_core::{Command, Decided, Done, Entry, Reject, State, execute};
use muster_model::{AllocationId, AllocationState, JobPhase, Object, Rank, TaskState};
use muster_scheduler_core::PlacementPolicy;
use std::collections::{BTreeMap, BTreeSet};

/// Commands of one log entry: what a proposer merges at most.
const ENTRY_COMMANDS_MAX: usize = 1_024;
/// Rounds of planning at one moment: far more than the longest queue needs.
const ROUNDS_MAX: usize = 1_000_000;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A job of the workload is submitted.
    Submit(usize),
    /// All tasks of an allocation have started.
    Started(AllocationId),
    /// They have done their work.
    Worked(AllocationId),
    /// They were stopped and are gone.
    Stopped(AllocationId),
    /// Time decides something about jobs.
    Due,
    /// The shard looks again.
    Look,
}

/// Where a command came from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Submit(usize),
    Shard,
    Other,
}

/// See the module.
pub(super) struct Run {
    pub(super) state: State,
    pub(super) forecasts: Stories,
    /// Jobs of the workload that the fleet refuses.
    pub(super) refused: BTreeMap<usize, Reject>,
    /// Jobs of the workload, once they are known.
    workload: Vec<Submission>,
    placement: PlacementPolicy,
    shard: Option<Shard>,
    events: Events<Event>,
    batch: Vec<(Command, Origin)>,
    options: Options,
    begin_ms: u64,
    now_ms: u64,
    due_ms: Option<u64>,
    looks: BTreeSet<u64>,
}

impl Run {
    /// At the beginning, before anything is edited.
    pub(super) fn begin(objects: impl IntoIterator<Item = Object>, now_ms: u64, options: &Options) -> Self {
        let state = State::from_objects(objects);
        let now_ms = now_ms.max(state.meta.now_ms);
        let mut run = Run {
            forecasts: Stories::begin(&state, now_ms, options),
            state,
            refused: BTreeMap::new(),
            workload: Vec::new(),
            placement: PlacementPolicy::default(),
            shard: None,
            events: Events::default(),
            batch: Vec::new(),
            options: *options,
            begin_ms: now_ms,
            now_ms,
            due_ms: None,
            looks: BTreeSet::new(),
        };
        run.note_what_runs();
        run
    }

    /// Notes what the nodes are at already.
    fn note_what_runs(&mut self) {
        let nodes = self.options.nodes;
        for held in self.state.allocations.values() {
            let Some(job) = self.state.jobs.get(&held.job) else { continue };
            let (at_ms, event) = match (&held.state, &job.phase) {
                (AllocationState::Stopping(_), _) => {
                    // How much of its grace has passed is not known.
                    let grace_s =
                        if held.pays() { job.spec.grace_s } else { job.spec.preemption.grace_s(job.spec.grace_s) };
                    (self.now_ms + grace_s.saturating_mul(1_000) + nodes.stop_delay_ms, Event::Stopped(held.id))
                }
                // Growth works until its gang is done.
                (AllocationState::Active, _) if held.is_growth => {
                    (self.now_ms + nodes.start_delay_ms, Event::Started(held.id))
                }
                (AllocationState::Active, JobPhase::Running(_)) => {
                    (self.forecasts.done_ms(self.now_ms, job.id).unwrap_or(u64::MAX), Event::Worked(held.id))
                }
                (AllocationState::Active, _) => (self.now_ms + nodes.start_delay_ms, Event::Started(held.id)),
            };
            self.events.push(at_ms, event);
        }
    }

    /// Makes a change as an operator would.
    pub(super) fn edit(&mut self, edit: &Edit) -> Result<(), Reject> {
        if let Edit::Placement(policy) = edit {
            self.placement = *policy;
        }
        for command in edit.commands(&self.state)? {
            self.batch.push((command, Origin::Other));
            for decided in self.commit() {
                if let Done::TurnedAway { why } = decided? {
                    return Err(Reject::field("add-nodes", why, "use other names"));
                }
            }
        }
        Ok(())
    }

    /// Notes what will be submitted.
    pub(super) fn submit(&mut self, workload: &[Submission]) {
        self.workload = workload.to_vec();
        for (index, one) in workload.iter().enumerate() {
            self.events.push(self.begin_ms.saturating_add(one.after_ms), Event::Submit(index));
        }
    }

    /// Goes on to the horizon.
    pub(super) fn go(&mut self) -> Result<(), WhatIfError> {
        let end_ms = self.begin_ms.saturating_add(self.options.horizon_ms);
        self.take_cells();
        self.shard = Some(Shard::new(&self.state, self.placement));
        self.moment()?;
        self.say_why();
        while let Some(next_ms) = self.events.next_ms().filter(|next_ms| *next_ms <= end_ms) {
            self.now_ms = next_ms.max(self.now_ms);
            self.moment()?;
        }
        self.now_ms = end_ms;
        self.say_why();
        self.forecasts.settle(end_ms);
        self.state.check().map_err(WhatIfError::Law)
    }

    /// Everything that happens now, and what the shard makes of it.
    fn moment(&mut self) -> Result<(), WhatIfError> {
        while let Some(at_ms) = self.events.next_ms().filter(|at_ms| *at_ms <= self.now_ms) {
            while let Some(event) = self.events.pop_at(at_ms) {
                self.happen(event);
            }
        }
        self.commit();
        self.plan()?;
        self.wait_for_due();
        Ok(())
    }

    /// Cells that no shard holds, new ones among them, get one.
    fn take_cells(&mut self) {
        let free = self.state.cells.values().filter(|cell| cell.holder.is_none());
        let acquire = |cell| Command::AcquireCell { cell, shard: "what-if".to_owned() };
        self.batch = free.map(|cell| (acquire(cell.id), Origin::Other)).collect();
        self.commit();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Submit(index) => {
                let Some(one) = self.workload.get(index) else { return };
                let command = Command::Submit {
                    request_id: format!("what-if-{index}"),
                    issued_ms: self.now_ms,
                    payload_hash: index as u64,
                    specs: vec![one.spec.clone()],
                    ended: Vec::new(),
                };
                self.batch.push((command, Origin::Submit(index)));
            }
            Event::Started(id) => {
                let Some(held) = self.state.allocations.get(&id) else { return };
                if held.state == AllocationState::Active && held.is_growth {
                    self.tell(id, |_| Some(TaskState::Running));
                } else if held.state == AllocationState::Active {
                    let at_ms = self.forecasts.begins(self.now_ms, held.job).unwrap_or(u64::MAX);
                    self.events.push(at_ms, Event::Worked(id));
                    self.tell(id, |_| Some(TaskState::Running));
                }
            }
            Event::Worked(id) => {
                // A preempted attempt does nothing more in its grace.
                let active = self.state.allocations.get(&id).filter(|held| held.state == AllocationState::Active);
                let job = active.and_then(|held| self.state.jobs.get(&held.job));
                let parts = job.into_iter().flat_map(|job| job.growth.parts.iter().copied());
                // All workers of a gang are done together.
                let all: Vec<AllocationId> = parts.chain(active.map(|_| id)).collect();
                for id in all {
                    self.tell(id, |rank| last_words(EndState::Completed, rank));
                }
            }
            Event::Stopped(id) => self.tell(id, |_| Some(TaskState::Stopped)),
            Event::Due => {
                self.due_ms = None;
                self.batch.push((Command::DecideDue, Origin::Other));
            }
            Event::Look => {
                self.looks.remove(&self.now_ms);
            }
        }
    }

    fn tell(&mut self, id: AllocationId, seen: impl Fn(Rank) -> Option<TaskState>) {
        if let Some(held) = self.state.allocations.get(&id) {
            self.batch.extend(reports(held, seen).into_iter().map(|command| (command, Origin::Other)));
        }
    }

    /// Puts the gathered commands through the state machine.
    fn commit(&mut self) -> Decided {
        let mut batch = std::mem::take(&mut self.batch).into_iter();
        let mut all = Vec::new();
        while batch.len() > 0 {
            let (commands, origins): (Vec<_>, Vec<_>) = batch.by_ref().take(ENTRY_COMMANDS_MAX).unzip();
            let entry = Entry { now_ms: self.now_ms, commands };
            let executed = execute(&mut self.state, &entry);
            for ((decided, origin), command) in executed.decided.iter().zip(origins).zip(&entry.commands) {
                self.answered(decided, origin, command);
            }
            for change in &executed.changes {
                if let Some(shard) = &mut self.shard {
                    shard.apply(change);
                }
                let said_ms = |added: usize| self.workload.get(added)?.work_ms;
                match self.forecasts.follow(self.now_ms, change, &self.state, said_ms) {
                    Some(Reaction::Start(id)) => {
                        self.events.push(self.now_ms + self.options.nodes.start_delay_ms, Event::Started(id));
                    }
                    Some(Reaction::Stop(id, grace_ms)) => {
                        let stop_ms = grace_ms.saturating_add(self.options.nodes.stop_delay_ms);
                        self.events.push(self.now_ms.saturating_add(stop_ms), Event::Stopped(id));
                    }
                    None => {}
                }
            }
            all.extend(executed.decided);
        }
        all
    }

    fn answered(&mut self, decided: &Result<Done, Reject>, origin: Origin, command: &Command) {
        match (origin, decided) {
            (Origin::Submit(index), Ok(Done::Submitted { first, .. })) => self.forecasts.accepted(*first, index),
            (Origin::Submit(index), Err(reject)) => drop(self.refused.insert(index, reject.clone())),
            (Origin::Shard, Err(reject)) => {
                if let Some(shard) = &mut self.shard {
                    shard.refused(command, reject, self.now_ms);
                }
            }
            _ => {}
        }
    }

    /// Lets the shard plan until it proposes nothing more.
    fn plan(&mut self) -> Result<(), WhatIfError> {
        for _ in 0..ROUNDS_MAX {
            let Some(shard) = &mut self.shard else { return Ok(()) };
            let (proposed, more) = shard.pass(self.now_ms);
            if proposed.is_empty() && !more {
                let next_ms = shard.next_look_ms(self.now_ms).map(|at_ms| at_ms.max(self.now_ms + 1));
                // One look lies ahead at a time; an earlier one replaces the need for a later one.
                if let Some(at_ms) = next_ms.filter(|at_ms| self.looks.first().is_none_or(|first_ms| at_ms < first_ms))
                {
                    self.looks.insert(at_ms);
                    self.events.push(at_ms, Event::Look);
                }
                return Ok(());
            }
            self.batch.extend(proposed.into_iter().map(|command| (command, Origin::Shard)));
            self.commit();
        }
        Err(WhatIfError::Restless { after_s: (self.now_ms - self.begin_ms) / 1_000 })
    }

    /// Time decides about jobs and windows when the state machine says so.
    fn wait_for_due(&mut self) {
        let Some(next_ms) = self.state.next_due_ms(self.now_ms) else { return };
        let at_ms = next_ms.max(self.now_ms + 1);
        if self.due_ms.is_none_or(|due_ms| at_ms < due_ms) {
            self.due_ms = Some(at_ms);
            self.events.push(at_ms, Event::Due);
        }
    }

    /// Says of pending jobs why they wait, if that has not been said.
    fn say_why(&mut self) {
        let mut ask = Vec::new();
        for job in self.state.jobs.values().filter(|job| job.phase == JobPhase::Queued) {
            let Some(forecast) = self.forecasts.of(job.id).filter(|forecast| forecast.why.is_none()) else { continue };
            match job.not_eligible().first() {
                Some(why) => forecast.why = Some((why.code().to_owned(), why.text())),
                None => ask.push(job.id),
            }
        }
        ask.truncate(self.options.explained_max);
        let Some(shard) = self.shard.as_ref().filter(|_| !ask.is_empty()) else { return };
        for (id, brief) in muster_scheduler_core::explain::brief(shard.view(), &ask, self.now_ms) {
            if let Some(forecast) = self.forecasts.of(id) {
                forecast.why = Some((brief.code().to_owned(), brief.text()));
            }
        }
    }

    pub(super) fn begin_ms(&self) -> u64 {
        self.begin_ms
    }
}
