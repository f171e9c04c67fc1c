//! Law 1: "A GPU, MIG placement or share is held by at most one allocation; memory is never oversubscribed."
//!
//! Judged twice. On paper: every device of every allocation is entered into a table when the allocation appears and struck out when it
//! disappears; two entries that cannot stand together are a double hold. And in fact, by the nodes' own record: tasks that ran at the
//! same time on one card must be able to stand together, so a device that was given away before its last task was gone shows too.

use super::{Findings, Violation};
use crate::history::{History, Run};
use muster_model::ids::{AllocationId, NodeId};
use muster_model::object::Key;
use muster_model::{Allocation, Change, DeviceHold, GpuModel, HoldMode, Node, Object, TaskPlacement};
use std::collections::BTreeMap;

#[derive(Default)]
struct Table {
    nodes: BTreeMap<NodeId, Node>,
    allocations: BTreeMap<AllocationId, Allocation>,
    held: BTreeMap<(NodeId, u16), Vec<(AllocationId, HoldMode)>>,
}

/// Reports every double hold.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("law 1");
    let mut table = Table::default();
    for (revision, change) in history.changes() {
        match change {
            Change::Put(object) => match *object {
                Object::Node(node) => {
                    table.nodes.insert(node.id, node);
                }
                Object::Allocation(allocation) => match table.allocations.get(&allocation.id) {
                    Some(old) => {
                        findings.add_if(old.tasks != allocation.tasks, || {
                            format!("allocation {} moved at revision {revision}", allocation.id)
                        });
                        table.allocations.insert(allocation.id, allocation);
                    }
                    None => {
                        for what in table.enter(&allocation) {
                            findings.add(|| format!("revision {revision}: {what}"));
                        }
                        table.allocations.insert(allocation.id, allocation);
                    }
                },
                _ => {}
            },
            Change::Delete(Key::Allocation(id)) => {
                table.allocations.remove(&id);
                table.held.values_mut().for_each(|holds| holds.retain(|(holder, _)| *holder != id));
            }
            _ => {}
        }
    }
    in_fact(history, &mut findings);
    findings.found
}

/// At the start of every task: everything that runs on its cards then must be able to stand there together.
fn in_fact(history: &History, findings: &mut Findings) {
    let (mut placed, mut nodes) =
        (BTreeMap::<AllocationId, Vec<TaskPlacement>>::new(), BTreeMap::<String, Node>::new());
    for (_, change) in history.changes() {
        let Change::Put(object) = change else { continue };
        match *object {
            Object::Allocation(allocation) => drop(placed.insert(allocation.id, allocation.tasks)),
            Object::Node(node) => drop(nodes.insert(node.spec.name.clone(), node)),
            _ => {}
        }
    }
    let devices = |run: &Run| -> &[DeviceHold] {
        let tasks = placed.get(&run.allocation).map_or(&[][..], Vec::as_slice);
        tasks.get(run.rank.0 as usize).map_or(&[], |task| &task.devices)
    };
    for run in &history.runs {
        let then = |other: &&Run| {
            other.node == run.node
                && other.from_ns <= run.from_ns
                && other.to_ns.is_none_or(|to_ns| to_ns > run.from_ns)
        };
        let together: Vec<&Run> = history.runs.iter().filter(then).collect();
        for hold in devices(run) {
            let modes: Vec<HoldMode> = together
                .iter()
                .flat_map(|other| devices(other))
                .filter(|other| other.gpu == hold.gpu)
                .map(|other| other.mode)
                .collect();
            let card = nodes.get(&run.node).and_then(|node| node.spec.gpus.get(usize::from(hold.gpu)));
            if let Some(problem) = card.and_then(|card| clash(&modes, card.model, card.memory_mib)) {
                findings.add(|| format!("GPU {} of {} when {run:?} started: {problem}", hold.gpu, run.node));
            }
        }
    }
}

impl Table {
    fn enter(&mut self, allocation: &Allocation) -> Vec<String> {
        let mut wrong = Vec::new();
        for task in &allocation.tasks {
            for hold in &task.devices {
                let holds = self.held.entry((task.node, hold.gpu)).or_default();
                holds.push((allocation.id, hold.mode));
                let card = self.nodes.get(&task.node).and_then(|node| node.spec.gpus.get(usize::from(hold.gpu)));
                let modes: Vec<HoldMode> = holds.iter().map(|(_, mode)| *mode).collect();
                let problem = match card {
                    None => Some("there is no such card".to_owned()),
                    Some(card) => clash(&modes, card.model, card.memory_mib),
                };
                if let Some(problem) = problem {
                    let holders: Vec<AllocationId> = holds.iter().map(|(holder, _)| *holder).collect();
                    wrong.push(format!("GPU {} of node {} held by {holders:?}: {problem}", hold.gpu, task.node));
                }
            }
        }
        wrong
    }
}

/// Why these holds cannot stand on one card.
fn clash(modes: &[HoldMode], model: GpuModel, memory_mib: u64) -> Option<String> {
    if modes.len() < 2 {
        return None;
    }
    let (mut percent, mut memory, mut instances, mut kinds) = (0_u64, 0, Vec::new(), Vec::new());
    for mode in modes {
        kinds.push(mode.mode());
        match *mode {
            HoldMode::Whole => return Some("a whole card is shared".to_owned()),
            HoldMode::Mig(placement) => instances.push(placement),
            HoldMode::Mps { percent: share, memory_mib } => {
                percent += u64::from(share);
                memory += memory_mib;
            }
            HoldMode::TimeSlice { memory_mib } => memory += memory_mib,
        }
    }
    kinds.dedup();
    if kinds.len() > 1 {
        return Some(format!("modes {kinds:?} at once"));
    }
    if percent > 100 {
        return Some(format!("{percent} % of its threads"));
    }
    if memory > memory_mib {
        return Some(format!("{memory} MiB of {memory_mib}"));
    }
    let mut slices = 0_u32;
    for placement in &instances {
        let mask = u32::from(placement.shape.mask(placement.start));
        if slices & mask != 0 {
            return Some(format!("instances overlap on a {model}: {instances:?}"));
        }
        slices |= mask;
    }
    None
}
