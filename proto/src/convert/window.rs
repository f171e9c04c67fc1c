//! Windows: maintenance, advance reservations, drains by a deadline.

use super::{word, word_if};
use crate::v1;
use muster_model::{FieldError, NodeId, TenantId, Window, WindowSpec};

impl From<&Window> for v1::Window {
    fn from(window: &Window) -> Self {
        let Window { name, kind, nodes, start_ms, end_ms, reason, tenants, flex, preempt, open, made_ms } = window;
        v1::Window {
            name: name.clone(),
            kind: kind.to_string(),
            nodes: nodes.iter().map(|node| node.0).collect(),
            start_ms: *start_ms,
            end_ms: *end_ms,
            reason: reason.clone(),
            tenants: tenants.iter().map(|tenant| tenant.0).collect(),
            flex: *flex,
            preempt: *preempt,
            open: *open,
            made_ms: *made_ms,
        }
    }
}

impl TryFrom<v1::Window> for Window {
    type Error = FieldError;

    fn try_from(wire: v1::Window) -> Result<Self, FieldError> {
        Ok(Window {
            name: wire.name,
            kind: word("kind", &wire.kind)?,
            nodes: wire.nodes.into_iter().map(NodeId).collect(),
            start_ms: wire.start_ms,
            end_ms: wire.end_ms,
            reason: wire.reason,
            tenants: wire.tenants.into_iter().map(TenantId).collect(),
            flex: wire.flex,
            preempt: wire.preempt,
            open: wire.open,
            made_ms: wire.made_ms,
        })
    }
}

impl TryFrom<v1::WindowSpec> for WindowSpec {
    type Error = FieldError;

    fn try_from(wire: v1::WindowSpec) -> Result<Self, FieldError> {
        Ok(WindowSpec {
            name: wire.name,
            kind: word("kind", &wire.kind)?,
            nodes: wire.nodes,
            gpus: wire.gpus,
            model: word_if("model", &wire.model)?,
            start_ms: wire.start_ms,
            end_ms: wire.end_ms,
            reason: wire.reason,
            tenants: wire.tenants,
            flex: wire.flex,
            preempt: wire.preempt,
        })
    }
}
