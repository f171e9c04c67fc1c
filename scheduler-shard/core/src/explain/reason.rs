//! The typed reasons, and their words.

use super::Blocker;
use super::apart::{KeptApart, TooSpread};
use super::pinned::PinnedPool;
use super::reserved::{KeptForGang, Promised};
use muster_model::request::SharingMode;
use muster_model::resources::{GpuUnits, Resource};
use muster_model::{DriverVersion, GpuModel, NumaPolicy, TopologyLevel, WorkloadClass};
use std::collections::BTreeMap;

/// One thing that keeps a job waiting. Amounts are cards for GPU jobs and milli-CPUs for jobs without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A place is free: the next pass of its shard starts it.
    JustQueued {
        /// On this model.
        model: Option<GpuModel>,
    },
    /// It ran before and went back to the queue.
    Requeued {
        /// Why.
        why: String,
    },
    /// No cell could ever hold it.
    NoCell {
        /// Cards it needs.
        needed: u64,
        /// Cards of its models in the largest cell.
        largest: u64,
        /// Those models; empty: any.
        models: Vec<GpuModel>,
    },
    /// Nobody schedules its cell now.
    CellWithoutShard {
        /// Its name.
        cell: String,
    },
    /// A ceiling of its tenant or of an ancestor.
    OverMax {
        /// Path of the tenant whose ceiling it is.
        tenant: String,
        /// Of what.
        resource: Resource,
        /// In use there.
        used: u64,
        /// What the job would add.
        asked: u64,
        /// The ceiling.
        max: u64,
    },
    /// Its tenant may share cards through MIG only.
    Untrusted,
    /// No pool of the cell that has the model takes it.
    NoPool {
        /// The model.
        model: Option<GpuModel>,
        /// The pools that have it.
        pools: Vec<String>,
        /// The pool it insists on.
        wanted: Option<String>,
        /// The sharing mode it needs.
        mode: Option<SharingMode>,
        /// Its workload class.
        class: WorkloadClass,
    },
    /// The driver of every node of the cell that could serve it is older than needed.
    DriverTooOld {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// The oldest that it can run on.
        needed: DriverVersion,
        /// The newest there, when any can be read.
        newest: Option<DriverVersion>,
    },
    /// Its selector accepts no card of the model in the cell.
    NotSelected {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// The selector.
        selector: String,
    },
    /// Enough cards are free, but no task's lie as its NUMA policy wants them.
    NumaSplit {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// The policy.
        policy: NumaPolicy,
        /// Cards of each task.
        each: u32,
    },
    /// It would fit, if its tasks did not have to stand so far apart.
    Spread(TooSpread),
    /// It would fit, if admins did not keep its tenant apart from another that is there.
    KeptApart(KeptApart),
    /// A place is free, but kept for a gang that starts before it would be over.
    KeptForGang(KeptForGang),
    /// A place and a time are kept for it; told beside what it waits for.
    Promised(Promised),
    /// The cell as it stands could not hold it even if it were empty.
    LargerThanCell {
        /// The cell.
        cell: String,
        /// What it needs.
        needed: u64,
        /// The model.
        model: Option<GpuModel>,
        /// The smallest change that would start it.
        fix: Option<String>,
    },
    /// Too few are free.
    NoFreeGpus {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// Free in the cell.
        free: u64,
        /// Most free on one node.
        largest_node: u64,
        /// Needed.
        needed: u64,
        /// Who holds most.
        blockers: Vec<Blocker>,
        /// The smallest change that would start it.
        fix: Option<String>,
    },
    /// Enough are free, but not close enough together.
    Topology {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// The level it requires.
        level: TopologyLevel,
        /// Free in the cell.
        free: u64,
        /// Most free in one group of that level.
        largest: u64,
        /// Needed.
        needed: u64,
        /// Who holds most.
        blockers: Vec<Blocker>,
        /// The smallest change that would start it.
        fix: Option<String>,
    },
    /// Enough cards are free, but not whole tasks' worth on nodes that have the CPU and memory beside them.
    NodesTooFull {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// Free in the cell.
        free: u64,
        /// Most free on one node.
        largest_node: u64,
        /// Needed by each task, on one node.
        each: u64,
        /// Needed.
        needed: u64,
        /// Who holds most.
        blockers: Vec<Blocker>,
        /// The smallest change that would start it.
        fix: Option<String>,
    },
    /// Every card that it could use keeps a pinned layout, which has no slot for it, or none that is open.
    PinnedLayout {
        /// The cell.
        cell: String,
        /// The model.
        model: GpuModel,
        /// What is asked for, in words.
        what: String,
        /// The pools that may serve it.
        pools: Vec<PinnedPool>,
        /// Who holds most.
        blockers: Vec<Blocker>,
        /// The smallest change that would start it.
        fix: Option<String>,
    },
    /// No card has room for the slice or share.
    NoShare {
        /// The cell.
        cell: String,
        /// The model.
        model: Option<GpuModel>,
        /// How the card would be shared.
        mode: SharingMode,
        /// What is asked for, in words.
        what: String,
        /// Free whole cards.
        free: u64,
        /// Who holds most.
        blockers: Vec<Blocker>,
        /// The smallest change that would start it.
        fix: Option<String>,
    },
}

impl Reason {
    /// The stable word.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Reason::JustQueued { .. } => "just_queued",
            Reason::Requeued { .. } => "requeued",
            Reason::NoCell { .. } => "larger_than_any_cell",
            Reason::CellWithoutShard { .. } => "cell_without_shard",
            Reason::OverMax { .. } => "over_max",
            Reason::Untrusted => "untrusted",
            Reason::NoPool { .. } => "no_pool",
            Reason::DriverTooOld { .. } => "driver_too_old",
            Reason::NotSelected { .. } => "not_selected",
            Reason::NumaSplit { .. } => "numa",
            Reason::Spread(_) => "spread",
            Reason::KeptApart(_) => "kept_apart",
            Reason::KeptForGang(_) => "kept_for_gang",
            Reason::Promised(_) => "promised",
            Reason::LargerThanCell { .. } => "larger_than_cell",
            Reason::NoFreeGpus { .. } => "no_free_gpus",
            Reason::Topology { .. } => "topology",
            Reason::NodesTooFull { .. } => "nodes_too_full",
            Reason::PinnedLayout { .. } => "pinned_layout",
            Reason::NoShare { .. } => "no_free_share",
        }
    }

    /// For people, with the figures.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Reason::JustQueued { model } => format!("a place on {} is free; its shard takes it up next", word(*model)),
            Reason::Requeued { why } => format!("it went back to the queue: {why}"),
            Reason::NoCell { needed, largest, models } => {
                let names: Vec<String> = models.iter().map(ToString::to_string).collect();
                let of = if names.is_empty() { "fitting".to_owned() } else { names.join(" or ") };
                format!("no cell could hold it: {needed} needed, the largest has {largest} {of} GPUs")
            }
            Reason::CellWithoutShard { cell } => format!("no shard holds the lease of cell {cell}"),
            Reason::OverMax { tenant, resource, used, asked, max } => format!(
                "max of {tenant} is reached: {} of {resource} in use, {} asked, max {}",
                amount(*resource, *used),
                amount(*resource, *asked),
                amount(*resource, *max)
            ),
            Reason::Untrusted => "its tenant is untrusted and may share cards only through MIG".to_owned(),
            Reason::NoPool { model, pools, wanted, mode, class } => format!(
                "no pool with {} takes it: {} {class} work{}; there are {}",
                word(*model),
                mode.map_or("cpu", SharingMode::word),
                wanted.as_ref().map(|pool| format!(" in pool {pool}")).unwrap_or_default(),
                pools.join(", ")
            ),
            Reason::DriverTooOld { cell, model, needed, newest } => {
                let newest =
                    newest.map_or_else(|| "none can be read".to_owned(), |newest| format!("the newest is {newest}"));
                format!("driver older than needed on every {model} node of cell {cell}: {needed} asked, {newest}")
            }
            Reason::NotSelected { cell, model, selector } => {
                format!("its selector accepts no {model} of cell {cell}: {selector}")
            }
            Reason::NumaSplit { cell, model, policy, each } => format!(
                "enough {model} are free in cell {cell}, but the {each} of a task would lie across NUMA nodes, which {policy} refuses"
            ),
            Reason::Spread(spread) => spread.text(),
            Reason::KeptApart(kept) => kept.text(),
            Reason::KeptForGang(kept) => kept.text(),
            Reason::Promised(promised) => promised.text(),
            Reason::LargerThanCell { cell, needed, model, .. } => {
                format!(
                    "cell {cell} could not hold it even empty: {needed} {} needed as close as it asks",
                    word(*model)
                )
            }
            Reason::NoFreeGpus { cell, model, free, largest_node, needed, .. } => {
                format!(
                    "{free} {} free in cell {cell}, largest free node {largest_node}; {needed} needed",
                    word(*model)
                )
            }
            Reason::Topology { cell, model, level, free, largest, needed, .. } => {
                format!("{free} {} free in cell {cell}, largest free {level} {largest}; {needed} needed", word(*model))
            }
            Reason::NodesTooFull { cell, model, free, largest_node, each, needed, .. } => format!(
                "{free} {} free in cell {cell}, {needed} needed, but {each} for each task with its CPU and memory on one node; \
                 largest free node {largest_node}",
                word(*model)
            ),
            Reason::PinnedLayout { cell, model, what, pools, .. } => {
                let pins: Vec<String> = pools.iter().map(|pin| pin.in_words(*model, what)).collect();
                format!("every {model} of cell {cell} that it may use is pinned: {}", pins.join("; "))
            }
            Reason::NoShare { cell, model, mode, what, free, .. } => format!(
                "no {} in cell {cell} has room for a {what}: no card under {mode} has it left, {free} cards free",
                word(*model)
            ),
        }
    }

    /// The tenant, cell or job that it names, if any.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Reason::OverMax { tenant, .. } | Reason::KeptApart(KeptApart { other: tenant, .. }) => tenant.clone(),
            Reason::CellWithoutShard { cell }
            | Reason::LargerThanCell { cell, .. }
            | Reason::Spread(TooSpread { cell, .. })
            | Reason::DriverTooOld { cell, .. }
            | Reason::NotSelected { cell, .. }
            | Reason::PinnedLayout { cell, .. } => cell.clone(),
            Reason::KeptForGang(kept) => kept.job.to_string(),
            Reason::NoFreeGpus { blockers, .. }
            | Reason::Topology { blockers, .. }
            | Reason::NodesTooFull { blockers, .. }
            | Reason::NoShare { blockers, .. } => blockers.first().map(|b| b.job.to_string()).unwrap_or_default(),
            _ => String::new(),
        }
    }

    /// The smallest change that would start it.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Reason::JustQueued { .. } | Reason::Requeued { .. } | Reason::Promised(_) => String::new(),
            Reason::NoCell { needed, .. } => format!("add nodes until one cell has {needed}, or ask for fewer"),
            Reason::CellWithoutShard { .. } => "start a shard".to_owned(),
            Reason::OverMax { tenant, resource, used, asked, max } => format!(
                "raise the max of {tenant} to {}, or wait until {} are released",
                amount(*resource, used + asked),
                amount(*resource, (used + asked).saturating_sub(*max))
            ),
            Reason::Untrusted => "ask for a MIG slice or whole GPUs".to_owned(),
            Reason::NoPool { .. } => "name another pool, mode or class, or change the pool's rules".to_owned(),
            Reason::DriverTooOld { needed, .. } => format!("upgrade a node to {needed}, or ask for an older driver"),
            Reason::NotSelected { .. } => "accept other cards, or label the nodes that are meant".to_owned(),
            Reason::NumaSplit { .. } => {
                "accept numa best-effort, or wait until cards of one NUMA node are free".to_owned()
            }
            Reason::Spread(spread) => spread.fix(),
            Reason::KeptApart(kept) => kept.fix(),
            Reason::KeptForGang(kept) => kept.fix(),
            Reason::LargerThanCell { fix, .. } => {
                fix.clone().unwrap_or_else(|| "add nodes or widen the topology, or ask for fewer".to_owned())
            }
            Reason::NoFreeGpus { free, needed, fix, .. } => {
                fix.clone().unwrap_or_else(|| format!("{} more must become free", needed.saturating_sub(*free)))
            }
            Reason::Topology { level, largest, needed, fix, .. } => fix
                .clone()
                .unwrap_or_else(|| format!("{} more must become free in one {level}", needed.saturating_sub(*largest))),
            Reason::NodesTooFull { largest_node, each, fix, .. } => fix.clone().unwrap_or_else(|| {
                if largest_node < each {
                    format!("{} more must become free on one node", each - largest_node)
                } else {
                    "ask for less CPU or memory".to_owned()
                }
            }),
            Reason::PinnedLayout { fix, pools, .. } => fix.clone().unwrap_or_else(|| {
                if pools.iter().any(|pin| pin.slots > 0) {
                    "a slot must become free".to_owned()
                } else {
                    "ask for a slice that is pinned, or have the layout changed".to_owned()
                }
            }),
            Reason::NoShare { fix, .. } => {
                fix.clone().unwrap_or_else(|| "a share or a card must become free".to_owned())
            }
        }
    }

    /// The figures by name, and who holds what is wanted.
    #[must_use]
    pub fn figures(&self) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        let mut put = |name: &str, value: String| out.insert(name.to_owned(), value);
        match self {
            Reason::NoFreeGpus { free, largest_node, needed, .. } => {
                put("free", free.to_string());
                put("largest_node", largest_node.to_string());
                put("needed", needed.to_string());
            }
            Reason::Topology { level, free, largest, needed, .. } => {
                put("free", free.to_string());
                put(&format!("largest_{level}"), largest.to_string());
                put("needed", needed.to_string());
            }
            Reason::NodesTooFull { free, largest_node, each, needed, .. } => {
                put("free", free.to_string());
                put("largest_node", largest_node.to_string());
                put("needed_on_one_node", each.to_string());
                put("needed", needed.to_string());
            }
            Reason::NoShare { free, .. } => {
                put("free_cards", free.to_string());
            }
            Reason::PinnedLayout { pools, .. } => {
                put("pinned_cards", pools.iter().map(|pin| pin.cards).sum::<u64>().to_string());
                put("slots", pools.iter().map(|pin| pin.slots).sum::<u64>().to_string());
                put("slots_open", pools.iter().map(|pin| pin.open).sum::<u64>().to_string());
            }
            Reason::NoCell { needed, largest, .. } => {
                put("largest_cell", largest.to_string());
                put("needed", needed.to_string());
            }
            Reason::DriverTooOld { needed, newest, .. } => {
                put("driver_min", needed.to_string());
                put("newest_driver", newest.map(|newest| newest.to_string()).unwrap_or_default());
            }
            Reason::Spread(spread) => {
                for (name, value) in spread.figures() {
                    put(&name, value);
                }
            }
            Reason::KeptForGang(kept) => {
                kept.figures().into_iter().for_each(|(name, value)| {
                    put(&name, value);
                });
            }
            Reason::Promised(promised) => {
                promised.figures().into_iter().for_each(|(name, value)| {
                    put(name, value);
                });
            }
            Reason::KeptApart(kept) => {
                put("kept_off_nodes", kept.nodes.to_string());
            }
            Reason::LargerThanCell { needed, .. } => {
                put("needed", needed.to_string());
            }
            Reason::OverMax { used, asked, max, .. } => {
                put("used", used.to_string());
                put("asked", asked.to_string());
                put("max", max.to_string());
            }
            _ => {}
        }
        for (place, blocker) in self.blockers().iter().enumerate() {
            put(
                &format!("holder_{}", place + 1),
                format!("job {}: {} cards on {}", blocker.job, blocker.cards, blocker.node),
            );
        }
        out
    }

    /// Whether enough is free, and only how it lies is in the way: what moves can change.
    #[must_use]
    pub const fn is_about_closeness(&self) -> bool {
        matches!(self, Reason::Topology { .. } | Reason::NodesTooFull { .. })
    }

    /// The model it is about, where closeness is what it is about.
    pub(super) fn model(&self) -> Option<GpuModel> {
        match self {
            Reason::Topology { model, .. } | Reason::NodesTooFull { model, .. } => *model,
            _ => None,
        }
    }

    /// Who holds what it lacks, in the place where it lacks least.
    #[must_use]
    pub fn blockers(&self) -> &[Blocker] {
        match self {
            Reason::NoFreeGpus { blockers, .. }
            | Reason::Topology { blockers, .. }
            | Reason::NodesTooFull { blockers, .. }
            | Reason::PinnedLayout { blockers, .. }
            | Reason::NoShare { blockers, .. } => blockers,
            _ => &[],
        }
    }
}

pub(super) fn word(model: Option<GpuModel>) -> String {
    model.map_or_else(|| "milli-CPUs".to_owned(), |model| model.to_string())
}

/// GPU units as cards, the rest as it is.
fn amount(resource: Resource, value: u64) -> String {
    match resource {
        Resource::Gpu(_) => GpuUnits(value).to_string(),
        Resource::Cpu | Resource::Memory => value.to_string(),
    }
}
