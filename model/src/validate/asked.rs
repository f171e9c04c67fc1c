//! What stands beside a request: selector, memory, needs; and what is accepted with a warning.

use super::{Faults, models_in_words, short};
use crate::asked::Asked;
use crate::bounds;
use crate::field_error::FieldError;
use crate::gpu::GpuModel;
use crate::job::JobSpec;
use crate::mig::{self, MigShape};
use crate::needs::Needs;
use crate::preemption::CHECKPOINT_BYTES_PER_S;
use crate::request::DeviceRequest;
use crate::resources::GpuUnits;
use crate::selector::{Known, Truth};
use crate::workload::WorkloadClass;

impl JobSpec {
    /// Whether it asks for cards, or leaves to the system how it gets them.
    pub(super) fn wants_gpus(&self) -> bool {
        self.request.devices.cards() > 0 || self.asked.needs.is_some()
    }

    pub(super) fn check_asked(&self, faults: &mut Faults) {
        let Asked { selector, device_class, gpu_memory_mib, needs, choice } = &self.asked;
        let described = [
            ("selector", selector.is_some()),
            ("device_class", device_class.is_some()),
            ("gpu_memory_mib", gpu_memory_mib.is_some()),
        ];
        for (field, said) in described {
            faults.when(
                said && !self.wants_gpus(),
                field,
                || "is given for tasks without GPUs".into(),
                "leave it out, or request GPUs, a MIG profile or a share",
            );
        }
        if let Some(name) = device_class {
            faults.name("device_class", name);
        }
        let chosen = self.request.devices.mode().is_some();
        faults.when(
            needs.is_some() && chosen != choice.is_some(),
            "needs",
            || "conflicts with the request for GPUs".into(),
            "give needs alone, or GPUs, a MIG profile or a share without needs",
        );
        faults.when(
            needs.is_none() && choice.is_some(),
            "choice",
            || "is given without needs".into(),
            "leave it out: Muster sets it",
        );
        if let Some(needs) = needs {
            check_needs(needs, faults);
        }
        if chosen {
            self.check_possible(faults);
        }
    }

    /// What the request asks must be possible on some model together with the memory and the selector; the request by itself is
    /// judged beside its own fields.
    fn check_possible(&self, faults: &mut Faults) {
        let devices = &self.request.devices;
        let models: Vec<GpuModel> = devices.possible_models().collect();
        if let Some(asked) = self.asked.gpu_memory_mib {
            let most = models.iter().filter_map(|model| devices.hold_memory_mib(*model)).max();
            if let Some(most) = most.filter(|most| *most < asked) {
                let fix = self.enough_memory(asked);
                let problem = format!("is {asked} MiB, but {} has {most} MiB", what_in_words(devices));
                faults.0.push(FieldError::new("gpu_memory_mib", problem, fix));
            }
        }
        let Some(selector) = &self.asked.selector else { return };
        let accepted = models.iter().any(|model| selector.on(&Known::of_model(*model)) != Truth::No);
        faults.when(
            !models.is_empty() && !accepted,
            "selector",
            || format!("accepts no {}", models_in_words(devices)),
            "leave out the models, or change the selector so that it accepts one of them",
        );
    }

    /// What to ask for instead, to have this much memory on one card.
    fn enough_memory(&self, mib: u64) -> String {
        let named = self.request.devices.models();
        let models = if named.is_empty() { &GpuModel::ALL[..] } else { named };
        // The slice that is the whole card is better asked for as that.
        let a_part = |model: GpuModel, shape: MigShape| {
            let part = model.facts().mig.is_some_and(|family| shape.charge(family) < GpuUnits::CARD);
            part && !shape.has_media()
        };
        let smallest = |model: &GpuModel| {
            let holds = |shape: &MigShape| mig::instance_memory_mib(*model, *shape).is_some_and(|has| has >= mib);
            let named = |shape: MigShape| Some((shape, mig::profile_name(*model, shape)?));
            let shapes = MigShape::ALL.into_iter().filter(|shape| a_part(*model, *shape) && holds(shape));
            let smallest =
                shapes.filter_map(named).min_by_key(|(shape, _)| (shape.memory_slices(), shape.compute_slices()));
            smallest.map(|(_, name)| format!("{name} on {model}"))
        };
        let asks_for_mig = matches!(self.request.devices, DeviceRequest::Mig { .. });
        // A model on which the profile exists is meant before others.
        let meant = self.request.devices.possible_models().chain(models.iter().copied());
        if let Some(profile) = meant.filter(|_| asks_for_mig).find_map(|model| smallest(&model)) {
            return format!("request {profile}");
        }
        match models.iter().map(|model| (model.memory_mib(), model)).filter(|(has, _)| *has >= mib).min() {
            Some((has, model)) => format!("request a whole {model}, which has {has} MiB"),
            None => "request several whole GPUs, and split the work".to_owned(),
        }
    }
}

fn check_needs(needs: &Needs, faults: &mut Faults) {
    faults.models("needs.models", &needs.models);
    faults.when(needs.memory_mib == 0, "needs.memory_mib", || "is 0".into(), "give the memory that a task needs");
    faults.when(
        needs.memory_mib > bounds::MEMORY_MIB_MAX,
        "needs.memory_mib",
        || format!("is {}", needs.memory_mib),
        "use at most 67,108,864 (64 TiB)",
    );
    faults.when(
        needs.compute_percent > 100 * bounds::CARDS_PER_TASK_MAX,
        "needs.compute_percent",
        || format!("is {}", needs.compute_percent),
        "use at most 1,600 (16 GPUs) for each task",
    );
}

fn what_in_words(devices: &DeviceRequest) -> String {
    match devices {
        DeviceRequest::Mig { profile, .. } => short(profile),
        DeviceRequest::Mps { .. } | DeviceRequest::TimeSlice { .. } => "the share".to_owned(),
        DeviceRequest::None | DeviceRequest::Whole { .. } => format!("the largest {}", models_in_words(devices)),
    }
}

/// What is accepted but should be known.
#[must_use]
pub fn warnings(spec: &JobSpec) -> Vec<FieldError> {
    let mut faults = Faults::default();
    faults.when(
        spec.class == WorkloadClass::Training && matches!(spec.request.devices, DeviceRequest::Mig { .. }),
        "request.mig",
        || "is used for training, which then cannot grow beyond one task: MIG slices have no peer access".into(),
        "request whole GPUs if the training must grow",
    );
    let grace_s = spec.preemption.grace_s(spec.grace_s);
    let writes_s = spec.preemption.checkpoint_s(spec.tasks).unwrap_or(0);
    faults.when(
        writes_s > grace_s,
        "preemption.checkpoint_bytes",
        || {
            let gb_s = CHECKPOINT_BYTES_PER_S / 1_000_000_000;
            format!("takes {writes_s} s to write at {gb_s} GB/s for each task, but the preemption grace is {grace_s} s")
        },
        "request a longer preemption grace, or write checkpoints regularly so that none is needed at the end",
    );
    faults.0
}
