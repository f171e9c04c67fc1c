//! Drains of several operators: each lifts their own; and what a node says of cards that were swapped.

use muster_control_core::{Command, Done, Entry, Reject, State, execute};
use muster_model::identity::Author;
use muster_model::node::NodeSpec;
use muster_model::{Gpu, GpuModel, Node, NodeId, Principal};

fn done(state: &mut State, command: Command) -> Result<Done, Reject> {
    let executed = execute(state, &Entry { now_ms: 1_000_000, commands: vec![command] });
    state.check().expect("a whole state");
    executed.decided.into_iter().next().expect("one answer")
}

fn cluster(level: u32) -> (State, NodeId) {
    let mut state = State::new(1);
    state.meta.feature_level = level;
    let spec = NodeSpec::usual("gpu-1", Gpu::usual_cards("gpu-1", 2, GpuModel::H100));
    let joined = done(&mut state, Command::JoinNode { spec, usage_incarnation: None, agent: 0 });
    let Ok(Done::Joined { node, .. }) = joined else { panic!("joining was answered {joined:?}") };
    (state, node)
}

fn by(who: &str, node: NodeId, drained: bool, force: bool) -> Command {
    let reason = if drained { format!("work of {who}") } else { String::new() };
    let principal = if who.is_empty() { Principal::Anonymous } else { Principal::User(who.to_owned()) };
    Command::SetDrained { node, drained, reason, force }.by(Author { principal, ..Author::default() })
}

fn node(state: &State, id: NodeId) -> &Node {
    &state.nodes[&id]
}

#[test]
fn a_node_takes_work_again_when_everybody_has_undrained_it() {
    let (mut state, id) = cluster(5);
    for who in ["alice", "bob", "alice"] {
        done(&mut state, by(who, id, true, false)).expect("it is drained");
    }
    assert_eq!(node(&state, id).reason(), "user:alice (work of alice), user:bob (work of bob)");
    let refused = done(&mut state, by("cy", id, false, false)).expect_err("it is not theirs").to_string();
    assert!(refused.contains("user:bob (work of bob) drained it"), "{refused}");
    done(&mut state, by("alice", id, false, false)).expect("their own");
    assert!(node(&state, id).drained, "bob is still at work");
    assert_eq!(node(&state, id).reason(), "user:bob (work of bob)");
    done(&mut state, by("bob", id, false, false)).expect("their own");
    assert!(!node(&state, id).drained && node(&state, id).notes.drained_by.is_empty());
    // What nobody has drained, anybody may undrain: it may be quarantined.
    done(&mut state, by("cy", id, false, false)).expect("nothing to lift");
}

#[test]
fn force_undrains_for_all() {
    let (mut state, id) = cluster(5);
    for who in ["alice", "bob"] {
        done(&mut state, by(who, id, true, false)).expect("it is drained");
    }
    done(&mut state, by("cy", id, false, true)).expect("it is forced");
    assert!(!node(&state, id).drained && node(&state, id).reason().is_empty());
}

#[test]
fn where_nobody_has_a_name_and_below_the_level_anybody_undrains() {
    for (level, who) in [(5, ""), (4, "alice")] {
        let (mut state, id) = cluster(level);
        done(&mut state, by(who, id, true, false)).expect("it is drained");
        assert!(node(&state, id).drained && node(&state, id).notes.drained_by.is_empty());
        assert!(node(&state, id).reason().contains("work of"));
        done(&mut state, by(who, id, false, false)).expect("it is undrained");
        assert!(!node(&state, id).drained);
    }
}

/// Whoever has swapped a card, and who has not, sees it until they take note of it.
#[test]
fn a_card_in_the_place_of_another_is_shown_until_somebody_takes_note_or_the_old_one_is_back() {
    let (mut state, id) = cluster(5);
    let join = |state: &mut State, uuid: &str| {
        let mut spec = NodeSpec::usual("gpu-1", Gpu::usual_cards("gpu-1", 2, GpuModel::H100));
        spec.gpus[1].uuid = uuid.to_owned();
        let command = Command::JoinNode { spec, usage_incarnation: None, agent: 0 };
        done(state, command).expect("it joins again");
        node(state, id).reason()
    };
    let old = node(&state, id).spec.gpus[1].uuid.clone();
    assert_eq!(join(&mut state, &old), "");
    for new in ["GPU-new", "GPU-newer"] {
        let said = join(&mut state, new);
        assert!(said.contains("GPU 1 is another card") && said.contains(&old), "{said}");
    }
    assert_eq!(join(&mut state, &old), "", "it is back");
    join(&mut state, "GPU-new");
    done(&mut state, Command::ClearGpu { node: id, gpu: 1, reason: "swapped".to_owned() }).expect("noted");
    assert_eq!(node(&state, id).reason(), "");
    assert_eq!(join(&mut state, "GPU-new"), "");
}
