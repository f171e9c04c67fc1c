//! Law 13: devices pass on when they are clean, or are withheld. A referee outside the state keeps what the nodes have said.

#[allow(dead_code, reason = "the histories are shared with other tests, which look at more of each step")]
mod common;

use common::{Step, catches, holds};
use muster_control_core::{Command, Done, Executed, State, TaskReport};
use muster_model::ids::{AllocationId, NodeId};
use muster_model::object::Key;
use muster_model::task::CleanUp;
use muster_model::{Change, Object, TaskPlacement};
use std::collections::{BTreeMap, BTreeSet};

type Watched = Result<(), String>;
type RankOf = (AllocationId, usize);

#[derive(Default)]
struct Referee {
    places: BTreeMap<AllocationId, Vec<TaskPlacement>>,
    over: BTreeSet<RankOf>,
    cleaning: BTreeSet<RankOf>,
    serving: BTreeMap<NodeId, (u64, String)>,
}

impl Referee {
    /// Below the level at which clean-ups are recorded a rank is over, and nothing is known of its devices.
    fn report(&mut self, node: NodeId, report: &TaskReport, has_level: bool) {
        let rank = (report.allocation, report.rank.0 as usize);
        let here = self.places.get(&rank.0).and_then(|tasks| tasks.get(rank.1)).is_some_and(|task| task.node == node);
        if !here || !(report.state.is_over() || self.over.contains(&rank)) {
            return;
        }
        let is_news = self.over.insert(rank);
        match report.clean_up {
            _ if !has_level => {}
            CleanUp::UnderWay if is_news => drop(self.cleaning.insert(rank)),
            CleanUp::UnderWay => {}
            CleanUp::Done { .. } | CleanUp::Failed { .. } => drop(self.cleaning.remove(&rank)),
        }
    }

    /// Nothing of a node counts any more: it is down, or another agent or boot is the node.
    fn lost(&mut self, node: NodeId) {
        for (id, tasks) in &self.places {
            for (rank, _) in tasks.iter().enumerate().filter(|(_, task)| task.node == node) {
                self.over.insert((*id, rank));
                self.cleaning.remove(&(*id, rank));
            }
        }
    }

    fn watch(&mut self, step: &Step<'_>) -> Watched {
        for change in step.changes {
            let Change::Put(object) = change else { continue };
            let Object::Allocation(held) = &**object else { continue };
            self.places.insert(held.id, held.tasks.clone());
        }
        let has_level = step.before.meta.feature_level >= 3;
        for (command, decided) in step.entry.commands.iter().zip(step.decided) {
            match (command, decided) {
                (Command::ReportTasks { node, reports, .. }, Ok(_)) => {
                    reports.iter().for_each(|report| self.report(*node, report, has_level));
                    if has_level && step.entry.commands.len() == 1 {
                        reports.iter().try_for_each(|report| withheld_if_unclean(step, *node, report))?;
                    }
                }
                (Command::FenceNode { node, .. }, Ok(_)) => self.lost(*node),
                (Command::JoinNode { spec, agent, .. }, Ok(Done::Joined { node, .. })) => {
                    let now = (*agent, spec.boot_id.clone());
                    if self.serving.insert(*node, now.clone()).is_some_and(|before| before != now) {
                        self.lost(*node);
                    }
                }
                _ => {}
            }
        }
        for change in step.changes {
            let Change::Delete(Key::Allocation(id)) = change else { continue };
            self.places.remove(id);
            if let Some((_, rank)) = self.cleaning.iter().find(|(of, _)| of == id) {
                return Err(format!("law 13: allocation {id} is released while devices of rank {rank} are cleaned"));
            }
        }
        Ok(())
    }
}

/// What could not be cleaned is withheld when it is released.
fn withheld_if_unclean(step: &Step<'_>, node: NodeId, report: &TaskReport) -> Watched {
    let CleanUp::Failed { reason } = &report.clean_up else { return Ok(()) };
    let held = step.before.allocations.get(&report.allocation);
    let task = held.and_then(|held| held.tasks.get(report.rank.0 as usize)).filter(|task| task.node == node);
    let (Some(held), Some(task), Some(node)) = (held, task, step.after.nodes.get(&node)) else { return Ok(()) };
    let is_news = report.state.is_over() && !held.task_states[report.rank.0 as usize].is_over();
    if !is_news && !held.cleaning.contains(&report.rank) {
        return Ok(());
    }
    let withheld = node.spec.withheld();
    let unguarded = task.devices.iter().find(|hold| !withheld.iter().any(|one| one.gpu == hold.gpu));
    match unguarded {
        Some(hold) => Err(format!("law 13: GPU {} is unclean ({reason}) and not withheld", hold.gpu)),
        None => Ok(()),
    }
}

fn clean_before_passing() -> impl FnMut(&Step<'_>) -> Watched {
    let mut referee = Referee::default();
    move |step| referee.watch(step)
}

#[test]
fn law_13_no_device_passes_on_before_its_clean_up() {
    holds("law_13", clean_before_passing);
    catches("is released while devices", clean_before_passing, || {
        |_, state: &mut State, executed: &mut Executed| {
            let early = state.allocations.values().find(|held| !held.cleaning.is_empty()).map(|held| held.id);
            executed.changes.extend(early.map(|id| Change::Delete(Key::Allocation(id))));
        }
    });
    catches("and not withheld", clean_before_passing, || {
        |_, state: &mut State, _: &mut Executed| {
            let mut nodes: Vec<_> = state.nodes.values().map(|node| muster_model::Node::clone(node)).collect();
            for node in &mut nodes {
                node.spec.gpus = node.spec.withholding(&[]);
            }
            nodes.into_iter().for_each(|node| common::put(state, Object::Node(node)));
        }
    });
}
