//! Why a command was refused. Every variant carries what was expected and what was there.

use crate::authz::Denied;
use crate::growth_fault::GrowthFault;
use crate::reason::Reason;
use crate::shape_fault::ShapeFault;
use crate::victim_fault::VictimFault;
use muster_model::FieldError;
use muster_model::capacity::Misfit;
use muster_model::ids::{AllocationId, Attempt, Epoch, JobId};
use serde::{Deserialize, Serialize};

/// A refusal. It is sent between control nodes, where nested reasons are their words ([`Reason`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Reject {
    /// Fields are wrong.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<FieldError>),
    /// There is no such thing (any more).
    #[error("{what} {id} does not exist")]
    NotFound {
        /// `job`, `tenant`, `node`, `cell`, `pool`, `allocation`.
        what: String,
        /// Which.
        id: String,
    },
    /// It would break something that others hold.
    #[error("{what} {id} is in use: {why}")]
    InUse {
        /// What is in the way.
        what: String,
        /// Which.
        id: String,
        /// Why, and what would have to give.
        why: String,
    },
    /// The sender's fencing token is not the newest.
    #[error("the epoch of {what} is old: the newest is {newest}, got {got}; acquire it again")]
    StaleEpoch {
        /// Of what.
        what: String,
        /// The newest.
        newest: Epoch,
        /// What the sender holds.
        got: Epoch,
    },
    /// Another shard holds the cell.
    #[error("the cell already has shard {holder}")]
    Held {
        /// Who holds it.
        holder: String,
    },
    /// The job is not waiting in that cell for that attempt.
    #[error("job {job} is {phase}: the next attempt is {next}, but {got} was proposed")]
    NotWaiting {
        /// Which.
        job: JobId,
        /// Where it stands, and in which cell.
        phase: String,
        /// The attempt that would be next.
        next: Attempt,
        /// What was proposed.
        got: Attempt,
    },
    /// The placement does not fit (any more).
    #[error("does not fit: {why}")]
    DoesNotFit {
        /// What is in the way, with figures.
        why: Reason<Misfit>,
        /// The tenant's max was in the way, not a node.
        over_max: bool,
    },
    /// The placement is not what the job asked for.
    #[error("the placement does not match the request of job {job}: {why}")]
    WrongShape {
        /// Which.
        job: JobId,
        /// What differs.
        why: Reason<ShapeFault>,
    },
    /// No other cell can take the job now.
    #[error("no other cell can take job {job} now")]
    NowhereElse {
        /// Which.
        job: JobId,
    },
    /// The request id was used for something else.
    #[error("request id {id:?} was already used for other jobs; use a new id")]
    RequestReused {
        /// Which.
        id: String,
    },
    /// The request id is too old to be sure that it is not a repetition.
    #[error("request {id:?} was issued {} s ago; request ids of this tenant are kept for {} s only; list your jobs, then submit under a new id", age_ms / 1_000, horizon_ms / 1_000)]
    RequestTooOld {
        /// Which.
        id: String,
        /// Its age.
        age_ms: u64,
        /// What is remembered of the tenant: a day, or less when it submits so much that its share of the table holds no more.
        horizon_ms: u64,
    },
    /// A bound of the system is reached; try again later.
    #[error("{what} is full (limit {limit}); try again later, or cancel pending jobs")]
    Full {
        /// What, at which tenant.
        what: String,
        /// Its bound.
        limit: u64,
    },
    /// Usage that does not follow the mark.
    #[error("usage of incarnation {incarnation} is at {mark}, but got {got}")]
    UsageGap {
        /// The stream's incarnation.
        incarnation: u64,
        /// Counted so far.
        mark: u64,
        /// What came.
        got: u64,
    },
    /// Only a node that has turned silent is given up.
    #[error("node {node} is {health}: only a silent node can be fenced")]
    NotSilent {
        /// Its name.
        node: String,
        /// Where it stands.
        health: String,
    },
    /// An allocation that may not be preempted for that job.
    #[error("allocation {allocation} cannot be preempted: {why}")]
    NotPreemptible {
        /// Which.
        allocation: AllocationId,
        /// Why not.
        why: VictimFault,
    },
    /// The submission depends on finished jobs, and does not say how they ended: whoever proposes it reads that from disk.
    #[error("jobs {jobs:?}, on which the submission depends, are over; say how they ended")]
    EndUnknown {
        /// Which.
        jobs: Vec<JobId>,
    },
    /// A gang that cannot grow so, or for which growth cannot be taken back so.
    #[error("job {job}: {why}")]
    CannotGrow {
        /// Which.
        job: JobId,
        /// Why not.
        why: GrowthFault,
    },
    /// Whoever asks may not.
    #[error(transparent)]
    Denied(Denied),
}

impl Reject {
    /// Shorthand for one wrong field.
    pub fn field(field: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Reject::Invalid(vec![FieldError::new(field, problem, fix)])
    }

    /// Shorthand for a proposal that is not what the job asked for.
    pub fn shape(job: JobId, fault: impl Into<ShapeFault>) -> Self {
        Reject::WrongShape { job, why: Reason::Decided(fault.into()) }
    }

    /// Shorthand.
    pub fn not_found(what: &str, id: impl ToString) -> Self {
        Reject::NotFound { what: what.to_owned(), id: id.to_string() }
    }
}

impl From<Denied> for Reject {
    fn from(denied: Denied) -> Self {
        Reject::Denied(denied)
    }
}

impl From<Misfit> for Reject {
    fn from(misfit: Misfit) -> Self {
        let over_max = matches!(misfit, Misfit::OverMax(_) | Misfit::NotLent(_));
        Reject::DoesNotFit { why: misfit.into(), over_max }
    }
}
