//! What a job says beside its request: selector, needs, and what was chosen for them; device classes and priority classes.

use super::{text_if, word, word_if};
use crate::v1;
use muster_model::needs::{Choice, Isolation, Needs};
use muster_model::selector::BadSelector;
use muster_model::{Asked, DeviceClass, DeviceRequest, FieldError, GpuModel, PriorityClass, Selector};

/// Puts it into the message.
pub(super) fn asked_to_wire(asked: &Asked, devices: &DeviceRequest, wire: &mut v1::JobSpec) {
    wire.selector = asked.selector.as_ref().map(ToString::to_string).unwrap_or_default();
    wire.device_class = asked.device_class.clone().unwrap_or_default();
    wire.gpu_memory_mib = asked.gpu_memory_mib;
    wire.needs = asked.needs.as_ref().map(Into::into);
    wire.choice = asked.choice.as_ref().map(|choice| v1::Choice {
        rule: choice.rule.to_string(),
        model: choice.model.to_string(),
        compute_percent: choice.compute_percent,
        memory_mib: choice.memory_mib,
        text: choice.text(devices),
    });
}

/// Takes it out of the message.
pub(super) fn asked_from_wire(wire: &mut v1::JobSpec) -> Result<Asked, FieldError> {
    let selector = text_if(std::mem::take(&mut wire.selector));
    let needs = wire.needs.take().map(Needs::try_from).transpose().map_err(|error| error.under("needs"))?;
    let choice = wire.choice.take().map(Choice::try_from).transpose().map_err(|error| error.under("choice"))?;
    Ok(Asked {
        selector: selector.map(|text| read_selector(&text)).transpose()?,
        device_class: text_if(std::mem::take(&mut wire.device_class)),
        gpu_memory_mib: wire.gpu_memory_mib,
        needs,
        choice,
    })
}

fn read_selector(text: &str) -> Result<Selector, FieldError> {
    text.parse().map_err(|error: BadSelector| {
        FieldError::new("selector", format!("{} at byte {}", error.problem, error.at), error.fix)
    })
}

impl From<&Needs> for v1::Needs {
    fn from(needs: &Needs) -> Self {
        v1::Needs {
            memory_mib: needs.memory_mib,
            compute_percent: needs.compute_percent,
            isolation: needs.isolation.to_string(),
            bursty: needs.bursty,
            latency_critical: needs.latency_critical,
            models: needs.models.iter().map(ToString::to_string).collect(),
        }
    }
}

impl TryFrom<v1::Needs> for Needs {
    type Error = FieldError;

    fn try_from(wire: v1::Needs) -> Result<Self, FieldError> {
        let model = |(index, name): (usize, &String)| word(&format!("models[{index}]"), name);
        Ok(Needs {
            memory_mib: wire.memory_mib,
            compute_percent: wire.compute_percent,
            isolation: word_if::<Isolation>("isolation", &wire.isolation)?.unwrap_or_default(),
            bursty: wire.bursty,
            latency_critical: wire.latency_critical,
            models: wire.models.iter().enumerate().map(model).collect::<Result<Vec<GpuModel>, _>>()?,
        })
    }
}

impl TryFrom<v1::Choice> for Choice {
    type Error = FieldError;

    fn try_from(wire: v1::Choice) -> Result<Self, FieldError> {
        Ok(Choice {
            rule: word("rule", &wire.rule)?,
            model: word("model", &wire.model)?,
            compute_percent: wire.compute_percent,
            memory_mib: wire.memory_mib,
        })
    }
}

impl From<&DeviceClass> for v1::DeviceClass {
    fn from(class: &DeviceClass) -> Self {
        v1::DeviceClass {
            name: class.name.clone(),
            selector: class.selector.to_string(),
            tenants: class.tenants.iter().cloned().collect(),
        }
    }
}

impl From<&PriorityClass> for v1::PriorityClass {
    fn from(class: &PriorityClass) -> Self {
        v1::PriorityClass {
            name: class.name.clone(),
            priority: class.priority,
            preempts: class.preempts.iter().cloned().collect(),
            tenants: class.tenants.iter().cloned().collect(),
        }
    }
}

impl From<v1::PriorityClass> for PriorityClass {
    fn from(wire: v1::PriorityClass) -> Self {
        PriorityClass {
            name: wire.name,
            priority: wire.priority,
            preempts: wire.preempts.into_iter().collect(),
            tenants: wire.tenants.into_iter().collect(),
        }
    }
}

impl TryFrom<v1::DeviceClass> for DeviceClass {
    type Error = FieldError;

    fn try_from(wire: v1::DeviceClass) -> Result<Self, FieldError> {
        Ok(DeviceClass {
            name: wire.name,
            selector: read_selector(&wire.selector)?,
            tenants: wire.tenants.into_iter().collect(),
        })
    }
}
