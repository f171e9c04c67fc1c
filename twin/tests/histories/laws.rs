//! The laws of quota and preemption, judged from the changes of log entries alone.
//!
//! What must stay true: nothing here uses the capacity ledger, the indexes or the rules of `plan`: use, accounts and cover are counted again from the
//! objects. One function per law, named after it.

use crate::{moves, rich};
use muster_model::node::NodeHealth;
use muster_model::object::Key;
use muster_model::resources::Resource;
use muster_model::{
    Allocation, AllocationId, AllocationState, Change, EndCause, GpuUnits, Job, JobId, MoveRecord, Node, NodeId,
    Object, Pool, PreemptReason, ResourceVec, Tenant, TenantId,
};
use std::collections::{BTreeMap, BTreeSet};

/// What the changes have made so far.
#[derive(Clone, Default)]
pub(crate) struct Judge {
    pub(crate) tenants: BTreeMap<TenantId, Tenant>,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) held: BTreeMap<AllocationId, Allocation>,
    /// The allocation that a reclaim from a job's attempt made, as long as a floor pays for it.
    pub(crate) reclaimed_from: BTreeMap<JobId, AllocationId>,
    pub(crate) pools: BTreeMap<String, Pool>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) moves: BTreeMap<AllocationId, MoveRecord>,
    pub(crate) now_ms: u64,
}

/// Who is charged what, and which floor pays.
struct Charge {
    tenant: TenantId,
    charge: ResourceVec,
    account: Option<TenantId>,
}

impl Judge {
    pub(crate) fn begin(objects: impl Iterator<Item = Object>) -> Self {
        let mut judge = Judge::default();
        for object in objects {
            judge.apply(&Change::put(object));
        }
        judge
    }

    /// What the changes of one entry break.
    pub(crate) fn entry(&mut self, changes: &[Change]) -> Vec<String> {
        let before = self.clone();
        changes.iter().for_each(|change| self.apply(change));
        let taken = self.taken(&before, changes);
        let mut broken = Vec::new();
        self.law_2_a_gang_is_bound_and_preempted_whole(&before, &taken, &mut broken);
        self.law_3_no_tenant_exceeds_its_max(&mut broken);
        self.law_4_no_floor_is_preempted_for_another_tenant(&before, &taken, &mut broken);
        self.law_12_a_reclaim_raises_what_floors_cover(&before, &taken, &mut broken);
        self.a_victims_side_is_above_its_guarantee(&before, &taken, &mut broken);
        self.claims_are_kept_for_their_jobs(&before, changes, &mut broken);
        self.accounts_hold_what_is_charged(&mut broken);
        self.promotions_are_complete(&mut broken);
        self.no_two_jobs_evict_each_other(&taken, &mut broken);
        rich::arrays_keep_their_limits(self, &before, &mut broken);
        rich::what_is_not_lent_is_kept(self, &before, &mut broken);
        moves::judge(self, &before, &taken, changes, &mut broken);
        broken
    }

    pub(crate) fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(object) => match &**object {
                Object::Tenant(tenant) => drop(self.tenants.insert(tenant.id, tenant.clone())),
                Object::Pool(pool) => drop(self.pools.insert(pool.name.clone(), pool.clone())),
                Object::Node(node) => drop(self.nodes.insert(node.id, node.clone())),
                Object::Move(record) => drop(self.moves.insert(record.id, record.clone())),
                Object::Meta(meta) => self.now_ms = meta.now_ms,
                Object::Job(job) => drop(self.jobs.insert(job.id, job.clone())),
                Object::Allocation(held) => drop(self.held.insert(held.id, held.clone())),
                _ => {}
            },
            Change::Delete(Key::Tenant(id)) => drop(self.tenants.remove(id)),
            Change::Delete(Key::Allocation(id)) => drop(self.held.remove(id)),
            Change::Delete(_) | Change::Audit(_) => {}
            Change::Retire(job) => drop(self.jobs.remove(&job.id)),
        }
    }

    /// Attempts that these changes preempt, in order, as they were before.
    pub(crate) fn taken(&self, before: &Judge, changes: &[Change]) -> Vec<(Allocation, JobId, PreemptReason)> {
        let preempted = |change: &Change| match change {
            Change::Put(object) => match &**object {
                Object::Allocation(held) => match held.state {
                    AllocationState::Stopping(EndCause::Preempted { by: Some(by), reason }) => {
                        let was = before.held.get(&held.id).filter(|was| was.pays())?;
                        Some((was.clone(), by, reason))
                    }
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
        changes.iter().filter_map(preempted).collect()
    }

    fn law_2_a_gang_is_bound_and_preempted_whole(
        &self,
        before: &Judge,
        taken: &[(Allocation, JobId, PreemptReason)],
        broken: &mut Vec<String>,
    ) {
        let mut live: BTreeMap<JobId, usize> = BTreeMap::new();
        for held in self.held.values() {
            if held.is_growth {
                self.growth_keeps_to_its_gang(held, broken);
                continue;
            }
            *live.entry(held.job).or_default() += 1;
            if let Some(job) = self.jobs.get(&held.job)
                && held.tasks.len() as u32 != job.spec.tasks
            {
                broken.push(format!("law 2: {} of {} tasks of job {} bound", held.tasks.len(), job.spec.tasks, job.id));
            }
        }
        broken.extend(live.iter().filter(|(_, count)| **count > 1).map(|(job, _)| format!("law 5: job {job} twice")));
        for (victim, _, _) in taken {
            // Growth goes alone; a minimum with all of its growth.
            let taken = |held: &Allocation| taken.iter().any(|(other, _, _)| other.id == held.id);
            let whole = |held: &&Allocation| held.job == victim.job && held.pays() && !victim.is_growth;
            let rest = before.held.values().filter(whole).filter(|held| !taken(held));
            let now = self.held.get(&victim.id).map_or(victim.tasks.len(), |held| held.tasks.len());
            if rest.count() > 0 || now != victim.tasks.len() {
                broken.push(format!("law 2: job {} is preempted in part", victim.job));
            }
        }
    }

    /// Growth is burst, is of its gang's present attempt, and is not beside a minimum that has ended or is preempted.
    fn growth_keeps_to_its_gang(&self, part: &Allocation, broken: &mut Vec<String>) {
        let of_gang = |held: &&Allocation| held.job == part.job && !held.is_growth;
        let Some(minimum) = self.held.values().find(of_gang) else {
            return broken.push(format!("law 2: growth {} of job {} has no gang", part.id, part.job));
        };
        let runs = part.state == AllocationState::Active;
        if minimum.attempt != part.attempt || runs && minimum.state != AllocationState::Active {
            broken.push(format!("law 2: growth {} of job {} outlives its gang", part.id, part.job));
        }
        if part.account().is_some() {
            broken.push(format!("law 4: growth {} is guaranteed", part.id));
        }
        if let Some(job) = self.jobs.get(&part.job) {
            let active = |held: &&Allocation| held.job == part.job && held.state == AllocationState::Active;
            let tasks: usize = self.held.values().filter(active).map(|held| held.tasks.len()).sum();
            if tasks as u32 > job.spec.tasks_max() {
                broken.push(format!("law 2: job {} has {tasks} tasks, at most {}", job.id, job.spec.tasks_max()));
            }
        }
    }

    /// Everything that pays.
    fn charges(&self) -> impl Iterator<Item = Charge> + '_ {
        let held = self.held.values().filter(|held| held.pays());
        let held = held.map(|held| Charge { tenant: held.tenant, charge: held.charge, account: held.account() });
        let claims = self.jobs.values().filter_map(|job| Some((job.tenant, job.claim.as_ref()?)));
        held.chain(claims.map(|(tenant, claim)| Charge { tenant, charge: claim.charge, account: claim.account }))
    }

    pub(crate) fn line(&self, tenant: TenantId) -> impl Iterator<Item = &Tenant> + '_ {
        std::iter::successors(self.tenants.get(&tenant), |at| self.tenants.get(&at.parent?))
    }

    pub(crate) fn used(&self) -> BTreeMap<TenantId, ResourceVec> {
        let mut used: BTreeMap<TenantId, ResourceVec> = BTreeMap::new();
        for Charge { tenant, charge, .. } in self.charges() {
            self.line(tenant).for_each(|at| used.entry(at.id).or_default().add(&charge));
        }
        used
    }

    fn law_3_no_tenant_exceeds_its_max(&self, broken: &mut Vec<String>) {
        for (id, used) in self.used() {
            let Some(tenant) = self.tenants.get(&id) else { continue };
            if let Some((resource, max)) = tenant.max.first_passed_by(&used) {
                broken.push(format!("law 3: {} uses {} of {resource}, max {max}", tenant.path, used.get(resource)));
            }
        }
    }

    fn law_4_no_floor_is_preempted_for_another_tenant(
        &self,
        before: &Judge,
        taken: &[(Allocation, JobId, PreemptReason)],
        broken: &mut Vec<String>,
    ) {
        for (victim, by, _) in taken {
            let Some(by) = self.jobs.get(by).or_else(|| before.jobs.get(by)) else { continue };
            let own = by.tenant == victim.tenant && by.spec.priority > victim.priority;
            if victim.account().is_some() && !own {
                broken.push(format!("law 4: guaranteed allocation {} is preempted for job {}", victim.id, by.id));
            }
        }
    }

    /// What nodes that are not given up have; a card that is withheld does not count.
    pub(crate) fn healthy(&self) -> ResourceVec {
        let there = self.nodes.values().filter(|node| node.health != NodeHealth::Down);
        there.fold(ResourceVec::default(), |sum, node| {
            let mut of_node = ResourceVec::of_host(node.spec.cpu_milli, node.spec.memory_mib);
            for card in node.spec.gpus.iter().filter(|card| card.withheld.is_none()) {
                of_node.set_gpu(card.model, GpuUnits(of_node.gpu(card.model).0 + GpuUnits::CARD.0));
            }
            sum.plus(&of_node)
        })
    }

    pub(crate) fn is_floored(&self, resource: Resource) -> bool {
        let organisations = || self.tenants.values().filter(|tenant| tenant.parent.is_none());
        matches!(resource, Resource::Gpu(_)) || organisations().any(|tenant| tenant.guarantee.get(resource) > 0)
    }

    /// Units of GPUs, or of the rest where there is none.
    fn weight(charge: &ResourceVec) -> u64 {
        match charge.gpu_total().0 {
            0 => charge.nonzero().map(|(_, amount)| amount).sum(),
            units => units,
        }
    }

    fn law_12_a_reclaim_raises_what_floors_cover(
        &self,
        before: &Judge,
        taken: &[(Allocation, JobId, PreemptReason)],
        broken: &mut Vec<String>,
    ) {
        let mut by: BTreeMap<JobId, (u64, bool)> = BTreeMap::new();
        for (victim, job, reason) in taken {
            let (lost, reclaims) = by.entry(*job).or_default();
            *lost += if victim.account().is_some() { Self::weight(&victim.charge) } else { 0 };
            *reclaims |= *reason == PreemptReason::Reclaim;
            if !matches!(reason, PreemptReason::Reclaim | PreemptReason::Move) {
                let priority = before.jobs.get(job).or_else(|| self.jobs.get(job)).map(|job| job.spec.priority);
                if priority.is_some_and(|priority| priority <= victim.priority) {
                    broken.push(format!("law 12: job {job} preempts allocation {} of no lower priority", victim.id));
                }
            }
        }
        for (job, (lost, _)) in by.into_iter().filter(|(_, (_, reclaims))| *reclaims) {
            let claim = self.jobs.get(&job).and_then(|job| job.claim.as_ref());
            let Some(claim) = claim else { continue };
            // What was freed may have promoted others in the same entry: that raises the potential further.
            let rise = claim.account.map_or(0, |_| Self::weight(&claim.charge));
            if rise <= lost {
                broken.push(format!(
                    "law 12: reclaim for job {job} raises floor-covered use by {rise}, lowers it by {lost}"
                ));
            }
        }
    }

    /// Below the lowest common ancestor, before the victim is removed and after those before it.
    fn a_victims_side_is_above_its_guarantee(
        &self,
        before: &Judge,
        taken: &[(Allocation, JobId, PreemptReason)],
        broken: &mut Vec<String>,
    ) {
        // What is bound or claimed in the same entry may come before a preemption in it.
        let mut used = before.used();
        let new = self.held.values().filter(|held| held.pays() && !before.held.contains_key(&held.id));
        let bound = new.map(|held| (held.tenant, held.charge));
        let claims = self.jobs.values().filter_map(|job| Some((job.tenant, job.id, job.claim.as_ref()?)));
        let claimed = claims.filter(|(_, id, _)| before.jobs.get(id).is_none_or(|job| job.claim.is_none()));
        let begun: Vec<(TenantId, ResourceVec)> =
            bound.chain(claimed.map(|(tenant, _, claim)| (tenant, claim.charge))).collect();
        for (tenant, charge) in begun {
            for at in before.line(tenant) {
                used.entry(at.id).or_default().add(&charge);
            }
        }
        for (victim, job, reason) in taken {
            let by = before.jobs.get(job).or_else(|| self.jobs.get(job));
            let claim = self.jobs.get(job).and_then(|job| job.claim.as_ref());
            if let (Some(by), Some(claim), PreemptReason::Reclaim) = (by, claim, reason) {
                let mine: Vec<TenantId> = before.line(by.tenant).map(|at| at.id).collect();
                let side = before.line(victim.tenant).take_while(|at| !mine.contains(&at.id)).last();
                let legal = match side {
                    None => by.tenant != victim.tenant || victim.is_growth,
                    Some(side) => {
                        let of = used.get(&side.id).copied().unwrap_or_default();
                        let both = victim.charge.nonzero().map(|(resource, _)| resource);
                        let both: Vec<Resource> = both.filter(|resource| claim.charge.get(*resource) > 0).collect();
                        let gpu = |resource: &&Resource| matches!(resource, Resource::Gpu(_));
                        let floored = |resource: &&Resource| before.is_floored(**resource);
                        let mut counts: Vec<&Resource> = both.iter().filter(gpu).collect();
                        if counts.is_empty() {
                            counts = both.iter().filter(floored).collect();
                        }
                        // Where they share nothing that is floored, what they share counts.
                        if counts.is_empty() {
                            counts = both.iter().collect();
                        }
                        counts.iter().any(|resource| of.get(**resource) > side.guarantee.get(**resource))
                    }
                };
                if !legal {
                    broken.push(format!("reclaim: the side of allocation {} is within its guarantee", victim.id));
                }
            }
            for at in before.line(victim.tenant) {
                used.entry(at.id).or_default().sub(&victim.charge);
            }
        }
    }

    /// A claim becomes exactly the allocation that was claimed, for the job that made it.
    fn claims_are_kept_for_their_jobs(&self, before: &Judge, changes: &[Change], broken: &mut Vec<String>) {
        let claims = before.jobs.values().filter_map(|job| Some((job, job.claim.as_ref()?)));
        let claims: BTreeMap<AllocationId, (&Job, _)> =
            claims.map(|(job, claim)| (claim.allocation, (job, claim))).collect();
        for change in changes {
            let Change::Put(object) = change else { continue };
            let Object::Allocation(held) = &**object else { continue };
            if before.held.contains_key(&held.id) {
                continue;
            }
            match claims.get(&held.id) {
                Some((job, claim)) => {
                    if job.id != held.job || claim.charge != held.charge || claim.tasks != held.tasks {
                        broken.push(format!(
                            "law 2: the hold of job {} became something else for job {}",
                            job.id, held.job
                        ));
                    }
                }
                None => {
                    // Only what is still claimed now: a claim that this entry made or gave up is judged by its own changes.
                    let on = |node| held.tasks.iter().any(|task| task.node == node);
                    let kept = claims.values().filter(|(job, claim)| {
                        let still = self.jobs.get(&job.id).is_some_and(|job| job.claim.is_some());
                        still && claim.tasks.iter().any(|task| on(task.node))
                    });
                    for (job, _) in kept {
                        broken.push(format!("hold: allocation {} is on a node that job {} holds", held.id, job.id));
                    }
                }
            }
        }
    }

    /// What an account still covers, by resource.
    fn account_free(&self, charged: &BTreeMap<TenantId, ResourceVec>, id: TenantId, resource: Resource) -> i128 {
        let Some(tenant) = self.tenants.get(&id) else { return 0 };
        let children = self.tenants.values().filter(|child| child.parent == Some(id));
        let handed_down: u64 = children.map(|child| child.guarantee.get(resource)).sum();
        let charged = charged.get(&id).map_or(0, |charged| charged.get(resource));
        i128::from(tenant.guarantee.get(resource)) - i128::from(handed_down) - i128::from(charged)
    }

    fn charged(&self) -> BTreeMap<TenantId, ResourceVec> {
        let mut charged: BTreeMap<TenantId, ResourceVec> = BTreeMap::new();
        for Charge { charge, account, .. } in self.charges() {
            if let Some(account) = account {
                charged.entry(account).or_default().add(&charge);
            }
        }
        charged
    }

    fn accounts_hold_what_is_charged(&self, broken: &mut Vec<String>) {
        let charged = self.charged();
        for (id, of) in &charged {
            for (resource, amount) in of.nonzero().filter(|(resource, _)| self.is_floored(*resource)) {
                if self.account_free(&charged, *id, resource) < 0 {
                    broken.push(format!("floor: account of tenant {id} is charged {amount} of {resource}, too much"));
                }
            }
        }
    }

    fn promotions_are_complete(&self, broken: &mut Vec<String>) {
        let charged = self.charged();
        for held in self.held.values().filter(|held| held.pays() && held.account().is_none() && !held.is_growth) {
            let floored: Vec<(Resource, u64)> =
                held.charge.nonzero().filter(|(resource, _)| self.is_floored(*resource)).collect();
            let covers = |id: TenantId| {
                let fits = |(resource, amount): &(Resource, u64)| {
                    self.account_free(&charged, id, *resource) >= i128::from(*amount)
                };
                !floored.is_empty() && floored.iter().all(fits)
            };
            if let Some(account) = self.line(held.tenant).find(|at| covers(at.id)) {
                broken.push(format!("promotion: burst allocation {} is covered by {}", held.id, account.path));
            }
        }
    }

    /// Of reclaims alone: what a priority took, a reclaim may take back.
    fn no_two_jobs_evict_each_other(&mut self, taken: &[(Allocation, JobId, PreemptReason)], broken: &mut Vec<String>) {
        for (victim, by, reason) in taken {
            if *reason != PreemptReason::Reclaim {
                continue;
            }
            // Whoever was evicted for a floor evicts the one that evicted it, while that one holds what it took.
            if victim.is_growth {
                continue;
            }
            if self.reclaimed_from.get(by) == Some(&victim.id) {
                broken.push(format!("law 12: job {by} evicts job {}, which evicted it", victim.job));
            }
            if let Some(claim) = self.jobs.get(by).and_then(|by| by.claim.as_ref()) {
                self.reclaimed_from.insert(victim.job, claim.allocation);
            }
        }
        let held = self.held.values().filter(|held| held.account().is_some()).map(|held| held.id);
        let claims = self.jobs.values().filter_map(|job| job.claim.as_ref());
        let claims = claims.filter(|claim| claim.account.is_some()).map(|claim| claim.allocation);
        let covered: BTreeSet<AllocationId> = held.chain(claims).collect();
        self.reclaimed_from.retain(|_, taker| covered.contains(taker));
    }
}
