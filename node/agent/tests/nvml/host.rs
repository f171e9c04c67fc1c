//! A host for one test: the double's folder, and the backend on it.

use muster_agent::gpu::nvml::{NvmlConfig, NvmlGpus};
use muster_agent::gpu::{CardState, GpuBackend, GpuError};
use muster_gpu_double::{Faults, Fleet, library_beside, library_into};
use muster_model::mig::{MigPlacement, MigShape};
use muster_model::sharing::TimeSlice;
use muster_node_core::{CardStep, MpsLimits, MpsStart};
use muster_runtime::real;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

pub(crate) const BOOT: &str = "boot-1";

/// A server that grants everything, for the agent's own user.
pub(crate) const MPS: MpsStart =
    MpsStart { limits: MpsLimits { percent: 100, memory_mib: 81_920 }, user: None, for_all: false };
pub(crate) const START_MPS: CardStep = CardStep::StartMps(MPS);
pub(crate) const SET_TIME_SLICE: CardStep = CardStep::SetTimeSlice(TimeSlice::Medium);

pub(crate) struct Host {
    pub(crate) faults: Faults,
    pub(crate) folder: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new(fleet: &Fleet) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fleet.write(folder.path()).expect("the fleet is written");
        let exe = std::env::current_exe().expect("this test");
        let built = library_beside(&exe).expect("the double is built: cargo build -p muster-gpu-double");
        library_into(&built, folder.path()).expect("the library is copied");
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).expect("a folder");
        let beside = exe.parent().and_then(Path::parent).expect("a folder of binaries");
        for name in ["nvidia-smi", "nvidia-cuda-mps-control"] {
            let missing = "the double's commands are built: cargo build -p muster-gpu-double";
            std::fs::copy(beside.join(name), bin.join(name)).expect(missing);
        }
        let faults = Faults::open(folder.path()).expect("the faults open");
        Host { faults, folder }
    }

    pub(crate) fn config(&self) -> NvmlConfig {
        let folder = self.folder.path();
        NvmlConfig {
            library: folder.join("lib/libnvidia-ml.so.1"),
            smi: folder.join("bin/nvidia-smi"),
            mps_control: folder.join("bin/nvidia-cuda-mps-control"),
            helper: vec![OsString::from(env!("CARGO_BIN_EXE_muster-gpu-helper"))],
            folder: folder.join("agent"),
            pipes: folder.join("mps"),
            driver_root: folder.to_owned(),
        }
    }

    /// The backend of an agent that starts now, in the same boot.
    pub(crate) fn gpus(&self) -> NvmlGpus {
        self.gpus_of_boot(BOOT)
    }

    pub(crate) fn gpus_of_boot(&self, boot_id: &str) -> NvmlGpus {
        let machine = real::host("test", self.folder.path().join("data"));
        NvmlGpus::open(machine, self.config(), boot_id).expect("the backend opens")
    }

    /// GPU instances of a card with the number of their compute instances, by start.
    pub(crate) fn standing(&self, slot: usize) -> Vec<(u32, usize)> {
        let fleet = self.faults.fleet().expect("the fleet");
        let mut standing: Vec<_> =
            fleet.cards[slot].mig.instances.iter().map(|one| (one.start, one.compute.len())).collect();
        standing.sort_unstable();
        standing
    }
}

pub(crate) const fn place(shape: MigShape, start: u8) -> MigPlacement {
    MigPlacement { shape, start }
}

pub(crate) const fn create(shape: MigShape, start: u8) -> CardStep {
    CardStep::CreateInstance(place(shape, start), 1)
}

pub(crate) const fn destroy(shape: MigShape, start: u8) -> CardStep {
    CardStep::DestroyInstance(place(shape, start))
}

pub(crate) async fn take(gpus: &NvmlGpus, card: u16, step: CardStep) {
    gpus.take(card, step).await.unwrap_or_else(|error| panic!("{step}: {error}"));
}

/// The words in which a step is refused.
pub(crate) async fn refused(gpus: &NvmlGpus, card: u16, step: CardStep) -> String {
    match gpus.take(card, step).await {
        Err(GpuError::Refused { why, .. }) => why,
        other => panic!("{step}: {other:?}"),
    }
}

pub(crate) async fn state(gpus: &NvmlGpus, card: u16) -> CardState {
    gpus.state(card).await.expect("readable")
}

pub(crate) async fn places(gpus: &NvmlGpus, card: u16) -> Vec<MigPlacement> {
    state(gpus, card).await.instances.iter().map(|one| one.place).collect()
}

/// Ends the helper as the kernel would, and waits until the backend has another one or none.
pub(crate) async fn kill_helper(gpus: &NvmlGpus) {
    let pid = gpus.helper_pid().expect("a helper runs");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a process id"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it is ours");
    until("the helper has gone", || gpus.helper_pid() != Some(pid.as_raw().unsigned_abs())).await;
}

pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 10 s: {what}");
}
