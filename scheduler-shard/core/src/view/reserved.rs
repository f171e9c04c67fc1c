//! What is kept for waiting gangs, and the nodes that stand apart for it.
//!
//! What must stay true: nodes stand apart exactly for the jobs that wait with a reservation and are not proposed or tried just now; what the
//! control plane has committed wins over what this shard has proposed.

use super::{Known, Policy, View};
use crate::index::shelf::{Shelf, TOP};
use crate::index::{GROUP_LEVELS, Hold, Part};
use crate::job_class::{JobClass, Offer};
use crate::place::units::Units;
use crate::place::{Ask, Steps};
use crate::queue::Freed;
use crate::reserve::{Search, is_due_again, is_late, is_soon_due};
use muster_model::request::SharingMode;
use muster_model::{CellId, JobId, NodeId, Reservation, TopologyLevel};
use std::collections::BTreeMap;
#[cfg(test)]
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is kept for one job.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    cell: CellId,
    reservation: Arc<Reservation>,
    /// Its nodes stand apart in the index.
    in_force: bool,
    /// Proposed, and not seen committed yet.
    unsure: bool,
    /// One of its nodes takes no more work, was described anew or is kept for an earlier one.
    shaken: bool,
    /// Since it was last tried something has become free that could help it, or its tenant may have more: it is tried wherever it stands in the
    /// queue, since no other of its kind may use its nodes.
    freed: bool,
    looked_ms: u64,
}

impl Reserved {
    fn nodes(&self) -> usize {
        self.reservation.nodes.len()
    }

    pub(crate) fn reservation(&self) -> &Arc<Reservation> {
        &self.reservation
    }

    /// Whether the gang cannot be counted on to start in time any more.
    pub(crate) fn is_broken(&self, now_ms: u64) -> bool {
        self.shaken || is_late(self.reservation.start_ms, now_ms)
    }

    /// What was proposed came to nothing.
    pub(super) fn may_be_tried(&mut self) {
        self.freed = true;
    }

    fn new(cell: CellId, reservation: Arc<Reservation>) -> Self {
        Reserved { cell, reservation, in_force: false, unsure: false, shaken: false, freed: true, looked_ms: 0 }
    }

    fn hold(&self, job: JobId) -> Hold {
        Hold { until_ms: self.reservation.start_ms, job }
    }
}

impl View {
    /// Waiting jobs of `cell` that have nodes reserved.
    pub(crate) fn reserved_jobs(&self, cell: CellId) -> impl Iterator<Item = JobId> + '_ {
        self.reserved.iter().filter(move |(_, kept)| kept.cell == cell).map(|(job, _)| *job)
    }

    /// Waiting jobs of `cell` that something is kept for.
    pub(crate) fn reserved_in(&self, cell: CellId) -> usize {
        self.reserved.values().filter(|kept| kept.cell == cell).count()
    }

    /// Whether so many nodes more may be kept in `cell`, of which beyond the first gang one in `part` may be.
    pub(crate) fn may_keep(&self, cell: CellId, nodes: usize, part: usize) -> bool {
        let kept: usize = self.reserved.values().filter(|kept| kept.cell == cell).map(|kept| kept.nodes()).sum();
        let all = self.capacity.nodes().values().filter(|there| there.node.cell == cell).count();
        kept == 0 || part * (kept + nodes) <= all
    }

    /// What is kept for `job`.
    pub(crate) fn reserved(&self, job: JobId) -> Option<&Reserved> {
        self.reserved.get(&job)
    }

    /// Waiting jobs of `cell` whose reservations are to be looked at again: those that cannot be counted on at once, the others together when
    /// it is time for one.
    pub(crate) fn reservations_due(&self, cell: CellId, now_ms: u64) -> Vec<JobId> {
        let here = || self.reserved.iter().filter(|(_, kept)| kept.cell == cell && kept.in_force);
        let again = here().any(|(_, kept)| is_due_again(kept.looked_ms, now_ms));
        let due = |kept: &Reserved| kept.is_broken(now_ms) || again && is_soon_due(kept.looked_ms, now_ms);
        here().filter(|(_, kept)| due(kept)).map(|(job, _)| *job).collect()
    }

    /// Waiting jobs of `cell` on whose nodes as many cards are free as they want, the earliest promise first.
    pub(crate) fn promises_due(&self, cell: CellId) -> Vec<(JobId, Arc<JobClass>)> {
        let mut due = Vec::new();
        for (id, kept) in self.reserved.iter().filter(|(_, kept)| kept.cell == cell && kept.in_force && kept.freed) {
            if self.rest_until.contains_key(id) {
                continue;
            }
            let Some(class) = self.jobs.get(id.0).and_then(|job| job.class.as_ref()) else { continue };
            let free = |offer: &Offer| {
                let own = |part: &Part| part.hold == Some(kept.hold(*id));
                let shelves = self.index.shelves(cell, offer.model).filter(|(part, _)| own(part));
                shelves.map(|(_, shelf)| shelf.free()).sum::<u64>()
            };
            if class.offers().iter().any(|offer| free(offer) >= class.cards()) {
                due.push((kept.reservation.start_ms, *id, class.clone()));
            }
        }
        due.sort_unstable();
        due.into_iter().map(|(_, id, class)| (id, class)).collect()
    }

    /// The job of `cell` with the earliest promise that has not been tried since something became free: others of its kind that go before it
    /// have been. It counts as tried.
    pub(crate) fn next_promised(&mut self, cell: CellId) -> Option<(JobId, Arc<JobClass>)> {
        loop {
            let here = self.reserved.iter().filter(|(_, kept)| kept.cell == cell && kept.in_force && kept.freed);
            let next = here.filter(|(id, _)| !self.rest_until.contains_key(*id));
            let id = next.min_by_key(|(id, kept)| (kept.reservation.start_ms, **id)).map(|(id, _)| *id)?;
            if let Some(kept) = self.reserved.get_mut(&id) {
                kept.freed = false;
            }
            let Some((job, class)) = self.jobs.get(id.0).and_then(|job| Some((job, job.class.as_ref()?))) else {
                continue;
            };
            if !self.is_far_from(job, class) {
                return Some((id, class.clone()));
            }
        }
    }

    /// A job with a reservation was tried and did not fit: it is not tried again before something changes on its nodes.
    pub(crate) fn tried_in_vain(&mut self, job: JobId) {
        self.stand_apart(job, true);
        if let Some(kept) = self.reserved.get_mut(&job) {
            kept.freed = false;
        }
    }

    pub(crate) fn looked_at(&mut self, job: JobId, now_ms: u64) {
        if let Some(kept) = self.reserved.get_mut(&job) {
            kept.looked_ms = now_ms;
        }
    }

    /// Keeps this for `job` from now on, in the place of what was; to be proposed.
    pub(crate) fn keep(&mut self, job: &Known, reservation: Option<Arc<Reservation>>, now_ms: u64) {
        self.give_up_reservation(job.id);
        if let (Some(cell), Some(reservation)) = (job.cell, reservation) {
            self.put_reservation(
                job.id,
                Reserved { unsure: true, looked_ms: now_ms, ..Reserved::new(cell, reservation) },
            );
        }
    }

    /// What was proposed to be kept for `job` is not, or nobody knows: what is known to be committed is kept.
    pub fn not_reserved(&mut self, job: JobId, now_ms: u64) {
        if self.reserved.get(&job).is_none_or(|kept| kept.unsure) {
            self.give_up_reservation(job);
            if let Some(job) = self.jobs.get(job.0).cloned() {
                self.reserve_as_told(&job, false);
                // Not at once again: the watch brings what this view has missed.
                self.looked_at(job.id, now_ms);
                if let Some(cell) = job.cell {
                    let gangs_found = self.queues.get(&cell).map_or(0, |queue| queue.gangs_found);
                    self.searches.insert(cell, Search::rests(now_ms, gangs_found));
                }
            }
        }
    }

    /// Takes over what the committed job says; `same_wait`: it waits as it did before.
    pub(super) fn reserve_as_told(&mut self, job: &Known, same_wait: bool) {
        let told = job.reserved.as_ref().zip(job.cell);
        match (self.reserved.get_mut(&job.id), told) {
            (Some(kept), Some((told, cell))) if kept.reservation == *told && kept.cell == cell => kept.unsure = false,
            (Some(kept), None) if kept.unsure && same_wait => {}
            (None, None) => {}
            (_, told) => {
                self.give_up_reservation(job.id);
                if let Some((reservation, cell)) = told {
                    self.put_reservation(job.id, Reserved::new(cell, reservation.clone()));
                }
            }
        }
    }

    fn put_reservation(&mut self, job: JobId, kept: Reserved) {
        let takes_work = |node: &NodeId| self.index.ground(*node, None).is_some();
        let shaken = !kept.reservation.nodes.iter().all(takes_work);
        let (cell, reservation) = (kept.cell, kept.reservation.clone());
        self.reserved.insert(job, Reserved { shaken, ..kept });
        if !self.pending.contains_key(&job) {
            self.stand_apart(job, true);
        }
        // The starvation guard holds it back no longer.
        if let Some((known, queue)) = self.jobs.get(job.0).zip(self.queues.get_mut(&cell))
            && let Some(class) = &known.class
        {
            queue.wake_group(known.tenant, class);
        }
        // What stands apart is for other lines than before: those that are over in time.
        for node in &reservation.nodes {
            self.node_freed(*node, cell);
        }
    }

    /// Nothing is kept for `job` any more: whoever waits for room may find some.
    pub(super) fn give_up_reservation(&mut self, job: JobId) {
        self.stand_apart(job, false);
        let Some(kept) = self.reserved.remove(&job) else { return };
        self.searches.remove(&kept.cell);
        for node in &kept.reservation.nodes {
            self.node_freed(*node, kept.cell);
        }
    }

    /// Sets the nodes of a reservation apart, or puts them back among the others.
    pub(crate) fn stand_apart(&mut self, job: JobId, apart: bool) {
        let Some(kept) = self.reserved.get_mut(&job).filter(|kept| kept.in_force != apart) else { return };
        kept.in_force = apart;
        let (hold, cell, reservation) = (kept.hold(job), kept.cell, kept.reservation.clone());
        for node in &reservation.nodes {
            let there = self.capacity.nodes().get(node);
            if apart {
                let before = self.index.hold_of(*node);
                self.index.hold(*node, hold, there);
                // Of two the earlier has it; the other is to be told another place.
                let after = self.index.hold_of(*node);
                let loser = before.filter(|before| Some(*before) != after).or((after != Some(hold)).then_some(hold));
                if let Some(kept) = loser.and_then(|loser| self.reserved.get_mut(&loser.job)) {
                    kept.shaken = true;
                }
            } else {
                self.index.let_go(*node, hold, there);
            }
            self.balance.touched(cell, *node);
        }
    }

    /// Nodes that are reserved for gangs which start only when `ask` would be over, where these nodes and free ones together promise the whole
    /// gang and neither do alone: a gang may stand on both.
    pub(crate) fn nodes_to_lend(&self, ask: &Ask<'_>, steps: &mut Steps) -> Vec<(NodeId, Hold)> {
        if ask.class.tasks < 2 || self.policy != Policy::Topology {
            return Vec::new();
        }
        let mut lent = Vec::new();
        let mut of_pool: BTreeMap<&str, Vec<(&Part, &Shelf)>> = BTreeMap::new();
        for (part, shelf) in ask.shelves(self) {
            steps.0 += 1;
            of_pool.entry(&part.pool).or_default().push((part, shelf));
        }
        for parts in of_pool.into_values().filter(|parts| parts.len() > 1 && together_enough(ask, parts)) {
            for (part, shelf) in parts {
                let Some(hold) = part.hold.filter(|hold| ask.job != Some(hold.job)) else { continue };
                lent.extend(shelf.nodes_with_anything().map(|node| (node, hold)));
            }
        }
        lent.sort_unstable();
        lent.dedup();
        lent
    }

    /// Puts reserved nodes beside the others for one search; [`View::take_back`] ends it.
    pub(crate) fn lend(&mut self, nodes: &[(NodeId, Hold)]) {
        for (node, hold) in nodes {
            self.index.let_go(*node, *hold, self.capacity.nodes().get(node));
        }
    }

    /// Sets them apart again.
    pub(crate) fn take_back(&mut self, nodes: &[(NodeId, Hold)]) {
        for (node, hold) in nodes {
            self.index.hold(*node, *hold, self.capacity.nodes().get(node));
        }
    }

    /// Whether a job with a reservation need not be tried: fewer cards are free than it wants, its own and all.
    pub(crate) fn is_far_from(&self, job: &Known, class: &JobClass) -> bool {
        let Some(cell) = job.cell.filter(|_| self.reserved.contains_key(&job.id)) else { return false };
        let free = |offer: &Offer| {
            let open = |part: &Part| part.hold.is_none_or(|hold| hold.job == job.id || class.lasts_s.is_some());
            let shelves = self.index.shelves(cell, offer.model).filter(|(part, _)| open(part));
            shelves.map(|(_, shelf)| shelf.free()).sum::<u64>()
        };
        class.offers().iter().all(|offer| free(offer) < class.cards())
    }

    /// More is free on a node: jobs of its cell that have a reservation may start, where that could be what they lack.
    pub(super) fn helps_reserved(&mut self, cell: CellId, freed: &Freed) {
        let waits_for = |class: &JobClass| class.offers().iter().any(|offer| offer.model == freed.model);
        for (id, kept) in self.reserved.iter_mut().filter(|(_, kept)| kept.cell == cell && !kept.freed) {
            let class = self.jobs.get(id.0).and_then(|job| job.class.as_ref());
            kept.freed = class.is_some_and(|class| waits_for(class) && freed.may_help(class));
        }
    }

    /// Rules, tenants or pools have changed: whoever has a reservation may start.
    pub(super) fn reserved_may_start(&mut self) {
        self.reserved.values_mut().for_each(|kept| kept.freed = true);
    }

    /// For how long at most a job may stand on nodes of `cell` that are kept for others, from the last pass on; 0 when none are.
    pub(super) fn lent_ms(&self, cell: CellId) -> u64 {
        let here = self.reserved.values().filter(|kept| kept.cell == cell);
        let until_ms = here.map(|kept| kept.reservation.start_ms).max().unwrap_or(0);
        until_ms.saturating_sub(self.last_pass_ms)
    }

    /// A node has changed otherwise than by what runs on it: whoever counts on it looks again.
    pub(super) fn shake(&mut self, node: NodeId) {
        if let Some(hold) = self.index.hold_of(node)
            && let Some(kept) = self.reserved.get_mut(&hold.job)
        {
            kept.shaken = true;
        }
    }
}

/// Whether one domain of the required level promises the whole gang on all of these parts together. A promise is never below what is there.
fn together_enough(ask: &Ask<'_>, parts: &[(&Part, &Shelf)]) -> bool {
    let shares = ask.class.request.devices.mode().is_some_and(|mode| mode != SharingMode::Whole);
    let Some(units) = Units::of(ask).filter(|_| !shares) else { return shares };
    let tasks = Units { cap: None, ..units.one_by_one() };
    let level = match ask.widest() {
        Some(TopologyLevel::Node) => return false,
        Some(level) => GROUP_LEVELS.iter().position(|at| *at == level),
        None => Some(TOP),
    };
    let mut promised: BTreeMap<u32, u64> = BTreeMap::new();
    for (_, shelf) in parts {
        let domains = level.map_or(&shelf.islands, |level| &shelf.levels[level]).domains.iter();
        for (id, domain) in domains {
            let sum = promised.entry(*id).or_default();
            *sum = sum.saturating_add(tasks.on_domain(domain));
        }
    }
    promised.into_values().any(|sum| sum >= tasks.count)
}

#[cfg(test)]
impl View {
    /// The nodes that stand apart in the index, and for whom.
    pub(crate) fn nodes_apart(&self) -> BTreeMap<NodeId, Hold> {
        let nodes = self.capacity.nodes().keys();
        nodes.filter_map(|id| Some((*id, self.index.ground(*id, None)?.0.hold?))).collect()
    }

    /// Those that should: of jobs that wait and neither are proposed nor hold anything, the earliest of each node that takes work.
    pub(crate) fn nodes_that_should_stand_apart(&self) -> BTreeMap<NodeId, Hold> {
        let mut apart: BTreeMap<NodeId, Hold> = BTreeMap::new();
        // Between an allocation and its job's own change the job waits no longer.
        let bound = self.allocations.values().map(|held| held.job);
        let bound: BTreeSet<JobId> = bound.chain(self.pending.keys().copied()).collect();
        let waits = |id: &JobId| !bound.contains(id) && self.jobs.get(id.0).is_some_and(|job| job.waits());
        for (id, kept) in self.reserved.iter().filter(|(id, _)| waits(id)) {
            for node in kept.reservation.nodes.iter().filter(|node| self.index.ground(**node, None).is_some()) {
                let hold = kept.hold(*id);
                apart.entry(*node).and_modify(|other| *other = hold.min(*other)).or_insert(hold);
            }
        }
        apart
    }
}
