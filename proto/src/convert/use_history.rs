//! What tenants used over time, as shards are told of it.

use super::need;
use crate::v1;
use muster_model::use_history::DecayedUse;
use muster_model::{FieldError, TenantId, UseHistory};

impl From<&UseHistory> for v1::UseHistory {
    fn from(record: &UseHistory) -> Self {
        v1::UseHistory {
            tenant_id: record.tenant.0,
            half_life_s: record.half_life_s,
            at_ms: record.at_ms,
            burst: Some((&record.burst).into()),
            own: Some((&record.own).into()),
        }
    }
}

impl TryFrom<v1::UseHistory> for UseHistory {
    type Error = FieldError;

    fn try_from(wire: v1::UseHistory) -> Result<Self, FieldError> {
        Ok(UseHistory {
            tenant: TenantId(wire.tenant_id),
            half_life_s: wire.half_life_s,
            at_ms: wire.at_ms,
            burst: need(wire.burst, "burst")?.try_into().map_err(|error: FieldError| error.under("burst"))?,
            own: need(wire.own, "own")?.try_into().map_err(|error: FieldError| error.under("own"))?,
        })
    }
}

impl From<&DecayedUse> for v1::DecayedUse {
    fn from(of: &DecayedUse) -> Self {
        v1::DecayedUse { average: Some((&of.average).into()), since: Some((&of.since).into()) }
    }
}

impl TryFrom<v1::DecayedUse> for DecayedUse {
    type Error = FieldError;

    fn try_from(wire: v1::DecayedUse) -> Result<Self, FieldError> {
        Ok(DecayedUse {
            average: need(wire.average, "average")?.try_into().map_err(|error: FieldError| error.under("average"))?,
            since: need(wire.since, "since")?.try_into().map_err(|error: FieldError| error.under("since"))?,
        })
    }
}
