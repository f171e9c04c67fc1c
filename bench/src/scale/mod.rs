//! S8 and S9: a whole fleet against three voters: 6,250 agents, 300 teams with 5,000 users, 30,000 running and 100,000 waiting jobs.
//!
//! Every process is a real one; agents are simulated, several thousand in a process. What must stay true: what an hour costs is measured over the
//! stated seconds and multiplied, and the table says so; the measured minute has nothing in it but sessions, heartbeats and usage.

mod fill;
mod hour;
mod restart;

use crate::cluster::{Cluster, Setting, Size};
use crate::table::{Row, Table};
use anyhow::{Context, Result, ensure};
use fill::Tenants;
use muster_proto::v1;
use std::path::Path;
use std::time::{Duration, Instant};

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Simulated nodes of eight cards.
    pub nodes: u32,
    /// Jobs that wait.
    pub waiting: u32,
    /// Jobs that have ended before.
    pub finished: u32,
    /// Teams.
    pub teams: u32,
    /// Users of all teams.
    pub users: u32,
    /// Seconds of the quiet measurement.
    pub seconds: u32,
    /// Kills of one follower, and of all control nodes.
    pub rounds: u32,
    /// Sessions are spread over the control nodes, as in production; otherwise one has all of them.
    pub spread: bool,
}

/// Scheduler shards, each with a cell of its own.
const SHARDS: u32 = 2;
/// Processes that the agents share.
const AGENT_PROCESSES: u32 = 4;
/// Every agent reports usage this often.
const USAGE_PERIOD: &str = "10s";
/// All nodes have joined within this time, or the bench gives up.
const JOINED_WITHIN: Duration = Duration::from_secs(300);
/// The control node that has all sessions unless they are spread.
const SESSIONS_ON: u32 = 1;

/// Jobs that run on so many nodes: 24 on each five, whose forty cards they fill (see [`fill`]).
#[must_use]
pub fn running_on(nodes: u32) -> u32 {
    nodes / 5 * 24
}

/// Runs all phases and gives the tables.
///
/// # Errors
/// When the cluster does not start, or does not take what it is given.
pub async fn run(muster: &Path, under: &Path, options: &Options) -> Result<Vec<Table>> {
    ensure!(options.nodes >= 5 && options.nodes.is_multiple_of(5), "--nodes is {}; use a multiple of 5", options.nodes);
    ensure!(options.users >= options.teams && options.teams >= 1, "use at least one team, and a user in each");
    let nodes = options.nodes;
    let size =
        Size { voters: 3, shards: SHARDS, nodes, gpus_per_node: 8, agents: AGENT_PROCESSES, virtual_tasks: true };
    let mut setting = Setting { ready_within: JOINED_WITHIN, ..Setting::default() };
    setting.options = ["--usage-period", USAGE_PERIOD].map(str::to_owned).to_vec();
    if !options.spread {
        setting.options.extend(["--sessions-on".to_owned(), SESSIONS_ON.to_string()]);
    }
    let mut rows = Vec::new();
    let begin = Instant::now();
    let fleet = Cluster::start_with(muster, under, &size, &setting).await?;
    rows.push(Row::new(format!("start: all {nodes} agents have joined"), seconds(begin.elapsed()), "-", "-"));

    let tenants = Tenants::apply(&fleet, options.teams, options.users).await?;
    let mut numbers = fill::Numbers::default();
    let took = fill::finished(&fleet, &tenants, options.finished, &mut numbers).await?;
    rows.push(Row::new(
        format!("{} jobs run and end", options.finished),
        format!("{} ({:.0} jobs/s)", seconds(took), f64::from(options.finished) / took.as_secs_f64().max(0.001)),
        "HyperQueue 400 tasks/s",
        "-",
    ));
    let running = running_on(nodes);
    let took = fill::running(&fleet, &tenants, nodes, &mut numbers).await?;
    let what = format!("{running} jobs start on all {} GPUs", nodes * 8);
    rows.push(Row::new(what, seconds(took), "-", "-"));
    let took = fill::waiting(&fleet, &tenants, options.waiting, &mut numbers).await?;
    rows.push(Row::new(format!("{} more are accepted and wait", options.waiting), seconds(took), "-", "-"));

    let quiet = hour::measure(&fleet, Duration::from_secs(options.seconds.into())).await?;
    let restarts = restart::measure(&fleet, options.rounds, &mut numbers, &tenants).await?;
    let where_ = if options.spread { "sessions spread over the voters" } else { "all sessions on one voter" };
    let load = format!(
        "{nodes} agents, {running} running and {} waiting jobs, {} finished, {} teams, {} users",
        options.waiting, options.finished, options.teams, options.users
    );
    Ok(vec![
        Table::new(format!("Scale: {load}: how it was reached"), rows),
        Table::new(
            format!("S8: only sessions, heartbeats each second, usage each 10 s; {} s, {where_}", options.seconds),
            quiet,
        ),
        Table::new(format!("S9: kill -9 to serving again with this state, {} rounds", options.rounds), restarts),
    ])
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

/// What the cells say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fleet {
    nodes: u64,
    ready: u64,
    free: u64,
    waiting: u64,
    running: u64,
}

/// What the control node behind this channel says, linearizably.
async fn look(channel: tonic::transport::Channel) -> Result<Fleet> {
    let mut client = v1::fleet_client::FleetClient::new(channel);
    let cells = client.list_cells(v1::ListCellsRequest::default()).await?.into_inner().cells;
    let mut fleet = Fleet::default();
    for cell in cells {
        fleet.nodes += u64::from(cell.nodes);
        fleet.ready += u64::from(cell.nodes_ready);
        fleet.free += u64::from(cell.gpus_free);
        fleet.waiting += cell.waiting;
        fleet.running += cell.running;
    }
    Ok(fleet)
}

/// Looks until the fleet is as `is` says.
async fn wait_until(cluster: &Cluster, within: Duration, what: &str, is: impl Fn(&Fleet) -> bool) -> Result<Fleet> {
    let until = Instant::now() + within;
    let channel = cluster.channel_to_any()?;
    let mut last = None;
    while Instant::now() < until {
        if let Ok(fleet) = look(channel.clone()).await {
            if is(&fleet) {
                return Ok(fleet);
            }
            last = Some(fleet);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let seen = last.map_or("nothing was answered".to_owned(), |fleet| format!("{fleet:?}"));
    Err(anyhow::anyhow!("{seen}")).with_context(|| format!("{what} did not happen within {} s", within.as_secs()))
}
