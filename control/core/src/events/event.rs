//! The lines of an event log, in the form that the fairness referee reads: JSON lines, amounts by resource, tenants by path.
//!
//! What must stay true: names and meanings of fields are those of the referee's format 1; what is left out has its default there.

use muster_model::ids::{AllocationId, Attempt, CellId, JobId};
use muster_model::{GpuModel, Limits, PreemptReason, ResourceVec, Tenant};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// Amounts by resource: `gpu.<model>` in 1/7,000 of a card, `cpu_milli`, `memory_mib`; nothing of what is not named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(pub ResourceVec);

impl Serialize for Amounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.nonzero().map(|(resource, amount)| (resource.to_string(), amount)))
    }
}

/// What there is of every resource that a charge may name, zeros included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Everything(pub ResourceVec);

impl Serialize for Everything {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for model in GpuModel::ALL {
            map.serialize_entry(&format!("gpu.{model}"), &self.0.gpu(model).0)?;
        }
        map.serialize_entry("cpu_milli", &self.0.cpu_milli)?;
        map.serialize_entry("memory_mib", &self.0.memory_mib)?;
        map.end()
    }
}

/// Ceilings; what is not named is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceilings(pub Limits);

impl Serialize for Ceilings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let gpus = self.0.gpu.iter().map(|(model, units)| (format!("gpu.{model}"), units.0));
        let cpu = self.0.cpu_milli.map(|amount| ("cpu_milli".to_owned(), amount));
        let memory = self.0.memory_mib.map(|amount| ("memory_mib".to_owned(), amount));
        serializer.collect_map(gpus.chain(cpu).chain(memory))
    }
}

/// A tenant as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TenantRecord {
    /// Names from the top, joined by `/`.
    pub path: String,
    /// The floor.
    pub guarantee: Amounts,
    /// The ceiling.
    pub max: Ceilings,
    /// Its share among siblings.
    pub weight: u32,
    /// Its trust level.
    pub trust: String,
    /// Whether others may use its idle guarantee: whether it lends some of what it is guaranteed. Which resources it does not lend is in `lends`.
    #[serde(skip_serializing_if = "is_true")]
    pub lend: bool,
    /// Weights of resources that have one of their own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// Whether it lends, of resources of which something else is said than of the others.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lends: BTreeMap<String, bool>,
}

impl From<&Tenant> for TenantRecord {
    fn from(tenant: &Tenant) -> Self {
        TenantRecord {
            path: tenant.path.clone(),
            guarantee: Amounts(tenant.guarantee),
            max: Ceilings(tenant.max.clone()),
            weight: tenant.weight,
            trust: tenant.trust.to_string(),
            // Format 1 has one word for all resources: no, where nothing of a guarantee is lent.
            lend: match tenant.guarantee.is_empty() {
                true => tenant.lend,
                false => tenant.guarantee.nonzero().any(|(resource, _)| tenant.lends(resource)),
            },
            weights: tenant.weights.iter().map(|(resource, weight)| (resource.to_string(), *weight)).collect(),
            lends: tenant.lends.iter().map(|(resource, lent)| (resource.to_string(), *lent)).collect(),
        }
    }
}

/// The first line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Header {
    /// 1.
    pub format: u32,
    /// The tenants, parents first.
    pub tree: Vec<TenantRecord>,
    /// What the nodes have that are not down; if some floors are unmet when the log begins, what would meet them, and the first event says what
    /// there is.
    pub capacity: Everything,
    /// Which priority classes preempt which.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassRecord>,
    /// Most preemptions of one job, where every pool has a bound: the largest of them.
    pub preempted_per_job_max: Option<u32>,
    /// After so many failures of attempts that preempted others, a job may not preempt.
    pub breaker_failures: u32,
    /// The cool-down of pools that say nothing else.
    pub cooldown_ms: u64,
    /// The longest grace of a preempted job.
    pub grace_ms_max: u64,
    /// From the end of a grace to the release at most.
    pub stop_ms_max: u64,
    /// Most that the shares of one card are charged together.
    pub card_units_max: u64,
    /// The revision whose state the log begins with: what happened up to it is not in the log. 0: the beginning of the cluster or replay.
    pub since_rev: u64,
    /// The cluster's time then, in milliseconds since the Unix epoch.
    pub since_t: u64,
}

/// A priority class that preempts others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassRecord {
    /// Its name.
    pub name: String,
    /// The classes that it preempts.
    pub over: Vec<String>,
}

/// Whether a floor account pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It does.
    Guaranteed,
    /// It does not.
    Burst,
}

/// Why an allocation left its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DemoteReason {
    /// The account shrank.
    GuaranteeLowered,
    /// The account is not on the tenant's path any more.
    TenantMoved,
    /// The account is marked unmet.
    CapacityLost,
}

/// Why devices came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Every task succeeded.
    Finished,
    /// A task failed.
    Failed,
    /// The time limit passed.
    Timeout,
    /// Somebody asked for it.
    Cancelled,
    /// Its node was lost.
    Lost,
    /// It was preempted.
    Preempted,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Every task succeeded.
    Completed,
    /// A task failed.
    Failed,
    /// The time limit passed.
    Timeout,
    /// It was cancelled.
    Cancelled,
}

/// Why a hold ended without a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DropWhy {
    /// A node of it left the capacity.
    Lost,
}

/// An attempt that is preempted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Victim {
    /// Its hold.
    pub alloc: AllocationId,
    /// Its job.
    pub job: JobId,
    /// By which rule.
    #[serde(serialize_with = "in_words")]
    pub reason: PreemptReason,
    /// How long it may take to stop, from now.
    pub grace_ms: u64,
}

fn in_words<S: Serializer>(reason: &PreemptReason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A tenant came or changed; if `removed` it left.
    Tenant {
        /// The complete new record, or what it was.
        #[serde(flatten)]
        record: TenantRecord,
        /// It left.
        #[serde(skip_serializing_if = "is_default")]
        removed: bool,
    },
    /// A tenant moved with everything below it.
    MoveTenant {
        /// From.
        path: String,
        /// To.
        to: String,
    },
    /// Nodes came, went, or changed.
    Capacity {
        /// What there is now.
        capacity: Everything,
        /// Parts of floor accounts that exceed what the fleet holds, by path.
        #[serde(skip_serializing_if = "is_default")]
        unmet: BTreeMap<String, Amounts>,
    },
    /// A job was accepted.
    Submit {
        /// Which.
        job: JobId,
        /// Whose.
        tenant: String,
        /// Its priority.
        priority: i32,
        /// Its priority class.
        class: String,
        /// Tasks of the gang.
        tasks: u32,
        /// Of the whole gang on its preferred model.
        charge: Amounts,
        /// It may be stopped and started elsewhere.
        #[serde(skip_serializing_if = "is_default")]
        movable: bool,
        /// Nothing keeps it back but devices.
        #[serde(skip_serializing_if = "is_true")]
        ready: bool,
        /// When, if before the log began.
        #[serde(skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
        /// How often it was preempted before the log began.
        #[serde(skip_serializing_if = "is_default")]
        preempted: u32,
    },
    /// A pending job changed.
    Update {
        /// Which.
        job: JobId,
        /// Whose.
        tenant: String,
        /// Its priority.
        priority: i32,
        /// Tasks of the gang.
        tasks: u32,
        /// Of the whole gang on its preferred model.
        charge: Amounts,
        /// It may be stopped and started elsewhere.
        movable: bool,
    },
    /// Something keeps a pending job back, or does not any more.
    Ready {
        /// Which.
        job: JobId,
        /// Whether it only waits for devices.
        ready: bool,
    },
    /// A gang got devices.
    Bind {
        /// Its hold.
        alloc: AllocationId,
        /// Which job.
        job: JobId,
        /// Which run of it. A claim that was there before the log began is told as a run; if it comes to nothing, the runs after it have higher numbers here.
        attempt: Attempt,
        /// Whose.
        tenant: String,
        /// Tasks of the gang.
        tasks: u32,
        /// On the model that it got.
        charge: Amounts,
        /// Whether a floor pays.
        kind: Kind,
        /// Whose floor.
        #[serde(skip_serializing_if = "Option::is_none")]
        account: Option<String>,
        /// The preemption whose hold it uses.
        #[serde(skip_serializing_if = "Option::is_none")]
        for_preempt: Option<AllocationId>,
        /// In which cell.
        cell: CellId,
        /// The cool-down of its pools if it is not the usual one.
        #[serde(skip_serializing_if = "Option::is_none")]
        cooldown_ms: Option<u64>,
        /// When, if before the log began.
        #[serde(skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
        /// It is growth beyond the gang's minimum.
        #[serde(skip_serializing_if = "is_default")]
        elastic: bool,
    },
    /// A floor pays for an allocation from now on.
    Promote {
        /// Which.
        alloc: AllocationId,
        /// Whose floor.
        account: String,
    },
    /// No floor pays any more, for an allocation or for the hold of a preemption.
    Demote {
        /// Which allocation.
        #[serde(skip_serializing_if = "Option::is_none")]
        alloc: Option<AllocationId>,
        /// Which preemption's hold.
        #[serde(skip_serializing_if = "Option::is_none")]
        preempt: Option<AllocationId>,
        /// Why.
        reason: DemoteReason,
    },
    /// Attempts are ended for a waiting gang, which is charged from now on.
    Preempt {
        /// The allocation that its claim becomes.
        preempt: AllocationId,
        /// For whom.
        job: JobId,
        /// What it is charged.
        charge: Amounts,
        /// Whose floor pays.
        #[serde(skip_serializing_if = "Option::is_none")]
        account: Option<String>,
        /// In the order in which they are judged.
        victims: Vec<Victim>,
    },
    /// A hold ended without a binding.
    DropHold {
        /// Of which preemption.
        preempt: AllocationId,
        /// Why.
        why: DropWhy,
    },
    /// Devices came back.
    Release {
        /// From which allocation.
        alloc: AllocationId,
        /// Why.
        why: Why,
    },
    /// A job waits again.
    Requeue {
        /// Which.
        job: JobId,
    },
    /// Somebody asked that a job end.
    Cancel {
        /// Which.
        job: JobId,
    },
    /// A job is over.
    Finish {
        /// Which.
        job: JobId,
        /// How it ended.
        state: Ended,
    },
    /// A job has saved its work.
    Checkpoint {
        /// Which.
        job: JobId,
    },
    /// The end of the observed time.
    End {},
}

/// An event with its place in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
    /// When, in milliseconds since the Unix epoch; never decreases.
    pub t: u64,
    /// The log entry, where there is one; never decreases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rev: Option<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_true(value: &bool) -> bool {
    *value
}
