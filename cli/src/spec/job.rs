//! A job as a tenant writes it, in a file or in flags.
//!
//! ```yaml
//! tenant: research/nlp
//! gpus: 8               # for each task; or mig: 1g.10gb, or mps: 30, or time-slice: true
//! tasks: 4
//! model: h100
//! topology: leaf
//! time: 4h
//! command: [torchrun, train.py]
//! ```

mod keys;
pub mod mount;
mod parts;
mod variables;

pub use keys::KEYS;
use mount::MountText;
pub use variables::EnvValue;

use crate::failure::Failure;
use crate::spec::needs::NeedsText;
use crate::spec::scalar::{OneOrMany, Scalar, Version};
use crate::spec::start::{self, StartText};
use crate::spec::yaml;
use crate::units::{self, UnitError};
use muster_model::validate::bounds;
use muster_model::{FieldError, StopSignal};
use muster_proto::v1;
use muster_proto::v1::device_request::Kind;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What was written; nothing is filled in yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct JobText {
    /// Path of the tenant that pays.
    pub tenant: Option<String>,
    /// Who submits it; the login name when absent.
    pub user: Option<String>,
    /// For people.
    pub name: Option<String>,
    /// A note for people; one line.
    pub comment: Option<String>,
    /// Whole GPUs for each task.
    pub gpus: Option<u32>,
    /// One MIG instance.
    pub mig: Option<String>,
    /// Percentage of a card under MPS.
    pub mps: Option<u32>,
    /// Turns on a card.
    pub time_slice: Option<bool>,
    /// What a task needs, when the system is to choose.
    pub needs: Option<NeedsText>,
    /// Memory of the share; or that each card or the MIG slice must have.
    pub gpu_memory: Option<Scalar>,
    /// Size of the gang: a number, or the least and the most of an elastic one (`4-16`).
    pub tasks: Option<Scalar>,
    /// What running tasks are sent when the size of an elastic gang has changed.
    pub resize_signal: Option<Scalar>,
    /// Acceptable models, the preferred first.
    pub model: Option<OneOrMany>,
    /// Which cards will do, in CEL's syntax.
    pub selector: Option<String>,
    /// A selector that an admin has named.
    pub device_class: Option<String>,
    /// CPUs for each task.
    pub cpus: Option<Scalar>,
    /// Host memory for each task.
    pub memory: Option<Scalar>,
    /// The whole gang inside one of these.
    pub topology: Option<String>,
    /// Inside one of these where possible.
    pub prefer: Option<String>,
    /// So many consecutive tasks on one island.
    pub segment: Option<u32>,
    /// The tasks on different ones of these, or they wait.
    pub spread: Option<String>,
    /// On as many of these as there is room.
    pub prefer_spread: Option<String>,
    /// So many tasks on one of them at most.
    pub spread_most: Option<u32>,
    /// How each task's cards lie with regard to NUMA nodes.
    pub numa: Option<String>,
    /// The oldest GPU driver it can run on.
    pub driver_min: Option<Version>,
    /// Time limit.
    pub time: Option<Scalar>,
    /// An array, such as `0-99%10`.
    pub array: Option<Scalar>,
    /// It is held until it is released.
    pub hold: Option<bool>,
    /// It starts no earlier.
    pub begin: Option<Scalar>,
    /// It must have ended by then.
    pub deadline: Option<Scalar>,
    /// Jobs that it waits for: `afterok:12`, `singleton`.
    pub dependency: Option<OneOrMany>,
    /// It is cancelled when a dependency can never be met.
    pub kill_on_invalid_dep: Option<bool>,
    /// From SIGTERM to SIGKILL.
    pub grace: Option<Scalar>,
    /// How long tasks may outlive contact with the control plane.
    pub disconnect_grace: Option<Scalar>,
    /// How often it is started again.
    pub retries: Option<u32>,
    /// It may be stopped and started again elsewhere in its cell.
    pub movable: Option<bool>,
    /// A movable job saves its progress at least this often.
    pub checkpoint_every: Option<Scalar>,
    /// How long a movable job takes from its start to useful work.
    pub restart_time: Option<Scalar>,
    /// A signal before its time limit: USR1@120.
    pub signal: Option<Scalar>,
    /// What its tasks are sent first when it is preempted.
    pub preempt_signal: Option<Scalar>,
    /// From that signal to SIGKILL.
    pub preempt_grace: Option<Scalar>,
    /// Size of a checkpoint of the whole gang.
    pub checkpoint_size: Option<Scalar>,
    /// What a restart costs, as a time of the whole gang.
    pub restart_cost: Option<Scalar>,
    /// Higher goes first inside a tenant.
    pub priority: Option<i32>,
    /// The class that sets the priority.
    pub priority_class: Option<String>,
    /// The reservation on whose nodes alone it runs.
    pub reservation: Option<String>,
    /// Kind of work.
    pub class: Option<String>,
    /// The only pool it may run in.
    pub pool: Option<String>,
    /// Environment.
    pub env: BTreeMap<String, EnvValue>,
    /// Working directory.
    pub workdir: Option<String>,
    /// The container image.
    pub image: Option<String>,
    /// What of the node its tasks see.
    pub mounts: Option<Vec<MountText>>,
    /// So many equal compute instances in its MIG instance.
    pub compute_instances: Option<u32>,
    /// Program and arguments.
    pub command: Option<OneOrMany>,
    /// How many equal jobs.
    pub count: Option<u32>,
}

/// Seconds before the time limit where a signal says none: Slurm's.
const SIGNAL_BEFORE_S: &str = "60";

impl JobText {
    /// Every job of a file.
    ///
    /// # Errors
    /// When it is not a job file, with the document and the key.
    pub fn parse(text: &str, name: &str) -> Result<Vec<JobText>, Failure> {
        let jobs = yaml::documents(text, name, "a job", KEYS)?;
        if jobs.is_empty() {
            return Err(Failure::field(name, "has no job", "write at least `gpus:` and `command:`"));
        }
        Ok(jobs)
    }

    /// This job with everything that `flags` say in its place. A way of sharing a card replaces another way.
    #[must_use]
    pub fn overlaid(mut self, flags: &JobText) -> JobText {
        let way = flags.gpus.is_some() || flags.mig.is_some() || flags.mps.is_some() || flags.time_slice.is_some();
        if way || flags.needs.is_some() {
            (self.gpus, self.mig, self.mps, self.time_slice, self.needs) = (None, None, None, None, None);
        }
        macro_rules! over {
            ($($field:ident),+) => { $(if flags.$field.is_some() { self.$field.clone_from(&flags.$field); })+ };
        }
        over!(
            tenant,
            user,
            name,
            comment,
            gpus,
            mig,
            mps,
            time_slice,
            needs,
            selector,
            device_class,
            gpu_memory,
            tasks,
            resize_signal,
            model,
            cpus,
            memory,
            topology,
            prefer,
            time,
            grace
        );
        if flags.spread.is_some() || flags.prefer_spread.is_some() {
            (self.spread, self.prefer_spread) = (None, None);
        }
        over!(spread, prefer_spread, spread_most);
        over!(
            segment,
            numa,
            driver_min,
            disconnect_grace,
            retries,
            priority,
            priority_class,
            reservation,
            class,
            pool,
            workdir,
            image,
            mounts,
            compute_instances,
            command,
            count
        );
        over!(movable, checkpoint_every, restart_time, preempt_signal, preempt_grace, checkpoint_size, restart_cost);
        over!(signal);
        over!(array, hold, begin, deadline, dependency, kill_on_invalid_dep);
        self.env.extend(flags.env.clone());
        self
    }

    /// The messages that submit it: one, or `count` equal ones.
    ///
    /// # Errors
    /// Everything that is wrong and can be seen from here, in the words of the file.
    pub fn into_specs(self) -> Result<Vec<v1::JobSpec>, Vec<FieldError>> {
        let count = self.count.unwrap_or(1);
        if count == 0 || count as usize > bounds::JOBS_PER_SUBMIT_MAX {
            return Err(vec![FieldError::new("count", format!("is {count}"), "use 1 to 1,000")]);
        }
        let spec = self.into_spec()?;
        Ok(vec![spec; count as usize])
    }

    fn into_spec(self) -> Result<v1::JobSpec, Vec<FieldError>> {
        let mut faults = Vec::new();
        let command = self.command(&mut faults);
        let (kind, cpu_default) = self.devices(&mut faults);
        let models = self.model.clone().map(OneOrMany::into_vec).unwrap_or_default();
        let needs = self.needs.clone().map(|needs| needs.into_wire(models.clone(), &mut faults));
        let models = if needs.is_some() { Vec::new() } else { models };
        let shares = matches!(kind, Some(Kind::Mps(_) | Kind::TimeSlice(_)));
        let gpu_memory_mib =
            amount("gpu-memory", self.gpu_memory.as_ref().filter(|_| !shares), units::mebibytes, &mut faults);
        let cpu_milli = amount("cpus", self.cpus.as_ref(), units::milli_cpus, &mut faults).unwrap_or(cpu_default);
        let memory_mib = amount("memory", self.memory.as_ref(), units::mebibytes, &mut faults).unwrap_or(0);
        let time_limit_s = amount("time", self.time.as_ref(), units::seconds, &mut faults);
        let grace_s = amount("grace", self.grace.as_ref(), units::seconds, &mut faults);
        let disconnect_grace_s =
            amount("disconnect-grace", self.disconnect_grace.as_ref(), units::seconds, &mut faults);
        let spread = self.spread(&mut faults);
        let start = self.start(&mut faults);
        let array = amount("array", self.array.as_ref(), start::array, &mut faults);
        let movable = self.movable(&mut faults);
        let preemption = self.preemption(&mut faults);
        let limit_signal = self.limit_signal(&mut faults);
        let (tasks, elastic) = self.tasks(&mut faults);
        let mounts = mount::to_wire(self.mounts.as_deref().unwrap_or_default(), &mut faults);
        let Some(tenant) = self.tenant.clone() else {
            faults.push(FieldError::new(
                "tenant",
                "is missing",
                "give --tenant, such as research/nlp, or set it in the configuration file",
            ));
            return Err(faults);
        };
        if !faults.is_empty() {
            return Err(faults);
        }
        let (env, secret_env) = variables::parted(self.env);
        Ok(v1::JobSpec {
            tenant,
            name: self.name.unwrap_or_else(|| name_of(&command)),
            tasks,
            request: Some(v1::TaskRequest { devices: Some(v1::DeviceRequest { models, kind }), cpu_milli, memory_mib }),
            topology: Some(v1::Topology {
                required: self.topology.unwrap_or_default(),
                preferred: self.prefer.unwrap_or_default(),
                segment_tasks: self.segment.unwrap_or(0),
                spread,
            }),
            numa: self.numa.unwrap_or_default(),
            driver_min: self.driver_min.map(|version| version.0).unwrap_or_default(),
            selector: self.selector.unwrap_or_default(),
            device_class: self.device_class.unwrap_or_default(),
            gpu_memory_mib,
            needs,
            choice: None,
            workload_class: self.class.unwrap_or_default(),
            pool: self.pool.unwrap_or_default(),
            priority: self.priority.unwrap_or(0),
            command,
            env,
            secret_env,
            workdir: self.workdir.unwrap_or_default(),
            time_limit_s,
            grace_s,
            disconnect_grace_s,
            max_retries: self.retries.unwrap_or(0),
            movable,
            user: self.user.unwrap_or_default(),
            comment: self.comment.unwrap_or_default(),
            preemption,
            limit_signal,
            start,
            array,
            priority_class: self.priority_class.unwrap_or_default(),
            reservation: self.reservation.unwrap_or_default(),
            elastic,
            image: self.image.unwrap_or_default(),
            mounts,
            compute_instances: self.compute_instances.unwrap_or_default(),
        })
    }

    fn command(&self, faults: &mut Vec<FieldError>) -> Vec<String> {
        match &self.command {
            Some(OneOrMany::Many(words)) if !words.is_empty() => words.clone(),
            Some(OneOrMany::One(line)) => {
                faults.push(FieldError::new(
                    "command",
                    format!("is one string, {line:?}, which no shell splits into words"),
                    "write a list: [torchrun, train.py], or [sh, -c, \"...\"]",
                ));
                Vec::new()
            }
            // The image says what it runs.
            _ if self.image.is_some() => Vec::new(),
            _ => {
                faults.push(FieldError::new(
                    "command",
                    "is missing",
                    "give the program to run, after `--` on the command line",
                ));
                Vec::new()
            }
        }
    }

    /// The devices, and the CPUs that a task gets when none are named: one where it asks for nothing else.
    fn devices(&self, faults: &mut Vec<FieldError>) -> (Option<Kind>, u64) {
        let time_slice = self.time_slice == Some(true);
        let ways = [
            ("gpus", self.gpus.is_some()),
            ("mig", self.mig.is_some()),
            ("mps", self.mps.is_some()),
            ("time-slice", time_slice),
            ("needs", self.needs.is_some()),
        ];
        let named: Vec<&str> = ways.iter().filter(|(_, said)| *said).map(|(word, _)| *word).collect();
        if named.len() > 1 {
            let fix = "use only one of gpus, mig, mps, time-slice and needs";
            faults.push(FieldError::new(named[1], format!("conflicts with {}", named[0]), fix));
        }
        let shares = self.mps.is_some() || time_slice;
        let memory = self.gpu_memory.as_ref().filter(|_| shares);
        let memory_mib = amount("gpu-memory", memory, units::mebibytes, faults);
        if shares && self.gpu_memory.is_none() {
            faults.push(FieldError::new(
                "gpu-memory",
                "is missing",
                "give the memory that the share needs, such as 20Gi",
            ));
        }
        if self.needs.is_some() && self.gpu_memory.is_some() {
            faults.push(FieldError::new("gpu-memory", "conflicts with needs", "use needs.memory instead"));
        }
        let memory_mib = memory_mib.unwrap_or(0);
        let kind = match (self.gpus, &self.mig, self.mps) {
            (Some(count), _, _) => Kind::Whole(v1::WholeGpus { count }),
            (_, Some(profile), _) => Kind::Mig(v1::MigInstance { profile: profile.clone() }),
            (_, _, Some(percent)) => Kind::Mps(v1::MpsShare { percent, memory_mib }),
            _ if time_slice => Kind::TimeSlice(v1::TimeSliceShare { memory_mib }),
            _ => return (None, 1_000),
        };
        (Some(kind), 0)
    }
}

fn amount<T>(
    field: &str,
    text: Option<&Scalar>,
    parse: impl Fn(&str) -> Result<T, UnitError>,
    faults: &mut Vec<FieldError>,
) -> Option<T> {
    match parse(&text?.0) {
        Ok(value) => Some(value),
        Err(error) => {
            faults.push(FieldError::new(field, error.problem, error.fix));
            None
        }
    }
}

/// A name for a job that has none: its program, without the folder and without what a name may not have.
fn name_of(command: &[String]) -> String {
    let program = command.first().map_or("job", String::as_str);
    let base = program.rsplit('/').next().unwrap_or(program);
    let plain: String = base.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')).collect();
    if plain.is_empty() { "job".to_owned() } else { plain.chars().take(bounds::NAME_BYTES_MAX).collect() }
}
