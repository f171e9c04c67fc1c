//! What this host gives to a sandbox, found out by trying each thing on a sandbox that is made for that.
//!
//! What must stay true: a protection counts only after an attempt to get past it has failed here; the attempts run in a process of their own, since an
//! agent has threads; what does not hold is reported with its remedy.

use super::cgroup::{self, Refused};
use super::enter::{self, Standard, Task, Then};
use super::member::{Member, PROBE_ARGUMENT};
use super::sys;
use crate::shim_command::ShimCommand;
use crate::task_folder::TaskFolder;
use crate::task_folder::record::{Cgroup, Controller, Isolation, Limits};
use muster_model::ids::{AllocationId, Rank};
use muster_node_core::TaskKey;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

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

impl Findings {
    /// Whether sandboxes can be made at all.
    #[must_use]
    pub fn has_sandboxes(&self) -> bool {
        self.proofs.iter().any(|proof| proof.what == SANDBOX && proof.holds)
    }
}

/// One thing that was tried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Proof {
    /// What it protects, in a few words.
    pub what: String,
    /// The attempt to get past it failed.
    pub holds: bool,
    /// What was seen.
    pub seen: String,
    /// What the operator can do where it does not hold.
    pub remedy: String,
}

const SANDBOX: &str = "processes of their own";

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
    };
    let trial = Trial { isolation, folder: TaskFolder::new(&folder.join("task")) };
    let socket = SOCKET.get_or_init(|| format!("muster/probe/{}", std::process::id()));
    let _listens = SocketAddr::from_abstract_name(socket).and_then(|address| UnixListener::bind_addr(&address));
    let mut proofs = Vec::new();
    match Member::join(&trial.isolation) {
        Err(error) => proofs.push(Proof::new(SANDBOX, Err(error.to_string()), OF_NAMESPACES)),
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
const OF_LANDLOCK: &str = "use a kernel of version 6.12 or later with Landlock (lsm=landlock,...)";

fn of_cgroups(controller: Controller) -> String {
    format!("run the agent as root, on a kernel with the control group controller \"{}\"", controller.name())
}

impl Proof {
    fn new(what: &str, seen: Result<String, String>, remedy: impl Into<String>) -> Self {
        let (holds, seen) = match seen {
            Ok(seen) => (true, seen),
            Err(seen) => (false, seen),
        };
        Proof { what: what.to_owned(), holds, seen, remedy: if holds { String::new() } else { remedy.into() } }
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
        let held = |controller: Controller, what: &str, attempt: &dyn Fn() -> Result<String, String>| {
            let missing =
                || Err(format!("no control group for {}{}", controller.name(), Refused::why(refused, controller)));
            let seen = if limited(controller) { attempt() } else { missing() };
            Proof::new(what, seen, of_cgroups(controller))
        };
        let exits = |call, well: &str, ill: &str| match self.run(member, call) {
            Ok(WaitStatus::Exited(_, 0)) => Ok(well.to_owned()),
            Ok(_) => Err(ill.to_owned()),
            Err(error) => Err(error),
        };
        vec![
            Proof::new(
                SANDBOX,
                exits(sees_nobody, "a task sees only its sandbox", "a task sees processes outside"),
                OF_NAMESPACES,
            ),
            Proof::new(
                "a user of their own",
                match self.isolation.user {
                    Some(_) => exits(is_no_root, "a task cannot become root", "a task becomes root"),
                    None => Err("a task has the agent's user".to_owned()),
                },
                OF_ROOT,
            ),
            Proof::new(
                "files",
                exits(cannot_write, "the system is read-only", "a task writes where its user may"),
                OF_ROOT,
            ),
            Proof::new(
                "devices",
                exits(has_no_devices, "no device of the host is there", "a task opens what its user may"),
                OF_ROOT,
            ),
            Proof::new(
                "kernel",
                exits(is_filtered, "namespaces, mounts and BPF are refused", "system calls are not filtered"),
                OF_KERNEL,
            ),
            held(Controller::Memory, "memory", &|| match self.run(member, fills_memory) {
                Ok(WaitStatus::Signaled(_, Signal::SIGKILL, _)) => {
                    Ok(format!("a writer of 200 MB under {} MiB was killed", LIMITS.memory_mib))
                }
                Ok(_) => Err("a task writes more than its limit".to_owned()),
                Err(error) => Err(error),
            }),
            held(Controller::Pids, "number of processes", &|| {
                exits(
                    cannot_fork_for_ever,
                    &format!("the {}th process was refused", LIMITS.pids_max),
                    "a task starts more than its limit",
                )
            }),
            held(Controller::Cpu, "processors", &|| {
                exits(spins, "a spinner kept to a fifth of a CPU", "a spinner took more than its share")
            }),
            held(Controller::Devices, "foreign devices", &|| {
                self.put_device()?;
                exits(
                    opens_no_device,
                    "a device that lay in its own folder was refused",
                    "a task opens any device that it finds",
                )
            }),
            Proof::new(
                "abstract sockets",
                exits(
                    reaches_no_socket,
                    "one of the host was out of reach",
                    "a task reaches abstract sockets of the host",
                ),
                OF_LANDLOCK,
            ),
            Proof::new("end", self.killed_init_leaves_nobody(), OF_NAMESPACES),
        ]
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
        let first = match other.start(&member, leaves_a_daemon) {
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

/// The name of a device in the folder of a task.
const DEVICE: &str = "device";
/// The name of a socket of the host.
static SOCKET: OnceLock<String> = OnceLock::new();

fn as_code(holds: bool) -> i32 {
    i32::from(!holds)
}

fn sees_nobody() -> i32 {
    let numbers = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u32>().ok();
    let seen = std::fs::read_dir("/proc").map(|all| all.filter_map(numbers).count());
    as_code(seen.is_ok_and(|seen| seen <= 2) && nix::unistd::getppid().as_raw() == 0)
}

fn is_no_root() -> i32 {
    let cannot = nix::unistd::setuid(nix::unistd::Uid::from_raw(0)).is_err();
    as_code(nix::unistd::getuid().as_raw() == NOBODY && cannot)
}

fn cannot_write() -> i32 {
    let here = |path: &str| File::create(path).is_err_and(|error| error.raw_os_error() == Some(libc::EROFS));
    as_code(here("/muster-probe") && here("/var/muster-probe") && File::create("/tmp/muster-probe").is_ok())
}

fn has_no_devices() -> i32 {
    let made = nix::sys::stat::mknod(
        "/tmp/muster-device",
        nix::sys::stat::SFlag::S_IFCHR,
        nix::sys::stat::Mode::S_IRUSR,
        nix::sys::stat::makedev(1, 1),
    );
    let usual =
        ["full", "null", "ptmx", "pts", "random", "shm", "fd", "stdin", "stdout", "stderr", "tty", "urandom", "zero"];
    let known = |entry: io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| usual.iter().any(|name| entry.file_name() == *name))
    };
    as_code(made.is_err() && std::fs::read_dir("/dev").is_ok_and(|mut all| all.all(known)))
}

fn opens_no_device() -> i32 {
    let refused = File::open(DEVICE).is_err_and(|error| error.raw_os_error() == Some(libc::EPERM));
    as_code(refused && File::open("/dev/null").is_ok())
}

fn reaches_no_socket() -> i32 {
    let address = SOCKET.get().and_then(|name| SocketAddr::from_abstract_name(name).ok());
    as_code(address.is_some_and(|address| UnixStream::connect_addr(&address).is_err()))
}

fn is_filtered() -> i32 {
    let refused = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER) == Err(nix::Error::EPERM);
    as_code(refused)
}

fn fills_memory() -> i32 {
    let filled = vec![1_u8; 200 << 20];
    i32::from(std::hint::black_box(&filled).len() != 200 << 20)
}

fn cannot_fork_for_ever() -> i32 {
    for _ in 0..LIMITS.pids_max * 2 {
        // SAFETY: a process inside has one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { .. }) => {}
            Ok(ForkResult::Child) => {
                std::thread::sleep(Duration::from_secs(5));
                sys::exit_now(0)
            }
            Err(_) => return 0,
        }
    }
    1
}

fn spins() -> i32 {
    let (begun, period) = (Instant::now(), Duration::from_millis(500));
    while begun.elapsed() < period {
        std::hint::spin_loop();
    }
    let used = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    let used_us = used.map_or(i64::MAX, |used| used.user_time().tv_sec() * 1_000_000 + used.user_time().tv_usec());
    as_code(used_us < period.as_micros() as i64 / 2)
}

fn leaves_a_daemon() -> i32 {
    // SAFETY: a process inside has one thread.
    if let Ok(ForkResult::Child) = unsafe { fork() } {
        let _ = nix::unistd::setsid();
    }
    std::thread::sleep(Duration::from_secs(600));
    0
}
