//! Bounds of the replicated state, each with its reason. They are part of what `plan` decides: changing one changes what the
//! same log gives, so it needs a new feature level.

// What one message may hold bounds what one command may hold.
pub use muster_model::validate::bounds::{
    INTERVALS_PER_MESSAGE_MAX as INTERVALS_PER_COMMAND_MAX, REPORTS_PER_MESSAGE_MAX as REPORTS_PER_COMMAND_MAX,
    REQUEST_ID_BYTES_MAX, SHARD_NAME_BYTES_MAX, TENANTS_PER_APPLY_MAX as TENANTS_PER_COMMAND_MAX,
};

/// Since this feature level the shares of a card have what driver and contexts leave of its memory; before, they had all of it.
pub const SHARE_OVERHEAD_LEVEL: u32 = 3;
/// How long a request id is remembered while there is room: a client that retries for a day is answered what it was answered before.
pub const REQUEST_HORIZON_MS: u64 = 24 * 3_600 * 1_000;
/// How far ahead of the state's time a request's time of issue may lie: clients' clocks differ, and ids issued later are
/// remembered for longer than they can be told apart from repetitions.
pub const ISSUED_AHEAD_MS_MAX: u64 = 5 * 60 * 1_000;
/// Remembered requests of all tenants: a day at nearly six submissions a second, in about 150 MB. When there are more, those of the
/// tenant that has most are forgotten, the oldest first: with `n` tenants, each keeps its last `500,000 / n` for a day, whatever the
/// others do.
pub const REQUESTS_MAX: u64 = 500_000;
/// Jobs that one tenant (itself, not its children) may have waiting: far more than a person looks at, and one runaway script
/// cannot fill the queue of all.
pub const WAITING_PER_TENANT_MAX: u64 = 10_000;
/// Jobs waiting in all: a few gigabytes of memory.
pub const WAITING_MAX: u64 = 1_000_000;
/// Nodes: several times the largest fleet that is planned for.
pub const NODES_MAX: usize = 100_000;
/// Names of removed nodes that are remembered: as many as there can be nodes.
pub const REMOVED_NODES_MAX: usize = 100_000;
/// For how long: after a year nobody who set up that host takes it for the one that was removed.
pub const REMOVED_NODE_HORIZON_MS: u64 = 365 * 24 * 3_600 * 1_000;
/// How often an agent that asks to be another's node is noted, so that one who asks all the time writes little.
pub const RIVAL_EVERY_MS: u64 = 60_000;
/// How long after it last asked that note is kept.
pub const RIVAL_HORIZON_MS: u64 = 5 * RIVAL_EVERY_MS;
/// Bytes of the reason for a drain: a sentence.
pub const DRAIN_REASON_BYTES_MAX: usize = 256;
/// A node is quarantined after so many attempts in a row that it failed to start. Five may be of one job; fewer would let one
/// passing fault of a disk or a card take a node away.
pub const START_FAILURES_MAX: usize = 5;
/// Or after failing so many different jobs: what fails three jobs in a row is not the jobs.
pub const START_FAILURES_JOBS_MAX: usize = 3;
/// Attempts of one job that nodes may fail to start before the job itself fails: three nodes in a row may be quarantined over it.
pub const START_FAULTS_PER_JOB_MAX: u32 = 16;
/// An attempt that lasted so long, in ms (an hour), was no failure to start: those before it count no more.
pub const START_FAULTS_FORGIVEN_AFTER_MS: u64 = 3_600_000;
/// Wrong fields, or things to choose from, that one answer lists: a thousand jobs may all be wrong in the same way.
pub const ERRORS_SHOWN_MAX: usize = 20;
/// Cells: one for every few nodes of the largest fleet would still be fewer.
pub const CELLS_MAX: usize = 4_096;
/// Grants: several for each user and team of a large organisation.
pub const GRANTS_MAX: usize = 65_536;
/// Sessions of one user; the oldest ends when there are more.
pub const SESSIONS_PER_USER_MAX: usize = 16;
/// Sessions and tokens in all: some for each user and service of a large organisation.
pub const CREDENTIALS_MAX: usize = 131_072;
/// Tokens for services of one tenant.
pub const TOKENS_PER_TENANT_MAX: usize = 256;
/// How long a session may be valid: a working day. Groups are as old as the session.
pub const SESSION_TTL_MS_MAX: u64 = 8 * 3_600_000;
/// How long a right may last that a control node gives to whoever has its machine: an hour, and what clocks differ by.
pub const RECOVERY_TTL_MS_MAX: u64 = 3_660_000;
/// How long a token may be valid: a year.
pub const TOKEN_TTL_MS_MAX: u64 = 366 * 24 * 3_600_000;
/// Machines that are enrolled, suspended ones included: every node that a fleet may have, its shards and control nodes.
pub const MACHINES_MAX: usize = 100_000;
/// Operators who have drained one node at a time.
pub const DRAINED_BY_MAX: usize = 16;
/// Secrets of a tenant: with the longest values a quarter of a MiB.
pub const SECRETS_PER_TENANT_MAX: usize = 64;
/// Join tokens at a time.
pub const JOIN_TOKENS_MAX: usize = 256;
/// How long a join token may be valid: 30 days.
pub const JOIN_TOKEN_TTL_MS_MAX: u64 = 30 * 24 * 3_600_000;
/// Groups of a session: what an identity provider says of one person.
pub const GROUPS_MAX: usize = 256;
/// Records of the audit that one command forgets.
pub const AUDIT_TRIM_MAX: u64 = 10_000;
/// Pools.
pub const POOLS_MAX: usize = 4_096;
/// Device classes: a handful per model and team.
pub const DEVICE_CLASSES_MAX: usize = 1_024;
/// Priority classes. Few are of use: people must know them by heart.
pub const PRIORITY_CLASSES_MAX: usize = 64;
/// Windows: some for each day of a year. Each command that places a job looks at those of its nodes only.
pub const WINDOWS_MAX: usize = 1_024;
/// Windows that one command opens or ends.
pub const WINDOWS_DUE_MAX: usize = 64;
/// Tenants: every user of a large organisation, several times over.
pub const TENANTS_MAX: usize = 200_000;
/// For how long it is known what a tenant was (762 days): bills and statements look back 25 months.
pub const TENANT_VERSION_HORIZON_MS: u64 = 762 * 24 * 3_600 * 1_000;
/// Versions of all tenants that have ended: a hundred edits of each of 3,000 teams, in about a hundred megabytes. Those that ended first go first.
pub const PAST_VERSIONS_MAX: usize = 300_000;
/// Live jobs of a tenant that moves, with those below it: each is written again, and one entry stays within some tens of megabytes.
pub const MOVED_JOBS_MAX: u64 = 20_000;
/// How long a released allocation's usage record waits for late intervals: longer than the longest disconnect grace.
pub const USAGE_HORIZON_MS: u64 = 24 * 3_600 * 1_000;
/// Usage records of released allocations: the oldest go first when there are more. Thirty days of a usual fleet, and a few
/// minutes of one that starts thousands of jobs a second; agents report every few seconds.
pub const RELEASED_USAGE_MAX: usize = 1_000_000;
/// Objects that one sweep forgets of each kind, so that no entry is large.
pub const SWEEP_MAX: usize = 10_000;
/// Finished jobs that one command forgets: some tens of kilobytes of log, some milliseconds of disk.
pub const FORGET_MAX: usize = 2_000;
/// Jobs that one command ends or wakes because their time has come.
pub const DUE_MAX: usize = 1_000;
/// Jobs of one array that are pending at once: enough that a cell that is freed finds the next tasks, whatever the size of the array.
pub const ARRAY_PENDING_MAX: u64 = 64;
/// Jobs that depend on one job: all of them are decided in the entry that ends it.
pub const DEPENDENTS_MAX: usize = 10_000;
/// Jobs without a cell that one command looks at, and so may route.
pub const REROUTE_MAX: usize = 1_000;
/// After this long in one cell, a job that every cell has handed on may begin a new round.
pub const ROUND_MS: u64 = 30_000;
/// First port of the range that rank 0 of a gang listens on which was bound before there were blocks of ports ([`muster_model::ports`]).
pub const MASTER_PORT_BASE: u16 = 20_000;
/// How many ports that range has; gangs on one node whose ids differ by a multiple of it would meet.
pub const MASTER_PORT_RANGE: u64 = 20_000;
/// The same for a gang on nodes where every block is taken: below the blocks, which it must not use.
pub const SHARED_PORT_BASE: u16 = 18_000;
/// How many ports that range has.
pub const SHARED_PORT_RANGE: u64 = 2_000;
/// The state's time is set back only when it is ahead by at least this: leaders' clocks differ by less.
pub const CLOCK_AHEAD_MS_MIN: u64 = 60_000;
/// Tasks that the agent of a node of a backup says it runs: more than a host with 16 cards of 7 slices has, with those that have yet to be reported.
pub const HELD_TASKS_MAX: usize = muster_model::bounds::REPORTS_PER_MESSAGE_MAX;
/// Objects whose times one command corrects, so that no entry is large.
pub const CLOCK_RESET_MAX: usize = 5_000;
