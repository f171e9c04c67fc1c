//! A traced job as a request to the fleet.
//!
//! Traces say how many GPUs a gang had; the fleet says how many stand in a node. What must stay true: a gang never loses a
//! GPU; where it does not divide into equal tasks it gains as few as possible, and the report says how many.

use crate::fleet::{Fleet, REPLAY_CLASS};
use crate::import::{TraceDevices, TraceJob};
use muster_model::capacity::ShareRule;
use muster_model::capacity::shares::context_mib;
use muster_model::mig::{MigShape, profile_name};
use muster_model::request::{SharingMode, TaskRequest};
use muster_model::validate::bounds::{CARDS_PER_TASK_MAX, TIME_LIMIT_S_MAX};
use muster_model::{DeviceRequest, FieldError, GpuModel, GpuUnits, JobSpec, Topology, TopologyLevel, ValidJobSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How jobs are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShapeOptions {
    /// Models that the trace names are not asked for: any card serves.
    pub any_model: bool,
    /// Gangs of more than one task ask for this level of closeness where possible.
    pub preferred: Option<TopologyLevel>,
    /// Gangs of more than one task insist on this level.
    pub required: Option<TopologyLevel>,
    /// Jobs without a time limit say this many percent of what they will take, as users who know their work roughly do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_percent: Option<u32>,
    /// Seconds that a job may take to stop; what is usual where none are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u64>,
}

/// Turns jobs into requests for one fleet.
#[derive(Clone, Debug)]
pub struct Shaper {
    options: ShapeOptions,
    /// Cards of the largest node, by model.
    node_gpus: BTreeMap<GpuModel, u32>,
}

/// A request and what became of the job's size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shaped {
    /// What is submitted.
    pub spec: ValidJobSpec,
    /// GPUs that the gang gained so that its tasks are equal.
    pub added_gpus: u32,
    /// Whether the gang was split into tasks.
    pub split: bool,
}

impl Shaper {
    /// For `fleet`.
    #[must_use]
    pub fn new(fleet: &Fleet, options: ShapeOptions) -> Self {
        let mut node_gpus = BTreeMap::new();
        for group in &fleet.groups {
            let most = node_gpus.entry(group.model).or_insert(0);
            *most = group.gpus.max(*most);
        }
        Shaper { options, node_gpus }
    }

    /// The request for `job`, to run `command`.
    ///
    /// # Errors
    /// Every field that the system would refuse.
    pub fn shape(&self, job: &TraceJob, command: Vec<String>) -> Result<Shaped, Vec<FieldError>> {
        self.shape_for(job, (&job.tenant, 0), command)
    }

    /// The same, submitted by another tenant and with a priority.
    ///
    /// # Errors
    /// As [`Shaper::shape`].
    pub fn shape_for(
        &self,
        job: &TraceJob,
        (tenant, priority): (&str, i32),
        command: Vec<String>,
    ) -> Result<Shaped, Vec<FieldError>> {
        let models = if self.options.any_model { Vec::new() } else { job.models.clone() };
        let (tasks, devices, added_gpus) = match job.devices {
            TraceDevices::None => (job.tasks, DeviceRequest::None, 0),
            TraceDevices::Share { milli } => (job.tasks, self.share(milli, models), 0),
            TraceDevices::Slice { milli } => (job.tasks, self.slice(milli, models), 0),
            TraceDevices::Whole { gpus_per_task } => {
                let fits = self.largest_node(&models);
                let (tasks, count) = if gpus_per_task <= fits {
                    (job.tasks, gpus_per_task)
                } else {
                    split(job.tasks.saturating_mul(gpus_per_task), fits)
                };
                let asked = job.tasks.saturating_mul(gpus_per_task);
                (tasks, DeviceRequest::Whole { count, models }, tasks * count - asked)
            }
        };
        // CPU and memory follow the cards when a gang is split.
        let per = |whole: u64| (whole * u64::from(job.tasks)).div_ceil(u64::from(tasks));
        let gang = tasks > 1;
        let devices = TaskRequest { devices, cpu_milli: per(job.cpu_milli), memory_mib: per(job.memory_mib) };
        let spec = JobSpec {
            name: job.name.clone(),
            tasks,
            topology: Topology {
                required: self.options.required.filter(|_| gang),
                preferred: self.options.preferred.filter(|_| gang),
                ..Topology::default()
            },
            class: REPLAY_CLASS,
            priority,
            grace_s: self.options.grace_s.unwrap_or(muster_model::job::GRACE_S_DEFAULT),
            command,
            time_limit_s: job.time_limit_s.or_else(|| self.limit_s(job)),
            ..JobSpec::usual(tenant, devices, &[])
        };
        Ok(Shaped { spec: spec.validate()?, added_gpus, split: tasks != job.tasks })
    }

    fn limit_s(&self, job: &TraceJob) -> Option<u64> {
        let percent = u64::from(self.options.limit_percent?);
        Some((job.duration_s * percent).div_ceil(100).clamp(1, TIME_LIMIT_S_MAX))
    }

    /// Cards of the largest node of an acceptable model, within what one task may have.
    fn largest_node(&self, models: &[GpuModel]) -> u32 {
        let acceptable = |model: &GpuModel| models.is_empty() || models.contains(model);
        let largest = self.node_gpus.iter().filter(|(model, _)| acceptable(model)).map(|(_, gpus)| *gpus).max();
        // A model that the fleet does not have is refused by the control plane, whatever its size here.
        largest.unwrap_or(CARDS_PER_TASK_MAX).min(CARDS_PER_TASK_MAX)
    }

    /// A share of the smallest acceptable card of the fleet.
    fn share(&self, milli: u32, models: Vec<GpuModel>) -> DeviceRequest {
        let acceptable = |model: &GpuModel| models.is_empty() || models.contains(model);
        let by_memory = |model: &GpuModel| model.memory_mib();
        let in_fleet = self.node_gpus.keys().copied().filter(acceptable).min_by_key(by_memory);
        let smallest = in_fleet.or_else(|| models.iter().copied().min_by_key(by_memory)).unwrap_or(GpuModel::T4);
        // Rounded down, and less a context, so that memory never asks for more of a card than the percentage does.
        let (mode, rule) = (SharingMode::Mps, ShareRule::default());
        let room = rule.room_mib(smallest, mode, smallest.memory_mib());
        let memory_mib = (u64::from(milli) * room / 1000).saturating_sub(context_mib(smallest, mode)).max(1);
        DeviceRequest::Mps { percent: milli.div_ceil(10).clamp(1, 100) as u8, memory_mib, models }
    }

    /// The smallest MIG instance of the fleet's acceptable cards that has so much of their compute, by sevenths; a whole card where
    /// only the profile that takes it all would do, or where no card has MIG.
    fn slice(&self, milli: u32, models: Vec<GpuModel>) -> DeviceRequest {
        let acceptable = |model: &&GpuModel| models.is_empty() || models.contains(model);
        let of_model = |model: &GpuModel| {
            let family = model.facts().mig?;
            let enough = |shape: &MigShape| u32::from(shape.compute_slices()) * 1000 >= milli * 7;
            let part = |shape: &MigShape| shape.is_base() && shape.charge(family) < GpuUnits::CARD;
            let known = |shape: MigShape| Some((shape.charge(family), profile_name(*model, shape)?));
            MigShape::ALL.into_iter().filter(enough).filter(part).filter_map(known).min()
        };
        match self.node_gpus.keys().filter(acceptable).filter_map(of_model).min() {
            Some((_, profile)) => DeviceRequest::Mig { profile, models },
            None => DeviceRequest::Whole { count: 1, models },
        }
    }
}

/// `gpus` as equal tasks of at most `fits`: the fewest tasks that divide them exactly, up to twice the fewest possible;
/// otherwise the fewest possible, rounded up.
fn split(gpus: u32, fits: u32) -> (u32, u32) {
    let fewest = gpus.div_ceil(fits);
    let exact = (fewest..=fewest.saturating_mul(2)).find(|tasks| gpus.is_multiple_of(*tasks));
    let tasks = exact.unwrap_or(fewest);
    (tasks, gpus.div_ceil(tasks))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn gangs_split_into_equal_tasks_and_never_lose_a_gpu() {
        for (gpus, fits, expected) in
            [(64, 8, (8, 8)), (12, 8, (2, 6)), (20, 8, (4, 5)), (24, 8, (3, 8)), (13, 8, (2, 7)), (3, 2, (3, 1))]
        {
            assert_eq!(split(gpus, fits), expected, "{gpus} GPUs on nodes of {fits}");
        }
        for gpus in 1..300 {
            for fits in 1..=16 {
                let (tasks, each) = split(gpus, fits);
                assert!(
                    each <= fits && tasks * each >= gpus && tasks * each < gpus + tasks,
                    "{gpus} on {fits}: {tasks} x {each}"
                );
            }
        }
    }
}
