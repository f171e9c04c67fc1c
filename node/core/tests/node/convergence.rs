//! The plan against any desired and any observed state: it arrives, it stays, and no step on the way breaks a law.

use crate::world::{NOW_NS, any_desired, any_observed, live_holds, pass_time, take};
use muster_model::request::SharingMode;
use muster_node_core::{CardSetting, Desired, Observed, Phase, Step, Stopping, plan};
use proptest::prelude::*;

/// Every plan makes progress or is empty, and a task passes through at most start, end and forgetting: this is far above what any
/// generated case needs.
const ROUNDS_MAX: usize = 20;

fn any_case() -> impl Strategy<Value = (Desired, Observed)> {
    any_desired().prop_flat_map(|desired| {
        let observed = any_observed(&desired);
        (Just(desired), observed)
    })
}

/// Plans, takes every step and lets time pass until nothing is left to do.
fn converge(desired: &Desired, node: &mut Observed) {
    for _ in 0..ROUNDS_MAX {
        let steps = plan(desired, node);
        for step in &steps {
            take(step, desired, node);
        }
        let before = node.clone();
        pass_time(node);
        if steps.is_empty() && *node == before {
            return;
        }
    }
    panic!("still not there: desired {desired:#?}, node {node:#?}, next {:#?}", plan(desired, node));
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
        // What did not start has a reason: another task has the device, or another attempt of its job is here.
        for (key, wanted) in desired.tasks.iter().filter(|(key, _)| !node.tasks.contains_key(key)) {
            let held = wanted.spec.devices.iter().any(|hold| !live_holds(&node, hold.gpu).is_empty());
            let elsewhere = node.tasks.values().any(|task| task.is_live() && task.spec.job == wanted.spec.job);
            prop_assert!(held || elsewhere, "{key} waits for nothing");
        }
        for (index, card) in node.cards.iter().enumerate() {
            let holds = live_holds(&node, index as u16);
            let as_needed = match &card.setting {
                CardSetting::Whole => holds.iter().all(|hold| hold.mode() == SharingMode::Whole),
                CardSetting::Mig(standing) => !holds.is_empty() && holds.len() == standing.len(),
                CardSetting::Mps | CardSetting::TimeSlice => !holds.is_empty(),
            };
            prop_assert!(as_needed, "card {index} is {:?}, held by {holds:?}", card.setting);
        }
    }

    /// The plan depends only on what is: the same state gives the same plan, and once taken nothing of it is planned again.
    #[test]
    fn taken_steps_are_not_planned_again((desired, mut node) in any_case()) {
        let first = plan(&desired, &node);
        prop_assert_eq!(&first, &plan(&desired, &node));
        for step in &first {
            take(step, &desired, &mut node);
        }
        let second = plan(&desired, &node);
        prop_assert_eq!(second, Vec::new());
    }

    #[test]
    fn what_gives_back_comes_before_what_takes((desired, node) in any_case()) {
        let order = |step: &Step| match step {
            Step::Stop(..) | Step::Kill(_) | Step::SetWorld(..) | Step::SetTimeLimit(..) | Step::RecordNeverStarted(_) | Step::RecordLost(_) | Step::RecordCannotStart { .. } => 0,
            Step::Card { step, .. } => match step {
                muster_node_core::CardStep::DestroyInstance(_)
                | muster_node_core::CardStep::DisableMig
                | muster_node_core::CardStep::StopMps
                | muster_node_core::CardStep::ClearTimeSlice => 1,
                _ => 2,
            },
            Step::Start(_) => 3,
            Step::Forget(_) => 4,
        };
        let steps = plan(&desired, &node);
        prop_assert!(steps.is_sorted_by_key(order), "{steps:#?}");
    }

    #[test]
    fn a_record_is_never_started_again((desired, node) in any_case()) {
        for step in plan(&desired, &node) {
            if let Step::Start(key) = step {
                prop_assert!(!node.tasks.contains_key(&key));
            }
        }
    }

    #[test]
    fn nothing_starts_past_its_fence((desired, mut node) in any_case(), confirmed in prop::option::of(0_u64..2)) {
        // Without a confirmed lease, or with one whose grace has passed, nothing starts.
        node.confirmed_ns = confirmed.map(|back| NOW_NS - 600_000_000_000 - back);
        let started = plan(&desired, &node).into_iter().filter(|step| matches!(step, Step::Start(_))).count();
        prop_assert_eq!(started, 0);
    }

    /// A node that was fenced since holds tasks that may run elsewhere by now: they get no grace.
    #[test]
    fn what_was_fenced_is_killed_at_once((mut desired, node) in any_case()) {
        desired.stamp.node_epoch = muster_model::ids::Epoch(2);
        let steps = plan(&desired, &node);
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
        let steps = plan(&desired, &node);
        prop_assert!(steps.iter().all(|step| !matches!(step, Step::Start(key) if node.tasks.contains_key(key))));
    }
}
