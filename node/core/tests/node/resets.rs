//! Resets: only in a drain, only while nobody uses the node, and only of what asks for one.

use crate::world::{desired, hold, key, observed, over, running, spec};
use muster_model::mig::{MigPlacement, MigShape};
use muster_model::task::{HoldMode, TaskState};
use muster_node_core::{CardSetting, CardStep, Desired, Observed, plan};

const SLICE: MigPlacement = MigPlacement { shape: MigShape::G3, start: 4 };

fn drained() -> Desired {
    Desired { drained: true, ..desired(vec![], 1) }
}

/// A node whose first card asks for a reset.
fn asking() -> Observed {
    let mut node = observed(vec![]);
    node.cards[0].asks_for_reset = true;
    node.cards[0].withheld = Some("Xid 95".to_owned());
    node
}

/// What the first card needs; no other ever needs anything here.
#[track_caller]
fn check(desired: &Desired, node: &Observed, steps: &[CardStep]) {
    let work = plan(desired, node).cards;
    assert_eq!(work[0].steps, steps);
    assert!(work[1..].iter().all(|work| work.steps.is_empty()), "{work:?}");
}

#[test]
fn a_card_is_reset_only_in_a_drain_and_while_nobody_uses_the_node() {
    check(&drained(), &asking(), &[CardStep::Reset]);
    check(&desired(vec![], 1), &asking(), &[]);
    check(&drained(), &Observed { resets: false, ..asking() }, &[]);
    check(&drained(), &observed(vec![]), &[]);
    // Of another card, too: what is linked with it may be reset with it.
    let on = |gpu| spec(10, 0, vec![hold(gpu, HoldMode::Whole)]);
    let ended = over(TaskState::Exited { code: 0 });
    for gpu in [0, 1] {
        let runs = observed(vec![(on(gpu), running())]);
        let wanted = Desired { drained: true, ..desired(vec![(on(gpu), false)], 1) };
        check(&wanted, &Observed { cards: asking().cards, ..runs }, &[]);
        let mut cleaning = Observed { cards: asking().cards, ..observed(vec![(on(gpu), ended.clone())]) };
        cleaning.cleaning.insert(key(10, 0));
        check(&drained(), &cleaning, &[]);
        cleaning.cleaning.clear();
        check(&drained(), &cleaning, &[CardStep::Reset]);
    }
    // Nobody knows what is on a card that could not be read.
    let mut unread = asking();
    unread.cards[0].setting = None;
    check(&drained(), &unread, &[]);
}

#[test]
fn a_task_that_is_about_to_start_keeps_the_node_from_resets() {
    let task = spec(10, 0, vec![hold(1, HoldMode::Whole)]);
    let wanted = Desired { drained: true, ..desired(vec![(task, false)], 1) };
    check(&wanted, &asking(), &[]);
}

#[test]
fn a_card_is_taken_apart_before_it_is_reset() {
    let mut node = asking();
    for (setting, first) in [
        (CardSetting::Mig([(SLICE, 1)].into()), CardStep::DestroyInstance(SLICE)),
        (CardSetting::Mps(Default::default()), CardStep::StopMps),
        (CardSetting::TimeSlice, CardStep::ClearTimeSlice),
    ] {
        node.cards[0].setting = Some(setting);
        check(&drained(), &node, &[first, CardStep::Reset]);
    }
}

#[test]
fn a_mode_that_takes_a_reset_is_changed_by_one_in_a_drain() {
    let mut node = observed(vec![]);
    node.cards[0].mode_needs_reset = true;
    let pinned = |drained| Desired { pinned: [(0, vec![SLICE])].into(), drained, ..desired(vec![], 1) };
    let made = [CardStep::EnableMig, CardStep::CreateInstance(SLICE, 1)];
    check(&pinned(false), &node, &made);
    check(&pinned(true), &node, &[CardStep::NoteMig(true), CardStep::Reset]);
    // Then what is missing is made without another one.
    node.cards[0].setting = Some(CardSetting::Mig([].into()));
    check(&pinned(true), &node, &[CardStep::CreateInstance(SLICE, 1)]);
    // And back.
    node.cards[0].setting = Some(CardSetting::Mig([(SLICE, 1)].into()));
    check(&pinned(true), &node, &[]);
    check(&drained(), &node, &[CardStep::DestroyInstance(SLICE), CardStep::NoteMig(false), CardStep::Reset]);
    node.cards[0].mode_needs_reset = false;
    check(&drained(), &node, &[CardStep::DestroyInstance(SLICE), CardStep::DisableMig]);
}
