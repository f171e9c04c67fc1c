//! The lease table by itself, on times that are given to it.

use super::LeaseConfig;
use super::table::Table;
use muster_control_core::{Command, Decided, Entry, LeasedBinding, State, execute};
use muster_model::node::NodeSpec;
use muster_model::request::TaskRequest;
use muster_model::tenant::TenantSpec;
use muster_model::*;
use std::time::Duration;
use tokio::time::Instant;

fn node_spec(name: &str, cell: &str) -> NodeSpec {
    NodeSpec { cell: cell.to_owned(), ..NodeSpec::usual(name, Vec::new()) }
}

struct Fixture {
    state: State,
    start: Instant,
    config: LeaseConfig,
    table: Table,
}

impl Fixture {
    /// A cell with `nodes` nodes, watched by a leader that was elected at second 0.
    fn new(nodes: usize) -> Self {
        let start = Instant::now();
        let mut fixture =
            Fixture { state: State::new(1), start, config: LeaseConfig::default(), table: Table::new(1, start) };
        for index in 0..nodes {
            fixture.run(Command::JoinNode {
                spec: node_spec(&format!("n{index}"), "c"),
                usage_incarnation: None,
                agent: 1,
            });
        }
        fixture
    }

    fn run(&mut self, command: Command) -> Decided {
        let entry = Entry { now_ms: 1_000, commands: vec![command] };
        let decided = execute(&mut self.state, &entry).decided;
        assert!(decided.iter().all(Result::is_ok), "{decided:?}");
        decided
    }

    fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    /// What is due at that second; it is carried out.
    fn due(&mut self, second: u64) -> Vec<Command> {
        let now = self.at(second);
        let due = self.table.due(&self.state, now, &self.config);
        for command in due.clone() {
            self.run(command);
        }
        due
    }

    fn heard(&mut self, node: u32, second: u64) -> bool {
        let (id, now) = (NodeId(node), self.at(second));
        let epoch = self.state.nodes[&id].epoch;
        self.table.renew_node(&self.state, id, epoch, now)
    }

    fn health(&self, node: u32) -> NodeHealth {
        self.state.nodes[&NodeId(node)].health
    }

    /// A task with this disconnect grace on node 1.
    fn bind_on_first(&mut self, disconnect_grace_s: u64) {
        self.run(Command::ApplyTenants { tenants: vec![TenantSpec::usual("t")] });
        let request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 1_000, memory_mib: 16 };
        let spec = JobSpec { grace_s: 1, disconnect_grace_s, ..JobSpec::usual("t", request, &["true"]) };
        let specs = vec![spec.validate().expect("a good job")];
        self.run(Command::Submit {
            request_id: "r".to_owned(),
            issued_ms: 1_000,
            payload_hash: 1,
            specs,
            ended: Vec::new(),
        });
        self.run(Command::AcquireCell { cell: CellId(1), shard: "s".to_owned() });
        let tasks = vec![TaskPlacement { node: NodeId(1), devices: Vec::new() }];
        let (cell, epoch) = (CellId(1), self.state.cells[&CellId(1)].epoch);
        self.run(Command::Bind(LeasedBinding { cell, epoch, job: JobId(1), attempt: Attempt(1), model: None, tasks }));
    }
}

#[test]
fn a_node_turns_silent_then_is_fenced_after_grace_and_margin() {
    let mut f = Fixture::new(1);
    f.bind_on_first(60);
    assert!(f.heard(1, 1));
    assert_eq!(f.due(6).len(), 0, "five seconds of silence are allowed");
    assert_eq!(f.due(7), [Command::MarkSilent { node: NodeId(1), epoch: Epoch(1) }]);
    // 60 s of the job's grace and 10 s of margin after second 1. The cell's lease ends on the way.
    for second in 8..=71 {
        let fences = f.due(second).into_iter().filter(|due| matches!(due, Command::FenceNode { .. })).count();
        assert_eq!(fences, 0, "fenced at second {second}");
    }
    assert_eq!(f.due(72), [Command::FenceNode { node: NodeId(1), epoch: Epoch(1) }]);
    assert_eq!(f.health(1), NodeHealth::Down);
    assert!(!f.table.renew_node(&f.state, NodeId(1), Epoch(1), f.at(73)), "a fenced epoch cannot be renewed");
    assert!(!f.heard(1, 73), "a fenced node joins again before it is heard of");
    assert_eq!(f.due(74), []);
}

#[test]
fn a_silent_node_that_is_heard_of_is_ready_again() {
    let mut f = Fixture::new(1);
    assert!(f.heard(1, 0));
    assert_eq!(f.due(6).len(), 1);
    assert!(f.heard(1, 7));
    assert_eq!(f.due(8), [Command::MarkReady { node: NodeId(1), epoch: Epoch(1) }]);
    assert_eq!(f.due(9), []);
}

#[test]
fn of_two_renewals_that_pass_each_other_the_later_counts() {
    let mut f = Fixture::new(1);
    assert!(f.heard(1, 4));
    assert!(f.heard(1, 2));
    assert_eq!(f.due(9), [], "heard of at second 4");
    assert_eq!(f.due(10).len(), 1);
}

#[test]
fn a_new_leader_counts_afresh() {
    let mut f = Fixture::new(1);
    assert!(f.heard(1, 0));
    assert_eq!(f.due(12).len(), 1, "silent under the first leader");
    f.table = Table::new(2, f.at(12));
    for second in 12..=22 {
        assert_eq!(f.due(second), [], "at second {second}: neither heard of nor silent long enough for this leader");
    }
    assert_eq!(f.due(23), [Command::FenceNode { node: NodeId(1), epoch: Epoch(1) }]);
}

#[test]
fn joining_is_being_heard_of() {
    let mut f = Fixture::new(1);
    f.due(0);
    assert_eq!(f.due(6).len(), 1);
    f.run(Command::JoinNode { spec: node_spec("n0", "c"), usage_incarnation: None, agent: 1 });
    assert_eq!(f.due(100), [], "the join is newer than the last heartbeat");
    assert_eq!(f.health(1), NodeHealth::Ready);
}

#[test]
fn mass_silence_holds_fences_back_for_a_while() {
    let mut f = Fixture::new(8);
    for node in 1..=3 {
        assert!(f.heard(node, 100));
    }
    assert_eq!(f.due(101).len(), 5, "five of eight are silent");
    for node in 1..=3 {
        assert!(f.heard(node, 1_000));
    }
    assert_eq!(f.due(1_001), [], "more than half are silent at once: no fence");
    // Held back since second 1,001, when it was first seen.
    let end_s = 1_001 + f.config.mass_silence_hold_ms / 1_000;
    for node in 1..=3 {
        assert!(f.heard(node, end_s));
    }
    assert_eq!(f.due(end_s), [], "still held back");
    assert_eq!(f.due(end_s + 1).len(), 5, "and no longer");
}

#[test]
fn half_of_a_cell_is_no_mass() {
    let mut f = Fixture::new(8);
    for node in 1..=4 {
        assert!(f.heard(node, 100));
    }
    assert_eq!(f.due(101).len(), 4);
    for node in 1..=4 {
        assert!(f.heard(node, 111));
    }
    assert_eq!(f.due(112).len(), 4, "exactly half may be fenced");
}

#[test]
fn a_cell_expires_under_the_epoch_that_was_not_renewed() {
    let mut f = Fixture::new(1);
    f.run(Command::AcquireCell { cell: CellId(1), shard: "one".to_owned() });
    let cells =
        |due: Vec<Command>| due.into_iter().filter(|due| matches!(due, Command::ExpireCell { .. })).collect::<Vec<_>>();
    assert_eq!(cells(f.due(1)), [], "the lease starts when it is first seen");
    let now = f.at(2);
    assert!(f.table.renew_cell(&f.state, CellId(1), Epoch(1), "one", now));
    assert!(!f.table.renew_cell(&f.state, CellId(1), Epoch(1), "two", now), "another's lease");
    assert!(!f.table.renew_cell(&f.state, CellId(1), Epoch(0), "one", now), "an older epoch");
    assert_eq!(cells(f.due(4)), []);
    assert_eq!(cells(f.due(5)), [Command::ExpireCell { cell: CellId(1), epoch: Epoch(1) }]);
    assert_eq!(cells(f.due(6)), [], "nobody holds it");
    f.run(Command::AcquireCell { cell: CellId(1), shard: "two".to_owned() });
    assert_eq!(cells(f.due(7)), [], "a new epoch starts its own lease");
}
