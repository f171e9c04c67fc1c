//! MPS and time-slicing.

use crate::host::{BOOT, Host, MPS, SET_TIME_SLICE, START_MPS, refused, state, take};
use muster_agent::gpu::{CardState, GpuBackend};
use muster_gpu_double::{Fleet, Process};
use muster_model::request::SharingMode;
use muster_model::sharing::TimeSlice;
use muster_node_core::{CardStep, MpsLimits, MpsStart};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

const EXCLUSIVE_PROCESS: u32 = 3;

fn compute_mode(host: &Host, slot: usize) -> u32 {
    host.faults.fleet().unwrap().cards[slot].compute_mode
}

#[tokio::test]
async fn mps_is_started_found_again_and_stopped() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    take(&gpus, 1, START_MPS).await;
    take(&gpus, 1, START_MPS).await;
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

    // Another agent finds it, and does not know what it grants.
    drop(gpus);
    let gpus = host.gpus();
    assert_eq!(first.mps_limits, Some(MPS.limits));
    assert_eq!(state(&gpus, 1).await, CardState { mps_limits: None, ..first });
    take(&gpus, 1, START_MPS).await;
    assert_eq!(host.faults.fleet().unwrap().mps.len(), 1);

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
    let error = gpus.take(0, START_MPS).await.unwrap_err().to_string();
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
    take(&gpus, 0, START_MPS).await;
    take(&gpus, 0, CardStep::StopMps).await;
}

#[tokio::test]
async fn mps_needs_an_empty_card() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    host.faults.add_process(0, Process { pid: 77, ..Process::default() }).unwrap();
    for step in [START_MPS, SET_TIME_SLICE, CardStep::EnableMig] {
        assert!(refused(&gpus, 0, step).await.contains("77"), "{step}");
    }
    assert_eq!(compute_mode(&host, 0), 0);
}

#[tokio::test]
async fn time_slicing_is_known_until_the_next_boot() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    take(&gpus, 0, SET_TIME_SLICE).await;
    take(&gpus, 0, SET_TIME_SLICE).await;
    assert_eq!(host.faults.fleet().unwrap().cards[0].time_slice, 2);
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::TimeSlice);
    assert_eq!(state(&gpus, 1).await.mode, SharingMode::Whole);
    assert!(refused(&gpus, 0, START_MPS).await.contains("in mode time"));
    let later = host.gpus_of_boot(BOOT);
    assert_eq!(state(&later, 0).await.mode, SharingMode::TimeSlice, "another agent of this boot knows");
    take(&later, 0, CardStep::ClearTimeSlice).await;
    assert_eq!(host.faults.fleet().unwrap().cards[0].time_slice, 0);
    take(&later, 0, SET_TIME_SLICE).await;
    host.faults.reboot().unwrap();
    assert_eq!(state(&host.gpus_of_boot("boot-2"), 0).await.mode, SharingMode::Whole);
}

#[tokio::test]
async fn a_policy_that_is_refused_is_not_counted() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    state(&gpus, 0).await;
    host.faults.no_permission(true).unwrap();
    let error = gpus.take(0, SET_TIME_SLICE).await.unwrap_err().to_string();
    assert!(error.contains("Insufficient Permissions"), "{error}");
    host.faults.no_permission(false).unwrap();
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::Whole);
}

/// A program that waits, with nothing in its environment but this. It ends with its value.
struct Program(Child);

impl Program {
    fn start(env: &[(&str, &str)]) -> Self {
        let mut command = Command::new("sleep");
        Program(command.arg("600").env_clear().envs(env.iter().copied()).spawn().expect("it runs"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const GIB: u64 = 1 << 30;

fn pipe(state: &CardState) -> PathBuf {
    PathBuf::from(state.mps_pipe.clone().expect("a server runs"))
}

/// What a client has been granted, in MiB and percent.
fn granted(host: &Host, pid: u32) -> (Option<u64>, f32) {
    let fleet = host.faults.fleet().unwrap();
    let granted = fleet.mps.iter().find_map(|server| server.granted.get(&pid)).expect("a client");
    (granted.memory_bytes.map(|bytes| bytes >> 20), granted.thread_percentage)
}

/// The escape: whoever removes the limits from its environment, or raises them, is granted the largest share and no more.
#[tokio::test]
async fn a_client_that_unsets_its_limits_has_no_more_than_its_server_grants() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    let limits = MpsLimits { percent: 50, memory_mib: 16_384 };
    take(&gpus, 0, CardStep::StartMps(MpsStart { limits, ..MPS })).await;
    let first = state(&gpus, 0).await;
    assert_eq!(first.mps_limits, Some(limits));
    let pipe = pipe(&first);
    let own = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4096M"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")];
    let raised = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=64G"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")];
    for (env, memory_mib, percent) in [(&own[..], 4_096, 10.0), (&[][..], 16_384, 50.0), (&raised[..], 16_384, 50.0)] {
        let program = Program::start(env);
        host.faults.mps_connect(&pipe, program.pid()).unwrap();
        assert_eq!(granted(&host, program.pid()), (Some(memory_mib), percent), "{env:?}");
        host.faults.mps_allocate(&pipe, program.pid(), 3 * GIB).unwrap();
        let too_much = host.faults.mps_allocate(&pipe, program.pid(), (memory_mib << 20) - 3 * GIB);
        assert!(too_much.is_err(), "{env:?}: its context counts");
    }

    // What the server grants is changed for those who come; a daemon that does not take it is an error, and nobody knows what holds then.
    let more = MpsLimits { percent: 75, memory_mib: 20_480 };
    take(&gpus, 0, CardStep::SetMpsLimits(more)).await;
    assert_eq!(state(&gpus, 0).await.mps_limits, Some(more));
    let program = Program::start(&[]);
    host.faults.mps_connect(&pipe, program.pid()).unwrap();
    assert_eq!(granted(&host, program.pid()), (Some(20_480), 75.0));
    let error = gpus.take(0, CardStep::SetMpsLimits(MpsLimits { percent: 0, ..more })).await.unwrap_err();
    assert!(error.to_string().contains("does not take"), "{error}");
    assert_eq!(state(&gpus, 0).await.mps_limits, None);
    drop(program);
    assert!(refused(&gpus, 0, CardStep::EnableMig).await.contains("mode mps"));
    crate::host::until("its clients have gone", || host.faults.fleet().unwrap().mps[0].clients.is_empty()).await;
    take(&gpus, 0, CardStep::StopMps).await;
    assert!(refused(&gpus, 0, CardStep::SetMpsLimits(more)).await.contains("no MPS server runs on it"));
}

#[tokio::test]
async fn a_server_takes_the_clients_of_all_users_where_tasks_have_several() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    let own = nix::unistd::geteuid().as_raw();
    let start = MpsStart { user: Some(own), for_all: true, ..MPS };
    take(&gpus, 0, CardStep::StartMps(start)).await;
    assert_eq!(state(&gpus, 0).await.mps_user, None);
    assert!(host.faults.fleet().unwrap().mps[0].is_for_all);
    // An older driver has a server for one user, and says for whom.
    host.faults.unsupported(muster_gpu_double::standin::mps::MULTI_USER).unwrap();
    take(&gpus, 1, CardStep::StartMps(start)).await;
    assert_eq!(state(&gpus, 1).await.mps_user, Some(own));
    assert_eq!(host.faults.fleet().unwrap().mps.iter().filter(|server| server.is_for_all).count(), 1);
    // Another agent sees the same.
    let later = host.gpus();
    assert_eq!((state(&later, 0).await.mps_user, state(&later, 1).await.mps_user), (None, Some(own)));
    for card in 0..2 {
        take(&later, card, CardStep::StopMps).await;
    }
    let one = MpsStart { user: Some(12_345), for_all: false, ..MPS };
    take(&later, 0, CardStep::StartMps(one)).await;
    let server = host.faults.fleet().unwrap().mps.remove(0);
    assert_eq!((server.uid, server.is_for_all, state(&later, 0).await.mps_user), (12_345, false, Some(12_345)));
    take(&later, 0, CardStep::StopMps).await;
}

#[tokio::test]
async fn clients_that_are_about_to_be_killed_leave_their_server_first() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    take(&gpus, 0, START_MPS).await;
    let pipe = pipe(&state(&gpus, 0).await);
    let (first, second) = (Program::start(&[]), Program::start(&[]));
    for program in [&first, &second] {
        host.faults.mps_connect(&pipe, program.pid()).unwrap();
    }
    gpus.end_mps_clients(0, vec![first.pid(), 4_321]).await.unwrap();
    assert_eq!(host.faults.fleet().unwrap().mps[0].clients, [second.pid()]);
    drop((first, second));
    let is_empty = |pipe: &Path| pipe.is_dir() && host.faults.fleet().unwrap().mps[0].clients.is_empty();
    crate::host::until("both have gone", || is_empty(&pipe)).await;
    take(&gpus, 0, CardStep::StopMps).await;
}

#[tokio::test]
async fn turns_have_the_length_that_is_asked_for() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    for (length, number) in [(TimeSlice::Short, 1), (TimeSlice::Medium, 2), (TimeSlice::Long, 3)] {
        take(&gpus, 0, CardStep::SetTimeSlice(length)).await;
        assert_eq!(host.faults.fleet().unwrap().cards[0].time_slice, number);
        take(&gpus, 0, CardStep::ClearTimeSlice).await;
        assert_eq!(host.faults.fleet().unwrap().cards[0].time_slice, 0);
    }
}
