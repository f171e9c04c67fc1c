//! What this host gives to a sandbox, found out by trying each thing on a sandbox that is made for that.
//!
//! What must stay true: a protection counts only after an attempt to get past it has failed here; the attempts run in a process of their own, since an
//! agent has threads; what does not hold is reported with its remedy.

mod attempts;

use self::attempts::{DEVICE, OWN, PORTS, SOCKET};
use super::cgroup::{self, Refused};
use super::enter::{self, Standard, Task, Then};
use super::member::{Member, PROBE_ARGUMENT};
use crate::shim_command::ShimCommand;
use crate::task_folder::TaskFolder;
use crate::task_folder::record::{Cgroup, Controller, FileBounds, Isolation, Limits, PortFence};
use muster_model::Protection;
use muster_model::ids::{AllocationId, Rank};
use muster_model::ports::PORTS_BASE;
use muster_node_core::TaskKey;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Nobody's user, on every Linux.
const NOBODY: u32 = 65_534;
const LIMITS: Limits = Limits { cpu_milli: 200, memory_mib: 50, pids_max: 16 };

/// What a host gives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// Tasks get users of their own, and neither the host's devices nor its files to write.
    pub is_full: bool,
    /// Hierarchies of control groups that work.
    pub cgroups: Vec<Cgroup>,
    /// What was tried.
    pub proofs: Vec<Proof>,
}

/// Protections are written as people know them.
mod as_word {
    use muster_model::Protection;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub(super) fn serialize<S: Serializer>(protection: &Protection, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(protection)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protection, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Findings {
    /// Whether sandboxes can be made at all.
    #[must_use]
    pub fn has_sandboxes(&self) -> bool {
        self.proofs.iter().any(|proof| proof.protection == Protection::Processes && proof.holds)
    }

    /// As the control plane is told it: in order, each protection once.
    #[must_use]
    pub fn told(&self) -> Vec<muster_model::Proof> {
        let fault = |proof: &Proof| (!proof.holds).then(|| proof.seen.clone());
        let mut told: Vec<muster_model::Proof> =
            self.proofs.iter().map(|proof| muster_model::Proof::new(proof.protection, fault(proof))).collect();
        told.sort_by_key(|proof| proof.protection);
        told
    }
}

/// One thing that was tried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Proof {
    /// What was tried to get past.
    #[serde(with = "as_word")]
    pub protection: Protection,
    /// What it protects, in a few words.
    pub what: String,
    /// The attempt to get past it failed.
    pub holds: bool,
    /// What was seen.
    pub seen: String,
    /// What the operator can do where it does not hold.
    pub remedy: String,
}

/// Tries the host, in a process of the shim's program; `name` is that of the control groups. Blocks for about a second.
///
/// # Errors
/// When that process cannot be run or says nothing that can be read.
pub fn find_out(shim: &ShimCommand, data: &Path, name: &str) -> io::Result<Findings> {
    // Several agents may have one data folder between them.
    let folder = data.join(format!("probe-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let out = Command::new(&shim.program)
        .args(&shim.arguments)
        .args([PROBE_ARGUMENT.as_ref(), folder.join(name).as_os_str()])
        .stdin(Stdio::null())
        .current_dir("/")
        .output()?;
    let _ = std::fs::remove_dir_all(&folder);
    serde_json::from_slice(&out.stdout).map_err(|error| {
        let said = String::from_utf8_lossy(&out.stderr);
        io::Error::other(format!("{} {PROBE_ARGUMENT}: {error}: {}", shim.program.display(), said.trim()))
    })
}

/// Removes the control groups that were made to find this out. For those who start no tasks.
pub fn forget(found: &Findings) {
    cgroup::remove_bases(&found.cgroups);
}

/// Prints what was found and leaves the process.
pub(crate) fn probe_main(folder: &Path) -> ! {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or("probe");
    let (cgroups, refused) = cgroup::available(name);
    let is_root = nix::unistd::geteuid().is_root();
    let isolation = Isolation {
        devices: Vec::new(),
        folders: Vec::new(),
        folder: folder.join("sandbox"),
        user: is_root.then_some(NOBODY),
        writable: Vec::new(),
        cgroups: cgroups.clone(),
        limits: LIMITS,
        root: None,
        binds: Vec::new(),
        private_network: false,
        ports: Some(PortFence { own: Some(OWN), gang: None }),
        pins_memory: false,
        allows_system_users: false,
        driver_params: None,
        files: FileBounds::default(),
    };
    let trial = Trial { isolation, folder: TaskFolder::new(&folder.join("task")) };
    let socket = SOCKET.get_or_init(|| format!("muster/probe/{}", std::process::id()));
    let _listens = SocketAddr::from_abstract_name(socket).and_then(|address| UnixListener::bind_addr(&address));
    let _ports = listen_as_others();
    let mut proofs = Vec::new();
    match Member::join(&trial.isolation) {
        Err(error) => proofs.push(Proof::new(Protection::Processes, Err(error.to_string()), OF_NAMESPACES)),
        Ok(member) => {
            proofs.extend(trial.all(&member, &refused));
            let _ = member.leave(true, || ());
        }
    }
    let mut found = Findings { is_full: false, cgroups, proofs };
    found.is_full = is_root && found.has_sandboxes();
    println!("{}", serde_json::to_string(&found).unwrap_or_default());
    std::process::exit(0)
}

const OF_NAMESPACES: &str = "run the agent as root, or allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0)";
const OF_ROOT: &str = "run the agent as root";
const OF_KERNEL: &str = "use a kernel with seccomp (CONFIG_SECCOMP_FILTER)";
const OF_SCOPES: &str = "use a kernel of version 6.12 or later with Landlock (lsm=landlock,...)";
const OF_LANDLOCK: &str = "use a kernel of version 5.19 or later with Landlock (lsm=landlock,...)";
const OF_PORTS: &str =
    "run the agent as root, with control groups of version 2 mounted, on a kernel with CONFIG_CGROUP_BPF";

/// Listens on a port that is nobody's, and on one of those that jobs have, where there is one that is free.
fn listen_as_others() -> Option<[TcpListener; 2]> {
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let of_nobody = listen(0).ok()?;
    let of_another = (PORTS_BASE..OWN.first() - 1).rev().find_map(|port| listen(port).ok())?;
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    PORTS.get_or_init(|| [port(&of_nobody).unwrap_or_default(), port(&of_another).unwrap_or_default()]);
    Some([of_nobody, of_another])
}

fn of_cgroups(controller: Controller) -> String {
    format!("run the agent as root, on a kernel with the control group controller \"{}\"", controller.name())
}

impl Proof {
    fn new(protection: Protection, seen: Result<String, String>, remedy: impl Into<String>) -> Self {
        let (holds, seen) = match seen {
            Ok(seen) => (true, seen),
            Err(seen) => (false, seen),
        };
        let (what, remedy) = (in_words(protection).to_owned(), if holds { String::new() } else { remedy.into() });
        Proof { protection, what, holds, seen, remedy }
    }
}

/// For people.
const fn in_words(protection: Protection) -> &'static str {
    match protection {
        Protection::Processes => "processes of their own",
        Protection::User => "a user of their own",
        Protection::Files => "files",
        Protection::Devices => "devices",
        Protection::Kernel => "kernel",
        Protection::Memory => "memory",
        Protection::Pids => "number of processes",
        Protection::Cpu => "processors",
        Protection::ForeignDevices => "foreign devices",
        Protection::Sockets => "abstract sockets",
        Protection::Landlock => "a second rule for files",
        Protection::Network => "a network of their own",
        Protection::Ports => "ports of other jobs",
        Protection::End => "end",
    }
}

struct Trial {
    isolation: Isolation,
    folder: TaskFolder,
}

impl Trial {
    /// Every attempt, each in a process of its own.
    fn all(&self, member: &Member, refused: &[Refused]) -> Vec<Proof> {
        let limited = |controller| self.isolation.cgroups.iter().any(|cgroup| cgroup.controllers.contains(&controller));
        let held = |protection, controller: Controller, attempt: &dyn Fn() -> Result<String, String>| {
            let missing =
                || Err(format!("no control group for {}{}", controller.name(), Refused::why(refused, controller)));
            let seen = if limited(controller) { attempt() } else { missing() };
            Proof::new(protection, seen, of_cgroups(controller))
        };
        let exits = |call, well: &str, ill: &str| self.exits(member, call, well, ill);
        let holds = |protection, call, well: &str, ill: &str, remedy: &str| {
            Proof::new(protection, exits(call, well, ill), remedy)
        };
        vec![
            holds(
                Protection::Processes,
                attempts::sees_nobody,
                "a task sees only its sandbox",
                "a task sees processes outside",
                OF_NAMESPACES,
            ),
            Proof::new(Protection::User, self.own_user(member), OF_ROOT),
            holds(
                Protection::Files,
                attempts::cannot_write,
                "the system is read-only",
                "a task writes where its user may",
                OF_ROOT,
            ),
            holds(
                Protection::Devices,
                attempts::has_no_devices,
                "no device of the host is there",
                "a task opens what its user may",
                OF_ROOT,
            ),
            holds(
                Protection::Kernel,
                attempts::is_filtered,
                "namespaces, mounts and BPF are refused",
                "system calls are not filtered",
                OF_KERNEL,
            ),
            held(Protection::Memory, Controller::Memory, &|| match self.run(member, attempts::fills_memory) {
                Ok(WaitStatus::Signaled(_, Signal::SIGKILL, _)) => {
                    Ok(format!("a writer of 200 MB under {} MiB was killed", LIMITS.memory_mib))
                }
                Ok(_) => Err("a task writes more than its limit".to_owned()),
                Err(error) => Err(error),
            }),
            held(Protection::Pids, Controller::Pids, &|| {
                exits(
                    attempts::cannot_fork_for_ever,
                    &format!("the {}th process was refused", LIMITS.pids_max),
                    "a task starts more than its limit",
                )
            }),
            held(Protection::Cpu, Controller::Cpu, &|| {
                exits(attempts::spins, "a spinner kept to a fifth of a CPU", "a spinner took more than its share")
            }),
            held(Protection::ForeignDevices, Controller::Devices, &|| {
                self.put_device()?;
                exits(
                    attempts::opens_no_device,
                    "a device that lay in its own folder was refused",
                    "a task opens any device that it finds",
                )
            }),
            holds(
                Protection::Sockets,
                attempts::reaches_no_socket,
                "one of the host was out of reach",
                "a task reaches abstract sockets of the host",
                OF_SCOPES,
            ),
            holds(
                Protection::Landlock,
                attempts::is_confined,
                "writing was refused where no rule allows it",
                "the kernel has no Landlock",
                OF_LANDLOCK,
            ),
            Proof::new(Protection::Network, self.own_network(), OF_NAMESPACES),
            Proof::new(Protection::Ports, self.own_ports(member), OF_PORTS),
            Proof::new(Protection::End, self.killed_init_leaves_nobody(), OF_NAMESPACES),
        ]
    }

    fn own_user(&self, member: &Member) -> Result<String, String> {
        match self.isolation.user {
            Some(_) => self.exits(member, attempts::is_no_root, "a task cannot become root", "a task becomes root"),
            None => Err("a task has the agent's user".to_owned()),
        }
    }

    fn own_ports(&self, member: &Member) -> Result<String, String> {
        if !self.isolation.cgroups.iter().any(|cgroup| cgroup.fences_ports) {
            return Err("no control group takes programs for sockets".to_owned());
        }
        let well = "ports of others could be neither reached nor taken";
        self.exits(member, attempts::keeps_to_its_ports, well, "a task reaches ports of other jobs, or takes them")
    }

    /// Whether an attempt exits with 0.
    fn exits(&self, member: &Member, call: fn() -> i32, well: &str, ill: &str) -> Result<String, String> {
        match self.run(member, call) {
            Ok(WaitStatus::Exited(_, 0)) => Ok(well.to_owned()),
            Ok(_) => Err(ill.to_owned()),
            Err(error) => Err(error),
        }
    }

    /// In a sandbox of its own: the others have the host's network.
    fn own_network(&self) -> Result<String, String> {
        let mut folder = self.isolation.folder.clone().into_os_string();
        folder.push("-network");
        let isolation =
            Isolation { folder: folder.into(), private_network: true, ports: None, ..self.isolation.clone() };
        let other = Trial { isolation, folder: self.folder.clone() };
        let member = Member::join(&other.isolation).map_err(|error| error.to_string())?;
        let seen = other.exits(
            &member,
            attempts::has_own_network,
            "the host's loopback was out of reach",
            "a task reaches the host's loopback",
        );
        let _ = member.leave(true, || ());
        seen
    }

    /// Puts a device of the host, the machine's memory, where a task that starts next finds it.
    fn put_device(&self) -> Result<(), String> {
        let path = self.folder.scratch().join(DEVICE);
        let number = nix::sys::stat::makedev(1, 1);
        let (kind, mode) = (nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRUSR);
        let made = std::fs::create_dir_all(self.folder.scratch())
            .and_then(|()| Ok(nix::sys::stat::mknod(&path, kind, mode, number)?))
            .and_then(|()| std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)));
        made.map_err(|error| format!("making {}: {error}", path.display()))
    }

    /// How a process inside ends.
    fn run(&self, member: &Member, call: fn() -> i32) -> Result<WaitStatus, String> {
        let cgroups = cgroup::TaskCgroups::of(&self.isolation.cgroups, key());
        let ended = self.start(member, call).and_then(|pid| waitpid(pid, None).map_err(|error| error.to_string()));
        cgroups.kill_all();
        cgroups.remove();
        ended
    }

    fn start(&self, member: &Member, call: fn() -> i32) -> Result<nix::unistd::Pid, String> {
        let null = || File::options().read(true).write(true).open("/dev/null").map_err(|error| error.to_string());
        let standard = Standard { stdin: null()?, stdout: OwnedFd::from(null()?), stderr: OwnedFd::from(null()?) };
        let task = Task { key: key(), folder: &self.folder, workdir: None, shares: false, then: Then::Call(call) };
        let entered = enter::start(member, &self.isolation, &task, standard);
        entered.map(|entered| entered.pid).map_err(|error| error.to_string())
    }

    /// A process that has left its session and its parent ends with the init of another sandbox.
    fn killed_init_leaves_nobody(&self) -> Result<String, String> {
        let aside = self.isolation.folder.with_extension("end");
        let other =
            Trial { isolation: Isolation { folder: aside, ..self.isolation.clone() }, folder: self.folder.clone() };
        let member = Member::join(&other.isolation).map_err(|error| error.to_string())?;
        let first = match other.start(&member, attempts::leaves_a_daemon) {
            Ok(first) => first,
            Err(error) => {
                let _ = member.leave(true, || ());
                return Err(error);
            }
        };
        let begun = Instant::now();
        let ended = Cell::new(None);
        let reap = || match waitpid(first, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(_) => {}
            Ok(status) => ended.set(Some(status)),
        };
        let left = member.leave(true, reap).map_err(|error| error.to_string());
        let took = begun.elapsed();
        let cgroups = cgroup::TaskCgroups::of(&other.isolation.cgroups, key());
        cgroups.kill_all();
        cgroups.remove();
        left?;
        match ended.get() {
            Some(WaitStatus::Signaled(_, Signal::SIGKILL, _)) => {
                Ok(format!("a killed init left nobody, after {:.1} ms", took.as_secs_f64() * 1e3))
            }
            other => Err(format!("the first process ended otherwise: {other:?}")),
        }
    }
}

/// Names the control groups of the attempts of this process: allocations have small numbers.
fn key() -> TaskKey {
    TaskKey { allocation: AllocationId(u64::MAX - u64::from(std::process::id())), rank: Rank(0) }
}
