//! Tenants: what admins write, and what is.

use super::{each, need, word, word_if};
use crate::v1;
use muster_model::tenant::TenantSpec;
use muster_model::{ApartFrom, FieldError, Tenant, TenantId, Trust};

/// The weight of a tenant that does not give one.
pub const WEIGHT_DEFAULT: u32 = 1;

impl From<&TenantSpec> for v1::TenantSpec {
    fn from(spec: &TenantSpec) -> Self {
        v1::TenantSpec {
            path: spec.path.clone(),
            guarantee: Some((&spec.guarantee).into()),
            max: Some((&spec.max).into()),
            weight: Some(spec.weight),
            trust: spec.trust.to_string(),
            apart_from: apart_to_wire(&spec.apart_from),
        }
    }
}

impl TryFrom<v1::TenantSpec> for TenantSpec {
    type Error = FieldError;

    fn try_from(wire: v1::TenantSpec) -> Result<Self, FieldError> {
        Ok(TenantSpec {
            path: wire.path,
            guarantee: wire.guarantee.unwrap_or_default().try_into().map_err(|e: FieldError| e.under("guarantee"))?,
            max: wire.max.unwrap_or_default().try_into().map_err(|e: FieldError| e.under("max"))?,
            weight: wire.weight.unwrap_or(WEIGHT_DEFAULT),
            trust: word_if::<Trust>("trust", &wire.trust)?.unwrap_or_default(),
            apart_from: each("apart_from", wire.apart_from)?,
        })
    }
}

fn apart_to_wire(apart_from: &[ApartFrom]) -> Vec<v1::ApartFrom> {
    apart_from
        .iter()
        .map(|apart| v1::ApartFrom { tenant: apart.tenant.clone(), level: apart.level.to_string() })
        .collect()
}

impl TryFrom<v1::ApartFrom> for ApartFrom {
    type Error = FieldError;

    fn try_from(wire: v1::ApartFrom) -> Result<Self, FieldError> {
        Ok(ApartFrom { tenant: wire.tenant, level: word("level", &wire.level)? })
    }
}

/// What is in use is known to the books, not to the tenant: whoever answers a client fills `used` in.
impl From<&Tenant> for v1::Tenant {
    fn from(tenant: &Tenant) -> Self {
        let spec = v1::TenantSpec {
            path: tenant.path.clone(),
            guarantee: Some((&tenant.guarantee).into()),
            max: Some((&tenant.max).into()),
            weight: Some(tenant.weight),
            trust: tenant.trust.to_string(),
            apart_from: apart_to_wire(&tenant.apart_from),
        };
        v1::Tenant { id: tenant.id.0, parent: tenant.parent.map(|parent| parent.0), spec: Some(spec), used: None }
    }
}

impl TryFrom<v1::Tenant> for Tenant {
    type Error = FieldError;

    fn try_from(wire: v1::Tenant) -> Result<Self, FieldError> {
        let spec = TenantSpec::try_from(need(wire.spec, "spec")?).map_err(|e| e.under("spec"))?;
        Ok(Tenant {
            id: TenantId(wire.id),
            path: spec.path,
            parent: wire.parent.map(TenantId),
            guarantee: spec.guarantee,
            max: spec.max,
            weight: spec.weight,
            trust: spec.trust,
            apart_from: spec.apart_from,
        })
    }
}
