//! `muster plan` and explanations in a loop beside elections, heartbeats and submissions, on a fleet where every plan has to search.

use super::words;
use crate::client::{Load, TENANT, job, make_tenant, now_ms};
use crate::cluster::{Cluster, STANDSTILL, Setup, channel};
use crate::judge::judge;
use crate::lab::Lab;
use crate::report::Findings;
use anyhow::{Context, Result, ensure};
use muster_proto::v1;
use muster_proto::v1::fleet_client::FleetClient;
use muster_proto::v1::jobs_client::JobsClient;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Nodes of eight cards, of which jobs that may move hold five: every gang of whole islands needs a search.
const NODES: u32 = 96;
/// Gangs that wait.
const GANGS: usize = 20;
/// Who asks without a pause.
const CALLERS: usize = 4;
/// How long one plan may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    let time = lab.measure(12, 5);
    let mut cluster = Cluster::start(lab, "searches", &Setup::default()).await?;
    make_tenant(&cluster.endpoints()).await?;
    let gang = fill(&mut cluster).await?;
    // What the clients submit wants no cards: it takes part in no search, and runs.
    let load = Load::start_where(&cluster.endpoints(), true).await?;
    load.book.more(20, STANDSTILL).await?;
    let leader = cluster.leader_within(STANDSTILL).await?;
    let (quiet, term) = (Instant::now(), cluster.term().await);
    sleep(Duration::from_secs(2)).await;
    let answered = Arc::new(AtomicU64::new(0));
    let asking: Vec<_> = (0..CALLERS)
        .map(|_| Ok(tokio::spawn(ask(channel(&cluster.endpoint(leader))?, gang, Arc::clone(&answered)))))
        .collect::<Result<_>>()?;
    let began = Instant::now();
    sleep(time).await;
    let ended = Instant::now();
    asking.iter().for_each(|caller| caller.abort());
    load.book.more(20, STANDSTILL).await?;
    let terms = cluster.term().await.saturating_sub(term);
    let answered = answered.load(Ordering::Relaxed);
    let mut findings = Findings::of(format!(
        "{CALLERS} callers plan and explain in a loop for {} s, {NODES} nodes of 8 cards",
        time.as_secs()
    ));
    findings.see(format!("{answered} plans and explanations, {terms} terms begun"));
    findings.see(format!(
        "acknowledgements: {:.0}/s before, {:.0}/s meanwhile, longest without {}",
        load.book.rate(quiet, began),
        load.book.rate(began, ended),
        words(load.book.longest_gap(began, ended))
    ));
    findings.must(answered > 0, || "no plan was answered: the experiment shows nothing".to_owned());
    findings.must(load.book.rate(began, ended) > 0.0, || "nothing was acknowledged beside plans".to_owned());
    let book = load.stop().await;
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}

/// Starts a shard and simulated nodes, fills them, and gives one of the gangs that wait then.
async fn fill(cluster: &mut Cluster) -> Result<u64> {
    let spec = cluster.folder().join("node.yaml");
    std::fs::write(&spec, "name: node\nmodel: h100\ngpus: 8\ncpus: 128\nmemory: 2Ti\n")?;
    let (data, spec) = (cluster.folder().join("nodes").display().to_string(), spec.display().to_string());
    let nodes = NODES.to_string();
    cluster.start_role(None, "shard", &["shard", "--name", "shard"])?;
    let words = ["node", "--virtual-tasks", "--data", &data, "--spec", &spec, "--simulate", &nodes, "--total", &nodes];
    cluster.start_role(None, "agent", &words)?;
    let leader = cluster.leader_within(STANDSTILL).await?;
    let mut jobs = JobsClient::new(channel(&cluster.endpoint(leader))?);
    let mut movable = with_cards(job("movable"), 5);
    movable.env.insert("MUSTER_SIM_RUN_MS".to_owned(), "36000000".to_owned());
    movable.movable = Some(v1::Movable { checkpoint_every_s: Some(600), restart_s: Some(60) });
    submit(&mut jobs, "fill", vec![movable; NODES as usize]).await?;
    let mut fleet = FleetClient::new(channel(&cluster.endpoint(leader))?);
    let until = Instant::now() + STANDSTILL;
    loop {
        let cells = fleet.list_cells(v1::ListCellsRequest::default()).await?.into_inner().cells;
        let running: u64 = cells.iter().map(|cell| cell.running).sum();
        if running >= u64::from(NODES) {
            break;
        }
        ensure!(Instant::now() < until, "{running} of {NODES} jobs run: the fleet does not fill");
        sleep(Duration::from_millis(200)).await;
    }
    let mut gang = with_cards(job("gang"), 8);
    gang.topology = Some(v1::Topology { required: "island".to_owned(), ..v1::Topology::default() });
    submit(&mut jobs, "gangs", vec![gang; GANGS]).await?.first().copied().context("gangs were accepted")
}

fn with_cards(mut job: v1::JobSpec, count: u32) -> v1::JobSpec {
    let kind = Some(v1::device_request::Kind::Whole(v1::WholeGpus { count }));
    if let Some(request) = &mut job.request {
        request.devices = Some(v1::DeviceRequest { kind, models: Vec::new() });
    }
    job
}

async fn submit(
    jobs: &mut JobsClient<tonic::transport::Channel>,
    name: &str,
    specs: Vec<v1::JobSpec>,
) -> Result<Vec<u64>> {
    let call = v1::SubmitRequest { request_id: format!("{TENANT}-{name}"), issued_ms: Some(now_ms()), jobs: specs };
    Ok(jobs.submit(call).await.with_context(|| format!("submitting {name}"))?.into_inner().job_ids)
}

/// Asks for plans and explanations by turns, for ever.
async fn ask(to: tonic::transport::Channel, gang: u64, answered: Arc<AtomicU64>) {
    let mut fleet = FleetClient::new(to.clone());
    let mut jobs = JobsClient::new(to);
    loop {
        let plan = v1::PlanMovesRequest { share_percent: Some(100), ..v1::PlanMovesRequest::default() };
        let planned = matches!(timeout(ANSWER_MAX, fleet.plan_moves(plan)).await, Ok(Ok(_)));
        let explain = v1::ExplainRequest { job_id: gang, ..v1::ExplainRequest::default() };
        let explained = matches!(timeout(ANSWER_MAX, jobs.explain(explain)).await, Ok(Ok(_)));
        answered.fetch_add(u64::from(planned) + u64::from(explained), Ordering::Relaxed);
        if !planned || !explained {
            // Refused because others search: searches are bounded.
            sleep(Duration::from_millis(50)).await;
        }
    }
}
