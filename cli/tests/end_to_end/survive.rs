//! What a running task sees of failures around it: restarts of the agent and of the whole control plane cost it nothing; an agent
//! that is gone past the grace costs it its life, before the next attempt starts.

use crate::common::{Fleet, assert_completed, finished_jobs, fleet, runs, submit_until_acknowledged};
use muster_bench::cluster::{self, Size};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

async fn wait_for_starts(fleet: &Fleet, job: u64, starts: u32, limit_s: u64) {
    let until = Instant::now() + Duration::from_secs(limit_s);
    while runs(fleet).get(&job).map_or(0, |run| run.starts) < starts {
        assert!(
            Instant::now() < until,
            "job {job} has not started {starts} times in {limit_s} s: {:?}",
            runs(fleet).get(&job)
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn kill_roles(fleet: &Fleet, role: &str, signal: Signal) -> usize {
    let roles = fleet.dev().expect("dev.json").roles;
    let pids = roles.iter().filter(|r| r.role == role).map(|r| r.pid);
    pids.filter(|&pid| kill(Pid::from_raw(pid), signal).is_ok()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_of_agents_and_control_nodes_leave_tasks_running() {
    let size = Size { voters: 3, shards: 1, nodes: 2, gpus_per_node: 8, agents: 1, virtual_tasks: false };
    let fleet = fleet(&size).await;
    let endpoints = fleet.dev().expect("dev.json").endpoints;
    let mut job = cluster::small_job("research", "long".to_owned(), &[]);
    job.tasks = 4;
    job.command = fleet.recording_command("8");
    let id = submit_until_acknowledged(&endpoints, "long", &job).await.expect("acknowledged");
    wait_for_starts(&fleet, id, 4, 20).await;

    assert_eq!(kill_roles(&fleet, "agent", Signal::SIGKILL), 1);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(kill_roles(&fleet, "control", Signal::SIGKILL), 3);
    fleet.wait_ready().await.expect("everything is back");

    let jobs = finished_jobs(&fleet, "research", 1, Duration::from_secs(40)).await;
    assert_completed(&jobs[&id]);
    let run = &runs(&fleet)[&id];
    assert_eq!((run.starts, run.ends), (4, 4), "each rank ran once, to its end: {:?}", run.lines);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_stopped_agent_are_dead_before_the_next_attempt_starts() {
    let size = Size { voters: 1, shards: 1, nodes: 4, gpus_per_node: 8, agents: 4, virtual_tasks: false };
    let fleet = fleet(&size).await;
    let endpoints = fleet.dev().expect("dev.json").endpoints;
    let mut job = cluster::small_job("research", "fenced".to_owned(), &[]);
    // It notes the time all the while, ignores SIGTERM, and has a child in a session of its own: nothing but the fence ends it.
    let note = format!(
        "echo tick $MUSTER_JOB_ID $RANK $MUSTER_ATTEMPT $(cut -d' ' -f1 /proc/uptime) >> {}",
        fleet.record().display()
    );
    let start = note.replace("tick", "start");
    let script = format!(
        "trap '' TERM; {start}; setsid /bin/sh -c \"while :; do {}; sleep 0.1; done\" & while :; do {note}; sleep 0.1; done",
        note.replace('$', "\\$")
    );
    job.command = vec!["/bin/sh".to_owned(), "-c".to_owned(), script];
    job.disconnect_grace_s = Some(10);
    let id = submit_until_acknowledged(&endpoints, "fenced", &job).await.expect("acknowledged");
    wait_for_starts(&fleet, id, 1, 20).await;

    let node = node_of(&fleet, id).await;
    let agent = fleet.dev().expect("dev.json").roles.into_iter().find(|r| r.nodes.contains(&node)).expect("its agent");
    kill(Pid::from_raw(agent.pid), Signal::SIGSTOP).expect("the agent is stopped");
    wait_for_starts(&fleet, id, 2, 60).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    kill(Pid::from_raw(agent.pid), Signal::SIGCONT).expect("the agent goes on");

    let lines = &runs(&fleet)[&id].lines;
    let last_of_first = lines.iter().filter(|l| l.2 == 1).map(|l| l.3).fold(0.0, f64::max);
    let first_of_second = lines.iter().filter(|l| l.2 == 2).map(|l| l.3).fold(f64::MAX, f64::min);
    println!("last sign of attempt 1 at {last_of_first} s of uptime, first of attempt 2 at {first_of_second} s");
    assert!(
        last_of_first < first_of_second,
        "attempt 1 still ran at {last_of_first}, attempt 2 began at {first_of_second}"
    );
}

async fn node_of(fleet: &Fleet, job_id: u64) -> String {
    let channel = fleet.channel_to_any().expect("an endpoint");
    let mut jobs = muster_proto::v1::jobs_client::JobsClient::new(channel);
    let request = muster_proto::v1::GetJobRequest { job_id, ..Default::default() };
    jobs.get(request).await.expect("the job is there").into_inner().node_names[0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_every_port_harms_nobody() {
    use tokio::io::AsyncWriteExt;
    let size = Size { voters: 1, shards: 1, nodes: 1, gpus_per_node: 8, agents: 1, virtual_tasks: false };
    let fleet = fleet(&size).await;
    let dev = fleet.dev().expect("dev.json");
    let ports: Vec<String> =
        dev.endpoints.iter().cloned().chain(dev.roles.iter().filter_map(|r| r.http.clone())).collect();
    assert!(ports.len() >= 3, "every role has a port: {ports:?}");
    let noise: Vec<u8> = (0..65_536_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let http2_then_noise = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &noise].concat();
    for port in &ports {
        for bytes in [&noise[..], &http2_then_noise[..], b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0", b""] {
            let mut socket = tokio::net::TcpStream::connect(port).await.expect("the port listens");
            // The other side may hang up at any point, which is its right.
            let _ = socket.write_all(bytes).await;
            let _ = socket.shutdown().await;
        }
    }
    let mut job = cluster::small_job("research", "after".to_owned(), &["true"]);
    job.command = fleet.recording_command("0");
    let id = submit_until_acknowledged(&dev.endpoints, "after", &job).await.expect("acknowledged");
    let jobs = finished_jobs(&fleet, "research", 1, Duration::from_secs(20)).await;
    assert_completed(&jobs[&id]);
    let after = fleet.dev().expect("dev.json");
    let pids = |dev: &cluster::Dev| dev.roles.iter().map(|r| r.pid).collect::<Vec<_>>();
    assert_eq!(pids(&dev), pids(&after), "no process died of it");
}
