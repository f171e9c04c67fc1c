//! Messages of the API: those that clients, shards and agents send, and what becomes of them in the vocabulary of the model.
//!
//! What must stay true: what passes the bounds as bytes still passes them when it is encoded anew; what converts to the model and back is the same; what was
//! found valid is still valid when it comes back.

use super::headed;
use crate::target::{Target, reached};
use muster_agent::fuzzing::desired;
use muster_model::node::{NodeSpec, Withheld};
use muster_model::node_links::NodeLinks;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::TenantEdit;
use muster_model::{
    Binding, Change, DeviceClass, FieldError, JobSpec, Object, PlannedMove, Pool, PriorityClass, TaskState, WindowSpec,
};
use muster_proto::bounded::check;
use muster_proto::convert::{
    change_from_control_plane, change_to_wire, checkpoint_from_wire, clean_up_from_wire, clean_up_to_wire,
    proofs_from_wire, report_from_wire, report_to_wire,
};
use muster_proto::v1;
use muster_proto::v1::agent_message::Message as FromAgent;
use muster_proto::v1::proposal::Kind as Proposed;
use prost::{Message, Name};

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "request",
        what: "every message that a control node takes: the first line names it, protobuf follows",
        words: &[
            "SubmitRequest\n",
            "AgentMessage\n",
            "ProposeRequest\n",
            "ListJobsRequest\n",
            "\x0a\x00",
            "\x08\x01",
            "\x12\x04",
            "\x7f",
        ],
        reaches: &["SubmitRequest", "ListJobsRequest"],
        run: request,
    },
    Target {
        name: "submit",
        what: "SubmitRequest: jobs as the state machine takes them",
        words: &[
            "\x0a\x02",
            "research/nlp",
            "1g.10gb",
            "leaf",
            "0-99",
            "USR1",
            "afterok",
            "docker://a/b",
            "device.model == \"h100\"",
        ],
        reaches: &["SubmitRequest", "valid job"],
        run: submit,
    },
    Target {
        name: "apply-tenants",
        what: "ApplyTenantsRequest: specifications and edits",
        words: &["\x0a\x02", "research", "gpu.h100", "cpu_milli", "trusted", "card"],
        reaches: &["TenantEdit", "TenantSpec", "valid tenant"],
        run: apply_tenants,
    },
    Target {
        name: "fleet-request",
        what: "pools, classes, windows of the Fleet service: the first line names the message",
        words: &[
            "PutPoolRequest\n",
            "PutDeviceClassRequest\n",
            "PutPriorityClassRequest\n",
            "PutWindowRequest\n",
            "\x0a\x02",
            "exclusive",
            "maintenance",
        ],
        reaches: &["valid pool", "valid device class", "priority class", "valid window"],
        run: fleet_request,
    },
    Target {
        name: "agent-message",
        what: "AgentMessage: nodes, cards, tasks, proofs of isolation",
        words: &["\x0a\x02", "h100", "GPU-1", "1g.10gb", "running"],
        reaches: &["valid node", "Withheld", "report"],
        run: agent_message,
    },
    Target {
        name: "propose",
        what: "ProposeRequest: bindings and moves that a shard proposes",
        words: &["\x1a\x02", "\x0a\x02", "h100"],
        reaches: &["Binding"],
        run: propose,
    },
    Target {
        name: "watch-event",
        what: "WatchEvent: changes of the state as shards read them",
        words: &["\x22\x02", "\x2a\x02", "research", "h100", "exclusive"],
        reaches: &["tenant", "pool", "node", "job", "allocation", "deletion"],
        run: watch_event,
    },
    Target {
        name: "desired",
        what: "Desired: the whole of what a node should run, as its agent reads it",
        words: &["\x12\x02", "\x0a\x02", "train.py", "h100"],
        reaches: &["desired"],
        run: desired_state,
    },
];

/// The messages of one list, by their names.
macro_rules! messages {
    ($($message:ident)+) => {
        /// Every message that clients, shards and agents send.
        pub const MESSAGES: &[(&str, fn(&[u8]))] = &[$((stringify!($message), take::<v1::$message>)),+];
    };
}

messages! {
    SubmitRequest GetJobRequest ListJobsRequest WatchJobsRequest CancelRequest RequeueRequest UpdateJobRequest HoldRequest CancelArrayTasksRequest
    SetArrayLimitRequest ReleaseJobRequest LogsRequest ExplainRequest ApplyTenantsRequest ListTenantsRequest MoveTenantRequest DeleteTenantRequest
    ExplainTenantRequest TenantHistoryRequest GetUsageRequest GetAllocationUsageRequest ListNodesRequest ListGpusRequest ListCellsRequest ListPoolsRequest
    PutPoolRequest DeletePoolRequest ListDeviceClassesRequest PutDeviceClassRequest DeleteDeviceClassRequest ListPriorityClassesRequest
    PutPriorityClassRequest DeletePriorityClassRequest ListWindowsRequest PutWindowRequest DeleteWindowRequest SetDrainedRequest RemoveNodeRequest
    ClearGpuRequest PlanMovesRequest ListMovesRequest RaftStatusRequest AddLearnerRequest PromoteRequest RemoveRequest BootstrapRequest ResetClockRequest
    CopyStateRequest CopyHistoryRequest IdentifyRequest AgentMessage AcquireRequest RenewRequest ReleaseRequest WatchRequest ProposeRequest WhoAmIRequest
    LogoutRequest ListSessionsRequest CreateTokenRequest ListTokensRequest RevokeRequest GrantRequest ListGrantsRequest RevokeGrantRequest SecureRequest
    LoginRequest LoginSettingsRequest AuditQueryRequest DenialsRequest EnrollRequest RenewMachineRequest ConfirmRequest ListMachinesRequest CreateJoinTokenRequest
    ListJoinTokensRequest RevokeJoinTokenRequest PinRequest SuspendRequest ResumeRequest RemoveMachineRequest SetEnrolmentRequest PutSecretRequest
    DeleteSecretRequest ListSecretsRequest
}

fn take<M: Message + Name + Default>(bytes: &[u8]) {
    let _ = received::<M>(bytes);
}

/// A message as a control node receives it.
fn received<M: Message + Name + Default>(bytes: &[u8]) -> Option<M> {
    check(M::NAME, bytes).ok()?;
    let message = M::decode(bytes).ok()?;
    reached(M::NAME);
    let sent = message.encode_to_vec();
    check(M::NAME, &sent)
        .unwrap_or_else(|error| panic!("{} passed its bounds, and not when it was encoded anew: {error}", M::NAME));
    let again =
        M::decode(sent.as_slice()).unwrap_or_else(|error| panic!("{} was encoded and is refused: {error}", M::NAME));
    assert_eq!(again.encode_to_vec(), sent, "{}", M::NAME);
    Some(message)
}

/// What a message is in the model; it has to become a message that is the same.
macro_rules! converted {
    ($model:ty, $wire:ty, $message:expr) => {{
        let read: Result<$model, FieldError> = <$model>::try_from($message);
        if let Ok(value) = &read {
            reached(stringify!($model));
            let again: Result<$model, FieldError> = <$model>::try_from(<$wire>::from(value));
            assert_eq!(again.as_ref(), Ok(value));
        }
        read.ok()
    }};
}

fn request(bytes: &[u8]) {
    let Some((name, content)) = headed(bytes) else { return };
    if let Some((_, take)) = MESSAGES.iter().find(|(known, _)| *known == name) {
        take(content);
    }
}

fn submit(bytes: &[u8]) {
    let Some(request) = received::<v1::SubmitRequest>(bytes) else { return };
    request.jobs.into_iter().for_each(job);
}

/// A job on its way to the state machine, to the shard, and back.
pub(super) fn job(message: v1::JobSpec) {
    let Some(spec) = converted!(JobSpec, v1::JobSpec, message) else { return };
    let Ok(valid) = spec.validate() else { return };
    reached("valid job");
    let again =
        JobSpec::try_from(v1::JobSpec::from(&*valid)).and_then(|spec| spec.validate().map_err(|mut all| all.remove(0)));
    assert_eq!(again.as_deref(), Ok(&*valid), "a valid job is valid when it comes back");
}

pub(super) fn tenant_edit(message: v1::TenantEdit) {
    if let Some(edit) = converted!(TenantEdit, v1::TenantEdit, message) {
        // The state machine judges what comes of it.
        if edit.on(None).validate().is_ok() {
            reached("valid edit");
        }
    }
}

pub(super) fn pool(message: v1::Pool) {
    if let Some(pool) = converted!(Pool, v1::Pool, message)
        && pool.validate().is_ok()
    {
        reached("valid pool");
    }
}

pub(super) fn device_class(message: v1::DeviceClass) {
    if let Some(class) = converted!(DeviceClass, v1::DeviceClass, message)
        && class.validate().is_ok()
    {
        reached("valid device class");
    }
}

pub(super) fn priority_class(message: v1::PriorityClass) {
    let class = PriorityClass::from(message);
    reached("priority class");
    assert_eq!(PriorityClass::from(v1::PriorityClass::from(&class)), class);
}

pub(super) fn window(message: v1::WindowSpec) {
    if let Ok(window) = WindowSpec::try_from(message)
        && window.validate().is_ok()
    {
        reached("valid window");
    }
}

fn apply_tenants(bytes: &[u8]) {
    let Some(request) = received::<v1::ApplyTenantsRequest>(bytes) else { return };
    request.edits.into_iter().for_each(tenant_edit);
    for tenant in request.tenants {
        if let Some(spec) = converted!(TenantSpec, v1::TenantSpec, tenant)
            && spec.validate().is_ok()
        {
            reached("valid tenant");
        }
    }
}

fn fleet_request(bytes: &[u8]) {
    let Some((name, content)) = headed(bytes) else { return };
    match name {
        "PutPoolRequest" => {
            received::<v1::PutPoolRequest>(content).and_then(|request| request.pool).into_iter().for_each(pool)
        }
        "PutDeviceClassRequest" => {
            received::<v1::PutDeviceClassRequest>(content)
                .and_then(|request| request.class)
                .into_iter()
                .for_each(device_class);
        }
        "PutPriorityClassRequest" => {
            received::<v1::PutPriorityClassRequest>(content)
                .and_then(|request| request.class)
                .into_iter()
                .for_each(priority_class);
        }
        "PutWindowRequest" => {
            received::<v1::PutWindowRequest>(content).and_then(|request| request.window).into_iter().for_each(window)
        }
        _ => {}
    }
}

fn agent_message(bytes: &[u8]) {
    let Some(message) = received::<v1::AgentMessage>(bytes).and_then(|message| message.message) else { return };
    match message {
        FromAgent::Hello(hello) => {
            if let Some(spec) = hello.spec.and_then(|spec| converted!(NodeSpec, v1::NodeSpec, spec))
                && spec.validate().is_ok()
            {
                reached("valid node");
            }
        }
        FromAgent::Cards(report) => {
            report.withheld.into_iter().for_each(|card| drop(converted!(Withheld, v1::WithheldCard, card)))
        }
        FromAgent::Links(links) => {
            if let Some(links) = converted!(NodeLinks, v1::NodeLinks, links) {
                let _ = links.validate();
            }
        }
        FromAgent::Proofs(report) => {
            let proofs = proofs_from_wire(report.proofs);
            reached("proofs");
            assert_eq!(proofs_from_wire(proofs.iter().map(Into::into).collect()), proofs);
        }
        FromAgent::Reports(reports) => reports.reports.into_iter().for_each(report),
        FromAgent::Heartbeat(_) | FromAgent::Usage(_) | FromAgent::Log(_) => {}
    }
}

fn report(message: v1::TaskReport) {
    let (clean_up, checkpoint) = (clean_up_from_wire(&message), checkpoint_from_wire(&message));
    let Ok((allocation, rank, state, ended_ms)) = report_from_wire(message) else { return };
    reached("report");
    let again = TaskState::try_from(v1::TaskState::from(&state));
    assert_eq!(again.as_ref(), Ok(&state));
    let mut sent = report_to_wire(allocation, rank, &state, ended_ms);
    clean_up_to_wire(&clean_up, &mut sent);
    assert_eq!(clean_up_from_wire(&sent), clean_up);
    sent.checkpoint_ms = checkpoint.as_ref().map(|made| made.at_ms);
    sent.checkpoint_note = checkpoint.as_ref().map(|made| made.note.clone()).unwrap_or_default();
    assert_eq!(checkpoint_from_wire(&sent), checkpoint);
    assert_eq!(report_from_wire(sent), Ok((allocation, rank, state, ended_ms)));
}

fn propose(bytes: &[u8]) {
    let Some(request) = received::<v1::ProposeRequest>(bytes) else { return };
    let bind = |message: v1::Bind| drop(converted!(Binding, v1::Bind, message));
    for kind in request.proposals.into_iter().filter_map(|proposal| proposal.kind) {
        match kind {
            Proposed::Bind(message) | Proposed::Grow(message) => bind(message),
            Proposed::Preempt(v1::Preempt { bind: message, .. })
            | Proposed::Shrink(v1::Shrink { bind: message, .. }) => {
                message.into_iter().for_each(bind);
            }
            Proposed::Move(planned) => {
                planned.bind.into_iter().for_each(bind);
                planned.moves.into_iter().for_each(|message| drop(converted!(PlannedMove, v1::PlannedMove, message)));
            }
            Proposed::HandOver(_) | Proposed::Reserve(_) | Proposed::RecordBypass(_) => {}
        }
    }
}

fn watch_event(bytes: &[u8]) {
    let Ok(event) = v1::WatchEvent::decode(bytes) else { return };
    for message in event.changes {
        let Ok(change) = change_from_control_plane(message) else { continue };
        reached(match &change {
            Change::Put(object) => match **object {
                Object::Tenant(_) => "tenant",
                Object::Pool(_) => "pool",
                Object::Node(_) => "node",
                Object::Job(_) => "job",
                Object::Allocation(_) => "allocation",
                _ => "another object",
            },
            _ => "deletion",
        });
        let Some(sent) = change_to_wire(&change) else { panic!("{change:?} was read and is told to nobody") };
        let again: Result<Change, FieldError> = change_from_control_plane(sent);
        assert_eq!(again.as_ref(), Ok(&change));
    }
}

fn desired_state(bytes: &[u8]) {
    let Ok(message) = v1::Desired::decode(bytes) else { return };
    let tasks = message.tasks.len();
    if let Ok(desired) = desired(message) {
        reached("desired");
        assert!(desired.tasks.len() <= tasks);
    }
}
