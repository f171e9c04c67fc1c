//! Nodes, their GPUs and where they stand; pools and cells.

use crate::gpu::GpuModel;
use crate::ids::{CellId, Epoch, JobId, NodeId};
use crate::image::{self, Mount, MountRule};
use crate::isolation::{IsolationLevel, NetworkPolicy, Proof};
use crate::mig::PinnedLayout;
use crate::node_links::NodeLinks;
use crate::request::SharingMode;
use crate::restored::Restored;
use crate::time_slice::TimeSlice;
use crate::topology::TopologyLevel;
pub use crate::withheld::{Repair, Verdicts, Withheld, WithheldSlice};
use crate::workload::WorkloadClass;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Where a node stands in the network, from the widest.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Region, for example `eu-north`.
    pub region: String,
    /// Zone in the region.
    pub zone: String,
    /// Leaves under one spine group.
    pub block: String,
    /// Nodes under one leaf switch.
    pub leaf: String,
    /// The NVLink domain that this node shares with others of its leaf, such as a rack of GB200 NVL72; empty when its NVLink ends at
    /// the host. A name is a domain's within its leaf: the same name under another leaf is another domain.
    pub nvlink_domain: String,
}

impl Place {
    /// The path of the domain of `level` that this place lies in, from the region: two nodes are in one leaf, block or region
    /// exactly when these are equal. Levels inside a node give the leaf's.
    #[must_use]
    pub fn domain(&self, level: TopologyLevel) -> String {
        let Place { region, zone, block, leaf, nvlink_domain: _ } = self;
        match level {
            TopologyLevel::Region => region.clone(),
            TopologyLevel::Block => format!("{region}/{zone}/{block}"),
            TopologyLevel::Leaf | TopologyLevel::Node | TopologyLevel::Island => {
                format!("{region}/{zone}/{block}/{leaf}")
            }
        }
    }

    /// The path of the NVLink domain of several nodes that this place lies in, if it lies in one. It begins with the leaf's.
    #[must_use]
    pub fn spanning_island(&self) -> Option<String> {
        let spans = !self.nvlink_domain.is_empty();
        spans.then(|| format!("{}/{}", self.domain(TopologyLevel::Leaf), self.nvlink_domain))
    }

    /// Whether NVLink joins the cards of the two: both lie in one NVLink domain.
    #[must_use]
    pub fn shares_nvlink(&self, other: &Place) -> bool {
        !self.nvlink_domain.is_empty() && self == other
    }

    /// Whether both lie in one domain of `level` (leaf, block or region).
    #[must_use]
    pub fn together(&self, other: &Place, level: TopologyLevel) -> bool {
        let region = self.region == other.region;
        let block = region && self.zone == other.zone && self.block == other.block;
        match level {
            TopologyLevel::Region => region,
            TopologyLevel::Block => block,
            TopologyLevel::Leaf | TopologyLevel::Node | TopologyLevel::Island => block && self.leaf == other.leaf,
        }
    }
}

/// One card of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's UUID.
    pub uuid: String,
    /// Model.
    pub model: GpuModel,
    /// Memory in MiB as the node reports it.
    pub memory_mib: u64,
    /// NUMA node.
    pub numa: u8,
    /// Which NVLink island of the node, from 0; all of one island where the node is part of an NVLink domain.
    pub island: u8,
    /// Why it is not to be used, if so (a fault, a process Muster did not start).
    pub withheld: Option<String>,
    /// MIG slices of it that are not to be used; the rest of the card is.
    #[serde(default)]
    pub withheld_slices: Vec<WithheldSlice>,
    /// The greatest repair that something withheld of it asks for.
    #[serde(default)]
    pub repair: Repair,
}

impl Gpu {
    /// Whether it, or a slice of it, is not to be used.
    #[must_use]
    pub fn has_withheld(&self) -> bool {
        self.withheld.is_some() || !self.withheld_slices.is_empty()
    }
}

impl NodeSpec {
    /// The cards with these things withheld, and nothing else. Of two reasons for the same thing the first counts. What names no card of the node is left
    /// out.
    #[must_use]
    pub fn withholding(&self, withheld: &[Withheld]) -> Vec<Gpu> {
        let mut gpus = self.gpus.clone();
        for gpu in &mut gpus {
            gpu.withheld = None;
            gpu.withheld_slices.clear();
            gpu.repair = Repair::default();
        }
        for Withheld { gpu, slice, reason, by_verdict: _, repair } in withheld {
            let Some(gpu) = gpus.get_mut(usize::from(*gpu)) else { continue };
            gpu.repair = gpu.repair.max(*repair);
            match slice {
                None if gpu.withheld.is_none() => gpu.withheld = Some(reason.clone()),
                Some(place) if !gpu.withheld_slices.iter().any(|slice| slice.place == *place) => {
                    gpu.withheld_slices.push(WithheldSlice { place: *place, reason: reason.clone() });
                }
                _ => {}
            }
        }
        gpus
    }

    /// What of the cards is withheld, whatever for: the reverse of [`withholding`](Self::withholding).
    #[must_use]
    pub fn withheld(&self) -> Vec<Withheld> {
        let of = |(index, gpu): (usize, &Gpu)| {
            let (index, repair) = (index as u16, gpu.repair);
            let of = move |slice, reason: &String| {
                let reason = reason.clone();
                Withheld { gpu: index, slice, reason, by_verdict: false, repair }
            };
            let card = gpu.withheld.iter().map(move |reason| of(None, reason));
            let slice = move |slice: &WithheldSlice| of(Some(slice.place), &slice.reason);
            card.chain(gpu.withheld_slices.iter().map(slice)).collect::<Vec<_>>()
        };
        self.gpus.iter().enumerate().flat_map(of).collect()
    }
}

/// What an agent says of its host when it joins. A node's name is its identity: it is given at joining and kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Unique in the fleet.
    pub name: String,
    /// Host or IP that other ranks can reach.
    pub address: String,
    /// Where it stands.
    pub place: Place,
    /// The cell that schedules it.
    pub cell: String,
    /// Its pool.
    pub pool: String,
    /// Cards by index.
    pub gpus: Vec<Gpu>,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// MiB of memory.
    pub memory_mib: u64,
    /// Driver version as NVML prints it.
    pub driver: String,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Changes at every boot of the host: tasks of an earlier boot are gone.
    pub boot_id: String,
    /// What came of trying to get past the isolation of tasks, in order, each protection once. What is not there was not tried.
    #[serde(default)]
    pub proofs: Vec<Proof>,
}

/// What the control plane thinks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeHealth {
    /// Its lease is renewed.
    Ready,
    /// It has not been heard of for a while: nothing new is bound, what runs is left.
    Silent,
    /// Its lease and every grace have passed: its tasks are fenced.
    Down,
}

impl NodeHealth {
    /// The word in tables and messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            NodeHealth::Ready => "ready",
            NodeHealth::Silent => "silent",
            NodeHealth::Down => "down",
        }
    }
}

/// A node of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// What the agent said of it.
    pub spec: NodeSpec,
    /// The id of its cell.
    pub cell: CellId,
    /// Grows when the node is fenced; reports with an older one are refused.
    pub epoch: Epoch,
    /// Health.
    pub health: NodeHealth,
    /// An operator wants no new work on it.
    pub drained: bool,
    /// What has been noted of its agent, and of why it takes no work.
    #[serde(default)]
    pub notes: NodeNotes,
}

/// What has been noted of a node beside where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNotes {
    /// The id of the agent that serves it, made with that agent's data folder; 0 when the agent is too old to have one.
    pub agent: u64,
    /// Why it is drained; empty when nobody said.
    pub drain_reason: String,
    /// The job of each attempt that the node failed to start, since the last task that it did start. Bounded: a node with that
    /// many is quarantined.
    pub start_failures: Vec<JobId>,
    /// It takes no new work because of them.
    pub quarantine: Option<Quarantine>,
    /// Another agent asks to be this node.
    pub rival: Option<Rival>,
    /// Cards that an operator takes for well again, each once with the newest time. The agent lifts what it has against them until then.
    #[serde(default)]
    pub cleared_gpus: Vec<ClearedGpu>,
    /// How its cards and network cards reach each other, as its agent has found it; empty until it has.
    #[serde(default)]
    pub links: NodeLinks,
    /// What its pool needs and it has not proved, for people; empty: nothing.
    #[serde(default)]
    pub lacks: String,
    /// Who has drained it, each with their reason: it takes work again when none of them is left. Empty of a drained node: nobody in particular.
    #[serde(default)]
    pub drained_by: BTreeMap<String, String>,
    /// What its agent would withhold by verdicts on its cards' health.
    #[serde(default)]
    pub verdicts: Verdicts,
    /// Cards that are others than before, by index, with the UUID of the one that was there: until an operator clears them, or the old one is back.
    #[serde(default)]
    pub replaced: BTreeMap<u16, String>,
    /// It comes from a backup, and not all is clear yet.
    #[serde(default)]
    pub restored: Option<Box<Restored>>,
}

/// An operator takes a card for well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearedGpu {
    /// NVML's UUID of the card.
    pub uuid: String,
    /// When, in the time of commands.
    pub at_ms: u64,
    /// Why.
    pub reason: String,
}

/// Why a node takes no new work although nobody drained it. An operator lifts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Since when, in the time of commands.
    pub since_ms: u64,
    /// What failed, for people.
    pub reason: String,
}

/// An agent that asks to be a node which another agent serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rival {
    /// Its id.
    pub agent: u64,
    /// The address it gives its node.
    pub address: String,
    /// The boot of its host.
    pub boot_id: String,
    /// When it last asked, in the time of commands; noted once a minute.
    pub asked_ms: u64,
}

/// A node that was taken out of the fleet: should its agent join again, the node comes back drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedNode {
    /// Its name.
    pub name: String,
    /// When, in the time of commands.
    pub removed_ms: u64,
}

impl Node {
    /// Whether new work may be bound here.
    #[must_use]
    pub fn accepts_work(&self) -> bool {
        self.health == NodeHealth::Ready
            && !self.drained
            && self.notes.quarantine.is_none()
            && self.notes.lacks.is_empty()
            && self.notes.restored.is_none()
    }

    /// Why the node takes no new work, in one word; `None` when it does. Health is named first: an operator who lifts a drain of a
    /// silent node gains nothing.
    #[must_use]
    pub fn closed_by(&self) -> Option<&'static str> {
        match self.health {
            NodeHealth::Silent | NodeHealth::Down => Some(self.health.word()),
            NodeHealth::Ready if self.notes.restored.is_some() => Some("restored"),
            NodeHealth::Ready if self.drained => Some("drained"),
            NodeHealth::Ready if self.notes.quarantine.is_some() => Some("quarantined"),
            NodeHealth::Ready if !self.notes.lacks.is_empty() => Some("unproven"),
            NodeHealth::Ready => None,
        }
    }
}

/// A set of nodes with rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Sharing modes that its cards may take.
    pub modes: BTreeSet<SharingMode>,
    /// Workload classes that it serves.
    pub classes: BTreeSet<WorkloadClass>,
    /// Tasks per card under time-slicing.
    pub time_slice_replicas: u8,
    /// Clients per card under MPS.
    pub mps_clients: u8,
    /// How much less compute than asked a MIG slice may give to steady work that says its needs alone, in percent of what was
    /// asked: with 20, a job of 15 % of a card runs on a seventh (14 %).
    pub compute_tolerance_percent: u8,
    /// Cards that hold a fixed MIG layout, by model. They serve its slots and nothing else.
    pub pinned: BTreeMap<GpuModel, PinnedLayout>,
    /// How long burst work runs at least before it may be preempted, in seconds; 0: it may be at once.
    #[serde(default)]
    pub cool_down_s: u64,
    /// How often a job that stands here may be preempted at most; none: no bound. A bound can keep an owner of a guarantee waiting for ever.
    #[serde(default)]
    pub preemptions_max: Option<u32>,
    /// What the storage of checkpoints takes, in MiB/s: preemptions are staggered so that all victims can save their work within their grace.
    /// None: they are not.
    #[serde(default)]
    pub checkpoint_mib_per_s: Option<u64>,
    /// Running jobs that may be moved in an hour so that waiting gangs fit; 0: nothing is moved.
    #[serde(default)]
    pub moves_per_hour: u32,
    /// GPU-hours that moves may cost in a day; 0: nothing is moved.
    #[serde(default)]
    pub moves_lost_gpu_hours_per_day: u32,
    /// Images that jobs may use here, as prefixes: `dir:/srv/images/`, `docker://registry.example/ml/`. None unless named.
    #[serde(default)]
    pub images: Vec<String>,
    /// What jobs may mount here. Nothing unless named.
    #[serde(default)]
    pub mounts: Vec<MountRule>,
    /// How long a task has a time-sliced card before the next one has it.
    #[serde(default)]
    pub time_slice: TimeSlice,
    /// What a node has to prove before it gets work.
    #[serde(default)]
    pub isolation: IsolationLevel,
    /// What tasks see of the network; none: what is usual for the level ([`Pool::network`]).
    #[serde(default)]
    pub network: Option<NetworkPolicy>,
    /// MiB that a task which asked for no memory may use; none: its share of the node where isolation is full, else no bound.
    #[serde(default)]
    pub memory_limit_mib: Option<u64>,
    /// How many percent of its cards in a cell may be withheld by verdicts on their health; none: [`WITHHELD_PERCENT_MAX`]. One card may be unless it is 0.
    #[serde(default)]
    pub withheld_max_percent: Option<u8>,
    /// And at most so many cards.
    #[serde(default)]
    pub withheld_max_gpus: Option<u32>,
}

/// Half: more cards than that are not lost at once, but a monitor may be.
pub const WITHHELD_PERCENT_MAX: u8 = 50;

impl Pool {
    /// The pool that every node joins unless it says otherwise: everything is allowed, shared cards take the usual numbers.
    #[must_use]
    pub fn standard() -> Self {
        Pool {
            name: "default".to_owned(),
            modes: [SharingMode::Whole, SharingMode::Mig, SharingMode::Mps, SharingMode::TimeSlice].into(),
            classes: WorkloadClass::ALL.into(),
            time_slice_replicas: 4,
            mps_clients: 8,
            compute_tolerance_percent: 20,
            pinned: BTreeMap::new(),
            cool_down_s: 0,
            preemptions_max: None,
            checkpoint_mib_per_s: None,
            moves_per_hour: 0,
            moves_lost_gpu_hours_per_day: 0,
            images: Vec::new(),
            mounts: Vec::new(),
            time_slice: TimeSlice::Medium,
            isolation: IsolationLevel::None,
            network: None,
            memory_limit_mib: None,
            withheld_max_percent: None,
            withheld_max_gpus: None,
        }
    }

    /// How many of its cards in a cell may be withheld, when it has so many there.
    #[must_use]
    pub fn withheld_limit(&self, cards: usize) -> usize {
        let percent = usize::from(self.withheld_max_percent.unwrap_or(WITHHELD_PERCENT_MAX).min(100));
        let share = (cards * percent / 100).max(usize::from(percent > 0));
        self.withheld_max_gpus.map_or(share, |most| share.min(most as usize))
    }

    /// What of a rule allows this image: a folder, or a registry with a part of a name.
    #[must_use]
    pub fn allows_image(&self, image: &str) -> Option<&str> {
        image::rule_for_image(&self.images, image)
    }

    /// The folder of the rule that allows this mount.
    #[must_use]
    pub fn allows_mount(&self, mount: &Mount) -> Option<&str> {
        image::rule_for_mount(&self.mounts, mount)
    }

    /// The layout that the `rank`-th card of `model` on a node holds, if it is pinned.
    #[must_use]
    pub fn pin_at(&self, model: GpuModel, rank: usize) -> Option<&PinnedLayout> {
        self.pinned.get(&model).filter(|pin| pin.cards_per_node().is_none_or(|cards| rank < usize::from(cards)))
    }

    /// The layout of every card of `model`, when all of them are pinned.
    #[must_use]
    pub fn pin_of_all(&self, model: GpuModel) -> Option<&PinnedLayout> {
        self.pinned.get(&model).filter(|pin| pin.cards_per_node().is_none())
    }

    /// Which of `gpus`, the cards of one node, are pinned: bit by bit, by index.
    #[must_use]
    pub fn pinned_cards(&self, gpus: &[Gpu]) -> u128 {
        self.pins(gpus)
            .map(|(index, _)| index)
            .take_while(|index| *index < u128::BITS as usize)
            .fold(0, |mask, index| mask | 1 << index)
    }

    /// The layouts that `gpus`, the cards of one node, hold, by index.
    pub fn pins<'a>(&'a self, gpus: &'a [Gpu]) -> impl Iterator<Item = (usize, &'a PinnedLayout)> {
        let pin = |(index, gpu): (usize, &Gpu)| {
            let rank = gpus[..index].iter().filter(|other| other.model == gpu.model).count();
            Some((index, self.pin_at(gpu.model, rank)?))
        };
        let cards = if self.pinned.is_empty() { &[] } else { gpus };
        cards.iter().enumerate().filter_map(pin)
    }

    /// The rules of a pool that nobody has described.
    #[must_use]
    pub fn standard_rules() -> &'static Pool {
        static RULES: std::sync::LazyLock<Pool> = std::sync::LazyLock::new(Pool::standard);
        &RULES
    }
}

/// A disjoint set of nodes that one shard schedules at a time, with its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Its id.
    pub id: CellId,
    /// Its name, as nodes give it when they join.
    pub name: String,
    /// Grows each time the lease changes hands.
    pub epoch: Epoch,
    /// The shard that holds it.
    pub holder: Option<String>,
}
