//! Resets of a card by the driver's command, which nobody may keep from it, our own helper included.

use crate::host::{Host, refused, state, take};
use muster_agent::gpu::{GpuBackend, GpuError};
use muster_gpu_double::{Fleet, Process};
use muster_model::request::SharingMode;
use muster_node_core::CardStep;

#[tokio::test]
async fn a_reset_brings_the_mode_that_was_noted() {
    let host = Host::new(&Fleet::a100(2));
    let gpus = host.gpus();
    assert!(state(&gpus, 0).await.mode_needs_reset);
    take(&gpus, 0, CardStep::NoteMig(true)).await;
    let noted = state(&gpus, 0).await;
    assert!(noted.is_reset_pending && noted.mode == SharingMode::Whole, "{noted:?}");
    assert!(noted.withheld.is_some_and(|why| why.contains("MIG will be on after a reset of the GPU; drain the node")));
    let before = gpus.helper_pid();
    take(&gpus, 0, CardStep::Reset).await;
    let reset = state(&gpus, 0).await;
    assert!(reset.mode == SharingMode::Mig && !reset.is_reset_pending && reset.withheld.is_none(), "{reset:?}");
    assert_eq!(state(&gpus, 1).await.mode, SharingMode::Whole, "the other card is as it was");
    assert_ne!(gpus.helper_pid(), before, "a helper that has the card open keeps it from a reset");
    take(&gpus, 0, CardStep::NoteMig(false)).await;
    take(&gpus, 0, CardStep::Reset).await;
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::Whole);
}

#[tokio::test]
async fn a_mode_is_not_noted_while_somebody_uses_the_card() {
    let host = Host::new(&Fleet::a100(1));
    let gpus = host.gpus();
    host.faults.add_process(0, Process { pid: 4_000_000, memory_bytes: 1 << 30, ..Process::default() }).unwrap();
    let why = refused(&gpus, 0, CardStep::NoteMig(true)).await;
    assert!(why.contains("the MIG mode changes only while nobody uses the GPU"), "{why}");
    assert!(!host.faults.fleet().unwrap().cards[0].mig.is_on_pending);
    let why = refused(&gpus, 0, CardStep::Reset).await;
    assert!(why.contains("resetting the GPU needs an empty GPU; these processes use it: 4000000"), "{why}");
}

#[tokio::test]
async fn a_monitor_that_keeps_a_card_from_a_reset_is_told_of_and_the_helper_comes_back() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    state(&gpus, 0).await;
    host.faults.add_client(0, 4_000_000).unwrap();
    let failed = gpus.take(0, CardStep::Reset).await.expect_err("somebody else has it open");
    let GpuError::Driver { why, .. } = failed else { panic!("{failed}") };
    assert!(why.contains("In use by another client"), "{why}");
    assert_eq!(state(&gpus, 0).await.withheld, None);
    host.faults.remove_client(4_000_000).unwrap();
    take(&gpus, 0, CardStep::Reset).await;
    assert!(!state(&gpus, 0).await.mode_needs_reset, "a Hopper");
}
