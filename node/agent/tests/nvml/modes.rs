//! MPS and time-slicing.

use crate::host::{BOOT, Host, refused, state, take};
use muster_agent::gpu::GpuBackend;
use muster_agent::gpu::nvml::MpsLimits;
use muster_gpu_double::{Fleet, Process};
use muster_model::request::SharingMode;
use muster_node_core::CardStep;
use std::path::PathBuf;

const EXCLUSIVE_PROCESS: u32 = 3;

fn compute_mode(host: &Host, slot: usize) -> u32 {
    host.faults.fleet().unwrap().cards[slot].compute_mode
}

#[tokio::test]
async fn mps_is_started_found_again_and_stopped() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    take(&gpus, 1, CardStep::StartMps).await;
    take(&gpus, 1, CardStep::StartMps).await;
    assert_eq!(compute_mode(&host, 1), EXCLUSIVE_PROCESS);
    let servers = host.faults.fleet().unwrap().mps;
    assert_eq!(servers.len(), 1, "{servers:?}");
    let first = state(&gpus, 1).await;
    let pipe = PathBuf::from(first.mps_pipe.clone().expect("it has a pipe"));
    assert_eq!(first.mode, SharingMode::Mps);
    assert!(pipe.starts_with(host.folder.path().join("mps")) && pipe.display().to_string().contains(&first.uuid[..18]));
    assert_eq!(servers[0].pipe, pipe.display().to_string());
    // The server is on its card only, and is no stranger there.
    let listed = gpus.processes(1).await.unwrap();
    assert_eq!((listed.len(), gpus.processes(0).await.unwrap().len()), (1, 0));

    // Another agent finds it.
    drop(gpus);
    let gpus = host.gpus();
    assert_eq!(state(&gpus, 1).await, first);
    take(&gpus, 1, CardStep::StartMps).await;
    assert_eq!(host.faults.fleet().unwrap().mps.len(), 1);

    // Limits are the server's.
    gpus.set_mps_limits(1, MpsLimits { thread_percentage: Some(50), memory_mib: Some(2_048) }).await.unwrap();
    let server = host.faults.fleet().unwrap().mps.remove(0);
    assert_eq!(server.thread_percentage.as_deref(), Some("50.0"));
    assert_eq!(server.memory_limits, [(0, "2048M".to_owned())]);
    let error = gpus.set_mps_limits(1, MpsLimits { thread_percentage: Some(0), memory_mib: None }).await.unwrap_err();
    assert!(error.to_string().contains("does not take"), "{error}");
    assert!(gpus.set_mps_limits(0, MpsLimits::default()).await.is_err(), "no MPS runs there");

    // It is not stopped under its clients.
    host.faults.mps_join(&pipe, 4_321).unwrap();
    assert!(refused(&gpus, 1, CardStep::StopMps).await.contains("4321"));
    host.faults.mps_leave(&pipe, 4_321).unwrap();
    assert!(refused(&gpus, 1, CardStep::EnableMig).await.contains("this GPU is in mode mps"));
    take(&gpus, 1, CardStep::StopMps).await;
    take(&gpus, 1, CardStep::StopMps).await;
    let after = state(&gpus, 1).await;
    assert_eq!((after.mode, after.mps_pipe), (SharingMode::Whole, None));
    assert_eq!((compute_mode(&host, 1), host.faults.fleet().unwrap().mps.len()), (0, 0));
    take(&gpus, 1, CardStep::EnableMig).await;
}

#[tokio::test]
async fn mps_that_does_not_start_leaves_the_card_whole() {
    let host = Host::new(&Fleet::h100(1));
    std::fs::remove_file(host.config().mps_control).unwrap();
    let gpus = host.gpus();
    let error = gpus.take(0, CardStep::StartMps).await.unwrap_err().to_string();
    assert!(error.contains("cannot be run"), "{error}");
    assert_eq!((state(&gpus, 0).await.mode, compute_mode(&host, 0)), (SharingMode::Whole, 0));
}

#[tokio::test]
async fn a_compute_mode_that_was_left_behind_is_set_back() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    let uuid = state(&gpus, 0).await.uuid;
    // The agent was killed on its way to MPS.
    std::fs::create_dir_all(host.config().pipes.join(&uuid[..18])).unwrap();
    for slot in 0..2 {
        host.faults.change_card(slot, |card| card.compute_mode = EXCLUSIVE_PROCESS).unwrap();
    }
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::Whole);
    state(&gpus, 1).await;
    assert_eq!((compute_mode(&host, 0), compute_mode(&host, 1)), (0, EXCLUSIVE_PROCESS), "the other is an operator's");
    take(&gpus, 0, CardStep::StartMps).await;
    take(&gpus, 0, CardStep::StopMps).await;
}

#[tokio::test]
async fn mps_needs_an_empty_card() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    host.faults.add_process(0, Process { pid: 77, ..Process::default() }).unwrap();
    for step in [CardStep::StartMps, CardStep::SetTimeSlice, CardStep::EnableMig] {
        assert!(refused(&gpus, 0, step).await.contains("77"), "{step}");
    }
    assert_eq!(compute_mode(&host, 0), 0);
}

#[tokio::test]
async fn time_slicing_is_known_until_the_next_boot() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    take(&gpus, 0, CardStep::SetTimeSlice).await;
    take(&gpus, 0, CardStep::SetTimeSlice).await;
    assert_eq!(host.faults.fleet().unwrap().cards[0].time_slice, 2);
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::TimeSlice);
    assert_eq!(state(&gpus, 1).await.mode, SharingMode::Whole);
    assert!(refused(&gpus, 0, CardStep::StartMps).await.contains("in mode time"));
    let later = host.gpus_of_boot(BOOT);
    assert_eq!(state(&later, 0).await.mode, SharingMode::TimeSlice, "another agent of this boot knows");
    take(&later, 0, CardStep::ClearTimeSlice).await;
    assert_eq!(host.faults.fleet().unwrap().cards[0].time_slice, 0);
    take(&later, 0, CardStep::SetTimeSlice).await;
    host.faults.reboot().unwrap();
    assert_eq!(state(&host.gpus_of_boot("boot-2"), 0).await.mode, SharingMode::Whole);
}

#[tokio::test]
async fn a_policy_that_is_refused_is_not_counted() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    state(&gpus, 0).await;
    host.faults.no_permission(true).unwrap();
    let error = gpus.take(0, CardStep::SetTimeSlice).await.unwrap_err().to_string();
    assert!(error.contains("Insufficient Permissions"), "{error}");
    host.faults.no_permission(false).unwrap();
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::Whole);
}
