//! Random sequences of steps, kills of the helper and reboots: what is read afterwards is what the accepted steps say.
//!
//! What must stay true: the model below knows the rules only by `muster_model::mig` and by the trait's promises; a step that failed because its helper was
//! killed may have been taken or not, and what is read then counts.

use crate::host::{Host, SET_TIME_SLICE, START_MPS, create, destroy, kill_helper, place, until};
use muster_agent::gpu::nvml::NvmlGpus;
use muster_agent::gpu::{CardState, GpuBackend, GpuError};
use muster_gpu_double::{Effect, Fleet, Rule};
use muster_model::gpu::{GpuModel, MigFamily};
use muster_model::mig::{MigPlacement, MigShape, can_stand};
use muster_model::request::SharingMode;
use muster_node_core::{CardStep, MpsLimits};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

/// Calls in which a helper is killed.
const CALLS: [&str; 6] = [
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceSetComputeMode",
];

#[derive(Clone, Debug)]
enum Act {
    Take(CardStep),
    /// The helper is killed while the step is in this call, if it comes to it.
    TakeAndKill(CardStep, usize),
    Kill,
    /// The agent is started anew.
    Restart,
    Reboot,
}

/// What the accepted steps say.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Expected {
    mode: SharingMode,
    places: BTreeSet<MigPlacement>,
}

impl Expected {
    const fn whole() -> Self {
        Expected { mode: SharingMode::Whole, places: BTreeSet::new() }
    }

    fn of(state: &CardState) -> Self {
        Expected { mode: state.mode, places: state.instances.iter().map(|one| one.place).collect() }
    }

    /// The card after a step, or `None` where the rules refuse it.
    fn after(&self, model: GpuModel, step: CardStep) -> Option<Self> {
        let family = model.facts().mig?;
        let mut next = self.clone();
        let (from, to) = match step {
            CardStep::CreateInstance(place, _) => {
                let standing: Vec<MigPlacement> = self.places.iter().copied().collect();
                let is_legal = self.places.contains(&place) || can_stand(family, &standing, place);
                next.places.insert(place);
                return (self.mode == SharingMode::Mig && is_legal).then_some(next);
            }
            CardStep::DestroyInstance(place) => {
                next.places.remove(&place);
                return Some(next);
            }
            CardStep::EnableMig => (SharingMode::Whole, SharingMode::Mig),
            CardStep::DisableMig => (SharingMode::Mig, SharingMode::Whole),
            CardStep::StartMps(_) => (SharingMode::Whole, SharingMode::Mps),
            CardStep::StopMps => (SharingMode::Mps, SharingMode::Whole),
            // Sets nothing that shows in the mode, and needs a server.
            CardStep::NoteMig(_) | CardStep::Reset => return None,
            CardStep::SetMpsLimits(_) => return (self.mode == SharingMode::Mps).then_some(next),
            CardStep::SetTimeSlice(_) => (SharingMode::Whole, SharingMode::TimeSlice),
            CardStep::ClearTimeSlice => (SharingMode::TimeSlice, SharingMode::Whole),
        };
        if self.mode == to {
            return Some(next);
        }
        next.mode = to;
        (self.mode == from && self.places.is_empty()).then_some(next)
    }
}

/// Mostly legal ones, or few would be made.
fn places() -> impl Strategy<Value = MigPlacement> {
    let legal = MigShape::ALL
        .into_iter()
        .flat_map(|shape| shape.starts(MigFamily::Eight).iter().map(move |start| place(shape, *start)));
    let any = (prop::sample::select(MigShape::ALL.to_vec()), 0_u8..8);
    prop_oneof![
        6 => prop::sample::select(legal.collect::<Vec<_>>()),
        1 => any.prop_map(|(shape, start)| place(shape, start)),
    ]
}

fn steps() -> impl Strategy<Value = CardStep> {
    prop_oneof![
        8 => places().prop_map(|at| create(at.shape, at.start)),
        5 => places().prop_map(|at| destroy(at.shape, at.start)),
        4 => Just(CardStep::EnableMig),
        2 => Just(CardStep::DisableMig),
        1 => Just(START_MPS),
        1 => Just(CardStep::StopMps),
        1 => Just(SET_TIME_SLICE),
        1 => Just(CardStep::SetMpsLimits(MpsLimits { percent: 25, memory_mib: 20_480 })),
        1 => Just(CardStep::ClearTimeSlice),
    ]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        12 => steps().prop_map(Act::Take),
        4 => (steps(), 0..CALLS.len()).prop_map(|(step, call)| Act::TakeAndKill(step, call)),
        1 => Just(Act::Kill),
        1 => Just(Act::Restart),
        1 => Just(Act::Reboot),
    ];
    prop::collection::vec(act, 1..24)
}

/// Takes a step and kills the helper once it hangs in a call; the answer, if it never came to that.
async fn take_and_kill(host: &Host, gpus: &NvmlGpus, step: CardStep, call: usize) -> Option<Result<(), GpuError>> {
    let function = Some(CALLS[call].to_owned());
    host.faults.add_rule(Rule { card: Some(0), function, effect: Effect::Hang }).unwrap();
    let mut taking = gpus.take(0, step);
    let answer = tokio::time::timeout(Duration::from_millis(150), &mut taking).await.ok();
    if answer.is_none() {
        tokio::join!(async { drop(taking.await) }, kill_helper(gpus));
    }
    host.faults.lift().unwrap();
    answer
}

async fn read(gpus: &NvmlGpus) -> CardState {
    // The first call after a reboot may find the helper on its way out.
    for _ in 0..20 {
        match gpus.state(0).await {
            Ok(state) => return state,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    gpus.state(0).await.expect("the card is well")
}

async fn run(model: GpuModel, is_mig: bool, acts: &[Act]) {
    let fleet = Fleet::of(model, 1);
    let host = Host::new(&if is_mig { fleet.with_mig() } else { fleet });
    let mut boot = 1;
    let mut gpus = host.gpus_of_boot("boot-1");
    let mut expected =
        Expected { mode: if is_mig { SharingMode::Mig } else { SharingMode::Whole }, ..Expected::whole() };
    for act in acts {
        let (before, mut unknown) = (expected.clone(), false);
        match act {
            Act::Take(step) => {
                read(&gpus).await;
                let answer = gpus.take(0, *step).await;
                let next = expected.after(model, *step);
                assert_eq!(answer.is_ok(), next.is_some(), "{step} on {expected:?}: {answer:?}");
                expected = next.unwrap_or(expected);
            }
            Act::TakeAndKill(step, call) => {
                read(&gpus).await;
                match (take_and_kill(&host, &gpus, *step, *call).await, expected.after(model, *step)) {
                    (Some(answer), next) => {
                        assert_eq!(answer.is_ok(), next.is_some(), "{step} on {expected:?}: {answer:?}");
                        expected = next.unwrap_or(expected);
                    }
                    (None, next) => {
                        unknown = true;
                        expected = next.unwrap_or(expected);
                    }
                }
            }
            Act::Kill => {
                read(&gpus).await;
                kill_helper(&gpus).await;
            }
            Act::Restart => {
                let pid = gpus.helper_pid();
                drop(gpus);
                until("the helper of the old agent has gone", || {
                    let of = |pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                    pid.map(of).is_none_or(|stat| stat.is_empty() || stat.contains(") Z "))
                })
                .await;
                gpus = host.gpus_of_boot(&format!("boot-{boot}"));
            }
            Act::Reboot => {
                // A reboot takes the daemons of MPS with it, which the double leaves to the operating system.
                if expected.mode == SharingMode::Mps {
                    gpus.take(0, CardStep::StopMps).await.unwrap();
                }
                host.faults.reboot().unwrap();
                boot += 1;
                gpus = host.gpus_of_boot(&format!("boot-{boot}"));
                expected = Expected::whole();
            }
        }
        let state = read(&gpus).await;
        let seen = Expected::of(&state);
        if unknown {
            // Destroyed by half is destroyed, made by half is not there; nothing else may have changed.
            assert!(seen == expected || seen == before, "{act:?}: {seen:?}, not {before:?} or {expected:?}");
            expected = seen.clone();
        }
        assert_eq!(seen, expected, "after {act:?}");
        assert_eq!(state.withheld, None, "after {act:?}");
        let standing: Vec<MigPlacement> = seen.places.iter().copied().collect();
        for (at, one) in standing.iter().enumerate() {
            assert!(can_stand(model.facts().mig.unwrap(), &standing[..at], *one), "{standing:?}");
        }
    }
    // In the end everything can be taken down, whatever was left by half.
    for one in expected.places {
        gpus.take(0, CardStep::DestroyInstance(one)).await.unwrap();
    }
    match expected.mode {
        SharingMode::Mig => gpus.take(0, CardStep::DisableMig).await.unwrap(),
        SharingMode::Mps => gpus.take(0, CardStep::StopMps).await.unwrap(),
        SharingMode::TimeSlice => gpus.take(0, CardStep::ClearTimeSlice).await.unwrap(),
        SharingMode::Whole => {}
    }
    let card = host.faults.fleet().unwrap().cards.remove(0);
    assert!(card.mig.instances.is_empty() && !card.mig.is_on && !card.mig.is_on_pending, "{:?}", card.mig);
    assert_eq!((card.compute_mode, card.time_slice), (0, 0));
}

/// `MUSTER_CASES=1000` runs so many.
fn cases() -> u32 {
    std::env::var("MUSTER_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_state_is_what_the_accepted_steps_say(is_mig: bool, acts in acts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(GpuModel::H100, is_mig, &acts));
    }
}
