//! Reservations of waiting gangs, and which of them are active: their nodes are marked in the index.
//!
//! What must stay true: nodes are marked exactly for the jobs that wait with a reservation and are neither assumed nor tried at the moment; what the
//! control plane has committed wins over what this shard has proposed.

use super::reservation_times::{ReservationSearch, is_due_again, is_late, is_soon_due};
use super::{Known, View};
use crate::fleet::index::{Hold, Near, Partition};
use crate::job_class::{JobClass, Offer};
use crate::queue::Freed;
use muster_model::{CellId, JobId, NodeId, Reservation};
#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The reservation of one job.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    cell: CellId,
    reservation: Arc<Reservation>,
    /// Its nodes are marked in the index.
    active: bool,
    /// Proposed, and not seen committed yet.
    uncommitted: bool,
    /// One of its nodes takes no more work, was described anew or is reserved for an earlier one.
    invalidated: bool,
    /// Since it was last tried something has become free that could help it, or its tenant may have more: it is tried wherever it stands in the
    /// queue, since no other of its kind may use its nodes.
    freed: bool,
    /// Nodes that alone it could be, as long as nobody else takes what is free there.
    freed_on: BTreeSet<NodeId>,
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
        self.invalidated || is_late(self.reservation.start_ms, now_ms)
    }

    /// What was proposed came to nothing.
    pub(super) fn may_be_tried(&mut self) {
        self.freed = true;
    }

    fn is_untried(&self) -> bool {
        self.freed || !self.freed_on.is_empty()
    }

    fn new(cell: CellId, reservation: Arc<Reservation>) -> Self {
        Reserved {
            cell,
            reservation,
            active: false,
            uncommitted: false,
            invalidated: false,
            freed: true,
            freed_on: BTreeSet::new(),
            looked_ms: 0,
        }
    }

    fn hold(&self, job: JobId) -> Hold {
        Hold { until_ms: self.reservation.start_ms, job }
    }
}

impl View {
    /// Waiting jobs of `cell` that have nodes reserved.
    pub(crate) fn reserved_jobs(&self, cell: CellId) -> impl Iterator<Item = JobId> + '_ {
        self.reserved.iter().filter(move |(_, held)| held.cell == cell).map(|(job, _)| *job)
    }

    /// How many waiting jobs of `cell` have a reservation.
    pub(crate) fn reserved_in(&self, cell: CellId) -> usize {
        self.reserved.values().filter(|held| held.cell == cell).count()
    }

    /// Whether so many nodes more may be held in `cell`, of which beyond the first gang one in `part` may be.
    pub(crate) fn may_keep(&self, cell: CellId, nodes: usize, part: usize) -> bool {
        let held: usize = self.reserved.values().filter(|held| held.cell == cell).map(|held| held.nodes()).sum();
        let all = self.fleet.capacity.nodes().values().filter(|there| there.node.cell == cell).count();
        held == 0 || part * (held + nodes) <= all
    }

    /// Those of them that are active and whose gang no floor covers.
    pub(crate) fn burst_reservations(&self, cell: CellId) -> impl Iterator<Item = JobId> + '_ {
        let active = self.reserved.iter().filter(move |(_, held)| held.cell == cell && held.active);
        active.map(|(id, _)| *id).filter(|id| {
            let Some((job, class)) = self.jobs.get(id.0).and_then(|job| Some((job, job.class.as_ref()?))) else {
                return false;
            };
            let covers = |offer: &Offer| self.fleet.capacity.account_for(job.tenant, &offer.charge).is_some();
            !class.offers().iter().any(covers)
        })
    }

    /// Whether there are any.
    pub(crate) fn has_burst_reservations(&self, cell: CellId) -> bool {
        self.burst_reservations(cell).next().is_some()
    }

    /// The reservation of `job`.
    pub(crate) fn reserved(&self, job: JobId) -> Option<&Reserved> {
        self.reserved.get(&job)
    }

    /// Waiting jobs of `cell` whose reservations are to be looked at again: those that cannot be counted on at once, the others together when
    /// it is time for one.
    pub(crate) fn reservations_due(&self, cell: CellId, now_ms: u64) -> Vec<JobId> {
        let here = || self.reserved.iter().filter(|(_, held)| held.cell == cell && held.active);
        let again = here().any(|(_, held)| is_due_again(held.looked_ms, now_ms));
        let due = |held: &Reserved| held.is_broken(now_ms) || again && is_soon_due(held.looked_ms, now_ms);
        here().filter(|(_, held)| due(held)).map(|(job, _)| *job).collect()
    }

    /// Jobs of `cell` that have not been tried since something became free that could help them, with the time of their reservation.
    fn untried_reservations(&self, cell: CellId) -> impl Iterator<Item = (u64, JobId, &Reserved, &Arc<JobClass>)> + '_ {
        let untried =
            self.reserved.iter().filter(move |(_, held)| held.cell == cell && held.active && held.is_untried());
        untried.filter(|(id, _)| !self.backoff.holds(**id)).filter_map(|(id, held)| {
            let class = self.jobs.get(id.0)?.class.as_ref()?;
            Some((held.reservation.start_ms, *id, held, class))
        })
    }

    /// Whether there are any.
    pub(crate) fn has_untried_reservations(&self, cell: CellId) -> bool {
        self.untried_reservations(cell).next().is_some()
    }

    /// Of these the one with the earliest reservation on whose own nodes as many cards are free as it wants. It counts as tried.
    pub(crate) fn next_on_own_nodes(&mut self, cell: CellId) -> Option<(JobId, Arc<JobClass>)> {
        let free = |id: JobId, held: &Reserved, offer: &Offer| {
            let own = |partition: &Partition| partition.hold == Some(held.hold(id));
            let buckets = self.fleet.index.buckets(cell, offer.model).filter(|(partition, _)| own(partition));
            buckets.map(|(_, bucket)| bucket.free()).sum::<u64>()
        };
        let enough = |id: JobId, held: &Reserved, class: &JobClass| {
            class.offers().iter().any(|offer| free(id, held, offer) >= class.cards())
        };
        let due = self.untried_reservations(cell).filter(|(_, id, held, class)| enough(*id, held, class));
        let (_, id, class) = due.map(|(start_ms, id, _, class)| (start_ms, id, class.clone())).min()?;
        self.counts_as_tried(id);
        Some((id, class))
    }

    /// Of these the one with the earliest reservation for which enough may be free anywhere: others of its kind that go before it have been
    /// tried. It counts as tried.
    pub(crate) fn next_reserved(&mut self, cell: CellId) -> Option<(JobId, Arc<JobClass>)> {
        loop {
            let untried = self.untried_reservations(cell).map(|(start_ms, id, _, class)| (start_ms, id, class.clone()));
            let (_, id, class) = untried.min()?;
            let near = self.jobs.get(id.0).is_some_and(|job| !self.is_helped_too_little(job, &class));
            self.counts_as_tried(id);
            if near {
                return Some((id, class));
            }
        }
    }

    fn counts_as_tried(&mut self, job: JobId) {
        if let Some(held) = self.reserved.get_mut(&job) {
            held.freed = false;
            held.freed_on.clear();
        }
    }

    /// A job with a reservation was tried and did not fit: it is not tried again before something changes on its nodes.
    pub(crate) fn tried_in_vain(&mut self, job: JobId) {
        self.apply_reservation(job, true);
        self.counts_as_tried(job);
    }

    pub(crate) fn looked_at(&mut self, job: JobId, now_ms: u64) {
        if let Some(held) = self.reserved.get_mut(&job) {
            held.looked_ms = now_ms;
        }
    }

    /// Keeps this for `job` from now on, in the place of what was; to be proposed.
    pub(crate) fn keep(&mut self, job: &Known, reservation: Option<Arc<Reservation>>, now_ms: u64) {
        self.give_up_reservation(job.id);
        if let (Some(cell), Some(reservation)) = (job.cell, reservation) {
            self.put_reservation(
                job.id,
                Reserved { uncommitted: true, looked_ms: now_ms, ..Reserved::new(cell, reservation) },
            );
        }
    }

    /// A proposed reservation of `job` was refused, or its outcome is not known: the one that is known to be committed holds.
    pub fn not_reserved(&mut self, job: JobId, now_ms: u64) {
        if self.reserved.get(&job).is_none_or(|held| held.uncommitted) {
            self.give_up_reservation(job);
            if let Some(job) = self.jobs.get(job.0).cloned() {
                self.reserve_as_told(&job, false);
                // Not at once again: the watch brings what this view has missed.
                self.looked_at(job.id, now_ms);
                if let Some(cell) = job.cell {
                    let gangs_found = self.queues.get(&cell).map_or(0, |queue| queue.gangs_found);
                    self.searches.insert(cell, ReservationSearch::rests(now_ms, gangs_found));
                }
            }
        }
    }

    /// Takes over what the committed job says; `same_wait`: it waits as it did before.
    pub(super) fn reserve_as_told(&mut self, job: &Known, same_wait: bool) {
        let told = job.reserved.as_ref().zip(job.cell);
        match (self.reserved.get_mut(&job.id), told) {
            (Some(held), Some((told, cell))) if held.reservation == *told && held.cell == cell => {
                held.uncommitted = false
            }
            (Some(held), None) if held.uncommitted && same_wait => {}
            (None, None) => {}
            (_, told) => {
                self.give_up_reservation(job.id);
                if let Some((reservation, cell)) = told {
                    self.put_reservation(job.id, Reserved::new(cell, reservation.clone()));
                }
            }
        }
    }

    fn put_reservation(&mut self, job: JobId, held: Reserved) {
        let takes_work = |node: &NodeId| self.fleet.index.position_of(*node, None).is_some();
        let invalidated = !held.reservation.nodes.iter().all(takes_work);
        let (cell, reservation) = (held.cell, held.reservation.clone());
        self.reserved.insert(job, Reserved { invalidated, ..held });
        if !self.assumed.contains_key(&job) {
            self.apply_reservation(job, true);
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

    /// `job` has no reservation any more: whoever waits for room may find some.
    pub(super) fn give_up_reservation(&mut self, job: JobId) {
        self.apply_reservation(job, false);
        let Some(held) = self.reserved.remove(&job) else { return };
        self.searches.remove(&held.cell);
        for node in &held.reservation.nodes {
            self.node_freed(*node, held.cell);
        }
    }

    /// Sets the nodes of a reservation apart, or puts them back among the others.
    pub(crate) fn apply_reservation(&mut self, job: JobId, apart: bool) {
        let Some(held) = self.reserved.get_mut(&job).filter(|held| held.active != apart) else { return };
        held.active = apart;
        let (hold, reservation) = (held.hold(job), held.reservation.clone());
        for node in &reservation.nodes {
            if apart {
                self.mark(*node, hold);
            } else {
                self.fleet.let_go(*node, hold);
            }
        }
    }

    /// Marks a node for a job. Of two the earlier has it; the other, if it has a reservation, is to be told another place.
    pub(super) fn mark(&mut self, node: NodeId, hold: Hold) {
        let before = self.fleet.index.hold_of(node);
        self.fleet.hold(node, hold);
        let after = self.fleet.index.hold_of(node);
        let loser = before.filter(|before| Some(*before) != after).or((after != Some(hold)).then_some(hold));
        if let Some(held) = loser.and_then(|loser| self.reserved.get_mut(&loser.job)) {
            held.invalidated = true;
        }
    }

    /// Whether a job with a reservation need not be tried: the nodes that it may use hold fewer of its tasks than it has.
    pub(crate) fn is_far_from(&self, job: &Known, class: &JobClass) -> bool {
        self.reserved.contains_key(&job.id) && !self.may_hold(job, class, &[Near::All])
    }

    /// The same of what has become free since it was tried in vain: the group that it has to stand in holds too few.
    fn is_helped_too_little(&self, job: &Known, class: &JobClass) -> bool {
        let Some(reserved) = self.reserved.get(&job.id) else { return false };
        let near: Vec<Near> = match class.topology.required {
            Some(level) if !reserved.freed => reserved.freed_on.iter().map(|node| Near::Group(*node, level)).collect(),
            _ => vec![Near::All],
        };
        !self.may_hold(job, class, &near)
    }

    /// Whether any of these may hold all of its tasks, with what it may use of nodes that are kept for others.
    fn may_hold(&self, job: &Known, class: &JobClass, near: &[Near]) -> bool {
        let Some(cell) = job.cell else { return false };
        let open = |partition: &Partition| self.may_use(partition.hold, job.id, class);
        let held = |offer: &Offer, near: &Near| {
            self.fleet.index.holds_at_most((cell, offer.model), class.whole_cards_each(), *near, open)
        };
        let enough = |offer: &Offer| near.iter().any(|near| held(offer, near) >= u64::from(class.tasks));
        class.offers().iter().any(enough)
    }

    /// Whether a job may stand on nodes that are kept like this: on what is reserved for another it has to be over in time.
    fn may_use(&self, hold: Option<Hold>, job: JobId, class: &JobClass) -> bool {
        let in_time = |hold: Hold| self.last_pass_ms.saturating_add(class.stays_at_most_ms()) <= hold.until_ms;
        hold.is_none_or(|hold| hold.job == job || in_time(hold))
    }

    /// More is free on a node: jobs of its cell that have a reservation may start, where that could be what they lack. `until_taken`: only as long as
    /// nobody else takes it.
    pub(super) fn helps_reserved(&mut self, cell: CellId, node: NodeId, freed: &Freed, until_taken: bool) {
        let waits_for = |class: &JobClass| class.offers().iter().any(|offer| offer.model == freed.model);
        let hold = self.fleet.index.hold_of(node);
        let may_help = |id: &JobId| {
            let class = self.jobs.get(id.0).and_then(|job| job.class.as_ref());
            class.is_some_and(|class| waits_for(class) && freed.may_help(class) && self.may_use(hold, *id, class))
        };
        let here = self.reserved.iter().filter(|(id, held)| held.cell == cell && !held.freed && may_help(id));
        for id in here.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(held) = self.reserved.get_mut(&id) else { continue };
            if until_taken {
                held.freed_on.insert(node);
            } else {
                held.freed = true;
            }
        }
    }

    /// What was freed on a node is taken.
    pub(super) fn helps_reserved_no_more(&mut self, cell: CellId, node: NodeId) {
        for held in self.reserved.values_mut().filter(|held| held.cell == cell) {
            held.freed_on.remove(&node);
        }
    }

    /// What was freed is not followed any more: who could not be tried for it meanwhile is tried as soon as that may be.
    pub(super) fn untried_at_the_end(&mut self, cell: CellId) {
        for held in self.reserved.values_mut().filter(|held| held.cell == cell && !held.freed_on.is_empty()) {
            held.freed = true;
            held.freed_on.clear();
        }
    }

    /// Rules, tenants or pools have changed: whoever has a reservation may start.
    pub(super) fn reserved_may_start(&mut self) {
        self.reserved.values_mut().for_each(|held| held.freed = true);
    }

    /// For how long at most a job may stand on nodes of `cell` that are reserved for others or in windows, from the last pass on; 0 when none are.
    pub(super) fn lent_ms(&self, cell: CellId) -> u64 {
        let here = self.reserved.values().filter(|held| held.cell == cell);
        let until_ms = here.map(|held| held.reservation.start_ms).max().unwrap_or(0);
        until_ms.saturating_sub(self.last_pass_ms).max(self.before_windows_ms())
    }

    /// A node has changed otherwise than by what was to run on it: whoever counts on it looks again.
    pub(crate) fn invalidate(&mut self, node: NodeId) {
        if let Some(hold) = self.fleet.index.hold_of(node)
            && let Some(held) = self.reserved.get_mut(&hold.job)
        {
            held.invalidated = true;
        }
    }
}

#[cfg(test)]
impl View {
    /// The nodes that are marked in the index, and for whom.
    pub(crate) fn reserved_nodes(&self) -> BTreeMap<NodeId, Hold> {
        let nodes = self.fleet.capacity.nodes().keys();
        nodes.filter_map(|id| Some((*id, self.fleet.index.position_of(*id, None)?.0.hold?))).collect()
    }

    /// Those that should: of jobs that wait and neither are proposed nor hold anything, the earliest of each node that takes work.
    pub(crate) fn nodes_that_should_be_reserved(&self) -> BTreeMap<NodeId, Hold> {
        let mut apart: BTreeMap<NodeId, Hold> = BTreeMap::new();
        // Between an allocation and its job's own change the job waits no longer.
        let bound = self.allocations.values().map(|held| held.job);
        let bound: BTreeSet<JobId> = bound.chain(self.assumed.keys().chain(self.preempting.keys()).copied()).collect();
        let waits = |id: &JobId| !bound.contains(id) && self.jobs.get(id.0).is_some_and(|job| job.waits());
        for (id, held) in self.reserved.iter().filter(|(id, _)| waits(id)) {
            for node in
                held.reservation.nodes.iter().filter(|node| self.fleet.index.position_of(**node, None).is_some())
            {
                let hold = held.hold(*id);
                apart.entry(*node).and_modify(|other| *other = hold.min(*other)).or_insert(hold);
            }
        }
        for (node, hold) in self.claimed_nodes() {
            if self.fleet.index.position_of(node, None).is_some() {
                apart.entry(node).and_modify(|other| *other = hold.min(*other)).or_insert(hold);
            }
        }
        apart
    }
}
