//! The shared vocabulary and arithmetic of Muster, pure.
//!
//! Every other crate speaks in these types. What must stay true:
//! - nothing here knows a clock, a random number, a file, a socket or an async runtime;
//! - collections are ordered, so that iterating them is part of the result and the same on every replica;
//! - [`capacity`] is the only place that decides whether something *fits*, and the only one that charges and releases;
//!   shards plan with it and the control plane proves with it again.

pub mod allocation;
pub mod asked;
pub mod attempt;
pub mod bounds;
pub mod capacity;
pub mod checkpoint;
pub mod claim;
pub mod closeness;
pub mod driver;
pub mod eligibility;
pub mod field_error;
pub mod gang;
pub mod gpu;
pub mod ids;
pub mod job;
pub mod job_update;
pub mod laws;
pub mod links;
pub mod mig;
pub mod movable;
pub mod needs;
pub mod node;
pub mod object;
pub mod preemption;
pub mod request;
pub mod resources;
pub mod selector;
pub mod task;
pub mod tenant;
pub mod tenant_edit;
pub mod topology;
pub mod usage;
mod usual;
pub mod validate;
pub mod words;
pub mod workload;

pub use allocation::{Allocation, AllocationState, ClassSegment, EndCause};
pub use asked::{Asked, DeviceClass};
pub use checkpoint::Checkpoint;
pub use claim::Claim;
pub use driver::DriverVersion;
pub use field_error::FieldError;
pub use gpu::GpuModel;
pub use ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, Rank, Revision, TenantId};
pub use job::{Job, JobPhase, JobSpec, Outcome, Reservation, ValidJobSpec};
pub use job_update::JobUpdate;
pub use movable::{Loss, Movable};
pub use node::{Cell, Gpu, Node, NodeHealth, NodeNotes, Place, Pool};
pub use object::{Change, Key, Object};
pub use preemption::{LimitSignal, PreemptReason, Preemption, Stop, StopSignal};
pub use request::DeviceRequest;
pub use resources::{GpuUnits, Limits, ResourceVec};
pub use selector::Selector;
pub use task::{Binding, DeviceHold, HoldMode, TaskPlacement, TaskState};
pub use tenant::{AntiAffinity, AntiAffinityLevel, Tenant, Trust};
pub use topology::{NumaPolicy, Spread, Topology, TopologyLevel};
pub use words::UnknownWord;
pub use workload::WorkloadClass;
