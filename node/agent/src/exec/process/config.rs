//! How an executor runs its tasks, as the role that starts it decides.
//!
//! What must stay true: nothing here is found out; what a host gives is found out before ([`crate::sandbox::probe`]).

use crate::image::ImagesConfig;
use crate::shim_command::ShimCommand;
use crate::task_folder::record::Cgroup;
use muster_node_core::{Driver, TaskUsers};
use std::path::PathBuf;

/// Where tasks are kept and within what bounds.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The shim.
    pub shim: ShimCommand,
    /// Folders go below this.
    pub data_dir: PathBuf,
    /// The host's present boot.
    pub boot_id: String,
    /// Of each of a task's two outputs this much is kept: its beginning and its end.
    pub log_bytes_max: u64,
    /// Folders of finished tasks that are kept.
    pub kept_tasks_max: usize,
    /// Bytes of them.
    pub kept_bytes_max: u64,
    /// This process is an agent and nothing else: it becomes the sub-reaper of its shims, and what has a dead shim for its parent is
    /// killed. Any other child of such a process would be taken for that.
    pub reaps_orphans: bool,
    /// How tasks are isolated; absent: not at all.
    pub isolation: Option<IsolationConfig>,
    /// How container images are prepared.
    pub images: ImagesConfig,
    /// The driver of the node's GPUs, where it is known.
    pub driver: Option<Driver>,
}

/// How tasks of a node are isolated. Usually: without another user, files to write and control groups.
#[derive(Clone, Debug)]
pub struct IsolationConfig {
    /// As whom tasks run; as others than the agent only where that is root.
    pub users: TaskUsers,
    /// Paths of the host that tasks may write below.
    pub writable: Vec<PathBuf>,
    /// Hierarchies of control groups that work on this host.
    pub cgroups: Vec<Cgroup>,
    /// Processes and threads that a task may have.
    pub pids_max: u64,
    /// Users of the system will do.
    pub allows_system_users: bool,
    /// MiB of the scratch folder of a task, which is memory then; 0: it is on the disk, without a bound.
    pub scratch_mib: u64,
    /// Where the driver of the cards says how it was loaded, if there is one.
    pub driver_params: Option<PathBuf>,
}

impl Default for IsolationConfig {
    fn default() -> Self {
        IsolationConfig {
            users: TaskUsers::Agent,
            writable: Vec::new(),
            cgroups: Vec::new(),
            pids_max: 16_384,
            allows_system_users: false,
            scratch_mib: 0,
            driver_params: None,
        }
    }
}

impl ProcessConfig {
    /// The usual bounds: 16 MiB per output, 2,000 finished tasks, 4 GiB in all.
    #[must_use]
    pub fn new(shim: ShimCommand, data_dir: impl Into<PathBuf>, boot_id: impl Into<String>) -> Self {
        ProcessConfig {
            shim,
            data_dir: data_dir.into(),
            boot_id: boot_id.into(),
            log_bytes_max: 16 << 20,
            kept_tasks_max: 2_000,
            kept_bytes_max: 4 << 30,
            reaps_orphans: false,
            isolation: None,
            images: ImagesConfig::default(),
            driver: None,
        }
    }
}
