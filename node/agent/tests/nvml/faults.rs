//! Helpers that die, cards that hang, and what is left half done.

use crate::host::{Host, START_MPS, create, destroy, kill_helper, place, places, refused, state, take, until};
use muster_agent::gpu::{GpuBackend, GpuError};
use muster_gpu_double::{Effect, Fleet, Refusal, Rule};
use muster_model::mig::MigShape::{G1, G1Media, G3, G4, G7};
use muster_model::request::SharingMode;
use muster_node_core::CardStep;
use std::time::{Duration, Instant};
use tokio::time::timeout;

const CREATE_COMPUTE: &str = "nvmlGpuInstanceCreateComputeInstance";
const DESTROY_GPU: &str = "nvmlGpuInstanceDestroy";

fn hang(host: &Host, function: &str) {
    host.faults.hang_function(function).unwrap();
}

#[tokio::test]
async fn a_card_that_hangs_costs_no_other() {
    let host = Host::new(&Fleet::h100(8));
    let gpus = host.gpus();
    assert_eq!(gpus.cards().await.unwrap().len(), 8);
    host.faults.hang(3).unwrap();
    let began = Instant::now();
    let all = futures::future::join_all((0..8).map(|card| timeout(Duration::from_secs(3), gpus.state(card))));
    let others = futures::future::join_all(
        (0..8).filter(|card| *card != 3).map(|card| timeout(Duration::from_secs(3), gpus.state(card))),
    );
    let (others, took) = tokio::join!(async { (others.await, began.elapsed()) }, all);
    assert!(others.1 < Duration::from_secs(1), "{:?}", others.1);
    assert!(others.0.iter().all(|answer| matches!(answer, Ok(Ok(_)))));
    assert_eq!(took.iter().filter(|answer| answer.is_err()).count(), 1, "card 3 alone is silent");
}

#[tokio::test]
async fn what_nobody_waits_for_any_more_is_not_done_later() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpus = host.gpus();
    state(&gpus, 0).await;
    hang(&host, "nvmlDeviceGetMigMode");
    // The card's thread hangs in the first call, and the step waits behind it.
    assert!(timeout(Duration::from_millis(200), gpus.state(0)).await.is_err());
    assert!(timeout(Duration::from_millis(200), gpus.take(0, create(G1, 0))).await.is_err());
    // The helper must hear of it before the driver answers; otherwise the step is taken, and the next reading shows it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    host.faults.lift().unwrap();
    assert_eq!(places(&gpus, 0).await, []);
    assert_eq!(host.standing(0), [], "the forgotten step was not taken");
    // However often a caller gives up, there is room for the next.
    hang(&host, "nvmlDeviceGetMigMode");
    for _ in 0..40 {
        assert!(timeout(Duration::from_millis(20), gpus.state(0)).await.is_err());
    }
    host.faults.lift().unwrap();
    state(&gpus, 0).await;
}

#[tokio::test]
async fn a_helper_that_dies_is_started_again() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    state(&gpus, 0).await;
    kill_helper(&gpus).await;
    state(&gpus, 0).await;
    // In the middle of a call: it fails with words, and the next one works.
    hang(&host, "nvmlDeviceGetMigMode");
    let (answer, ()) = tokio::join!(gpus.state(1), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        kill_helper(&gpus).await;
    });
    let error = answer.unwrap_err();
    assert!(
        matches!(error, GpuError::Driver { card: 1, .. }) && error.to_string().contains("started again"),
        "{error}"
    );
    host.faults.lift().unwrap();
    state(&gpus, 1).await;
}

#[tokio::test]
async fn a_helper_that_answers_nobody_is_ended() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus().silent_after(Duration::from_millis(400));
    state(&gpus, 0).await;
    let first = gpus.helper_pid();
    host.faults.hang_all().unwrap();
    for _ in 0..6 {
        let answer = timeout(Duration::from_millis(200), gpus.state(0)).await;
        assert!(!matches!(answer, Ok(Ok(_))), "{answer:?}");
    }
    host.faults.lift().unwrap();
    until("another helper", || gpus.helper_pid().is_some_and(|pid| Some(pid) != first)).await;
    state(&gpus, 0).await;
}

#[tokio::test]
async fn a_hung_card_does_not_end_a_helper_that_answers_others() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus().silent_after(Duration::from_millis(400));
    state(&gpus, 0).await;
    let first = gpus.helper_pid();
    host.faults.hang(0).unwrap();
    for _ in 0..8 {
        assert!(timeout(Duration::from_millis(200), gpus.state(0)).await.is_err());
    }
    assert_eq!(gpus.helper_pid(), first);
    state(&gpus, 1).await;
}

#[tokio::test]
async fn a_host_without_driver_says_so() {
    let host = Host::new(&Fleet::h100(1));
    std::fs::remove_file(host.config().library).unwrap();
    let gpus = host.gpus();
    let why = gpus.cards().await.unwrap_err().to_string();
    assert!(why.contains("cannot be loaded") && why.contains("install the driver"), "{why}");
    let error = gpus.host().await.unwrap_err().to_string();
    assert!(error.contains("cannot be loaded"), "{error}");
}

/// Leaves a GPU instance of `G3@0` without compute instance, by a helper that was killed between the two.
async fn half_made(host: &Host) {
    let gpus = host.gpus();
    hang(host, CREATE_COMPUTE);
    let (answer, ()) = tokio::join!(gpus.take(0, create(G3, 0)), async {
        until("the GPU instance stands", || host.standing(0).contains(&(0, 0))).await;
        kill_helper(&gpus).await;
    });
    answer.unwrap_err();
    host.faults.lift().unwrap();
    assert_eq!(places(&gpus, 0).await, [], "only whole instances are shown");
}

#[tokio::test]
async fn a_half_made_instance_is_completed_where_it_is_wanted() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    half_made(&host).await;
    assert_eq!(host.standing(0), [(0, 0)]);
    let gpus = host.gpus();
    take(&gpus, 0, create(G3, 0)).await;
    assert_eq!(places(&gpus, 0).await, [place(G3, 0)]);
    assert_eq!(host.standing(0), [(0, 1)]);
}

#[tokio::test]
async fn a_half_made_instance_gives_way_to_others() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    for step in [create(G1, 2), create(G7, 0), destroy(G3, 0), destroy(G1, 6), CardStep::DisableMig] {
        half_made(&host).await;
        let gpus = host.gpus();
        take(&gpus, 0, step).await;
        assert!(!host.standing(0).contains(&(0, 0)), "{step}: {:?}", host.standing(0));
        for one in places(&gpus, 0).await {
            take(&gpus, 0, CardStep::DestroyInstance(one)).await;
        }
        assert_eq!(host.standing(0), []);
    }
}

#[tokio::test]
async fn an_instance_that_was_destroyed_by_half_goes_with_the_next_step() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpus = host.gpus();
    take(&gpus, 0, create(G4, 0)).await;
    take(&gpus, 0, create(G1Media, 6)).await;
    hang(&host, DESTROY_GPU);
    let (answer, ()) = tokio::join!(gpus.take(0, destroy(G1Media, 6)), async {
        until("its compute instance has gone", || host.standing(0) == [(0, 1), (6, 0)]).await;
        kill_helper(&gpus).await;
    });
    answer.unwrap_err();
    host.faults.lift().unwrap();
    assert_eq!(places(&gpus, 0).await, [place(G4, 0)]);
    // The media engines are free again although nobody has asked for the rest to be destroyed.
    take(&gpus, 0, create(G1Media, 4)).await;
    assert_eq!(host.standing(0), [(0, 1), (4, 1)]);
}

#[tokio::test]
async fn a_compute_instance_that_cannot_be_made_leaves_nothing() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpus = host.gpus();
    host.faults.fail(None, CREATE_COMPUTE, Refusal::InsufficientResources).unwrap();
    let error = gpus.take(0, create(G3, 0)).await.unwrap_err();
    assert!(error.to_string().contains("NVML code 23"), "{error}");
    assert_eq!(host.standing(0), []);
}

#[tokio::test]
async fn a_helper_that_dies_in_a_change_of_mode_leaves_one_of_the_two() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    state(&gpus, 0).await;
    // Hangs before the driver does anything, and again after it has.
    for function in ["nvmlDeviceSetMigMode", "nvmlDeviceGetComputeRunningProcesses_v3"] {
        let card = Some(0);
        let rule = Rule { card, function: Some(function.to_owned()), effect: Effect::Hang };
        host.faults.add_rule(rule).unwrap();
        let (answer, ()) = tokio::join!(gpus.take(0, CardStep::EnableMig), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            kill_helper(&gpus).await;
        });
        answer.unwrap_err();
        host.faults.lift().unwrap();
        assert_eq!(state(&gpus, 0).await.withheld, None);
    }
    take(&gpus, 0, CardStep::EnableMig).await;
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::Mig);
    // Of a pending change that was never activated the next step makes an end.
    host.faults.change_card(0, |card| card.mig.is_on_pending = false).unwrap();
    assert!(state(&gpus, 0).await.withheld.is_some());
    take(&gpus, 0, CardStep::EnableMig).await;
    assert_eq!(state(&gpus, 0).await.withheld, None);
}

#[tokio::test]
async fn a_caller_who_is_not_root_is_told() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpus = host.gpus();
    host.faults.no_permission(true).unwrap();
    let error = gpus.state(0).await.unwrap_err().to_string();
    assert!(error.contains("Insufficient Permissions"), "{error}");
    host.faults.no_permission(false).unwrap();
    assert!(refused(&gpus, 0, START_MPS).await.contains("in mode mig"));
}

#[tokio::test]
async fn events_that_the_driver_does_not_register_are_asked_for_again() {
    let host = Host::new(&Fleet::h100(1));
    host.faults.fail(None, "nvmlDeviceRegisterEvents", Refusal::Unknown).unwrap();
    let gpus = host.gpus();
    let mut events = gpus.events();
    gpus.cards().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    host.faults.lift().unwrap();
    for _ in 0..40 {
        host.faults.xid(0, None, None, 31).unwrap();
        let told = timeout(Duration::from_millis(500), futures::StreamExt::next(&mut events)).await;
        if let Ok(Some((0, muster_node_core::health::HealthEvent::Xid(_)))) = told {
            return;
        }
    }
    panic!("no event after 20 s");
}
