//! The bounds of every text and every list that clients, shards and agents can send, by message and field of the API.
//!
//! Whatever is received is held against this table before it is decoded, so nothing that is sent grows without bound in memory or in
//! the log. What must stay true: a message of `muster.v1` that can be sent to a control node has a row here for each of its texts,
//! lists and maps; a test walks the descriptors and fails for one that is missing. Beside it stand the checks of `validate`, which
//! look at meaning and at several fields together.

use crate::array::ARRAY_TEXT_BYTES_MAX;
use crate::bounds::ID_TOKEN_BYTES_MAX;
use crate::bounds::{
    APART_FROM_MAX, BOOTSTRAP_MEMBERS_MAX, CARDS_PER_TASK_MAX, CERTIFICATE_REQUEST_BYTES_MAX, CLASS_TENANTS_MAX,
    COMMAND_ARGUMENTS_MAX, COMMAND_BYTES_MAX, COMMENT_BYTES_MAX, DEPENDENCIES_MAX, ENV_MAX, GPUS_PER_NODE_MAX,
    HASH_BYTES, INTERVALS_PER_MESSAGE_MAX, JOBS_PER_SUBMIT_MAX, JOIN_TOKEN_NAMES_MAX, LABELS_MAX, LEASES_PER_RENEW_MAX,
    LOG_PIECE_BYTES_MAX, MIG_SLICES_MAX, NAME_BYTES_MAX, NICS_PER_NODE_MAX, NODE_LINKS_BYTES_MAX, PAGE_TOKEN_BYTES_MAX,
    PATH_BYTES_MAX, PINS_MAX, PREEMPTS_MAX, PROOF_BYTES_MAX, PROOFS_MAX, PROPOSALS_PER_CALL_MAX, REASON_BYTES_MAX,
    REPORTS_PER_MESSAGE_MAX, REQUEST_ID_BYTES_MAX, SECRET_BYTES_MAX, SECRETS_PER_JOB_MAX, SHARD_NAME_BYTES_MAX,
    SUBJECT_BYTES_MAX, TASKS_MAX, TENANT_PATH_BYTES_MAX, TENANTS_PER_APPLY_MAX, TEXT_BYTES_MAX, TOKEN_RANGES_MAX,
    VICTIMS_PER_PREEMPT_MAX, WINDOW_NODES_MAX, WITHHELD_MAX, WORD_BYTES_MAX, WORDS_MAX,
};
use crate::image::{IMAGE_BYTES_MAX, MOUNT_BYTES_MAX, MOUNTS_MAX};
use crate::moves::MOVED_JOBS_MAX;
use crate::selector::bounds::TEXT_BYTES_MAX as SELECTOR_BYTES_MAX;

/// How much of a field may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A text, or bytes.
    Text {
        /// Bytes.
        bytes_max: usize,
    },
    /// A list of numbers or messages.
    List {
        /// Entries.
        items_max: usize,
    },
    /// A list of texts.
    Texts {
        /// Entries.
        items_max: usize,
        /// Bytes of each.
        bytes_max: usize,
    },
    /// A map from texts or numbers.
    Map {
        /// Entries.
        items_max: usize,
        /// Bytes of each key, if keys are texts.
        key_bytes_max: usize,
        /// Bytes of each value, if values are texts.
        value_bytes_max: usize,
    },
}

/// One row: message, field, bound.
pub type Row = (&'static str, &'static str, Bound);

const NAME: Bound = text(NAME_BYTES_MAX);
const PATH: Bound = text(TENANT_PATH_BYTES_MAX);
const WORD: Bound = text(WORD_BYTES_MAX);
const WORDS: Bound = Bound::Texts { items_max: WORDS_MAX, bytes_max: WORD_BYTES_MAX };
const AMOUNTS: Bound = Bound::Map { items_max: WORDS_MAX, key_bytes_max: WORD_BYTES_MAX, value_bytes_max: 0 };
const LABELS: Bound =
    Bound::Map { items_max: LABELS_MAX, key_bytes_max: TEXT_BYTES_MAX, value_bytes_max: TEXT_BYTES_MAX };
const TEXT: Bound = text(TEXT_BYTES_MAX);
const TOKEN: Bound = text(PAGE_TOKEN_BYTES_MAX);

const fn text(bytes_max: usize) -> Bound {
    Bound::Text { bytes_max }
}

const fn list(items_max: usize) -> Bound {
    Bound::List { items_max }
}

/// What jobs are made of.
const JOBS: &[Row] = &[
    ("SubmitRequest", "request_id", text(REQUEST_ID_BYTES_MAX)),
    ("SubmitRequest", "jobs", list(JOBS_PER_SUBMIT_MAX)),
    ("JobSpec", "tenant", PATH),
    ("JobSpec", "user", NAME),
    ("JobSpec", "name", NAME),
    ("JobSpec", "comment", text(COMMENT_BYTES_MAX)),
    ("UpdateJobRequest", "comment", text(COMMENT_BYTES_MAX)),
    ("JobSpec", "workload_class", WORD),
    ("JobSpec", "pool", NAME),
    ("JobSpec", "command", Bound::Texts { items_max: COMMAND_ARGUMENTS_MAX, bytes_max: COMMAND_BYTES_MAX }),
    (
        "JobSpec",
        "env",
        Bound::Map { items_max: ENV_MAX, key_bytes_max: TEXT_BYTES_MAX, value_bytes_max: COMMAND_BYTES_MAX },
    ),
    (
        "JobSpec",
        "secret_env",
        Bound::Map { items_max: SECRETS_PER_JOB_MAX, key_bytes_max: TEXT_BYTES_MAX, value_bytes_max: NAME_BYTES_MAX },
    ),
    ("JobSpec", "workdir", text(PATH_BYTES_MAX)),
    ("JobSpec", "image", text(IMAGE_BYTES_MAX)),
    ("JobSpec", "mounts", list(MOUNTS_MAX)),
    ("Mount", "source", text(MOUNT_BYTES_MAX)),
    ("Mount", "target", text(MOUNT_BYTES_MAX)),
    ("JobSpec", "numa", WORD),
    ("JobSpec", "driver_min", WORD),
    ("Preemption", "signal", WORD),
    ("LimitSignal", "signal", WORD),
    ("Elastic", "signal", WORD),
    ("JobSpec", "selector", text(SELECTOR_BYTES_MAX)),
    ("JobSpec", "device_class", NAME),
    ("JobSpec", "priority_class", NAME),
    ("JobSpec", "reservation", NAME),
    ("StartConditions", "dependencies", list(DEPENDENCIES_MAX)),
    ("Dependency", "kind", WORD),
    ("ArraySpec", "indices", text(ARRAY_TEXT_BYTES_MAX)),
    ("CancelArrayTasksRequest", "tasks", text(ARRAY_TEXT_BYTES_MAX)),
    ("DeviceRequest", "models", WORDS),
    ("MigInstance", "profile", WORD),
    ("Topology", "required", WORD),
    ("Topology", "preferred", WORD),
    ("Spread", "level", WORD),
    ("Needs", "isolation", WORD),
    ("Needs", "models", WORDS),
    ("Choice", "rule", WORD),
    ("Choice", "model", WORD),
    ("Choice", "text", text(REASON_BYTES_MAX)),
    ("ListJobsRequest", "tenant", PATH),
    ("ListJobsRequest", "phases", list(WORDS_MAX)),
    ("ListJobsRequest", "name", NAME),
    ("ListJobsRequest", "user", NAME),
    ("ListJobsRequest", "page_token", TOKEN),
    ("WatchJobsRequest", "tenant", PATH),
    ("UpdateJobRequest", "tenant", PATH),
    ("UpdateJobRequest", "name", NAME),
];

/// Tenants and their usage.
const TENANTS: &[Row] = &[
    ("ApplyTenantsRequest", "tenants", list(TENANTS_PER_APPLY_MAX)),
    ("ApplyTenantsRequest", "edits", list(TENANTS_PER_APPLY_MAX)),
    ("TenantEdit", "path", PATH),
    ("TrustEdit", "trust", WORD),
    ("AmountsEdit", "gpus", list(WORDS_MAX)),
    ("GpuEdit", "model", WORD),
    (
        "AntiAffinityEdit",
        "levels",
        Bound::Map { items_max: APART_FROM_MAX, key_bytes_max: TENANT_PATH_BYTES_MAX, value_bytes_max: WORD_BYTES_MAX },
    ),
    ("WeightsEdit", "weights", list(WORDS_MAX)),
    ("ResourceWeight", "resource", WORD),
    ("LendsEdit", "lends", list(WORDS_MAX)),
    ("ResourceLend", "resource", WORD),
    ("TenantSpec", "weights", AMOUNTS),
    ("TenantSpec", "lends", AMOUNTS),
    ("TenantHistoryRequest", "path", PATH),
    ("TenantSpec", "path", PATH),
    ("TenantSpec", "trust", WORD),
    ("TenantSpec", "anti_affinity", list(APART_FROM_MAX)),
    ("AntiAffinity", "tenant", PATH),
    ("AntiAffinity", "level", WORD),
    ("ResourceVec", "gpu_units", AMOUNTS),
    ("Limits", "gpu_units", AMOUNTS),
    ("ExplainTenantRequest", "path", PATH),
    ("ListTenantsRequest", "under", PATH),
    ("ListTenantsRequest", "page_token", TOKEN),
    ("MoveTenantRequest", "path", PATH),
    ("MoveTenantRequest", "to", PATH),
    ("DeleteTenantRequest", "path", PATH),
    ("GetUsageRequest", "under", PATH),
    ("GetUsageRequest", "page_token", TOKEN),
];

/// The fleet and its operators.
const FLEET: &[Row] = &[
    ("ListNodesRequest", "cell", NAME),
    ("ListNodesRequest", "pool", NAME),
    ("ListNodesRequest", "page_token", TOKEN),
    ("ListGpusRequest", "node", NAME),
    ("ListGpusRequest", "page_token", TOKEN),
    ("Pool", "name", NAME),
    ("Pool", "modes", WORDS),
    ("Pool", "workload_classes", WORDS),
    ("Pool", "mig_layouts", list(WORDS_MAX)),
    ("Pool", "time_slice", WORD),
    ("Pool", "images", Bound::Texts { items_max: MOUNTS_MAX, bytes_max: IMAGE_BYTES_MAX }),
    ("Pool", "mounts", list(MOUNTS_MAX)),
    ("MountRule", "path", text(MOUNT_BYTES_MAX)),
    ("Pool", "isolation", WORD),
    ("Pool", "network", WORD),
    ("PinnedLayout", "model", WORD),
    ("PinnedLayout", "slices", AMOUNTS),
    ("DeletePoolRequest", "name", NAME),
    ("DeviceClass", "name", NAME),
    ("DeviceClass", "selector", text(SELECTOR_BYTES_MAX)),
    ("DeviceClass", "tenants", Bound::Texts { items_max: CLASS_TENANTS_MAX, bytes_max: TENANT_PATH_BYTES_MAX }),
    ("DeleteDeviceClassRequest", "name", NAME),
    ("PriorityClass", "name", NAME),
    ("PriorityClass", "preempts", Bound::Texts { items_max: PREEMPTS_MAX, bytes_max: NAME_BYTES_MAX }),
    ("PriorityClass", "tenants", Bound::Texts { items_max: CLASS_TENANTS_MAX, bytes_max: TENANT_PATH_BYTES_MAX }),
    ("DeletePriorityClassRequest", "name", NAME),
    ("WindowSpec", "name", NAME),
    ("WindowSpec", "kind", WORD),
    ("WindowSpec", "nodes", Bound::Texts { items_max: WINDOW_NODES_MAX, bytes_max: NAME_BYTES_MAX }),
    ("WindowSpec", "model", WORD),
    ("WindowSpec", "reason", TEXT),
    ("WindowSpec", "tenants", Bound::Texts { items_max: CLASS_TENANTS_MAX, bytes_max: TENANT_PATH_BYTES_MAX }),
    ("DeleteWindowRequest", "name", NAME),
    ("ListWindowsRequest", "kind", WORD),
    ("SetDrainedRequest", "node", NAME),
    ("SetDrainedRequest", "reason", TEXT),
    ("RemoveNodeRequest", "node", NAME),
    ("ClearGpuRequest", "node", NAME),
    ("ClearGpuRequest", "reason", TEXT),
    ("PlanMovesRequest", "cell", NAME),
    ("ListMovesRequest", "pool", NAME),
    ("AddLearnerRequest", "address", TEXT),
    ("BootstrapRequest", "members", list(BOOTSTRAP_MEMBERS_MAX)),
    ("RaftMember", "address", TEXT),
];

/// Scheduler shards.
const SHARDS: &[Row] = &[
    ("AcquireRequest", "shard", text(SHARD_NAME_BYTES_MAX)),
    ("RenewRequest", "shard", text(SHARD_NAME_BYTES_MAX)),
    ("RenewRequest", "leases", list(LEASES_PER_RENEW_MAX)),
    ("ReleaseRequest", "shard", text(SHARD_NAME_BYTES_MAX)),
    ("ProposeRequest", "proposals", list(PROPOSALS_PER_CALL_MAX)),
    ("Bind", "model", WORD),
    ("Bind", "tasks", list(TASKS_MAX as usize)),
    ("Preempt", "victims", list(VICTIMS_PER_PREEMPT_MAX)),
    ("Move", "moves", list(MOVED_JOBS_MAX)),
    ("PlannedMove", "tasks", list(TASKS_MAX as usize)),
    ("Shrink", "parts", list(VICTIMS_PER_PREEMPT_MAX)),
    ("TaskPlacement", "devices", list(CARDS_PER_TASK_MAX as usize)),
    ("MigHold", "shape", WORD),
    ("Reservation", "nodes", list(TASKS_MAX as usize)),
];

/// Node agents.
const AGENTS: &[Row] = &[
    ("Hello", "version", TEXT),
    ("HeldTasks", "tasks", list(REPORTS_PER_MESSAGE_MAX)),
    ("NodeSpec", "name", NAME),
    ("NodeSpec", "address", TEXT),
    ("NodeSpec", "cell", NAME),
    ("NodeSpec", "pool", NAME),
    ("NodeSpec", "gpus", list(GPUS_PER_NODE_MAX)),
    ("NodeSpec", "driver", TEXT),
    ("NodeSpec", "labels", LABELS),
    ("NodeSpec", "boot_id", TEXT),
    ("Place", "region", NAME),
    ("Place", "zone", NAME),
    ("Place", "block", NAME),
    ("Place", "leaf", NAME),
    ("Place", "nvlink_domain", NAME),
    ("Gpu", "uuid", TEXT),
    ("Gpu", "model", WORD),
    ("Gpu", "withheld", TEXT),
    ("Gpu", "withheld_slices", list(MIG_SLICES_MAX)),
    ("WithheldSlice", "reason", TEXT),
    ("NodeSpec", "proofs", list(PROOFS_MAX)),
    ("Proofs", "proofs", list(PROOFS_MAX)),
    ("Proof", "protection", WORD),
    ("Proof", "fault", text(PROOF_BYTES_MAX)),
    ("NodeLinks", "cuda", WORD),
    ("NodeLinks", "nics", list(NICS_PER_NODE_MAX)),
    ("NodeLinks", "matrix", text(NODE_LINKS_BYTES_MAX)),
    ("Nic", "name", NAME),
    ("CardReport", "withheld", list(WITHHELD_MAX)),
    ("WithheldCard", "reason", TEXT),
    ("TaskReports", "reports", list(REPORTS_PER_MESSAGE_MAX)),
    ("TaskReport", "checkpoint_note", TEXT),
    ("TaskReport", "unclean", TEXT),
    ("TaskState", "reason", text(REASON_BYTES_MAX)),
    ("UsageReport", "intervals", list(INTERVALS_PER_MESSAGE_MAX)),
    ("LogData", "data", text(LOG_PIECE_BYTES_MAX)),
    ("LogData", "error", text(REASON_BYTES_MAX)),
];

/// Identities and the audit.
const ACCESS: &[Row] = &[
    ("CreateTokenRequest", "service", text(SUBJECT_BYTES_MAX)),
    ("CreateTokenRequest", "role", WORD),
    ("CreateTokenRequest", "from", Bound::Texts { items_max: TOKEN_RANGES_MAX, bytes_max: WORD_BYTES_MAX }),
    ("CreateTokenRequest", "note", TEXT),
    ("ListTokensRequest", "under", PATH),
    ("GrantRequest", "subject", text(SUBJECT_BYTES_MAX)),
    ("GrantRequest", "role", WORD),
    ("GrantRequest", "tenant", PATH),
    ("GrantRequest", "reason", TEXT),
    ("ListGrantsRequest", "under", PATH),
    ("ListGrantsRequest", "subject", text(SUBJECT_BYTES_MAX)),
    ("ListGrantsRequest", "page_token", TOKEN),
    ("SecureRequest", "access", WORD),
    ("LoginRequest", "id_token", text(ID_TOKEN_BYTES_MAX)),
    ("LoginRequest", "nonce", TEXT),
    ("EnrollRequest", "token", text(TEXT_BYTES_MAX)),
    ("EnrollRequest", "request", text(CERTIFICATE_REQUEST_BYTES_MAX)),
    ("RenewMachineRequest", "request", text(CERTIFICATE_REQUEST_BYTES_MAX)),
    ("Enrolled", "cell", NAME),
    ("Enrolled", "pool", NAME),
    ("Labels", "labels", LABELS),
    ("ListMachinesRequest", "page_token", TOKEN),
    ("CreateJoinTokenRequest", "role", WORD),
    ("CreateJoinTokenRequest", "names", Bound::Texts { items_max: JOIN_TOKEN_NAMES_MAX, bytes_max: NAME_BYTES_MAX }),
    ("PinnedKey", "name", text(SUBJECT_BYTES_MAX)),
    ("PinnedKey", "key_sha256", text(HASH_BYTES)),
    ("PinRequest", "keys", list(PINS_MAX)),
    ("ConfirmRequest", "names", Bound::Texts { items_max: PINS_MAX, bytes_max: SUBJECT_BYTES_MAX }),
    ("SuspendRequest", "name", text(SUBJECT_BYTES_MAX)),
    ("SuspendRequest", "reason", TEXT),
    ("ResumeRequest", "name", text(SUBJECT_BYTES_MAX)),
    ("RemoveMachineRequest", "name", text(SUBJECT_BYTES_MAX)),
    ("SetEnrolmentRequest", "enrolment", WORD),
    ("PutSecretRequest", "tenant", PATH),
    ("PutSecretRequest", "name", NAME),
    ("PutSecretRequest", "value", text(SECRET_BYTES_MAX)),
    ("DeleteSecretRequest", "tenant", PATH),
    ("DeleteSecretRequest", "name", NAME),
    ("ListSecretsRequest", "tenant", PATH),
    ("AuditQueryRequest", "tenant", PATH),
    ("AuditQueryRequest", "principal", text(SUBJECT_BYTES_MAX)),
    ("AuditQueryRequest", "page_token", TOKEN),
    ("DenialsRequest", "page_token", TOKEN),
];

/// Every row.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [JOBS, TENANTS, FLEET, SHARDS, AGENTS, ACCESS].into_iter().flatten()
}
