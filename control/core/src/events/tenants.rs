//! Tenants in the log: edits, moves, removals.
//!
//! What must stay true: a tenant is reported when its parent is where it is to be, so that a parent is there before its children, and a subtree moves
//! once, with all that is below it. Several commands of one entry may change the same tenant: their order is kept otherwise.

use super::event::{Event, TenantRecord};
use super::{Follower, Told, is_told};
use muster_model::ids::TenantId;
use muster_model::object::Key;
use muster_model::{Change, Object, Tenant};
use std::collections::{BTreeMap, VecDeque};

fn is_of_tenant(change: &Change) -> bool {
    put_of(change).is_some() || matches!(change, Change::Delete(Key::Tenant(_)))
}

fn put_of(change: &Change) -> Option<&Tenant> {
    match change {
        Change::Put(object) => match &**object {
            Object::Tenant(tenant) => Some(tenant),
            _ => None,
        },
        _ => None,
    }
}

/// How many of the first changes are of tenants, together with what is among them that no log tells of: the histories of tenants are.
pub(super) fn run(changes: &[Change]) -> usize {
    let run = changes.iter().take_while(|change| is_of_tenant(change) || !is_told(change)).count();
    changes[..run].iter().rposition(is_of_tenant).map_or(0, |last| last + 1)
}

/// The tenants that a run of changes puts and that are still to be reported.
struct Puts<'a> {
    tenants: Vec<Option<&'a Tenant>>,
    /// Where each tenant is put, in order.
    places: BTreeMap<TenantId, VecDeque<usize>>,
}

impl<'a> Puts<'a> {
    fn of(changes: &'a [Change]) -> Self {
        let tenants: Vec<Option<&Tenant>> = changes.iter().map(put_of).collect();
        let mut places: BTreeMap<TenantId, VecDeque<usize>> = BTreeMap::new();
        for (at, tenant) in tenants.iter().enumerate() {
            tenant.iter().for_each(|tenant| places.entry(tenant.id).or_default().push_back(at));
        }
        Puts { tenants, places }
    }

    /// The next of this tenant.
    fn take(&mut self, id: TenantId) -> Option<&'a Tenant> {
        let at = self.places.get_mut(&id)?.pop_front()?;
        self.tenants[at].take()
    }
}

impl Follower {
    pub(super) fn tenants_changed(&mut self, changes: &[Change], told: &mut Told) {
        let mut puts = Puts::of(changes);
        for (at, change) in changes.iter().enumerate() {
            if let Some(id) = puts.tenants[at].map(|tenant| tenant.id) {
                self.tell_next(id, &mut puts, told);
            } else if let Change::Delete(Key::Tenant(id)) = change
                && let Some(gone) = self.tenants.remove(id)
            {
                told.say(Event::Tenant { record: (&gone).into(), removed: true });
            }
        }
        self.tell_marks(told);
    }

    /// Tells what a tenant becomes next; before, what its parent becomes that is not yet where it is to be.
    fn tell_next(&mut self, id: TenantId, puts: &mut Puts<'_>, told: &mut Told) {
        let Some(tenant) = puts.take(id) else { return };
        if let Some(parent) = tenant.parent {
            let above = Tenant::parent_path(&tenant.path);
            let is_there = self.tenants.get(&parent).map(|known| known.path.as_str()) == above;
            if !is_there {
                self.tell_next(parent, puts, told);
            }
        }
        self.tenant_put(tenant, told);
    }

    fn tenant_put(&mut self, tenant: &Tenant, told: &mut Told) {
        let before = self.tenants.get(&tenant.id).map(|before| before.path.clone());
        if let Some(path) = before.filter(|path| *path != tenant.path) {
            self.moved(&path, &tenant.path);
            told.say(Event::MoveTenant { path, to: tenant.path.clone() });
        }
        let record = TenantRecord::from(tenant);
        let known = self.tenants.insert(tenant.id, tenant.clone());
        if known.is_none_or(|known| TenantRecord::from(&known) != record) {
            told.say(Event::Tenant { record, removed: false });
        }
    }

    /// What is below a tenant goes along.
    fn moved(&mut self, from: &str, to: &str) {
        for tenant in self.tenants.values_mut() {
            let rest = tenant.path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/'));
            if let Some(rest) = rest {
                tenant.path = format!("{to}{rest}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::ids::NodeId;
    use muster_model::tenant_history::TenantHistory;

    fn tenant(id: u32, parent: Option<u32>, path: &str) -> Tenant {
        Tenant { parent: parent.map(TenantId), ..Tenant::usual(TenantId(id), path) }
    }

    fn put(tenant: Tenant) -> [Change; 2] {
        let history = TenantHistory { tenant: tenant.id, versions: Vec::new(), removed_ms: None, is_cut: false };
        [Change::put(Object::TenantHistory(history)), Change::put(Object::Tenant(tenant))]
    }

    /// What the changes tell of paths, after tenants of these.
    fn told(begin: Vec<Tenant>, changes: &[Change]) -> Vec<String> {
        let about = super::super::About { stop_ms_max: 0, card_units_max: 7_000 };
        let (mut follower, _, _) = Follower::begin(begin.into_iter().map(Object::Tenant), (1, 1), about);
        let lines = follower.follow(2, 2, changes);
        let text = |event: Event| match event {
            Event::MoveTenant { path, to } => format!("{path} > {to}"),
            Event::Tenant { record, removed: false } => format!("+ {}", record.path),
            Event::Tenant { record, removed: true } => format!("- {}", record.path),
            other => format!("{other:?}"),
        };
        lines.into_iter().map(|line| text(line.event)).collect()
    }

    /// The child has the lower id, and the histories of tenants stand between the two.
    #[test]
    fn a_subtree_moves_with_its_top_whatever_stands_between() {
        let begin = vec![tenant(1, Some(2), "a/c"), tenant(2, None, "a"), tenant(3, Some(1), "a/c/d")];
        let moved = [tenant(1, Some(2), "b/c"), tenant(2, None, "b"), tenant(3, Some(1), "b/c/d")];
        let changes: Vec<Change> = moved.into_iter().flat_map(put).collect();
        assert_eq!(told(begin, &changes), ["a > b"]);
    }

    /// Two commands of one entry: the first puts `x` below `y`, the second renames `y`.
    #[test]
    fn moves_of_several_commands_keep_their_order() {
        let begin = vec![tenant(1, None, "x"), tenant(2, None, "y")];
        let moved = [tenant(1, Some(2), "y/x"), tenant(2, None, "z"), tenant(1, Some(2), "z/x")];
        let changes: Vec<Change> = moved.into_iter().flat_map(put).collect();
        assert_eq!(told(begin, &changes), ["x > y/x", "y > z"]);
    }

    /// A child leaves its parent, which is removed then.
    #[test]
    fn a_tenant_is_removed_when_its_children_have_left() {
        let begin = vec![tenant(1, None, "p"), tenant(2, Some(1), "p/c")];
        let mut changes: Vec<Change> = put(tenant(2, None, "c")).into();
        changes.push(Change::Delete(Key::Tenant(TenantId(1))));
        assert_eq!(told(begin, &changes), ["p/c > c", "- p"]);
    }

    #[test]
    fn a_run_ends_at_what_the_log_tells_of() {
        let mut changes: Vec<Change> = put(tenant(1, None, "a")).into();
        changes.push(Change::Delete(Key::Request("r".to_owned())));
        assert_eq!(run(&changes), 2);
        changes.push(Change::Delete(Key::Node(NodeId(1))));
        changes.extend(put(tenant(2, None, "b")));
        assert_eq!((run(&changes), run(&changes[2..])), (2, 0));
    }
}
