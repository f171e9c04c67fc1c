//! What a task starts with: its isolation and its environment.
//!
//! What must stay true: a task of another user learns nothing of the agent's own from its environment, and what Muster sets wins over what the job
//! sets.

use super::Inner;
use super::files::Files;
use crate::exec::{Launch, claim, orphans};
use crate::image::driver_files::LIBRARY_PATH;
use crate::task_folder::record::{DeviceNode, FileBounds, Isolation, LaunchRecord, Limits, OfImage, PortFence};
use muster_model::checkpoint::FILE_VARIABLE;
use muster_model::elastic::WORLD_VARIABLE;
use muster_model::ports::{PORTS_BASE, PORTS_PER_BLOCK};
use muster_model::task::HoldMode;
use muster_model::{PortBlock, Ports};
use muster_node_core::TaskSpec;
use muster_node_core::env::PIPE_VARIABLE;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a command takes over from the agent's own environment, where it is set: enough to find programs and speak its language.
const INHERITED: [&str; 4] = ["PATH", "LANG", "LC_ALL", "TZ"];
/// And this, if it has the agent's own user: who the agent is, and where its files are.
const INHERITED_BY_SAME_USER: [&str; 6] = ["HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH"];

/// Where programs are in an image that does not say it, and a name for a user that its list of users does not know.
const OF_IMAGES: [(&str, &str); 3] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("USER", "muster"),
    ("LOGNAME", "muster"),
];

/// Files that each process of a task has open: some times what eight data loaders and a gang of a thousand ranks need; the kernel's own bound for all processes of
/// a host is some hundred times that.
const OPEN_FILES_MAX: u64 = 65_536;
/// Devices that read and write memory across the network lie below this.
const FABRIC: &str = "infiniband/";

/// Which ports of jobs it may use; all, where the control plane assigns none.
fn fence_of(spec: &TaskSpec) -> Option<PortFence> {
    if spec.private_network || spec.ports == Ports::Unassigned {
        return None;
    }
    let of_master = (spec.master_port.wrapping_sub(PORTS_BASE)) % PORTS_PER_BLOCK;
    let gang = PortBlock::beginning_with(spec.master_port.wrapping_sub(of_master));
    Some(PortFence { own: spec.ports.block(), gang })
}

impl Inner {
    /// Everything that the shim has to know.
    ///
    /// # Errors
    /// Why this node cannot run it so, for people.
    pub(super) fn record(&self, launch: Launch, files: Files) -> Result<LaunchRecord, String> {
        let Launch { spec, node_epoch, env, deadline_ns: _, devices } = launch;
        let Files { root, binds, of_image, library_path, .. } = files;
        let isolation = self.isolation(&spec, &env, devices)?.map(|isolation| Isolation { root, binds, ..isolation });
        let mut env = self.environment(&spec, isolation.as_ref(), env, of_image.as_ref());
        env.extend(library_path.map(|path| (LIBRARY_PATH.to_owned(), path)));
        Ok(LaunchRecord {
            spec: (*spec).clone(),
            node_epoch,
            boot_id: self.config.boot_id.clone(),
            env,
            log_bytes_max: self.config.log_bytes_max,
            isolation,
            of_image,
        })
    }

    /// How a task is isolated.
    fn isolation(
        &self,
        spec: &TaskSpec,
        env: &BTreeMap<String, String>,
        devices: Vec<DeviceNode>,
    ) -> Result<Option<Isolation>, String> {
        let Some(config) = self.config.isolation.as_ref() else {
            return match spec.private_network {
                true => Err("its pool gives tasks a network of their own, and this node isolates none".to_owned()),
                false => Ok(None),
            };
        };
        let memory_mib = spec.memory_max_mib();
        let limits = Limits { cpu_milli: spec.cpu_milli, memory_mib, pids_max: config.pids_max };
        // The ranks of a node share these files, and each may use a half of its memory for them.
        let files = FileBounds {
            open_max: OPEN_FILES_MAX,
            memory_mib: memory_mib * u64::from(spec.local_world_size.max(1)) / 2,
            scratch_mib: config.scratch_mib,
        };
        let pins_memory = devices.iter().any(|device| device.name.starts_with(FABRIC));
        let shares = spec.devices.iter().any(|hold| matches!(hold.mode, HoldMode::Mps { .. }));
        // A simulated server has no pipe.
        let pipe = env.get(PIPE_VARIABLE).filter(|_| shares).map(PathBuf::from).filter(|pipe| pipe.is_dir());
        Ok(Some(Isolation {
            folder: self.config.data_dir.join("sandboxes").join(spec.key.allocation.to_string()),
            user: config.users.of(spec.tenant_id, spec.run_as)?,
            writable: config.writable.clone(),
            cgroups: config.cgroups.clone(),
            limits,
            devices,
            folders: pipe.into_iter().collect(),
            root: None,
            binds: Vec::new(),
            private_network: spec.private_network,
            ports: fence_of(spec),
            pins_memory,
            allows_system_users: config.allows_system_users,
            driver_params: config.driver_params.clone(),
            files,
        }))
    }

    /// The whole environment of a task's command.
    fn environment(
        &self,
        spec: &TaskSpec,
        isolation: Option<&Isolation>,
        env: BTreeMap<String, String>,
        of_image: Option<&OfImage>,
    ) -> BTreeMap<String, String> {
        let folder = self.folder(spec.key);
        let seen_as = |path: PathBuf| {
            let seen = isolation.map(|isolation| isolation.seen_as(spec.key, folder.path(), &path));
            seen.unwrap_or(path).display().to_string()
        };
        let inherited = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
        let is_other_user = isolation.is_some_and(Isolation::is_full);
        let mut whole: BTreeMap<String, String> = match of_image {
            // The agent's own programs and language are not those of the image.
            Some(image) => OF_IMAGES
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into_iter()
                .chain(image.env.clone())
                .collect(),
            None => INHERITED.into_iter().filter_map(inherited).collect(),
        };
        if is_other_user {
            whole.insert("HOME".to_owned(), seen_as(folder.scratch()));
        } else {
            whole.extend(INHERITED_BY_SAME_USER.into_iter().filter_map(inherited));
        }
        whole.extend(env);
        whole.insert(orphans::TASK.to_owned(), folder.path().display().to_string());
        // The folders are made only at the start of the task.
        if spec.world.is_some() {
            whole.insert(WORLD_VARIABLE.to_owned(), seen_as(folder.to_task().join("world")));
        }
        whole.insert(FILE_VARIABLE.to_owned(), seen_as(folder.from_task().join("checkpoint")));
        // Who is isolated has no need to be found by it, and none to know it.
        if isolation.is_none()
            && let Some((owner, _)) = &*self.owner.lock()
        {
            whole.insert(orphans::OWNER.to_owned(), claim::mark(owner, &self.config.boot_id));
        }
        whole
    }
}
