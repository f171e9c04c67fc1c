//! The cards of a host: simulated ones, those of NVIDIA's driver, or those of the driver's double.
//!
//! What must stay true: what the node file says of simulated cards counts for simulated cards and for the double alone; a real host says itself what it has.

use crate::args::roles::{GpuKind, Node as Args};
use crate::spec::node::SimulatedNode;
use anyhow::Context;
use fnv::FnvHasher;
use muster_agent::Driver;
use muster_agent::gpu::GpuBackend;
use muster_agent::gpu::nvml::{NvmlConfig, NvmlGpus};
use muster_agent::gpu::sim::SimGpus;
use muster_gpu_double::{Fleet, library_beside, library_into};
use muster_model::Gpu;
use muster_runtime::Host;
use std::ffi::OsString;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the agent of a host works with.
pub(super) struct Cards {
    pub(super) backend: Arc<dyn GpuBackend>,
    /// What the node says that it has; empty: whatever the backend finds.
    pub(super) listed: Vec<Gpu>,
    /// The version of the driver.
    pub(super) driver: String,
    /// The driver where it is a real one, or its double: a simulated one serves every CUDA.
    pub(super) serves: Option<Driver>,
    /// Where faults of the cards are told.
    pub(super) kernel_log: Option<PathBuf>,
    /// Where the driver is installed, for tasks in container images.
    pub(super) driver_root: Option<PathBuf>,
}

/// The hidden subcommand that talks with the driver.
pub const HELPER: &str = "gpu-helper";

/// The cards of `host`, whose folder is `data`.
pub(super) async fn open(
    args: &Args,
    host: &SimulatedNode,
    data: &Path,
    machine: &Host,
    boot_id: &str,
) -> anyhow::Result<Cards> {
    let nvml = match args.gpus {
        GpuKind::Simulated => {
            let listed = host.cards();
            let backend = Arc::new(SimGpus::open(listed.clone(), boot_id, Some(machine.files.clone()))?);
            let (driver, kernel_log) = (host.driver.clone(), simulated_log(args, data)?);
            return Ok(Cards { backend, listed, driver, serves: None, kernel_log, driver_root: None });
        }
        GpuKind::Nvml => NvmlConfig {
            library: args.nvml_library.clone(),
            smi: PathBuf::from("nvidia-smi"),
            mps_control: PathBuf::from("nvidia-cuda-mps-control"),
            helper: helper()?,
            folder: data.to_owned(),
            pipes: pipes(data)?,
            driver_root: PathBuf::from("/"),
        },
        GpuKind::Double => double(args, host, data)?,
    };
    let kernel_log = match args.gpus {
        GpuKind::Double => nvml.driver_root.join("kmsg"),
        _ => PathBuf::from("/dev/kmsg"),
    };
    let driver_root = Some(nvml.driver_root.clone());
    let backend = NvmlGpus::open(machine.clone(), nvml, boot_id)?;
    let told = backend.host().await.context("asking NVIDIA's driver for its version (--gpus nvml, --nvml-library)")?;
    let (driver, serves) = (told.version.clone(), Some(told));
    let kernel_log = Some(args.kernel_log.clone().unwrap_or(kernel_log));
    Ok(Cards { backend: Arc::new(backend), listed: Vec::new(), driver, serves, kernel_log, driver_root })
}

fn helper() -> anyhow::Result<Vec<OsString>> {
    let own = std::env::current_exe().context("finding this program")?;
    Ok(vec![own.into_os_string(), OsString::from(HELPER)])
}

/// The double of a host, made where it is missing: its cards are those of the recording, or of the node file.
fn double(args: &Args, host: &SimulatedNode, data: &Path) -> anyhow::Result<NvmlConfig> {
    const BUILD: &str = "it is built with the workspace: cargo build -p muster-gpu-double";
    let folder = data.join("gpu-double");
    let own = std::env::current_exe().context("finding this program")?;
    let library =
        library_beside(&own).with_context(|| format!("the double of NVML is not beside {}; {BUILD}", own.display()))?;
    if !folder.join("fleet.json").exists() {
        let fleet = match &args.gpu_recording {
            Some(path) => recorded(path)?,
            // Cards of different hosts have different UUIDs.
            None => {
                Fleet::of(host.model, host.gpus as usize).with_seed(hash(host.name.as_bytes())).with_switches(4, 18, 4)
            }
        };
        fleet.write(&folder).with_context(|| format!("writing the double in {}", folder.display()))?;
    }
    library_into(&library, &folder).with_context(|| format!("copying the double to {}", folder.display()))?;
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).with_context(|| format!("making {}", bin.display()))?;
    for name in ["nvidia-smi", "nvidia-cuda-mps-control"] {
        let built = own.with_file_name(name);
        // Copied beside and renamed: a daemon of an earlier run may be executing it.
        let (to, beside) = (bin.join(name), bin.join(format!("{name}.new")));
        std::fs::copy(&built, &beside)
            .and_then(|_| std::fs::rename(&beside, &to))
            .with_context(|| format!("copying {}; {BUILD}", built.display()))?;
    }
    Ok(NvmlConfig {
        library: folder.join("lib/libnvidia-ml.so.1"),
        smi: bin.join("nvidia-smi"),
        mps_control: bin.join("nvidia-cuda-mps-control"),
        helper: helper()?,
        folder: data.to_owned(),
        pipes: pipes(data)?,
        driver_root: folder,
    })
}

/// What `muster node record` has written.
fn recorded(path: &Path) -> anyhow::Result<Fleet> {
    let read = || format!("reading the recording {}", path.display());
    serde_json::from_slice(&std::fs::read(path).with_context(read)?).with_context(read)
}

/// Where the control pipes of MPS servers are. The agent's data folder is closed to the users of tasks, and its path may be too long for a socket.
fn pipes(data: &Path) -> anyhow::Result<PathBuf> {
    let data = std::path::absolute(data).with_context(|| format!("the folder {}", data.display()))?;
    let run = match nix::unistd::geteuid().is_root() {
        true => PathBuf::from("/run"),
        false => std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from),
    };
    Ok(run.join(format!("muster-mps-{:016x}", hash(data.as_os_str().as_encoded_bytes()))))
}

/// The same in every process and version: folders are found by it again.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = FnvHasher::default();
    hash.write(bytes);
    hash.finish()
}

/// Where faults of simulated cards are told, by whoever plays the kernel. Simulated tasks have no processes to end, and there may be thousands of such hosts
/// in this process.
fn simulated_log(args: &Args, data: &Path) -> anyhow::Result<Option<PathBuf>> {
    if args.kernel_log.is_some() || args.virtual_tasks {
        return Ok(args.kernel_log.clone());
    }
    let path = data.join("kernel-log");
    if !path.exists() {
        std::fs::create_dir_all(data).with_context(|| format!("making {}", data.display()))?;
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600))
            .with_context(|| format!("making {}", path.display()))?;
    }
    Ok(Some(path))
}
