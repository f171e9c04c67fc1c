//! The typed reasons.

use super::anti_affinity::{AntiAffinityConflict, TooSpread};
use super::holders::Blocker;
use super::leaving::Leaving;
use super::pinned::PinnedPool;
use super::remedy::Remedy;
use super::reserved::{Reserved, ReservedForGang};
use super::supply::{ClosedNode, HostRoom};
use super::windows::InWindow;
use crate::view::ReservationFault;
use muster_model::capacity::NotLent;
use muster_model::request::SharingMode;
use muster_model::resources::Resource;
use muster_model::{DriverVersion, GpuModel, JobId, NumaPolicy, TenantId, TopologyLevel, WorkloadClass};

/// One thing that keeps a job waiting, who holds what it lacks, and what would start it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What it is.
    pub why: Why,
    /// Who holds what it lacks, in the place where it lacks least.
    pub holders: Vec<Blocker>,
    /// Each alone would start the job; the smallest first.
    pub remedies: Vec<Remedy>,
}

/// Why a pool does not take a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRefusal {
    /// The pool.
    pub pool: String,
    /// The job insists on this one instead.
    pub wanted: Option<String>,
    /// It does not allow this way of sharing.
    pub mode: Option<SharingMode>,
    /// It does not serve this kind of work.
    pub class: Option<WorkloadClass>,
    /// Its rules allow no such image, mount, or job on several nodes: this one.
    pub other: Option<String>,
}

/// One thing that keeps a job waiting. Amounts are cards for GPU jobs and milli-CPUs for jobs without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing: the next pass of its shard starts it.
    JustQueued {
        /// On this model.
        model: Option<GpuModel>,
    },
    /// It ran before and went back to the queue.
    Requeued {
        /// Why.
        why: String,
    },
    /// No cell could ever hold it.
    NoCell {
        /// Cards it needs.
        needed: u64,
        /// Cards of its models in the largest cell.
        largest: u64,
        /// Of these, cards of nodes that take no work.
        closed: u64,
        /// Those models; empty: any.
        models: Vec<GpuModel>,
    },
    /// Nobody schedules its cell now.
    CellWithoutShard {
        /// Its name.
        cell: String,
    },
    /// Its cell has no card that it could use.
    NoCards {
        /// The cell.
        cell: String,
        /// The models it accepts; empty: any.
        models: Vec<GpuModel>,
    },
    /// Another cell has a place.
    OtherCell {
        /// Its cell.
        cell: String,
        /// The other.
        other: String,
    },
    /// A ceiling of its tenant or of an ancestor.
    OverMax {
        /// Path of the tenant whose ceiling it is.
        tenant: String,
        /// Of what.
        resource: Resource,
        /// In use there.
        used: u64,
        /// What the job would add.
        asked: u64,
        /// The ceiling.
        max: u64,
    },
    /// What is free is guaranteed to tenants that do not lend.
    NotLent(NotLent),
    /// It gets the devices of jobs that are being preempted.
    Preempting {
        /// Allocations that have not ended yet.
        left: usize,
        /// The tenant whose floor account pays; none: burst.
        account: Option<TenantId>,
    },
    /// Jobs are being moved so that it fits.
    Moving(Leaving),
    /// It is being moved itself.
    Moved {
        /// For which gang.
        gang: JobId,
        /// Where to.
        nodes: Vec<String>,
        /// When it should start there, from now.
        in_ms: u64,
    },
    /// Elastic gangs give growth back for it.
    GrowthEnds(Leaving),
    /// Its tenant may share cards through MIG only.
    Untrusted,
    /// Free cards are held back for a gang that others have bypassed too often.
    StarvationGuard {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// The gang.
        gang: JobId,
        /// Its size.
        cards: u64,
        /// Free cards that are held back.
        free: u64,
    },
    /// No pool of the cell that has the model takes it.
    NoPool {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// The pools that have it.
        refusals: Vec<PoolRefusal>,
    },
    /// The only pool that it wants has no place; another has.
    PoolFull {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// The pool.
        pool: String,
        /// Free in it.
        free: u64,
        /// Needed.
        needed: u64,
    },
    /// Drivers are older than needed.
    DriverTooOld {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// The oldest that it can run on.
        needed: DriverVersion,
        /// The newest there, when any can be read.
        newest: Option<DriverVersion>,
        /// On every node that could serve it; otherwise on those that have a place.
        everywhere: bool,
    },
    /// Its selector accepts no card.
    NotSelected {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// The selector.
        selector: String,
        /// On any node; otherwise on those that have a place.
        everywhere: bool,
    },
    /// Enough cards are free, but no task's lie as its NUMA policy wants them.
    NumaSplit {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// The policy.
        policy: NumaPolicy,
        /// Cards of each task.
        each: u32,
    },
    /// It would fit, if its tasks did not have to stand so far apart.
    Spread(TooSpread),
    /// It would fit, if admins did not keep its tenant apart from another that is there.
    AntiAffinityConflict(AntiAffinityConflict),
    /// A place is free, but reserved for a gang that starts before it would be over.
    ReservedForGang(ReservedForGang),
    /// A place is free, but a window of its nodes is in the way.
    InWindow(InWindow),
    /// The reservation that it names is not for it now, or has no place.
    Reservation {
        /// Its name.
        name: String,
        /// What keeps the job from it.
        fault: ReservationFault,
    },
    /// A place and a time are reserved for it; told beside what it waits for.
    Reserved(Reserved),
    /// Nodes that would hold it take no work.
    NodesClosed {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// Free on nodes that do.
        free: u64,
        /// Needed.
        needed: u64,
        /// The nodes.
        closed: Vec<ClosedNode>,
    },
    /// The cell as it stands could not hold it even if it were empty.
    LargerThanCell {
        /// The cell.
        cell: String,
        /// What it needs.
        needed: u64,
        /// The model.
        model: Option<GpuModel>,
        /// What the nodes that take work have.
        open: u64,
        /// The level it requires.
        level: Option<TopologyLevel>,
        /// Nodes that take no work.
        closed: Vec<ClosedNode>,
    },
    /// Too few are free.
    NoFreeGpus {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// What the nodes that take work have.
        open: u64,
        /// Free in the cell.
        free: u64,
        /// Of these, on nodes that are reserved for others.
        reserved: u64,
        /// Most free on one node.
        largest_node: u64,
        /// Needed.
        needed: u64,
        /// Nodes that take no work.
        closed: Vec<ClosedNode>,
    },
    /// Enough are free, but not close enough together.
    Topology {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// The level it requires.
        level: Option<TopologyLevel>,
        /// Tasks of a segment, where it has segments.
        segment_tasks: Option<u32>,
        /// Free in the cell.
        free: u64,
        /// Most free in one group of that level.
        largest: u64,
        /// Needed.
        needed: u64,
    },
    /// Cards are free, but not the CPU or memory beside them.
    HostTooFull {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// CPU is what lacks; otherwise memory.
        cpu: bool,
        /// Milli-CPUs of each task.
        cpu_milli: u64,
        /// MiB of each task.
        memory_mib: u64,
        /// The node with room for a task's cards that has most of it left.
        host: Option<HostRoom>,
    },
    /// Enough cards are free, but not whole tasks' worth on single nodes.
    NodesTooFull {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// Free in the cell.
        free: u64,
        /// Most free on one node.
        largest_node: u64,
        /// Needed by each task, on one node.
        each: u64,
        /// Tasks.
        tasks: u64,
        /// Tasks for which there is room.
        slots: u64,
        /// Needed.
        needed: u64,
    },
    /// Enough cards are free, but not inside one pool, and a gang stays inside one.
    SplitOverPools {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// Free in the cell.
        free: u64,
        /// Tasks.
        tasks: u64,
        /// Tasks for which there is room in the pool that has most.
        slots: u64,
    },
    /// Every card that it could use keeps a pinned layout, which has no slot for it, or none that is open.
    PinnedLayout {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// What is asked for, in words.
        what: String,
        /// The pools that may serve it.
        pools: Vec<PinnedPool>,
    },
    /// No card has room for the slice or share.
    NoShare {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// How the card would be shared.
        mode: SharingMode,
        /// What is asked for, in words.
        what: String,
        /// Free whole cards.
        free: u64,
        /// Nodes that take no work.
        closed: Vec<ClosedNode>,
    },
}

impl Reason {
    pub(super) fn of(why: Why) -> Self {
        Reason { why, holders: Vec::new(), remedies: Vec::new() }
    }

    /// The stable word.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.why.code()
    }

    /// For people, with the figures.
    #[must_use]
    pub fn text(&self) -> String {
        self.why.text()
    }

    /// Each of these alone would start it, the smallest first.
    #[must_use]
    pub fn fixes(&self) -> Vec<String> {
        self.remedies.iter().map(Remedy::text).collect()
    }

    /// The smallest change that would start it.
    #[must_use]
    pub fn fix(&self) -> String {
        self.remedies.first().map(Remedy::text).unwrap_or_default()
    }

    /// The tenant, cell or job that it names, if any.
    #[must_use]
    pub fn subject(&self) -> String {
        let held = || self.holders.first().filter(|held| held.others == 0).map(|held| held.job.to_string());
        self.why.subject().or_else(held).unwrap_or_default()
    }

    /// Whether enough is free, and only how it lies is in the way: what moves can change.
    #[must_use]
    pub const fn is_about_closeness(&self) -> bool {
        matches!(self.why, Why::Topology { .. } | Why::NodesTooFull { .. })
    }

    /// Whether too few cards are free, or none has room for a part: moves help where what shares cards lies scattered over them.
    #[must_use]
    pub const fn is_about_free_cards(&self) -> bool {
        matches!(self.why, Why::NoFreeGpus { .. } | Why::NoShare { .. })
    }
}
