//! The wire: `muster.v1` messages and services, and their conversions to the vocabulary of the model. Nothing else.
//!
//! What must stay true: no decision is made here; what cannot be converted is refused with the field's path and the fix; a value
//! that goes out and comes back is the same (a property test).

pub mod bounded;
pub mod convert;
pub mod status;

/// Generated messages, clients and servers of package `muster.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]
pub mod v1 {
    tonic::include_proto!("muster.v1");
}

/// The call whose path this is; none of another package, and none that does not exist.
#[must_use]
pub fn rpc(path: &str) -> Option<muster_model::Rpc> {
    use muster_model::Rpc;
    include!(concat!(env!("OUT_DIR"), "/rpcs.rs"))
}

/// The compiled descriptors, for the reflection service.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
