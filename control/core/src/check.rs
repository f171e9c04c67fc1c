//! Looks for broken laws in a state.
//!
//! What must stay true: nothing here trusts the capacity ledger or the indexes; what is held is counted again from the allocations, card by
//! card, with arithmetic of its own. Slow, for tests and simulation.

use crate::index::Index;
use crate::state::State;
use muster_model::ids::{AllocationId, JobId, NodeId, TenantId};
use muster_model::laws::{Broken, Law};
use muster_model::{
    Allocation, AllocationState, Dependency, DeviceHold, HoldMode, Job, JobPhase, Pool, PortBlock, ResourceVec,
    TaskState, Tenant, Trust,
};
use std::collections::{BTreeMap, BTreeSet};

fn broken<T>(law: u8, what: String) -> Result<T, Broken> {
    Err(Broken { law: Law(law), what })
}

fn ensure(holds: bool, law: u8, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { broken(law, what()) }
}

impl State {
    /// Looks for broken laws: 1, 2, 3 (the tree and the capacity ledger), 5, 6, 7, 8, and 10 as far as what is derived must follow from the
    /// objects. Growth over a max shows only between two states: see [`State::check_growth`].
    ///
    /// # Errors
    /// The first law found broken.
    pub fn check(&self) -> Result<(), Broken> {
        self.check_cards()?;
        self.check_jobs()?;
        self.check_allocations()?;
        self.check_tree()?;
        self.check_books()?;
        self.check_floors()?;
        self.check_classes()?;
        self.check_use_histories()?;
        self.check_tenant_histories()?;
        self.check_isolation()?;
        self.check_counters()?;
        self.check_index()
    }

    /// Whether nobody grew further over a max since `before` (law 3). A max that was lowered below use is no breach; using more
    /// after that is.
    ///
    /// # Errors
    /// Law 3, with the tenant and the figures.
    pub fn check_growth(&self, before: &State) -> Result<(), Broken> {
        let (used_before, used) = (before.charged(), self.charged());
        for (id, now) in used {
            let Some(tenant) = self.tenants.get(&id) else { continue };
            let then = used_before.get(&id).copied().unwrap_or_default();
            for (resource, amount) in now.nonzero() {
                let Some(max) = tenant.max.get(resource).filter(|max| amount > *max) else { continue };
                // What was bound before the max was lowered, in the same entry, was under the old one.
                let old = before.tenants.get(&id).and_then(|old| old.max.get(resource));
                if before.tenants.contains_key(&id) && old.is_none_or(|old| amount <= old) {
                    continue;
                }
                ensure(amount <= then.get(resource), 3, || {
                    let (path, was) = (&tenant.path, then.get(resource));
                    format!("tenant {path} grew from {was} to {amount} of {resource}, its max is {max}")
                })?;
            }
        }
        Ok(())
    }

    /// What keeps allocations on one node apart: ports of their own (1), users of one domain (8), and nodes that are closed where they lack what their pool
    /// needs (8).
    fn check_isolation(&self) -> Result<(), Broken> {
        let mut ports: BTreeMap<(NodeId, PortBlock), JobId> = BTreeMap::new();
        for held in self.allocations.values() {
            let Some(block) = held.ports.block() else { continue };
            for node in held.tasks.iter().map(|task| task.node).collect::<BTreeSet<_>>() {
                let other = *ports.entry((node, block)).or_insert(held.job);
                ensure(other == held.job, 1, || {
                    format!("jobs {other} and {} have ports {block} on node {node}", held.job)
                })?;
            }
        }
        let mut users: BTreeMap<u32, &str> = BTreeMap::new();
        for tenant in self.tenants.values() {
            let Some(user) = tenant.run_as else { continue };
            let domain = Tenant::domain_of(&tenant.path);
            let other = *users.entry(user).or_insert(domain);
            ensure(other == domain, 8, || format!("organisations {other} and {domain} run as user {user}"))?;
        }
        for node in self.nodes.values() {
            let pool = self.pools.get(&node.spec.pool).unwrap_or_else(|| Pool::standard_rules());
            let lacks = pool.lacks(&node.spec.proofs).unwrap_or_default();
            ensure(node.notes.lacks == lacks, 8, || {
                format!("node {} lacks {lacks:?}, and is told to lack {:?}", node.spec.name, node.notes.lacks)
            })?;
        }
        Ok(())
    }

    /// Laws 1 and 8: every card, counted from the allocations.
    fn check_cards(&self) -> Result<(), Broken> {
        let mut cards: BTreeMap<(NodeId, u16), Vec<(&Allocation, DeviceHold)>> = BTreeMap::new();
        for held in self.allocations.values() {
            for task in &held.tasks {
                for hold in &task.devices {
                    cards.entry((task.node, hold.gpu)).or_default().push((held, *hold));
                }
            }
        }
        for ((node, gpu), holds) in cards {
            let card = self.nodes.get(&node).and_then(|node| node.spec.gpus.get(usize::from(gpu)));
            let Some(card) = card else {
                return broken(1, format!("{} hold GPU {gpu} of node {node}, which is not there", names(&holds)));
            };
            check_card(&holds, card.memory_mib).map_err(|what| Broken {
                law: Law(1),
                what: format!("GPU {gpu} of node {node}: {what} ({})", names(&holds)),
            })?;
            self.check_sharers(&holds)?;
        }
        Ok(())
    }

    fn check_sharers(&self, holds: &[(&Allocation, DeviceHold)]) -> Result<(), Broken> {
        let shared =
            holds.iter().filter(|(_, hold)| matches!(hold.mode, HoldMode::Mps { .. } | HoldMode::TimeSlice { .. }));
        let mut domains = BTreeSet::new();
        for (held, _) in shared {
            let Some(tenant) = self.tenants.get(&held.tenant) else { continue };
            ensure(tenant.trust == Trust::Trusted, 8, || {
                format!("untrusted tenant {} shares a card by allocation {}", tenant.path, held.id)
            })?;
            domains.insert(Tenant::domain_of(&tenant.path));
        }
        ensure(domains.len() <= 1, 8, || format!("domains {domains:?} share one card ({})", names(holds)))
    }

    /// Law 5: a job and its allocation name each other, and nothing else names either.
    fn check_jobs(&self) -> Result<(), Broken> {
        let mut holders: BTreeMap<JobId, AllocationId> = BTreeMap::new();
        for held in self.allocations.values() {
            if held.is_growth {
                self.check_part(held)?;
                continue;
            }
            if let Some(other) = holders.insert(held.job, held.id) {
                return broken(
                    5,
                    format!("job {} has two live attempts: allocations {other} and {}", held.job, held.id),
                );
            }
            ensure(self.jobs.contains_key(&held.job), 5, || {
                format!("allocation {} belongs to job {}, which is gone", held.id, held.job)
            })?;
        }
        for job in self.jobs.values() {
            let holds = holders.get(&job.id).copied();
            ensure(job.phase.allocation() == holds, 5, || {
                format!("job {} is {:?}, its live allocation is {holds:?}", job.id, job.phase)
            })?;
            ensure(!matches!(job.phase, JobPhase::Finished(_)), 5, || format!("finished job {} is in memory", job.id))?;
            ensure(self.tenants.contains_key(&job.tenant), 3, || format!("job {} has no tenant", job.id))?;
            self.check_growth_of(job)?;
            self.check_attempt(job)?;
            self.check_eligibility(job)?;
            self.check_array(job)?;
        }
        Ok(())
    }

    /// A job starts only when it is eligible, is in a queue only then, and waits only for jobs that are live (or for ever, and says so).
    fn check_eligibility(&self, job: &Job) -> Result<(), Broken> {
        let (id, unmet) = (job.id, &job.unmet);
        let placed = job.cell.is_some() || job.reserved.is_some();
        ensure(job.phase != JobPhase::Queued || job.is_eligible() || !placed, 5, || {
            format!("job {id} is not eligible and yet in cell {:?}", job.cell)
        })?;
        let started = matches!(job.phase, JobPhase::Starting(_) | JobPhase::Running(_));
        ensure(!started || unmet.is_empty(), 5, || format!("job {id} has started, and {unmet:?} is not met"))?;
        let gone = |on: &&Dependency| !self.jobs.contains_key(&on.job) && unmet.never != Some(**on);
        let forgotten = unmet.dependencies.iter().find(gone).filter(|_| unmet.never.is_none());
        ensure(forgotten.is_none(), 5, || format!("job {id} waits for {forgotten:?}, which is over"))?;
        ensure(unmet.dependencies.iter().all(|on| on.job < id), 5, || format!("job {id} waits for a later job"))
    }

    /// Each index of an array is left, or has one live job, or has ended.
    fn check_array(&self, job: &Job) -> Result<(), Broken> {
        let Some(array) = job.array.as_deref() else { return Ok(()) };
        let tasks = self.jobs.values().filter_map(|task| task.array_task).filter(|task| task.array == job.id);
        let live = tasks.map(|task| task.index);
        let mut all: Vec<u32> =
            array.left.iter().chain(array.completed.iter()).chain(array.failed.iter()).chain(live).collect();
        all.sort_unstable();
        let indices = job.spec.array.as_ref().map(|spec| spec.indices.iter().collect::<Vec<_>>());
        ensure(indices.as_ref() == Some(&all), 5, || format!("tasks of array {} are {all:?}", job.id))?;
        ensure(job.phase == JobPhase::Queued, 5, || format!("array {} is {:?}", job.id, job.phase))
    }

    /// A part of growth belongs to an attempt that holds its minimum, is burst, and is known to its job.
    fn check_part(&self, part: &Allocation) -> Result<(), Broken> {
        let (id, job) = (part.id, self.jobs.get(&part.job));
        let minimum = job.and_then(|job| self.allocations.get(&job.phase.allocation()?));
        let (Some(job), Some(minimum)) = (job, minimum) else {
            return broken(2, format!("allocation {id} is growth of job {}, which has no minimum", part.job));
        };
        let same = (part.attempt, part.tenant, part.cell, part.model)
            == (minimum.attempt, minimum.tenant, minimum.cell, minimum.model);
        ensure(same && job.growth.parts.contains(&id), 5, || {
            format!("allocation {id} is no growth of attempt {} of job {}", job.attempt, job.id)
        })?;
        ensure(part.account().is_none(), 4, || format!("a floor pays for allocation {id}, which is growth"))?;
        let stopping = matches!(minimum.state, AllocationState::Stopping(_)) || minimum.has_ended();
        ensure(!stopping || part.state != AllocationState::Active, 2, || {
            format!("job {} is being stopped, its growth {id} is not", job.id)
        })?;
        ensure(minimum.pays() || !part.pays(), 2, || format!("job {} is preempted and keeps growth {id}", job.id))
    }

    /// What a job says of its growth is what there is.
    fn check_growth_of(&self, job: &Job) -> Result<(), Broken> {
        let parts = || job.growth.parts.iter().filter_map(|id| self.allocations.get(id));
        let tasks: usize =
            parts().filter(|part| part.state == AllocationState::Active).map(|part| part.tasks.len()).sum();
        let known = parts().count() == job.growth.parts.len() && tasks == job.growth.tasks as usize;
        ensure(known, 2, || format!("job {} has grown by {tasks} tasks, and says {:?}", job.id, job.growth))?;
        let (now, max) = (job.spec.tasks + job.growth.tasks, job.spec.tasks_max());
        ensure(now <= max, 2, || format!("job {} has {now} tasks, at most {max}", job.id))
    }

    fn check_attempt(&self, job: &Job) -> Result<(), Broken> {
        let Some(held) = job.phase.allocation().and_then(|id| self.allocations.get(&id)) else { return Ok(()) };
        ensure(held.attempt == job.attempt, 5, || {
            format!("job {} is at attempt {}, its allocation at {}", job.id, job.attempt, held.attempt)
        })?;
        let stopping = matches!(held.state, AllocationState::Stopping(_));
        ensure(stopping == matches!(job.phase, JobPhase::Stopping(_)), 5, || {
            format!("job {} is {:?}, its allocation {:?}", job.id, job.phase, held.state)
        })?;
        let tasks = job.spec.tasks as usize;
        ensure(held.tasks.len() == tasks && held.task_states.len() == tasks, 2, || {
            format!("job {} has {tasks} tasks, allocation {} binds {}", job.id, held.id, held.tasks.len())
        })
    }

    /// Laws 2, 6 and 7: what allocations say of epochs and tasks.
    fn check_allocations(&self) -> Result<(), Broken> {
        for held in self.allocations.values() {
            let grown = self.jobs.get(&held.job).is_some_and(|job| !job.growth.parts.is_empty());
            ensure(!held.is_over() || grown && !held.is_growth, 2, || {
                format!("allocation {} is over and still holds its devices", held.id)
            })?;
            let newest = self.cells.get(&held.cell).map(|cell| cell.epoch);
            ensure(newest.is_some_and(|newest| held.cell_epoch <= newest), 7, || {
                format!("allocation {} was bound at epoch {}, the cell is at {newest:?}", held.id, held.cell_epoch)
            })?;
            for rank in &held.cleaning {
                let seen = held.task_states.get(rank.0 as usize);
                ensure(seen.is_some_and(TaskState::is_over), 13, || {
                    format!("devices of rank {rank} of allocation {} are cleaned, and it is {seen:?}", held.id)
                })?;
            }
            for (rank, (task, seen)) in held.tasks.iter().zip(&held.task_states).enumerate() {
                let bound = held.node_epochs.get(&task.node).copied();
                let now = self.nodes.get(&task.node).map(|node| node.epoch);
                ensure(seen.is_over() || (bound.is_some() && bound == now), 6, || {
                    format!("rank {rank} of allocation {} is live, bound at {bound:?} on a node at {now:?}", held.id)
                })?;
            }
        }
        Ok(())
    }

    /// Laws 3 and 8: the tree of guarantees and of trust.
    fn check_tree(&self) -> Result<(), Broken> {
        let mut sums: BTreeMap<TenantId, ResourceVec> = BTreeMap::new();
        for tenant in self.tenants.values() {
            if let Some(parent) = tenant.parent {
                ensure(self.tenants.contains_key(&parent), 3, || format!("tenant {} has no parent", tenant.path))?;
                sums.entry(parent).or_default().add(&tenant.guarantee);
                let distrusted = self.tenants.get(&parent).is_some_and(|parent| parent.trust == Trust::Untrusted);
                ensure(!distrusted || tenant.trust == Trust::Untrusted, 8, || {
                    format!("tenant {} is trusted, its parent is not", tenant.path)
                })?;
            }
        }
        for (id, sum) in sums {
            let Some(parent) = self.tenants.get(&id) else { continue };
            if let Some(resource) = sum.first_excess_over(&parent.guarantee) {
                let (path, sum, own) = (&parent.path, sum.get(resource), parent.guarantee.get(resource));
                return broken(3, format!("children of {path} are guaranteed {sum} of {resource}, it has {own}"));
            }
        }
        Ok(())
    }

    /// What each tenant is charged, ancestors included, counted from the allocations.
    fn charged(&self) -> BTreeMap<TenantId, ResourceVec> {
        let mut charged: BTreeMap<TenantId, ResourceVec> = BTreeMap::new();
        for (tenant, charge, _) in self.payers() {
            let mut next = Some(tenant);
            while let Some(id) = next {
                charged.entry(id).or_default().add(charge);
                next = self.tenants.get(&id).and_then(|tenant| tenant.parent);
            }
        }
        charged
    }

    /// Law 3 again: the capacity ledger says what the allocations say.
    fn check_books(&self) -> Result<(), Broken> {
        let charged = self.charged();
        for (id, tenant) in &self.tenants {
            let counted = charged.get(id).copied().unwrap_or_default();
            let booked = self.capacity().tenants().get(id).map(|tenant| tenant.used);
            ensure(booked == Some(counted), 3, || {
                format!("tenant {} uses {counted:?}, the capacity ledger says {booked:?}", tenant.path)
            })?;
        }
        for held in self.allocations.values() {
            let Some(job) = self.jobs.get(&held.job) else { continue };
            let due = match held.is_growth {
                false => crate::plan::charge_of(&job.spec, held.model),
                true => {
                    let each = job.spec.request.charge_on(held.model.unwrap_or(muster_model::GpuModel::ALL[0]));
                    each.times(held.tasks.len() as u64)
                }
            };
            ensure(held.charge == due && held.tenant == job.tenant, 3, || {
                format!("allocation {} is charged {:?}, due is {due:?}", held.id, held.charge)
            })?;
        }
        Ok(())
    }

    /// Law 5: ids that were given out lie below the counters, so none is given out twice.
    fn check_counters(&self) -> Result<(), Broken> {
        let meta = &self.meta;
        let last = |what: &str, last: Option<u64>, next: u64| {
            ensure(last.is_none_or(|last| last < next), 5, || {
                format!("{what} {last:?} is not below the counter {next}")
            })
        };
        last("job", self.jobs.keys().next_back().map(|id| id.0), meta.next_job.0)?;
        last("allocation", self.allocations.keys().next_back().map(|id| id.0), meta.next_allocation.0)?;
        last("node", self.nodes.keys().next_back().map(|id| id.0.into()), meta.next_node.0.into())?;
        last("tenant", self.tenants.keys().next_back().map(|id| id.0.into()), meta.next_tenant.0.into())?;
        last("cell", self.cells.keys().next_back().map(|id| id.0.into()), meta.next_cell.0.into())
    }

    /// Law 10: what is derived follows from the objects.
    fn check_index(&self) -> Result<(), Broken> {
        ensure(*self.index() == self.index_anew(), 10, || "the indexes are not what the objects give".to_owned())
    }
}

impl State {
    /// The indexes, built from the objects at once.
    fn index_anew(&self) -> Index {
        let mut index = Index::default();
        self.tenants.values().for_each(|tenant| index.put_tenant(tenant));
        self.windows.values().for_each(|window| index.change_window(None, Some(window)));
        self.cells.values().for_each(|cell| index.put_cell(cell));
        self.nodes.values().for_each(|node| index.change_node(None, Some(node)));
        self.jobs.values().for_each(|job| index.change_job(None, Some(job)));
        for held in self.allocations.values() {
            index.add_allocation(held);
            index.classes.changed(self.capacity(), None, Some(held));
        }
        self.requests.unordered().for_each(|request| index.change_request(None, Some(request)));
        self.allocation_usage.values().for_each(|usage| index.change_usage(None, Some(usage)));
        self.tenant_histories.values().for_each(|history| index.past_versions.change(None, Some(history)));
        self.grants.values().for_each(|grant| index.access.change_grant(None, Some(grant)));
        self.credentials.values().for_each(|one| index.access.change_credential(None, Some(one)));
        self.join_tokens.values().for_each(|token| index.access.change_join_token(None, Some(token)));
        index
    }
}

fn names(holds: &[(&Allocation, DeviceHold)]) -> String {
    let ids: Vec<String> = holds.iter().map(|(held, hold)| format!("allocation {} {:?}", held.id, hold.mode)).collect();
    ids.join(", ")
}

/// Law 1 for one card: one kind of hold, nothing twice, no memory oversubscribed.
fn check_card(holds: &[(&Allocation, DeviceHold)], memory_mib: u64) -> Result<(), String> {
    let (mut slices, mut percents, mut memory, mut media) = (0_u8, 0_u32, 0_u64, 0);
    let kinds: BTreeSet<_> = holds.iter().map(|(_, hold)| hold.mode.mode()).collect();
    if kinds.len() > 1 {
        return Err(format!("is in several modes at once: {kinds:?}"));
    }
    for (_, hold) in holds {
        match hold.mode {
            HoldMode::Whole if holds.len() > 1 => return Err("is held whole and by others".to_owned()),
            HoldMode::Whole => {}
            HoldMode::Mig(place) => {
                let mask = place.shape.mask(place.start);
                if slices & mask != 0 {
                    return Err("has two instances on one slice".to_owned());
                }
                slices |= mask;
                media += u8::from(place.shape.has_media());
            }
            HoldMode::Mps { percent, memory_mib } => {
                percents += u32::from(percent);
                memory += memory_mib;
            }
            HoldMode::TimeSlice { memory_mib } => memory += memory_mib,
        }
    }
    if percents > 100 || memory > memory_mib || media > 1 {
        return Err(format!("is oversubscribed: {percents} %, {memory} of {memory_mib} MiB, {media} media engines"));
    }
    Ok(())
}
