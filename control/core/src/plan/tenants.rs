//! The quota tree.
//!
//! What must stay true (law 3): children's guarantees sum to at most the parent's, per resource; a max may be lowered below what
//! is in use, which stops growth and nothing else. And law 8: no tenant is trusted more than its parent, and none becomes
//! untrusted while it shares cards. An edit is merged here, with the state that it changes, so that two at one time lose nothing.

use super::requests;
use crate::bounds::{TENANTS_MAX, TENANTS_PER_COMMAND_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::ids::TenantId;
use muster_model::object::Key;
use muster_model::request::SharingMode;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::{TenantChange, TenantEdit};
use muster_model::{Allocation, AntiAffinity, FieldError, Object, ResourceVec, Tenant, Trust};
use std::collections::{BTreeMap, BTreeSet};

/// The tree as it would be: the described tenants over the present ones.
struct Tree<'a> {
    state: &'a State,
    new: BTreeMap<TenantId, Tenant>,
    new_ids: BTreeMap<String, TenantId>,
    new_children: BTreeMap<TenantId, BTreeSet<TenantId>>,
    /// Where in the command each that changes was described: a fault is theirs.
    place: BTreeMap<TenantId, usize>,
    /// The command's word for the list.
    list: &'static str,
}

/// Adds and changes tenants as they are described, all or none.
pub(super) fn apply(draft: &mut Draft<'_>, specs: &[TenantSpec]) -> Result<Done, Reject> {
    put(draft, "tenants", specs)
}

/// Adds and changes tenants in what the edits name, all or none.
pub(super) fn edit(draft: &mut Draft<'_>, edits: &[TenantEdit]) -> Result<Done, Reject> {
    let state = draft.state;
    let present = |path: &String| state.tenants.get(state.index().tenant_ids.get(path)?);
    let specs: Vec<TenantSpec> = edits.iter().map(|edit| edit.on(present(&edit.path))).collect();
    put(draft, "edits", &specs)
}

/// `list` is where faults are, in the words of the call.
fn put(draft: &mut Draft<'_>, list: &'static str, specs: &[TenantSpec]) -> Result<Done, Reject> {
    if specs.is_empty() || specs.len() > TENANTS_PER_COMMAND_MAX {
        return Err(Reject::field(list, format!("has {}", specs.len()), "apply 1 to 10,000 tenants at once"));
    }
    check_each(list, specs)?;
    let mut tree = Tree::over(draft.state, list);
    let mut order: Vec<usize> = (0..specs.len()).collect();
    order.sort_by_key(|&index| specs[index].path.matches('/').count());
    for index in order {
        describe(draft, &mut tree, index, &specs[index])?;
    }
    let added = tree.new.keys().filter(|id| !draft.state.tenants.contains_key(id)).count();
    if draft.state.tenants.len() + added > TENANTS_MAX {
        return Err(Reject::Full { what: "the table of tenants".to_owned(), limit: TENANTS_MAX as u64 });
    }
    tree.check_guarantees()?;
    tree.check_trust()?;
    tree.check_anti_affinity()?;
    let mut changes = Vec::new();
    for (id, tenant) in tree.new {
        let before = draft.state.tenants.get(&id);
        if before != Some(&tenant) {
            changes.push(TenantChange { before: before.map(Into::into), after: (&tenant).into() });
            draft.put(Object::Tenant(tenant));
        }
    }
    changes.sort_by(|a, b| a.after.path.split('/').cmp(b.after.path.split('/')));
    Ok(Done::Tenants { changes })
}

fn check_each(list: &str, specs: &[TenantSpec]) -> Result<(), Reject> {
    let mut wrong: Vec<FieldError> = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, spec) in specs.iter().enumerate() {
        let prefix = format!("{list}[{index}]");
        if let Err(errors) = spec.validate() {
            wrong.extend(errors.into_iter().map(|error| error.under(&prefix)));
        }
        if !seen.insert(spec.path.as_str()) {
            let problem = format!("{:?} is listed twice", spec.path);
            wrong.push(FieldError::new("path", problem, "list each tenant once").under(&prefix));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Reject::Invalid(wrong)) }
}

fn describe(draft: &mut Draft<'_>, tree: &mut Tree<'_>, index: usize, spec: &TenantSpec) -> Result<(), Reject> {
    let parent = match Tenant::parent_path(&spec.path) {
        None => None,
        Some(path) => Some(tree.id_of(path).ok_or_else(|| {
            let problem = format!("parent {path:?} does not exist");
            Reject::field(
                format!("{}[{index}].path", tree.list),
                problem,
                "create the parent first or in the same call",
            )
        })?),
    };
    let id = match tree.id_of(&spec.path) {
        Some(id) => id,
        None => draft.next_tenant(),
    };
    tree.new_ids.insert(spec.path.clone(), id);
    if let Some(parent) = parent {
        tree.new_children.entry(parent).or_default().insert(id);
    }
    let tenant = Tenant {
        id,
        path: spec.path.clone(),
        parent,
        guarantee: spec.guarantee,
        max: spec.max.clone(),
        weight: spec.weight,
        trust: spec.trust,
        anti_affinity: in_order(&spec.anti_affinity),
        lend: spec.lend,
    };
    if draft.state.tenants.get(&id) != Some(&tenant) {
        tree.place.insert(id, index);
    }
    tree.new.insert(id, tenant);
    Ok(())
}

/// One order for what means the same.
fn in_order(anti_affinity: &[AntiAffinity]) -> Vec<AntiAffinity> {
    let mut anti_affinity = anti_affinity.to_vec();
    anti_affinity.sort_unstable();
    anti_affinity
}

impl<'a> Tree<'a> {
    fn over(state: &'a State, list: &'static str) -> Self {
        let (new, new_ids) = (BTreeMap::new(), BTreeMap::new());
        Tree { state, new, new_ids, new_children: BTreeMap::new(), place: BTreeMap::new(), list }
    }

    fn id_of(&self, path: &str) -> Option<TenantId> {
        self.new_ids.get(path).or_else(|| self.state.index().tenant_ids.get(path)).copied()
    }

    fn get(&self, id: TenantId) -> Option<&Tenant> {
        self.new.get(&id).or_else(|| self.state.tenants.get(&id))
    }

    /// Children of `parent`: those there are (parents never change) and those that are new.
    fn children(&self, parent: TenantId) -> BTreeSet<TenantId> {
        let mut children = self.state.index().tenant_children.get(&parent).cloned().unwrap_or_default();
        children.extend(self.new_children.get(&parent).into_iter().flatten());
        children
    }

    /// Where to point when the fault lies between `parent` and its children: at the parent if it changes, else at the first
    /// child that does.
    fn field(&self, parent: TenantId, children: &BTreeSet<TenantId>, name: &str) -> String {
        let child = || children.iter().find_map(|child| self.place.get(child));
        let index = self.place.get(&parent).or_else(child).copied().unwrap_or_default();
        format!("{}[{index}].{name}", self.list)
    }

    fn check_guarantees(&self) -> Result<(), Reject> {
        let parents: BTreeSet<TenantId> =
            self.new.values().flat_map(|tenant| tenant.parent.into_iter().chain([tenant.id])).collect();
        for id in parents {
            let Some(parent) = self.get(id) else { continue };
            let children = self.children(id);
            let mut sum = ResourceVec::default();
            for child in children.iter().filter_map(|child| self.get(*child)) {
                sum.add(&child.guarantee);
            }
            if let Some(resource) = sum.first_excess_over(&parent.guarantee) {
                let path = &parent.path;
                let (sum, own) = (sum.get(resource), parent.guarantee.get(resource));
                let (sum, own) = (resource.in_words(sum), resource.in_words(own));
                let problem = format!("the children of {path} have guarantees of {sum} together, but {path} has {own}");
                let fix = "raise the parent's guarantee or lower the children's";
                return Err(Reject::field(self.field(id, &children, "guarantee"), problem, fix));
            }
        }
        Ok(())
    }

    /// Whoever a tenant is kept apart from exists: a rule about nobody would be a slip of the pen.
    fn check_anti_affinity(&self) -> Result<(), Reject> {
        for tenant in self.new.values() {
            if let Some(other) = tenant.anti_affinity.iter().find(|other| self.id_of(&other.tenant).is_none()) {
                let problem = format!("names {}, which does not exist", other.tenant);
                let field = self.field(tenant.id, &BTreeSet::new(), "anti_affinity");
                return Err(Reject::field(field, problem, "create it first or in the same call"));
            }
        }
        Ok(())
    }

    fn check_trust(&self) -> Result<(), Reject> {
        let mut sharing = None;
        for tenant in self.new.values() {
            let parent = tenant.parent.and_then(|parent| self.get(parent));
            if tenant.trust == Trust::Trusted && parent.is_some_and(|parent| parent.trust == Trust::Untrusted) {
                let problem = format!("{} is trusted, but its parent is not", tenant.path);
                let field = self.field(tenant.id, &BTreeSet::new(), "trust");
                return Err(Reject::field(field, problem, "make it untrusted, or trust the parent"));
            }
            if tenant.trust == Trust::Untrusted {
                self.check_distrust(tenant, sharing.get_or_insert_with(|| self.sharing()))?;
            }
        }
        Ok(())
    }

    /// Who shares a card now, by any of its allocations that do.
    fn sharing(&self) -> BTreeMap<TenantId, &Allocation> {
        let shares = |mode: SharingMode| matches!(mode, SharingMode::Mps | SharingMode::TimeSlice);
        let held = self.state.allocations.values().map(AsRef::as_ref);
        let sharing = held.filter(|held: &&Allocation| {
            held.tasks.iter().flat_map(|task| &task.devices).any(|hold| shares(hold.mode.mode()))
        });
        sharing.map(|held| (held.tenant, held)).collect()
    }

    /// An untrusted tenant has no trusted children and shares no card now.
    fn check_distrust(&self, tenant: &Tenant, sharing: &BTreeMap<TenantId, &Allocation>) -> Result<(), Reject> {
        let children = self.children(tenant.id);
        let trusted = children.iter().filter_map(|child| self.get(*child)).find(|child| child.trust == Trust::Trusted);
        if let Some(child) = trusted {
            let problem = format!("{} would be untrusted, but its child {} is trusted", tenant.path, child.path);
            let fix = "make its children untrusted in the same call";
            return Err(Reject::field(self.field(tenant.id, &children, "trust"), problem, fix));
        }
        let before = self.state.tenants.get(&tenant.id);
        if before.is_none_or(|before| before.trust == Trust::Untrusted) {
            return Ok(());
        }
        match sharing.get(&tenant.id) {
            None => Ok(()),
            Some(held) => {
                let why = format!("it shares a GPU for tenant {}; cancel job {} first", tenant.path, held.job);
                Err(Reject::InUse { what: "allocation".to_owned(), id: held.id.to_string(), why })
            }
        }
    }
}

/// Removes a tenant that nothing hangs on. What it used stays in the usage totals under its id.
pub(super) fn delete(draft: &mut Draft<'_>, path: &str) -> Result<Done, Reject> {
    let state = draft.state;
    let Some(&id) = state.index().tenant_ids.get(path) else { return Err(Reject::not_found("tenant", path)) };
    let in_use = |why: String| Err(Reject::InUse { what: "tenant".to_owned(), id: path.to_owned(), why });
    if let Some(children) = state.index().tenant_children.get(&id) {
        return in_use(format!("it has {} children; delete them first", children.len()));
    }
    let jobs = state.index().jobs_of(id).live;
    if jobs > 0 {
        return in_use(format!("some of its jobs have not ended ({jobs}); cancel them first"));
    }
    let named = |tenant: &&Tenant| tenant.anti_affinity.iter().any(|other| other.tenant == path);
    if let Some(other) = state.tenants.values().find(named) {
        return in_use(format!("anti_affinity of tenant {} names it; remove that rule first", other.path));
    }
    requests::tenant_goes(draft, id);
    draft.delete(Key::Tenant(id));
    Ok(Done::Ok)
}
