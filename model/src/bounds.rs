//! Bounds on what may be written. What must stay true: each keeps one object small enough for a log entry, and says why that number.

/// Tasks of one gang: the largest published training gangs are below 32,768 ranks.
pub const TASKS_MAX: u32 = 32_768;
/// Cards of one task: the largest node has 16.
pub const CARDS_PER_TASK_MAX: u32 = 16;
/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 128;

/// The comment of a job.
pub const COMMENT_BYTES_MAX: usize = 1_024;
/// Nodes of one window: more than the largest cell that is planned for; each is a name in the command.
pub const WINDOW_NODES_MAX: usize = 10_000;
/// Bytes of a principal or of who is granted something: a kind, a tenant's path and a name.
pub const SUBJECT_BYTES_MAX: usize = 16 + TENANT_PATH_BYTES_MAX + 1 + NAME_BYTES_MAX;
/// Address ranges from which a token is taken: the networks of a site.
pub const TOKEN_RANGES_MAX: usize = 16;
/// Levels of the quota tree.
pub const TENANT_DEPTH_MAX: usize = 8;
/// Bytes of a tenant's path: eight levels of names that people can still read.
pub const TENANT_PATH_BYTES_MAX: usize = 512;
/// Bytes of command and environment together, [`TEXT_OVERHEAD_BYTES`] added for each argument, name and value: a few times what real
/// launch lines need.
pub const COMMAND_BYTES_MAX: usize = 32 * 1024;
/// What a text takes in memory beside its bytes: pointer, length, capacity and the allocator's own word. An empty argument is one
/// byte of a message and this much in every voter.
pub const TEXT_OVERHEAD_BYTES: usize = 32;
/// Arguments of a command: as many as fit if all are empty.
pub const COMMAND_ARGUMENTS_MAX: usize = COMMAND_BYTES_MAX / TEXT_OVERHEAD_BYTES;
/// Variables of a job that are secrets.
pub const SECRETS_PER_JOB_MAX: usize = 32;
/// Bytes of a secret's value: a key with its certificate.
pub const SECRET_BYTES_MAX: usize = 4 * 1024;
/// Variables of an environment: as many as fit if all names and values are empty.
pub const ENV_MAX: usize = COMMAND_BYTES_MAX / (2 * TEXT_OVERHEAD_BYTES);
/// Variables that the system sets for every task, or for those that share a card under MPS. A job may not give them: its value would be lost.
pub const ENV_OF_SYSTEM: [&str; 32] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "MUSTER_RESTART_COUNT",
    "MUSTER_JOB_ID",
    "MUSTER_JOB_NAME",
    "MUSTER_ATTEMPT",
    "MUSTER_PORTS",
    "MUSTER_ARRAY_JOB_ID",
    "MUSTER_ARRAY_TASK_ID",
    "MUSTER_ALLOCATION_ID",
    "MUSTER_TENANT",
    "MUSTER_TASK",
    "MUSTER_TASK_DIR",
    "MUSTER_CHECKPOINT_FILE",
    "MUSTER_CHECKPOINT_NOTE",
    "MUSTER_WORKERS",
    "MUSTER_WORKERS_MIN",
    "MUSTER_WORKERS_MAX",
    "MUSTER_WORLD_GENERATION",
    "MUSTER_WORLD_FILE",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
];
/// Seconds of grace: half a day.
pub const GRACE_S_MAX: u64 = 43_200;
/// Seconds of a disconnect grace, at least. A healthy cluster needs up to this long to confirm a node again after it lost one
/// control node: 4 s until the agent gives its session up, up to 3 s until it dials again, an election, and a heartbeat. A
/// shorter grace would end tasks at every such change, and before the control plane counts the node as silent (5 s).
pub const DISCONNECT_GRACE_S_MIN: u64 = 10;
/// Seconds of a time limit: a year.
pub const TIME_LIMIT_S_MAX: u64 = 366 * 86_400;
/// Jobs that one job depends on: launchers name a stage's few jobs; what depends on more depends on one job that waits for them.
pub const DEPENDENCIES_MAX: usize = 64;
/// The latest begin time or deadline, in milliseconds since the Unix epoch: the year 2200. It keeps sums of times far from overflow.
pub const MOMENT_MS_MAX: u64 = 7_258_118_400_000;
/// Retries.
pub const RETRIES_MAX: u32 = 1_000;
/// Milli-CPUs of one task.
pub const CPU_MILLI_MAX: u64 = 4_096_000;
/// MiB of one task.
pub const MEMORY_MIB_MAX: u64 = 64 * 1024 * 1024;
/// Cards of one node.
pub const GPUS_PER_NODE_MAX: usize = 72;
/// Network cards of one node.
pub const NICS_PER_NODE_MAX: usize = 64;
/// Ways inside one node: a byte from each card to each card and network card.
pub const NODE_LINKS_BYTES_MAX: usize = GPUS_PER_NODE_MAX * (GPUS_PER_NODE_MAX + NICS_PER_NODE_MAX);
/// MIG slices of one card: as many as it has memory slices.
pub const MIG_SLICES_MAX: usize = 8;
/// Things that one card report withholds: each card, and each slice of each.
pub const WITHHELD_MAX: usize = GPUS_PER_NODE_MAX * (1 + MIG_SLICES_MAX);
/// Cards of one NVLink island: the largest announced domain has 576.
pub const GPUS_PER_ISLAND_MAX: usize = 1_024;
/// Tenants that one tenant is kept apart from: pairs that were measured, not a policy against everybody.
pub const APART_FROM_MAX: usize = 64;
/// Highest priority; the lowest is its negative.
pub const PRIORITY_MAX: i32 = 1_000_000;
/// Weight of a tenant.
pub const WEIGHT_MAX: u32 = 1_000_000;
/// Jobs of one submission.
pub const JOBS_PER_SUBMIT_MAX: usize = 1_000;
/// Of any resource in a tenant's guarantee or max: more than a hundred million cards, and sums over all tenants still fit.
pub const AMOUNT_MAX: u64 = 1_000_000_000_000;
/// Bytes of a path in a file system: Linux takes no more.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Bytes of a word of the vocabulary (a level, a class, a GPU model, a driver version): the longest has seventeen.
pub const WORD_BYTES_MAX: usize = 64;
/// Entries of a list or map in which each word of a vocabulary stands once: several times the longest vocabulary (14 GPU models).
pub const WORDS_MAX: usize = 64;
/// Bytes of a reason that people read, such as why a task could not be started.
pub const REASON_BYTES_MAX: usize = 1_024;
/// Bytes of an address, a boot id, a driver version, a card's UUID, a label.
pub const TEXT_BYTES_MAX: usize = 256;
/// Tenants that one device class names.
pub const CLASS_TENANTS_MAX: usize = 1_024;
/// Classes that a priority class may preempt.
pub const PREEMPTS_MAX: usize = 64;
/// Bytes of why a protection does not hold on a node.
pub const PROOF_BYTES_MAX: usize = TEXT_BYTES_MAX;
/// Proofs of one node: several times as many as there are protections, since newer agents know more.
pub const PROOFS_MAX: usize = 64;
/// The users that a tenant's tasks may run as: the first that is an ordinary one on every Linux, and the last below those that nodes make up for tenants
/// that name none.
pub const RUN_AS_MIN: u32 = 1_000;
/// See [`RUN_AS_MIN`].
pub const RUN_AS_MAX: u32 = 1_999_999_999;
/// Nobody's user: what belongs to nobody else shows as its.
pub const NOBODY: u32 = 65_534;
/// Labels of one node.
pub const LABELS_MAX: usize = 64;
/// Bytes of a request id: room for a UUID with a client's name.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Bytes of a shard's name.
pub const SHARD_NAME_BYTES_MAX: usize = 128;
/// Bytes of a page token: the mark of the question and the longest name.
pub const PAGE_TOKEN_BYTES_MAX: usize = 1_024;
/// Tenants of one call: a whole organisation's teams and projects; users come in further calls.
pub const TENANTS_PER_APPLY_MAX: usize = 10_000;
/// Proposals of one call: more than a shard plans between two round trips.
pub const PROPOSALS_PER_CALL_MAX: usize = 1_024;
/// Attempts that one job preempts: a gang of 512 nodes that each run eight small jobs.
pub const VICTIMS_PER_PREEMPT_MAX: usize = 4_096;
/// Cells that one shard renews in a call: as many as there can be.
pub const LEASES_PER_RENEW_MAX: usize = 4_096;
/// Task reports of one message: more than one node can have tasks (72 cards of 48 clients).
pub const REPORTS_PER_MESSAGE_MAX: usize = 4_096;
/// Usage intervals of one message: minutes of backlog of a full node.
pub const INTERVALS_PER_MESSAGE_MAX: usize = 4_096;
/// Bytes of output in one message of an agent: some times what agents send at once.
pub const LOG_PIECE_BYTES_MAX: usize = 256 * 1024;
/// Members of a new cluster: more voters than this only make writes slower.
pub const BOOTSTRAP_MEMBERS_MAX: usize = 9;
/// Names of one join token: the nodes of a delivery.
pub const JOIN_TOKEN_NAMES_MAX: usize = 4_096;
/// Keys that one command pins.
pub const PINS_MAX: usize = 1_000;
/// Bytes of a request for a certificate: those made here have three hundred.
pub const CERTIFICATE_REQUEST_BYTES_MAX: usize = 4_096;
/// Bytes of a SHA-256.
pub const HASH_BYTES: usize = 32;
/// Bytes of an ID token of an identity provider: one with two hundred groups has ten thousand.
pub const ID_TOKEN_BYTES_MAX: usize = 32 << 10;
