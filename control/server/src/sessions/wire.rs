//! What agents are sent, in the words of the wire. Only what the shared conversions do not cover.

use fnv::FnvHasher;
use muster_control_core::{DesiredTask, State};
use muster_model::node::{Repair, Withheld};
use muster_model::ports::PORTS_PER_BLOCK;
use muster_model::usage::{UsageInterval, UseKind};
use muster_model::{FieldError, NetworkPolicy, Node, Ports};
use muster_proto::v1;
use prost::Message;
use std::collections::BTreeMap;
use std::hash::Hasher as _;

/// One task of a node's desired state.
pub(crate) fn desired_task(task: DesiredTask) -> v1::DesiredTask {
    v1::DesiredTask {
        allocation: task.allocation.0,
        rank: task.rank.0,
        job: task.job.0,
        attempt: task.attempt.0,
        stop: task.stop.is_some(),
        stop_signal: task.stop.map(|stop| stop.signal.number() as u32).unwrap_or_default(),
        stop_grace_s: task.stop.map(|stop| stop.grace_s),
        devices: task.devices.iter().map(Into::into).collect(),
        command: task.command,
        env: task.env,
        workdir: task.workdir.unwrap_or_default(),
        world_size: task.world_size,
        local_rank: task.local_rank,
        local_world_size: task.local_world_size,
        master_addr: task.master_addr,
        master_port: u32::from(task.master_port),
        restart_count: task.restart_count,
        cpu_milli: task.cpu_milli,
        memory_mib: task.memory_mib,
        time_limit_s: task.time_limit_s,
        grace_s: task.grace_s,
        disconnect_grace_s: task.disconnect_grace_s,
        tenant: task.tenant,
        gpu_units: task.gpu_units.0,
        tenant_id: task.tenant_id.0,
        job_name: task.job_name,
        node_rank: task.node_rank,
        checkpoint_note: task.checkpoint_note,
        limit_signal: task.limit_signal.map(|said| said.signal.number() as u32).unwrap_or_default(),
        limit_signal_s: task.limit_signal.map(|said| said.before_s).unwrap_or_default(),
        image: task.image.map(Into::into),
        mounts: task.mounts.iter().map(Into::into).collect(),
        compute_instances: task.compute_instances.into(),
        run_as: task.run_as.unwrap_or_default(),
        private_network: task.network == NetworkPolicy::Private,
        ports: ports(task.ports),
        memory_limit_mib: task.memory_limit_mib,
        imex_channel: task.imex_channel.map(u32::from),
        // Opened beside the state: see [`crate::secrets`].
        secrets: BTreeMap::new(),
        secrets_missing: String::new(),
        world: task.world.map(|world| v1::World {
            generation: world.generation,
            workers: world.workers,
            rank: world.rank,
            local_rank: world.local_rank,
            local_workers: world.local_workers,
            node_rank: world.node_rank,
            workers_min: world.workers_min,
            workers_max: world.workers_max,
            signal: world.signal.map(|signal| signal.number() as u32).unwrap_or_default(),
        }),
    }
}

fn ports(ports: Ports) -> Option<v1::TaskPorts> {
    match ports {
        Ports::Unassigned => None,
        Ports::NoneFree => Some(v1::TaskPorts { first: 0, count: 0 }),
        Ports::Block(block) => Some(v1::TaskPorts { first: block.first().into(), count: PORTS_PER_BLOCK.into() }),
    }
}

/// The feature level from which on the log tells verdicts from what is certain.
const VERDICTS_LEVEL: u32 = 5;

/// The feature level from which on the log says what is to be done about what is withheld.
const REPAIRS_LEVEL: u32 = 7;

/// What an agent withholds, as the log of a cluster of this level takes it: below [`VERDICTS_LEVEL`] all of it counts as certain, and below
/// [`REPAIRS_LEVEL`] nothing is to be done about it.
///
/// # Errors
/// What is wrong, with its place in the report.
pub(crate) fn withheld(report: v1::CardReport, level: u32) -> Result<Vec<Withheld>, FieldError> {
    let read = |(index, card)| {
        let read = Withheld::try_from(card).map_err(|error: FieldError| error.under(&format!("withheld[{index}]")))?;
        let repair = if level >= REPAIRS_LEVEL { read.repair } else { Repair::default() };
        Ok(Withheld { by_verdict: read.by_verdict && level >= VERDICTS_LEVEL, repair, ..read })
    };
    report.withheld.into_iter().enumerate().map(read).collect()
}

/// The feature level from which on the log tells what tasks used from what was held on or cleaned up after them.
const USE_KINDS_LEVEL: u32 = 7;

/// What an agent has metered, as the log of a cluster of this level takes it: below [`USE_KINDS_LEVEL`] only what tasks used is counted. The other
/// intervals keep their numbers and count nothing.
pub(crate) fn intervals(report: v1::UsageReport, level: u32) -> Vec<UsageInterval> {
    let read = |interval: v1::UsageInterval| {
        let read = UsageInterval::from(interval);
        if level >= USE_KINDS_LEVEL || read.kind == UseKind::Run {
            return read;
        }
        UsageInterval { gpu_unit_ms: 0, kind: UseKind::Run, ..read }
    };
    report.intervals.into_iter().map(read).collect()
}

/// What the agent of a node is told beside its tasks: how its cards are used.
pub(crate) fn of_node(state: &State, node: &Node) -> v1::Desired {
    let pinned = state.pinned_instances(node.id).into_iter();
    v1::Desired {
        cleared_gpus: node.notes.cleared_gpus.iter().map(Into::into).collect(),
        sharing: Some((&state.card_sharing(node.id)).into()),
        spared: node.notes.verdicts.spared.iter().map(Into::into).collect(),
        pinned: pinned.map(|(gpu, slots)| (u32::from(gpu), slots.as_slice().into())).collect(),
        held_on: state.held_on(node.id).map(|(id, rank)| v1::HeldOn { allocation: id.0, rank: rank.0 }).collect(),
        drained: node.drained,
        ..v1::Desired::default()
    }
}

/// FNV-1a of all that is encoded but the stamp: two desired states that differ have different ones, but for one chance in 2^64.
pub(crate) fn fingerprint(desired: &v1::Desired) -> u64 {
    let v1::Desired { stamp: _, tasks, cleared_gpus, sharing, spared, pinned, held_on, drained } = desired;
    let mut hash = FnvHasher::default();
    hash.write_u8((*drained).into());
    hash_each(sharing.as_slice(), &mut hash);
    hash_each(tasks, &mut hash);
    hash_each(cleared_gpus, &mut hash);
    hash_each(spared, &mut hash);
    hash_each(held_on, &mut hash);
    for (gpu, slots) in pinned {
        hash.write_u32(*gpu);
        hash_each(std::slice::from_ref(slots), &mut hash);
    }
    hash.finish()
}

fn hash_each<M: Message>(messages: &[M], hash: &mut FnvHasher) {
    let mut bytes = Vec::new();
    for message in messages {
        bytes.clear();
        message.encode_length_delimited(&mut bytes).expect("a vector grows");
        hash.write(&bytes);
    }
    // So that what moves from one list to the next is another state.
    hash.write_u8(0xFF);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_on_is_not_counted_below_its_level() {
        let interval = |seq, kind: v1::UseKind| v1::UsageInterval {
            seq,
            gpu_unit_ms: 7,
            held_unit_ms: 7,
            kind: kind.into(),
            ..v1::UsageInterval::default()
        };
        let sent = vec![interval(1, v1::UseKind::Run), interval(2, v1::UseKind::Idle), interval(3, v1::UseKind::Clean)];
        let of = |level| {
            let read = intervals(v1::UsageReport { incarnation: 1, intervals: sent.clone() }, level);
            read.iter().map(|one| (one.seq, one.gpu_unit_ms, one.kind)).collect::<Vec<_>>()
        };
        assert_eq!(of(6), [(1, 7, UseKind::Run), (2, 0, UseKind::Run), (3, 0, UseKind::Run)]);
        assert_eq!(of(7), [(1, 7, UseKind::Run), (2, 7, UseKind::Idle), (3, 7, UseKind::Clean)]);
    }

    #[test]
    fn below_their_level_verdicts_count_as_certain() {
        let card = v1::WithheldCard {
            gpu: 3,
            slice: None,
            reason: "Xid 63".to_owned(),
            by_verdict: true,
            repair: v1::Repair::Reset.into(),
        };
        let of = |level| withheld(v1::CardReport { withheld: vec![card.clone()] }, level).expect("a report");
        assert!(!of(4)[0].by_verdict && of(5)[0].by_verdict);
        assert_eq!((of(6)[0].repair, of(7)[0].repair), (Repair::Wait, Repair::Reset));
        let wrong = v1::CardReport { withheld: vec![card.clone(), v1::WithheldCard { gpu: 70_000, ..card }] };
        assert!(withheld(wrong, 5).expect_err("no such GPU").to_string().contains("withheld[1]"));
    }
}
