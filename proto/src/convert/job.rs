//! Jobs: what is submitted, and where it stands.

use super::asked::{asked_from_wire, asked_to_wire};
use super::growth::{elastic_from_wire, elastic_to_wire, growth_from_wire, growth_to_wire};
use super::start::{conditions_from_wire, conditions_to_wire, unmet_from_wire, unmet_to_wire};
use super::{each, need, text_if, word, word_if};
use crate::v1;
use muster_model::driver::NotAVersion;
use muster_model::job::{DISCONNECT_GRACE_S_DEFAULT, GRACE_S_DEFAULT};
use muster_model::movable::{Movable, RESTART_S_DEFAULT};
use muster_model::{
    AllocationId, Attempt, CellId, Claim, DriverVersion, FieldError, Job, JobId, JobPhase, JobSpec, LimitSignal,
    NodeId, NumaPolicy, Outcome, Preemption, Preemptor, Reservation, StopSignal, TenantId, ValidJobSpec, WorkloadClass,
};

impl From<&JobSpec> for v1::JobSpec {
    fn from(spec: &JobSpec) -> Self {
        let mut wire = v1::JobSpec {
            tenant: spec.tenant.clone(),
            name: spec.name.clone(),
            tasks: spec.tasks,
            request: Some((&spec.request).into()),
            topology: Some((&spec.topology).into()),
            workload_class: spec.class.to_string(),
            pool: spec.pool.clone().unwrap_or_default(),
            priority: spec.priority,
            command: spec.command.clone(),
            env: spec.env.clone(),
            workdir: spec.workdir.clone().unwrap_or_default(),
            time_limit_s: spec.time_limit_s,
            grace_s: Some(spec.grace_s),
            disconnect_grace_s: Some(spec.disconnect_grace_s),
            max_retries: spec.max_retries,
            numa: spec.numa.to_string(),
            driver_min: spec.driver_min.map(|min| min.to_string()).unwrap_or_default(),
            movable: spec.movable.map(|movable| v1::Movable {
                checkpoint_every_s: movable.checkpoint_every_s,
                restart_s: Some(movable.restart_s),
            }),
            user: spec.user.clone(),
            preemption: preemption_to_wire(&spec.preemption),
            limit_signal: spec
                .limit_signal
                .map(|said| v1::LimitSignal { signal: said.signal.to_string(), before_s: said.before_s }),
            start: conditions_to_wire(&spec.start),
            array: spec.array.as_ref().map(Into::into),
            priority_class: spec.priority_class.clone().unwrap_or_default(),
            reservation: spec.reservation.clone().unwrap_or_default(),
            elastic: spec.elastic.map(elastic_to_wire),
            image: spec.image.clone().unwrap_or_default(),
            mounts: spec.mounts.iter().map(Into::into).collect(),
            compute_instances: spec.compute_instances.into(),
            comment: spec.comment.clone(),
            secret_env: spec.secret_env.clone(),
            ..v1::JobSpec::default()
        };
        asked_to_wire(&spec.asked, &spec.request.devices, &mut wire);
        wire
    }
}

impl TryFrom<v1::JobSpec> for JobSpec {
    type Error = FieldError;

    fn try_from(mut wire: v1::JobSpec) -> Result<Self, FieldError> {
        let asked = asked_from_wire(&mut wire)?;
        let name = if wire.name.is_empty() { name_of(&wire.command) } else { wire.name };
        Ok(JobSpec {
            tenant: wire.tenant,
            name,
            tasks: wire.tasks,
            request: need(wire.request, "request")?.try_into().map_err(|e: FieldError| e.under("request"))?,
            topology: wire.topology.unwrap_or_default().try_into().map_err(|e: FieldError| e.under("topology"))?,
            class: word_if::<WorkloadClass>("workload_class", &wire.workload_class)?.unwrap_or_default(),
            pool: text_if(wire.pool),
            priority: wire.priority,
            command: wire.command,
            env: wire.env,
            workdir: text_if(wire.workdir),
            time_limit_s: wire.time_limit_s,
            grace_s: wire.grace_s.unwrap_or(GRACE_S_DEFAULT),
            disconnect_grace_s: wire.disconnect_grace_s.unwrap_or(DISCONNECT_GRACE_S_DEFAULT),
            max_retries: wire.max_retries,
            numa: word_if::<NumaPolicy>("numa", &wire.numa)?.unwrap_or_default(),
            driver_min: driver_min(&wire.driver_min)?,
            movable: wire.movable.map(|movable| Movable {
                checkpoint_every_s: movable.checkpoint_every_s,
                restart_s: movable.restart_s.unwrap_or(RESTART_S_DEFAULT),
            }),
            asked,
            user: wire.user,
            comment: wire.comment,
            secret_env: wire.secret_env,
            preemption: preemption_from_wire(wire.preemption)?,
            limit_signal: wire.limit_signal.map(limit_signal_from_wire).transpose()?,
            start: conditions_from_wire(wire.start).map_err(|error| error.under("start"))?,
            array: wire.array.map(TryInto::try_into).transpose().map_err(|e: FieldError| e.under("array"))?,
            priority_class: text_if(wire.priority_class),
            reservation: text_if(wire.reservation),
            elastic: wire.elastic.map(elastic_from_wire).transpose()?,
            image: text_if(wire.image),
            mounts: wire.mounts.into_iter().map(Into::into).collect(),
            compute_instances: u8::try_from(wire.compute_instances).map_err(|_| {
                let problem = format!("is {}", wire.compute_instances);
                FieldError::new(
                    "compute_instances",
                    problem,
                    "use a number that divides the compute slices of the MIG profile",
                )
            })?,
        })
    }
}

/// The default is not sent.
fn preemption_to_wire(said: &Preemption) -> Option<v1::Preemption> {
    let Preemption { signal, grace_s, checkpoint_bytes, restart_cost_s } = *said;
    (*said != Preemption::default()).then(|| v1::Preemption {
        signal: signal.to_string(),
        grace_s,
        checkpoint_bytes,
        restart_cost_s,
    })
}

fn limit_signal_from_wire(wire: v1::LimitSignal) -> Result<LimitSignal, FieldError> {
    let signal = word("limit_signal.signal", &wire.signal)?;
    Ok(LimitSignal { signal, before_s: wire.before_s })
}

fn preemption_from_wire(wire: Option<v1::Preemption>) -> Result<Preemption, FieldError> {
    let Some(v1::Preemption { signal, grace_s, checkpoint_bytes, restart_cost_s }) = wire else {
        return Ok(Preemption::default());
    };
    let signal = word_if::<StopSignal>("preemption.signal", &signal)?.unwrap_or_default();
    Ok(Preemption { signal, grace_s, checkpoint_bytes, restart_cost_s })
}

fn driver_min(text: &str) -> Result<Option<DriverVersion>, FieldError> {
    let fix = "write numbers joined by dots, such as 550 or 550.54.15";
    let version =
        |text: &str| text.parse().map_err(|error: NotAVersion| FieldError::new("driver_min", error.to_string(), fix));
    if text.is_empty() { Ok(None) } else { version(text).map(Some) }
}

/// A job without a name is called after its program, as far as that can be a name.
fn name_of(command: &[String]) -> String {
    let program = command.first().map_or("", |program| program.rsplit('/').next().unwrap_or(program));
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = program.chars().filter(plain).take(64).collect();
    if name.is_empty() { "job".to_owned() } else { name }
}

impl From<&JobPhase> for v1::JobPhase {
    fn from(phase: &JobPhase) -> Self {
        match phase {
            JobPhase::Queued => v1::JobPhase::Pending,
            JobPhase::Starting(_) => v1::JobPhase::Starting,
            JobPhase::Running(_) => v1::JobPhase::Running,
            JobPhase::Stopping(_) => v1::JobPhase::Completing,
            JobPhase::Finished(Outcome::Completed) => v1::JobPhase::Completed,
            JobPhase::Finished(Outcome::Failed { .. }) => v1::JobPhase::Failed,
            JobPhase::Finished(Outcome::Cancelled) => v1::JobPhase::Cancelled,
            JobPhase::Finished(Outcome::TimedOut) => v1::JobPhase::Timeout,
            JobPhase::Finished(Outcome::DeadlineMissed) => v1::JobPhase::Deadline,
        }
    }
}

fn phase_from_wire(phase: v1::JobPhase, allocation: Option<u64>, reason: String) -> Result<JobPhase, FieldError> {
    let held = || need(allocation.map(AllocationId), "allocation");
    Ok(match phase {
        v1::JobPhase::Pending => JobPhase::Queued,
        v1::JobPhase::Starting => JobPhase::Starting(held()?),
        v1::JobPhase::Running => JobPhase::Running(held()?),
        v1::JobPhase::Completing => JobPhase::Stopping(held()?),
        v1::JobPhase::Completed => JobPhase::Finished(Outcome::Completed),
        v1::JobPhase::Failed => JobPhase::Finished(Outcome::Failed { reason }),
        v1::JobPhase::Cancelled => JobPhase::Finished(Outcome::Cancelled),
        v1::JobPhase::Timeout => JobPhase::Finished(Outcome::TimedOut),
        v1::JobPhase::Deadline => JobPhase::Finished(Outcome::DeadlineMissed),
        v1::JobPhase::Unspecified => return Err(FieldError::new("phase", "is unspecified", "send a phase")),
    })
}

impl From<&Job> for v1::Job {
    fn from(job: &Job) -> Self {
        let reason = match &job.phase {
            JobPhase::Finished(Outcome::Failed { reason }) => reason.clone(),
            JobPhase::Queued => job.requeue_reason.clone().unwrap_or_default(),
            // Why an earlier attempt ended stands with the attempts.
            _ => String::new(),
        };
        v1::Job {
            id: job.id.0,
            tenant_id: job.tenant.0,
            spec: Some((&*job.spec).into()),
            phase: v1::JobPhase::from(&job.phase).into(),
            reason,
            attempt: job.attempt.0,
            failures: job.failures,
            cancelled: job.cancelled,
            cell: job.cell.map(|cell| cell.0),
            visited_cells: job.visited.iter().map(|cell| cell.0).collect(),
            routed_ms: job.routed_ms,
            submitted_ms: job.submitted_ms,
            bound_ms: job.bound_ms,
            started_ms: job.started_ms,
            finished_ms: job.finished_ms,
            nodes: job.nodes.iter().map(|node| node.0).collect(),
            allocation: job.phase.allocation().map(|id| id.0),
            last_allocation: job.last_allocation.map(|id| id.0),
            requeue_reason: job.requeue_reason.clone().unwrap_or_default(),
            reserved: job.reserved.as_ref().map(Into::into),
            bypassed_cards: job.bypassed_cards,
            attempts: job.attempts.iter().map(Into::into).collect(),
            start_faults: job.start_faults,
            claim: job.claim.as_deref().map(Into::into),
            preemptions: job.preemptions,
            preemptor_attempt: job.preemptor.attempt.map(|attempt| attempt.0),
            preemptor_failures: job.preemptor.failures,
            checkpoint_ms: job.checkpoint_ms,
            checkpoint_note: job.checkpoint_note.clone(),
            requeue_asked: job.requeue_asked,
            unmet: unmet_to_wire(&job.unmet),
            array: job.array.as_deref().map(Into::into),
            array_task: job.array_task.map(Into::into),
            moving: job.moving.map(|id| id.0),
            growth: growth_to_wire(&job.growth),
        }
    }
}

/// A job as lists and watches show it: without the records of its attempts, of which a list of jobs would become too large.
#[must_use]
pub fn job_in_brief(job: &Job) -> v1::Job {
    v1::Job { attempts: Vec::new(), ..job.into() }
}

/// A job as the control plane told of it, which has accepted its specification: it is not checked again.
///
/// # Errors
/// A message that is no job.
pub fn job_from_control_plane(wire: v1::Job) -> Result<Job, FieldError> {
    let phase = wire.phase();
    let spec = JobSpec::try_from(need(wire.spec, "spec")?).map_err(|e| e.under("spec"))?;
    Ok(Job {
        id: JobId(wire.id),
        tenant: TenantId(wire.tenant_id),
        spec: ValidJobSpec::from_control_plane(spec),
        phase: phase_from_wire(phase, wire.allocation, wire.reason)?,
        attempt: Attempt(wire.attempt),
        failures: wire.failures,
        cancelled: wire.cancelled,
        cell: wire.cell.map(CellId),
        visited: wire.visited_cells.into_iter().map(CellId).collect(),
        routed_ms: wire.routed_ms,
        submitted_ms: wire.submitted_ms,
        bound_ms: wire.bound_ms,
        started_ms: wire.started_ms,
        finished_ms: wire.finished_ms,
        nodes: wire.nodes.into_iter().map(NodeId).collect(),
        last_allocation: wire.last_allocation.map(AllocationId),
        requeue_reason: text_if(wire.requeue_reason),
        reserved: wire.reserved.map(Into::into),
        bypassed_cards: wire.bypassed_cards,
        attempts: each("attempts", wire.attempts)?,
        start_faults: wire.start_faults,
        claim: wire.claim.map(|claim| Claim::try_from(claim).map(Box::new)).transpose()?,
        preemptions: wire.preemptions,
        preemptor: Preemptor { attempt: wire.preemptor_attempt.map(Attempt), failures: wire.preemptor_failures },
        checkpoint_ms: wire.checkpoint_ms,
        checkpoint_note: wire.checkpoint_note,
        requeue_asked: wire.requeue_asked,
        unmet: unmet_from_wire(wire.unmet).map_err(|error| error.under("unmet"))?,
        array: wire
            .array
            .map(|array| array.try_into().map(Box::new))
            .transpose()
            .map_err(|e: FieldError| e.under("array"))?,
        array_task: wire.array_task.map(Into::into),
        moving: wire.moving.map(AllocationId),
        growth: growth_from_wire(wire.growth),
    })
}

impl From<&Reservation> for v1::Reservation {
    fn from(reserved: &Reservation) -> Self {
        v1::Reservation { start_ms: reserved.start_ms, nodes: reserved.nodes.iter().map(|node| node.0).collect() }
    }
}

impl From<v1::Reservation> for Reservation {
    fn from(wire: v1::Reservation) -> Self {
        Reservation { start_ms: wire.start_ms, nodes: wire.nodes.into_iter().map(NodeId).collect() }
    }
}
