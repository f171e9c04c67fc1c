//! A job's own fields: names, times, command, devices, closeness.

use super::{Faults, models_in_words, short};
use crate::bounds;
use crate::field_error::FieldError;
use crate::image::{BadText, ImageRef, MOUNTS_MAX};
use crate::job::{JobSpec, ValidJobSpec};
use crate::mig::{self, MigShape};
use crate::preemption::{
    CHECKPOINT_BYTES_MAX, LimitSignal, PREEMPT_GRACE_S_MAX, RESTART_COST_S_MAX, SIGNAL_BEFORE_S_MAX,
};
use crate::request::DeviceRequest;
use crate::topology::{NumaPolicy, Spread, TopologyLevel};
use crate::workload::WorkloadClass;

impl JobSpec {
    /// Checks all that can be checked without knowing the fleet.
    ///
    /// # Errors
    /// Everything that is wrong, each with its field and the fix.
    pub fn validate(mut self) -> Result<ValidJobSpec, Vec<FieldError>> {
        if let DeviceRequest::Mig { profile, .. } = &mut self.request.devices {
            // One profile has one name from here on, however it was written.
            *profile = mig::canonical_profile(profile);
        }
        let mut faults = Faults::default();
        faults.path("tenant", &self.tenant);
        faults.name("name", &self.name);
        faults.when(self.tasks == 0, "tasks", || "is 0".into(), "request at least 1 task");
        faults.when(
            self.tasks > bounds::TASKS_MAX,
            "tasks",
            || format!("is {}", self.tasks),
            "request at most 32,768 tasks",
        );
        self.check_command(&mut faults);
        self.check_files(&mut faults);
        self.check_times(&mut faults);
        self.check_movable(&mut faults);
        self.check_preemption(&mut faults);
        self.check_limit_signal(&mut faults);
        self.check_elastic(&mut faults);
        self.check_devices(&mut faults);
        self.check_compute_instances(&mut faults);
        self.check_topology(&mut faults);
        if let Some(pool) = &self.pool {
            faults.name("pool", pool);
        }
        faults.when(
            self.priority.unsigned_abs() > bounds::PRIORITY_MAX as u32,
            "priority",
            || format!("is {}", self.priority),
            "use -1,000,000 to 1,000,000",
        );
        if let Some(class) = &self.priority_class {
            faults.name("priority_class", class);
        }
        if let Some(reservation) = &self.reservation {
            faults.name("reservation", reservation);
        }
        self.check_user(&mut faults);
        faults.when(
            self.comment.len() > bounds::COMMENT_BYTES_MAX,
            "comment",
            || format!("has {} bytes", self.comment.len()),
            "use at most 1,024 bytes",
        );
        faults.when(
            self.comment.chars().any(char::is_control),
            "comment",
            || format!("{:?} has line breaks or control characters", short(&self.comment)),
            "write one line",
        );
        self.check_start(&mut faults);
        faults.done(()).map(|()| ValidJobSpec::checked(self))
    }

    /// Names of people come from many directories: any of them, as long as it stands in one column of a table.
    fn check_user(&self, faults: &mut Faults) {
        let odd = |c: char| c.is_whitespace() || c.is_control();
        faults.when(
            self.user.len() > bounds::NAME_BYTES_MAX,
            "user",
            || format!("has {} bytes", self.user.len()),
            "use at most 128 bytes",
        );
        faults.when(
            self.user.chars().any(odd),
            "user",
            || format!("{:?} has spaces or control characters", short(&self.user)),
            "use a name without them, such as alice or alice@example.org",
        );
    }

    fn check_command(&self, faults: &mut Faults) {
        faults.when(
            self.command.first().map_or(self.image.is_none(), String::is_empty),
            "command",
            || "is empty".into(),
            "give the program to run, after `--` on the command line",
        );
        let strings = self.command.iter().chain(self.env.keys()).chain(self.env.values()).chain(&self.workdir);
        let (mut bytes, mut nul) = (0, false);
        for text in strings {
            bytes += text.len() + bounds::TEXT_OVERHEAD_BYTES;
            nul |= text.contains('\0');
        }
        faults.when(nul, "command", || "has a NUL byte in it or in env".into(), "remove the NUL byte");
        faults.when(
            bytes > bounds::COMMAND_BYTES_MAX,
            "command",
            || {
                format!(
                    "has {bytes} bytes together with env and workdir (each argument, name and value counts 32 more)"
                )
            },
            "keep them under 32 KiB together; put long input in a file",
        );
        for (what, has, most) in [
            ("arguments", self.command.len(), bounds::COMMAND_ARGUMENTS_MAX),
            ("variables", self.env.len(), bounds::ENV_MAX),
        ] {
            let field = if what == "arguments" { "command" } else { "env" };
            faults.when(
                has > most,
                field,
                || format!("has {has} {what}"),
                &format!("use at most {most}; put long input in a file"),
            );
        }
        for (field, key) in
            self.env.keys().map(|key| ("env", key)).chain(self.secret_env.keys().map(|key| ("secret_env", key)))
        {
            faults.when(
                key.is_empty() || key.contains(['=', '\0']),
                field,
                || format!("{:?} is not a variable name", short(key)),
                "use NAME=value with a name that is not empty and has no '='",
            );
            faults.when(
                bounds::ENV_OF_SYSTEM.contains(&key.as_str()),
                field,
                || format!("{key} is set by Muster for every task"),
                &format!("leave it out: Muster sets {}", bounds::ENV_OF_SYSTEM.join(", ")),
            );
        }
        self.check_secret_env(faults);
        if let Some(dir) = &self.workdir {
            faults.when(
                !dir.starts_with('/'),
                "workdir",
                || format!("{:?} is relative", short(dir)),
                "give an absolute path",
            );
        }
    }

    /// The image and the mounts.
    fn check_files(&self, faults: &mut Faults) {
        if let Some(Err(BadText { problem, fix })) = self.image.as_deref().map(ImageRef::parse) {
            faults.when(true, "image", || problem, &fix);
        }
        let count = self.mounts.len();
        faults.when(
            count > MOUNTS_MAX,
            "mounts",
            || format!("has {count} mounts"),
            "use at most 16; mount a folder above them",
        );
        for (index, mount) in self.mounts.iter().enumerate() {
            if let Some((field, BadText { problem, fix })) = mount.fault() {
                faults.when(true, &format!("mounts[{index}].{field}"), || problem, &fix);
            }
            let twice = self.mounts[..index].iter().any(|other| other.target == mount.target);
            let problem = || format!("{:?} has two mounts", short(&mount.target));
            faults.when(twice, &format!("mounts[{index}].target"), problem, "give each mount its own target");
        }
    }

    fn check_times(&self, faults: &mut Faults) {
        faults.when(self.time_limit_s == Some(0), "time_limit_s", || "is 0".into(), "leave it out for no limit");
        faults.when(
            self.time_limit_s.is_some_and(|s| s > bounds::TIME_LIMIT_S_MAX),
            "time_limit_s",
            || "is longer than a year".into(),
            "use at most 366 days, or leave it out",
        );
        for (field, value) in [("grace_s", self.grace_s), ("disconnect_grace_s", self.disconnect_grace_s)] {
            faults.when(value > bounds::GRACE_S_MAX, field, || format!("is {value}"), "use at most 43,200 seconds");
        }
        faults.when(
            self.disconnect_grace_s < bounds::DISCONNECT_GRACE_S_MIN,
            "disconnect_grace_s",
            || format!("is {} s", self.disconnect_grace_s),
            "use at least 10 seconds: after a control node fails, a healthy cluster may need that long to confirm a node",
        );
        faults.when(
            self.max_retries > bounds::RETRIES_MAX,
            "max_retries",
            || format!("is {}", self.max_retries),
            "use at most 1,000",
        );
    }

    fn check_movable(&self, faults: &mut Faults) {
        let Some(movable) = self.movable else { return };
        let (every, restart) = (movable.checkpoint_every_s, movable.restart_s);
        faults.when(
            every.is_some_and(|s| s == 0 || s > bounds::TIME_LIMIT_S_MAX),
            "movable.checkpoint_every_s",
            || format!("is {}", every.unwrap_or(0)),
            "use 1 second to 366 days, or leave it out if the job saves nothing",
        );
        faults.when(
            restart > bounds::GRACE_S_MAX,
            "movable.restart_s",
            || format!("is {restart}"),
            "use at most 43,200 seconds",
        );
    }

    fn check_preemption(&self, faults: &mut Faults) {
        let said = &self.preemption;
        let grace_s = said.grace_s.unwrap_or(0);
        faults.when(
            grace_s > PREEMPT_GRACE_S_MAX,
            "preemption.grace_s",
            || format!("is {grace_s}"),
            "use at most 3,600 seconds (1 hour): other jobs wait for these devices",
        );
        faults.when(
            said.checkpoint_bytes > CHECKPOINT_BYTES_MAX,
            "preemption.checkpoint_bytes",
            || format!("is {}", said.checkpoint_bytes),
            "use at most 1,125,899,906,842,624 (1 PiB)",
        );
        faults.when(
            said.restart_cost_s > RESTART_COST_S_MAX,
            "preemption.restart_cost_s",
            || format!("is {}", said.restart_cost_s),
            "use at most 43,200 seconds",
        );
    }

    fn check_limit_signal(&self, faults: &mut Faults) {
        let Some(LimitSignal { signal: _, before_s }) = self.limit_signal else { return };
        faults.when(
            self.time_limit_s.is_none(),
            "limit_signal",
            || "is given without a time limit".into(),
            "give a time limit, or leave the signal out",
        );
        faults.when(
            before_s > SIGNAL_BEFORE_S_MAX,
            "limit_signal.before_s",
            || format!("is {before_s}"),
            "use at most 65,535 seconds before the time limit",
        );
        let limit_s = self.time_limit_s.unwrap_or(u64::MAX);
        faults.when(
            before_s >= limit_s,
            "limit_signal.before_s",
            || format!("is {before_s} s, but the time limit is {limit_s} s"),
            "use a time shorter than the time limit",
        );
    }

    fn check_elastic(&self, faults: &mut Faults) {
        let Some(elastic) = self.elastic else { return };
        let (max, unit) = (elastic.tasks_max, self.growth_unit());
        faults.when(
            max <= self.tasks,
            "elastic.tasks_max",
            || format!("is {max}, and the job has {} tasks from the start", self.tasks),
            "use a number above tasks, or leave elastic out",
        );
        faults.when(max > bounds::TASKS_MAX, "elastic.tasks_max", || format!("is {max}"), "use at most 32,768 tasks");
        faults.when(
            !max.is_multiple_of(unit),
            "elastic.tasks_max",
            || format!("is {max}, which is not a multiple of topology.segment_tasks ({unit})"),
            "use a multiple of it: the job grows by whole segments",
        );
        let shares = !matches!(self.request.devices, DeviceRequest::Whole { .. } | DeviceRequest::None);
        faults.when(
            shares || self.asked.needs.is_some(),
            "elastic",
            || "is given for a job on parts of GPUs, or on what Muster chooses".into(),
            "request whole GPUs or CPUs, or leave elastic out",
        );
        faults.when(
            self.array.is_some(),
            "elastic",
            || "is given for an array".into(),
            "submit the elastic jobs one by one, or leave elastic out",
        );
    }

    fn check_devices(&self, faults: &mut Faults) {
        let request = &self.request;
        faults.when(
            request.cpu_milli > bounds::CPU_MILLI_MAX,
            "request.cpu_milli",
            || format!("is {}", request.cpu_milli),
            "use at most 4,096,000 (4,096 cores)",
        );
        faults.when(
            request.memory_mib > bounds::MEMORY_MIB_MAX,
            "request.memory_mib",
            || format!("is {}", request.memory_mib),
            "use at most 67,108,864 (64 TiB)",
        );
        self.check_asked(faults);
        faults.models("request.models", request.devices.models());
        match &request.devices {
            DeviceRequest::None if self.asked.needs.is_some() => {}
            DeviceRequest::None => {
                faults.when(request.cpu_milli == 0, "request", || "requests nothing".into(), "request GPUs or CPUs")
            }
            DeviceRequest::Whole { count, .. } => {
                faults.when(*count == 0, "request.whole.count", || "is 0".into(), "request at least 1 GPU");
                faults.when(
                    *count > bounds::CARDS_PER_TASK_MAX,
                    "request.whole.count",
                    || format!("is {count} for each task"),
                    "request at most 16 GPUs for each task, and more tasks",
                );
            }
            DeviceRequest::Mig { profile, .. } => self.check_mig(profile, faults),
            DeviceRequest::Mps { percent, memory_mib, .. } => {
                faults.when(
                    !(1..=100).contains(percent),
                    "request.mps.percent",
                    || format!("is {percent}"),
                    "use 1 to 100, or request whole GPUs: a share is a part of one GPU",
                );
                self.check_share("request.mps.memory_mib", *memory_mib, faults);
            }
            DeviceRequest::TimeSlice { memory_mib, .. } => {
                self.check_share("request.time_slice.memory_mib", *memory_mib, faults);
                faults.when(
                    self.class == WorkloadClass::Training,
                    "request.time_slice",
                    || "is not allowed for class training".into(),
                    "request whole GPUs, or use class batch or interactive",
                );
            }
        }
    }

    fn check_mig(&self, profile: &str, faults: &mut Faults) {
        let devices = &self.request.devices;
        faults.when(
            devices.possible_models().next().is_none(),
            "request.mig.profile",
            || format!("no {} has a MIG profile {:?}", models_in_words(devices), short(profile)),
            "use a profile of the model, such as 1g.10gb, 2g.20gb or 3g.40gb on an h100",
        );
        faults.when(
            self.tasks > 1,
            "tasks",
            || format!("is {}, but MIG slices have no peer access: each job on MIG slices has 1 task", self.tasks),
            "submit separate jobs of 1 task, or request whole GPUs",
        );
    }

    fn check_compute_instances(&self, faults: &mut Faults) {
        let (count, devices) = (self.compute_instances, &self.request.devices);
        if count <= 1 {
            return;
        }
        let slices: Vec<u8> = devices
            .possible_models()
            .filter_map(|model| devices.mig_shape(model))
            .map(MigShape::compute_slices)
            .collect();
        let of = slices.iter().copied().max().unwrap_or_default();
        let problem = || match of {
            0 => format!("is {count}, and the job asks for no MIG instance"),
            of => format!("is {count}, and {of} compute slices have no {count} equal parts"),
        };
        let fix = match of {
            0 => "leave it out, or request a MIG instance".to_owned(),
            of => {
                let counts = (1..=of).filter(|count| of % count == 0).map(|count| count.to_string());
                format!("use one of {}", counts.collect::<Vec<_>>().join(", "))
            }
        };
        let fits = of > 0 && slices.iter().all(|slices| slices % count == 0);
        faults.when(!fits, "compute_instances", problem, &fix);
    }

    fn check_share(&self, field: &str, memory_mib: u64, faults: &mut Faults) {
        faults.when(memory_mib == 0, field, || "is 0".into(), "give the memory that the share needs");
        let possible = self.request.devices.possible_models().next().is_some();
        faults.when(
            memory_mib > 0 && !possible,
            field,
            || format!("is {memory_mib} MiB, more than any {} has", models_in_words(&self.request.devices)),
            "request less memory, another model, or whole GPUs",
        );
    }

    fn check_topology(&self, faults: &mut Faults) {
        let topology = self.topology;
        if let (Some(required), Some(preferred)) = (topology.required, topology.preferred) {
            faults.when(
                preferred > required,
                "topology.preferred",
                || format!("{preferred} is wider than the required {required}"),
                "prefer a level inside the required level",
            );
        }
        let cards = u64::from(self.request.devices.cards()) * u64::from(self.tasks);
        let most = match topology.required {
            Some(TopologyLevel::Island) => bounds::GPUS_PER_ISLAND_MAX as u64,
            Some(TopologyLevel::Node) => bounds::GPUS_PER_NODE_MAX as u64,
            _ => u64::MAX,
        };
        faults.when(
            cards > most,
            "topology.required",
            || format!("no {} has {cards} GPUs", topology.required.map(|l| l.to_string()).unwrap_or_default()),
            "require leaf or block",
        );
        if let Some(spread) = topology.spread {
            self.check_spread(spread, faults);
        }
        if let Some(each) = topology.segment_tasks {
            self.check_segments(each, faults);
        }
        faults.when(
            self.numa != NumaPolicy::None && !self.wants_gpus(),
            "numa",
            || format!("is {} for tasks without GPUs", self.numa),
            "leave it out: it applies only to GPUs",
        );
        faults.when(
            self.driver_min.is_some() && !self.wants_gpus(),
            "driver_min",
            || "is given for tasks without GPUs".into(),
            "leave it out: it applies only to the GPU driver",
        );
    }

    fn check_spread(&self, spread: Spread, faults: &mut Faults) {
        let Spread { level, tasks_max, .. } = spread;
        faults.when(tasks_max == 0, "topology.spread.tasks_max", || "is 0".into(), "use at least 1 task");
        faults.when(
            level == TopologyLevel::Island,
            "topology.spread.level",
            || "is island".into(),
            "use node, leaf, block or region",
        );
        faults.when(
            self.topology.segment_tasks.is_some(),
            "topology.spread",
            || "conflicts with segments".into(),
            "use segments or spread, not both",
        );
        if let Some(required) = self.topology.required {
            // An island may have several nodes: tasks of one can be spread over those.
            let inside = level < required || level == TopologyLevel::Node && required == TopologyLevel::Island;
            faults.when(
                !inside && self.tasks > tasks_max,
                "topology.spread.level",
                || format!("spreads {} tasks over several {level}s, but one {required} is required", self.tasks),
                "spread over a level inside the required level, or require a wider level",
            );
        }
    }

    fn check_segments(&self, each: u32, faults: &mut Faults) {
        faults.when(
            each == 0 || !self.tasks.is_multiple_of(each),
            "topology.segment_tasks",
            || format!("is {each}, which does not divide {} tasks", self.tasks),
            "use a number that divides the number of tasks",
        );
        let cards = u64::from(self.request.devices.cards()) * u64::from(each);
        faults.when(
            cards > bounds::GPUS_PER_ISLAND_MAX as u64,
            "topology.segment_tasks",
            || format!("makes segments of {cards} GPUs, more than an NVLink island has"),
            "use smaller segments: each segment is on one island",
        );
    }
}
