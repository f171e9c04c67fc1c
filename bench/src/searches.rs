//! What plans and explanations cost everybody else: heartbeats, elections and acknowledgements, quiet and beside `muster plan` in a loop.
//!
//! The fleet is full of movable jobs with a few cards free on each node, and gangs wait for whole islands, so that every plan searches. Several
//! callers ask the leader for plans and explanations without a pause.

use crate::cluster::{self, Cluster, Size};
use crate::table::{self, Row, Table};
use anyhow::{Context, Result, ensure};
use muster_proto::v1;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Simulated nodes of eight cards.
    pub nodes: u32,
    /// Callers that ask for plans in a loop.
    pub callers: u32,
    /// Seconds of each phase.
    pub seconds: u32,
}

/// Jobs of one submission.
const BATCH: usize = 500;
/// Gangs that wait for a whole island.
const GANGS: usize = 40;
/// Between two single submissions.
const EVERY: Duration = Duration::from_millis(20);
/// The fleet is full within this time, or the bench gives up.
const FULL_WITHIN: Duration = Duration::from_secs(240);

/// What one phase found.
struct Phase {
    /// Terms that ended.
    elections: u64,
    /// Microseconds, sorted.
    acknowledged: Vec<u64>,
    failed: u64,
    plans: u64,
    refused: u64,
}

/// Runs both phases.
///
/// # Errors
/// When the cluster does not start or does not fill.
pub async fn run(muster: &Path, under: &Path, options: Options) -> Result<Vec<Table>> {
    let Options { nodes, callers, seconds } = options;
    let size = Size { voters: 3, shards: 1, nodes, gpus_per_node: 8, agents: 8, virtual_tasks: true };
    let fleet = Cluster::start(muster, under, &size).await?;
    cluster::apply_tenants(fleet.channel_to_any()?, &["bench"]).await?;
    let waiting = fill(&fleet, nodes).await?;
    let quiet = phase(&fleet, "quiet", seconds, 0, waiting).await?;
    let beside = phase(&fleet, "beside", seconds, callers, waiting).await?;
    let rows = vec![
        row(format!("{nodes} nodes, no searches"), &quiet),
        row(format!("{nodes} nodes, {callers} callers plan and explain in a loop"), &beside),
    ];
    Ok(vec![Table::new("Delay of submissions and heartbeats by searches", rows)])
}

fn row(what: String, phase: &Phase) -> Row {
    let at = |share| table::time(table::percentile(&phase.acknowledged, share));
    let longest = table::time(phase.acknowledged.last().copied().unwrap_or(0));
    let Phase { elections, failed, plans, refused, .. } = phase;
    let measured = format!(
        "{elections} elections; {} acknowledged, p50 {}, p99 {}, longest {longest}, {failed} failed; {plans} plans, {refused} refused",
        phase.acknowledged.len(),
        at(0.5),
        at(0.99)
    );
    Row::new(what, measured, "none published", "0 elections")
}

/// Fills the fleet with jobs that may move, five cards of eight on each node, and gives one of the gangs that wait then.
async fn fill(fleet: &Cluster, nodes: u32) -> Result<u64> {
    let mut jobs = v1::jobs_client::JobsClient::new(fleet.channel_to_any()?);
    let movable = cluster::with_cards(cluster::small_job("bench", "movable".to_owned(), &["true"]), 5);
    let mut movable = cluster::for_ms(movable, 36_000_000);
    movable.movable = Some(v1::Movable { checkpoint_every_s: Some(600), restart_s: Some(60) });
    for (number, batch) in vec![movable; nodes as usize].chunks(BATCH).enumerate() {
        submit(&mut jobs, format!("fill-{number}"), batch.to_vec()).await?;
    }
    let mut fleet_client = v1::fleet_client::FleetClient::new(fleet.channel_to_any()?);
    let until = Instant::now() + FULL_WITHIN;
    loop {
        let cells = fleet_client.list_cells(v1::ListCellsRequest::default()).await?.into_inner().cells;
        let running: u64 = cells.iter().map(|cell| cell.running).sum();
        if running >= u64::from(nodes) {
            break;
        }
        ensure!(Instant::now() < until, "{running} of {nodes} jobs run: the fleet does not fill");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let mut gang = cluster::with_cards(cluster::small_job("bench", "gang".to_owned(), &["true"]), 8);
    gang.topology = Some(v1::Topology { required: "island".to_owned(), ..v1::Topology::default() });
    let gangs = submit(&mut jobs, "gangs".to_owned(), vec![gang; GANGS]).await?;
    gangs.first().copied().context("gangs were accepted")
}

async fn submit(
    jobs: &mut v1::jobs_client::JobsClient<Channel>,
    request_id: String,
    specs: Vec<v1::JobSpec>,
) -> Result<Vec<u64>> {
    Ok(jobs.submit(cluster::submission(request_id, specs)).await?.into_inner().job_ids)
}

async fn phase(fleet: &Cluster, name: &str, seconds: u32, callers: u32, gang: u64) -> Result<Phase> {
    let (leader, _) = fleet.leader().await?.context("no leader")?;
    let channel = cluster::channel(&fleet.dev()?.endpoints[leader])?;
    let term = term(&channel).await?;
    let over = Arc::new(AtomicBool::new(false));
    let (plans, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let asking: Vec<_> = (0..callers)
        .map(|_| tokio::spawn(ask(channel.clone(), gang, over.clone(), plans.clone(), refused.clone())))
        .collect();
    let mut calls = tokio::task::JoinSet::new();
    let mut ticks = tokio::time::interval(EVERY);
    let until = Instant::now() + Duration::from_secs(seconds.into());
    let mut number = 0;
    while Instant::now() < until {
        ticks.tick().await;
        number += 1;
        let (channel, id) = (channel.clone(), format!("searches-{name}-{number}"));
        calls.spawn(async move {
            let job = cluster::small_job("bench", id.clone(), &["true"]);
            let sent = Instant::now();
            let mut jobs = v1::jobs_client::JobsClient::new(channel);
            let done = submit(&mut jobs, id, vec![job]).await;
            done.is_ok().then(|| sent.elapsed().as_micros() as u64)
        });
    }
    let (mut acknowledged, mut failed) = (Vec::new(), 0);
    while let Some(done) = calls.join_next().await {
        match done? {
            Some(time) => acknowledged.push(time),
            None => failed += 1,
        }
    }
    over.store(true, Ordering::Relaxed);
    for one in asking {
        one.await?;
    }
    acknowledged.sort_unstable();
    let elections = self::term(&channel).await?.saturating_sub(term);
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    Ok(Phase { elections, acknowledged, failed, plans: count(&plans), refused: count(&refused) })
}

/// Asks for plans and explanations by turns.
async fn ask(channel: Channel, gang: u64, over: Arc<AtomicBool>, plans: Arc<AtomicU64>, refused: Arc<AtomicU64>) {
    let mut fleet = v1::fleet_client::FleetClient::new(channel.clone());
    let mut jobs = v1::jobs_client::JobsClient::new(channel);
    while !over.load(Ordering::Relaxed) {
        let request = v1::PlanMovesRequest { share_percent: Some(100), ..v1::PlanMovesRequest::default() };
        let planned = fleet.plan_moves(request).await.is_ok();
        let explained = jobs.explain(v1::ExplainRequest { job_id: gang, consistency: 0 }).await.is_ok();
        for ok in [planned, explained] {
            if ok { &plans } else { &refused }.fetch_add(1, Ordering::Relaxed);
        }
        if !planned || !explained {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn term(channel: &Channel) -> Result<u64> {
    let mut admin = v1::admin_client::AdminClient::new(channel.clone());
    Ok(admin.raft_status(v1::RaftStatusRequest {}).await?.into_inner().term)
}
