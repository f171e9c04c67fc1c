//! Between the wire and the node core; only what the shared conversions do not cover.

use muster_model::ids::{AllocationId, Attempt, Epoch, JobId, Rank, Revision, TenantId};
use muster_model::mig::MigPlacement;
use muster_model::ports::PORTS_PER_BLOCK;
use muster_model::task::DeviceHold;
use muster_model::validate::bounds::REASON_BYTES_MAX;
use muster_model::validate::clipped;
use muster_model::{FieldError, LimitSignal, PortBlock, Ports, Proof, Stop, StopSignal, World};
use muster_node_core::{Desired, DesiredTask, Report, Secrets, Stamp, TaskKey, TaskSpec};
use muster_proto::convert::{clean_up_to_wire, report_to_wire};
use muster_proto::v1;
use muster_proto::v1::agent_message::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A message to the control plane.
pub(crate) fn message(message: Message) -> v1::AgentMessage {
    v1::AgentMessage { message: Some(message) }
}

/// Task states under a number. `wall_ms` tells by the wall clock when something was on CLOCK_BOOTTIME.
pub(crate) fn reports(seq: u64, batch: &[Report], wall_ms: impl Fn(u64) -> u64) -> v1::AgentMessage {
    let report = |Report { key, state, clean_up, ended_ns, checkpoint }: &Report| {
        let mut report = report_to_wire(key.allocation, key.rank, state, ended_ns.map(&wall_ms));
        report.checkpoint_ms = checkpoint.as_ref().map(|made| made.at_ms);
        clean_up_to_wire(clean_up, &mut report);
        report.checkpoint_note = checkpoint.as_ref().map(|made| made.note.clone()).unwrap_or_default();
        // A longer reason would be refused, and with it the session.
        if let Some(state) = &mut report.state {
            state.reason = clipped(std::mem::take(&mut state.reason), REASON_BYTES_MAX);
        }
        report
    };
    message(Message::Reports(v1::TaskReports { seq, reports: batch.iter().map(report).collect() }))
}

/// What came of trying to get past the isolation of tasks.
pub(crate) fn proofs(proofs: &[Proof]) -> v1::AgentMessage {
    message(Message::Proofs(v1::Proofs { proofs: proofs.iter().map(Into::into).collect() }))
}

pub(crate) fn stamp_to_wire(stamp: Stamp) -> v1::Stamp {
    v1::Stamp { incarnation: stamp.incarnation, revision: stamp.revision.0, node_epoch: stamp.node_epoch.0 }
}

/// The whole of what the node should run.
pub(crate) fn desired(wire: v1::Desired) -> Result<Desired, FieldError> {
    let stamp = wire.stamp.ok_or_else(|| FieldError::new("stamp", "is missing", "send it"))?;
    let stamp = Stamp {
        incarnation: stamp.incarnation,
        revision: Revision(stamp.revision),
        node_epoch: Epoch(stamp.node_epoch),
    };
    let mut tasks = BTreeMap::new();
    for (index, task) in wire.tasks.into_iter().enumerate() {
        let task = desired_task(task).map_err(|error| error.under(&format!("tasks[{index}]")))?;
        tasks.insert(task.spec.key, task);
    }
    let sharing = wire.sharing.map(Into::into).unwrap_or_default();
    let slots = |(gpu, slots): (u32, v1::PinnedSlots)| {
        let field = format!("pinned[{gpu}]");
        let index = u16::try_from(gpu).map_err(|_| FieldError::new(field.as_str(), "is too large", "name a GPU"))?;
        Ok((index, Vec::<MigPlacement>::try_from(slots).map_err(|error| error.under(&field))?))
    };
    let pinned = wire.pinned.into_iter().map(slots).collect::<Result<_, FieldError>>()?;
    let held_on = wire.held_on.into_iter();
    let held_on = held_on.map(|one| TaskKey { allocation: AllocationId(one.allocation), rank: Rank(one.rank) });
    Ok(Desired { stamp, tasks, sharing, pinned, held_on: held_on.collect(), drained: wire.drained })
}

/// The signal of this number, if there is one that this version knows.
fn signal_of(number: u32) -> Option<StopSignal> {
    StopSignal::of_number(i32::try_from(number).ok()?)
}

fn world(wire: v1::World) -> World {
    World {
        generation: wire.generation,
        workers: wire.workers,
        rank: wire.rank,
        local_rank: wire.local_rank,
        local_workers: wire.local_workers,
        node_rank: wire.node_rank,
        workers_min: wire.workers_min,
        workers_max: wire.workers_max,
        signal: signal_of(wire.signal),
    }
}

fn ports(wire: Option<v1::TaskPorts>) -> Result<Ports, FieldError> {
    let Some(v1::TaskPorts { first, count }) = wire else { return Ok(Ports::Unassigned) };
    if count == 0 {
        return Ok(Ports::NoneFree);
    }
    let block = u16::try_from(first).ok().and_then(PortBlock::beginning_with);
    block
        .filter(|_| count == u32::from(PORTS_PER_BLOCK))
        .map(Ports::Block)
        .ok_or_else(|| FieldError::new("ports", format!("is {count} ports from {first} on"), "send a block of ports"))
}

fn channel(wire: u32) -> Result<u16, FieldError> {
    let bad = |_| FieldError::new("imex_channel", format!("is {wire}"), "use the number of a channel");
    u16::try_from(wire).map_err(bad)
}

fn desired_task(wire: v1::DesiredTask) -> Result<DesiredTask, FieldError> {
    let master_port = u16::try_from(wire.master_port)
        .map_err(|_| FieldError::new("master_port", format!("is {}", wire.master_port), "use a port"))?;
    let devices: Vec<DeviceHold> = wire.devices.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
    let spec = TaskSpec {
        key: TaskKey { allocation: AllocationId(wire.allocation), rank: Rank(wire.rank) },
        job: JobId(wire.job),
        attempt: Attempt(wire.attempt),
        job_name: wire.job_name,
        tenant: wire.tenant,
        tenant_id: TenantId(wire.tenant_id),
        devices,
        command: wire.command,
        env: wire.env,
        workdir: (!wire.workdir.is_empty()).then_some(wire.workdir),
        world_size: wire.world_size,
        local_rank: wire.local_rank,
        local_world_size: wire.local_world_size,
        node_rank: wire.node_rank,
        checkpoint_note: wire.checkpoint_note,
        limit_signal: signal_of(wire.limit_signal).map(|signal| LimitSignal { signal, before_s: wire.limit_signal_s }),
        master_addr: wire.master_addr,
        master_port,
        restart_count: wire.restart_count,
        cpu_milli: wire.cpu_milli,
        memory_mib: wire.memory_mib,
        time_limit_s: wire.time_limit_s,
        grace_s: wire.grace_s,
        disconnect_grace_s: wire.disconnect_grace_s,
        gpu_units: wire.gpu_units,
        world: wire.world.map(world),
        image: wire.image.map(Into::into),
        mounts: wire.mounts.into_iter().map(Into::into).collect(),
        compute_instances: u8::try_from(wire.compute_instances).map_err(|_| {
            FieldError::new("compute_instances", format!("is {}", wire.compute_instances), "use at most 7")
        })?,
        run_as: (wire.run_as > 0).then_some(wire.run_as),
        private_network: wire.private_network,
        ports: ports(wire.ports)?,
        memory_limit_mib: wire.memory_limit_mib,
        imex_channel: wire.imex_channel.map(channel).transpose()?,
        secrets: Secrets {
            values: wire.secrets,
            missing: (!wire.secrets_missing.is_empty()).then_some(wire.secrets_missing),
        },
    };
    let signal = signal_of(wire.stop_signal).unwrap_or_default();
    let stop = wire.stop.then(|| Stop { signal, grace_s: wire.stop_grace_s.unwrap_or(spec.grace_s) });
    Ok(DesiredTask { spec: Arc::new(spec), stop })
}
