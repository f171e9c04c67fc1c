//! Attempts 2, 3, 5 and 10: processes of neighbours, of the task's own shim and of the agent.

use super::{Cage, SECRET, perl, processes_with};

/// Attempt 2. The host's numbers of alpha's processes are known to beta.
#[test]
fn attempt_02_a_task_sees_nothing_of_another_tenants_processes() {
    let Some(cage) = Cage::start() else { return };
    let victim = cage.victim();
    let of = |pid: i32| {
        let files = ["environ", "maps", "mem", "cmdline", "cwd/own", "root/etc/passwd", "fd/1", "task", "ns/net"];
        files.map(|file| format!("cat /proc/{pid}/{file}")).join(" || ")
    };
    cage.all_fail(&[
        ("alpha's process", of(victim.pid)),
        ("alpha's shim", of(victim.shim)),
        ("the agent", of(cage.agent.pid())),
        ("any secret", format!("grep -alz {SECRET} /proc/*/environ /proc/*/task/*/environ")),
        ("processes that are not its own", "[ $(ls /proc | grep -c '^[0-9]') -gt 6 ]".to_owned()),
        (
            "its init",
            "cat /proc/1/environ || ls /proc/1/fd/ || ls /proc/1/root/ || cat /proc/1/maps | grep .".to_owned(),
        ),
        ("another view of processes", perl("", "syscall(165, \"proc\", \"/tmp\", \"proc\", 0, 0) == 0")),
    ]);
    victim.is_well(&cage);
}

/// Attempt 3, and ptrace of a neighbour.
#[test]
fn attempt_03_a_task_signals_traces_and_opens_no_process_but_its_own() {
    let Some(cage) = Cage::start() else { return };
    let victim = cage.victim();
    let kill = |pid: i32| ["KILL", "STOP", "USR1", "0"].map(|signal| format!("kill -{signal} {pid}")).join(" || ");
    let trace = |pid: i32| perl("", &format!("syscall(101, 16, {pid}, 0, 0) == 0"));
    let open = |pid: i32| {
        let before = format!("my $p = syscall(434, {pid}, 0); my $f = $p < 0 ? -1 : syscall(438, $p, 1, 0)");
        perl(&before, "$p >= 0 && $f >= 0")
    };
    let read = |pid: i32| {
        let before = "my $b = \"x\" x 16; my $l = pack(\"QQ\", unpack(\"Q\", pack(\"p\", $b)), 16); my $r = pack(\"QQ\", 4194304, 16)";
        perl(before, &format!("syscall(310, {pid}, $l, 1, $r, 1, 0) > 0"))
    };
    let mut attempts = Vec::new();
    for (what, pid) in [
        ("alpha's process", victim.pid),
        ("alpha's shim", victim.shim),
        ("the agent", cage.agent.pid()),
        ("its own init", 1),
    ] {
        // Signals to the init are sent, and the kernel drops them.
        let kill = if pid == 1 { "kill -9 1; kill -STOP 1; sleep 0.2; ! [ -d /proc/1 ]".to_owned() } else { kill(pid) };
        attempts.extend([(what, kill), (what, trace(pid)), (what, open(pid)), (what, read(pid))]);
    }
    attempts.push(("its own shim", "[ $PPID != 0 ] && kill -STOP $PPID".to_owned()));
    attempts.push(("everybody", "kill -9 -1".to_owned()));
    // By whom it is traced, its parent would be told.
    attempts.push(("its parent", perl("", "syscall(101, 0, 0, 0, 0) == 0 && getppid() != 0")));
    cage.all_fail(&attempts);
    victim.is_well(&cage);
    assert!(cage.agent.log().contains("agents started"), "it is the same agent");
}

/// Attempts 3 and 5: it leaves its parent, its session, its group and its environment, and tries to end its shim.
#[test]
fn attempt_05_nothing_outlives_a_task_that_leaves_everything() {
    let Some(cage) = Cage::start() else { return };
    let script = "env -i setsid sh -c 'sleep 98713 & exec sleep 98713' & sleep 0.5; kill -9 $PPID; exit 3";
    let id = cage.submit("beta", &[], script);
    let job = cage.site.until_job(&id, "failed");
    assert!(processes_with("sleep 98713").is_empty(), "{job}");
    // Its shim is killed by somebody else.
    let id = cage.submit("beta", &["--retries", "0"], "trap '' HUP; setsid sleep 98716 & exec sleep 98716");
    cage.site.until_job(&id, "running");
    cage.site.until("its processes", || (processes_with("sleep 98716").len() == 2).then_some(()));
    let shim = std::fs::read_to_string(cage.task_folder(&id).join("shim")).expect("its shim");
    let shim: serde_json::Value = serde_json::from_str(&shim).expect("a record");
    let shim = nix::unistd::Pid::from_raw(shim["pid"].as_i64().expect("a number") as i32);
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).expect("it lives");
    cage.over(&id);
    assert!(processes_with("sleep 98716").is_empty(), "its devices are free only now");
}

/// Attempt 10: no socket joins two tenants over which one could hand an open device to the other. Alpha would like to.
#[test]
fn attempt_10_no_descriptor_passes_to_a_neighbour() {
    let Some(cage) = Cage::start() else { return };
    let serve = "for my $at (\"\\0muster-escape\", \"/tmp/escape\", \"/dev/shm/escape\") { push @all, IO::Socket::UNIX->new(Local => $at, Listen => 5) or die } \
                 chmod 0777, \"/tmp/escape\", \"/dev/shm/escape\"; $| = 1; print \"ready\\n\"; sleep 600";
    let id = cage.submit("alpha", &[], &format!("exec perl -e 'use IO::Socket::UNIX; {serve}'"));
    cage.site.until_job(&id, "running");
    cage.site.until("alpha to listen", || cage.site.said(&["logs", &id]).contains("ready").then_some(()));
    let connect = |at: &str| perl("", &format!("IO::Socket::UNIX->new(Peer => \"{at}\")"));
    let agent = agents_socket();
    cage.all_fail(&[
        ("alpha's abstract socket", connect("\\0muster-escape")),
        ("alpha's socket in /tmp", connect("/tmp/escape")),
        ("alpha's socket in shared memory", connect("/dev/shm/escape")),
        ("the agent's abstract socket", connect(&format!("\\0{agent}"))),
        ("a descriptor of alpha's", perl("", "syscall(438, 3, 0, 0) >= 0")),
    ]);
    assert_eq!(cage.site.job(&id)["state"], "running");
}

/// The name that an agent has for itself on this machine.
fn agents_socket() -> String {
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("the kernel's list");
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@').map(str::to_owned));
    names.into_iter().find(|name| name.starts_with("muster/agent/")).expect("an agent runs")
}
