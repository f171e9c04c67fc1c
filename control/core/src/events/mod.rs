//! The event log: what happened to quota and devices, told from the changes of log entries alone.
//!
//! A [`Follower`] starts from the objects of a state and is given the changes of each entry, in order; it answers the lines of the log that the
//! fairness referee reads. It decides nothing and knows none of the scheduler's rules, so a fault of the state machine shows in its log. What must
//! stay true:
//! - one revision is one log entry, and its events stand in the order of their effect: the order of the changes;
//! - the id of a preemption is that of the allocation which its claim becomes; its victims stand in the order in which they were judged, which is
//!   the order of their changes;
//! - it keeps a few words of each tenant, node, live job and allocation, and a revision costs what its changes are.

mod event;
mod fleet;
mod held;
mod jobs;
mod live;
mod seen;
mod tenants;

pub use event::{
    Amounts, Ceilings, ClassRecord, DemoteReason, DropWhy, Ended, Event, Everything, Header, Kind, Line, TenantRecord,
    Victim, Why,
};
pub use live::{is_told, is_told_of};

use muster_model::ids::{AllocationId, JobId, NodeId, TenantId};
use muster_model::object::Key;
use muster_model::preemption::PREEMPT_GRACE_S_MAX;
use muster_model::priority_class::PREEMPTOR_FAILURES_MAX;
use muster_model::{Change, Object, Pool, ResourceVec, Tenant};
use seen::{HeldSeen, JobSeen, NodeSeen};
use std::collections::BTreeMap;

/// Most that whole cards are charged; the shares of one card may be charged up to twice that together, each by the larger of its compute and its
/// memory, and rounded up.
pub const CARD_UNITS_OF_SHARES_MAX: u64 = 2 * 7_000 + 100;

/// Most that the MIG instances of one card are charged together: 4g and 3g, the latter by its half of the memory.
pub const CARD_UNITS_OF_MIG_MAX: u64 = 7_500;

/// What a log says of its cluster that is not in the state.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// From the end of a grace to the release at most: to kill, to clean up, to report.
    pub stop_ms_max: u64,
    /// Most that one card is charged: 7,000 where cards are never shared, [`CARD_UNITS_OF_MIG_MAX`] where only MIG shares them, else
    /// [`CARD_UNITS_OF_SHARES_MAX`].
    pub card_units_max: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    tenants: BTreeMap<TenantId, Tenant>,
    /// Cool-downs of the pools that are described.
    cool_downs_ms: BTreeMap<String, u64>,
    /// How often each of these pools lets a job be preempted.
    bounds: BTreeMap<String, Option<u32>>,
    nodes: BTreeMap<NodeId, NodeSeen>,
    capacity: ResourceVec,
    /// The parts of floor accounts that exceed the capacity.
    marks: BTreeMap<TenantId, ResourceVec>,
    jobs: BTreeMap<JobId, JobSeen>,
    held: BTreeMap<AllocationId, HeldSeen>,
    /// Attempts that the present entry preempts, by who gets their devices.
    taken: BTreeMap<JobId, Vec<Victim>>,
    t: u64,
}

/// The lines of one revision in the making.
struct Told {
    lines: Vec<Line>,
    t: u64,
    rev: u64,
}

impl Told {
    fn say(&mut self, event: Event) {
        self.lines.push(Line { event, t: self.t, rev: Some(self.rev) });
    }

    /// A hold that this entry made is charged to `paid_by` at its end. False: the entry did not make it.
    fn charge_hold(&mut self, hold: AllocationId, paid_by: Option<String>) -> bool {
        for line in &mut self.lines {
            if let Event::Preempt { preempt, account, .. } = &mut line.event
                && *preempt == hold
            {
                *account = paid_by;
                return true;
            }
        }
        false
    }
}

impl Follower {
    /// Begins a log at `revision` with what there is: the header, and the lines for the jobs and allocations that live then. A claim is written as
    /// the allocation that it becomes, and the attempts that it waits for are left out.
    #[must_use]
    pub fn begin(
        objects: impl IntoIterator<Item = Object>,
        (revision, now_ms): (u64, u64),
        about: About,
    ) -> (Self, Header, Vec<Line>) {
        let mut follower = Follower { t: now_ms, ..Follower::default() };
        let (mut jobs, mut held, mut classes) = (Vec::new(), Vec::new(), Vec::new());
        for object in objects {
            match object {
                Object::Tenant(tenant) => drop(follower.tenants.insert(tenant.id, tenant)),
                Object::Pool(pool) => follower.put_pool(&pool),
                Object::PriorityClass(class) => {
                    classes.push(ClassRecord { name: class.name, over: class.preempts.into_iter().collect() });
                }
                Object::Node(node) => follower.put_node(&node),
                Object::Job(job) => jobs.push(job),
                Object::Allocation(allocation) => held.push(allocation),
                _ => {}
            }
        }
        let mut told = Told { lines: Vec::new(), t: now_ms, rev: revision };
        follower.mark();
        let header = follower.header(about, classes, &told);
        if !follower.marks.is_empty() {
            follower.tell_capacity(follower.capacity, &mut told);
        }
        jobs.iter().for_each(|job| follower.begin_job(job, &mut told));
        held.iter().for_each(|held| follower.begin_held(held, &mut told));
        jobs.iter().for_each(|job| follower.begin_claim(job, &mut told));
        (follower, header, told.lines)
    }

    /// The lines of one log entry, from its changes in order.
    pub fn follow(&mut self, revision: u64, now_ms: u64, changes: &[Change]) -> Vec<Line> {
        // The state's time may be set back; the log's is not.
        self.t = self.t.max(now_ms);
        let mut told = Told { lines: Vec::new(), t: self.t, rev: revision };
        let mut at = 0;
        while let Some(change) = changes.get(at) {
            let tenants = tenants::run(&changes[at..]);
            if tenants > 0 {
                self.tenants_changed(&changes[at..at + tenants], &mut told);
                at += tenants;
                continue;
            }
            at += 1;
            match change {
                Change::Put(object) => match &**object {
                    Object::Pool(pool) => self.put_pool(pool),
                    Object::Node(node) => self.node_put(node, &mut told),
                    Object::Job(job) => self.job_put(job, &mut told),
                    Object::Allocation(held) => self.allocation_put(held, &mut told),
                    _ => {}
                },
                Change::Delete(Key::Pool(name)) => drop(self.cool_downs_ms.remove(name)),
                Change::Delete(Key::Node(id)) => self.node_gone(*id, &mut told),
                Change::Delete(Key::Allocation(id)) => self.allocation_gone(*id, (changes, at), &mut told),
                Change::Delete(_) | Change::Audit(_) => {}
                Change::Retire(job) => self.job_over(job, &mut told),
            }
        }
        self.taken.clear();
        told.lines
    }

    /// A job has saved its work at `now_ms`.
    #[must_use]
    pub fn saved(&mut self, job: JobId, now_ms: u64) -> Line {
        self.t = self.t.max(now_ms);
        Line { event: Event::Checkpoint { job }, t: self.t, rev: None }
    }

    /// The last line: nothing was observed after `now_ms`.
    #[must_use]
    pub fn end(&mut self, now_ms: u64) -> Line {
        self.t = self.t.max(now_ms);
        Line { event: Event::End {}, t: self.t, rev: None }
    }

    fn header(&self, about: About, classes: Vec<ClassRecord>, told: &Told) -> Header {
        // Nodes may stand in the standard pool, whether or not somebody has described it.
        let standard = Pool::standard_rules();
        let undescribed = (!self.bounds.contains_key(&standard.name)).then_some(standard.preemptions_max);
        let bounds: Option<Vec<u32>> = self.bounds.values().copied().chain(undescribed).collect();
        let mut tree: Vec<TenantRecord> = self.tenants.values().map(TenantRecord::from).collect();
        tree.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
        Header {
            format: 1,
            tree,
            capacity: Everything(self.capacity_at_first()),
            classes,
            preempted_per_job_max: bounds.and_then(|bounds| bounds.into_iter().max()),
            breaker_failures: PREEMPTOR_FAILURES_MAX,
            cooldown_ms: 1_000 * Pool::standard_rules().cool_down_s,
            grace_ms_max: 1_000 * PREEMPT_GRACE_S_MAX,
            stop_ms_max: about.stop_ms_max,
            card_units_max: about.card_units_max,
            since_rev: told.rev,
            since_t: told.t,
        }
    }

    fn path(&self, id: TenantId) -> String {
        self.tenants.get(&id).map_or_else(|| format!("tenant-{id}"), |tenant| tenant.path.clone())
    }

    fn account_path(&self, account: Option<TenantId>) -> Option<String> {
        account.map(|id| self.path(id))
    }
}
