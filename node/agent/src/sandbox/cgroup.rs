//! Control groups: one for each task on this node, with its limits, in every hierarchy that the host has for them.
//!
//! A host has version 2, version 1, or both. What must stay true: the agent finds out once what works ([`available`]) and writes it into each
//! task's record, so that a shim and a later agent use the same groups; a limit that is in the record and cannot be set ends the
//! start of the task; a group is empty before it is removed; processes are ended through their group, not by their parents.

use super::device_program::{Device, usual};
use super::fences::{Fences, Seen};
use super::{SandboxError, doing};
use crate::task_folder::record::{Cgroup, Controller, Isolation, Limits, PortFence};
use muster_node_core::TaskKey;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// From one look at a group that is being emptied to the next.
const LOOK_AGAIN_MIN: Duration = Duration::from_micros(200);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(50);
/// In which a task may use its share of the processors, in microseconds: the kernel's usual period.
const CPU_PERIOD_US: u64 = 100_000;
/// The least that the kernel takes.
const CPU_QUOTA_US_MIN: u64 = 1_000;

/// A hierarchy that cannot be used.
#[derive(Debug)]
pub(super) struct Refused {
    /// Of version 1; version 2 has all.
    controllers: Vec<Controller>,
    why: String,
}

impl Refused {
    /// Why there is no group for a controller; empty where no hierarchy has it.
    pub(super) fn why(refused: &[Self], controller: Controller) -> String {
        let of = |of: &&Self| of.controllers.contains(&controller);
        let of_all = |of: &&Self| of.controllers.is_empty();
        let found = refused.iter().find(of).or_else(|| refused.iter().find(of_all));
        found.map(|refused| format!(" ({})", refused.why)).unwrap_or_default()
    }
}

/// Removes what [`available`] has made, where no task is.
pub(super) fn remove_bases(cgroups: &[Cgroup]) {
    for cgroup in cgroups {
        let _ = std::fs::remove_dir(&cgroup.base);
    }
}

/// The hierarchies in which this process can make groups of its own, named `name`; why others cannot be used.
pub(super) fn available(name: &str) -> (Vec<Cgroup>, Vec<Refused>) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for hierarchy in hierarchies(&mounts, &own) {
        match open(&hierarchy, name) {
            Ok(cgroup) => found.push(cgroup),
            Err(error) => {
                let why = format!("{}: {error}", hierarchy.own.display());
                refused.push(Refused { controllers: hierarchy.controllers, why });
            }
        }
    }
    (found, refused)
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    is_v2: bool,
    /// Of version 1: what it is mounted for.
    controllers: Vec<Controller>,
    /// The group of this process.
    own: PathBuf,
    mounted_at: PathBuf,
}

/// Reads proc_pid_mountinfo(5) and cgroups(7).
fn hierarchies(mounts: &str, own: &str) -> Vec<Hierarchy> {
    let own_in = |wanted: &dyn Fn(&str) -> bool| {
        let found = own.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?, fields.next()?))
        });
        found.filter(|(controllers, _)| wanted(controllers)).map(|(_, path)| path).next()
    };
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (before, after): (Vec<&str>, Vec<&str>) = (before.split(' ').collect(), after.split(' ').collect());
        let (&[_, _, _, root, at, ..], &[kind, _, options]) = (before.as_slice(), after.as_slice()) else { continue };
        let names: Vec<&str> = options.split(',').collect();
        let controllers: Vec<Controller> = Controller::ALL.into_iter().filter(|c| names.contains(&c.name())).collect();
        let is_v2 = kind == "cgroup2";
        if !is_v2 && (kind != "cgroup" || controllers.is_empty()) {
            continue;
        }
        let of = own_in(&|listed| {
            if is_v2 { listed.is_empty() } else { listed.split(',').any(|c| c == controllers[0].name()) }
        });
        // In a container the mount begins at the container's own group.
        let below = of.unwrap_or("/").strip_prefix(root.trim_end_matches('/')).unwrap_or_default();
        let mounted_at = PathBuf::from(at);
        let inside = mounted_at.join(below.trim_start_matches('/'));
        let own = if inside.is_dir() { inside } else { mounted_at.clone() };
        found.push(Hierarchy { is_v2, controllers: if is_v2 { Vec::new() } else { controllers }, own, mounted_at });
    }
    found
}

/// Tries whether groups can be made in a hierarchy.
fn open(hierarchy: &Hierarchy, name: &str) -> io::Result<Cgroup> {
    let (base, mut controllers) = if hierarchy.is_v2 {
        let base = base_of(hierarchy).join(format!("muster/{name}"));
        std::fs::create_dir_all(&base)?;
        (base.clone(), enable(&base, &hierarchy.mounted_at)?)
    } else {
        (base_of(hierarchy).join(format!("muster/{name}")), hierarchy.controllers.clone())
    };
    // What is tried to see whether the hierarchy can be used; others may try at the same time.
    let trial = base.join(format!("trial-{}", std::process::id()));
    std::fs::create_dir_all(&trial)?;
    // Version 2 takes the program in every hierarchy, whatever controllers it has; an agent without root may not load one.
    let takes = |fences: Fences, what: &str| {
        let attached = File::open(&trial).and_then(|group| fences.attach(&group));
        attached
            .inspect_err(|error| tracing::debug!(%error, what, "control groups of version 2 take no such program"))
            .is_ok()
    };
    let takes_devices = hierarchy.is_v2 && takes(Fences::of_devices(&usual()), "devices");
    let fences_ports = hierarchy.is_v2 && takes(Fences::of_ports(&PortFence::default()), "ports");
    controllers.extend(takes_devices.then_some(Controller::Devices));
    std::fs::remove_dir(&trial)?;
    Ok(Cgroup { is_v2: hierarchy.is_v2, controllers, base, fences_ports })
}

/// Version 2 lets a group with processes have no children with controllers. In version 1 whatever is taken of the devices of a group is taken of those below
/// it, and systemd writes a unit's devices anew at each `daemon-reload`. So root makes these groups at the top, out of reach of the agent's own unit.
/// Another user can make them only below its own group, without controllers.
fn base_of(hierarchy: &Hierarchy) -> PathBuf {
    let is_root = nix::unistd::geteuid().is_root();
    let at_top = hierarchy.is_v2 || hierarchy.controllers.contains(&Controller::Devices);
    if is_root && at_top { hierarchy.mounted_at.clone() } else { hierarchy.own.clone() }
}

/// Enables what the hierarchy has for the groups below `base`; gives what is enabled.
fn enable(base: &Path, mounted_at: &Path) -> io::Result<Vec<Controller>> {
    let below = base.strip_prefix(mounted_at).unwrap_or(Path::new(""));
    let mut at = mounted_at.to_owned();
    let mut enabled = Vec::new();
    for part in std::iter::once(None).chain(below.components().map(Some)) {
        at.extend(part);
        let offered = std::fs::read_to_string(at.join("cgroup.controllers"))?;
        let has = |controller: &Controller| offered.split_whitespace().any(|name| name == controller.name());
        enabled = Controller::ALL.into_iter().filter(has).collect();
        for controller in &enabled {
            // The kernel refuses this in a group that has processes of its own. Then the next level does not offer it.
            let _ = write(&at.join("cgroup.subtree_control"), &format!("+{}", controller.name()));
        }
    }
    let enabled_here = std::fs::read_to_string(base.join("cgroup.subtree_control"))?;
    enabled.retain(|controller| enabled_here.split_whitespace().any(|name| name == controller.name()));
    Ok(enabled)
}

/// The groups of one task.
#[derive(Debug)]
pub(crate) struct TaskCgroups<'a> {
    cgroups: &'a [Cgroup],
    key: TaskKey,
}

impl<'a> TaskCgroups<'a> {
    pub(crate) fn of(cgroups: &'a [Cgroup], key: TaskKey) -> Self {
        TaskCgroups { cgroups, key }
    }

    fn folder(&self, cgroup: &Cgroup) -> PathBuf {
        cgroup.base.join(self.key.to_string())
    }

    /// Makes them with their limits; gives the files to which the first process writes `0` to enter.
    pub(crate) fn make(&self, isolation: &Isolation) -> Result<Vec<File>, SandboxError> {
        let (limits, devices) = (&isolation.limits, devices_of(isolation));
        let mut entrances = Vec::with_capacity(self.cgroups.len());
        for cgroup in self.cgroups {
            let folder = self.folder(cgroup);
            std::fs::create_dir_all(&folder).map_err(doing(format!("making control group {}", folder.display())))?;
            for (file, value) in settings(cgroup, limits, &devices) {
                let path = folder.join(file);
                let say = || format!("writing {value:?} to {}", path.display());
                match write(&path, &value) {
                    // Limits of swap are there only where the kernel accounts for it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound && is_of_swap(file) => {}
                    other => other.map_err(doing(say()))?,
                }
            }
            if cgroup.is_v2 {
                let fences = Fences::of(cgroup, &devices, isolation.ports.as_ref());
                let attached = File::open(&folder).and_then(|group| fences.attach(&group));
                attached.map_err(doing(format!("attaching programs to {}", folder.display())))?;
            }
            let path = folder.join("cgroup.procs");
            let entrance = File::options().write(true).open(&path);
            entrances.push(entrance.map_err(doing(format!("opening {}", path.display())))?);
        }
        Ok(entrances)
    }

    /// Looks whether its fences are still there, and puts those back that are not: a manager of services may have taken them. Says what it found missing.
    pub(crate) fn restore(&self, isolation: &Isolation, seen: &mut Seen) -> Vec<Lifted> {
        let devices = devices_of(isolation);
        let mut lifted = Vec::new();
        for cgroup in self.cgroups {
            let folder = self.folder(cgroup);
            if !folder.is_dir() {
                continue;
            }
            let restored = if cgroup.is_v2 {
                let fences = Fences::of(cgroup, &devices, isolation.ports.as_ref());
                File::open(&folder).and_then(|group| fences.restore(&group, seen))
            } else if cgroup.controllers.contains(&Controller::Devices) {
                restore_list(&folder, &devices)
            } else {
                Ok(Vec::new())
            };
            match restored {
                Ok(found) => lifted.extend(found.into_iter().map(|what| Lifted { what, error: None })),
                // It ended meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => lifted.push(Lifted { what: "fences", error: Some(error) }),
            }
        }
        lifted
    }

    /// Kills every process in them and returns when none is left; says whether there is such a group at all.
    pub(crate) fn kill_all(&self) -> bool {
        let mut any = false;
        // Those of version 2 first: they are emptied in one call.
        let (unified, others): (Vec<&Cgroup>, Vec<&Cgroup>) = self.cgroups.iter().partition(|cgroup| cgroup.is_v2);
        for cgroup in unified.into_iter().chain(others) {
            let folder = self.folder(cgroup);
            let mut pause = LOOK_AGAIN_MIN;
            while let Some(left) = processes(&folder) {
                any = true;
                if left.is_empty() {
                    break;
                }
                // In one call, and no fork gets away (5.14).
                if write(&folder.join("cgroup.kill"), "1").is_err() {
                    // Of version 1: then none of them forks meanwhile.
                    let _ = write(&folder.join("pids.max"), "0");
                    for pid in left {
                        let _ = kill(pid, Signal::SIGKILL);
                    }
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(LOOK_AGAIN_MAX);
            }
        }
        any
    }

    /// Removes them once they are empty.
    pub(crate) fn remove(&self) {
        for cgroup in self.cgroups {
            // A killed process leaves its group a moment after it has left the list.
            for _ in 0..20 {
                match std::fs::remove_dir(self.folder(cgroup)) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(LOOK_AGAIN_MAX / 10),
                    _ => break,
                }
            }
        }
    }

    /// How often the kernel has ended a process of it because the memory was used up.
    pub(crate) fn memory_kills(&self) -> u64 {
        let has_memory = |cgroup: &&Cgroup| cgroup.controllers.contains(&Controller::Memory);
        let Some(cgroup) = self.cgroups.iter().find(has_memory) else { return 0 };
        let file = if cgroup.is_v2 { "memory.events" } else { "memory.oom_control" };
        let said = std::fs::read_to_string(self.folder(cgroup).join(file)).unwrap_or_default();
        said.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or_default()
    }
}

/// What was missing of a task's fences.
#[derive(Debug)]
pub(crate) struct Lifted {
    /// Which.
    pub(crate) what: &'static str,
    /// Why it cannot be put back, if so.
    pub(crate) error: Option<io::Error>,
}

/// What a task may open.
fn devices_of(isolation: &Isolation) -> Vec<Device> {
    let own = isolation.devices.iter().map(|node| Device { major: node.major, minor: Some(node.minor) });
    usual().into_iter().chain(own).collect()
}

/// The same for a list of version 1: anything in it that is not allowed, or anything missing, has it written anew.
fn restore_list(folder: &Path, devices: &[Device]) -> io::Result<Vec<&'static str>> {
    let there = std::fs::read_to_string(folder.join("devices.list"))?;
    let wanted: BTreeSet<String> = devices.iter().map(|device| device.line()).collect();
    let there: BTreeSet<String> = there.lines().map(|line| line.trim().to_owned()).collect();
    if there == wanted {
        return Ok(Vec::new());
    }
    write(&folder.join("devices.deny"), "a")?;
    for line in wanted {
        write(&folder.join("devices.allow"), &line)?;
    }
    Ok(vec!["the list of devices"])
}

/// Writes to a file of a control group. One that is not there must not be made: the kernel calls that "permission denied".
fn write(path: &Path, value: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(value.as_bytes())
}

/// The processes in a group; `None` when there is no such group.
fn processes(folder: &Path) -> Option<Vec<Pid>> {
    let list = std::fs::read_to_string(folder.join("cgroup.procs")).ok()?;
    Some(list.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).map(Pid::from_raw).collect())
}

fn is_of_swap(file: &str) -> bool {
    matches!(file, "memory.swap.max" | "memory.memsw.limit_in_bytes")
}

/// The files of a group and what is written to them, in this order.
fn settings(cgroup: &Cgroup, limits: &Limits, devices: &[Device]) -> Vec<(&'static str, String)> {
    let quota_us = (limits.cpu_milli > 0).then(|| (limits.cpu_milli * CPU_PERIOD_US / 1_000).max(CPU_QUOTA_US_MIN));
    let memory = (limits.memory_mib > 0).then(|| (limits.memory_mib << 20).to_string());
    let mut settings = Vec::new();
    for controller in &cgroup.controllers {
        match (controller, cgroup.is_v2) {
            (Controller::Cpu, true) => {
                settings.extend(quota_us.map(|quota| ("cpu.max", format!("{quota} {CPU_PERIOD_US}"))));
            }
            (Controller::Cpu, false) => {
                settings.extend(quota_us.map(|_| ("cpu.cfs_period_us", CPU_PERIOD_US.to_string())));
                settings.extend(quota_us.map(|quota| ("cpu.cfs_quota_us", quota.to_string())));
            }
            (Controller::Memory, true) => {
                settings.extend(memory.clone().map(|bytes| ("memory.max", bytes)));
                settings.push(("memory.swap.max", "0".to_owned()));
                settings.push(("memory.oom.group", "1".to_owned()));
            }
            (Controller::Memory, false) => {
                settings.extend(memory.clone().map(|bytes| ("memory.limit_in_bytes", bytes)));
                settings.extend(memory.clone().map(|bytes| ("memory.memsw.limit_in_bytes", bytes)));
            }
            (Controller::Pids, _) => settings.push(("pids.max", limits.pids_max.to_string())),
            (Controller::Devices, false) => {
                settings.push(("devices.deny", "a".to_owned()));
                settings.extend(devices.iter().map(|device| ("devices.allow", device.line())));
            }
            // Version 2 has no files for devices, but a program in the kernel.
            (Controller::Devices, true) => {}
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let mounts = "\
            30 24 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n\
            31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
            32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
            33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = hierarchies(mounts, "5:cpu,cpuacct:/\n1:name=systemd:/a\n0::/no/such/group\n");
        let at = |path: &str| PathBuf::from(format!("/sys/fs/cgroup/{path}"));
        let of = |is_v2, controllers, path| Hierarchy { is_v2, controllers, own: at(path), mounted_at: at(path) };
        assert_eq!(found, [of(false, vec![Controller::Cpu], "cpu,cpuacct"), of(true, vec![], "unified")]);
    }

    #[test]
    fn limits_are_written_as_each_version_wants_them() {
        let limits = Limits { cpu_milli: 1_500, memory_mib: 64, pids_max: 10 };
        let of =
            |is_v2| Cgroup { is_v2, controllers: Controller::ALL.to_vec(), base: PathBuf::new(), fences_ports: is_v2 };
        let has =
            |is_v2, file, value: &str| settings(&of(is_v2), &limits, &usual()).contains(&(file, value.to_owned()));
        assert!(
            has(true, "cpu.max", "150000 100000") && has(true, "memory.max", "67108864") && has(true, "pids.max", "10")
        );
        assert!(has(false, "cpu.cfs_quota_us", "150000") && has(false, "memory.limit_in_bytes", "67108864"));
        assert_eq!(
            settings(&of(false), &limits, &usual()).iter().position(|s| s.0 == "devices.deny").map(|at| at + 1),
            settings(&of(false), &limits, &usual()).iter().position(|s| s.0 == "devices.allow"),
            "first nothing is allowed, then the usual"
        );
        let unlimited = settings(&of(true), &Limits { cpu_milli: 0, memory_mib: 0, pids_max: 10 }, &usual());
        assert!(!unlimited.iter().any(|(file, _)| matches!(*file, "cpu.max" | "memory.max")));
    }
}
