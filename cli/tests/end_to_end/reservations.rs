//! What users see of reservations: a gang is told when it starts at the latest, short jobs pass it, long ones wait and are told for whom,
//! and another shard keeps the reservation.

use crate::common::{Fleet, all_jobs, fleet, submit_until_acknowledged};
use muster_bench::cluster::{self, Size};
use muster_proto::v1;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// A job of `tasks` nodes that runs for `sleep_s`.
fn nodes(name: &str, tasks: u32, sleep_s: u32, time_limit_s: Option<u64>) -> v1::JobSpec {
    let mut job = cluster::small_job("research", name.to_owned(), &["sleep", &sleep_s.to_string()]);
    job.tasks = tasks;
    job.time_limit_s = time_limit_s;
    let whole = v1::device_request::Kind::Whole(v1::WholeGpus { count: 8 });
    if let Some(devices) = job.request.as_mut().and_then(|request| request.devices.as_mut()) {
        devices.kind = Some(whole);
    }
    job
}

/// Waits until the job is as `seen` wants it.
async fn until(fleet: &Fleet, id: u64, what: &str, seen: impl Fn(&v1::Job) -> bool) -> v1::Job {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let jobs = all_jobs(fleet, "research").await.unwrap_or_default();
        match jobs.get(&id) {
            Some(job) if seen(job) => return job.clone(),
            other => assert!(Instant::now() < end, "job {id} never {what}: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn codes(fleet: &Fleet, job_id: u64) -> Vec<String> {
    let mut client = v1::jobs_client::JobsClient::new(fleet.channel_to_any().expect("an endpoint"));
    let reply = client.explain(v1::ExplainRequest { job_id, consistency: 0 }).await.expect("explained").into_inner();
    reply.reasons.into_iter().map(|reason| reason.code).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_is_given_a_start_that_short_jobs_pass_and_a_new_shard_keeps() {
    let size = Size { voters: 1, shards: 1, nodes: 2, gpus_per_node: 8, agents: 1, virtual_tasks: true };
    let fleet = fleet(&size).await;
    let endpoints = fleet.dev().expect("dev.json").endpoints;
    let submit = async |name: &str, job: v1::JobSpec| {
        submit_until_acknowledged(&endpoints, name, &job).await.expect("acknowledged")
    };
    let running = |job: &v1::Job| job.phase() == v1::JobPhase::Running;

    let first = submit("first", nodes("first", 1, 600, Some(900))).await;
    until(&fleet, first, "ran", running).await;
    let gang = submit("gang", nodes("gang", 2, 1, None)).await;
    let gang_seen = until(&fleet, gang, "has a reservation", |job| job.reserved.is_some()).await;
    let reserved = gang_seen.reserved.expect("just seen");
    let bound_ms = all_jobs(&fleet, "research").await.expect("jobs")[&first].bound_ms.expect("it runs");
    assert_eq!(reserved.nodes.len(), 2);
    assert_eq!(reserved.start_ms, bound_ms + 1_000 * (60 + 900 + 30), "start-up, limit and grace of what runs");
    assert!(codes(&fleet, gang).await.contains(&"reserved".to_owned()));

    let long = submit("long", nodes("long", 1, 600, None)).await;
    let short = submit("short", nodes("short", 1, 1, Some(60))).await;
    until(&fleet, short, "passed the gang", |job| job.phase() == v1::JobPhase::Completed).await;
    assert_eq!(codes(&fleet, long).await, ["reserved_for_gang"]);

    // Another shard takes over.
    let roles = fleet.dev().expect("dev.json").roles;
    let shard = roles.iter().find(|role| role.role == "shard").expect("a shard");
    kill(Pid::from_raw(shard.pid), Signal::SIGKILL).expect("killed");
    let next = submit("next", nodes("next", 1, 1, Some(60))).await;
    until(&fleet, next, "passed the gang too", |job| job.phase() == v1::JobPhase::Completed).await;
    let jobs = all_jobs(&fleet, "research").await.expect("jobs");
    assert_eq!(jobs[&long].phase(), v1::JobPhase::Pending, "the new shard keeps the reservation");
    assert_eq!(jobs[&gang].reserved.as_ref(), Some(&reserved));

    // It ends early, so the gang starts early.
    let cancel = v1::CancelRequest { job_id: first };
    let mut client = v1::jobs_client::JobsClient::new(fleet.channel_to_any().expect("an endpoint"));
    client.cancel(cancel).await.expect("cancelled");
    until(&fleet, gang, "started", |job| job.phase() == v1::JobPhase::Completed).await;
    until(&fleet, long, "started after it", running).await;
}
