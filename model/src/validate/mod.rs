//! Checks of what people write, before anything is done with it.
//!
//! What must stay true (law 11): every refusal names the field and says how to mend it; nothing here looks at the state of the
//! fleet (the control plane adds what only it can know: unknown tenants, gangs larger than any cell, requests over a max).

mod asked;
mod job;
mod nearest;
mod secrets;
mod start;
pub mod table;
mod window;

pub use crate::bounds;
pub use crate::clip::clipped;
pub use asked::warnings;
pub use nearest::nearest;

use crate::asked::DeviceClass;
use crate::capacity::MPS_CLIENTS_MAX;
use crate::field_error::FieldError;
use crate::gpu::GpuModel;
use crate::image::{BadText, MOUNTS_MAX, fault_of_image_rule};
use crate::isolation::Proof;
use crate::mig;
use crate::moves::{MOVES_LOST_GPU_HOURS_MAX, MOVES_PER_HOUR_MAX};
use crate::node::{NodeSpec, Pool, WithheldSlice};
use crate::priority_class::{DEFAULT_PRIORITY_CLASS, PriorityClass};
use crate::request::{DeviceRequest, SharingMode};
use crate::tenant::{TenantSpec, lies_under};
use std::collections::BTreeSet;

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

    /// Which tenants may use a class; none: all.
    fn tenants_of_class(&mut self, tenants: &BTreeSet<String>) {
        let many = tenants.len() > bounds::CLASS_TENANTS_MAX;
        let fix = "name tenants above them, or leave it out to allow all tenants";
        self.when(many, "tenants", || format!("has {} tenants", tenants.len()), fix);
        tenants.iter().for_each(|path| self.path("tenants", path));
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
            path.len() > bounds::TENANT_PATH_BYTES_MAX,
            field,
            || format!("has {} bytes", path.len()),
            "use at most 512 bytes",
        );
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

    /// A list of models names each once; there are few models, so a list that does is short.
    fn models(&mut self, field: &str, models: &[GpuModel]) {
        let mut seen = [false; GpuModel::COUNT];
        for model in models {
            if std::mem::replace(&mut seen[*model as usize], true) {
                self.0.push(FieldError::new(field, format!("names {model} twice"), "name each model once"));
                return;
            }
        }
    }

    fn done<T>(self, value: T) -> Result<T, Vec<FieldError>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

/// Whether a text can be the name of something that people name.
///
/// # Errors
/// Everything that is wrong with it, for this field.
pub fn check_name(field: &str, name: &str) -> Result<(), Vec<FieldError>> {
    let mut faults = Faults::default();
    faults.name(field, name);
    if faults.0.is_empty() { Ok(()) } else { Err(faults.0) }
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
        let own = self.weights.iter().map(|(resource, weight)| (format!("weights.{resource}"), *weight));
        for (field, weight) in [("weight".to_owned(), self.weight)].into_iter().chain(own) {
            let wrong = weight == 0 || weight > bounds::WEIGHT_MAX;
            faults.when(wrong, &field, || format!("is {weight}"), "use 1 to 1,000,000");
        }
        if let Some((resource, max)) = self.max.first_passed_by(&self.guarantee) {
            let guaranteed = resource.in_words(self.guarantee.get(resource));
            let problem = format!("guarantees {guaranteed} but its max is {}", resource.in_words(max));
            faults.0.push(FieldError::new("guarantee", problem, "lower the guarantee or raise the max"));
        }
        self.check_anti_affinity(&mut faults);
        let is_usable = |user: u32| (bounds::RUN_AS_MIN..=bounds::RUN_AS_MAX).contains(&user) && user != bounds::NOBODY;
        faults.when(
            self.run_as.is_some_and(|user| !is_usable(user)),
            "run_as",
            || format!("is {}", self.run_as.unwrap_or_default()),
            "use the number of an ordinary user, 1000 to 1999999999 and not 65534 (nobody): a task is never root or a user of the system",
        );
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

impl TenantSpec {
    fn check_anti_affinity(&self, faults: &mut Faults) {
        faults.when(
            self.anti_affinity.len() > bounds::APART_FROM_MAX,
            "anti_affinity",
            || format!("names {} tenants", self.anti_affinity.len()),
            "name at most 64 tenants, or a tenant above several of them",
        );
        let mut seen = std::collections::BTreeSet::new();
        for other in &self.anti_affinity {
            let path = &other.tenant;
            faults.path("anti_affinity", path);
            faults.when(
                !seen.insert(path),
                "anti_affinity",
                || format!("names {} twice", short(path)),
                "name each tenant once, with the widest level that they may not share",
            );
            let related = lies_under(path, &self.path) || lies_under(&self.path, path);
            faults.when(
                related,
                "anti_affinity",
                || format!("names {}, which is the tenant itself, or is above or below it", short(path)),
                "name a tenant of another branch",
            );
        }
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
        faults.when(self.classes.is_empty(), "classes", || "is empty".into(), "allow at least one, such as batch");
        faults.when(
            !(1..=32).contains(&self.time_slice_replicas),
            "time_slice_replicas",
            || format!("is {}", self.time_slice_replicas),
            "use 1 to 32: each CUDA context takes 300-500 MB of GPU memory",
        );
        faults.when(
            !(1..=MPS_CLIENTS_MAX).contains(&self.mps_clients),
            "mps_clients",
            || format!("is {}", self.mps_clients),
            "use 1 to 48, or up to 60 if every node has CUDA 13.1: MPS allows no more clients on one GPU",
        );
        let no_mig = !self.pinned.is_empty() && !self.modes.contains(&SharingMode::Mig);
        let problem = || "has no mig, but mig_layouts needs it".into();
        faults.when(no_mig, "modes", problem, "add mig, or leave out mig_layouts");
        faults.when(
            self.moves_per_hour > MOVES_PER_HOUR_MAX,
            "moves_per_hour",
            || format!("is {}", self.moves_per_hour),
            "use 0 to 60; 0 moves nothing",
        );
        faults.when(
            self.moves_lost_gpu_hours_per_day > MOVES_LOST_GPU_HOURS_MAX,
            "moves_lost_gpu_hours_per_day",
            || format!("is {}", self.moves_lost_gpu_hours_per_day),
            "use 0 to 1,000,000 GPU-hours; 0 moves nothing",
        );
        let half = (self.moves_per_hour == 0) != (self.moves_lost_gpu_hours_per_day == 0);
        let (off, other) = match self.moves_per_hour {
            0 => ("moves_per_hour", "moves_lost_gpu_hours_per_day"),
            _ => ("moves_lost_gpu_hours_per_day", "moves_per_hour"),
        };
        let fix = "set both, or neither: a pool moves jobs only with a bound on their number and on their cost";
        faults.when(half, off, || format!("is 0, but {other} is set"), fix);
        faults.when(
            self.compute_tolerance_percent > 50,
            "compute_tolerance_percent",
            || format!("is {}", self.compute_tolerance_percent),
            "use 0 to 50",
        );
        faults.when(
            self.memory_limit_mib.is_some_and(|mib| mib == 0 || mib > bounds::MEMORY_MIB_MAX),
            "memory_limit_mib",
            || format!("is {} MiB", self.memory_limit_mib.unwrap_or_default()),
            "use at least 1 MiB and at most 64 TiB, or leave it out",
        );
        faults.when(
            self.withheld_max_percent.is_some_and(|percent| percent > 100),
            "withheld_max_percent",
            || format!("is {}", self.withheld_max_percent.unwrap_or_default()),
            "use 0 to 100; 0 withholds no GPU because of its health",
        );
        self.check_files(&mut faults);
        faults.done(())
    }
}

impl Pool {
    /// The rules for images and mounts.
    fn check_files(&self, faults: &mut Faults) {
        for (field, has) in [("images", self.images.len()), ("mounts", self.mounts.len())] {
            faults.when(
                has > MOUNTS_MAX,
                field,
                || format!("has {has} rules"),
                "use at most 16; name folders above them",
            );
        }
        for (index, rule) in self.images.iter().enumerate() {
            if let Some(BadText { problem, fix }) = fault_of_image_rule(rule) {
                faults.when(true, &format!("images[{index}]"), || problem, &fix);
            }
        }
        for (index, rule) in self.mounts.iter().enumerate() {
            if let Some(BadText { problem, fix }) = rule.fault() {
                faults.when(true, &format!("mounts[{index}].path"), || problem, &fix);
            }
        }
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
        faults.tenants_of_class(&self.tenants);
        faults.done(())
    }
}

impl PriorityClass {
    /// Checks a class by itself.
    ///
    /// # Errors
    /// Everything that is wrong, each with its field and the fix.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut faults = Faults::default();
        faults.name("name", &self.name);
        faults.when(
            self.name == DEFAULT_PRIORITY_CLASS,
            "name",
            || "is that of the class of jobs that name none".into(),
            "use another name; `preempts` may name default",
        );
        faults.when(
            self.priority.unsigned_abs() > bounds::PRIORITY_MAX as u32,
            "priority",
            || format!("is {}", self.priority),
            "use -1,000,000 to 1,000,000",
        );
        faults.when(
            self.preempts.len() > bounds::PREEMPTS_MAX,
            "preempts",
            || format!("has {} classes", self.preempts.len()),
            "name at most 64 classes",
        );
        for class in &self.preempts {
            faults.name("preempts", class);
        }
        faults.tenants_of_class(&self.tenants);
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
        if !self.place.nvlink_domain.is_empty() {
            faults.name("place.nvlink_domain", &self.place.nvlink_domain);
            faults.when(
                self.gpus.windows(2).any(|two| two[0].island != two[1].island),
                "place.nvlink_domain",
                || "is given for a node whose GPUs are on several islands".into(),
                "leave it out, or put all GPUs on one island: an NVLink domain connects all GPUs of its nodes",
            );
        }
        faults.when(
            self.address.is_empty(),
            "address",
            || "is empty".into(),
            "give a host name or IP that tasks on other nodes can reach",
        );
        faults.when(self.boot_id.is_empty(), "boot_id", || "is empty".into(), "give the boot id of the kernel");
        faults.when(
            self.gpus.len() > bounds::GPUS_PER_NODE_MAX,
            "gpus",
            || format!("has {} GPUs", self.gpus.len()),
            "a node has at most 72 GPUs",
        );
        let mut seen = std::collections::BTreeSet::new();
        for (index, gpu) in self.gpus.iter().enumerate() {
            let field = format!("gpus[{index}].uuid");
            faults.when(gpu.uuid.is_empty(), &field, || "is empty".into(), "give NVML's UUID");
            faults.when(
                !seen.insert(&gpu.uuid),
                &field,
                || format!("{:?} is given to two GPUs", short(&gpu.uuid)),
                "list each GPU once",
            );
            let field = format!("gpus[{index}].memory_mib");
            faults.when(gpu.memory_mib == 0, &field, || "is 0".into(), "give the memory of the GPU in MiB");
            let field = format!("gpus[{index}].withheld_slices");
            let slices = &gpu.withheld_slices;
            faults.when(
                slices.len() > bounds::MIG_SLICES_MAX,
                &field,
                || format!("has {} slices", slices.len()),
                "a GPU has at most 8 slices",
            );
            let is_valid = |slice: &WithheldSlice| {
                gpu.model.facts().mig.is_some_and(|family| mig::can_stand(family, &[], slice.place))
            };
            if let Some(slice) = slices.iter().find(|slice| !is_valid(slice)) {
                let problem = || format!("has {}, which is not a MIG slice of {}", slice.place, gpu.model);
                faults.when(true, &field, problem, "name a slice that this GPU can have");
            }
        }
        faults.when(
            self.proofs.windows(2).any(|two| two[0].protection >= two[1].protection),
            "proofs",
            || "are not each once and in order".into(),
            "give each protection once",
        );
        let fault = |proof: &Proof| proof.fault.as_ref().map_or(0, String::len);
        let longest = self.proofs.iter().map(fault).max().unwrap_or(0);
        faults.when(
            longest > bounds::PROOF_BYTES_MAX,
            "proofs.fault",
            || format!("has {longest} bytes"),
            "use at most 256 bytes",
        );
        faults.when(self.cpu_milli == 0, "cpu_milli", || "is 0".into(), "give the milli-CPUs of the node");
        faults.when(self.memory_mib == 0, "memory_mib", || "is 0".into(), "give the memory of the node in MiB");
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
            faults.when(amount > most, field, || format!("is {amount}"), "give the real amount of the node");
        }
        let longest = |texts: &mut dyn Iterator<Item = &String>| texts.map(String::len).max().unwrap_or(0);
        let texts = [
            ("address", self.address.len()),
            ("driver", self.driver.len()),
            ("boot_id", self.boot_id.len()),
            ("gpus.uuid", longest(&mut self.gpus.iter().map(|gpu| &gpu.uuid))),
            ("gpus.withheld", longest(&mut self.gpus.iter().filter_map(|gpu| gpu.withheld.as_ref()))),
            (
                "gpus.withheld_slices.reason",
                longest(&mut self.gpus.iter().flat_map(|gpu| gpu.withheld_slices.iter().map(|slice| &slice.reason))),
            ),
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
            || format!("has {} labels", self.labels.len()),
            "use at most 64",
        );
    }
}
