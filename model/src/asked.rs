//! How a job describes the cards it wants, beside the request itself.
//!
//! A job may name a device class, write a selector, say how much memory a card or slice must have, or say its needs alone. The class
//! and the needs are resolved when the job is accepted, so that an accepted job is complete in itself: a class that changes later
//! changes nothing that was accepted.

use crate::gpu::GpuModel;
use crate::job::JobSpec;
use crate::mig;
use crate::needs::{Choice, Needs};
use crate::node::{Gpu, Node};
use crate::request::DeviceRequest;
use crate::selector::{Known, Selector, Truth};
use crate::tenant::lies_under;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Which cards will do; on an accepted job the class's selector is part of it.
    pub selector: Option<Selector>,
    /// The device class it names.
    pub device_class: Option<String>,
    /// Memory that each card, or the MIG slice, must have, in MiB.
    pub gpu_memory_mib: Option<u64>,
    /// What a task needs, when the system is to choose how it gets it.
    pub needs: Option<Needs>,
    /// What the system chose for those needs; set on acceptance.
    pub choice: Option<Choice>,
}

/// A selector with a name that jobs may use; admins make them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceClass {
    /// Its name.
    pub name: String,
    /// Which cards belong to it.
    pub selector: Selector,
    /// Paths of the tenants that may use it, those below them included; empty means all.
    pub tenants: BTreeSet<String>,
}

impl DeviceClass {
    /// Whether the tenant at `path` may use it.
    #[must_use]
    pub fn allows(&self, path: &str) -> bool {
        let within = |top: &String| lies_under(path, top);
        self.tenants.is_empty() || self.tenants.iter().any(within)
    }
}

impl JobSpec {
    /// Whether cards of `model` could ever serve it, whatever stands on them.
    #[must_use]
    pub fn possible_on(&self, model: GpuModel) -> bool {
        possible_on(&self.request.devices, self.asked.gpu_memory_mib, self.asked.selector.as_ref(), model)
    }

    /// The models that could ever serve it, the preferred first.
    pub fn possible_models(&self) -> impl Iterator<Item = GpuModel> + '_ {
        self.request.devices.possible_models().filter(|model| self.possible_on(*model))
    }

    /// Whether this very card of `node` is one that the job accepts.
    #[must_use]
    pub fn accepts_card(&self, gpu: &Gpu, node: &Node) -> bool {
        self.asked.selector.as_ref().is_none_or(|selector| selector.admits(gpu, node))
    }
}

/// Whether cards of `model` could ever serve such a request, with this memory and selector beside it, whatever stands on them.
#[must_use]
pub fn possible_on(
    devices: &DeviceRequest,
    gpu_memory_mib: Option<u64>,
    selector: Option<&Selector>,
    model: GpuModel,
) -> bool {
    devices.possible_on(model)
        && gpu_memory_mib.is_none_or(|mib| hold_memory_mib(devices, model).is_some_and(|has| has >= mib))
        && selector.is_none_or(|selector| selector.on(&Known::of_model(model)) != Truth::No)
}

/// Memory that one hold gives on `model`, by the data sheet: a card's, an instance's or the share's own, in MiB.
#[must_use]
pub fn hold_memory_mib(devices: &DeviceRequest, model: GpuModel) -> Option<u64> {
    match devices {
        DeviceRequest::None => None,
        DeviceRequest::Whole { .. } => Some(model.memory_mib()),
        DeviceRequest::Mig { .. } => mig::instance_memory_mib(model, devices.mig_shape(model)?),
        DeviceRequest::Mps { memory_mib, .. } | DeviceRequest::TimeSlice { memory_mib, .. } => Some(*memory_mib),
    }
}
