//! `muster demo`: the product's main job on this machine, with real processes and real kills, checked.
//!
//! What must stay true: it goes through the public API and the command's own processes only; every claim of its closing table comes
//! from what it saw (acknowledgements, the tasks' own lines, the usage table); it succeeds only if every check held.

pub mod checks;
pub mod gpu_fault;
pub mod narrator;
pub mod record;
pub mod sharers;
pub mod slices;
pub mod stage;
pub mod stream;
pub mod workload;

use crate::args::roles::Demo;
use crate::client::Client;
use crate::commands::explain::{Explanation, explain};
use crate::commands::jobs;
use crate::commands::submit::submit;
use crate::commands::tenants::{apply, usage_of};
use crate::commands::{fleet, now_ms};
use crate::failure::Failure;
use crate::output::note;
use crate::spec;
use crate::view::job::{PHASES, is_over};
use checks::Evidence;
use muster_proto::v1;
use muster_proto::v1::Consistency;
use narrator::Narrator;
use nix::sys::signal::Signal;
use stage::Stage;
use std::path::Path;
use std::time::{Duration, Instant};
use stream::Stream;
use workload::Workload;

/// Everything has to be over in this time after the last submission, or it counts as lost.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// Usage is committed a little after it was used.
const USAGE_MAX: Duration = Duration::from_secs(20);
/// One call; kills happen in between, so it is patient.
const CALL_MAX: Duration = Duration::from_secs(30);

/// Runs the demonstration.
///
/// # Errors
/// When a check did not hold, or the cluster cannot be started.
pub fn run(args: &Demo) -> Result<(), Failure> {
    let (folder, kept) = match &args.data {
        Some(folder) => (folder.clone(), true),
        None => (std::env::temp_dir().join(format!("muster-demo-{}", std::process::id())), false),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("starting", error))?;
    let result = runtime.block_on(play(args, &folder));
    match &result {
        Ok(()) if !kept => {
            // What is left of a demonstration that went well is of no use to anybody.
            let _ = std::fs::remove_dir_all(&folder);
        }
        _ => note(&format!("the data is kept in {}", folder.display())),
    }
    result
}

async fn play(args: &Demo, folder: &Path) -> Result<(), Failure> {
    let say = Narrator::new();
    say.text("muster demo: three voters, two shards, 64 nodes of 8 h100 (512 GPUs); real processes, real kills\n")?;
    let stage = Stage::start(folder).await?;
    let client = stage.client(CALL_MAX)?;
    say.line(&format!("the cluster is ready: {}", stage.words(&client).await?))?;
    let result = act(args, folder, &say, &stage, &client).await;
    if result.is_err() {
        note(&stage.last_words());
    }
    stage.stop().await;
    result
}

/// Gives burst jobs a cool-down that is longer than the demonstration: a job that is preempted runs again, and what is shown here is that no task runs
/// twice. A new cluster reaches the feature level of its voters within a second; until then it refuses.
async fn let_burst_run(client: &Client) -> Result<(), Failure> {
    let pools = spec::pools::parse("name: default\ncool-down: 3600\n", "the demo's pool")?;
    let until = Instant::now() + CALL_MAX;
    for pool in pools {
        while let Err(refused) = fleet::put_pool(client, &pool).await {
            if Instant::now() >= until {
                return Err(refused);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

async fn act(args: &Demo, folder: &Path, say: &Narrator, stage: &Stage, client: &Client) -> Result<(), Failure> {
    let record = stage::record_in(folder);
    let tenants = spec::tenants::parse(workload::TENANTS, "the demo's tenants")?;
    say.line(&format!("tenants: {}", tenants.edits.iter().map(|t| t.path.as_str()).collect::<Vec<_>>().join(", ")))?;
    apply(client, tenants, false, false).await?;
    let_burst_run(client).await?;

    let workload = Workload::new(&record, args.jobs);
    say.line(&format!("submitting {}", workload.words()))?;
    let stream = Stream::start(client, workload.waves);

    say.line("research/vision may use 16 GPUs; it requests 16, then 16 more:")?;
    let (reason, pair) = explained(say, client, &record).await?;

    let mut evidence = Evidence { reason: Some(reason), acknowledged: pair, ..Evidence::default() };
    let (leader_back, probe) = kill_leader(say, stage, client, &stream).await?;
    evidence.leader_back = Some(leader_back);
    evidence.acknowledged.extend(probe);
    evidence.shard_back = Some(kill_shard(say, stage, client, &stream).await?);
    kill_agents(say, stage, client).await?;

    say.line("the last submissions; then all jobs run to their end")?;
    evidence.acknowledged.extend(stream.finish().await?);
    say.line(&format!("{} jobs acknowledged in all", evidence.acknowledged.len()))?;
    evidence.again = repeat_first(client, &workload.first).await?;
    evidence.jobs = drained(say, client, evidence.acknowledged.len()).await?;
    evidence.record = record::read(&record)?;
    evidence.usage = settled_usage(client, &evidence).await?;
    evidence.gpu_fault = gpu_fault::show(say, stage, client).await?;
    evidence.slices = slices::show(say, folder).await?;
    say.line(&format!("done in {:.0} s", say.elapsed().as_secs_f64()))?;
    say.text(&format!("\n{}", evidence.table()))?;
    evidence.verdict()?;
    say.text("\nall checks passed")
}

/// Two jobs of which one has to wait for its tenant's max; asks why.
async fn explained(say: &Narrator, client: &Client, record: &Path) -> Result<(Explanation, Vec<u64>), Failure> {
    let pair = workload::over_max(record);
    let ids = submit(client, &workload::request_id("pair"), now_ms(), pair).await?.job_ids;
    // They may have gone to different cells, whose shards race: either may be the one that waits.
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        for &id in &ids {
            let explanation = explain(client, id, v1::Consistency::Linearizable).await?;
            if explanation.reasons.iter().any(|reason| reason.code == "over_max") || Instant::now() > until {
                say.quote(&format!("muster explain {id}"), &explanation.text())?;
                return Ok((explanation, ids));
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Kills the leader while jobs are being submitted; how long until a new submission was acknowledged, and its ids.
async fn kill_leader(
    say: &Narrator,
    stage: &Stage,
    client: &Client,
    stream: &Stream,
) -> Result<(Duration, Vec<u64>), Failure> {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let leader = stage.leader(client).await?;
    say.line(&format!("kill -9 {}, the leader, with {} jobs acknowledged so far", leader.name, stream.acknowledged()))?;
    let killed = Instant::now();
    stage::kill(&leader, Signal::SIGKILL)?;
    let probe = workload::probe("after-leader");
    let ids = submit(client, &workload::request_id("leader"), now_ms(), vec![probe]).await?.job_ids;
    let back = killed.elapsed();
    let now = stage.leader(client).await?;
    say.line(&format!(
        "{} leads; the first submission was acknowledged {} ms after the kill",
        now.name,
        back.as_millis()
    ))?;
    Ok((back, ids))
}

/// Kills a shard while jobs wait in its cell; how long until another holder had it.
async fn kill_shard(say: &Narrator, stage: &Stage, client: &Client, stream: &Stream) -> Result<Duration, Failure> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    let cells = fleet::all_cells(client, Consistency::Linearizable).await?;
    let held = cells.iter().find_map(|cell| Some((cell.name.clone(), cell.holder.clone()?)));
    let (cell, holder) = held.ok_or_else(|| Failure::Job("no cell has a shard".to_owned()))?;
    let shard = stage.shard(&holder)?;
    say.line(&format!(
        "kill -9 {}, which has the lease of {cell}, with {} jobs acknowledged so far",
        shard.name,
        stream.acknowledged()
    ))?;
    let killed = Instant::now();
    stage::kill(&shard, Signal::SIGKILL)?;
    let new = loop {
        let cells = fleet::all_cells(client, Consistency::Stale).await?;
        let found = cells.into_iter().find(|now| now.name == cell).and_then(|now| now.holder);
        match found {
            Some(found) if found != holder => break found,
            _ if killed.elapsed() > CALL_MAX => return Err(Failure::Job(format!("no shard took over {cell}"))),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let back = killed.elapsed();
    say.line(&format!("{new} has the lease of {cell} {} ms after the kill", back.as_millis()))?;
    Ok(back)
}

/// Kills every agent while their tasks run; the tasks must not notice.
async fn kill_agents(say: &Narrator, stage: &Stage, client: &Client) -> Result<(), Failure> {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let running = count(client, &[v1::JobPhase::Running, v1::JobPhase::Starting]).await?;
    let agents = stage.roles("agent")?;
    say.line(&format!(
        "kill -9 of all {} agents, with {running} jobs on their nodes; the tasks continue",
        agents.len()
    ))?;
    for agent in &agents {
        stage::kill(agent, Signal::SIGKILL)?;
    }
    Ok(())
}

async fn count(client: &Client, phases: &[v1::JobPhase]) -> Result<usize, Failure> {
    let request = v1::ListJobsRequest {
        phases: phases.iter().map(|phase| (*phase).into()).collect(),
        page_size: 1_000,
        ..Default::default()
    };
    Ok(jobs::list(client, request, 0).await?.jobs.len())
}

/// Submits what was submitted first once more, with the same request id: nothing new may come of it.
async fn repeat_first(client: &Client, first: &(String, Vec<v1::JobSpec>)) -> Result<Vec<u64>, Failure> {
    let (request_id, specs) = first;
    Ok(submit(client, request_id, now_ms(), specs.clone()).await?.job_ids)
}

/// Waits until every job is over, and gives them all.
async fn drained(say: &Narrator, client: &Client, submitted: usize) -> Result<Vec<v1::Job>, Failure> {
    let progress = say.progress(submitted as u64);
    let until = Instant::now() + DRAIN_MAX;
    let all = v1::ListJobsRequest {
        phases: PHASES.iter().map(|(phase, _)| (*phase).into()).collect(),
        page_size: 1_000,
        ..Default::default()
    };
    loop {
        let jobs = jobs::list(client, all.clone(), 0).await?.jobs;
        let over = jobs.iter().filter(|job| is_over(job.phase())).count();
        progress.set_position(over as u64);
        if over == jobs.len() && jobs.len() >= submitted || Instant::now() > until {
            progress.finish_and_clear();
            return Ok(jobs);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Waits until the usage table has caught up with the tasks' own clocks, or shows what it has.
async fn settled_usage(client: &Client, evidence: &Evidence) -> Result<Vec<(String, f64)>, Failure> {
    let until = Instant::now() + USAGE_MAX;
    loop {
        let usage = usage_of(client, "", Consistency::Linearizable).await?;
        let used = usage.into_iter().filter(|tenant| tenant.intervals > 0);
        let usage: Vec<(String, f64)> = used.map(|tenant| (tenant.path, tenant.gpu_seconds)).collect();
        if evidence.usage_covers_record(&usage) || Instant::now() > until {
            return Ok(usage);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
