//! One agent on a full node: 8 cards of 7 MIG slices each, a task on every slice. What the agent costs, how long a task takes from the desired state
//! to running and from a stop to clean devices, and what a start costs without isolation, isolated, and in a container image.
//!
//! The agent is that of production, as a process of its own; it drives the double of NVIDIA's driver through the same calls as a driver. What must stay
//! true: nothing that the double does instantly is called fast: the cards of a real host take their own time on top.

mod image;
mod processes;
mod steps;

use crate::cluster::{self, Cluster, Setting, Size};
use crate::process;
use crate::table::{self, Row, Table};
use crate::timeline::stamp::{self, now_ns};
use anyhow::{Context, Result, ensure};
use muster_agent::sandbox::probe::{Findings, find_out, forget};
use muster_agent::shim_command::ShimCommand;
use muster_proto::v1;
use processes::Seen;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use steps::{Ended, Follower, Found, Started};

/// GPUs of the node, and MIG slices of each.
const CARDS: u32 = 8;
const SLICES: u32 = 7;
const PROFILE: &str = "1g.10gb";
/// The stamps of a process are in its file after this.
const STAMPS_WITHIN: Duration = Duration::from_millis(500);
/// After the first tasks run, the meter and the health watch have their first round behind them.
const SETTLED: Duration = Duration::from_secs(3);
const START_ANCHOR: &str = "a process 4.5 ms, crun 15 ms, runc 28 ms (measured on such a machine)";

/// How to run it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tasks that are stopped and started again, one after the other, beside the others that run.
    pub rounds: u32,
    /// Seconds over which CPU is measured, idle and with all tasks.
    pub seconds: u32,
}

/// How the tasks of one part run.
#[derive(Clone, Debug)]
struct Kind {
    name: &'static str,
    isolation: &'static str,
    /// Image of the tasks; empty: the host's own system.
    image: String,
}

/// What one part found.
struct Part {
    idle: Seen,
    full: Seen,
    /// One at a time, all others running.
    single: Found,
    /// All at once.
    burst: Found,
}

/// Runs every part that this machine can, and gives a table for each and one of the starts.
///
/// # Errors
/// When the cluster does not start, or tasks do not start or end.
pub async fn run(muster: &Path, under: &Path, options: Options) -> Result<Vec<Table>> {
    let folder = tempfile::tempdir_in(under)?;
    let shim = ShimCommand { program: muster.to_owned(), arguments: vec!["shim".to_owned()] };
    let found = find_out(&shim, folder.path(), &format!("bench-node-{}", std::process::id()))?;
    let kinds = kinds(&found, folder.path())?;
    forget(&found);
    let (mut tables, mut starts) = (Vec::new(), Vec::new());
    for kind in &kinds {
        let part = part(muster, under, kind, options).await.with_context(|| kind.name.to_owned())?;
        let of = |find: fn(&Started) -> u64, found: &Found| times(found.started.iter().map(find).collect());
        starts.push(Row::new(
            format!("start of one task, {}", kind.name),
            of(|one| one.start_us, &part.single),
            START_ANCHOR,
            "",
        ));
        tables.push(table(kind, &part, options));
    }
    if kinds.len() == 1 {
        starts.push(Row::new("isolated, and in an image", "not measured: they take root and full isolation", "", ""));
    }
    tables.push(Table::new("From the agent's order to the report that the task runs, one at a time", starts));
    Ok(tables)
}

/// What this machine can do.
fn kinds(found: &Findings, folder: &Path) -> Result<Vec<Kind>> {
    let plain = Kind { name: "no isolation", isolation: "none", image: String::new() };
    let mut kinds = vec![plain];
    if found.is_full {
        kinds.push(Kind { name: "isolated fully", isolation: "full", image: String::new() });
        let layout = std::path::absolute(folder)?.join("layout");
        image::layout_of_sleep(&layout)?;
        kinds.push(Kind {
            name: "isolated fully, in an image (OCI layout on disk)",
            isolation: "full",
            image: format!("oci:{}", layout.display()),
        });
    }
    Ok(kinds)
}

async fn part(muster: &Path, under: &Path, kind: &Kind, options: Options) -> Result<Part> {
    let size = Size { voters: 1, shards: 1, nodes: 1, gpus_per_node: CARDS, agents: 1, virtual_tasks: false };
    let folder = tempfile::tempdir_in(under)?;
    let stamps = folder.path().canonicalize()?;
    let words = ["--gpus", "double", "--isolation", kind.isolation, "--usage-period", "10s"];
    let options_of_dev = words.map(str::to_owned).to_vec();
    let setting = Setting { stamps: Some(stamps.clone()), options: options_of_dev, ..Setting::default() };
    let fleet = Cluster::start_with(muster, under, &size, &setting).await?;
    let channel = fleet.channel_to_any()?;
    cluster::apply_tenants(channel.clone(), &["bench"]).await?;
    if !kind.image.is_empty() {
        allow_image(muster, &fleet, kind, folder.path())?;
    }
    let agent = agent_of(&fleet)?;
    tokio::time::sleep(SETTLED).await;
    let idle = processes::over(agent, options.seconds).await?;
    let follower = Follower::start(channel.clone()).await?;
    let count = CARDS * SLICES;
    let mut load = Load { channel, follower, job: job(kind), number: 0, asked: Vec::new() };
    let all: Vec<u32> = (0..count).collect();
    // The first round prepares the image and cuts the cards; it is not measured.
    let first = load.start(&all).await?;
    load.stop(&first).await?;
    load.asked.clear();
    let mut running = load.start(&all).await?;
    tokio::time::sleep(SETTLED).await;
    let full = processes::over(agent, options.seconds).await?;
    let burst_started = std::mem::take(&mut load.asked);
    for round in 0..options.rounds {
        let at = (round % count) as usize;
        load.stop(&running[at..=at]).await?;
        let again = load.start(&[round]).await?;
        running[at..=at].copy_from_slice(&again);
    }
    let single_asked = std::mem::take(&mut load.asked);
    load.stop(&running).await?;
    let burst_ended = std::mem::take(&mut load.asked);
    tokio::time::sleep(STAMPS_WITHIN).await;
    let stamps = steps::Stamps::of(&stamp::read_all(&stamps)?);
    let seen = load.follower.seen().await;
    let single = stamps.found(&single_asked, &seen);
    let burst = stamps.found(&[burst_started, burst_ended].concat(), &seen);
    ensure!(!single.started.is_empty() && !single.ended.is_empty(), "no task was followed through all its steps");
    Ok(Part { idle, full, single, burst })
}

/// Opens the only pool to the image.
fn allow_image(muster: &Path, fleet: &Cluster, kind: &Kind, folder: &Path) -> Result<()> {
    let file: PathBuf = folder.join("pool.yaml");
    std::fs::write(&file, format!("name: default\nisolation: full\nimages: [\"{}\"]\n", kind.image))?;
    let applied = Command::new(muster)
        .args(["pools", "apply", "-f"])
        .arg(&file)
        .env("MUSTER_CONFIG", fleet.folder().join("config.yaml"))
        .env("MUSTER_ENDPOINTS", fleet.dev()?.endpoints.join(","))
        .stdin(Stdio::null())
        .output()?;
    ensure!(applied.status.success(), "pools apply: {}", String::from_utf8_lossy(&applied.stderr));
    Ok(())
}

fn agent_of(fleet: &Cluster) -> Result<i32> {
    let dev = fleet.dev()?;
    let agent = dev.roles.iter().find(|role| role.role == "agent").context("no agent runs")?;
    Ok(agent.pid)
}

/// One slice until it is cancelled.
fn job(kind: &Kind) -> v1::JobSpec {
    let mut job = cluster::small_job("bench", "slice".to_owned(), &["sleep", "100000"]);
    job.image.clone_from(&kind.image);
    if let Some(request) = &mut job.request {
        request.memory_mib = 256;
        if let Some(devices) = &mut request.devices {
            let profile = PROFILE.to_owned();
            devices.kind = Some(v1::device_request::Kind::Mig(v1::MigInstance { profile }));
            devices.models = vec!["h100".to_owned()];
        }
    }
    job
}

/// Starts and stops jobs, and notes what it asked for when.
struct Load {
    channel: tonic::transport::Channel,
    follower: Follower,
    job: v1::JobSpec,
    number: u32,
    asked: Vec<steps::Asked>,
}

impl Load {
    /// Submits one job for each of these in one call; returns when all run.
    async fn start(&mut self, which: &[u32]) -> Result<Vec<u64>> {
        self.number += 1;
        let call = cluster::submission(format!("node-{}", self.number), vec![self.job.clone(); which.len()]);
        let at_ns = now_ns();
        let reply = v1::jobs_client::JobsClient::new(self.channel.clone()).submit(call).await?.into_inner();
        self.asked.extend(reply.job_ids.iter().map(|job| steps::Asked::Start { job: *job, at_ns }));
        self.follower.until_running(&reply.job_ids).await?;
        Ok(reply.job_ids)
    }

    /// Cancels these side by side; returns when their GPUs are released.
    async fn stop(&mut self, jobs: &[u64]) -> Result<()> {
        let mut calls = tokio::task::JoinSet::new();
        for job in jobs {
            let (channel, job_id) = (self.channel.clone(), *job);
            self.asked.push(steps::Asked::Stop { job: job_id, at_ns: now_ns() });
            calls.spawn(
                async move { v1::jobs_client::JobsClient::new(channel).cancel(v1::CancelRequest { job_id }).await },
            );
        }
        while let Some(done) = calls.join_next().await {
            done??;
        }
        self.follower.until_over(jobs).await
    }
}

fn times(mut us: Vec<u64>) -> String {
    us.sort_unstable();
    let at = |share| table::time(table::percentile(&us, share));
    format!("p50 {}, p99 {} ({})", at(0.5), at(0.99), us.len())
}

fn table(kind: &Kind, part: &Part, options: Options) -> Table {
    let count = CARDS * SLICES;
    let cores = |cores: f64| format!("{:.1} % of a core", cores * 100.0);
    let seen = |what: &str, seen: &Seen| {
        Row::new(
            format!("{what}, over {} s", options.seconds),
            format!(
                "agent {}, {}; helper {}, {}",
                cores(seen.agent_cores),
                process::memory(seen.agent_kib),
                cores(seen.helper_cores),
                process::memory(seen.helper_kib)
            ),
            "most of the helper's CPU is the double's",
            "",
        )
    };
    let full = &part.full;
    let mut rows = vec![seen("idle", &part.idle), seen(&format!("{count} tasks run"), full)];
    let shims = format!("{} in {} processes", process::memory(full.shims_kib), full.shims);
    rows.push(Row::new(format!("memory of the shims and inits of {count} tasks"), shims, "", ""));
    let single = "one at a time, the others run";
    let burst = format!("{count} at once");
    for (what, found) in [(single, &part.single), (burst.as_str(), &part.burst)] {
        let of_start = |find: fn(&Started) -> u64| times(found.started.iter().map(find).collect());
        let of_end = |find: fn(&Ended) -> u64| times(found.ended.iter().map(find).collect());
        let row = |step: &str, measured, target| Row::new(format!("{step}; {what}"), measured, "", target);
        let s6 = if what == single { "S6: p50 20 ms, p99 100 ms" } else { "" };
        rows.push(row("desired state -> running reported", of_start(|one| one.desired_us), ""));
        rows.push(row("of that, until the slice is made on the double", of_start(|one| one.ordered_us), ""));
        rows.push(row("submit -> running, as a watcher sees it", of_start(|one| one.seen_us), s6));
        rows.push(row("cancel -> stopped reported", of_end(|one| one.stopped_us), ""));
        rows.push(row("cancel -> clean reported", of_end(|one| one.clean_us), ""));
        rows.push(row("cancel -> released, as a watcher sees it", of_end(|one| one.seen_us), ""));
    }
    let title = format!("One node, {CARDS} GPUs x {SLICES} slices on the double of the driver, {}", kind.name);
    Table::new(title, rows)
}
