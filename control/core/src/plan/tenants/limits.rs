//! What an edit may not do to what is in use and to what the fleet has, from feature level 3 on.
//!
//! What must stay true: no edit sets a max below present use (law 3), and none guarantees more than the fleet's healthy capacity. A state
//! that is already beyond either, by an edit of an older version or by lost hardware, may be edited in every way that does not make it worse.

use super::tree::Tree;
use crate::plan::level;
use crate::reject::Reject;
use muster_model::capacity::Capacity;
use muster_model::ids::{JobId, TenantId};
use muster_model::resources::Resource;
use muster_model::{ResourceVec, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs and tenants that a refusal names: those with most.
const NAMED_MAX: usize = 3;

impl Tree<'_> {
    pub(super) fn check_limits(&self) -> Result<(), Reject> {
        if !level::has(self.state, level::QUOTAS) {
            return Ok(());
        }
        self.check_max()?;
        self.check_first_floors()?;
        self.check_promises()
    }

    /// CPU and memory count in every floor account as soon as one organisation has a guarantee of them. What floors pay for by then must not become
    /// burst because somebody else is given something.
    fn check_first_floors(&self) -> Result<(), Reject> {
        let organisations = |tenants: &BTreeMap<TenantId, Tenant>, resource| {
            tenants.values().any(|tenant| tenant.parent.is_none() && tenant.guarantee.get(resource) > 0)
        };
        for (resource, what) in [(Resource::Cpu, "CPU"), (Resource::Memory, "memory")] {
            if organisations(&self.state.tenants, resource) || !organisations(&self.new, resource) {
                continue;
            }
            for (id, at) in self.state.capacity().tenants() {
                let Some(tenant) = self.get(*id) else { continue };
                let children = self.children(*id);
                let down = children.iter().filter_map(|child| self.get(*child));
                let down: u64 = down.map(|child| child.guarantee.get(resource)).sum();
                let own = tenant.guarantee.get(resource).saturating_sub(down);
                let charged = at.floor_charged.get(resource);
                if charged > own {
                    let (path, in_use, holds) = (&tenant.path, resource.in_words(charged), resource.in_words(own));
                    let problem = format!(
                        "would be the first of {what}, which then counts for every guarantee: jobs guaranteed by {path} use {in_use}, but {path} \
                         would be guaranteed {holds} of its own"
                    );
                    let fix = format!(
                        "guarantee {path} at least {in_use} of its own in the same call, or wait until these jobs have ended"
                    );
                    let first =
                        self.new.values().find(|tenant| tenant.parent.is_none() && tenant.guarantee.get(resource) > 0);
                    let field = self.field(first.map_or(*id, |first| first.id), &children, "guarantee");
                    return Err(Reject::field(field, problem, fix));
                }
            }
        }
        Ok(())
    }

    /// A max that gets lower stays above what is in use.
    fn check_max(&self) -> Result<(), Reject> {
        for tenant in self.differing() {
            let Some(before) = self.state.tenants.get(&tenant.id) else { continue };
            let used = self.state.capacity().tenants().get(&tenant.id).map(|at| at.used).unwrap_or_default();
            let below = used.nonzero().find_map(|(resource, used)| {
                let max = tenant.max.get(resource).filter(|max| *max < used)?;
                before.max.get(resource).is_none_or(|before| max < before).then_some((resource, used, max))
            });
            if let Some((resource, used, max)) = below {
                let (max, in_use) = (resource.in_words(max), resource.in_words(used));
                let who = self.users_of(tenant.id, resource);
                let problem = format!("would be {max}, but {} uses {in_use} now: {who}", tenant.path);
                let fix = format!("allow at least {in_use}, or end some of these jobs first");
                return Err(Reject::field(self.field(tenant.id, &BTreeSet::new(), "max"), problem, fix));
            }
        }
        Ok(())
    }

    /// The jobs at and below a tenant that use most of a resource.
    pub(super) fn users_of(&self, top: TenantId, resource: Resource) -> String {
        let capacity = self.state.capacity();
        let below = |id| capacity.line_of(id).any(|(above, _)| above == top);
        let charged =
            self.state.allocations.values().filter(|held| held.charge.get(resource) > 0 && below(held.tenant));
        let mut users: Vec<(u64, JobId, TenantId)> =
            charged.map(|held| (held.charge.get(resource), held.job, held.tenant)).collect();
        users.sort_unstable_by_key(|(amount, job, _)| (std::cmp::Reverse(*amount), *job));
        let path = |id| self.state.tenants.get(&id).map_or("", |tenant: &Tenant| tenant.path.as_str());
        let named = users
            .iter()
            .take(NAMED_MAX)
            .map(|(amount, job, tenant)| format!("job {job} of {} {}", path(*tenant), resource.in_words(*amount)));
        let mut named: Vec<String> = named.collect();
        if users.len() > NAMED_MAX {
            named.push(format!("and {} more", users.len() - NAMED_MAX));
        }
        named.join(", ")
    }

    /// The guarantees of all organisations together stay within healthy capacity. A fleet without nodes is one that is still to come.
    pub(super) fn check_promises(&self) -> Result<(), Reject> {
        let capacity: &Capacity = self.state.capacity();
        if capacity.nodes().is_empty() {
            return Ok(());
        }
        let (before, after, healthy) = (capacity.guaranteed_total(), self.guaranteed_total(), capacity.healthy());
        let mut grown = after.nonzero().filter(|(resource, amount)| *amount > before.get(*resource));
        let Some((resource, amount)) = grown.find(|(resource, amount)| *amount > healthy.get(*resource)) else {
            return Ok(());
        };
        let mut guaranteed: Vec<(u64, &str)> =
            self.organisations().map(|top| (top.guarantee.get(resource), &*top.path)).collect();
        guaranteed.retain(|(amount, _)| *amount > 0);
        guaranteed.sort_unstable_by_key(|(amount, path)| (std::cmp::Reverse(*amount), *path));
        let named =
            guaranteed.iter().take(NAMED_MAX).map(|(amount, path)| format!("{path} {}", resource.in_words(*amount)));
        let mut named: Vec<String> = named.collect();
        if guaranteed.len() > NAMED_MAX {
            named.push(format!("and {} more", guaranteed.len() - NAMED_MAX));
        }
        let (all, there) = (resource.in_words(amount), resource.in_words(healthy.get(resource)));
        let problem = format!(
            "all organisations together would be guaranteed {all} ({}), but healthy nodes have {there}",
            named.join(", ")
        );
        let over = resource.in_words(amount - healthy.get(resource));
        let fix = format!("lower guarantees of organisations by {over}, or add nodes first");
        Err(Reject::field(self.promise_field(resource), problem, fix))
    }

    /// The first organisation whose guarantee grows.
    fn promise_field(&self, resource: Resource) -> String {
        let was = |id: &TenantId| self.state.tenants.get(id).filter(|old| old.parent.is_none());
        let grows =
            |top: &&Tenant| top.guarantee.get(resource) > was(&top.id).map_or(0, |old| old.guarantee.get(resource));
        let first = self.organisations().filter(|top| self.place.contains_key(&top.id)).find(grows);
        first.map_or_else(|| self.list.to_owned(), |top| self.field(top.id, &BTreeSet::new(), "guarantee"))
    }

    fn organisations(&self) -> impl Iterator<Item = &Tenant> {
        let ids: BTreeSet<TenantId> = self.state.tenants.keys().chain(self.new.keys()).copied().collect();
        ids.into_iter().filter_map(|id| self.get(id)).filter(|tenant| tenant.parent.is_none())
    }

    fn guaranteed_total(&self) -> ResourceVec {
        self.organisations().fold(ResourceVec::default(), |sum, top| sum.plus(&top.guarantee))
    }
}
