//! Which nodes and cards a job may use at all, whatever runs there: pool, class, sharing mode, driver, model, memory and selector.
//!
//! The one place that decides it. The control plane asks when it routes a job and when it proves a binding, a shard when it searches. What must
//! stay true: the answer depends on what the job asks and on what pools, nodes and cards *are*, never on what is free, so it cannot turn
//! while a proposal is on its way; whoever knows less of a node says *maybe* where one who knows all of it says yes.

use crate::driver::DriverVersion;
use crate::gpu::GpuModel;
use crate::image::Mount;
use crate::isolation::NetworkPolicy;
use crate::job::JobSpec;
use crate::node::{Gpu, Node, Pool};
use crate::request::{DeviceRequest, SharingMode};
use crate::selector::{Known, Selector, Truth};
use crate::topology::TopologyLevel;
use crate::workload::WorkloadClass;
use std::fmt;

/// What a job asks of the pools and nodes that it runs on.
#[derive(Clone, Copy, Debug)]
pub struct Eligibility<'a> {
    /// The only pool it may run in, if it names one.
    pub pool: Option<&'a str>,
    /// Its kind of work.
    pub class: WorkloadClass,
    /// How it shares cards; `None` for a job without GPUs.
    pub mode: Option<SharingMode>,
    /// The oldest driver it can run on.
    pub driver_min: Option<DriverVersion>,
    /// Which cards will do.
    pub selector: Option<&'a Selector>,
    /// The container image that it runs in.
    pub image: Option<&'a str>,
    /// What of the nodes it sees.
    pub mounts: &'a [Mount],
    /// All its tasks stand on one node, wherever they are placed.
    pub on_one_node: bool,
}

/// Why a pool does not serve a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolRefusal {
    /// The job names another.
    NotAskedFor,
    /// The pool does not serve such work.
    Class(WorkloadClass),
    /// The pool's cards do not take that mode.
    Mode(SharingMode),
    /// The pool's rules do not name its image.
    Image(Box<str>),
    /// The pool's rules do not allow this mount.
    Mount(Box<Mount>),
    /// Tasks of the pool have a network of their own on each node, and the job may need several nodes.
    Network,
}

impl PoolRefusal {
    /// The image, mount or network that is in the way.
    #[must_use]
    pub fn beside_modes(&self) -> Option<String> {
        match self {
            PoolRefusal::Image(image) => Some(format!("image {image}")),
            PoolRefusal::Mount(mount) => Some(format!("mount {mount}")),
            PoolRefusal::Network => Some("jobs on several nodes (network: private)".to_owned()),
            PoolRefusal::NotAskedFor | PoolRefusal::Class(_) | PoolRefusal::Mode(_) => None,
        }
    }

    /// For people, with the pool's name.
    #[must_use]
    pub fn of(&self, pool: &str) -> impl fmt::Display {
        fmt::from_fn(move |f| match self {
            PoolRefusal::NotAskedFor => write!(f, "pool {pool} is not the required pool"),
            PoolRefusal::Class(class) => write!(f, "pool {pool} does not allow {class}"),
            PoolRefusal::Mode(mode) => write!(f, "pool {pool} does not allow {mode}"),
            PoolRefusal::Network => write!(
                f,
                "pool {pool} does not allow jobs on several nodes (network: private); a job that requires topology level node is on one"
            ),
            PoolRefusal::Image(image) => {
                write!(f, "pool {pool} does not allow image {image} (its setting images has no rule for it)")
            }
            PoolRefusal::Mount(mount) => {
                let how = if mount.read_only { "" } else { " with write: true" };
                write!(f, "pool {pool} does not allow mount {mount} (its setting mounts has no rule{how} for it)")
            }
        })
    }
}

impl Eligibility<'_> {
    /// Whether the pool called `name`, which has these rules, lets the job run in it.
    ///
    /// # Errors
    /// The first rule in the way.
    pub fn check_pool(&self, name: &str, rules: &Pool) -> Result<(), PoolRefusal> {
        if self.pool.is_some_and(|asked| asked != name) {
            return Err(PoolRefusal::NotAskedFor);
        }
        if !rules.classes.contains(&self.class) {
            return Err(PoolRefusal::Class(self.class));
        }
        match self.mode {
            Some(mode) if !rules.modes.contains(&mode) => return Err(PoolRefusal::Mode(mode)),
            _ => {}
        }
        if let Some(image) = self.image.filter(|image| rules.allows_image(image).is_none()) {
            return Err(PoolRefusal::Image(image.into()));
        }
        match self.mounts.iter().find(|mount| rules.allows_mount(mount).is_none()) {
            Some(mount) => Err(PoolRefusal::Mount(Box::new(mount.clone()))),
            None if !self.on_one_node && rules.network() == NetworkPolicy::Private => Err(PoolRefusal::Network),
            None => Ok(()),
        }
    }

    /// Whether such a driver is new enough. One that cannot be read satisfies no minimum.
    #[must_use]
    pub fn has_driver(&self, driver: Option<DriverVersion>) -> bool {
        self.driver_min.is_none_or(|min| driver.is_some_and(|driver| driver >= min))
    }

    /// Whether the driver of `node` is new enough.
    #[must_use]
    pub fn has_driver_on(&self, node: &Node) -> bool {
        self.driver_min.is_none() || self.has_driver(DriverVersion::reported(&node.spec.driver))
    }

    /// Whether this very card of `node` is one that the job accepts.
    #[must_use]
    pub fn accepts_card(&self, gpu: &Gpu, node: &Node) -> bool {
        self.selector.is_none_or(|selector| selector.admits(gpu, node))
    }

    /// Whether the job can run on `node` with any of its cards of `model`.
    #[must_use]
    pub fn admits(&self, node: &Node, model: Option<GpuModel>) -> bool {
        self.has_driver_on(node)
            && match (self.selector, model) {
                (Some(selector), Some(model)) => selector.admits_all(model, node),
                _ => true,
            }
    }

    /// Whether a card of which so much is known may be one that the job accepts.
    #[must_use]
    pub fn may_accept(&self, card: &Known<'_>) -> bool {
        self.selector.is_none_or(|selector| selector.on(card) != Truth::No)
    }
}

impl JobSpec {
    /// What it asks of the pools and nodes that it runs on.
    #[must_use]
    pub fn eligibility(&self) -> Eligibility<'_> {
        Eligibility {
            pool: self.pool.as_deref(),
            class: self.class,
            mode: self.request.devices.mode(),
            driver_min: self.driver_min,
            selector: self.asked.selector.as_ref(),
            image: self.image.as_deref(),
            mounts: &self.mounts,
            on_one_node: self.is_on_one_node(),
        }
    }

    /// Whether all its tasks, and those that it may grow by, stand on one node wherever they are placed.
    #[must_use]
    pub fn is_on_one_node(&self) -> bool {
        self.tasks_max() <= 1 || self.topology.required == Some(TopologyLevel::Node)
    }

    /// Whether cards of `model` could ever serve it, whatever stands on them.
    #[must_use]
    pub fn possible_on(&self, model: GpuModel) -> bool {
        possible_on(&self.request.devices, self.asked.gpu_memory_mib, self.asked.selector.as_ref(), model)
    }

    /// The models that could ever serve it, the preferred first.
    pub fn possible_models(&self) -> impl Iterator<Item = GpuModel> + '_ {
        self.request.devices.possible_models().filter(|model| self.possible_on(*model))
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
        && gpu_memory_mib.is_none_or(|mib| devices.hold_memory_mib(model).is_some_and(|has| has >= mib))
        && selector.is_none_or(|selector| selector.on(&Known::of_model(model)) != Truth::No)
}
