//! The bound on what verdicts of health withhold: of a pool's cards in a cell.

#[allow(dead_code, reason = "only the random numbers are used here")]
#[path = "common/chance.rs"]
mod chance;

use chance::Chance;
use muster_control_core::{Command, Done, Entry, Reject, State, execute};
use muster_model::node::{NodeSpec, Repair, Withheld};
use muster_model::{Epoch, Gpu, GpuModel, Node, NodeId, Pool};
use std::collections::BTreeSet;

const CARDS: usize = 2;

fn done(state: &mut State, command: Command) -> Result<Done, Reject> {
    let executed = execute(state, &Entry { now_ms: 1_000_000, commands: vec![command] });
    state.check().expect("a whole state");
    executed.decided.into_iter().next().expect("one answer")
}

fn spec(name: &str, cell: &str) -> NodeSpec {
    let spec = NodeSpec::usual(name, Gpu::usual_cards(name, CARDS as u32, GpuModel::H100));
    NodeSpec { cell: cell.to_owned(), ..spec }
}

fn join(state: &mut State, spec: NodeSpec) -> NodeId {
    let joined = done(state, Command::JoinNode { spec, usage_incarnation: None, agent: 7 });
    let Ok(Done::Joined { node, .. }) = joined else { panic!("joining was answered {joined:?}") };
    node
}

/// Four nodes of one cell, and one of another.
fn fleet(level: u32) -> (State, Vec<NodeId>) {
    let mut state = State::new(1);
    state.meta.feature_level = level;
    let names = [("a", "one"), ("b", "one"), ("c", "one"), ("d", "one"), ("e", "two")];
    let nodes = names.map(|(name, cell)| join(&mut state, spec(name, cell)));
    (state, nodes.to_vec())
}

fn verdict(gpu: u16) -> Withheld {
    Withheld { gpu, slice: None, reason: format!("Xid 63 of {gpu}"), by_verdict: true, repair: Repair::Reset }
}

fn lost(gpu: u16) -> Withheld {
    Withheld { gpu, slice: None, reason: "it is lost".to_owned(), by_verdict: false, repair: Repair::Inspect }
}

fn report(state: &mut State, node: NodeId, withheld: &[Withheld]) {
    let epoch = state.nodes[&node].epoch;
    done(state, Command::ReportCards { node, epoch, withheld: withheld.to_vec() }).expect("a report");
}

fn withheld_of(node: &Node) -> BTreeSet<u16> {
    node.spec.withheld().into_iter().map(|one| one.gpu).collect()
}

/// Which cards of each node are withheld.
fn withheld(state: &State, nodes: &[NodeId]) -> Vec<Vec<u16>> {
    nodes.iter().map(|id| withheld_of(&state.nodes[id]).into_iter().collect()).collect()
}

#[test]
fn verdicts_withhold_half_of_a_cell_and_no_more() {
    let (mut state, nodes) = fleet(5);
    for node in &nodes {
        report(&mut state, *node, &[verdict(0), verdict(1)]);
    }
    // Four of eight cards; of the other cell, which has two, one.
    assert_eq!(withheld(&state, &nodes), [vec![0, 1], vec![0, 1], vec![], vec![], vec![0]]);
    let reason = state.nodes[&nodes[2]].reason();
    assert!(reason.contains("GPU 0, 1 kept in use") && reason.contains("Xid 63 of 0"), "{reason}");
    // The same report changes nothing, and what is lost is withheld in any case.
    report(&mut state, nodes[0], &[verdict(0), verdict(1)]);
    report(&mut state, nodes[2], &[lost(1), verdict(0)]);
    assert_eq!(withheld(&state, &nodes), [vec![0, 1], vec![0, 1], vec![1], vec![], vec![0]]);
    // What has come back leaves room for what was spared: the lowest node first, once the cell is swept.
    report(&mut state, nodes[0], &[]);
    assert_eq!(withheld(&state, &nodes)[2..4], [vec![1], vec![]]);
    done(&mut state, Command::Sweep).expect("swept");
    assert_eq!(withheld(&state, &nodes), [vec![], vec![0, 1], vec![0, 1], vec![], vec![0]]);
    assert_eq!(state.nodes[&nodes[2]].reason(), "");
    done(&mut state, Command::Sweep).expect("swept");
    assert_eq!(withheld(&state, &nodes)[3], [] as [u16; 0]);
}

#[test]
fn what_is_to_be_done_about_a_card_is_kept_while_its_agent_joins() {
    let (mut state, nodes) = fleet(7);
    report(&mut state, nodes[0], &[lost(1)]);
    let repairs = |state: &State| {
        let gpus = state.nodes[&nodes[0]].spec.gpus.iter();
        (gpus.map(|gpu| gpu.repair).collect::<Vec<_>>(), state.index().withheld.clone())
    };
    assert_eq!(repairs(&state), (vec![Repair::Wait, Repair::Inspect], [(Repair::Inspect, 1)].into()));
    // An agent that joins does not say it; its report does.
    let mut again = spec("a", "one");
    again.gpus = again.withholding(&[Withheld { repair: Repair::Wait, ..lost(1) }]);
    join(&mut state, again.clone());
    assert_eq!(repairs(&state), (vec![Repair::Wait, Repair::Inspect], [(Repair::Inspect, 1)].into()));
    // Another card has come into the slot.
    again.gpus[1].uuid = "GPU-new".to_owned();
    join(&mut state, again);
    assert_eq!(repairs(&state), (vec![Repair::Wait; 2], [(Repair::Wait, 1)].into()));
    report(&mut state, nodes[0], &[]);
    assert_eq!(repairs(&state), (vec![Repair::Wait; 2], [].into()));
}

#[test]
fn what_was_spared_stays_so_when_its_agent_joins_again() {
    let (mut state, nodes) = fleet(5);
    for node in &nodes[..4] {
        report(&mut state, *node, &[verdict(0), verdict(1)]);
    }
    // An agent that joins names all of it as withheld, and reports after that.
    let mut again = spec("d", "one");
    again.gpus = again.withholding(&[verdict(0), verdict(1)]);
    assert_eq!(join(&mut state, again), nodes[3]);
    assert_eq!(withheld(&state, &nodes)[3], [] as [u16; 0]);
    report(&mut state, nodes[3], &[verdict(0), verdict(1)]);
    assert_eq!(withheld(&state, &nodes)[3], [] as [u16; 0]);
    // What it does not name any more has been lifted, and is not withheld later.
    join(&mut state, spec("c", "one"));
    assert!(state.nodes[&nodes[2]].notes.verdicts.spared.is_empty());
    join(&mut state, spec("b", "one"));
    for _ in 0..2 {
        done(&mut state, Command::Sweep).expect("swept");
    }
    assert_eq!(withheld(&state, &nodes)[..4], [vec![0, 1], vec![], vec![], vec![0, 1]]);
    // The same of one that is followed.
    let mut again = spec("a", "one");
    again.gpus = again.withholding(&[verdict(0), verdict(1)]);
    join(&mut state, again);
    report(&mut state, nodes[0], &[verdict(0), verdict(1)]);
    assert_eq!(withheld(&state, &nodes)[0], [0, 1]);
}

#[test]
fn a_pool_says_how_much_may_be_withheld() {
    for (percent, most, counted) in
        [(None, None, 4), (Some(0), None, 0), (Some(1), None, 1), (Some(100), None, 8), (Some(100), Some(3), 3)]
    {
        let (mut state, nodes) = fleet(5);
        let pool = Pool { withheld_max_percent: percent, withheld_max_gpus: most, ..Pool::standard() };
        done(&mut state, Command::PutPool(pool)).expect("a pool");
        for node in &nodes[..4] {
            report(&mut state, *node, &[verdict(0), verdict(1)]);
        }
        let count: usize = withheld(&state, &nodes[..4]).iter().map(Vec::len).sum();
        assert_eq!(count, counted, "{percent:?} %, at most {most:?}");
    }
    let (mut state, _) = fleet(5);
    let pool = Pool { withheld_max_percent: Some(101), ..Pool::standard() };
    assert!(
        done(&mut state, Command::PutPool(pool)).expect_err("too much").to_string().contains("withheld_max_percent")
    );
}

#[test]
fn below_the_level_every_verdict_is_followed() {
    let (mut state, nodes) = fleet(4);
    for node in &nodes {
        report(&mut state, *node, &[verdict(0), verdict(1)]);
    }
    assert!(withheld(&state, &nodes).iter().all(|cards| cards.len() == CARDS));
    let pool = Pool { withheld_max_percent: Some(10), ..Pool::standard() };
    done(&mut state, Command::PutPool(pool)).expect_err("not yet");
}

/// Whatever agents report: what is certain is withheld, a verdict is followed or spared and not both, and none is taken up over the bound.
#[test]
fn no_history_passes_the_bound() {
    for seed in 1..=60 {
        let mut chance = Chance::new(seed);
        let (mut state, nodes) = fleet(5);
        for _ in 0..60 {
            let node = nodes[chance.below(nodes.len() as u64) as usize];
            let before: BTreeSet<(NodeId, u16)> = followed(&state);
            let mut told = Vec::new();
            if chance.below(6) == 0 {
                done(&mut state, Command::Sweep).expect("swept");
            } else {
                for gpu in 0..CARDS as u16 {
                    match chance.below(4) {
                        0 => told.push(lost(gpu)),
                        1 => {}
                        _ => told.push(verdict(gpu)),
                    }
                }
                report(&mut state, node, &told);
                let there = &state.nodes[&node];
                let spared: BTreeSet<u16> = there.notes.verdicts.spared.iter().map(|one| one.gpu).collect();
                for one in &told {
                    let is_withheld = withheld_of(there).contains(&one.gpu);
                    assert_eq!(is_withheld, !(one.by_verdict && spared.contains(&one.gpu)), "seed {seed}: {one:?}");
                }
                assert_eq!(withheld_of(there).union(&spared).count(), told.len(), "seed {seed}");
            }
            let cell = |id: &NodeId| state.nodes[id].cell;
            for (id, gpu) in followed(&state).difference(&before) {
                let all = nodes.iter().filter(|other| cell(other) == cell(id));
                let (count, cards) = all.fold((0, 0), |(count, cards), other| {
                    (count + withheld_of(&state.nodes[other]).len(), cards + CARDS)
                });
                assert!(
                    count <= cards / 2,
                    "seed {seed}: {count} of {cards} are withheld after GPU {gpu} of node {id}"
                );
            }
        }
    }
}

fn followed(state: &State) -> BTreeSet<(NodeId, u16)> {
    let of = |node: &Node| node.notes.verdicts.followed.iter().map(|gpu| (node.id, *gpu)).collect::<Vec<_>>();
    state.nodes.values().flat_map(|node| of(node)).collect()
}

/// Each cell has room of its own, whatever the number of the node that has it.
#[test]
fn a_full_cell_keeps_no_other_from_following() {
    let (mut state, nodes) = fleet(5);
    for node in &nodes {
        report(&mut state, *node, &[verdict(0), verdict(1)]);
    }
    assert_eq!(withheld(&state, &nodes[4..]), [vec![0]]);
    // The cell of the last node gets a second node, and with it room for one more card.
    join(&mut state, spec("f", "two"));
    done(&mut state, Command::Sweep).expect("swept");
    assert_eq!(withheld(&state, &nodes), [vec![0, 1], vec![0, 1], vec![], vec![], vec![0, 1]]);
}

#[test]
fn an_old_session_is_refused() {
    let (mut state, nodes) = fleet(5);
    let command = Command::ReportCards { node: nodes[0], epoch: Epoch(9), withheld: vec![verdict(0)] };
    assert!(matches!(done(&mut state, command), Err(Reject::StaleEpoch { .. })));
}
