//! Real tasks under real shims: how they end, what they leave, and who outlives whom.

use crate::bench::{Bench, PATIENCE, S, command, is_alive, key, lines, shim, spec};
use muster_agent::exec::process::{ProcessConfig, ShimCommand};
use muster_agent::exec::{Executor, Stream};
use muster_agent::task_folder::TaskFolder;
use muster_agent::task_folder::record::{End, ExitRecord, LaunchRecord, ShimRecord};
use muster_model::ids::Epoch;
use muster_model::{LimitSignal, Stop, StopSignal, TaskState};
use muster_node_core::TaskSpec;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const FAR: u64 = 3_600 * S;

fn dir() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[tokio::test]
async fn a_task_ends_as_its_command_does() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let signaled = |signal| TaskState::Signaled { signal };
    let cases = [
        ("exit 0", TaskState::Exited { code: 0 }),
        ("exit 7", TaskState::Exited { code: 7 }),
        ("exit 137", TaskState::Exited { code: 137 }),
        ("kill -KILL $$", signaled(9)),
        ("kill -SEGV $$", signaled(11)),
        ("kill -TERM $$", signaled(15)),
    ];
    for (id, (script, _)) in cases.iter().enumerate() {
        bench.start(spec(id as u64 + 1, 0, script), FAR);
    }
    for (id, (script, expected)) in cases.into_iter().enumerate() {
        let (state, started_ns, ended_ns) = bench.over(key(id as u64 + 1, 0)).await;
        assert_eq!(state, expected, "{script}");
        assert!(started_ns.is_some_and(|started_ns| started_ns <= ended_ns), "{script}");
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let at =
        |id, words: &[&str], workdir: &str| TaskSpec { workdir: Some(workdir.to_owned()), ..command(id, 0, words) };
    let cases = [
        (command(1, 0, &["no-such-program-here"]), "\"no-such-program-here\": No such file"),
        (command(2, 0, &[]), "the command is empty"),
        (at(3, &["true"], "/no/such/folder"), "working directory \"/no/such/folder\": No such file"),
        (at(4, &["true"], "/etc/passwd"), "is not a folder"),
        (command(5, 0, &["/etc/passwd"]), "Permission denied"),
    ];
    for (spec, text) in cases {
        let (state, started_ns, _) = bench.over(bench.start(spec, FAR)).await;
        let TaskState::StartFailed { reason, by_node } = state else { panic!("{state:?}, not {text}") };
        assert!(reason.contains(text) && !by_node, "{reason}: what the job asks for is not the node's fault");
        assert_eq!(started_ns, None);
    }
    let mut broken = shim();
    broken.program = "/no/such/shim".into();
    let bench = Bench::open_with(&dir.path().join("other"), |config| config.shim = broken).await;
    let (state, ..) = bench.over(bench.start(spec(1, 0, "true"), FAR)).await;
    assert!(
        matches!(&state, TaskState::StartFailed { reason, by_node: true } if reason.contains("/no/such/shim")),
        "{state:?}"
    );
    // A scratch folder that cannot be made is the node's fault, whatever the command is.
    let folder = folder(dir.path(), spec(9, 0, "true"), u64::MAX);
    std::fs::write(folder.scratch(), "in the way").expect("a file");
    assert!(run_shim(&folder).wait().expect("the shim ends").success());
    let exit: ExitRecord = read(&folder.exit());
    assert!(matches!(&exit.end, End::StartFailed { by_node: true, .. }), "{exit:?}");
}

#[tokio::test]
async fn the_beginning_and_the_end_of_an_output_are_kept_and_it_never_blocks_the_task() {
    let dir = dir();
    let bench = Bench::open_with(dir.path(), |config| config.log_bytes_max = 1_000).await;
    let script = "echo said; echo wrong >&2; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the traceback";
    let task = bench.start(spec(1, 0, script), FAR);
    assert_eq!(bench.over(task).await.0, TaskState::Exited { code: 0 });
    let (out, missing) = bench.output(task, Stream::Stdout).await;
    assert!(out.starts_with("said\nxxx") && out.ends_with("x\nthe traceback\n"), "{out}");
    assert!((625..=1_000).contains(&out.len()), "{} bytes are kept", out.len());
    assert_eq!(bench.output(task, Stream::Stderr).await, ("wrong\n".to_owned(), 0));
    let exit: ExitRecord = read(&dir.path().join("tasks/1.0/exit"));
    let all = 3_000_000 + 5 + 15;
    assert_eq!((exit.dropped_bytes, missing), (all - out.len() as u64, all - out.len() as u64));
    // What is forgotten can still be read, from anywhere in it; a place that was dropped gives the next that was not.
    bench.exec.forget(task);
    let slice = bench.exec.read_log(task, Stream::Stdout, 248, 1_000).await.expect("kept");
    assert_eq!((slice.data.as_slice(), slice.offset), (b"xx".as_slice(), 248));
    let slice = bench.exec.read_log(task, Stream::Stdout, 250, 1_000).await.expect("kept");
    assert!(slice.complete && slice.offset > 2_999_000, "{slice:?}");
    assert!(bench.exec.read_log(key(9, 9), Stream::Stdout, 0, 10).await.is_err());
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&std::fs::read(path).expect("the record is there")).expect("and can be understood")
}

#[tokio::test]
async fn a_stop_is_asked_for_politely_first() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let script = "trap 'echo tidied; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let task = bench.start(spec(1, 0, script), FAR);
    lines(&dir.path().join("tasks/1.0/stdout"), 1).await;
    bench.stop(task);
    assert_eq!(bench.over(task).await.0, TaskState::Stopped);
    assert_eq!(bench.output(task, Stream::Stdout).await.0, "ready\ntidied\n");
}

/// A task that catches SIGUSR1, saves its work and goes on until it is killed.
const SAVES: &str = "trap 'echo saved' USR1; trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done";

#[tokio::test]
async fn a_preempted_task_gets_its_own_signal_and_grace_in_all_its_processes() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    // A child in the group hears it too; the grace of the job itself is another.
    let script = format!("(trap 'echo child' USR1; echo ready; while :; do sleep 0.05; done) & {SAVES}");
    let task = bench.start(TaskSpec { grace_s: 3_600, ..spec(1, 0, &script) }, FAR);
    lines(&dir.path().join("tasks/1.0/stdout"), 2).await;
    let asked_ns = bench.now_ns();
    bench.exec.stop(task, Stop { signal: StopSignal::Usr1, grace_s: 1 });
    let (state, _, ended_ns) = bench.over(task).await;
    assert_eq!(state, TaskState::Stopped);
    assert!((asked_ns + S..asked_ns + 10 * S).contains(&ended_ns), "it had its grace, and no more");
    let mut said: Vec<String> = bench.output(task, Stream::Stdout).await.0.lines().map(str::to_owned).collect();
    said.sort();
    assert_eq!(said, ["child", "ready", "ready", "saved"], "one signal each, and no SIGTERM");
}

#[tokio::test]
async fn an_agent_that_comes_back_in_the_middle_of_a_grace_does_not_begin_it_anew() {
    let dir = dir();
    let first = Bench::open(dir.path()).await;
    let task = first.start(TaskSpec { grace_s: 3_600, ..spec(1, 0, SAVES) }, FAR);
    lines(&dir.path().join("tasks/1.0/stdout"), 1).await;
    let asked_ns = first.now_ns();
    first.exec.stop(task, Stop { signal: StopSignal::Usr1, grace_s: 3 });
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    first.die();
    let second = Bench::open(dir.path()).await;
    // It does not know that the stop was asked for, and asks again; for longer, too.
    second.exec.stop(task, Stop { signal: StopSignal::Usr1, grace_s: 3_600 });
    let (state, _, ended_ns) = second.over(task).await;
    assert_eq!(state, TaskState::Stopped);
    let took_ms = (ended_ns - asked_ns) / 1_000_000;
    assert!((3_000..4_400).contains(&took_ms), "it was killed {took_ms} ms after the first stop");
    assert_eq!(second.output(task, Stream::Stdout).await.0, "ready\nsaved\n", "one signal");
}

/// Also by an agent that comes later, and of a task that was over before anybody looked.
#[tokio::test]
async fn what_a_task_writes_after_a_checkpoint_is_seen_while_it_runs_and_at_its_end() {
    let dir = dir();
    let first = Bench::open(dir.path()).await;
    let write = |note: &str| {
        format!(
            "echo '{note}' > \"$MUSTER_CHECKPOINT_FILE.new\"; mv \"$MUSTER_CHECKPOINT_FILE.new\" \"$MUSTER_CHECKPOINT_FILE\""
        )
    };
    let script = format!(
        "{}; trap '{}; exit 0' USR1; while :; do sleep 0.05; done",
        write("step 1"),
        write("step 2").replace('\'', "")
    );
    let task = first.start(spec(1, 0, &script), FAR);
    let seen = first.wait(task, |task| task.checkpoint.is_some()).await.checkpoint.expect("it made one");
    assert_eq!(seen.note, "step 1");
    let quick = first.start(spec(2, 0, &write("done")), FAR);
    let seen = first.wait(quick, |task| !task.is_live()).await;
    assert_eq!(seen.checkpoint.expect("it made one").note, "done", "its end is not known without it");
    first.die();
    let second = Bench::open(dir.path()).await;
    assert_eq!(second.exec.observe()[&quick].checkpoint.as_ref().expect("it made one").note, "done");
    second.exec.stop(task, Stop { signal: StopSignal::Usr1, grace_s: 20 });
    let seen = second.wait(task, |task| !task.is_live()).await;
    assert_eq!(seen.checkpoint.expect("it made one").note, "step 2");
}

/// The shim sleeps until the limit it knows, so it has to be told of a nearer one.
#[tokio::test]
async fn a_time_limit_may_be_raised_and_lowered_while_the_task_runs_and_outlives_the_agent() {
    let dir = dir();
    let first = Bench::open(dir.path()).await;
    let limited = |id, limit| TaskSpec { time_limit_s: Some(limit), ..command(id, 0, &["sleep", "1000"]) };
    let lowered = first.start(limited(1, 3_600), FAR);
    let raised = first.start(limited(2, 2), FAR);
    let (began_ns, _) = (first.running(lowered).await, first.running(raised).await);
    first.exec.set_time_limit(raised, Some(3_600));
    first.exec.set_time_limit(lowered, Some(1));
    let (state, _, ended_ns) = first.over(lowered).await;
    assert_eq!(state, TaskState::TimedOut);
    assert!(ended_ns >= began_ns + S && ended_ns < began_ns + 20 * S, "{} ms", (ended_ns - began_ns) / 1_000_000);
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert!(first.exec.observe()[&raised].is_live(), "its first limit has passed");
    first.die();
    let second = Bench::open(dir.path()).await;
    assert_eq!(second.exec.observe()[&raised].time_limit_s, Some(3_600), "not the one it was started with");
    second.exec.set_time_limit(raised, Some(1));
    assert_eq!(second.over(raised).await.0, TaskState::TimedOut);
}

#[tokio::test]
async fn a_signal_comes_before_the_time_limit_once() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let limit_signal = Some(LimitSignal { signal: StopSignal::Usr1, before_s: 2 });
    let spec = TaskSpec { time_limit_s: Some(4), limit_signal, grace_s: 1, ..spec(1, 0, SAVES) };
    let task = bench.start(spec, FAR);
    let began_ns = bench.running(task).await;
    lines(&dir.path().join("tasks/1.0/stdout"), 2).await;
    let told_ms = (bench.now_ns() - began_ns) / 1_000_000;
    assert!((1_900..3_900).contains(&told_ms), "told {told_ms} ms after its start");
    assert_eq!(bench.over(task).await.0, TaskState::TimedOut);
    assert_eq!(bench.output(task, Stream::Stdout).await.0, "ready\nsaved\nterm\n", "then it is stopped as ever");
}

/// A script that ignores SIGTERM and starts itself twice more, each in a session of its own, with orphans beside; the three write
/// their numbers into a file.
fn stubborn_script(dir: &Path) -> (String, std::path::PathBuf) {
    let (script, pids) = (dir.join("stubborn.sh"), dir.join("pids"));
    let text = "#!/bin/sh\ntrap '' TERM HUP\necho $$ >> PIDS\n\
        if [ \"$1\" -gt 0 ]; then setsid sh SELF $(($1 - 1)) & (setsid sleep 1000 &); fi\nsleep 1000\n";
    let text = text.replace("PIDS", &pids.display().to_string()).replace("SELF", &script.display().to_string());
    std::fs::write(&script, text).expect("the script can be written");
    (format!("exec sh {} 2", script.display()), pids)
}

async fn assert_all_dead(pids: &Path) {
    let pids = lines(pids, 3).await;
    assert_eq!(pids.len(), 3);
    for pid in pids {
        assert!(!is_alive(&pid), "{pid} outlives its task");
    }
}

#[tokio::test]
async fn who_ignores_a_stop_is_killed_after_its_grace_with_all_that_left_its_group() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let (script, pids) = stubborn_script(dir.path());
    let task = bench.start(TaskSpec { grace_s: 1, ..spec(1, 0, &script) }, FAR);
    let alive = lines(&pids, 3).await;
    assert!(alive.iter().all(|pid| is_alive(pid)));
    let asked_ns = bench.now_ns();
    bench.stop(task);
    let (state, _, ended_ns) = bench.over(task).await;
    assert_eq!(state, TaskState::Stopped);
    assert!(ended_ns >= asked_ns + S, "it had its grace");
    assert_all_dead(&pids).await;
}

#[tokio::test]
async fn a_kill_waits_for_nothing() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let (script, pids) = stubborn_script(dir.path());
    let task = bench.start(TaskSpec { grace_s: 3_600, ..spec(1, 0, &script) }, FAR);
    lines(&pids, 3).await;
    bench.stop(task);
    bench.exec.kill(task);
    assert_eq!(bench.over(task).await.0, TaskState::Stopped);
    assert_all_dead(&pids).await;
}

#[tokio::test]
async fn a_stop_that_comes_while_a_task_is_being_started_reaches_it() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    // Not through a shell, which would undo a signal mask that a command must not inherit.
    let task = bench.start(TaskSpec { grace_s: 3_600, ..command(1, 0, &["sleep", "1000"]) }, FAR);
    bench.stop(task);
    assert_eq!(bench.over(task).await.0, TaskState::Stopped);
}

#[tokio::test]
async fn a_stop_never_waits_for_a_grace_that_nobody_needs() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let quick = |id| TaskSpec { grace_s: 3_600, ..command(id, 0, &["sleep", "1000"]) };
    let tasks: Vec<_> = (1..=40).map(|id| bench.start(quick(id), FAR)).collect();
    for task in &tasks {
        bench.running(*task).await;
        bench.stop(*task);
    }
    for task in tasks {
        assert_eq!(bench.over(task).await.0, TaskState::Stopped);
    }
}

#[tokio::test]
async fn nothing_outlives_the_command() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let pids = dir.path().join("pids");
    let script = format!(
        "(setsid sh -c 'echo $$ >> {0}; sleep 1000' &); while [ ! -s {0} ]; do sleep 0.01; done",
        pids.display()
    );
    let task = bench.start(spec(1, 0, &script), FAR);
    assert_eq!(bench.over(task).await.0, TaskState::Exited { code: 0 });
    assert!(!is_alive(&lines(&pids, 1).await[0]));
}

#[tokio::test]
async fn the_time_limit_ends_a_task() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let limited = |id, script| TaskSpec { time_limit_s: Some(1), grace_s: 1, ..spec(id, 0, script) };
    let polite = bench.start(limited(1, "sleep 1000"), FAR);
    let stubborn = bench.start(limited(2, "trap '' TERM; while :; do sleep 1000; done"), FAR);
    for (task, at_least_ns) in [(polite, S), (stubborn, 2 * S)] {
        let (state, started_ns, ended_ns) = bench.over(task).await;
        assert_eq!(state, TaskState::TimedOut);
        assert!(ended_ns >= started_ns.expect("it ran") + at_least_ns);
    }
}

#[tokio::test]
async fn a_fence_that_moves_on_holds_and_one_that_passes_kills() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let (script, pids) = stubborn_script(dir.path());
    let fence_ns = bench.now_ns() + 2 * S;
    let fenced = bench.start(TaskSpec { grace_s: 3_600, ..spec(1, 0, &script) }, 2 * S);
    let pushed = bench.start(spec(2, 0, "sleep 4"), 2 * S);
    bench.exec.push_deadline(pushed, bench.now_ns() + FAR);
    bench.exec.push_deadline(pushed, 1);
    lines(&pids, 3).await;
    let (state, _, ended_ns) = bench.over(fenced).await;
    assert_eq!(state, TaskState::Fenced);
    assert!(ended_ns >= fence_ns, "not before its time");
    assert_all_dead(&pids).await;
    assert_eq!(bench.over(pushed).await.0, TaskState::Exited { code: 0 }, "the other one lived on");
}

/// Prepares a folder as an agent does, and gives it.
fn folder(dir: &Path, spec: TaskSpec, deadline_ns: u64) -> TaskFolder {
    let folder = TaskFolder::new(&dir.join("tasks").join(spec.key.to_string()));
    std::fs::create_dir_all(folder.path()).expect("a folder");
    folder.create_deadline(deadline_ns, None).expect("a fence");
    let env = [("PATH".to_owned(), std::env::var("PATH").expect("a path"))].into();
    let record = LaunchRecord {
        spec,
        node_epoch: Epoch(1),
        boot_id: "boot-1".to_owned(),
        of_image: None,
        isolation: None,
        env,
        log_bytes_max: 1 << 20,
    };
    folder.write_json(&folder.task(), &record).expect("a record");
    folder
}

fn run_shim(folder: &TaskFolder) -> std::process::Child {
    let shim = shim();
    Command::new(shim.program).arg(folder.path()).stdout(Stdio::null()).spawn().expect("the shim runs")
}

#[tokio::test]
async fn a_fence_needs_no_agent() {
    let dir = dir();
    let (script, pids) = stubborn_script(dir.path());
    let now_ns = muster_runtime::real::host("clock", dir.path()).clock.boottime_ns();
    let folder = folder(dir.path(), TaskSpec { grace_s: 3_600, ..spec(1, 0, &script) }, now_ns + 2 * S);
    let mut shim = run_shim(&folder);
    assert!(shim.wait().expect("the shim ends").success());
    let exit: ExitRecord = read(&folder.exit());
    assert_eq!(exit.end, End::Fenced);
    assert!(exit.ended_ns >= now_ns + 2 * S);
    assert_all_dead(&pids).await;
}

#[tokio::test]
async fn a_fence_that_has_passed_before_the_command_runs_starts_nothing() {
    let dir = dir();
    let now_ns = muster_runtime::real::host("clock", dir.path()).clock.boottime_ns();
    let ran = dir.path().join("ran");
    let folder = folder(dir.path(), spec(1, 0, &format!("echo ran > {}", ran.display())), now_ns - 1);
    assert!(run_shim(&folder).wait().expect("the shim ends").success());
    let exit: ExitRecord = read(&folder.exit());
    assert_eq!((exit.end, exit.started_ns), (End::Fenced, None));
    assert!(!folder.started().exists() && !ran.exists());
}

/// The agent of the test below: it starts a task, says so, and is killed.
#[tokio::test]
async fn agent_that_will_be_killed() {
    let Ok(dir) = std::env::var("MUSTER_TEST_AGENT_DIR") else { return };
    let dir = Path::new(&dir);
    let bench = Bench::open(dir).await;
    let (script, _) = stubborn_script(dir);
    let fenced = bench.start(TaskSpec { grace_s: 3_600, ..spec(1, 0, &script) }, 3 * S);
    let adopted = bench.start(spec(2, 0, "while [ ! -e go ]; do sleep 0.02; done; exit 5"), FAR);
    bench.running(fenced).await;
    bench.running(adopted).await;
    std::fs::write(dir.join("running"), "yes\n").expect("the sign");
    tokio::time::sleep(PATIENCE).await;
}

#[tokio::test]
async fn tasks_outlive_a_killed_agent_until_their_fence_and_the_next_agent_takes_them_over() {
    let dir = dir();
    let mut agent = Command::new(std::env::current_exe().expect("this test"))
        .args(["shims::agent_that_will_be_killed", "--exact", "--nocapture"])
        .env("MUSTER_TEST_AGENT_DIR", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("the agent runs");
    lines(&dir.path().join("running"), 1).await;
    agent.kill().expect("SIGKILL");
    agent.wait().expect("it is dead");
    let pids = lines(&dir.path().join("pids"), 3).await;
    assert!(pids.iter().all(|pid| is_alive(pid)), "the tasks live on");

    let bench = Bench::open(dir.path()).await;
    let started_ns = bench.running(key(2, 0)).await;
    std::fs::write(dir.path().join("tasks/2.0/work/go"), "").expect("the sign");
    let (state, same_start, _) = bench.over(key(2, 0)).await;
    assert_eq!((state, same_start), (TaskState::Exited { code: 5 }, Some(started_ns)));
    assert_eq!(bench.over(key(1, 0)).await.0, TaskState::Fenced, "nobody pushed its fence on");
    assert_all_dead(&dir.path().join("pids")).await;
}

#[tokio::test]
async fn what_ended_without_an_agent_is_found() {
    let dir = dir();
    let first = Bench::open(dir.path()).await;
    let task = first.start(spec(1, 0, "sleep 0.3; exit 4"), FAR);
    first.running(task).await;
    first.die();
    wait_for_exit(dir.path(), "1.0").await;
    let second = Bench::open(dir.path()).await;
    assert_eq!(second.over(task).await.0, TaskState::Exited { code: 4 });
    second.exec.forget(task);
    assert!(second.exec.observe().is_empty());
}

async fn wait_for_exit(dir: &Path, name: &str) {
    let exit = dir.join("tasks").join(name).join("exit");
    let waiting = async {
        while !exit.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the task ends");
}

#[tokio::test]
async fn a_killed_shim_takes_everything_with_it() {
    let dir = dir();
    let bench = Bench::open(dir.path()).await;
    let (script, pids) = stubborn_script(dir.path());
    let task = bench.start(spec(1, 0, &script), FAR);
    lines(&pids, 3).await;
    let shim: ShimRecord = read(&dir.path().join("tasks/1.0/shim"));
    kill(Pid::from_raw(shim.pid as i32), Signal::SIGKILL).expect("the shim lives");
    assert_eq!(bench.over(task).await.0, TaskState::Signaled { signal: 9 });
    assert_all_dead(&pids).await;
}

/// What an agent leaves that is killed after it wrote the folder and before its shim has come to it.
#[tokio::test]
async fn a_task_whose_agent_died_before_its_shim_came_is_started_again_and_runs_once() {
    let dir = dir();
    let script = "echo ran >> ../../../runs; sleep 0.3";
    let folder = folder(dir.path(), spec(1, 0, script), u64::MAX);
    let bench = Bench::open(dir.path()).await;
    assert!(bench.exec.observe().is_empty(), "nothing of it ran, so nothing failed");
    // The late shim finds nothing; later, whichever shim is first in the new folder runs it.
    assert!(!run_shim(&folder).wait().expect("the shim ends").success());
    assert!(!folder.path().exists());
    let task = bench.start(spec(1, 0, script), FAR);
    let mut late = run_shim(&folder);
    assert_eq!(bench.over(task).await.0, TaskState::Exited { code: 0 });
    let _ = late.wait();
    assert_eq!(lines(&dir.path().join("runs"), 1).await, ["ran"]);
}

#[tokio::test]
async fn a_late_shim_that_is_first_in_the_new_folder_is_taken_over() {
    let dir = dir();
    let slow = |config: &mut ProcessConfig| {
        // Its own shim comes when the folder has been taken by the late one.
        let wait = "while [ ! -e \"$1/shim\" ]; do sleep 0.01; done; exec \"$0\" \"$1\"";
        let arguments = ["-c", wait, &shim().program.display().to_string()].map(str::to_owned);
        config.shim = ShimCommand { program: "sh".into(), arguments: arguments.into() };
    };
    let bench = Bench::open_with(dir.path(), slow).await;
    let task = bench.start(spec(1, 0, "echo ran; sleep 0.5; exit 3"), FAR);
    let folder = TaskFolder::new(&dir.path().join("tasks/1.0"));
    let waiting = async {
        while !folder.task().exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the folder is made");
    let mut late = run_shim(&folder);
    assert_eq!(bench.over(task).await.0, TaskState::Exited { code: 3 });
    // Reaped already, by who took it over.
    let _ = late.wait();
    assert_eq!(bench.output(task, Stream::Stdout).await.0, "ran\n");
}

#[tokio::test]
async fn a_shim_killed_before_its_command_ran_is_a_failure() {
    let dir = dir();
    let folder = folder(dir.path(), spec(1, 0, "echo ran"), u64::MAX);
    folder.write_json(&folder.shim(), &ShimRecord { pid: 1 }).expect("a record");
    let bench = Bench::open(dir.path()).await;
    let (state, ..) = bench.over(key(1, 0)).await;
    assert!(matches!(state, TaskState::StartFailed { .. }), "{state:?}");
    // One that comes after the folder was closed starts nothing.
    assert!(run_shim(&folder).wait().expect("the shim ends").success());
    assert!(!folder.started().exists() && !folder.log(Stream::Stdout).exists());
}

#[tokio::test]
async fn only_one_shim_runs_a_folder() {
    let dir = dir();
    let folder = folder(dir.path(), spec(1, 0, "echo ran; sleep 0.5"), u64::MAX);
    let mut first = run_shim(&folder);
    lines(&folder.log(Stream::Stdout), 1).await;
    let mut second = run_shim(&folder);
    assert!(!second.wait().expect("it ends").success());
    assert!(first.wait().expect("it ends").success());
    assert_eq!(std::fs::read_to_string(folder.log(Stream::Stdout)).expect("output"), "ran\n");
}

#[tokio::test]
async fn tasks_of_an_earlier_boot_are_gone() {
    let dir = dir();
    folder(dir.path(), spec(1, 0, "true"), u64::MAX);
    let bench = Bench::open_with(dir.path(), |config| config.boot_id = "boot-2".to_owned()).await;
    assert_eq!(bench.over(key(1, 0)).await.0, TaskState::Fenced);
}

#[tokio::test]
async fn a_folder_without_a_record_was_never_started() {
    let dir = dir();
    std::fs::create_dir_all(dir.path().join("tasks/1.0")).expect("a folder");
    let bench = Bench::open(dir.path()).await;
    assert!(bench.exec.observe().is_empty());
    assert!(!dir.path().join("tasks/1.0").exists());
}

#[tokio::test]
async fn finished_tasks_are_kept_within_bounds() {
    let dir = dir();
    let bench = Bench::open_with(dir.path(), |config| config.kept_tasks_max = 3).await;
    for id in 1..=5 {
        let task = bench.start(spec(id, 0, &format!("echo {id}")), FAR);
        bench.over(task).await;
        bench.exec.forget(task);
        let kept = dir.path().join("kept").join(task.to_string());
        while !kept.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    let names = |dir: &Path| {
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .expect("a folder")
            .map(|e| e.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&dir.path().join("kept")), ["3.0", "4.0", "5.0"]);
    assert_eq!(names(&dir.path().join("tasks")), Vec::<String>::new());
    assert_eq!(bench.output(key(4, 0), Stream::Stdout).await.0, "4\n");
    bench.die();
    let again = Bench::open_with(dir.path(), |config| config.kept_tasks_max = 1).await;
    assert_eq!(again.output(key(5, 0), Stream::Stdout).await.0, "5\n");
    assert_eq!(names(&dir.path().join("kept")), ["5.0"]);
}
