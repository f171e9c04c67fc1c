//! Nodes and their cards, pools and cells.

use super::allocation::{mig_from_wire, mig_to_wire};
use super::withheld::repair;
use super::{each, narrow, need, word, word_if};
use crate::v1;
use muster_model::mig::{MigPlacement, PinnedLayout};
use muster_model::node::{ClearedGpu, NodeNotes, NodeSpec, Quarantine, Rival, Verdicts};
use muster_model::node_links::{Nic, NodeLinks};
use muster_model::sharing::{CardSharing, TimeSlice};
use muster_model::{
    Cell, CellId, Epoch, FieldError, Gpu, GpuModel, JobId, Node, NodeHealth, NodeId, Place, Pool, Proof, UnknownWord,
};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

impl From<&Place> for v1::Place {
    fn from(place: &Place) -> Self {
        v1::Place {
            region: place.region.clone(),
            zone: place.zone.clone(),
            block: place.block.clone(),
            leaf: place.leaf.clone(),
            nvlink_domain: place.nvlink_domain.clone(),
        }
    }
}

impl From<v1::Place> for Place {
    fn from(wire: v1::Place) -> Self {
        Place {
            region: wire.region,
            zone: wire.zone,
            block: wire.block,
            leaf: wire.leaf,
            nvlink_domain: wire.nvlink_domain,
        }
    }
}

impl From<&Gpu> for v1::Gpu {
    fn from(gpu: &Gpu) -> Self {
        v1::Gpu {
            uuid: gpu.uuid.clone(),
            model: gpu.model.to_string(),
            memory_mib: gpu.memory_mib,
            numa: u32::from(gpu.numa),
            island: u32::from(gpu.island),
            withheld: gpu.withheld.clone(),
            withheld_slices: gpu
                .withheld_slices
                .iter()
                .map(|slice| v1::WithheldSlice { slice: Some(mig_to_wire(slice.place)), reason: slice.reason.clone() })
                .collect(),
            repair: v1::Repair::from(gpu.repair).into(),
        }
    }
}

impl TryFrom<v1::Gpu> for Gpu {
    type Error = FieldError;

    fn try_from(wire: v1::Gpu) -> Result<Self, FieldError> {
        Ok(Gpu {
            model: word("model", &wire.model)?,
            uuid: wire.uuid,
            memory_mib: wire.memory_mib,
            numa: narrow("numa", wire.numa, u8::MAX)?,
            island: narrow("island", wire.island, u8::MAX)?,
            withheld: wire.withheld,
            withheld_slices: wire.withheld_slices.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            repair: repair(wire.repair),
        })
    }
}

impl From<&[MigPlacement]> for v1::PinnedSlots {
    fn from(slots: &[MigPlacement]) -> Self {
        v1::PinnedSlots { slots: slots.iter().copied().map(mig_to_wire).collect() }
    }
}

impl TryFrom<v1::PinnedSlots> for Vec<MigPlacement> {
    type Error = FieldError;

    fn try_from(wire: v1::PinnedSlots) -> Result<Self, FieldError> {
        wire.slots.iter().map(mig_from_wire).collect()
    }
}

impl From<&NodeSpec> for v1::NodeSpec {
    fn from(spec: &NodeSpec) -> Self {
        v1::NodeSpec {
            name: spec.name.clone(),
            address: spec.address.clone(),
            place: Some((&spec.place).into()),
            cell: spec.cell.clone(),
            pool: spec.pool.clone(),
            gpus: spec.gpus.iter().map(Into::into).collect(),
            cpu_milli: spec.cpu_milli,
            memory_mib: spec.memory_mib,
            driver: spec.driver.clone(),
            labels: spec.labels.clone(),
            boot_id: spec.boot_id.clone(),
            proofs: spec.proofs.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::NodeSpec> for NodeSpec {
    type Error = FieldError;

    fn try_from(wire: v1::NodeSpec) -> Result<Self, FieldError> {
        Ok(NodeSpec {
            name: wire.name,
            address: wire.address,
            place: need(wire.place, "place")?.into(),
            cell: wire.cell,
            pool: wire.pool,
            gpus: each("gpus", wire.gpus)?,
            cpu_milli: wire.cpu_milli,
            memory_mib: wire.memory_mib,
            driver: wire.driver,
            labels: wire.labels,
            boot_id: wire.boot_id,
            proofs: proofs_from_wire(wire.proofs),
        })
    }
}

impl From<&Proof> for v1::Proof {
    fn from(Proof { protection, fault }: &Proof) -> Self {
        v1::Proof { protection: protection.to_string(), fault: fault.clone().unwrap_or_default() }
    }
}

/// In order, each protection once: of two that name the same, one with a fault counts. What this version does not know, a newer agent has tried; no pool here can
/// need it.
#[must_use]
pub fn proofs_from_wire(wire: Vec<v1::Proof>) -> Vec<Proof> {
    let mut proofs = BTreeMap::new();
    for v1::Proof { protection, fault } in wire {
        let Ok(protection) = protection.parse() else { continue };
        let fault = (!fault.is_empty()).then_some(fault);
        let known: &mut Proof = proofs.entry(protection).or_insert_with(|| Proof::new(protection, None));
        if fault.is_some() {
            *known = Proof::new(protection, fault);
        }
    }
    proofs.into_values().collect()
}

impl From<NodeHealth> for v1::NodeHealth {
    fn from(health: NodeHealth) -> Self {
        match health {
            NodeHealth::Ready => v1::NodeHealth::Ready,
            NodeHealth::Silent => v1::NodeHealth::Silent,
            NodeHealth::Down => v1::NodeHealth::Down,
        }
    }
}

impl TryFrom<v1::NodeHealth> for NodeHealth {
    type Error = FieldError;

    fn try_from(wire: v1::NodeHealth) -> Result<Self, FieldError> {
        match wire {
            v1::NodeHealth::Ready => Ok(NodeHealth::Ready),
            v1::NodeHealth::Silent => Ok(NodeHealth::Silent),
            v1::NodeHealth::Down => Ok(NodeHealth::Down),
            v1::NodeHealth::Unspecified => Err(FieldError::new("health", "is unspecified", "send a health")),
        }
    }
}

impl From<&Node> for v1::Node {
    fn from(node: &Node) -> Self {
        v1::Node {
            id: node.id.0,
            spec: Some((&node.spec).into()),
            cell: node.cell.0,
            epoch: node.epoch.0,
            health: v1::NodeHealth::from(node.health).into(),
            drained: node.drained,
            notes: Some((&node.notes).into()),
            reason: node.reason(),
        }
    }
}

impl TryFrom<v1::Node> for Node {
    type Error = FieldError;

    fn try_from(wire: v1::Node) -> Result<Self, FieldError> {
        let health = wire.health().try_into()?;
        Ok(Node {
            id: NodeId(wire.id),
            spec: need(wire.spec, "spec")?.try_into().map_err(|e: FieldError| e.under("spec"))?,
            cell: CellId(wire.cell),
            epoch: Epoch(wire.epoch),
            health,
            drained: wire.drained,
            notes: wire.notes.unwrap_or_default().try_into().map_err(|e: FieldError| e.under("notes"))?,
        })
    }
}

impl From<&NodeNotes> for v1::NodeNotes {
    fn from(notes: &NodeNotes) -> Self {
        let NodeNotes {
            agent,
            drain_reason,
            start_failures,
            quarantine,
            rival,
            cleared_gpus,
            links,
            lacks,
            drained_by,
            verdicts: Verdicts { followed, spared },
            replaced,
            restored,
        } = notes;
        v1::NodeNotes {
            agent: *agent,
            drain_reason: drain_reason.clone(),
            start_failures: start_failures.iter().map(|job| job.0).collect(),
            quarantine: quarantine
                .as_ref()
                .map(|Quarantine { since_ms, reason }| v1::Quarantine { since_ms: *since_ms, reason: reason.clone() }),
            rival: rival.as_ref().map(|Rival { agent, address, boot_id, asked_ms }| v1::Rival {
                agent: *agent,
                address: address.clone(),
                boot_id: boot_id.clone(),
                asked_ms: *asked_ms,
            }),
            cleared_gpus: cleared_gpus.iter().map(Into::into).collect(),
            links: (*links != NodeLinks::default()).then(|| links.into()),
            lacks: lacks.clone(),
            drained_by: drained_by.clone(),
            withheld_by_verdict: followed.iter().map(|gpu| u32::from(*gpu)).collect(),
            spared: spared.iter().map(Into::into).collect(),
            replaced_gpus: replaced.iter().map(|(gpu, was)| (u32::from(*gpu), was.clone())).collect(),
            restored: restored.as_deref().map(Into::into),
        }
    }
}

impl From<&ClearedGpu> for v1::ClearedGpu {
    fn from(ClearedGpu { uuid, at_ms, reason }: &ClearedGpu) -> Self {
        v1::ClearedGpu { uuid: uuid.clone(), at_ms: *at_ms, reason: reason.clone() }
    }
}

impl From<v1::ClearedGpu> for ClearedGpu {
    fn from(v1::ClearedGpu { uuid, at_ms, reason }: v1::ClearedGpu) -> Self {
        ClearedGpu { uuid, at_ms, reason }
    }
}

impl TryFrom<v1::NodeNotes> for NodeNotes {
    type Error = FieldError;

    fn try_from(wire: v1::NodeNotes) -> Result<Self, FieldError> {
        let v1::NodeNotes {
            agent,
            drain_reason,
            start_failures,
            quarantine,
            rival,
            cleared_gpus,
            links,
            lacks,
            drained_by,
            withheld_by_verdict,
            spared,
            replaced_gpus,
            restored,
        } = wire;
        let replaced = |(gpu, was)| Ok((narrow("replaced_gpus", gpu, u16::MAX)?, was));
        let replaced = replaced_gpus.into_iter().map(replaced).collect::<Result<_, FieldError>>()?;
        let index = |gpu| narrow("withheld_by_verdict", gpu, u16::MAX);
        let followed = withheld_by_verdict.into_iter().map(index).collect::<Result<_, _>>()?;
        let verdicts = Verdicts { followed, spared: each("spared", spared)? };
        Ok(NodeNotes {
            agent,
            drain_reason,
            start_failures: start_failures.into_iter().map(JobId).collect(),
            quarantine: quarantine.map(|v1::Quarantine { since_ms, reason }| Quarantine { since_ms, reason }),
            rival: rival.map(|v1::Rival { agent, address, boot_id, asked_ms }| Rival {
                agent,
                address,
                boot_id,
                asked_ms,
            }),
            cleared_gpus: cleared_gpus.into_iter().map(Into::into).collect(),
            links: links.map(TryInto::try_into).transpose()?.unwrap_or_default(),
            lacks,
            drained_by,
            verdicts,
            replaced,
            restored: restored.map(|restored| Box::new(restored.into())),
        })
    }
}

impl From<&NodeLinks> for v1::NodeLinks {
    fn from(NodeLinks { cuda, gpus, nics, matrix }: &NodeLinks) -> Self {
        let nic = |Nic { name, numa }: &Nic| v1::Nic { name: name.clone(), numa: u32::from(*numa) };
        v1::NodeLinks {
            cuda: cuda.clone(),
            nics: nics.iter().map(nic).collect(),
            gpus: u32::from(*gpus),
            matrix: matrix.clone(),
        }
    }
}

impl TryFrom<v1::NodeLinks> for NodeLinks {
    type Error = FieldError;

    fn try_from(v1::NodeLinks { cuda, nics, gpus, matrix }: v1::NodeLinks) -> Result<Self, FieldError> {
        let nic = |v1::Nic { name, numa }| Ok(Nic { name, numa: narrow("nics.numa", numa, u8::MAX)? });
        let nics = nics.into_iter().map(nic).collect::<Result<_, FieldError>>()?;
        Ok(NodeLinks { cuda, gpus: narrow("gpus", gpus, u16::MAX)?, nics, matrix })
    }
}

impl From<&CardSharing> for v1::CardSharing {
    fn from(sharing: &CardSharing) -> Self {
        v1::CardSharing {
            time_slice: sharing.time_slice.number().into(),
            mps_processes_max: sharing.mps_processes_max.into(),
            time_slice_processes_max: sharing.time_slice_processes_max.into(),
        }
    }
}

impl From<v1::CardSharing> for CardSharing {
    /// What this version does not know, or what is not said, is as in the standard pool: a node must not refuse its tasks for it.
    fn from(wire: v1::CardSharing) -> Self {
        let usual = CardSharing::default();
        let count = |wire: u32, usual: u8| u8::try_from(wire).ok().filter(|count| *count > 0).unwrap_or(usual);
        CardSharing {
            time_slice: TimeSlice::of_number(wire.time_slice).unwrap_or(usual.time_slice),
            mps_processes_max: count(wire.mps_processes_max, usual.mps_processes_max),
            time_slice_processes_max: count(wire.time_slice_processes_max, usual.time_slice_processes_max),
        }
    }
}

impl From<&Pool> for v1::Pool {
    fn from(pool: &Pool) -> Self {
        v1::Pool {
            name: pool.name.clone(),
            modes: pool.modes.iter().map(ToString::to_string).collect(),
            workload_classes: pool.classes.iter().map(ToString::to_string).collect(),
            time_slice_replicas: u32::from(pool.time_slice_replicas),
            mps_clients: u32::from(pool.mps_clients),
            compute_tolerance_percent: Some(u32::from(pool.compute_tolerance_percent)),
            mig_layouts: pool.pinned.iter().map(layout_to_wire).collect(),
            cool_down_s: pool.cool_down_s,
            preemptions_max: pool.preemptions_max,
            checkpoint_mib_per_s: pool.checkpoint_mib_per_s,
            moves_per_hour: pool.moves_per_hour,
            moves_lost_gpu_hours_per_day: pool.moves_lost_gpu_hours_per_day,
            images: pool.images.clone(),
            mounts: pool.mounts.iter().map(Into::into).collect(),
            time_slice: pool.time_slice.to_string(),
            isolation: pool.isolation.to_string(),
            network: pool.network.map(|network| network.to_string()).unwrap_or_default(),
            memory_limit_mib: pool.memory_limit_mib,
            withheld_max_percent: pool.withheld_max_percent.map(u32::from),
            withheld_max_gpus: pool.withheld_max_gpus,
        }
    }
}

fn layout_to_wire((model, pin): (&GpuModel, &PinnedLayout)) -> v1::PinnedLayout {
    v1::PinnedLayout {
        model: model.to_string(),
        slices: pin.slices(*model).into_iter().collect(),
        cards_per_node: pin.cards_per_node().map(u32::from),
    }
}

fn layouts(wire: Vec<v1::PinnedLayout>) -> Result<BTreeMap<GpuModel, PinnedLayout>, FieldError> {
    let mut layouts = BTreeMap::new();
    for (index, layout) in wire.into_iter().enumerate() {
        let model: GpuModel = word(&format!("mig_layouts[{index}].model"), &layout.model)?;
        let field = format!("mig_layouts[{model}]");
        let narrowed = |cards| narrow(&format!("{field}.cards_per_node"), cards, u16::MAX);
        let cards_per_node = layout.cards_per_node.map(narrowed).transpose()?;
        let slices: BTreeMap<String, u32> = layout.slices.into_iter().collect();
        let pin = PinnedLayout::new(model, &slices, cards_per_node)?;
        if layouts.insert(model, pin).is_some() {
            return Err(FieldError::new(field, "has two layouts", "give each model one layout"));
        }
    }
    Ok(layouts)
}

impl TryFrom<v1::Pool> for Pool {
    type Error = FieldError;

    fn try_from(wire: v1::Pool) -> Result<Self, FieldError> {
        Ok(Pool {
            name: wire.name,
            modes: words("modes", &wire.modes)?,
            classes: words("workload_classes", &wire.workload_classes)?,
            time_slice_replicas: narrow("time_slice_replicas", wire.time_slice_replicas, u8::MAX)?,
            mps_clients: narrow("mps_clients", wire.mps_clients, u8::MAX)?,
            compute_tolerance_percent: match wire.compute_tolerance_percent {
                Some(percent) => narrow("compute_tolerance_percent", percent, u8::MAX)?,
                None => Pool::standard_rules().compute_tolerance_percent,
            },
            pinned: layouts(wire.mig_layouts)?,
            cool_down_s: wire.cool_down_s,
            preemptions_max: wire.preemptions_max,
            checkpoint_mib_per_s: wire.checkpoint_mib_per_s,
            moves_per_hour: wire.moves_per_hour,
            moves_lost_gpu_hours_per_day: wire.moves_lost_gpu_hours_per_day,
            images: wire.images,
            mounts: wire.mounts.into_iter().map(Into::into).collect(),
            time_slice: match wire.time_slice.as_str() {
                "" => Pool::standard_rules().time_slice,
                length => word("time_slice", length)?,
            },
            isolation: word_if("isolation", &wire.isolation)?.unwrap_or_default(),
            network: word_if("network", &wire.network)?,
            memory_limit_mib: wire.memory_limit_mib,
            withheld_max_percent: wire
                .withheld_max_percent
                .map(|percent| narrow("withheld_max_percent", percent, u8::MAX))
                .transpose()?,
            withheld_max_gpus: wire.withheld_max_gpus,
        })
    }
}

fn words<T: FromStr<Err = UnknownWord> + Ord>(field: &str, list: &[String]) -> Result<BTreeSet<T>, FieldError> {
    list.iter().enumerate().map(|(index, text)| word(&format!("{field}[{index}]"), text)).collect()
}

impl From<&Cell> for v1::Cell {
    fn from(cell: &Cell) -> Self {
        v1::Cell { id: cell.id.0, name: cell.name.clone(), epoch: cell.epoch.0, holder: cell.holder.clone() }
    }
}

impl From<v1::Cell> for Cell {
    fn from(wire: v1::Cell) -> Self {
        Cell { id: CellId(wire.id), name: wire.name, epoch: Epoch(wire.epoch), holder: wire.holder }
    }
}
