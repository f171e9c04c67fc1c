//! Usage: intervals that agents report, and the sums that tenants are shown.
//!
//! What must stay true (law 9): every interval an agent reports is counted once. A stream numbers its intervals from 1; the
//! state keeps the mark of the last one counted, takes only the next, and ignores what is at or below the mark.

use crate::allocation::Allocation;
use crate::gpu::GpuModel;
use crate::ids::{AllocationId, Attempt, JobId, NodeId, TenantId};
use crate::quota_class::ClassRecord;
use crate::request::SharingMode;
use crate::topology::RequiredTopology;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// What an allocation did with devices that it held on a node. The three exclude each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum UseKind {
    /// A task that holds them ran.
    #[default]
    Run,
    /// The task that held them was over, and they were held on for its gang.
    Idle,
    /// The task that held them was over, and what it left was being cleaned up.
    Clean,
}

/// Amounts of GPU units × milliseconds, by what was done with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitMs {
    /// [`UseKind::Run`].
    pub run: u128,
    /// [`UseKind::Idle`].
    pub idle: u128,
    /// [`UseKind::Clean`].
    pub clean: u128,
}

impl UnitMs {
    /// Adds so much of a kind.
    pub fn add(&mut self, kind: UseKind, unit_ms: u64) {
        let sum = match kind {
            UseKind::Run => &mut self.run,
            UseKind::Idle => &mut self.idle,
            UseKind::Clean => &mut self.clean,
        };
        *sum += u128::from(unit_ms);
    }
}

/// GPU-seconds, whole cards × seconds, of so many GPU units × milliseconds.
#[must_use]
pub fn gpu_seconds(unit_ms: u128) -> f64 {
    unit_ms as f64 / (crate::resources::GpuUnits::CARD.0 as f64 * 1_000.0)
}

impl AddAssign for UnitMs {
    fn add_assign(&mut self, other: UnitMs) {
        self.run += other.run;
        self.idle += other.idle;
        self.clean += other.clean;
    }
}

/// One interval of one allocation on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageInterval {
    /// Number in the stream, from 1, without gaps.
    pub seq: u64,
    /// Who held the devices.
    pub allocation: AllocationId,
    /// Length on the agent's monotonic clock, in milliseconds. Of idle time and clean-ups, which are counted in parts, that of the longest part.
    pub duration_ms: u64,
    /// GPU units held on this node, times milliseconds.
    pub gpu_unit_ms: u64,
    /// What was done with them.
    #[serde(default)]
    pub kind: UseKind,
}

/// How far the stream of one node has been counted. A stream begins anew (incarnation + 1) when the agent lost its own record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageStream {
    /// Whose.
    pub node: NodeId,
    /// Given out by the control plane.
    pub incarnation: u64,
    /// The last interval counted.
    pub mark: u64,
}

/// What a tenant itself (not its children) has used so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTotal {
    /// Whose.
    pub tenant: TenantId,
    /// GPU units × milliseconds in which tasks ran, all models together.
    pub gpu_unit_ms: u128,
    /// Intervals counted.
    pub intervals: u64,
    /// When the last one was counted.
    pub as_of_ms: u64,
    /// The same for devices that were held on for a gang after their task was over.
    #[serde(default)]
    pub idle_gpu_unit_ms: u128,
    /// The same for devices that were being cleaned up.
    #[serde(default)]
    pub clean_gpu_unit_ms: u128,
}

impl UsageTotal {
    /// Who is charged for an interval whose allocation nobody remembers: no tenant has this id, and the interval is shown as
    /// unattributed rather than lost.
    pub const UNATTRIBUTED: TenantId = TenantId(0);

    /// Counts what was reported in so many intervals.
    pub fn count(&mut self, reported: UnitMs, intervals: u64) {
        self.gpu_unit_ms += reported.run;
        self.idle_gpu_unit_ms += reported.idle;
        self.clean_gpu_unit_ms += reported.clean;
        self.intervals += intervals;
    }
}

/// The record of one allocation's reported usage, kept while it is live and then with the job's history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationUsage {
    /// Whose.
    pub allocation: AllocationId,
    /// Who pays, so that a late interval still finds its tenant.
    pub tenant: TenantId,
    /// GPU units × milliseconds reported so far in which its tasks ran.
    pub gpu_unit_ms: u128,
    /// When the allocation was released; the record is dropped a while later.
    pub released_ms: Option<u64>,
    /// Once it is released: what it was, since the allocation itself is gone.
    #[serde(default)]
    pub held: Option<Box<HeldRecord>>,
    /// The same as `gpu_unit_ms` for devices that it held on after their task was over.
    #[serde(default)]
    pub idle_gpu_unit_ms: u128,
    /// The same for devices that were being cleaned up.
    #[serde(default)]
    pub clean_gpu_unit_ms: u128,
}

impl AllocationUsage {
    /// Counts what was reported.
    pub fn count(&mut self, reported: UnitMs) {
        self.gpu_unit_ms += reported.run;
        self.idle_gpu_unit_ms += reported.idle;
        self.clean_gpu_unit_ms += reported.clean;
    }
}

/// What an allocation was that is released, for intervals that come late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRecord {
    /// Whose.
    pub job: JobId,
    /// Which run of it.
    pub attempt: Attempt,
    /// The model of its cards; none for a gang without GPUs.
    pub model: Option<GpuModel>,
    /// How it held them.
    pub mode: Option<SharingMode>,
    /// GPU units that its tenant was charged.
    pub gpu_units: u64,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// MiB of host memory.
    pub memory_mib: u64,
    /// When it was bound.
    pub bound_ms: u64,
    /// It was a part of its job's growth.
    pub is_growth: bool,
    /// Who paid since when.
    pub classes: ClassRecord,
    /// How close together its job required it to stand.
    pub topology: RequiredTopology,
}

impl HeldRecord {
    /// Of an allocation as it is now.
    #[must_use]
    pub fn of(held: &Allocation) -> Self {
        HeldRecord {
            job: held.job,
            attempt: held.attempt,
            model: held.model,
            mode: held.tasks.iter().flat_map(|task| &task.devices).map(|hold| hold.mode.mode()).next(),
            gpu_units: held.charge.gpu_total().0,
            cpu_milli: held.charge.cpu_milli,
            memory_mib: held.charge.memory_mib,
            bound_ms: held.bound_ms,
            is_growth: held.is_growth,
            classes: held.classes.clone(),
            topology: held.topology,
        }
    }
}
