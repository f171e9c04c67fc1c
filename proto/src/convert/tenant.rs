//! Tenants: what admins write, and what is.

use super::{each, need, word, word_if};
use crate::v1;
use muster_model::resources::Resource;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::{
    AmountsEdit, AntiAffinityEdit, Edit, LendsEdit, TenantChange, TenantEdit, WEIGHT_DEFAULT, WeightsEdit,
};
use muster_model::{
    AntiAffinity, FieldError, GpuModel, GpuUnits, Tenant, TenantHistory, TenantId, TenantVersion, Trust,
};
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
            weights: by_resource_to_wire(&spec.weights),
            lends: by_resource_to_wire(&spec.lends),
            run_as: spec.run_as,
        }
    }
}

/// Values of single resources, as they are sent.
#[must_use]
pub fn by_resource_to_wire<T: Copy, M: FromIterator<(String, T)>>(values: &BTreeMap<Resource, T>) -> M {
    values.iter().map(|(resource, value)| (resource.to_string(), *value)).collect()
}

fn by_resource<T>(
    field: &str,
    wire: impl IntoIterator<Item = (String, T)>,
) -> Result<BTreeMap<Resource, T>, FieldError> {
    let one = |(name, value): (String, T)| Ok((word(&format!("{field}.{name}"), &name)?, value));
    wire.into_iter().map(one).collect()
}

/// The same for edits, of which two of one resource would leave one without effect.
fn edits_by_resource<T>(field: &str, wire: Vec<(String, T)>) -> Result<BTreeMap<Resource, T>, FieldError> {
    let count = wire.len();
    let edits = by_resource(field, wire)?;
    if edits.len() < count {
        return Err(FieldError::new(field, "names a resource twice", "name each resource once"));
    }
    Ok(edits)
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
            weights: by_resource("weights", wire.weights)?,
            lends: by_resource("lends", wire.lends)?,
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
            weights: by_resource_to_wire(&tenant.weights),
            lends: by_resource_to_wire(&tenant.lends),
            run_as: tenant.run_as,
        };
        v1::Tenant {
            id: tenant.id.0,
            parent: tenant.parent.map(|parent| parent.0),
            spec: Some(spec),
            used: None,
            quota: None,
            account: None,
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
            weights: spec.weights,
            lends: spec.lends,
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

fn weight_to_wire(of: Resource, weight: Option<u32>) -> v1::ResourceWeight {
    v1::ResourceWeight { resource: of.to_string(), weight }
}

fn lend_to_wire(of: Resource, lend: Option<bool>) -> v1::ResourceLend {
    v1::ResourceLend { resource: of.to_string(), lend }
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
            weights: (edit.weights != WeightsEdit::default()).then(|| v1::WeightsEdit {
                clear: edit.weights.clear,
                weights: edit.weights.of.iter().map(|(of, weight)| weight_to_wire(*of, *weight)).collect(),
            }),
            lends: (edit.lends != LendsEdit::default()).then(|| v1::LendsEdit {
                clear: edit.lends.clear,
                lends: edit.lends.of.iter().map(|(of, lend)| lend_to_wire(*of, *lend)).collect(),
            }),
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
        let (weights, lends) = (wire.weights.unwrap_or_default(), wire.lends.unwrap_or_default());
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
            weights: WeightsEdit {
                clear: weights.clear,
                of: edits_by_resource(
                    "weights",
                    weights.weights.into_iter().map(|one| (one.resource, one.weight)).collect(),
                )?,
            },
            lends: LendsEdit {
                clear: lends.clear,
                of: edits_by_resource("lends", lends.lends.into_iter().map(|one| (one.resource, one.lend)).collect())?,
            },
            run_as: wire.run_as.map_or(Edit::Keep, |wire| edit(wire.user)),
        })
    }
}

impl From<&TenantChange> for v1::TenantChange {
    fn from(change: &TenantChange) -> Self {
        v1::TenantChange { before: change.before.as_ref().map(Into::into), after: Some((&change.after).into()) }
    }
}

impl From<&TenantVersion> for v1::TenantVersion {
    fn from(version: &TenantVersion) -> Self {
        let spec = v1::TenantSpec {
            path: version.path.clone(),
            guarantee: Some((&version.guarantee).into()),
            max: Some((&version.max).into()),
            weight: Some(version.weight),
            trust: version.trust.to_string(),
            anti_affinity: Vec::new(),
            lend: Some(version.lend),
            weights: by_resource_to_wire(&version.weights),
            lends: by_resource_to_wire(&version.lends),
            run_as: None,
        };
        v1::TenantVersion { from_ms: version.from_ms, spec: Some(spec) }
    }
}

impl From<&TenantHistory> for v1::TenantHistory {
    fn from(history: &TenantHistory) -> Self {
        v1::TenantHistory {
            tenant_id: history.tenant.0,
            versions: history.versions.iter().map(Into::into).collect(),
            removed_ms: history.removed_ms,
            is_cut: history.is_cut,
        }
    }
}
