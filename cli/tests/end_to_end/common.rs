//! A fleet of real processes for the end-to-end tests, and the record that its tasks keep of themselves.

use crate::shared::open_to_all;
use muster_bench::cluster::{self, Cluster, Setting, Size};
use muster_proto::v1;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A running fleet with a folder in which tasks leave their lines.
pub(crate) struct Fleet {
    cluster: Cluster,
    _alone: tokio::sync::MutexGuard<'static, ()>,
    folder: tempfile::TempDir,
}

impl Deref for Fleet {
    type Target = Cluster;
    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl DerefMut for Fleet {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

impl Fleet {
    /// Where every task appends `start|end job rank attempt boottime_ms`.
    pub(crate) fn record(&self) -> PathBuf {
        self.folder.path().join("record")
    }

    /// A command that leaves its lines and runs for `seconds`.
    pub(crate) fn recording_command(&self, seconds: &str) -> Vec<String> {
        // One line is one write of the shell's echo in append mode: lines of many tasks do not mix.
        let line = "$MUSTER_JOB_ID $RANK $MUSTER_ATTEMPT $(cut -d' ' -f1 /proc/uptime)";
        let record = self.record().display().to_string();
        let script = format!("echo start {line} >> {record}; sleep {seconds}; echo end {line} >> {record}");
        vec!["/bin/sh".to_owned(), "-c".to_owned(), script]
    }
}

/// Starts a fleet of the binary under test.
pub(crate) async fn fleet(size: &Size) -> Fleet {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let alone = ALONE.lock().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    open_to_all(folder.path());
    let muster = PathBuf::from(env!("CARGO_BIN_EXE_muster"));
    let options = vec!["--task-writes".to_owned(), folder.path().display().to_string()];
    let setting = Setting { options, ..Setting::default() };
    let cluster = Cluster::start_with(&muster, folder.path(), size, &setting).await.expect("the fleet starts");
    cluster::apply_tenants(cluster.channel_to_any().expect("an endpoint"), &["research"]).await.expect("tenants apply");
    Fleet { cluster, _alone: alone, folder }
}

/// What one job's tasks wrote of themselves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// Lines of starts.
    pub(crate) starts: u32,
    /// Lines of ends.
    pub(crate) ends: u32,
    /// `(kind, rank, attempt, uptime in seconds)` in the order written.
    pub(crate) lines: Vec<(String, u32, u32, f64)>,
}

/// All runs, by job.
pub(crate) fn runs(fleet: &Fleet) -> BTreeMap<u64, Run> {
    let text = std::fs::read_to_string(fleet.record()).unwrap_or_default();
    let mut runs: BTreeMap<u64, Run> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, job, rank, attempt, uptime] = words[..] else { continue };
        let run = runs.entry(job.parse().expect("a job id")).or_default();
        match kind {
            "start" => run.starts += 1,
            _ => run.ends += 1,
        }
        let number = |text: &str| text.parse::<u32>().expect("a number");
        run.lines.push((kind.to_owned(), number(rank), number(attempt), uptime.parse().expect("seconds")));
    }
    runs
}

/// Submits small jobs all the time, each again with the same request id until it is acknowledged, and keeps what was.
pub(crate) struct Ledger {
    stop: Arc<AtomicBool>,
    worker: tokio::task::JoinHandle<BTreeMap<String, u64>>,
}

impl Ledger {
    /// Begins to submit for `tenant`, which it makes.
    pub(crate) async fn start(fleet: &Fleet, tenant: &str) -> Self {
        let channel = fleet.channel_to_any().expect("an endpoint");
        cluster::apply_tenants(channel, &[tenant]).await.expect("the tenant is applied");
        let stop = Arc::new(AtomicBool::new(false));
        let (command, tenant, stopped) = (fleet.recording_command("0.2"), tenant.to_owned(), stop.clone());
        let endpoints = fleet.dev().expect("dev.json").endpoints;
        let worker = tokio::spawn(async move {
            let mut acknowledged = BTreeMap::new();
            let mut number = 0_u64;
            while !stopped.load(Ordering::Relaxed) {
                number += 1;
                let request = format!("ledger-{number}");
                let mut job = cluster::small_job(&tenant, request.clone(), &[]);
                job.command.clone_from(&command);
                if let Some(id) = submit_until_acknowledged(&endpoints, &request, &job).await {
                    acknowledged.insert(request, id);
                }
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
            acknowledged
        });
        Ledger { stop, worker }
    }

    /// Stops submitting; gives request and job id of each that was acknowledged.
    pub(crate) async fn stop(self) -> BTreeMap<String, u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.await.expect("the submitter lives")
    }
}

/// Submits one job, again and again over all endpoints, until it is acknowledged or a minute has passed.
pub(crate) async fn submit_until_acknowledged(endpoints: &[String], request: &str, job: &v1::JobSpec) -> Option<u64> {
    let until = Instant::now() + Duration::from_secs(60);
    let (mut turn, issued_ms) = (0, cluster::issued_now());
    while Instant::now() < until {
        let channel = cluster::channel(&endpoints[turn % endpoints.len()]).expect("an endpoint");
        turn += 1;
        let submit = v1::SubmitRequest { request_id: request.to_owned(), issued_ms, jobs: vec![job.clone()] };
        let call = v1::jobs_client::JobsClient::new(channel);
        let answer =
            tokio::time::timeout(Duration::from_secs(2), async move { call.clone().submit(submit).await }).await;
        if let Ok(Ok(reply)) = answer {
            return Some(reply.into_inner().job_ids[0]);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    None
}

/// All jobs of `tenant`, live and finished, once `count` of them are over or the time is up.
pub(crate) async fn finished_jobs(
    fleet: &Fleet,
    tenant: &str,
    count: usize,
    limit: Duration,
) -> BTreeMap<u64, v1::Job> {
    let until = Instant::now() + limit;
    loop {
        let jobs = all_jobs(fleet, tenant).await.unwrap_or_default();
        let over = jobs.values().filter(|job| is_over(job.phase())).count();
        if over >= count || Instant::now() > until {
            return jobs;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

fn is_over(phase: v1::JobPhase) -> bool {
    use v1::JobPhase::{Completing, Pending, Running, Starting};
    !matches!(phase, Pending | Starting | Running | Completing)
}

/// Fails with what the job says of itself unless it completed.
pub(crate) fn assert_completed(job: &v1::Job) {
    let (phase, reason, requeued) = (job.phase().as_str_name(), &job.reason, &job.requeue_reason);
    let said = format!("{phase} in attempt {}: {reason:?}, sent back before: {requeued:?}", job.attempt);
    assert_eq!(job.phase(), v1::JobPhase::Completed, "job {}: {said}, nodes {:?}", job.id, job.nodes);
}

/// All jobs of `tenant`, page by page.
pub(crate) async fn all_jobs(fleet: &Fleet, tenant: &str) -> anyhow::Result<BTreeMap<u64, v1::Job>> {
    let mut client = v1::jobs_client::JobsClient::new(fleet.channel_to_any()?);
    let mut out = BTreeMap::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListJobsRequest {
            tenant: tenant.to_owned(),
            phases: (1..=8).collect(),
            page_size: 1_000,
            page_token,
            ..Default::default()
        };
        let reply = client.list(request).await?.into_inner();
        out.extend(reply.jobs.into_iter().map(|job| (job.id, job)));
        if reply.next_page_token.is_empty() {
            return Ok(out);
        }
        page_token = reply.next_page_token;
    }
}
