//! Records of attempts stay small whatever the size of the gang, and say what matters.

use muster_model::attempt::{
    ATTEMPTS_MAX, AttemptRecord, END_RUNS_MAX, EndCount, FAILURES_MAX, NODE_RUNS_MAX, WAYS_MAX, note_attempt,
    note_failure,
};
use muster_model::task::{RankFailure, TaskEnd};
use muster_model::{Allocation, AllocationId, Attempt, JobId, NodeId, Rank, TaskPlacement, TaskState, TenantId};

/// An attempt whose rank `r` ran on `node(r)` and ended as `state(r)`.
fn held(ranks: u32, node: impl Fn(u32) -> u32, state: impl Fn(u32) -> TaskState) -> Allocation {
    let task = |rank| TaskPlacement { node: NodeId(node(rank)), devices: Vec::new() };
    let tasks = (0..ranks).map(task).collect();
    Allocation {
        attempt: Attempt(3),
        task_states: (0..ranks).map(state).collect(),
        bound_ms: 5,
        ..Allocation::usual(AllocationId(7), JobId(1), TenantId(1), tasks)
    }
}

fn record(held: &Allocation) -> AttemptRecord {
    AttemptRecord::of(held, Some(6), 9, "it ended".to_owned())
}

#[test]
fn the_largest_gang_has_a_small_record() {
    let states = |rank: u32| match rank % 4 {
        0 => TaskState::Exited { code: (rank % 251) as i32 },
        1 => TaskState::Signaled { signal: (rank % 31) as i32 },
        2 => TaskState::StartFailed { reason: "x".repeat(10_000), by_node: rank % 8 == 2 },
        _ => TaskState::Stopped,
    };
    let record = record(&held(32_768, |rank| rank / 8, states));
    assert_eq!(record.ends.len(), WAYS_MAX);
    assert!(record.ends.is_sorted_by_key(|count| std::cmp::Reverse(count.ranks)), "most of them first");
    let counted: u32 = record.ends.iter().map(|count| count.ranks).sum();
    assert_eq!(counted + record.others, 32_768, "every rank is counted");
    assert_eq!(record.nodes.len(), 4_096);
    assert_eq!(record.end_runs.len(), END_RUNS_MAX);
    let bytes = postcard::to_stdvec(&record).expect("it can be stored").len();
    assert!(bytes < 20_000, "{bytes} bytes");
}

#[test]
fn a_rank_is_found_on_its_node() {
    let record = record(&held(7, |rank| [4, 4, 9, 9, 9, 4, 2][rank as usize], |_| TaskState::Exited { code: 0 }));
    let nodes: Vec<Option<u32>> = (0..8).map(|rank| record.node_of(Rank(rank)).map(|node| node.0)).collect();
    assert_eq!(nodes, [Some(4), Some(4), Some(9), Some(9), Some(9), Some(4), Some(2), None]);
    assert_eq!(record.nodes.len(), 4, "neighbours on one node are one entry");
    assert_eq!(record.ends, [EndCount { end: TaskEnd::Exited { code: 0 }, ranks: 7 }]);
}

#[test]
fn each_rank_is_found_with_its_end() {
    let exited = |code| TaskState::Exited { code };
    let record = record(&held(512, |rank| rank / 8, |rank| exited(i32::from(rank == 7))));
    let run = |code, ranks| EndCount { end: TaskEnd::Exited { code }, ranks };
    assert_eq!(record.end_runs, [run(0, 7), run(1, 1), run(0, 504)]);
}

#[test]
fn the_first_failures_are_kept_in_the_order_of_their_times() {
    let mut failures = Vec::new();
    let failure = |rank: u32, at_ms| RankFailure {
        rank: Rank(rank),
        node: NodeId(1),
        end: TaskEnd::Exited { code: 1 },
        reason: String::new(),
        at_ms,
    };
    for rank in 0..1_000_u32 {
        // Heard of in another order than they happened.
        note_failure(&mut failures, failure(rank, 1_000 + u64::from(rank * 617 % 1_000)));
    }
    assert_eq!(failures.len(), FAILURES_MAX);
    assert_eq!(failures.iter().map(|failure| failure.at_ms).collect::<Vec<_>>(), (1_000..1_008).collect::<Vec<_>>());
    note_failure(&mut failures, failure(77, 1));
    assert_eq!((failures[0].rank, failures.len()), (Rank(77), FAILURES_MAX));
}

#[test]
fn records_of_a_job_are_bounded_and_the_oldest_lose_first() {
    let mut records = Vec::new();
    for attempt in 1..=40 {
        let held = Allocation { attempt: Attempt(attempt), ..held(3_000, |rank| rank, |_| TaskState::Stopped) };
        note_attempt(&mut records, record(&held));
    }
    let kept: Vec<u32> = records.iter().map(|record| record.attempt.0).collect();
    assert_eq!(kept, (41 - ATTEMPTS_MAX as u32..=40).collect::<Vec<_>>());
    let with_nodes: Vec<u32> = records.iter().filter(|one| !one.nodes.is_empty()).map(|one| one.attempt.0).collect();
    assert_eq!(with_nodes, [39, 40], "of {NODE_RUNS_MAX} entries two attempts take 6,000");
}
