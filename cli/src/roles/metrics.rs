//! What each metric means, in the words of its `# HELP` line. One table for all roles, since one recorder serves them.
//!
//! What must stay true: every metric that a role records is here, and nothing else (a test compares the table with the sources).

use metrics::{KeyName, Recorder, SharedString, Unit};

/// How a metric is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

use Kind::{Counter, Gauge, Histogram};

/// Every metric: its name, how it is recorded, what it means.
pub const METRICS: &[(&str, Kind, &str)] = &[
    // Control nodes.
    (
        "muster_connections",
        Gauge,
        "Connections with at least one call, by kind: peers (control nodes) or clients (all others)",
    ),
    (
        "muster_connections_dropped_total",
        Counter,
        "Connections that this node closed, by reason: silent (no traffic) or too-many (limit of their kind)",
    ),
    ("muster_task_panics_total", Counter, "Tasks of this process that panicked, which is a bug; the log says where"),
    (
        "muster_watches_ended_total",
        Counter,
        "Watches that were ended because their readers were too slow and the unread events of all watches passed the memory limit",
    ),
    (
        "muster_searches_refused_total",
        Counter,
        "Explanations and plans that were refused because too many were running",
    ),
    (
        "muster_nodes_quarantined",
        Gauge,
        "Nodes in quarantine: they failed to start tasks and take no new work until `muster undrain`",
    ),
    (
        "muster_nodes_restored",
        Gauge,
        "Nodes that wait after a restore from a backup, for an operator, their agent or other nodes: `muster machine confirm --dry-run`",
    ),
    (
        "muster_gpus_spared",
        Gauge,
        "GPUs that are kept in use against a verdict of their agent, because the pool allows no more to be withheld",
    ),
    (
        "muster_gpus_withheld",
        Gauge,
        "GPUs that take no new work, or have MIG slices that take none, by what is to be done: wait (the reason says what brings it back), reset, reboot, inspect",
    ),
    (
        "muster_agents_without_held_tasks_total",
        Counter,
        "Agents that were refused because they do not say what they run, which a restored cluster has to know: their version is too old",
    ),
    (
        "muster_floor_account_gpus",
        Gauge,
        "GPUs of the floor accounts at and below a tenant, by model and state: busy (charged), idle, lent (the part of idle that burst uses), unmet (lost \
         hardware); 0 on control nodes that do not lead",
    ),
    ("muster_floor_account_cpus", Gauge, "The same for CPUs, where an organisation guarantees some"),
    ("muster_floor_account_memory_bytes", Gauge, "The same for memory, where an organisation guarantees some"),
    (
        "muster_floor_account_series_left_out",
        Gauge,
        "Series of floor accounts that are not shown because there are more than 20,000",
    ),
    ("muster_finished_jobs", Gauge, "Finished jobs that are kept on disk"),
    (
        "muster_finished_jobs_forgotten_total",
        Counter,
        "Finished jobs whose records were deleted since the cluster was created",
    ),
    (
        "muster_finished_jobs_oldest_seconds",
        Gauge,
        "End time of the oldest kept finished job, in seconds since 1970; known after the first deletion of records",
    ),
    ("muster_raft_term", Gauge, "Raft term that this control node is in"),
    ("muster_raft_applied", Gauge, "Index of the last log entry that this control node has applied"),
    ("muster_raft_leads", Gauge, "1 while this control node is the leader, else 0"),
    ("muster_raft_leader_changes_total", Counter, "Changes of the leader that this control node has seen"),
    ("muster_raft_elections_begun_total", Counter, "Elections that this control node has started"),
    ("muster_raft_heartbeat_seconds", Histogram, "Time from a heartbeat of the leader to its answer"),
    ("muster_raft_heartbeats_lost_total", Counter, "Heartbeats of the leader that were not answered in time"),
    ("muster_raft_appends_awaited_total", Counter, "Appends that had no answer yet when the next one was due"),
    (
        "muster_clock_offset_ms",
        Gauge,
        "Milliseconds by which the clock of this node is ahead of a majority of the voters, while it leads",
    ),
    ("muster_state_machine_panics_total", Counter, "Panics while applying the log, each of which stops the node"),
    ("muster_raft_proposals_refused_total", Counter, "Calls that were refused because too many commands were waiting"),
    ("muster_raft_proposal_commands", Histogram, "Commands in one log entry"),
    (
        "muster_raft_reads_per_round",
        Histogram,
        "Linearizable reads that were confirmed by one round of messages to the voters",
    ),
    ("muster_raft_log_bytes_total", Counter, "Bytes of the log entries that this control node has written"),
    ("muster_raft_sync_seconds", Histogram, "Time of one sync of the log to disk"),
    ("muster_raft_sync_group_size", Histogram, "Writes to the log that one sync made durable"),
    ("muster_raft_snapshots_built_total", Counter, "Snapshots that this control node has made"),
    ("muster_raft_snapshots_installed_total", Counter, "Snapshots that this control node has received from the leader"),
    (
        "muster_lease_renewals_total",
        Counter,
        "Renewals of leases of nodes and cells that this control node has forwarded to the leader",
    ),
    ("muster_leases_due_total", Counter, "Expired leases of nodes and cells that the leader has acted on"),
    ("muster_jobs_submitted_total", Counter, "Jobs accepted through this control node"),
    ("muster_bindings_total", Counter, "Attempts of jobs bound to nodes through this control node"),
    (
        "muster_moves_begun_total",
        Counter,
        "Running jobs that were stopped to be started elsewhere, for gangs that waited",
    ),
    ("muster_moves_ended_total", Counter, "Moved jobs of which it is known what became of them, by state"),
    (
        "muster_moves_promised_gpu_seconds_total",
        Counter,
        "GPU-seconds that moves whose result is known were said to cost at most",
    ),
    ("muster_moves_lost_gpu_seconds_total", Counter, "GPU-seconds that these moves cost"),
    ("muster_proposals_rejected_total", Counter, "Proposals of shards that were rejected, by kind"),
    ("muster_agent_sessions", Gauge, "Nodes whose agents have a session with this control node"),
    ("muster_agents_of_other_clusters_total", Counter, "Agents of another cluster that this control node has refused"),
    ("muster_agent_refusals_total", Counter, "Sessions and messages of agents that this control node has refused"),
    ("muster_calls_denied_total", Counter, "Calls that were denied, by why"),
    (
        "muster_denials_not_recorded_total",
        Counter,
        "Denied calls that are not in this control node's record of denials",
    ),
    ("muster_connections_in_clear_text_total", Counter, "Connections in clear text that --accept-plaintext has let in"),
    ("muster_handshakes_total", Counter, "TLS handshakes, by side and outcome"),
    (
        "muster_secrets_not_opened_total",
        Counter,
        "Times that tasks had to wait because their secrets could not be opened",
    ),
    ("muster_machine_copies_total", Counter, "Machines that were suspended because two had one key"),
    (
        "muster_certificates_out_of_date_total",
        Counter,
        "Connections that were accepted although their certificate is out of date, by state",
    ),
    // Agents.
    (
        "muster_agent_other_clusters_total",
        Counter,
        "Times that this agent has connected to a control plane of another cluster",
    ),
    ("muster_agent_sessions_total", Counter, "Sessions that this agent has opened"),
    ("muster_agent_tasks_started_total", Counter, "Tasks that this agent has started"),
    (
        "muster_agent_over_share_total",
        Counter,
        "Tasks that this agent has ended for using more than their share of a GPU",
    ),
    (
        "muster_agent_fences_lifted_total",
        Counter,
        "Fences of running tasks that were gone and that this agent has put back",
    ),
    ("muster_agent_tasks_over_total", Counter, "Tasks of this agent that have ended, by state"),
    ("muster_agent_gpu_resets_total", Counter, "GPUs that this agent has reset, in drains"),
    ("muster_agent_card_failures_total", Counter, "Failed attempts to set the mode of a GPU"),
    (
        "muster_agent_cleanups_failed_total",
        Counter,
        "Clean-ups of GPUs after a task that found something left until their time was over",
    ),
    ("muster_agent_desired_refused_total", Counter, "Desired states that this agent refused, by reason"),
    (
        "muster_agent_usage_dropped_total",
        Counter,
        "Usage intervals of an earlier stream that were dropped and are estimated",
    ),
    (
        "muster_agent_gpu_xids_total",
        Counter,
        "Xids of the GPUs of this node, by code and by what Muster does about them (record, reset-when-idle, reboot, inspect, query-recovery-action)",
    ),
    ("muster_agent_gpu_answers", Gauge, "1 while the driver answers for the GPU, else 0"),
    ("muster_agent_gpu_withheld", Gauge, "1 while the whole GPU takes no new work, else 0"),
    ("muster_agent_gpu_slices_withheld", Gauge, "MIG slices of the GPU that take no new work"),
    ("muster_agent_gpu_foreign_processes", Gauge, "Processes on the GPU that Muster did not start"),
    (
        "muster_agent_gpu_figures_dropped_total",
        Counter,
        "Figures of GPUs that were dropped because they cannot be true: a sensor fails",
    ),
    ("muster_agent_sampler_cpu_microseconds_total", Counter, "Processor time that reading the telemetry of GPUs took"),
    // Shards.
    ("muster_shard_cells_held", Gauge, "Cells whose lease this shard holds"),
    ("muster_shard_leases_lost_total", Counter, "Leases of cells that this shard has lost"),
    ("muster_shard_view_revision", Gauge, "Revision of the state that this shard plans on"),
    ("muster_shard_waiting_jobs", Gauge, "Pending jobs in the cells of this shard"),
    ("muster_shard_pass_seconds", Histogram, "Time of one scheduling pass over the pending jobs of a cell"),
    ("muster_shard_decisions_total", Counter, "Scheduling decisions of this shard"),
    ("muster_shard_steps_total", Counter, "Search steps of this shard"),
    ("muster_shard_proposals_total", Counter, "Proposals of this shard, by result"),
    ("muster_shard_reservations_broken_total", Counter, "Reservations whose start time cannot be kept"),
    ("muster_shard_snapshots_total", Counter, "Snapshots of the state that this shard has loaded"),
    ("muster_shard_watch_restarts_total", Counter, "Times that this shard has opened its watch again, by reason"),
    (
        "muster_shard_changes_not_understood_total",
        Counter,
        "Changes that this shard could not read because it is older than the control nodes",
    ),
    ("muster_shard_calls_failed_total", Counter, "Calls of this shard to control nodes that failed, by call"),
    ("muster_shard_planned_openings", Gauge, "Gangs that the last plan of moves would start, by cell"),
    ("muster_shard_planned_packings", Gauge, "Shared GPUs that the last plan of moves would empty, by cell"),
    ("muster_shard_planned_moves", Gauge, "Moves of the last plan, by cell"),
    ("muster_shard_planned_conversions", Gauge, "Conversions of empty GPUs in the last plan, by cell"),
    ("muster_shard_planned_gpus_opened", Gauge, "GPUs for gangs that the last plan of moves would start, by cell"),
];

/// Gives `recorder` the meaning of every metric.
pub fn describe(recorder: &impl Recorder) {
    for (name, kind, help) in METRICS {
        let (name, help) = (KeyName::from_const_str(name), SharedString::const_str(help));
        let unit = name.as_str().ends_with("_seconds").then_some(Unit::Seconds);
        match kind {
            Counter => recorder.describe_counter(name, unit, help),
            Gauge => recorder.describe_gauge(name, unit, help),
            Histogram => recorder.describe_histogram(name, unit, help),
        }
    }
}
