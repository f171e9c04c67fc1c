//! The plan against any desired and any observed state: it arrives, it stays, and no step on the way breaks a law.

use crate::world::{CARDS, NOW_NS, any_desired, any_observed, live_holds, pass_time, take, take_card_step, work};
use muster_model::mig::MigPlacement;
use muster_model::request::SharingMode;
use muster_model::task::HoldMode;
use muster_node_core::{CardSetting, CardStep, Desired, DesiredTask, Observed, Phase, Plan, Step, Stopping, plan};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Every plan makes progress or is empty, and a task passes through at most start, end and forgetting: this is far above what any
/// generated case needs.
const ROUNDS_MAX: usize = 20;

fn any_case() -> impl Strategy<Value = (Desired, Observed)> {
    any_desired().prop_flat_map(|desired| {
        let observed = any_observed(&desired);
        (Just(desired), observed)
    })
}

/// Plans, takes every step, works on the cards and lets time pass until nothing is left to do.
fn converge(desired: &Desired, node: &mut Observed) {
    for _ in 0..ROUNDS_MAX {
        let next = plan(desired, node);
        for step in &next.steps {
            take(step, desired, node);
        }
        work(&next.cards, node);
        let before = node.clone();
        pass_time(node);
        let is_done = next.steps.is_empty() && next.cards.iter().all(|work| work.steps.is_empty());
        if is_done && *node == before {
            return;
        }
    }
    panic!("still not there: desired {desired:#?}, node {node:#?}, next {:#?}", plan(desired, node));
}

/// What happens to one card in one round, beside the plan.
#[derive(Clone, Copy, Debug)]
enum Luck {
    /// It takes the next of its steps, and says that more are under way if there are.
    Step,
    /// It takes all of its steps and is read.
    Done,
    /// Its next step fails.
    Fail,
    /// Nothing moves: the driver does not answer.
    Hang,
    /// The driver does not answer, and what was known of the card does not count any more.
    Silent,
}

/// Cards that are slow, fail and fall silent. What the driver has done is in `truth`; what the agent knows is in `node`.
fn work_with_luck(
    next: &Plan,
    luck: &[Luck],
    begun: &mut BTreeMap<u16, Vec<CardStep>>,
    truth: &mut Observed,
    node: &mut Observed,
) {
    for (work, luck) in next.cards.iter().zip(luck) {
        let index = usize::from(work.card);
        // Work that has begun is not changed; a new plan is asked for when it is over.
        let mut left = begun.remove(&work.card).unwrap_or_else(|| work.steps.clone());
        let card = &mut node.cards[index];
        match luck {
            Luck::Step | Luck::Done => {
                let now = if matches!(luck, Luck::Done) { left.len() } else { left.len().min(1) };
                for step in left.drain(..now) {
                    take_card_step(work.card, step, truth);
                }
                card.changing = !left.is_empty();
                if left.is_empty() {
                    card.setting.clone_from(&truth.cards[index].setting);
                    card.failed = None;
                } else {
                    begun.insert(work.card, left);
                }
            }
            Luck::Fail => {
                card.changing = false;
                card.setting.clone_from(&truth.cards[index].setting);
                card.failed = (!left.is_empty()).then(|| "the driver refused".to_owned());
            }
            Luck::Hang => {
                card.changing = !left.is_empty();
                if !left.is_empty() {
                    begun.insert(work.card, left);
                }
            }
            Luck::Silent => {
                card.changing = false;
                card.setting = None;
            }
        }
    }
}

fn any_luck() -> impl Strategy<Value = Vec<Luck>> {
    let one = prop::sample::select(vec![Luck::Step, Luck::Done, Luck::Fail, Luck::Hang, Luck::Silent]);
    prop::collection::vec(one, usize::from(CARDS))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Also law 6 and "no held device is taken away": `take` checks both at each step.
    #[test]
    fn any_node_converges_on_what_is_desired((desired, mut node) in any_case()) {
        converge(&desired, &mut node);
        for (key, task) in &node.tasks {
            let wanted = desired.tasks.get(key);
            prop_assert!(wanted.is_some(), "{key} is not desired and still on record");
            let stop = wanted.is_some_and(|wanted| wanted.stop.is_some());
            prop_assert!(!(stop && task.is_live()), "{key} should have stopped");
        }
        // What did not start has a reason: another task has the device, or another attempt of its job is here, or one of these waits before it.
        let waiting: Vec<_> = desired.tasks.iter().filter(|(key, _)| !node.tasks.contains_key(key)).collect();
        for (before, (key, wanted)) in waiting.iter().enumerate() {
            let held = wanted.spec.devices.iter().any(|hold| !live_holds(&node, hold.gpu).is_empty());
            let elsewhere = node.tasks.values().any(|task| task.is_live() && task.spec.job == wanted.spec.job);
            let needs = |gpu| wanted.spec.devices.iter().any(|hold| hold.gpu == gpu);
            let is_before = |first: &DesiredTask| {
                first.spec.job == wanted.spec.job || first.spec.devices.iter().any(|hold| needs(hold.gpu))
            };
            let behind = waiting[..before].iter().any(|(_, first)| is_before(first));
            prop_assert!(held || elsewhere || behind, "{key} waits for nothing");
        }
        for (index, card) in node.cards.iter().enumerate() {
            let holds = live_holds(&node, index as u16);
            let pinned = match card.model.facts().mig {
                Some(_) => desired.pinned.get(&(index as u16)).cloned().unwrap_or_default(),
                None => Vec::new(),
            };
            // Set for a task that still waits for another card.
            if waiting.iter().any(|(_, wanted)| wanted.spec.devices.iter().any(|hold| usize::from(hold.gpu) == index)) {
                continue;
            }
            let is_held = |place: &MigPlacement| holds.contains(&HoldMode::Mig(*place));
            let as_needed = match card.setting.as_ref().expect("it was read") {
                CardSetting::Whole => {
                    holds.iter().all(|hold| hold.mode() == SharingMode::Whole) && (!holds.is_empty() || pinned.is_empty())
                }
                CardSetting::Mig(standing) => {
                    let known = standing.keys().all(|place| is_held(place) || pinned.contains(place));
                    let kept = !holds.is_empty() || pinned.iter().all(|place| standing.get(place) == Some(&1));
                    known && kept && !standing.is_empty()
                }
                CardSetting::Mps(_) | CardSetting::TimeSlice => !holds.is_empty(),
            };
            prop_assert!(as_needed, "card {index} is {:?}, held by {holds:?}", card.setting);
        }
    }

    /// The plan depends only on what is: the same state gives the same plan, and once taken nothing of it is planned again.
    #[test]
    fn taken_steps_are_not_planned_again((desired, mut node) in any_case()) {
        let first = plan(&desired, &node);
        prop_assert_eq!(&first, &plan(&desired, &node));
        for step in &first.steps {
            take(step, &desired, &mut node);
        }
        prop_assert_eq!(plan(&desired, &node).steps, Vec::new());
        work(&first.cards, &mut node);
        prop_assert!(plan(&desired, &node).cards.iter().all(|work| work.steps.is_empty()));
    }

    /// Law 6 and "no held device is taken away" hold with any luck of the cards (`take` and `take_card_step` check them), and stops and kills are
    /// planned as if no card were there.
    #[test]
    fn slow_and_failing_cards_delay_no_stop_and_break_no_law((desired, node) in any_case(), lucks in prop::collection::vec(any_luck(), 1..12)) {
        let (mut truth, mut node, mut begun) = (node.clone(), node, BTreeMap::new());
        for luck in &lucks {
            let next = plan(&desired, &node);
            let ends = |steps: &[Step]| steps.iter().filter(|step| matches!(step, Step::Stop(..) | Step::Kill(_))).cloned().collect::<Vec<_>>();
            let mut silent = node.clone();
            for card in &mut silent.cards {
                card.setting = None;
            }
            prop_assert_eq!(ends(&next.steps), ends(&plan(&desired, &silent).steps));
            for step in &next.steps {
                take(step, &desired, &mut node);
            }
            truth.tasks.clone_from(&node.tasks);
            truth.cleaning.clone_from(&node.cleaning);
            work_with_luck(&next, luck, &mut begun, &mut truth, &mut node);
            pass_time(&mut node);
        }
    }

    #[test]
    fn what_gives_back_comes_before_what_takes((desired, node) in any_case()) {
        let order = |step: &Step| match step {
            Step::Stop(..) | Step::Kill(_) | Step::SetWorld(..) | Step::SetTimeLimit(..) | Step::RecordNeverStarted(_) | Step::RecordLost(_) | Step::RecordCannotStart { .. } => 0,
            Step::Start(_) => 1,
            Step::Forget(_) => 2,
        };
        let takes_apart = |step: &CardStep| matches!(
            step,
            CardStep::DestroyInstance(_) | CardStep::DisableMig | CardStep::StopMps | CardStep::ClearTimeSlice
        );
        let next = plan(&desired, &node);
        prop_assert!(next.steps.is_sorted_by_key(order), "{:#?}", next.steps);
        prop_assert!(next.cards.iter().all(|work| work.steps.is_sorted_by_key(|step| !takes_apart(step))), "{:#?}", next.cards);
    }

    #[test]
    fn a_record_is_never_started_again((desired, node) in any_case()) {
        for step in plan(&desired, &node).steps {
            if let Step::Start(key) = step {
                prop_assert!(!node.tasks.contains_key(&key));
            }
        }
    }

    #[test]
    fn nothing_starts_past_its_fence((desired, mut node) in any_case(), confirmed in prop::option::of(0_u64..2)) {
        // Without a confirmed lease, or with one whose grace has passed, nothing starts.
        node.confirmed_ns = confirmed.map(|back| NOW_NS - 600_000_000_000 - back);
        let started = plan(&desired, &node).steps.into_iter().filter(|step| matches!(step, Step::Start(_))).count();
        prop_assert_eq!(started, 0);
    }

    /// A node that was fenced since holds tasks that may run elsewhere by now: they get no grace.
    #[test]
    fn what_was_fenced_is_killed_at_once((mut desired, node) in any_case()) {
        desired.stamp.node_epoch = muster_model::ids::Epoch(2);
        let steps = plan(&desired, &node).steps;
        for (key, task) in &node.tasks {
            let lost = task.is_live() && !desired.tasks.contains_key(key) && task.stopping != Stopping::AtOnce;
            prop_assert_eq!(lost, steps.contains(&Step::Kill(*key)));
        }
    }

    #[test]
    fn a_task_that_is_being_started_is_not_started_twice((desired, mut node) in any_case()) {
        for task in node.tasks.values_mut().filter(|task| task.is_live()) {
            task.phase = Phase::Starting;
        }
        let steps = plan(&desired, &node).steps;
        prop_assert!(steps.iter().all(|step| !matches!(step, Step::Start(key) if node.tasks.contains_key(key))));
    }
}
