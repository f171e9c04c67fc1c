//! Tenants: what admins write, and what is.

use super::{each, need, word, word_if};
use crate::v1;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::{AmountsEdit, AntiAffinityEdit, Edit, TenantChange, TenantEdit, WEIGHT_DEFAULT};
use muster_model::{AntiAffinity, FieldError, GpuModel, GpuUnits, Tenant, TenantId, Trust};
use std::collections::BTreeMap;

impl From<&TenantSpec> for v1::TenantSpec {
    fn from(spec: &TenantSpec) -> Self {
        v1::TenantSpec {
            path: spec.path.clone(),
            guarantee: Some((&spec.guarantee).into()),
            max: Some((&spec.max).into()),
            weight: Some(spec.weight),
            trust: spec.trust.to_string(),
            anti_affinity: anti_affinity_to_wire(&spec.anti_affinity),
            lend: Some(spec.lend),
            run_as: spec.run_as,
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
            anti_affinity: each("anti_affinity", wire.anti_affinity)?,
            lend: wire.lend.unwrap_or(true),
            run_as: wire.run_as,
        })
    }
}

fn anti_affinity_to_wire(anti_affinity: &[AntiAffinity]) -> Vec<v1::AntiAffinity> {
    anti_affinity
        .iter()
        .map(|apart| v1::AntiAffinity { tenant: apart.tenant.clone(), level: apart.level.to_string() })
        .collect()
}

impl TryFrom<v1::AntiAffinity> for AntiAffinity {
    type Error = FieldError;

    fn try_from(wire: v1::AntiAffinity) -> Result<Self, FieldError> {
        Ok(AntiAffinity { tenant: wire.tenant, level: word("level", &wire.level)? })
    }
}

/// What is in use is known to the capacity ledger, not to the tenant: whoever answers a client fills `used` in.
impl From<&Tenant> for v1::Tenant {
    fn from(tenant: &Tenant) -> Self {
        let spec = v1::TenantSpec {
            path: tenant.path.clone(),
            guarantee: Some((&tenant.guarantee).into()),
            max: Some((&tenant.max).into()),
            weight: Some(tenant.weight),
            trust: tenant.trust.to_string(),
            anti_affinity: anti_affinity_to_wire(&tenant.anti_affinity),
            lend: Some(tenant.lend),
            run_as: tenant.run_as,
        };
        v1::Tenant {
            id: tenant.id.0,
            parent: tenant.parent.map(|parent| parent.0),
            spec: Some(spec),
            used: None,
            quota: None,
        }
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
            anti_affinity: spec.anti_affinity,
            lend: spec.lend,
            run_as: spec.run_as,
        })
    }
}

/// A value that is set where it is there, and otherwise removed.
fn edit<T>(value: Option<T>) -> Edit<T> {
    value.map_or(Edit::Remove, Edit::Set)
}

/// The value of a message that sets or removes; no message where it stays.
fn edited<T: Copy>(edit: Edit<T>) -> Option<Option<T>> {
    match edit {
        Edit::Keep => None,
        Edit::Set(value) => Some(Some(value)),
        Edit::Remove => Some(None),
    }
}

impl From<&AmountsEdit> for v1::AmountsEdit {
    fn from(edit: &AmountsEdit) -> Self {
        let amount = |edit| edited(edit).map(|amount| v1::AmountEdit { amount });
        let gpu = |(model, units): (&GpuModel, &Option<GpuUnits>)| v1::GpuEdit {
            model: model.to_string(),
            units: units.map(|units| units.0),
        };
        v1::AmountsEdit {
            clear: edit.clear,
            gpus: edit.gpu.iter().map(gpu).collect(),
            cpu_milli: amount(edit.cpu_milli),
            memory_mib: amount(edit.memory_mib),
        }
    }
}

impl TryFrom<v1::AmountsEdit> for AmountsEdit {
    type Error = FieldError;

    fn try_from(wire: v1::AmountsEdit) -> Result<Self, FieldError> {
        let mut gpu = BTreeMap::new();
        for edit in &wire.gpus {
            let field = format!("gpus.{}", edit.model);
            let model: GpuModel = word(&field, &edit.model)?;
            // Of two edits of one model one would be without effect.
            if gpu.insert(model, edit.units.map(GpuUnits)).is_some() {
                return Err(FieldError::new(field, format!("names {model} twice"), "name each model once"));
            }
        }
        let amount = |wire: Option<v1::AmountEdit>| wire.map_or(Edit::Keep, |wire| edit(wire.amount));
        Ok(AmountsEdit {
            clear: wire.clear,
            gpu,
            cpu_milli: amount(wire.cpu_milli),
            memory_mib: amount(wire.memory_mib),
        })
    }
}

impl From<&TenantEdit> for v1::TenantEdit {
    fn from(edit: &TenantEdit) -> Self {
        let level = |(tenant, level): (&String, &Option<muster_model::AntiAffinityLevel>)| {
            (tenant.clone(), level.map(|level| level.to_string()).unwrap_or_default())
        };
        let trust = |trust: Option<Trust>| v1::TrustEdit { trust: trust.map(|trust| trust.to_string()) };
        v1::TenantEdit {
            path: edit.path.clone(),
            guarantee: Some((&edit.guarantee).into()),
            max: Some((&edit.max).into()),
            weight: edited(edit.weight).map(|weight| v1::WeightEdit { weight }),
            trust: edited(edit.trust).map(trust),
            anti_affinity: Some(v1::AntiAffinityEdit {
                clear: edit.anti_affinity.clear,
                levels: edit.anti_affinity.levels.iter().map(level).collect(),
            }),
            lend: edited(edit.lend).map(|lend| v1::LendEdit { lend }),
            run_as: edited(edit.run_as).map(|user| v1::RunAsEdit { user }),
        }
    }
}

impl TryFrom<v1::TenantEdit> for TenantEdit {
    type Error = FieldError;

    fn try_from(wire: v1::TenantEdit) -> Result<Self, FieldError> {
        let amounts = |wire: Option<v1::AmountsEdit>, field: &str| {
            AmountsEdit::try_from(wire.unwrap_or_default()).map_err(|error| error.under(field))
        };
        let trust = match wire.trust {
            None => Edit::Keep,
            Some(wire) => edit(wire.trust.map(|text| word::<Trust>("trust", &text)).transpose()?),
        };
        let apart = wire.anti_affinity.unwrap_or_default();
        let mut levels = BTreeMap::new();
        for (tenant, level) in apart.levels {
            let field = format!("anti_affinity.{tenant}");
            levels.insert(tenant, word_if(&field, &level)?);
        }
        Ok(TenantEdit {
            path: wire.path,
            guarantee: amounts(wire.guarantee, "guarantee")?,
            max: amounts(wire.max, "max")?,
            weight: wire.weight.map_or(Edit::Keep, |wire| edit(wire.weight)),
            trust,
            anti_affinity: AntiAffinityEdit { clear: apart.clear, levels },
            lend: wire.lend.map_or(Edit::Keep, |wire| edit(wire.lend)),
            run_as: wire.run_as.map_or(Edit::Keep, |wire| edit(wire.user)),
        })
    }
}

impl From<&TenantChange> for v1::TenantChange {
    fn from(change: &TenantChange) -> Self {
        v1::TenantChange { before: change.before.as_ref().map(Into::into), after: Some((&change.after).into()) }
    }
}
