//! `muster replay --live`: submits a trace to a running cluster, faster than it was.
//!
//! Every job becomes processes that sleep for its duration divided by the speed-up. What must stay true: a job is submitted at its
//! time or as soon after as the cluster acknowledges, never before; submissions under way are bounded, so a slow cluster slows
//! the replay, which the summary shows as lag; nothing is submitted twice.

use crate::args::replay::Replay;
use crate::client::Client;
use crate::commands::replay::{self, Loaded};
use crate::commands::{Context, fleet, now_ms, submit, tenants, wait};
use crate::failure::Failure;
use crate::output::Block;
use crate::spec::tenants::TreeFile;
use indicatif::{ProgressBar, ProgressStyle};
use muster_model::{JobSpec, Node, Tenant};
use muster_proto::v1;
use muster_twin::fleet::{Fleet, NodeGroup};
use muster_twin::import::{EndState, TraceJob};
use muster_twin::report::Percentiles;
use muster_twin::shape::Shaper;
use muster_twin::window::Window;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Jobs of one submission: jobs due in the same moment travel together, as a client's array would.
const BATCH_JOBS_MAX: usize = 100;
/// Jobs due within this time of each other share a submission.
const BATCH_SPAN: Duration = Duration::from_millis(20);
/// Submissions under way: enough to keep a cluster busy, few enough that it sets the pace.
const IN_FLIGHT_MAX: usize = 16;
/// Tenants of one call.
const TENANTS_PER_CALL_MAX: usize = 1_000;
/// Different refusals that the summary names.
const REASONS_MAX: usize = 10;

/// What a live replay came to.
#[derive(Debug, Default, Serialize)]
struct Live {
    speed_up: u32,
    submitted: u64,
    refused: u64,
    reasons: BTreeMap<String, u64>,
    took_s: f64,
    acknowledged_after_s: Percentiles,
    lag_s_max: f64,
    first_job: Option<u64>,
    last_job: Option<u64>,
    #[serde(skip)]
    ids: Vec<u64>,
    #[serde(skip)]
    revision: u64,
    #[serde(skip)]
    acknowledged_ms: Vec<u64>,
}

/// A job at its time from the beginning.
struct Due {
    at: Duration,
    spec: v1::JobSpec,
}

/// One submission's outcome.
struct Answer {
    ids: Vec<u64>,
    revision: u64,
    refused: Vec<String>,
    took_ms: u64,
}

/// Submits, and waits if asked to.
///
/// # Errors
/// When the trace or the cluster cannot be read, or the cluster stays away. Refused jobs are counted.
pub async fn run(context: &Context, args: &Replay) -> Result<(), Failure> {
    if args.days.is_none() && args.mix.is_none() {
        return Err(Failure::Usage("--live needs --days or --mix, to know when to end".to_owned()));
    }
    let Loaded { trace, window: choice, .. } = replay::load(args)?;
    let empty = || Failure::Usage("the trace has no job in these days; change --days or --from-day".to_owned());
    let window = Window::choose(&trace.jobs, choice).ok_or_else(empty)?;
    let (_, jobs) = window.cut(&trace.jobs);
    if jobs.is_empty() {
        return Err(empty());
    }
    let fleet = cluster_fleet(&context.client).await?;
    make_tenants(&context.client, &args.under, &jobs).await?;
    let mut live = Live { speed_up: args.speed_up, ..Live::default() };
    let due = plan(args, &fleet, &window, jobs, &mut live);
    drive(&context.client, due, &mut live).await?;
    live.acknowledged_after_s = Percentiles::of_ms(std::mem::take(&mut live.acknowledged_ms));
    (live.first_job, live.last_job) = (live.ids.iter().min().copied(), live.ids.iter().max().copied());
    context.out.show(&live, |_| vec![Block::Text(summary(&live))])?;
    if args.wait && !live.ids.is_empty() {
        wait::until_over(context, &live.ids, live.revision, Vec::new()).await
    } else {
        Ok(())
    }
}

/// The cluster's nodes as a fleet, so that gangs are split as its nodes need.
async fn cluster_fleet(client: &Client) -> Result<Fleet, Failure> {
    let mut groups: Vec<NodeGroup> = Vec::new();
    for view in fleet::all_nodes(client, "", "", v1::Consistency::Linearizable).await? {
        let Some(node) = view.node.and_then(|node| Node::try_from(node).ok()) else { continue };
        let Some(model) = node.spec.gpus.first().map(|gpu| gpu.model) else { continue };
        let gpus = node.spec.gpus.len() as u32;
        match groups.iter_mut().find(|group| group.model == model && group.gpus == gpus) {
            Some(group) => group.nodes += 1,
            None => groups.push(NodeGroup::of(1, gpus, model)),
        }
    }
    if groups.is_empty() {
        return Err(Failure::Refused("the cluster has no node with GPUs; start one with `muster node`".to_owned()));
    }
    Ok(Fleet { name: "the cluster".to_owned(), groups })
}

/// The trace's tenants under one of their own: new ones without limits, others as they are.
async fn make_tenants(client: &Client, under: &str, jobs: &[TraceJob]) -> Result<(), Failure> {
    let mut paths = BTreeSet::new();
    for tenant in jobs.iter().map(|job| job.tenant.as_str()).collect::<BTreeSet<_>>() {
        let full = format!("{under}/{tenant}");
        let mut path = Some(full.as_str());
        while let Some(at) = path {
            paths.insert(at.to_owned());
            path = Tenant::parent_path(at);
        }
    }
    // In order of their paths, parents stand before their children.
    let edit = |path: &String| v1::TenantEdit { path: path.clone(), ..v1::TenantEdit::default() };
    let edits: Vec<v1::TenantEdit> = paths.iter().map(edit).collect();
    for chunk in edits.chunks(TENANTS_PER_CALL_MAX) {
        tenants::apply(client, TreeFile { edits: chunk.to_vec(), half_life_s: None }, false, false).await?;
    }
    Ok(())
}

/// Every job at its time; those that the client's own checks refuse are counted.
fn plan(args: &Replay, fleet: &Fleet, window: &Window, jobs: Vec<TraceJob>, live: &mut Live) -> Vec<Due> {
    let shaper = Shaper::new(fleet, replay::shape(args));
    let speed_up = f64::from(args.speed_up);
    let mut due = Vec::with_capacity(jobs.len());
    for mut job in jobs {
        let at = Duration::from_secs_f64((job.submit_s - window.from_s) as f64 / speed_up);
        let seconds = job.duration_s as f64 / speed_up;
        job.tenant = format!("{}/{}", args.under, job.tenant);
        job.time_limit_s = job.time_limit_s.map(|limit| ((limit as f64 / speed_up).ceil() as u64).max(1));
        match shaper.shape(&job, command(&job, seconds)) {
            Ok(shaped) => due.push(Due { at, spec: v1::JobSpec::from(&JobSpec::clone(&shaped.spec)) }),
            Err(errors) => refuse(live, Failure::from(errors).to_string()),
        }
    }
    due
}

/// A process that works as long as the job did, and fails where it failed.
fn command(job: &TraceJob, seconds: f64) -> Vec<String> {
    let sleep = format!("sleep {seconds:.3}");
    match job.end {
        EndState::Failed => ["sh", "-c", &format!("{sleep}; exit 1")].map(str::to_owned).to_vec(),
        _ => sleep.split(' ').map(str::to_owned).collect(),
    }
}

fn refuse(live: &mut Live, why: String) {
    live.refused += 1;
    let known = live.reasons.contains_key(&why) || live.reasons.len() < REASONS_MAX;
    *live.reasons.entry(if known { why } else { "other reasons".to_owned() }).or_default() += 1;
}

/// Submits everything at its time.
async fn drive(client: &Client, due: Vec<Due>, live: &mut Live) -> Result<(), Failure> {
    let progress = ProgressBar::new(due.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{elapsed} [{bar:40}] {pos}/{len} jobs submitted {msg}") {
        progress.set_style(style);
    }
    let run_name = format!("replay-{}-{}", now_ms(), std::process::id());
    let began = Instant::now();
    let mut under_way: JoinSet<Result<Answer, Failure>> = JoinSet::new();
    let mut due = due.into_iter().peekable();
    let mut number = 0;
    while let Some(first) = due.next() {
        let mut batch = vec![first.spec];
        while batch.len() < BATCH_JOBS_MAX
            && let Some(next) = due.next_if(|next| next.at <= first.at + BATCH_SPAN)
        {
            batch.push(next.spec);
        }
        tokio::time::sleep_until(began + first.at).await;
        while under_way.len() >= IN_FLIGHT_MAX {
            take(live, &progress, under_way.join_next().await)?;
        }
        live.lag_s_max = live.lag_s_max.max((began.elapsed().saturating_sub(first.at)).as_secs_f64());
        number += 1;
        under_way.spawn(send(client.clone(), format!("{run_name}-{number}"), batch));
    }
    while !under_way.is_empty() {
        take(live, &progress, under_way.join_next().await)?;
    }
    live.took_s = began.elapsed().as_secs_f64();
    progress.finish_and_clear();
    Ok(())
}

type Joined = Option<Result<Result<Answer, Failure>, tokio::task::JoinError>>;

fn take(live: &mut Live, progress: &ProgressBar, joined: Joined) -> Result<(), Failure> {
    let Some(answer) = joined else { return Ok(()) };
    let answer = answer.map_err(|error| Failure::Role(anyhow::Error::new(error)))??;
    live.submitted += answer.ids.len() as u64;
    live.revision = live.revision.max(answer.revision);
    live.acknowledged_ms.push(answer.took_ms);
    progress.inc((answer.ids.len() + answer.refused.len()) as u64);
    live.ids.extend(answer.ids);
    answer.refused.into_iter().for_each(|why| refuse(live, why));
    Ok(())
}

/// One submission. A call takes all its jobs or none, so a refused one is sent again job by job.
async fn send(client: Client, request_id: String, batch: Vec<v1::JobSpec>) -> Result<Answer, Failure> {
    let began = Instant::now();
    let mut answer = Answer { ids: Vec::new(), revision: 0, refused: Vec::new(), took_ms: 0 };
    match submit::submit(&client, &request_id, now_ms(), batch.clone()).await {
        Ok(reply) => (answer.ids, answer.revision) = (reply.job_ids, reply.revision),
        Err(Failure::Invalid(..) | Failure::Refused(_)) if batch.len() > 1 => {
            for (index, spec) in batch.into_iter().enumerate() {
                match submit::submit(&client, &format!("{request_id}-{index}"), now_ms(), vec![spec]).await {
                    Ok(reply) => {
                        answer.ids.extend(reply.job_ids);
                        answer.revision = reply.revision;
                    }
                    Err(failure @ (Failure::Invalid(..) | Failure::Refused(_))) => {
                        answer.refused.push(failure.to_string())
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        Err(failure @ (Failure::Invalid(..) | Failure::Refused(_))) => answer.refused.push(failure.to_string()),
        Err(failure) => return Err(failure),
    }
    answer.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(answer)
}

fn summary(live: &Live) -> String {
    let ack = &live.acknowledged_after_s;
    let range = match (live.first_job, live.last_job) {
        (Some(first), Some(last)) => format!(" (jobs {first} to {last})"),
        _ => String::new(),
    };
    let mut text = format!(
        "{} jobs submitted{range}, {} refused, in {:.1} s at {} times the speed of the trace\n\
         acknowledged after {:.0} ms (median), {:.0} ms (99th percentile); at most {:.1} s later than in the trace",
        live.submitted,
        live.refused,
        live.took_s,
        live.speed_up,
        ack.p50 * 1000.0,
        ack.p99 * 1000.0,
        live.lag_s_max
    );
    for (why, count) in &live.reasons {
        text.push_str(&format!("\n  refused {count}: {why}"));
    }
    text
}
