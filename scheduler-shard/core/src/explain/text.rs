//! Reasons as people read them, and their figures by name.

use super::reason::{PoolRefusal, Reason, Why};
use super::remedy::health_word;
use super::supply::ClosedNode;
use super::windows;
use super::words::{bare, cpus, listed, memory, named_job, of, tasks, unit, word};
use muster_model::request::SharingMode;
use muster_model::resources::Resource;
use muster_model::{GpuModel, NodeHealth};
use std::collections::BTreeMap;

/// Nodes that one sentence names.
const NODES_NAMED_MAX: usize = 4;

impl Why {
    /// For people, with the figures.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Why::JustQueued { model } => {
                let on = model.map(|model| format!(" on {model}")).unwrap_or_default();
                format!("it can start: the next scheduling pass starts it{on}")
            }
            Why::Requeued { why } => format!("it ran before and is pending again: {why}"),
            Why::CellWithoutShard { cell } => {
                format!("cell {cell} has no scheduler shard: start one with `muster shard`")
            }
            Why::OtherCell { cell, other } => {
                format!("cell {other} has room: the shard of cell {cell} hands the job over to it after a few seconds")
            }
            Why::OverMax { tenant, resource, used, asked, max } => {
                let more = bare(*resource, *asked);
                let used = bare(*resource, *used);
                let (max, unit) = (bare(*resource, *max), unit(*resource));
                format!("quota of {tenant}: {used} of {max} {unit} in use; this job needs {more} more")
            }
            Why::NotLent(why) => why.to_string(),
            Why::Preempting { left, account } => {
                let by =
                    if account.is_some() { "a floor account of its tenant pays" } else { "it has a higher priority" };
                let ended = match left {
                    1 => "1 job that is being preempted for it has ended".to_owned(),
                    _ => format!("{left} jobs that are being preempted for it have ended"),
                };
                format!("it starts when {ended} ({by})")
            }
            Why::Moving(leaving) => leaving.moving(),
            Why::Moved { gang, nodes, in_ms } => super::leaving::moved(*gang, nodes, *in_ms),
            Why::GrowthEnds(leaving) => leaving.growth(),
            Why::Untrusted => "its tenant is untrusted and may share GPUs only through MIG".to_owned(),
            Why::StarvationGuard { cell, model, gang, cards, free } => format!(
                "{free} {model} are free in cell {cell}, but the starvation guard keeps them for {} ({cards} GPUs): too many jobs behind it have \
                 started before it",
                named_job(*gang)
            ),
            Why::Spread(spread) => spread.text(),
            Why::AntiAffinityConflict(kept) => kept.text(),
            Why::ReservedForGang(kept) => kept.text(),
            Why::InWindow(window) => window.text(),
            Why::Reservation { name, fault } => windows::reservation_text(name, fault),
            Why::Reserved(reserved) => reserved.text(),
            Why::NoPool { cell, model, refusals } => no_pool(cell, *model, refusals),
            _ => self.about_cards(),
        }
    }

    fn about_cards(&self) -> String {
        match self {
            Why::NoCell { needed, largest, closed, models } => {
                let of = of_models(models);
                let closed = if *closed > 0 {
                    format!(", {closed} of them on nodes that take no new work")
                } else {
                    String::new()
                };
                format!("no cell is large enough: {needed} {of} needed, the largest cell has {largest}{closed}")
            }
            Why::NoCards { cell, models } => format!("cell {cell} has no {}", of_models(models)),
            Why::PoolFull { cell, model, pool, free, needed } => {
                let free = of(*model, *free);
                format!(
                    "{free} are free in pool {pool} of cell {cell}, {} needed; another pool has room",
                    of(*model, *needed)
                )
            }
            Why::DriverTooOld { cell, model, needed, newest, everywhere: true } => {
                let newest =
                    newest.map_or_else(|| "no version is known".to_owned(), |newest| format!("the newest is {newest}"));
                format!("every {model} of cell {cell} that it may use has a driver older than {needed}: {newest}")
            }
            Why::DriverTooOld { cell, model, needed, .. } => {
                format!("{model} are free in cell {cell}, but on nodes with drivers older than {needed}")
            }
            Why::NotSelected { cell, model, selector, everywhere } => {
                let which = if *everywhere { "" } else { "free " };
                format!("its selector accepts no {which}{model} of cell {cell}: {selector}")
            }
            Why::NumaSplit { cell, model, policy, each } => {
                format!("{model} are free in cell {cell}, but no node has {each} free as NUMA policy {policy} requires")
            }
            Why::HostTooFull { .. } | Why::NodesClosed { .. } | Why::LargerThanCell { .. } => self.about_nodes(),
            Why::NoFreeGpus { cell, model, open, free, reserved, needed, closed, .. } => {
                let of_all = of_all(*model, *free, *open);
                let reserved = if *reserved > 0 {
                    format!(", {} of them reserved for other jobs", of(*model, *reserved))
                } else {
                    String::new()
                };
                let closed = closed_words(*model, closed);
                format!("{of_all} are free in cell {cell}{reserved}; {} needed{closed}", of(*model, *needed))
            }
            Why::Topology { cell, model, level, segment_tasks, free, largest, needed } => {
                let (free, needed) = (of(*model, *free), of(*model, *needed));
                match (level, segment_tasks) {
                    (Some(level), _) => format!(
                        "{free} are free in cell {cell}, at most {largest} in one {level}; {needed} needed in one {level}"
                    ),
                    (None, Some(each)) => format!(
                        "{free} are free in cell {cell}; {needed} needed, with each {each} consecutive tasks on one island"
                    ),
                    (None, None) => format!("{free} are free in cell {cell}; {needed} needed"),
                }
            }
            Why::NodesTooFull { cell, model, free, largest_node, each, tasks: count, slots, .. } => format!(
                "{} are free in cell {cell}, at most {largest_node} on one node: room for {} of {} each, {} needed",
                of(*model, *free),
                tasks(*slots),
                of(*model, *each),
                tasks(*count)
            ),
            Why::SplitOverPools { cell, model, free, tasks: count, slots } => format!(
                "{} are free in cell {cell}, but all tasks must be in one pool: one pool has room for {}, {} needed",
                of(*model, *free),
                tasks(*slots),
                tasks(*count)
            ),
            Why::PinnedLayout { cell, model, what, pools } => {
                let pins: Vec<String> = pools.iter().map(|pin| pin.in_words(*model, what)).collect();
                format!("every {model} of cell {cell} that it may use has a fixed MIG layout: {}", pins.join("; "))
            }
            Why::NoShare { cell, model, mode, what, free, closed } => {
                let free =
                    if *free == 0 { "no whole GPU is free".to_owned() } else { format!("{free} whole GPUs are free") };
                let closed = closed_words(*model, closed);
                format!(
                    "no {} of cell {cell} has room for {what} under {}; {free}{closed}",
                    word(*model),
                    mode_word(*mode)
                )
            }
            _ => String::new(),
        }
    }

    fn about_nodes(&self) -> String {
        match self {
            Why::HostTooFull { cell, model, cpu, cpu_milli, memory_mib, host } => {
                let each = if *cpu { cpus(*cpu_milli) } else { format!("{} of memory", memory(*memory_mib)) };
                let Some(host) = host else {
                    return format!(
                        "{model} are free in cell {cell}, but no node with them has {each} left for each task"
                    );
                };
                let left = if *cpu {
                    format!("{} of {}", bare(Resource::Cpu, host.cpu_milli.0), cpus(host.cpu_milli.1))
                } else {
                    format!("{} of {} of memory", memory(host.memory_mib.0), memory(host.memory_mib.1))
                };
                format!(
                    "{model} are free in cell {cell}, but their nodes lack CPUs or memory: {} has {} {model} and {left} free; each task needs {each}",
                    host.node, host.free
                )
            }
            Why::NodesClosed { cell, model, free, needed, closed } => {
                let (free, needed) = (of(*model, *free), of(*model, *needed));
                format!("{free} are free in cell {cell}; {needed} needed{}", closed_words(*model, closed))
            }
            Why::LargerThanCell { cell, needed, model, open, level, closed } => {
                let inside = match level {
                    Some(level) => format!(" in one {level}"),
                    None if open >= needed => " on nodes of one pool that fit each task".to_owned(),
                    None => String::new(),
                };
                let (needed, open) = (of(*model, *needed), of(*model, *open));
                format!(
                    "cell {cell} is too small even when empty: {needed} needed{inside}, its nodes that take new work have {open}{}",
                    closed_words(*model, closed)
                )
            }
            _ => String::new(),
        }
    }
}

/// `8 of 32 h100`, `10 of 16 CPUs`.
fn of_all(model: Option<GpuModel>, free: u64, open: u64) -> String {
    match model {
        Some(model) => format!("{free} of {open} {model}"),
        None => format!("{} of {}", bare(Resource::Cpu, free), cpus(open)),
    }
}

fn of_models(models: &[GpuModel]) -> String {
    let names: Vec<String> = models.iter().map(ToString::to_string).collect();
    if names.is_empty() { "GPU that fits".to_owned() } else { names.join(" or ") }
}

/// `; 8 h100 more are on nodes that take no new work: node-1 (drained)`.
fn closed_words(model: Option<GpuModel>, closed: &[ClosedNode]) -> String {
    if closed.is_empty() {
        return String::new();
    }
    let all = of(model, closed.iter().map(|node| node.amount).sum());
    let state = |node: &ClosedNode| match (node.drained, node.health) {
        (_, NodeHealth::Ready) if node.restored => "not confirmed after a restore from a backup".to_owned(),
        (true, NodeHealth::Ready) if node.quarantined => "quarantined".to_owned(),
        (true, NodeHealth::Ready) => "drained".to_owned(),
        (true, health) => format!("drained, {}", health_word(health)),
        (false, NodeHealth::Ready) if node.unproven => "has not proved the isolation that its pool needs".to_owned(),
        (false, NodeHealth::Ready) => "takes no new work".to_owned(),
        (false, health) => health_word(health).to_owned(),
    };
    let named =
        closed.iter().filter(|node| !node.name.is_empty()).map(|node| format!("{} ({})", node.name, state(node)));
    let named = listed(named, NODES_NAMED_MAX);
    let which = if named.is_empty() { String::new() } else { format!(": {named}") };
    format!("; {all} more are on nodes that take no new work{which}")
}

pub(super) fn mode_word(mode: SharingMode) -> &'static str {
    match mode {
        SharingMode::Whole => "whole GPUs",
        SharingMode::Mig => "MIG",
        SharingMode::Mps => "MPS",
        SharingMode::TimeSlice => "time-slicing",
    }
}

/// `pool gold (the only one with h200) does not allow MIG inference`.
fn no_pool(cell: &str, model: Option<GpuModel>, refusals: &[PoolRefusal]) -> String {
    let says = |refusal: &PoolRefusal| match (&refusal.wanted, refusal.mode, refusal.class) {
        (None, None, None) if let Some(other) = &refusal.other => format!("does not allow {other}"),
        (Some(wanted), ..) => format!("is not {wanted}, the pool that the job requires"),
        (None, Some(mode), Some(class)) => format!("does not allow {} {class}", mode_word(mode)),
        (None, Some(mode), None) => format!("does not allow {}", mode_word(mode)),
        (None, None, Some(class)) => format!("does not allow {class}"),
        (None, None, None) => "does not allow it".to_owned(),
    };
    let with = model.map_or_else(|| "nodes".to_owned(), |model| model.to_string());
    match refusals {
        [only] => format!("pool {} (the only one with {with} in cell {cell}) {}", only.pool, says(only)),
        several => {
            let each = several.iter().map(|refusal| format!("pool {} {}", refusal.pool, says(refusal)));
            format!("no pool with {with} in cell {cell} allows it: {}", each.collect::<Vec<_>>().join("; "))
        }
    }
}

impl Reason {
    /// The figures by name, and who holds what is wanted.
    #[must_use]
    pub fn figures(&self) -> BTreeMap<String, String> {
        let mut out = self.why.figures();
        for (place, held) in self.holders.iter().enumerate() {
            out.insert(format!("holder_{}", place + 1), held.text());
        }
        out
    }
}

impl Why {
    fn figures(&self) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        let mut put = |name: &str, value: String| drop(out.insert(name.to_owned(), value));
        match self {
            Why::NoFreeGpus { open, free, reserved, largest_node, needed, closed, .. } => {
                put("open", open.to_string());
                put("free", free.to_string());
                put("reserved", reserved.to_string());
                put("largest_node", largest_node.to_string());
                put("needed", needed.to_string());
                put("closed", closed.iter().map(|node| node.amount).sum::<u64>().to_string());
            }
            Why::NodesClosed { free, needed, closed, .. } => {
                put("free", free.to_string());
                put("needed", needed.to_string());
                put("closed", closed.iter().map(|node| node.amount).sum::<u64>().to_string());
                put("closed_nodes", closed.len().to_string());
            }
            Why::Topology { level, free, largest, needed, .. } => {
                put("free", free.to_string());
                if let Some(level) = level {
                    put(&format!("largest_{level}"), largest.to_string());
                }
                put("needed", needed.to_string());
            }
            Why::NodesTooFull { free, largest_node, each, needed, slots, .. } => {
                put("free", free.to_string());
                put("largest_node", largest_node.to_string());
                put("needed_on_one_node", each.to_string());
                put("needed", needed.to_string());
                put("tasks_with_room", slots.to_string());
            }
            Why::HostTooFull { cpu_milli, memory_mib, host, .. } => {
                put("cpu_milli_each", cpu_milli.to_string());
                put("memory_mib_each", memory_mib.to_string());
                if let Some(host) = host {
                    put("node", host.node.clone());
                    put("free", host.free.to_string());
                    put("cpu_milli_free", host.cpu_milli.0.to_string());
                    put("memory_mib_free", host.memory_mib.0.to_string());
                }
            }
            Why::NoShare { free, .. } => put("free_cards", free.to_string()),
            Why::PoolFull { free, needed, .. } => {
                put("free", free.to_string());
                put("needed", needed.to_string());
            }
            Why::PinnedLayout { pools, .. } => {
                put("pinned_cards", pools.iter().map(|pin| pin.cards).sum::<u64>().to_string());
                put("slots", pools.iter().map(|pin| pin.slots).sum::<u64>().to_string());
                put("slots_open", pools.iter().map(|pin| pin.open).sum::<u64>().to_string());
            }
            Why::NoCell { needed, largest, closed, .. } => {
                put("largest_cell", largest.to_string());
                put("needed", needed.to_string());
                put("closed", closed.to_string());
            }
            Why::DriverTooOld { needed, newest, .. } => {
                put("driver_min", needed.to_string());
                put("newest_driver", newest.map(|newest| newest.to_string()).unwrap_or_default());
            }
            Why::StarvationGuard { cards, free, .. } => {
                put("gang_cards", cards.to_string());
                put("free", free.to_string());
            }
            Why::Spread(spread) => spread.figures().into_iter().for_each(|(name, value)| put(&name, value)),
            Why::ReservedForGang(kept) => kept.figures().into_iter().for_each(|(name, value)| put(&name, value)),
            Why::InWindow(window) => window.figures().into_iter().for_each(|(name, value)| put(&name, value)),
            Why::Reserved(reserved) => reserved.figures().into_iter().for_each(|(name, value)| put(name, value)),
            Why::AntiAffinityConflict(kept) => put("kept_off_nodes", kept.nodes.to_string()),
            Why::LargerThanCell { needed, open, .. } => {
                put("needed", needed.to_string());
                put("open", open.to_string());
            }
            Why::OverMax { used, asked, max, .. } => {
                put("used", used.to_string());
                put("asked", asked.to_string());
                put("max", max.to_string());
            }
            _ => {}
        }
        out
    }
}
