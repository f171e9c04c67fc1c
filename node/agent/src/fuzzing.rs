//! Ways in for the fuzz targets of `fuzz/`: what the control plane sends.
//!
//! What must stay true: a function here calls one parser, and decides nothing.

use crate::wire;
use muster_model::FieldError;
use muster_node_core::Desired;
use muster_proto::v1;

/// The desired state of a node.
///
/// # Errors
/// Which field cannot be read.
pub fn desired(message: v1::Desired) -> Result<Desired, FieldError> {
    wire::desired(message)
}
