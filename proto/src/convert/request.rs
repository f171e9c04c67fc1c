//! Device requests, task requests and topology.

use super::{narrow, word, word_if};
use crate::v1;
use muster_model::request::TaskRequest;
use muster_model::{DeviceRequest, FieldError, GpuModel, Spread, Topology};
use v1::device_request::Kind;

/// Tasks in one domain of a spread that does not say: each stands alone.
pub const SPREAD_TASKS_MAX_DEFAULT: u32 = 1;

impl From<&DeviceRequest> for v1::DeviceRequest {
    fn from(request: &DeviceRequest) -> Self {
        let kind = match request {
            DeviceRequest::None => None,
            DeviceRequest::Whole { count, .. } => Some(Kind::Whole(v1::WholeGpus { count: *count })),
            DeviceRequest::Mig { profile, .. } => Some(Kind::Mig(v1::MigInstance { profile: profile.clone() })),
            DeviceRequest::Mps { percent, memory_mib, .. } => {
                Some(Kind::Mps(v1::MpsShare { percent: u32::from(*percent), memory_mib: *memory_mib }))
            }
            DeviceRequest::TimeSlice { memory_mib, .. } => {
                Some(Kind::TimeSlice(v1::TimeSliceShare { memory_mib: *memory_mib }))
            }
        };
        v1::DeviceRequest { kind, models: request.models().iter().map(ToString::to_string).collect() }
    }
}

impl TryFrom<v1::DeviceRequest> for DeviceRequest {
    type Error = FieldError;

    fn try_from(wire: v1::DeviceRequest) -> Result<Self, FieldError> {
        let models = wire
            .models
            .iter()
            .enumerate()
            .map(|(index, name)| word(&format!("models[{index}]"), name))
            .collect::<Result<Vec<GpuModel>, _>>()?;
        Ok(match wire.kind {
            None if models.is_empty() => DeviceRequest::None,
            None => {
                let problem = "names GPU models but requests no GPU";
                return Err(FieldError::new("models", problem, "request GPUs, a MIG profile or a share"));
            }
            Some(Kind::Whole(whole)) => DeviceRequest::Whole { count: whole.count, models },
            Some(Kind::Mig(mig)) => DeviceRequest::Mig { profile: mig.profile, models },
            Some(Kind::Mps(mps)) => {
                let percent = narrow("mps.percent", mps.percent, 100_u8)?;
                DeviceRequest::Mps { percent, memory_mib: mps.memory_mib, models }
            }
            Some(Kind::TimeSlice(share)) => DeviceRequest::TimeSlice { memory_mib: share.memory_mib, models },
        })
    }
}

impl From<&TaskRequest> for v1::TaskRequest {
    fn from(request: &TaskRequest) -> Self {
        v1::TaskRequest {
            devices: Some((&request.devices).into()),
            cpu_milli: request.cpu_milli,
            memory_mib: request.memory_mib,
        }
    }
}

impl TryFrom<v1::TaskRequest> for TaskRequest {
    type Error = FieldError;

    fn try_from(wire: v1::TaskRequest) -> Result<Self, FieldError> {
        let devices = wire.devices.unwrap_or_default().try_into()?;
        Ok(TaskRequest { devices, cpu_milli: wire.cpu_milli, memory_mib: wire.memory_mib })
    }
}

impl From<&Topology> for v1::Topology {
    fn from(topology: &Topology) -> Self {
        let name = |level: Option<muster_model::TopologyLevel>| level.map(|l| l.to_string()).unwrap_or_default();
        v1::Topology {
            required: name(topology.required),
            preferred: name(topology.preferred),
            segment_tasks: topology.segment_tasks.unwrap_or(0),
            spread: topology.spread.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<v1::Topology> for Topology {
    type Error = FieldError;

    fn try_from(wire: v1::Topology) -> Result<Self, FieldError> {
        Ok(Topology {
            required: word_if("required", &wire.required)?,
            preferred: word_if("preferred", &wire.preferred)?,
            segment_tasks: (wire.segment_tasks > 0).then_some(wire.segment_tasks),
            spread: wire.spread.map(Spread::try_from).transpose().map_err(|error| error.under("spread"))?,
        })
    }
}

impl From<&Spread> for v1::Spread {
    fn from(spread: &Spread) -> Self {
        v1::Spread { level: spread.level.to_string(), tasks_max: Some(spread.tasks_max), required: spread.required }
    }
}

impl TryFrom<v1::Spread> for Spread {
    type Error = FieldError;

    fn try_from(wire: v1::Spread) -> Result<Self, FieldError> {
        Ok(Spread {
            level: word("level", &wire.level)?,
            tasks_max: wire.tasks_max.unwrap_or(SPREAD_TASKS_MAX_DEFAULT),
            required: wire.required,
        })
    }
}
