//! Checks of what people write, before anything is done with it.
//!
//! What must stay true (law 11): every refusal names the field and says how to mend it; nothing here looks at the state of the
//! fleet (the control plane adds what only it can know: unknown tenants, gangs larger than any cell, requests over a max).

mod asked;
mod job;

pub use asked::warnings;

use crate::asked::DeviceClass;
use crate::capacity::MPS_CLIENTS_MAX;
use crate::node::{NodeSpec, Pool};
use crate::request::{DeviceRequest, SharingMode};
use crate::tenant::TenantSpec;
use serde::{Deserialize, Serialize};

/// One thing wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{field}: {problem}; {fix}")]
pub struct FieldError {
    /// Path of the field, in the words of the API: `tasks`, `request.mig.profile`.
    pub field: String,
    /// What is wrong, with what was given.
    pub problem: String,
    /// What to write instead.
    pub fix: String,
}

impl FieldError {
    /// A new one.
    pub fn new(field: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        FieldError { field: field.into(), problem: problem.into(), fix: fix.into() }
    }

    /// The same with `prefix` before the field's path.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.field = format!("{prefix}.{}", self.field);
        self
    }
}

/// Bounds on what may be written; each keeps one object small enough for a log entry.
pub mod bounds {
    /// Tasks of one gang: the largest published training gangs are below 32,768 ranks.
    pub const TASKS_MAX: u32 = 32_768;
    /// Cards of one task: the largest node has 16.
    pub const CARDS_PER_TASK_MAX: u32 = 16;
    /// Bytes of a name.
    pub const NAME_BYTES_MAX: usize = 128;
    /// Levels of the quota tree.
    pub const TENANT_DEPTH_MAX: usize = 8;
    /// Bytes of command and environment together: a few times what real launch lines need.
    pub const COMMAND_BYTES_MAX: usize = 32 * 1024;
    /// Seconds of grace: half a day.
    pub const GRACE_S_MAX: u64 = 43_200;
    /// Seconds of a time limit: a year.
    pub const TIME_LIMIT_S_MAX: u64 = 366 * 86_400;
    /// Retries.
    pub const RETRIES_MAX: u32 = 1_000;
    /// Milli-CPUs of one task.
    pub const CPU_MILLI_MAX: u64 = 4_096_000;
    /// MiB of one task.
    pub const MEMORY_MIB_MAX: u64 = 64 * 1024 * 1024;
    /// Cards of one node.
    pub const GPUS_PER_NODE_MAX: usize = 72;
    /// Highest priority; the lowest is its negative.
    pub const PRIORITY_MAX: i32 = 1_000_000;
    /// Weight of a tenant.
    pub const WEIGHT_MAX: u32 = 1_000_000;
    /// Jobs of one submission.
    pub const JOBS_PER_SUBMIT_MAX: usize = 1_000;
    /// Of any resource in a tenant's guarantee or max: more than a hundred million cards, and sums over all tenants still fit.
    pub const AMOUNT_MAX: u64 = 1_000_000_000_000;
    /// Bytes of an address, a boot id, a driver version, a card's UUID, a label.
    pub const TEXT_BYTES_MAX: usize = 256;
    /// Tenants that one device class names.
    pub const CLASS_TENANTS_MAX: usize = 1_024;
    /// Labels of one node.
    pub const LABELS_MAX: usize = 64;
}

/// Collects what is wrong, so that a caller sees all of it at once.
#[derive(Default)]
struct Faults(Vec<FieldError>);

impl Faults {
    fn when(&mut self, bad: bool, field: &str, problem: impl FnOnce() -> String, fix: &str) {
        if bad {
            self.0.push(FieldError::new(field, problem(), fix));
        }
    }

    fn name(&mut self, field: &str, name: &str) {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        self.when(name.is_empty(), field, || "is empty".into(), "give a name");
        self.when(
            name.len() > bounds::NAME_BYTES_MAX,
            field,
            || format!("has {} bytes", name.len()),
            "use at most 128 bytes",
        );
        self.when(
            !name.chars().all(plain),
            field,
            || format!("{:?} has characters outside a-z A-Z 0-9 - _ .", short(name)),
            "use letters, digits, '-', '_' and '.'",
        );
    }

    fn path(&mut self, field: &str, path: &str) {
        let parts: Vec<&str> = path.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            self.0.push(FieldError::new(
                field,
                format!("{:?} is not a tenant path", short(path)),
                "write names joined by '/', such as research/nlp",
            ));
            return;
        }
        self.when(
            parts.len() > bounds::TENANT_DEPTH_MAX,
            field,
            || format!("has {} levels", parts.len()),
            "use at most 8 levels",
        );
        for part in parts {
            self.name(field, part);
        }
    }

    fn done<T>(self, value: T) -> Result<T, Vec<FieldError>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

fn models_in_words(devices: &DeviceRequest) -> String {
    let names: Vec<String> = devices.models().iter().map(ToString::to_string).collect();
    if names.is_empty() { "known model".to_owned() } else { names.join(" or ") }
}

impl TenantSpec {
    /// Checks one tenant by itself.
    ///
    /// # Errors
    /// Everything that is wrong, each with its field and the fix.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut faults = Faults::default();
        faults.path("path", &self.path);
        faults.when(
            self.weight == 0 || self.weight > bounds::WEIGHT_MAX,
            "weight",
            || format!("is {}", self.weight),
            "use 1 to 1,000,000",
        );
        if let Some((resource, max)) = self.max.first_passed_by(&self.guarantee) {
            let guaranteed = resource.in_words(self.guarantee.get(resource));
            let problem = format!("guarantees {guaranteed} but its max is {}", resource.in_words(max));
            faults.0.push(FieldError::new("guarantee", problem, "lower the guarantee or raise the max"));
        }
        let ceilings = self.max.gpu.values().map(|units| units.0).chain(self.max.cpu_milli).chain(self.max.memory_mib);
        let floors = self.guarantee.nonzero().map(|(_, amount)| amount);
        for (field, most) in [("guarantee", floors.max()), ("max", ceilings.max())] {
            faults.when(
                most.is_some_and(|most| most > bounds::AMOUNT_MAX),
                field,
                || format!("has an amount of {}", most.unwrap_or_default()),
                "use at most 1,000,000,000,000 of each resource, or leave a max out for no limit",
            );
        }
        faults.done(())
    }
}

impl Pool {
    /// Checks a pool's rules by themselves.
    ///
    /// # Errors
    /// Everything that is wrong, each with its field and the fix.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut faults = Faults::default();
        faults.name("name", &self.name);
        faults.when(self.modes.is_empty(), "modes", || "is empty".into(), "allow at least one, such as whole");
        faults.when(self.classes.is_empty(), "classes", || "is empty".into(), "serve at least one, such as batch");
        faults.when(
            !(1..=32).contains(&self.time_slice_replicas),
            "time_slice_replicas",
            || format!("is {}", self.time_slice_replicas),
            "use 1 to 32: each context takes 300-500 MB",
        );
        faults.when(
            !(1..=MPS_CLIENTS_MAX).contains(&self.mps_clients),
            "mps_clients",
            || format!("is {}", self.mps_clients),
            "use 1 to 48, or to 60 where every node has CUDA 13.1: MPS takes no more clients on a card",
        );
        let no_mig = !self.pinned.is_empty() && !self.modes.contains(&SharingMode::Mig);
        let problem = || "leaves mig out, and mig_layouts pins cards to MIG slices".into();
        faults.when(no_mig, "modes", problem, "add mig, or leave mig_layouts out");
        faults.when(
            self.compute_tolerance_percent > 50,
            "compute_tolerance_percent",
            || format!("is {}", self.compute_tolerance_percent),
            "use 0 to 50: a slice with less than half of what was asked is another request",
        );
        faults.done(())
    }
}

impl DeviceClass {
    /// Checks a class by itself; its selector was checked when it was read.
    ///
    /// # Errors
    /// Everything that is wrong, each with its field and the fix.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut faults = Faults::default();
        faults.name("name", &self.name);
        faults.when(
            self.tenants.len() > bounds::CLASS_TENANTS_MAX,
            "tenants",
            || format!("has {} of them", self.tenants.len()),
            "name the teams above them, or leave it out for all",
        );
        for path in &self.tenants {
            faults.path("tenants", path);
        }
        faults.done(())
    }
}

impl NodeSpec {
    /// Checks what an agent says of its host.
    ///
    /// # Errors
    /// Everything that is wrong, each with its field and the fix.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut faults = Faults::default();
        for (field, name) in [("name", &self.name), ("cell", &self.cell), ("pool", &self.pool)] {
            faults.name(field, name);
        }
        let place = [
            ("place.region", &self.place.region),
            ("place.zone", &self.place.zone),
            ("place.block", &self.place.block),
            ("place.leaf", &self.place.leaf),
        ];
        for (field, name) in place {
            faults.name(field, name);
        }
        faults.when(
            self.address.is_empty(),
            "address",
            || "is empty".into(),
            "give the host or IP that ranks can reach",
        );
        faults.when(self.boot_id.is_empty(), "boot_id", || "is empty".into(), "give the kernel's boot id");
        faults.when(
            self.gpus.len() > bounds::GPUS_PER_NODE_MAX,
            "gpus",
            || format!("has {} cards", self.gpus.len()),
            "a node has at most 72",
        );
        let mut seen = std::collections::BTreeSet::new();
        for (index, gpu) in self.gpus.iter().enumerate() {
            let field = format!("gpus[{index}].uuid");
            faults.when(gpu.uuid.is_empty(), &field, || "is empty".into(), "give NVML's UUID");
            faults.when(
                !seen.insert(&gpu.uuid),
                &field,
                || format!("{:?} is there twice", short(&gpu.uuid)),
                "give each card once",
            );
            let field = format!("gpus[{index}].memory_mib");
            faults.when(gpu.memory_mib == 0, &field, || "is 0".into(), "give the card's memory");
        }
        faults.when(self.cpu_milli == 0, "cpu_milli", || "is 0".into(), "give the host's milli-CPUs");
        faults.when(self.memory_mib == 0, "memory_mib", || "is 0".into(), "give the host's memory");
        self.check_sizes(&mut faults);
        faults.done(())
    }

    /// Nothing a node says of itself may be large enough to hurt the log or the sums.
    fn check_sizes(&self, faults: &mut Faults) {
        let amounts = [
            ("cpu_milli", self.cpu_milli, bounds::CPU_MILLI_MAX),
            ("memory_mib", self.memory_mib, bounds::MEMORY_MIB_MAX),
            ("gpus.memory_mib", self.gpus.iter().map(|gpu| gpu.memory_mib).max().unwrap_or(0), bounds::MEMORY_MIB_MAX),
        ];
        for (field, amount, most) in amounts {
            faults.when(amount > most, field, || format!("is {amount}"), "give what the host really has");
        }
        let longest = |texts: &mut dyn Iterator<Item = &String>| texts.map(String::len).max().unwrap_or(0);
        let texts = [
            ("address", self.address.len()),
            ("driver", self.driver.len()),
            ("boot_id", self.boot_id.len()),
            ("gpus.uuid", longest(&mut self.gpus.iter().map(|gpu| &gpu.uuid))),
            ("gpus.withheld", longest(&mut self.gpus.iter().filter_map(|gpu| gpu.withheld.as_ref()))),
            ("labels", longest(&mut self.labels.keys().chain(self.labels.values()))),
        ];
        for (field, bytes) in texts {
            faults.when(
                bytes > bounds::TEXT_BYTES_MAX,
                field,
                || format!("has {bytes} bytes"),
                "use at most 256 bytes",
            );
        }
        faults.when(
            self.labels.len() > bounds::LABELS_MAX,
            "labels",
            || format!("has {} of them", self.labels.len()),
            "use at most 64",
        );
    }
}
