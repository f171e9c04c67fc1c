//! Tasks in sandboxes, under real shims: what they see, who ends them, and what outlives whom. As root with all that a host gives, otherwise in user
//! namespaces; a host that gives neither says so, and fails where nothing may be skipped.

use crate::bench::{Bench, S, is_alive, lines, shim, spec};
use muster_agent::exec::process::{IsolationConfig, ProcessConfig};
use muster_agent::exec::{DeviceNode, Executor, Owner, Stream};
use muster_agent::sandbox::probe::{Findings, find_out, forget};
use muster_agent::task_folder::TaskFolder;
use muster_agent::task_folder::record::{Controller, ShimRecord};
use muster_model::TaskState;
use muster_model::task::{DeviceHold, HoldMode};
use muster_node_core::{TaskKey, TaskSpec, TaskUsers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const FAR: u64 = 3_600 * S;
/// No user of this machine.
const BASE: u32 = 2_000_000_000;

/// A folder that tasks may write in, with an executor that isolates them; it leaves no control groups.
pub(crate) struct Site {
    dir: TempDir,
    found: Findings,
}

impl Drop for Site {
    fn drop(&mut self) {
        forget(&self.found);
    }
}

pub(crate) fn site() -> Option<Site> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).expect("its own");
    let name = dir.path().file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let found = find_out(&shim(), &dir.path().join("data"), &name).expect("it can be tried");
    if found.has_sandboxes() {
        return Some(Site { dir, found });
    }
    let said = format!("this machine gives no sandboxes: {:#?}", found.proofs);
    assert!(!nix::unistd::geteuid().is_root() && std::env::var_os("MUSTER_CI").is_none(), "{said}");
    eprintln!("skipped: {said}");
    None
}

impl Site {
    pub(crate) fn is_full(&self) -> bool {
        self.found.is_full
    }

    fn has(&self, controller: Controller) -> bool {
        self.found.cgroups.iter().any(|cgroup| cgroup.controllers.contains(&controller))
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) async fn open(&self) -> Bench {
        self.open_with(|_| ()).await
    }

    pub(crate) async fn open_with(&self, adjust: impl FnOnce(&mut ProcessConfig)) -> Bench {
        let isolation = IsolationConfig {
            users: if self.is_full() { TaskUsers::PerTenant { base: BASE } } else { TaskUsers::Agent },
            writable: vec![self.dir.path().to_owned()],
            cgroups: self.found.cgroups.clone(),
            pids_max: 100,
            ..IsolationConfig::default()
        };
        Bench::open_with(&self.path("data"), |config| {
            config.isolation = Some(isolation);
            adjust(config);
        })
        .await
    }

    /// The process of a task's shim.
    fn shim_of(&self, key: TaskKey) -> Pid {
        let folder = TaskFolder::new(&self.path("data/tasks").join(key.to_string()));
        let text = std::fs::read_to_string(folder.shim()).expect("a record");
        let record: ShimRecord = serde_json::from_str(&text).expect("a record");
        Pid::from_raw(record.pid as i32)
    }
}

/// One task alone on its node.
pub(crate) fn alone(id: u64, script: &str) -> TaskSpec {
    TaskSpec { world_size: 1, local_world_size: 1, ..spec(id, 0, script) }
}

/// The process of the host that sleeps for so long, which no other test does.
fn sleeper(seconds: u32) -> Option<String> {
    let words = format!("sleep\0{seconds}\0");
    let is_it = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        line.ends_with(words.as_bytes()).then(|| entry.file_name().to_string_lossy().into_owned())
    };
    std::fs::read_dir("/proc").expect("processes").find_map(is_it).filter(|pid| is_alive(pid))
}

async fn until_sleeper(seconds: u32, is_there: bool) {
    let waiting = async {
        while sleeper(seconds).is_some() != is_there {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::bench::PATIENCE, waiting).await.expect("it starts, or ends");
}

#[tokio::test]
async fn a_task_sees_itself_and_what_is_its_own() {
    let Some(site) = site() else { return };
    let bench = site.open().await;
    let script = "echo $(ls /proc | grep -c '^[0-9]') $PPID $(id -u) $(pwd); : > $MUSTER_CHECKPOINT_FILE; ls";
    let key = bench.start(alone(1, script), FAR);
    assert_eq!(bench.over(key).await.0, TaskState::Exited { code: 0 });
    let (said, _) = bench.output(key, Stream::Stdout).await;
    let words: Vec<&str> = said.split_whitespace().collect();
    let [processes, parent, user, folder] = words[..] else { panic!("{said:?}") };
    assert!(processes.parse::<u32>().is_ok_and(|count| count <= 5), "{said}");
    assert_eq!(parent, "0", "its parent is outside");
    if site.is_full() {
        assert_eq!((user, folder), ("2000000003", "/run/muster/1.0/work"));
    }
    assert!(bench.exec.observe()[&key].checkpoint.is_some(), "what it says of its checkpoint is heard");
}

/// A job is charged from when its command runs: making its sandbox is the node's time. The kernel says when the command's process was made, which is
/// after the sandbox was; in hundredths of a second.
#[tokio::test]
async fn a_task_runs_from_when_its_command_is_executed() {
    let Some(site) = site() else { return };
    let bench = site.open().await;
    let key = bench.start(alone(1, "cut -d' ' -f22 /proc/$$/stat"), FAR);
    let (state, started_ns, ended_ns) = bench.over(key).await;
    assert_eq!(state, TaskState::Exited { code: 0 });
    let (said, _) = bench.output(key, Stream::Stdout).await;
    let forked_ns = said.trim().parse::<u64>().expect("ticks") * 10_000_000;
    let started_ns = started_ns.expect("it ran");
    assert!(forked_ns <= started_ns && started_ns <= ended_ns, "forked {forked_ns}, started {started_ns}");
}

/// Without a sandbox `kill -STOP $PPID` stops the shim, and nobody ends the task.
#[tokio::test]
async fn a_task_that_stops_or_kills_its_parent_ends_at_its_limit_all_the_same() {
    let Some(site) = site() else { return };
    let bench = site.open().await;
    for (id, signal) in [(1, "STOP"), (2, "KILL"), (3, "USR1"), (4, "HUP")] {
        let script =
            format!("trap '' USR1 HUP; [ $PPID = 0 ] || kill -{signal} $PPID; kill -{signal} 1; exec sleep 600");
        let limited = TaskSpec { time_limit_s: Some(1), grace_s: 0, ..alone(id, &script) };
        assert_eq!(bench.over(bench.start(limited, FAR)).await.0, TaskState::TimedOut, "{signal}");
    }
}

/// The kernel does it: no agent is there, and what is left has no parent, session or environment of its task.
#[tokio::test]
async fn a_killed_shim_leaves_nobody_without_an_agent() {
    let Some(site) = site() else { return };
    let bench = site.open().await;
    let key = bench.start(alone(1, "env -i setsid sh -c 'sleep 77101 & exec sleep 77101' & wait"), FAR);
    bench.running(key).await;
    until_sleeper(77101, true).await;
    let shim = site.shim_of(key);
    bench.die();
    kill(shim, Signal::SIGKILL).expect("it lives");
    until_sleeper(77101, false).await;
    // An agent that comes back says how it ended.
    let bench = site.open().await;
    assert_eq!(bench.over(key).await.0, TaskState::Signaled { signal: 9 });
    assert!(!site.path("data/sandboxes/1").exists(), "nothing of the sandbox is left");
}

#[tokio::test]
async fn an_agent_that_comes_back_stops_isolated_tasks() {
    let Some(site) = site() else { return };
    let bench = site.open().await;
    let key = bench.start(alone(1, "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.05; done"), FAR);
    bench.running(key).await;
    lines(&site.path("data/tasks/1.0/stdout"), 1).await;
    bench.die();
    let bench = site.open().await;
    bench.running(key).await;
    bench.stop(key);
    assert_eq!(bench.over(key).await.0, TaskState::Stopped);
    assert_eq!(bench.output(key, Stream::Stdout).await.0, "ready\ntold\n");
}

/// They share processes, memory and signals; each ends alone, and the last one ends the sandbox.
#[tokio::test]
async fn ranks_of_one_node_share_a_sandbox_and_end_one_by_one() {
    let Some(site) = site() else { return };
    let bench = site.open().await;
    let first = bench.start(spec(1, 0, "setsid sleep 77102 & echo here > /dev/shm/first; wait"), FAR);
    bench.running(first).await;
    until_sleeper(77102, true).await;
    let second = "while [ ! -s /dev/shm/first ]; do sleep 0.02; done; cat /dev/shm/first; pgrep -f 'sleep 77102' > /dev/null && echo seen; exec sleep 77103";
    let second = bench.start(spec(1, 1, second), FAR);
    bench.running(second).await;
    until_sleeper(77103, true).await;
    if site.is_full() {
        assert_eq!(bench.output(second, Stream::Stdout).await.0, "here\nseen\n");
    }
    bench.exec.kill(first);
    assert_eq!(bench.over(first).await.0, TaskState::Stopped);
    if site.has(Controller::Pids) {
        assert_eq!(sleeper(77102), None, "what the first has left is gone with it");
    }
    assert!(sleeper(77103).is_some(), "the second lives on: {:?}", bench.exec.observe()[&second].phase);
    bench.exec.kill(second);
    assert_eq!(bench.over(second).await.0, TaskState::Stopped);
    assert_eq!((sleeper(77102), sleeper(77103)), (None, None));
    assert!(!site.path("data/sandboxes/1").exists(), "nothing of the sandbox is left");
}

/// A device that is allowed has no driver here, which the kernel says in other words than that it is not allowed.
#[tokio::test]
async fn a_task_opens_its_own_card_and_no_others() {
    let Some(site) = site() else { return };
    if !site.is_full() || !site.has(Controller::Devices) {
        return println!("skipped: needs root, and control groups that fence devices");
    }
    let bench = site.open().await;
    let node = |name: &str, minor| DeviceNode { name: name.to_owned(), major: 195, minor };
    let devices = |minor| {
        vec![
            node("nvidiactl", 255),
            node(&format!("nvidia{minor}"), minor),
            node("nvidia-caps/nvidia-cap9", 90 + minor),
        ]
    };
    let other = bench.start_with(spec(1, 1, "exec sleep 600"), FAR, devices(78));
    bench.running(other).await;
    let script = "export LC_ALL=C; for name in nvidiactl nvidia77 nvidia78 nvidia79; do { : < /dev/$name; } 2>&1 | sed 's/.*: //'; done; \
                  chmod 777 /dev 2>&1 | sed 's/.*: //'; { : > /dev/new; } 2>&1 | sed 's/.*: //'; ls /dev/nvidia-caps";
    let own = bench.start_with(spec(1, 0, script), FAR, devices(77));
    assert_eq!(bench.over(own).await.0, TaskState::Exited { code: 0 });
    let (said, _) = bench.output(own, Stream::Stdout).await;
    let said: Vec<&str> = said.lines().collect();
    let no_driver = "No such device or address";
    assert_eq!(said[..4], [no_driver, no_driver, "Operation not permitted", "No such file"], "{said:?}");
    assert_eq!(said[4..], ["Operation not permitted", "Permission denied", "nvidia-cap9"], "{said:?}");
    bench.exec.kill(other);
    assert_eq!(bench.over(other).await.0, TaskState::Stopped);
}

/// Loads a program that refuses the devices of GPUs and attaches it to a group as systemd does: those of groups above count too (`BPF_F_ALLOW_MULTI`).
fn attach_fence(group: &Path) -> std::io::Result<()> {
    const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
        code as u64 | ((to | from << 4) as u64) << 8 | (offset as u16 as u64) << 16 | (immediate as u32 as u64) << 32
    }
    let program = [
        // The major number.
        instruction(0x61, 2, 1, 4, 0),
        instruction(0xb7, 0, 0, 0, 1),
        instruction(0x55, 2, 0, 1, 195),
        instruction(0xb7, 0, 0, 0, 0),
        instruction(0x95, 0, 0, 0, 0),
    ];
    // `union bpf_attr` in linux/bpf.h; BPF_PROG_LOAD of BPF_PROG_TYPE_CGROUP_DEVICE, then BPF_PROG_ATTACH as BPF_CGROUP_DEVICE.
    let mut load = [0_u64; 6];
    load[0] = 15 | (program.len() as u64) << 32;
    load[1] = program.as_ptr() as u64;
    load[2] = c"GPL".as_ptr() as u64;
    let call = |what: i64, attributes: &[u64]| {
        // SAFETY: the attributes and what they point to live until the call returns; the size is theirs.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, what, attributes.as_ptr(), size_of_val(attributes)) };
        if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(answer as u64) }
    };
    let loaded = call(5, &load)?;
    let group = File::open(group)?;
    let target = std::os::fd::AsRawFd::as_raw_fd(&group) as u64;
    call(8, &[target | loaded << 32, 6 | 2 << 32]).map(drop)
}

/// The group of a unit of systemd, which this process enters, in every hierarchy that fences devices.
struct Unit(Vec<(bool, PathBuf, PathBuf)>);

impl Unit {
    fn enter() -> Self {
        let name = format!("muster-unit-{}", std::process::id());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mut groups = Vec::new();
        for line in mounts.lines() {
            let (before, after) = line.split_once(" - ").expect("as in proc_pid_mountinfo(5)");
            let (at, after) = (before.split(' ').nth(4).expect("a folder"), after.split(' ').collect::<Vec<_>>());
            let is_v2 = after[0] == "cgroup2";
            let has_devices = after[0] == "cgroup" && after[2].split(',').any(|name| name == "devices");
            if !is_v2 && !has_devices {
                continue;
            }
            let (top, group) = (PathBuf::from(at), Path::new(at).join(&name));
            std::fs::create_dir(&group).expect("root makes groups");
            std::fs::write(group.join("cgroup.procs"), "0").expect("this process enters");
            groups.push((is_v2, top, group));
        }
        Unit(groups)
    }

    /// What systemd does to a unit at `daemon-reload`: it writes the unit's devices anew, and those of GPUs are none of them.
    fn reload(&self) {
        for (is_v2, _, group) in &self.0 {
            if *is_v2 {
                attach_fence(group).expect("the kernel takes the program");
                continue;
            }
            let write = |file: &str, line: &str| std::fs::write(group.join(file), line).expect("the kernel takes it");
            write("devices.deny", "a");
            for line in ["c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:* rwm", "c 136:* rwm"] {
                write("devices.allow", line);
            }
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        for (_, top, group) in &self.0 {
            let _ = std::fs::write(top.join("cgroup.procs"), "0");
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// nvidia-container-toolkit #48: after `systemctl daemon-reload` running tasks have lost their GPUs. The agent's unit is not the tasks'.
#[tokio::test]
async fn a_daemon_reload_takes_no_card_from_a_running_task() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let unit = Unit::enter();
    let Some(site) = site() else { return };
    if !site.is_full() || !site.has(Controller::Devices) {
        return println!("skipped: needs control groups that fence devices");
    }
    let bench = site.open().await;
    let card = |minor| DeviceNode { name: format!("nvidia{minor}"), major: 195, minor };
    let other = bench.start_with(spec(1, 1, "exec sleep 600"), FAR, vec![card(78)]);
    bench.running(other).await;
    let look = "for name in nvidia77 nvidia78; do { : < /dev/$name; } 2>&1 | sed 's/.*: //'; done";
    let script = format!("export LC_ALL=C; {look}; while [ ! -e $HOME/reloaded ]; do sleep 0.02; done; {look}");
    let own = bench.start_with(spec(1, 0, &script), FAR, vec![card(77)]);
    bench.running(own).await;
    lines(&site.path("data/tasks/1.0/stdout"), 2).await;
    unit.reload();
    // The unit itself has lost them, so it was done.
    let node = site.path("nvidia77");
    let (kind, mode) = (nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::from_bits_truncate(0o666));
    let opened = || File::open(&node).expect_err("there is no driver").raw_os_error();
    if nix::sys::stat::mknod(&node, kind, mode, nix::sys::stat::makedev(195, 77)).is_ok() {
        assert_eq!(opened(), Some(libc::EPERM));
    }
    std::fs::write(site.path("data/tasks/1.0/work/reloaded"), "").expect("the task's own folder");
    assert_eq!(bench.over(own).await.0, TaskState::Exited { code: 0 });
    let (said, _) = bench.output(own, Stream::Stdout).await;
    let seen = ["No such device or address", "Operation not permitted"];
    assert_eq!(said.lines().collect::<Vec<_>>(), [seen, seen].concat());
    bench.exec.kill(other);
    assert_eq!(bench.over(other).await.0, TaskState::Stopped);
}

/// The pipe of a card's MPS server is where the environment says, and no other server's is in sight.
#[tokio::test]
async fn a_task_finds_its_own_mps_server_and_no_others() {
    let Some(site) = site() else { return };
    if !site.is_full() {
        return println!("skipped: needs root");
    }
    let bench = site.open().await;
    let pipes = tempfile::tempdir().expect("a folder");
    let pipe = |name: &str| {
        let path = pipes.path().join(name);
        std::fs::create_dir(&path).expect("made");
        let _socket = std::os::unix::net::UnixListener::bind(path.join("control")).expect("a socket");
        path.display().to_string()
    };
    let (own, other) = (pipe("own"), pipe("other"));
    let script = format!(
        "test -S {own}/control && echo own; test -e {other} || echo alone; touch {own}/new 2>/dev/null || echo closed"
    );
    let mut task = spec(1, 0, &script);
    task.devices = vec![DeviceHold { gpu: 0, mode: HoldMode::Mps { percent: 25, memory_mib: 1_024 } }];
    task.env.insert("CUDA_MPS_PIPE_DIRECTORY".to_owned(), own);
    let key = bench.start(task, FAR);
    assert_eq!(bench.over(key).await.0, TaskState::Exited { code: 0 });
    assert_eq!(bench.output(key, Stream::Stdout).await.0, "own\nalone\nclosed\n");
}

/// The init has the environment of the first shim: an agent that looks for strays must not take it for one.
#[tokio::test]
async fn an_agent_that_comes_back_when_one_rank_is_over_leaves_the_others_running() {
    let Some(site) = site() else { return };
    let owner = || Owner { cluster: 7, node: "sandboxed".to_owned() };
    let bench = site.open().await;
    bench.exec.claim(owner()).await.expect("nobody else has it");
    let second = bench.start(spec(1, 1, "exec sleep 77104"), FAR);
    let first = bench.start(spec(1, 0, "exit 0"), FAR);
    assert_eq!(bench.over(first).await.0, TaskState::Exited { code: 0 });
    bench.running(second).await;
    until_sleeper(77104, true).await;
    bench.die();
    let bench = site.open().await;
    assert!(bench.exec.claim(owner()).await.expect("nobody else has it").is_empty(), "nothing has strayed");
    bench.running(second).await;
    assert!(sleeper(77104).is_some(), "it goes on");
    bench.exec.kill(second);
    assert_eq!(bench.over(second).await.0, TaskState::Stopped);
}

/// The command of a killed shim becomes the agent's child, and the init waits until somebody has reaped it.
#[tokio::test]
async fn an_agent_reaps_what_killed_shims_leave_so_that_the_sandbox_ends() {
    let Some(site) = site() else { return };
    let bench = site.open_with(|config| config.reaps_orphans = true).await;
    for (id, killed) in [(1, vec![0]), (2, vec![0, 1]), (3, vec![1])] {
        let ranks = [0, 1].map(|rank| bench.start(spec(id, rank, "sleep 77105 & wait"), FAR));
        for rank in ranks {
            bench.running(rank).await;
        }
        for rank in &killed {
            kill(site.shim_of(ranks[*rank]), Signal::SIGKILL).expect("it lives");
        }
        for rank in &killed {
            assert_eq!(bench.over(ranks[*rank]).await.0, TaskState::Signaled { signal: 9 }, "{id}");
        }
        for (rank, key) in ranks.into_iter().enumerate().filter(|(rank, _)| !killed.contains(rank)) {
            bench.exec.kill(key);
            assert_eq!(bench.over(key).await.0, TaskState::Stopped, "{id} {rank}");
        }
        assert_eq!(sleeper(77105), None, "{id}");
        assert!(!site.path("data/sandboxes").join(id.to_string()).exists(), "{id}: nothing of the sandbox is left");
    }
}

#[tokio::test]
async fn a_device_of_the_host_is_refused_by_each_version_of_control_groups() {
    let Some(site) = site().filter(Site::is_full) else { return };
    let device = site.path("zero");
    let (kind, mode) = (nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::from_bits_truncate(0o666));
    // The memory of the machine: not among those that every program expects.
    nix::sys::stat::mknod(&device, kind, mode, nix::sys::stat::makedev(1, 1)).expect("root makes devices");
    std::fs::set_permissions(&device, Permissions::from_mode(0o666)).expect("its own");
    for is_v2 in [false, true] {
        let of_version = |config: &mut ProcessConfig| {
            let isolation = config.isolation.as_mut().expect("it isolates");
            isolation.cgroups.retain(|cgroup| cgroup.is_v2 == is_v2);
        };
        let bench = site.open_with(of_version).await;
        let has_devices =
            site.found.cgroups.iter().any(|c| c.is_v2 == is_v2 && c.controllers.contains(&Controller::Devices));
        if !has_devices {
            eprintln!(
                "skipped: this machine has no control groups for devices of {}",
                if is_v2 { "version 2" } else { "version 1" }
            );
            continue;
        }
        let script =
            format!("head -c 1 {} > /dev/null; exec 3< /dev/null && head -c 1 /dev/zero > /dev/null", device.display());
        let key = bench.start(alone(10 + u64::from(is_v2), &script), FAR);
        let ended = bench.over(key).await.0;
        let (said, _) = bench.output(key, Stream::Stderr).await;
        assert!(said.contains("Operation not permitted"), "{said}");
        assert_eq!(ended, TaskState::Exited { code: 0 }, "the usual devices are there: {said}");
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_whose_fault_it_is() {
    let Some(site) = site() else { return };
    let bench = site.open().await;
    let of = |id, words: &[&str]| TaskSpec {
        command: words.iter().map(|word| (*word).to_owned()).collect(),
        ..alone(id, "")
    };
    // Of the folders of the tests' own PATH some are closed to the task's user, which is remembered, as a shell does.
    let path = |spec: TaskSpec| TaskSpec { env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(), ..spec };
    let at = |id, workdir: &str| TaskSpec { workdir: Some(workdir.to_owned()), ..alone(id, "true") };
    let cases = [
        (path(of(1, &["no-such-program-here"])), "\"no-such-program-here\": No such file"),
        (of(2, &[]), "the command is empty"),
        (at(3, "/no/such/folder"), "working directory \"/no/such/folder\": No such file"),
        (at(4, "/etc/passwd"), "Not a directory"),
        (of(5, &["/etc/passwd"]), "Permission denied"),
    ];
    for (spec, text) in cases {
        let (state, started_ns, _) = bench.over(bench.start(spec, FAR)).await;
        let TaskState::StartFailed { reason, by_node } = state else { panic!("{state:?}, not {text}") };
        assert!(reason.contains(text) && !by_node, "{reason}: what the job asks for is not the node's fault");
        assert_eq!(started_ns, None);
    }
    assert!(
        std::fs::read_dir(site.path("data/sandboxes")).map_or(true, |mut left| left.next().is_none()),
        "no sandbox is left"
    );
}

#[tokio::test]
async fn a_task_reads_its_world_and_cannot_write_it() {
    let Some(site) = site().filter(Site::is_full) else { return };
    let bench = site.open().await;
    let shared = site.path("out");
    let script =
        format!("(echo lie > /run/muster/1.0/to-task/world) 2>/dev/null; ls -A /run/muster/1.0 > {}", shared.display());
    assert_eq!(bench.over(bench.start(alone(1, &script), FAR)).await.0, TaskState::Exited { code: 0 });
    assert_eq!(lines(&shared, 3).await, ["from-task", "to-task", "work"]);
    assert!(!Path::new("/run/muster/1.0").exists(), "the host has no such folder");
}
