//! What can be asked of the state.
//!
//! A command carries all that its decision needs beside the state: chosen names, hashes, times of issue. The log has them, so variants are added at the end only.

use crate::leased_binding::LeasedBinding;
use crate::restoration::Restoration;
use crate::task_report::TaskReport;
use muster_model::identity::{CredentialKind, Enrolled, Enrolment, MachineRole, Sealed, SessionCount, Subject};
use muster_model::ids::{AllocationId, CellId, Epoch, JobId, NodeId, TenantId};
use muster_model::node::{NodeSpec, Pool, Withheld};
use muster_model::node_links::NodeLinks;
use muster_model::object::FinishedJob;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::TenantEdit;
use muster_model::usage::UsageInterval;
use muster_model::{
    AccessMode, Author, DeviceClass, EndedJob, Holder, IndexSet, JobUpdate, PlannedMove, Principal, PriorityClass,
    Proof, Reservation, Role, ValidJobSpec, WindowSpec,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One thing to decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Accepts jobs, all or none. The same request id with the same content answers what it answered before.
    Submit {
        /// The client's id for this call, at most 128 bytes.
        request_id: String,
        /// When the client issued it (ms since the epoch): ids older than a day are refused.
        issued_ms: u64,
        /// Hash of the specifications.
        payload_hash: u64,
        /// The jobs.
        #[serde(deserialize_with = "muster_model::job::trusted::specs")]
        specs: Vec<ValidJobSpec>,
        /// How the finished jobs ended on which they depend: only the disk knows.
        #[serde(default)]
        ended: Vec<EndedJob>,
    },
    /// Ends a job: a waiting one at once, a running one gracefully. Cancelling an ended job is refused as not found.
    Cancel {
        /// Which.
        job: JobId,
    },
    /// Adds tenants and changes those that exist, all or none; parents first or together with their children.
    ApplyTenants {
        /// Their whole new description.
        tenants: Vec<TenantSpec>,
    },
    /// Removes a tenant that has no children, no live job and nothing in use.
    DeleteTenant {
        /// Its path.
        path: String,
    },
    /// Adds or changes a pool.
    PutPool(Pool),
    /// Removes a pool that no node belongs to.
    DeletePool {
        /// Its name.
        name: String,
    },
    /// An agent says what its host has: a new node, or one that comes back. The name is the identity; another agent of that name is
    /// turned away while the first may still run something.
    JoinNode {
        /// What it has.
        spec: NodeSpec,
        /// The usage stream it still has a record of.
        usage_incarnation: Option<u64>,
        /// The agent's own id, made with its data folder; 0: it has none.
        #[serde(default)]
        agent: u64,
    },
    /// An operator stops or allows new work on a node. Allowing it lifts a quarantine too.
    SetDrained {
        /// Which.
        node: NodeId,
        /// Whether it takes no new work.
        drained: bool,
        /// Why, for people; may be empty.
        #[serde(default)]
        reason: String,
        /// Lets in work again on a node that others have drained.
        #[serde(default)]
        force: bool,
    },
    /// Takes a node on which nothing runs out of the fleet.
    RemoveNode {
        /// Which.
        node: NodeId,
    },
    /// The node has missed its heartbeats: nothing new is bound on it.
    MarkSilent {
        /// Which.
        node: NodeId,
        /// As the leader knew it.
        epoch: Epoch,
    },
    /// A silent node is heard of again, in time.
    MarkReady {
        /// Which.
        node: NodeId,
        /// As the leader knew it.
        epoch: Epoch,
    },
    /// Every grace of the node, which is silent, has passed: its tasks are dead by their shims' deadline. Its epoch grows.
    FenceNode {
        /// Which.
        node: NodeId,
        /// As the leader knew it.
        epoch: Epoch,
    },
    /// A shard takes the lease of a cell that nobody holds (or that it holds already: its epoch grows then too).
    AcquireCell {
        /// The cell.
        cell: CellId,
        /// The shard's name, unique per process start.
        shard: String,
    },
    /// The lease of a cell ends: given back, or not renewed in time.
    ExpireCell {
        /// Which.
        cell: CellId,
        /// The epoch that ends.
        epoch: Epoch,
    },
    /// A shard binds a gang, whole.
    Bind(LeasedBinding),
    /// A shard that cannot place a job passes it to another cell.
    HandOver {
        /// The cell that gives it away.
        cell: CellId,
        /// Its epoch.
        epoch: Epoch,
        /// The job.
        job: JobId,
    },
    /// An agent says what has become of tasks.
    ReportTasks {
        /// Which node.
        node: NodeId,
        /// The node's epoch as the agent knows it.
        epoch: Epoch,
        /// What it saw.
        reports: Vec<TaskReport>,
    },
    /// An agent's usage, in order.
    RecordUsage {
        /// Which node.
        node: NodeId,
        /// The stream.
        incarnation: u64,
        /// Numbered without gaps.
        intervals: Vec<UsageInterval>,
    },
    /// Forgets request ids older than a day and usage records whose horizon has passed.
    Sweep,
    /// Raises what `plan` may do.
    RaiseFeatureLevel {
        /// To this.
        level: u32,
    },
    /// Adds or changes a device class, for jobs submitted from now on.
    PutDeviceClass(DeviceClass),
    /// Removes a device class; accepted jobs keep what it meant.
    DeleteDeviceClass {
        /// Its name.
        name: String,
    },
    /// A shard keeps nodes of its cell for a gang that waits there, or no longer does.
    Reserve {
        /// The cell.
        cell: CellId,
        /// Its epoch.
        epoch: Epoch,
        /// The job.
        job: JobId,
        /// What is kept from now on, in the place of what was.
        reserved: Option<Reservation>,
    },
    /// Adds tenants and changes those that exist, all or none, as [`Command::ApplyTenants`]; what an edit does not name stays.
    EditTenants {
        /// What changes.
        edits: Vec<TenantEdit>,
        /// Tenants below the edited ones that no edit names are removed.
        #[serde(default)]
        prune: bool,
        /// In how many seconds past use comes to count half, for the whole fleet; 0: past use does not count. None: as it is. With it there need be no edit.
        #[serde(default)]
        half_life_s: Option<u64>,
    },
    /// An operator sets the state's time back to the entry's, which a wrong clock had moved ahead. Repeated until nothing is left.
    ResetClock,
    /// A shard records how many cards jobs behind a gang have started on while it waited in the shard's cell.
    RecordBypass {
        /// The cell.
        cell: CellId,
        /// Its epoch.
        epoch: Epoch,
        /// The gang.
        job: JobId,
        /// Cards in all, what was recorded before included. It only grows.
        cards: u64,
    },
    /// Forgets finished jobs, those that ended first. Which they are only the disk knows, so the leader names them; how long and how many are kept is its setting.
    ForgetFinished {
        /// How many the state has forgotten before: the same jobs are never forgotten, and counted, twice.
        forgotten: u64,
        /// In order.
        jobs: Vec<FinishedJob>,
    },
    /// A shard gives a waiting gang devices that others hold: these attempts end gracefully, and the gang is bound when they have ended.
    Preempt {
        /// Where the gang will run.
        binding: LeasedBinding,
        /// The attempts that end, in the order in which they are judged.
        victims: Vec<AllocationId>,
    },
    /// Queues a job again: a running one is stopped first, gracefully, and whatever its tasks then exit with does not end it. A pending one stays where it is.
    Requeue {
        /// Which.
        job: JobId,
    },
    /// Changes a job that is pending, or what may be changed of one that runs.
    UpdateJob {
        /// Which.
        job: JobId,
        /// What changes.
        update: JobUpdate,
    },
    /// Moves a tenant with everything below it; a new last name renames it.
    MoveTenant {
        /// Its present path.
        path: String,
        /// Its path from now on.
        to: String,
    },
    /// Keeps a pending job from starting until it is released.
    Hold {
        /// Which.
        job: JobId,
        /// For whom.
        by: Holder,
    },
    /// Lets a held job start again.
    Release {
        /// Which.
        job: JobId,
        /// For whom.
        by: Holder,
    },
    /// Decides what the entry's time decides about jobs: begin times, deadlines, and those that are cancelled because they can never start.
    DecideDue,
    /// Cancels some tasks of an array.
    CancelTasks {
        /// The array.
        job: JobId,
        /// Their indices.
        indices: IndexSet,
    },
    /// Changes how many tasks of an array are live at once.
    SetArrayLimit {
        /// The array.
        job: JobId,
        /// At most so many; none: no limit.
        max_running: Option<u32>,
    },
    /// Adds or changes a priority class. Accepted jobs keep their priority.
    PutPriorityClass(PriorityClass),
    /// Removes a priority class that no live job has.
    DeletePriorityClass {
        /// Its name.
        name: String,
    },
    /// Makes a window: maintenance, a reservation, or a drain by a deadline.
    PutWindow(WindowSpec),
    /// Ends a window, or gives it up before it begins.
    DeleteWindow {
        /// Its name.
        name: String,
    },
    /// A shard starts running jobs elsewhere so that a waiting gang fits: they end gracefully, and they and the gang are bound when what is in their way has ended.
    Move {
        /// Where the gang will run.
        binding: LeasedBinding,
        /// The jobs that are moved, in the order in which they are judged.
        moves: Vec<PlannedMove>,
    },
    /// A shard gives idle devices to an elastic gang that runs; its attempt is the present one, its tasks are what it gets beside those it has.
    Grow(LeasedBinding),
    /// A shard takes growth back for a waiting gang that may not preempt: these allocations end gracefully, and the gang is bound in its turn.
    Shrink {
        /// Where the waiting gang fits once they have ended.
        binding: LeasedBinding,
        /// What ends.
        parts: Vec<AllocationId>,
    },
    /// An agent says what of its cards is not to be used; whatever is not named is.
    ReportCards {
        /// Whose.
        node: NodeId,
        /// As it joined.
        epoch: Epoch,
        /// All that is withheld now.
        withheld: Vec<Withheld>,
    },
    /// An operator takes a card for well again.
    ClearGpu {
        /// Of which node.
        node: NodeId,
        /// Its index.
        gpu: u16,
        /// Why.
        reason: String,
    },
    /// An agent says how the cards and network cards of its node reach each other.
    ReportLinks {
        /// Whose.
        node: NodeId,
        /// As it joined.
        epoch: Epoch,
        /// All of it.
        links: NodeLinks,
    },
    /// An agent says what came of trying to get past the isolation of tasks.
    ReportProofs {
        /// Whose.
        node: NodeId,
        /// As it joined.
        epoch: Epoch,
        /// All of it, in order.
        proofs: Vec<Proof>,
    },
    /// Gives somebody a right.
    PutGrant {
        /// Who.
        subject: Subject,
        /// What they may do.
        role: Role,
        /// On which tenant and below, by path; `None`: at the root of the tree, or on the fleet.
        at: Option<String>,
        /// Until when, in ms since the Unix epoch.
        until_ms: Option<u64>,
        /// Why, for people.
        reason: String,
    },
    /// Takes a right away.
    RevokeGrant {
        /// Which.
        id: u64,
    },
    /// Lets somebody prove who they are with a secret.
    PutCredential {
        /// A session, for which the control node vouches that proposes it, or a token.
        kind: CredentialKind,
        /// Whom it proves.
        principal: Principal,
        /// Groups of a session.
        groups: Vec<String>,
        /// SHA-256 of the secret.
        secret_sha256: [u8; 32],
        /// How long it is valid.
        ttl_ms: u64,
        /// What a token may do, and on which tenant.
        scope: Option<(Role, String)>,
        /// Address ranges from which it is taken; empty: from everywhere.
        from: Vec<String>,
        /// For people.
        note: String,
    },
    /// Ends a session or a token.
    RevokeCredential {
        /// Which.
        id: u64,
    },
    /// Says whether the cluster asks who calls.
    SetAccess {
        /// From now on.
        mode: AccessMode,
    },
    /// Forgets records of the audit, the oldest first. How long they are kept is a setting of the leader.
    TrimAudit {
        /// The last that is forgotten.
        through: u64,
    },
    /// A control node says how far its own chain of refusals goes.
    CommitAuditHead {
        /// Which.
        member: u64,
        /// Its last record.
        number: u64,
        /// That record's hash.
        hash: [u8; 32],
    },
    /// A command of somebody: judged again where it is decided, and remembered.
    Authored {
        /// Who, as the node found out that received the call.
        author: Author,
        /// What they want.
        command: Box<Command>,
    },
    /// Lets machines enrol, each of these names once.
    PutJoinToken {
        /// SHA-256 of its secret.
        secret_sha256: [u8; 32],
        /// Nodes or shards.
        role: MachineRole,
        /// Which, all written out.
        names: BTreeSet<String>,
        /// What for.
        enrolled: Enrolled,
        /// How long it is valid.
        ttl_ms: u64,
        /// Whether a name that has a key already may be given another one.
        rejoin: bool,
    },
    /// Ends a join token; what was enrolled with it stays enrolled.
    RevokeJoinToken {
        /// Which.
        id: u64,
    },
    /// A machine joins with a token. The control node that proposes it has seen that the machine has the key.
    EnrollMachine {
        /// The number of the token.
        token: u64,
        /// SHA-256 of the secret that was shown.
        secret_sha256: [u8; 32],
        /// Who it will be.
        machine: Principal,
        /// SHA-256 of its public key.
        key_sha256: [u8; 32],
    },
    /// A machine wants a certificate for this key; the control node that proposes it has seen that the machine has it.
    RenewMachine {
        /// Which.
        machine: Principal,
        /// Of the key with which it has proved who it is.
        shown_sha256: [u8; 32],
        /// Of the key that it will use.
        key_sha256: [u8; 32],
    },
    /// Pins keys of machines that have certificates already.
    PinMachines {
        /// Each with the hash of its public key.
        machines: Vec<(Principal, [u8; 32])>,
        /// Whether other keys that are pinned to these names are replaced.
        replace: bool,
    },
    /// Nothing that a machine says is taken from now on, until it is resumed or enrolled anew. What runs on a node runs on until its fence.
    SuspendMachine {
        /// Which.
        machine: Principal,
        /// Why, for people.
        reason: String,
    },
    /// A machine that was suspended is taken at its word again.
    ResumeMachine {
        /// Which.
        machine: Principal,
    },
    /// A machine is no part of the cluster any more.
    RemoveMachine {
        /// Which.
        machine: Principal,
    },
    /// Says whether machines have to be enrolled.
    SetEnrolment {
        /// From now on.
        enrolment: Enrolment,
        /// The control nodes that the cluster has now.
        members: BTreeSet<u64>,
    },
    /// An agent begins a session, and says how many it has had: so copies of its identity are found.
    BeginSession {
        /// Which machine.
        machine: Principal,
        /// What it says.
        session: SessionCount,
    },
    /// Gives a secret of a tenant its value, sealed by the control node that was given it.
    PutSecret {
        /// Path of the tenant.
        at: String,
        /// The tenant for which it was sealed.
        tenant: TenantId,
        /// Its name.
        name: String,
        /// Its value.
        sealed: Sealed,
    },
    /// Removes a secret that no live job uses.
    DeleteSecret {
        /// Path of the tenant.
        at: String,
        /// Its name.
        name: String,
    },
    /// A step after the state was restored from a backup.
    Restore(Restoration),
}
