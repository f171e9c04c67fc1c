//! What a run has come across, so that a test can see that runs together come across everything: a simulation in which nothing happens
//! finds nothing.

use crate::history::{History, LoginAnswer, Sessions};
use muster_control_core::events::Event;
use muster_model::identity::{Machine, MachineStanding};
use muster_model::ids::{CellId, NodeId};
use muster_model::object::Key;
use muster_model::usage::UseKind;
use muster_model::{AllocationState, Change, EndCause, JobPhase, NodeHealth, Object, Outcome, TaskState};
use std::collections::{BTreeMap, BTreeSet};

/// How often each thing has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(pub BTreeMap<&'static str, u64>);

/// Everything that is counted, and that enough runs of the whole system must come across.
pub const ALL: [&str; 37] = [
    "agents turned away",
    "allocations bound",
    "attempts after the first",
    "attempts preempted",
    "cells that changed hands",
    "cells that fell silent whole",
    "floors that were unmet",
    "hand-overs",
    "intervals of idle time",
    "jobs cancelled",
    "jobs completed",
    "jobs failed",
    "jobs forgotten",
    "jobs timed out",
    "keys that changed",
    "logins after the provider was away",
    "logins by keys in memory while the provider was away",
    "logins refused because the provider was away",
    "logins with another key of the provider",
    "machines enrolled with a token",
    "machines resumed",
    "machines suspended",
    "machines with a copy",
    "nodes drained",
    "nodes down",
    "nodes rebooted",
    "nodes removed",
    "nodes silent",
    "nodes that changed their agent",
    "pools changed",
    "replicas that installed a snapshot",
    "sessions refused after their end while the provider was away",
    "stops for a lost node",
    "stops for a failed rank",
    "submissions answered more than once",
    "tasks fenced",
    "tenants changed",
];

impl Coverage {
    fn exported_and_metered(&mut self, history: &History) {
        for line in history.exports.iter().flat_map(|log| &log.lines) {
            let unmet = matches!(&line.event, Event::Capacity { unmet, .. } if !unmet.is_empty());
            self.count_if(unmet, "floors that were unmet");
        }
        for ((_, kind), gpu_unit_ms) in history.metered.values() {
            self.count_if(*kind == UseKind::Idle && *gpu_unit_ms > 0, "intervals of idle time");
        }
    }

    /// Counts what the record shows.
    #[must_use]
    pub fn of(history: &History) -> Self {
        let mut coverage = Coverage::default();
        let (mut seen, mut stopping, mut boots) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        let (mut fenced, mut visited, mut agents) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let (mut pools, mut tenants, mut machines) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut healths: BTreeMap<CellId, BTreeMap<NodeId, NodeHealth>> = BTreeMap::new();
        coverage.exported_and_metered(history);
        for (_, change) in history.changes() {
            match change {
                Change::Put(object) => match *object {
                    Object::Allocation(allocation) => {
                        if seen.insert(allocation.id) {
                            coverage.count("allocations bound");
                            coverage.count_if(allocation.attempt.0 > 1, "attempts after the first");
                        }
                        for (rank, state) in allocation.task_states.iter().enumerate() {
                            let is_new = *state == TaskState::Fenced && fenced.insert((allocation.id, rank));
                            coverage.count_if(is_new, "tasks fenced");
                        }
                        if let AllocationState::Stopping(cause) = &allocation.state
                            && stopping.insert(allocation.id)
                        {
                            let preempted = matches!(cause, EndCause::Preempted { .. });
                            coverage.count_if(preempted, "attempts preempted");
                            coverage.count_if(matches!(cause, EndCause::NodeLost { .. }), "stops for a lost node");
                            coverage.count_if(matches!(cause, EndCause::RankFailed { .. }), "stops for a failed rank");
                        }
                    }
                    Object::Cell(cell) => {
                        coverage.count_if(cell.epoch.0 > 1 && cell.holder.is_some(), "cells that changed hands")
                    }
                    Object::Node(node) => {
                        coverage.count_if(node.health == NodeHealth::Silent, "nodes silent");
                        let cell = healths.entry(node.cell).or_default();
                        let is_news = cell.insert(node.id, node.health) != Some(node.health);
                        let whole = cell.len() > 1 && cell.values().all(|health| *health == NodeHealth::Silent);
                        coverage.count_if(is_news && whole, "cells that fell silent whole");
                        coverage.count_if(node.health == NodeHealth::Down, "nodes down");
                        coverage.count_if(node.notes.rival.is_some(), "agents turned away");
                        coverage.count_if(node.drained, "nodes drained");
                        let agent = agents.insert(node.id, node.notes.agent);
                        coverage.count_if(
                            agent.is_some_and(|agent| agent != node.notes.agent),
                            "nodes that changed their agent",
                        );
                        let boot = boots.insert(node.id, node.spec.boot_id.clone());
                        coverage.count_if(boot.is_some_and(|boot| boot != node.spec.boot_id), "nodes rebooted");
                    }
                    Object::Job(job) => {
                        let before = visited.insert(job.id, job.visited.len()).unwrap_or(0);
                        coverage.count_if(job.visited.len() > before, "hand-overs");
                    }
                    Object::Pool(pool) => {
                        let before = pools.insert(pool.name.clone(), pool.clone());
                        coverage.count_if(before.is_some_and(|before| before != pool), "pools changed");
                    }
                    Object::Tenant(tenant) => {
                        let before = tenants.insert(tenant.id, tenant.clone());
                        coverage.count_if(before.is_some_and(|before| before != tenant), "tenants changed");
                    }
                    Object::Machine(machine) => {
                        let name = machine.principal.to_string();
                        let before = machines.insert(name, machine.clone());
                        let was = |holds: fn(&Machine) -> bool| before.as_ref().is_some_and(holds);
                        if let MachineStanding::Suspended { reason, .. } = &machine.standing {
                            coverage.count_if(was(Machine::is_active), "machines suspended");
                            coverage.count_if(reason.starts_with("two machines"), "machines with a copy");
                        }
                        let active = machine.is_active();
                        coverage.count_if(active && was(|machine| !machine.is_active()), "machines resumed");
                        let next = before.as_ref().and_then(|machine| machine.next_key_sha256);
                        coverage.count_if(next == Some(machine.key_sha256), "keys that changed");
                        let token = before.as_ref().map_or(0, |machine| machine.join_token);
                        coverage.count_if(machine.join_token != token, "machines enrolled with a token");
                    }
                    Object::RemovedNode(_) => coverage.count("nodes removed"),
                    _ => {}
                },
                Change::Retire(job) => coverage.ended(&job.phase),
                Change::Delete(Key::Node(id)) => {
                    for cell in healths.values_mut() {
                        cell.remove(&id);
                    }
                }
                Change::Delete(Key::Finished(_)) => coverage.count("jobs forgotten"),
                Change::Delete(_) | Change::Audit(_) => {}
            }
        }
        for replica in &history.replicas {
            coverage.count_if(!replica.skipped.is_empty(), "replicas that installed a snapshot");
        }
        coverage.logged_in(&history.sessions);
        for submission in &history.submissions {
            coverage.count_if(submission.acknowledged.len() > 1, "submissions answered more than once");
        }
        coverage
    }

    fn logged_in(&mut self, sessions: &Sessions) {
        let mut ends = BTreeMap::new();
        for login in &sessions.logins {
            let away = login.before.away && login.before == login.after;
            match login.answer {
                LoginAnswer::Made { session, expires_ms } => {
                    ends.insert(session, expires_ms);
                    self.count_if(away, "logins by keys in memory while the provider was away");
                    let back = !login.before.away && login.before.absences > 0;
                    self.count_if(back, "logins after the provider was away");
                    self.count_if(login.key > 0, "logins with another key of the provider");
                }
                LoginAnswer::ProviderAway => self.count_if(away, "logins refused because the provider was away"),
                LoginAnswer::NotTaken { .. } => {}
            }
        }
        for refusal in sessions.refusals.iter().filter(|refusal| refusal.provider.away) {
            let end_ms = refusal.session.and_then(|session| ends.get(&session));
            let ended = end_ms.is_some_and(|end_ms| refusal.wall_ms >= *end_ms);
            self.count_if(ended, "sessions refused after their end while the provider was away");
        }
    }

    fn ended(&mut self, phase: &JobPhase) {
        let JobPhase::Finished(outcome) = phase else { return };
        self.count(match outcome {
            Outcome::Completed => "jobs completed",
            Outcome::Failed { .. } => "jobs failed",
            Outcome::Cancelled => "jobs cancelled",
            Outcome::TimedOut => "jobs timed out",
            Outcome::DeadlineMissed => "jobs missed their deadline",
        });
    }

    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    fn count_if(&mut self, happened: bool, what: &'static str) {
        if happened {
            self.count(what);
        }
    }

    /// Adds what another run came across.
    pub fn add(&mut self, other: &Coverage) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    /// What is counted and never happened.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        ALL.into_iter().filter(|what| !self.0.contains_key(what)).collect()
    }
}
