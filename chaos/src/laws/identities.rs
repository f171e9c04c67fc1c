//! SL5, as far as the record shows it: "After a suspension is acknowledged nothing that the machine says is taken."

use super::{Findings, Violation};
use crate::history::History;
use muster_model::object::Key;
use muster_model::{Change, NodeHealth, Object};
use std::collections::{BTreeMap, BTreeSet};

/// Reports suspended nodes that became ready, and suspended shards that took a cell.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("SL5");
    let (mut suspended, mut ready, mut holders) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let base = history.base.iter().cloned().map(|object| Change::Put(Box::new(object)));
    let base: Vec<Change> = base.collect();
    let before = base.iter().map(|change| (history.base_revision, change));
    let log = history.log.iter().flat_map(|(revision, changes)| changes.iter().map(|change| (*revision, change)));
    for (revision, change) in before.chain(log) {
        match change {
            Change::Put(object) => match &**object {
                Object::Machine(machine) => {
                    let name = machine.principal.to_string();
                    if machine.is_active() {
                        suspended.remove(&name)
                    } else {
                        suspended.insert(name)
                    };
                }
                Object::Node(node) => {
                    let now = (node.health == NodeHealth::Ready, node.epoch);
                    let was = ready.insert(node.id, now);
                    let comes_in = now.0 && was != Some(now);
                    let name = format!("node:{}", node.spec.name);
                    findings.add_if(comes_in && suspended.contains(&name), || {
                        format!("revision {revision}: {name} is suspended and becomes ready under epoch {}", node.epoch)
                    });
                }
                Object::Cell(cell) => {
                    let is_news = holders.insert(cell.id, cell.holder.clone()) != Some(cell.holder.clone());
                    let Some(holder) = cell.holder.as_deref().filter(|_| is_news) else { continue };
                    let of = |machine: &&String| {
                        let shard = machine.strip_prefix("shard:");
                        shard.and_then(|shard| holder.strip_prefix(shard)).is_some_and(|rest| rest.starts_with('-'))
                    };
                    findings.add_if(suspended.iter().any(|machine| of(&machine)), || {
                        format!("revision {revision}: {holder} takes cell {} and is suspended", cell.name)
                    });
                }
                _ => {}
            },
            Change::Delete(Key::Machine(name)) => drop(suspended.remove(name)),
            _ => {}
        }
    }
    findings.found
}
