//! States that come from a backup: what is void, what is never given out again, and what becomes of the tasks that ran on meanwhile.

#[allow(dead_code, reason = "the histories are shared with other tests, which look at more of each step")]
mod common;

use common::{Chance, Story, seeds};
use muster_control_core::authz::{About, Ask, Shown, admits, authorize};
use muster_control_core::restoration::review;
use muster_control_core::task_report::TaskReport;
use muster_control_core::{Command, Done, Entry, Reject, Restoration, State, execute};
use muster_model::bounds::GRACE_S_MAX;
use muster_model::identity::{Author, CredentialKind, Enrolled, Machine, MachineRole, MachineStanding, Subject};
use muster_model::node::NodeSpec;
use muster_model::task::CleanUp;
use muster_model::{
    AllocationId, AllocationState, Epoch, HeldTask, JobId, Node, NodeHealth, NodeId, Object, Place, Pool, Principal,
    Rank, Role, Rpc, TaskState,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NEWEST_LEVEL: u32 = 6;
const NOW_MS: u64 = 1_000_000;

fn decide(state: &mut State, now_ms: u64, command: Command) -> Result<Done, Reject> {
    let executed = execute(state, &Entry { now_ms, commands: vec![command] });
    executed.decided.into_iter().next().expect("one answer")
}

fn done(state: &mut State, command: Command) -> Done {
    decide(state, NOW_MS, command).expect("it is allowed")
}

/// As restoring does it: the level first, then the new history.
fn begin(state: &mut State, now_ms: u64) {
    let begin = Restoration::Begin { member: 1, key_sha256: Some([9; 32]), backup_ms: state.meta.now_ms, above: 0 };
    let commands = vec![Command::RaiseFeatureLevel { level: NEWEST_LEVEL }, Command::Restore(begin)];
    let executed = execute(state, &Entry { now_ms, commands });
    assert!(executed.decided.iter().all(Result::is_ok), "{:?}", executed.decided);
}

fn pin(state: &mut State, machine: Principal, key: u8) {
    done(state, Command::PinMachines { machines: vec![(machine, [key; 32])], replace: false });
}

#[test]
fn no_credential_of_the_backup_is_good_in_the_new_history() {
    let mut state = State::new(7);
    state.meta.feature_level = NEWEST_LEVEL;
    let [node, shard, suspended] =
        ["node:n1", "shard:s1", "node:n2"].map(|name| name.parse::<Principal>().expect("a name"));
    pin(&mut state, node.clone(), 1);
    pin(&mut state, shard.clone(), 2);
    pin(&mut state, suspended.clone(), 3);
    pin(&mut state, Principal::Member(1), 4);
    pin(&mut state, Principal::Member(2), 5);
    done(&mut state, Command::SuspendMachine { machine: suspended.clone(), reason: "stolen".to_owned() });
    let grant =
        |subject| Command::PutGrant { subject, role: Role::Admin, at: None, until_ms: None, reason: String::new() };
    done(&mut state, grant(Subject::User("root".to_owned())));
    let service: Principal = "service:research/ci".parse().expect("a name");
    for (kind, principal) in
        [(CredentialKind::Session, Principal::User("root".to_owned())), (CredentialKind::Token, service)]
    {
        let scope = (kind == CredentialKind::Token).then(|| (Role::Admin, String::new()));
        let put = Command::PutCredential {
            kind,
            principal,
            groups: Vec::new(),
            secret_sha256: [8; 32],
            ttl_ms: 3_600_000,
            scope,
            from: Vec::new(),
            note: String::new(),
        };
        // Whether this very service may have a token is not what is tested here.
        let _ = decide(&mut state, NOW_MS, put);
    }
    let token = Command::PutJoinToken {
        secret_sha256: [7; 32],
        role: MachineRole::Node,
        names: BTreeSet::from(["n3".to_owned()]),
        enrolled: Enrolled::default(),
        ttl_ms: 3_600_000,
        rejoin: false,
    };
    let Done::Numbered { id: join_token } = done(&mut state, token) else { panic!("no number") };
    assert!(!state.credentials.is_empty() && !state.join_tokens.is_empty());
    let (credentials, incarnation) = (state.meta.next_credential, state.meta.incarnation);

    begin(&mut state, NOW_MS + 5_000);
    state.check().expect("a whole state");
    assert!(state.credentials.is_empty() && state.join_tokens.is_empty());
    assert!(state.meta.next_credential > credentials + 1_000 && state.meta.incarnation > incarnation);
    let enroll = Command::EnrollMachine {
        token: join_token,
        secret_sha256: [7; 32],
        machine: "node:n3".parse().expect("a name"),
        key_sha256: [6; 32],
    };
    assert!(decide(&mut state, NOW_MS + 6_000, enroll).is_err(), "the join token is void");
    let standing = |state: &State, machine: &Principal| {
        state.machines.get(&machine.to_string()).map(|known| known.standing.clone())
    };
    assert_eq!(standing(&state, &node), Some(MachineStanding::Restored));
    assert!(matches!(standing(&state, &suspended), Some(MachineStanding::Suspended { .. })), "it stays suspended");
    let other = Principal::Member(2);
    assert!(
        matches!(standing(&state, &other), Some(MachineStanding::Suspended { .. })),
        "the other control nodes join anew"
    );
    let author = Author { principal: other, ..Author::default() };
    let ask = Ask { rpc: Rpc::PeerAppendEntries, about: About::Nothing };
    assert!(authorize(&state, NOW_MS, &author, &ask).is_err(), "one of before must not pass for a new one");
    let own: &Machine = &state.machines["member:1"];
    assert_eq!((own.key_sha256, &own.standing), ([9; 32], &MachineStanding::Active));
    // A shard of the backup gets no cell, until it is confirmed.
    let may = |state: &State| {
        let author = Author { principal: shard.clone(), ..Author::default() };
        authorize(state, NOW_MS, &author, &Ask { rpc: Rpc::ShardsWatch, about: About::Nothing }).map(drop)
    };
    let denied = may(&state).expect_err("it is not confirmed").to_string();
    assert!(denied.contains("muster machine confirm"), "{denied}");
    let confirm = |machines: &[&Principal]| {
        let machines = machines.iter().map(|machine| (*machine).clone()).collect();
        Command::Restore(Restoration::Confirm { machines, gone: false })
    };
    let unknown: Principal = "shard:other".parse().expect("a name");
    assert!(matches!(decide(&mut state, NOW_MS, confirm(&[&unknown])), Err(Reject::NotFound { .. })));
    done(&mut state, confirm(&[&shard]));
    may(&state).expect("it is confirmed");
    assert_eq!(standing(&state, &node), Some(MachineStanding::Restored), "it was not named");
    done(&mut state, confirm(&[]));
    assert_eq!(standing(&state, &node), Some(MachineStanding::Active));
    assert!(
        matches!(standing(&state, &suspended), Some(MachineStanding::Suspended { .. })),
        "confirming is no resuming"
    );
}

#[test]
fn two_restores_of_one_backup_are_two_histories() {
    let mut state = State::new(7);
    state.meta.feature_level = NEWEST_LEVEL;
    let [mut again, mut late] = [state.clone(), state.clone()];
    begin(&mut state, 10_000_000);
    begin(&mut again, 10_060_000);
    assert!(again.meta.incarnation > state.meta.incarnation && state.meta.incarnation > 1);
    // What the first has given out within a minute, the second does not.
    assert!(again.meta.next_job.0 >= state.meta.next_job.0 + 600);
    assert!(again.meta.next_allocation.0 >= state.meta.next_allocation.0 + 60_000);
    // Made on a host whose clock is behind.
    let begin = |above| Command::Restore(Restoration::Begin { member: 1, key_sha256: None, backup_ms: 0, above });
    let mut refused = late.clone();
    assert!(matches!(decide(&mut refused, NOW_MS, begin(u64::MAX)), Err(Reject::Invalid(_))));
    done(&mut late, begin(again.meta.incarnation));
    assert_eq!(late.meta.incarnation, again.meta.incarnation + 1);
}

fn join(state: &mut State, name: &str) -> (NodeId, Epoch) {
    let place = Place {
        region: "r".to_owned(),
        zone: "z".to_owned(),
        block: "b".to_owned(),
        leaf: "l".to_owned(),
        nvlink_domain: String::new(),
    };
    let spec = NodeSpec {
        name: name.to_owned(),
        address: "10.0.0.1".to_owned(),
        place,
        cell: "c1".to_owned(),
        pool: Pool::standard().name,
        gpus: Vec::new(),
        cpu_milli: 1_000,
        memory_mib: 1_024,
        driver: String::new(),
        labels: BTreeMap::new(),
        boot_id: "b".to_owned(),
        proofs: Vec::new(),
    };
    let join = Command::JoinNode { spec, usage_incarnation: None, agent: 5 };
    match done(state, join) {
        Done::Joined { node, epoch, .. } => (node, epoch),
        other => panic!("joining gave {other:?}"),
    }
}

fn unknown_task() -> HeldTask {
    HeldTask {
        allocation: AllocationId(77),
        rank: Rank(0),
        job: JobId(77),
        node_epoch: Epoch(1),
        disconnect_grace_s: 1_800,
    }
}

fn holds(node: NodeId, epoch: Epoch, tasks: Vec<HeldTask>, shown: Option<Shown>) -> Command {
    Command::Restore(Restoration::Held { node, epoch, tasks, shown })
}

fn confirms(name: &str, gone: bool) -> Command {
    Command::Restore(Restoration::Confirm { machines: BTreeSet::from([Principal::Node(name.to_owned())]), gone })
}

/// A restored fleet of these nodes.
fn restored(names: &[&str]) -> State {
    let mut state = State::new(7);
    state.meta.feature_level = NEWEST_LEVEL;
    for name in names {
        join(&mut state, name);
    }
    begin(&mut state, NOW_MS);
    state
}

#[test]
fn an_operator_who_undrains_a_restored_node_does_not_confirm_it() {
    let mut state = restored(&["n1"]);
    let (node, epoch) = join(&mut state, "n1");
    done(&mut state, holds(node, epoch, vec![unknown_task()], None));
    for drained in [true, false] {
        let set = Command::SetDrained { node, drained, reason: String::new(), force: false };
        done(&mut state, set);
    }
    assert!(!state.nodes[&node].accepts_work(), "{:?}", state.nodes[&node].notes.restored);
}

#[test]
fn a_node_that_joined_after_the_backup_says_what_it_runs_before_others_work() {
    let mut state = restored(&["n1"]);
    let (late, late_epoch) = join(&mut state, "n2");
    let (node, epoch) = join(&mut state, "n1");
    done(&mut state, holds(node, epoch, Vec::new(), None));
    done(&mut state, confirms("n1", false));
    assert!(!state.nodes[&node].accepts_work(), "what runs on n2 nobody knows");
    done(&mut state, holds(late, late_epoch, vec![unknown_task()], None));
    done(&mut state, confirms("n2", false));
    assert!(!state.nodes[&node].accepts_work(), "it runs what the backup does not know");
    report(&mut state, late, &unknown_task());
    assert!(state.nodes[&node].accepts_work() && state.nodes[&late].accepts_work());
    // One that comes when all others work waits by itself.
    let (last, last_epoch) = join(&mut state, "n3");
    done(&mut state, holds(last, last_epoch, vec![unknown_task()], None));
    assert!(!state.nodes[&last].accepts_work() && state.nodes[&node].accepts_work());
}

/// The task has ended.
fn report(state: &mut State, node: NodeId, task: &HeldTask) {
    let epoch = state.nodes[&node].epoch;
    done(state, Command::ReportTasks { node, epoch, reports: vec![stopped(task)] });
}

fn stopped(task: &HeldTask) -> TaskReport {
    TaskReport {
        allocation: task.allocation,
        rank: task.rank,
        state: TaskState::Stopped,
        ended_ms: None,
        checkpoint: None,
        clean_up: CleanUp::default(),
    }
}

#[test]
fn a_node_is_fenced_only_when_what_nobody_knows_has_passed_its_grace() {
    let mut state = restored(&["n1"]);
    let node = state.index().node_ids["n1"];
    assert_eq!(state.nodes[&node].health, NodeHealth::Silent, "it was ready, and nobody has heard of it");
    assert_eq!(state.disconnect_grace_s(node), GRACE_S_MAX, "what it runs, it has not said");
    let (_, epoch) = join(&mut state, "n1");
    done(&mut state, holds(node, epoch, vec![unknown_task()], None));
    assert_eq!(state.disconnect_grace_s(node), 1_800);
    done(&mut state, confirms("n1", false));
    assert_eq!(state.disconnect_grace_s(node), 1_800, "it is being stopped, and is not over");
    report(&mut state, node, &unknown_task());
    assert_eq!(state.disconnect_grace_s(node), 0);
}

#[test]
fn a_node_that_was_down_in_the_backup_may_run_something_now() {
    let mut state = State::new(7);
    state.meta.feature_level = NEWEST_LEVEL;
    let ((n1, epoch), (n2, _)) = (join(&mut state, "n1"), join(&mut state, "n2"));
    done(&mut state, Command::MarkSilent { node: n1, epoch });
    done(&mut state, Command::FenceNode { node: n1, epoch });
    begin(&mut state, NOW_MS);
    let (_, epoch) = join(&mut state, "n2");
    done(&mut state, holds(n2, epoch, Vec::new(), None));
    done(&mut state, Command::Restore(Restoration::Confirm { machines: BTreeSet::new(), gone: false }));
    assert!(!state.nodes[&n2].accepts_work(), "n1 may have come back after the backup");
    let epoch = state.nodes[&n1].epoch;
    done(&mut state, Command::FenceNode { node: n1, epoch });
    assert!(state.nodes[&n2].accepts_work());
}

#[test]
fn a_restored_node_leaves_the_fleet_only_when_nothing_of_it_can_run() {
    let mut state = restored(&["n1", "n2"]);
    let (n1, n2) = (state.index().node_ids["n1"], state.index().node_ids["n2"]);
    let removed = decide(&mut state, NOW_MS, Command::RemoveNode { node: n1 });
    assert!(matches!(&removed, Err(Reject::InUse { why, .. }) if why.contains("--gone node:n1")), "{removed:?}");
    let (_, epoch) = join(&mut state, "n2");
    done(&mut state, holds(n2, epoch, Vec::new(), None));
    done(&mut state, confirms("n2", false));
    assert!(matches!(decide(&mut state, NOW_MS, confirms("n2", true)), Err(Reject::InUse { .. })), "it is connected");
    assert!(!state.nodes[&n2].accepts_work());
    let all = Command::Restore(Restoration::Confirm { machines: BTreeSet::new(), gone: true });
    assert!(matches!(decide(&mut state, NOW_MS, all), Err(Reject::Invalid(_))), "they are named");
    done(&mut state, confirms("n1", true));
    assert_eq!((state.nodes[&n1].health, state.nodes[&n2].accepts_work()), (NodeHealth::Down, true));
    done(&mut state, Command::RemoveNode { node: n1 });
}

#[test]
fn a_node_that_leaves_and_comes_back_while_others_wait_is_heard_again() {
    let mut state = restored(&["n1", "n2"]);
    let (n1, epoch) = join(&mut state, "n1");
    done(&mut state, holds(n1, epoch, Vec::new(), None));
    done(&mut state, Command::Restore(Restoration::Confirm { machines: BTreeSet::new(), gone: false }));
    assert!(!state.awaits_held("n1") && state.awaits_held("n2"));
    done(&mut state, Command::RemoveNode { node: n1 });
    assert!(state.awaits_held("n1"), "by its name alone it may be one that nobody here knows");
    let (n1, epoch) = join(&mut state, "n1");
    assert!(state.awaits_held("n1"), "and it is not welcomed without");
    done(&mut state, holds(n1, epoch, Vec::new(), None));
    assert!(!state.awaits_held("n1") && !state.nodes[&n1].accepts_work());
}

#[test]
fn a_host_that_was_given_up_is_confirmed_with_the_key_that_it_comes_back_with() {
    let mut state = State::new(7);
    state.meta.feature_level = NEWEST_LEVEL;
    join(&mut state, "n1");
    let machine = Principal::Node("n1".to_owned());
    pin(&mut state, machine.clone(), 1);
    let keyless = Restoration::Begin { member: 1, key_sha256: None, backup_ms: 0, above: 0 };
    let refused = decide(&mut state.clone(), NOW_MS, Command::Restore(keyless));
    assert!(matches!(refused, Err(Reject::Invalid(_))), "this control node has no key, and machines have: {refused:?}");
    begin(&mut state, NOW_MS + 5_000);
    done(&mut state, confirms("n1", true));
    done(&mut state, Command::Restore(Restoration::Confirm { machines: BTreeSet::new(), gone: false }));
    assert_eq!(state.machines["node:n1"].standing, MachineStanding::Restored, "nobody knows its key");
    let (node, epoch) = join(&mut state, "n1");
    // Of two that come, the one with the newer certificate, until one is confirmed.
    for (key, issued_ms) in [(2, NOW_MS + 1), (3, NOW_MS + 2), (2, NOW_MS + 1)] {
        done(&mut state, holds(node, epoch, Vec::new(), Some(shown(key, issued_ms))));
    }
    assert!(!state.nodes[&node].accepts_work(), "it was given up, and waits for an operator again");
    done(&mut state, confirms("n1", false));
    assert_eq!(state.machines["node:n1"].standing, MachineStanding::Active);
    assert!(admits(&state, &machine, &shown(3, NOW_MS + 2)).is_ok() && state.nodes[&node].accepts_work());
    assert!(admits(&state, &machine, &shown(1, NOW_MS)).is_err());
}

#[test]
fn a_host_that_was_installed_anew_after_the_backup_comes_in_when_the_one_before_is_said_to_be_gone() {
    let mut state = restored(&["n1", "n2"]);
    let (n1, n2) = (state.index().node_ids["n1"], state.index().node_ids["n2"]);
    let (_, epoch) = join(&mut state, "n2");
    done(&mut state, holds(n2, epoch, Vec::new(), None));
    let spec = NodeSpec { boot_id: "another".to_owned(), ..state.nodes[&n1].spec.clone() };
    let anew = Command::JoinNode { spec, usage_incarnation: None, agent: 6 };
    // What the agent of the backup may run, nobody knows.
    assert!(matches!(done(&mut state, anew.clone()), Done::TurnedAway { why } if why.contains("--gone node:n1")));
    assert!(review(&state).nodes.iter().any(|node| node.name == "n1" && node.has_rival));
    done(&mut state, Command::Restore(Restoration::Confirm { machines: BTreeSet::new(), gone: false }));
    done(&mut state, confirms("n1", true));
    assert!(!state.nodes[&n2].accepts_work(), "the new agent may have served the node after the backup");
    let Done::Joined { epoch, .. } = done(&mut state, anew) else { panic!("it is let in") };
    done(&mut state, holds(n1, epoch, vec![unknown_task()], None));
    assert!(!state.nodes[&n2].accepts_work(), "and runs something");
    report(&mut state, n1, &unknown_task());
    assert!(state.nodes[&n1].accepts_work() && state.nodes[&n2].accepts_work());
}

#[test]
fn a_machine_that_has_renewed_its_key_since_the_backup_is_confirmed_with_the_new_one() {
    for confirmed_first in [false, true] {
        let mut state = State::new(7);
        state.meta.feature_level = NEWEST_LEVEL;
        let (node, machine) = (join(&mut state, "n1").0, Principal::Node("n1".to_owned()));
        pin(&mut state, machine.clone(), 1);
        pin(&mut state, Principal::Shard("s1".to_owned()), 2);
        begin(&mut state, NOW_MS + 5_000);
        assert!(admits(&state, &machine, &shown(3, NOW_MS + 1)).is_ok(), "a newer certificate");
        assert!(admits(&state, &machine, &shown(3, NOW_MS - 1)).is_err(), "one of before the pinned key");
        let shard = Principal::Shard("s1".to_owned());
        assert!(admits(&state, &shard, &shown(3, NOW_MS + 1)).is_err(), "of shards the key is pinned again by hand");
        if confirmed_first {
            done(&mut state, confirms("n1", false));
            assert!(admits(&state, &machine, &shown(3, NOW_MS + 1)).is_ok(), "it has yet to come back");
        }
        let (_, epoch) = join(&mut state, "n1");
        done(&mut state, holds(node, epoch, Vec::new(), Some(shown(3, NOW_MS + 1))));
        if !confirmed_first {
            assert_eq!(state.machines["node:n1"].standing, MachineStanding::Restored);
            done(&mut state, confirms("n1", false));
        }
        assert_eq!(state.machines["node:n1"].standing, MachineStanding::Active);
        assert!(admits(&state, &machine, &shown(3, NOW_MS + 1)).is_ok());
        for (key, issued_ms) in [(1, NOW_MS), (4, NOW_MS + 20_000)] {
            assert!(admits(&state, &machine, &shown(key, issued_ms)).is_err(), "key {key} is nobody's");
        }
    }
}

fn shown(key: u8, issued_ms: u64) -> Shown {
    Shown { key_sha256: [key; 32], issued_ms }
}

/// What runs on each node: the tasks that are not over, with the epochs under which they were started as far as the state knows.
fn running(state: &State) -> BTreeMap<NodeId, Vec<HeldTask>> {
    let mut held: BTreeMap<NodeId, Vec<HeldTask>> = state.nodes.keys().map(|id| (*id, Vec::new())).collect();
    for allocation in state.allocations.values() {
        for (rank, (task, seen)) in allocation.tasks.iter().zip(&allocation.task_states).enumerate() {
            let Some(node) = state.nodes.get(&task.node).filter(|_| !seen.is_over()) else { continue };
            let rank = Rank(rank as u32);
            let disconnect_grace_s = state.jobs[&allocation.job].spec.disconnect_grace_s;
            let (job, node_epoch) = (allocation.job, node.epoch);
            let one = HeldTask { allocation: allocation.id, rank, job, node_epoch, disconnect_grace_s };
            held.entry(task.node).or_default().push(one);
        }
    }
    held
}

fn live_tasks(state: &State) -> BTreeSet<(AllocationId, Rank)> {
    running(state).into_values().flatten().map(|task| (task.allocation, task.rank)).collect()
}

/// While one node that may run something is not clear, none takes work.
fn is_held_back(state: &State) -> Result<(), String> {
    let is_open = |node: &&Arc<Node>| {
        node.health != NodeHealth::Down && node.notes.restored.as_ref().is_some_and(|restored| !restored.is_clear())
    };
    let open = state.nodes.values().find(is_open);
    let works = state.nodes.values().find(|node| node.accepts_work());
    match open.zip(works) {
        Some((open, works)) => Err(format!("{} takes work while {} is not clear", works.spec.name, open.spec.name)),
        None => Ok(()),
    }
}

/// A host that never comes back, once what ran there has ended by itself; or the operator says that it is off.
fn is_given_up(state: &mut State, now_ms: u64, node: NodeId, is_fenced: bool) -> Result<(), String> {
    let (name, epoch) = (state.nodes[&node].spec.name.clone(), state.nodes[&node].epoch);
    let steps = match is_fenced {
        true => vec![Command::FenceNode { node, epoch }, confirms(&name, false)],
        // Where another agent asks to be it, that one is waited for, until it is said to be gone too.
        false => vec![confirms(&name, true); 1 + usize::from(state.nodes[&node].notes.rival.is_some())],
    };
    for command in steps {
        decide(state, now_ms, command).map_err(|reject| format!("{name}: {reject}"))?;
        state.check().map_err(|broken| format!("{name}, given up: {broken}"))?;
        is_held_back(state)?;
    }
    Ok(())
}

/// A backup of a random history, what that history came to afterwards, and the restored state with the agents of the latter. Gives how many tasks were
/// kept, gone and unknown.
fn restores(seed: u64) -> Result<[usize; 3], String> {
    let mut scenario = Story::new(seed);
    let mut chance = Chance::new(seed ^ 0x5eed);
    let execute_next = |scenario: &mut Story| {
        let entry = scenario.next_entry();
        scenario.execute(&entry);
    };
    (0..60 + chance.below(200)).for_each(|_| execute_next(&mut scenario));
    let mut state = scenario.state.clone();
    (0..chance.below(60)).for_each(|_| execute_next(&mut scenario));
    let (lost, now_ms) = (&scenario.state, scenario.now_ms + 1_000);
    begin(&mut state, now_ms);
    state.check().map_err(|broken| format!("after the beginning: {broken}"))?;
    for (kind, next, before) in [
        ("job", state.meta.next_job.0, lost.meta.next_job.0),
        ("allocation", state.meta.next_allocation.0, lost.meta.next_allocation.0),
        ("node", state.meta.next_node.0.into(), lost.meta.next_node.0.into()),
        ("tenant", state.meta.next_tenant.0.into(), lost.meta.next_tenant.0.into()),
    ] {
        if next < before {
            return Err(format!("the number {next} of a {kind} may be given out twice"));
        }
    }
    if let Some(open) = state.nodes.values().find(|node| node.accepts_work()) {
        return Err(format!("node {} takes work before anybody has confirmed it", open.spec.name));
    }
    let (of_backup, mut there) = (live_tasks(&state), running(lost));
    let mut nodes: Vec<NodeId> = state.nodes.keys().copied().collect();
    let mut counts = [0; 3];
    while let Some(at) = (!nodes.is_empty()).then(|| chance.below(nodes.len() as u64) as usize) {
        let node = nodes.swap_remove(at);
        let (name, epoch) = (state.nodes[&node].spec.name.clone(), state.nodes[&node].epoch);
        if chance.one_in(6) {
            there.remove(&node);
            is_given_up(&mut state, now_ms, node, chance.one_in(2))?;
            continue;
        }
        let tasks = there.get(&node).cloned().unwrap_or_default();
        let held = Command::Restore(Restoration::Held { node, epoch, tasks: tasks.clone(), shown: None });
        let confirm = confirms(&name, false);
        // The operator may be first, or the agent.
        let steps = if chance.one_in(2) { [held, confirm] } else { [confirm, held] };
        let is_here = |task: &&HeldTask| of_backup.contains(&(task.allocation, task.rank));
        for (step, command) in steps.into_iter().enumerate() {
            if step == 1 {
                // One that is down and confirmed is clear before it has come back.
                let Some(shown) = review(&state).nodes.into_iter().find(|shown| shown.name == name) else { continue };
                let kept: BTreeSet<_> = tasks.iter().filter(is_here).map(|task| task.job).collect();
                if shown.is_back && !kept.is_subset(&shown.kept) {
                    return Err(format!("{name}: {kept:?} run on, the review says {:?}", shown.kept));
                }
            }
            decide(&mut state, now_ms, command).map_err(|reject| format!("{name}: {reject}"))?;
            state.check().map_err(|broken| format!("{name}, step {step}: {broken}"))?;
            is_held_back(&state)?;
        }
        counts[0] += tasks.iter().filter(is_here).count();
        counts[2] += tasks.iter().filter(|task| !is_here(task)).count();
        if state.nodes[&node].notes.restored.as_ref().is_some_and(|restored| !restored.settled) {
            return Err(format!("node {name} is back and confirmed, and still not settled"));
        }
    }
    // What the backup does not know is stopped, and its agents say so.
    let leaving: Vec<(NodeId, Vec<HeldTask>)> = state
        .nodes
        .values()
        .filter_map(|node| Some((node.id, node.notes.restored.as_ref()?.held.clone().unwrap_or_default())))
        .collect();
    for (node, tasks) in leaving {
        let reports = tasks.iter().map(stopped).collect();
        let epoch = state.nodes[&node].epoch;
        decide(&mut state, now_ms, Command::ReportTasks { node, epoch, reports })
            .map_err(|reject| reject.to_string())?;
        is_held_back(&state)?;
    }
    // Those that are down wait on for their agents, and hold nobody up.
    let is_up = |node: &&Arc<Node>| node.health != NodeHealth::Down;
    if let Some(node) = state.nodes.values().filter(is_up).find(|node| node.notes.restored.is_some()) {
        return Err(format!("node {} is not clear, though all is over: {:?}", node.spec.name, node.notes.restored));
    }
    // What is live now ran before and runs still, on agents that have said so.
    let held: BTreeSet<_> = there.values().flatten().map(|task| (task.allocation, task.rank)).collect();
    counts[1] = of_backup.difference(&held).count();
    for task in live_tasks(&state) {
        if !of_backup.contains(&task) || !held.contains(&task) {
            return Err(format!("task {task:?} is thought to run, and does not"));
        }
    }
    for allocation in state.allocations.values().filter(|held| held.state == AllocationState::Active) {
        let is_whole = (0..allocation.tasks.len() as u32)
            .filter(|rank| !allocation.task_states[*rank as usize].is_over())
            .all(|rank| held.contains(&(allocation.id, Rank(rank))));
        if !is_whole {
            return Err(format!("allocation {} goes on without some of its tasks", allocation.id));
        }
    }
    // The state is a whole one: made from its objects it is the same.
    let objects: Vec<Object> = state.objects().collect();
    match State::from_objects(objects.clone()).objects().eq(objects) {
        true => Ok(counts),
        false => Err("the state made from its objects is another one".to_owned()),
    }
}

#[test]
fn nothing_is_started_twice_and_nothing_is_lost_from_sight_by_a_restore() {
    let mut totals = [0; 3];
    for seed in seeds(300) {
        let counts = restores(seed).unwrap_or_else(|broken| panic!("{broken}\nMUSTER_SEED={seed}"));
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    let ran_one = std::env::var("MUSTER_SEED").is_ok();
    assert!(ran_one || totals.iter().all(|total| *total > 0), "kept, gone, unknown: {totals:?}");
}
