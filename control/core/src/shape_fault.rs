//! What is wrong with a placement or a reservation that a shard proposes, whatever is free.
//!
//! What must stay true: each says what was asked and what was proposed; whether a placement *fits* is
//! [`Misfit`](muster_model::capacity::Misfit)'s business.

use muster_model::closeness::TooFar;
use muster_model::eligibility::PoolRefusal;
use muster_model::{DriverVersion, GpuModel, HoldMode, Rank, WindowKind, utc};

/// How a placement differs from what the job asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeFault {
    /// Another number of tasks.
    #[error("{asked} tasks requested, but {placed} placed")]
    Tasks {
        /// Asked.
        asked: u32,
        /// Placed.
        placed: usize,
    },
    /// Cards for a job that asked for none.
    #[error("no GPU requested, but {model} placed")]
    NoGpuAsked {
        /// The model of the cards.
        model: GpuModel,
    },
    /// No model for a job that asked for cards.
    #[error("GPUs requested, but no model given")]
    NoModel,
    /// A model that does not serve the job.
    #[error("{model} cannot serve the request")]
    Model {
        /// Which.
        model: GpuModel,
    },
    /// One rank.
    #[error("rank {rank} on {node}: {fault}")]
    Rank {
        /// Which.
        rank: Rank,
        /// The name of its node.
        node: String,
        /// What is wrong with it.
        fault: RankFault,
    },
    /// The gang stands too far apart, or too close.
    #[error(transparent)]
    TooFar(#[from] TooFar),
    /// A reservation.
    #[error(transparent)]
    Reservation(#[from] ReservationFault),
    /// A window is in the way.
    #[error(transparent)]
    Window(#[from] WindowFault),
}

/// Why the windows of the fleet do not let a job stand where it was placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowFault {
    /// The reservation that it names is none, or over.
    #[error("reservation {name} does not exist")]
    NoReservation {
        /// Its name.
        name: String,
    },
    /// It is for others.
    #[error("reservation {name} is not for tenant {tenant}")]
    NotForTenant {
        /// Its name.
        name: String,
        /// Path of the job's tenant.
        tenant: String,
    },
    /// A node that is not in the reservation that it names.
    #[error("node {node} is not in reservation {name}")]
    OutsideReservation {
        /// The node's name.
        node: String,
        /// The reservation.
        name: String,
    },
    /// The job may still be there when it may not, or may not be there yet.
    #[error("node {node} has {kind} {name} from {}, and the job may not be there then", utc::show(*start_ms))]
    Closed {
        /// The node's name.
        node: String,
        /// What the window is for.
        kind: WindowKind,
        /// Its name.
        name: String,
        /// When it begins.
        start_ms: u64,
    },
}

/// How the place of one rank differs from what the job asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankFault {
    /// A node of another cell.
    #[error("the node is in {there}, but {asked} is required")]
    OtherCell {
        /// The node's cell.
        there: String,
        /// The cell that the gang is bound in.
        asked: String,
    },
    /// A pool that does not serve the job.
    #[error("{}", refusal.of(pool))]
    Pool {
        /// Which.
        pool: String,
        /// Why not.
        refusal: PoolRefusal,
    },
    /// A driver that is too old.
    #[error("the driver {there:?} is older than the required {asked}")]
    Driver {
        /// The oldest that the job can run on.
        asked: DriverVersion,
        /// The node's, as it reports it.
        there: String,
    },
    /// Another number of devices.
    #[error("{asked} devices requested, but {placed} placed")]
    Devices {
        /// Asked for each task.
        asked: usize,
        /// Placed.
        placed: usize,
    },
    /// One card more than once.
    #[error("GPU {gpu} is placed twice")]
    Twice {
        /// Which.
        gpu: u16,
    },
    /// No such card.
    #[error("GPU {gpu} does not exist")]
    NoGpu {
        /// Which.
        gpu: u16,
    },
    /// A card of another model than the gang's.
    #[error("GPU {gpu} is a {model}")]
    OtherModel {
        /// Which.
        gpu: u16,
        /// Its model.
        model: GpuModel,
    },
    /// A card that the job's selector does not accept.
    #[error("the selector does not accept GPU {gpu}")]
    Selector {
        /// Which.
        gpu: u16,
    },
    /// A card that is held in another way than was asked.
    #[error("{mode} on GPU {gpu} does not match the request")]
    Hold {
        /// Which.
        gpu: u16,
        /// How it would be held.
        mode: HoldMode,
    },
}

/// What is wrong with a reservation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationFault {
    /// It starts too early or too late.
    #[error("the reservation starts at {start_ms} ms, outside of {first_ms} to {last_ms} ms")]
    Start {
        /// When it starts.
        start_ms: u64,
        /// The earliest that is accepted now.
        first_ms: u64,
        /// The latest.
        last_ms: u64,
    },
    /// It has no nodes.
    #[error("a reservation without nodes")]
    NoNodes,
    /// Its nodes are not each once and in order.
    #[error("the reserved nodes are not each once and in order")]
    Unordered,
    /// A node of another cell, or none.
    #[error("node {node} is not in {cell}")]
    OtherCell {
        /// Its name, or its number where there is no such node.
        node: String,
        /// The cell.
        cell: String,
    },
}
