//! Amounts and ceilings.

use super::word;
use crate::v1;
use muster_model::{FieldError, GpuModel, GpuUnits, Limits, ResourceVec};
use std::collections::BTreeMap;

impl From<&ResourceVec> for v1::ResourceVec {
    fn from(amount: &ResourceVec) -> Self {
        v1::ResourceVec {
            gpu_units: amount.gpus().map(|(model, units)| (model.to_string(), units.0)).collect(),
            cpu_milli: amount.cpu_milli,
            memory_mib: amount.memory_mib,
        }
    }
}

impl TryFrom<v1::ResourceVec> for ResourceVec {
    type Error = FieldError;

    fn try_from(wire: v1::ResourceVec) -> Result<Self, FieldError> {
        let mut out = ResourceVec::of_host(wire.cpu_milli, wire.memory_mib);
        for (model, units) in models_of(&wire.gpu_units)? {
            out.set_gpu(model, units);
        }
        Ok(out)
    }
}

impl From<&Limits> for v1::Limits {
    fn from(limits: &Limits) -> Self {
        v1::Limits {
            gpu_units: limits.gpu.iter().map(|(model, units)| (model.to_string(), units.0)).collect(),
            cpu_milli: limits.cpu_milli,
            memory_mib: limits.memory_mib,
        }
    }
}

impl TryFrom<v1::Limits> for Limits {
    type Error = FieldError;

    fn try_from(wire: v1::Limits) -> Result<Self, FieldError> {
        Ok(Limits { gpu: models_of(&wire.gpu_units)?, cpu_milli: wire.cpu_milli, memory_mib: wire.memory_mib })
    }
}

/// Two names of one model (`h100`, `h100-80`) would make one amount vanish, so they are refused.
fn models_of(named: &BTreeMap<String, u64>) -> Result<BTreeMap<GpuModel, GpuUnits>, FieldError> {
    let mut out = BTreeMap::new();
    for (name, units) in named {
        let model: GpuModel = word(&format!("gpu_units.{name}"), name)?;
        if out.insert(model, GpuUnits(*units)).is_some() {
            let problem = format!("names {model} twice");
            return Err(FieldError::new(format!("gpu_units.{name}"), problem, "name each model once"));
        }
    }
    Ok(out)
}
