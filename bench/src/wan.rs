//! Five voters in three regions, two, two and one, as real processes with relays between them that delay (`distance.rs`): what a commit
//! takes, whether leaders change without need under load, and what the loss of the leader's region costs.

use crate::cluster;
use crate::distance::{Map, relay};
use crate::table::{self, Row, Table};
use anyhow::{Context, Result};
use muster_proto::v1;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tonic::transport::Channel;

/// The region of each voter.
const REGIONS: [usize; 5] = [0, 0, 1, 1, 2];
/// A leader is waited for so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// One call may take so long.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// In a failover, one attempt before the next is sent elsewhere, beside the round trips.
const ATTEMPT: Duration = Duration::from_millis(200);
/// A large call of about 1 MB so often, of so many jobs with so much environment each.
const LARGE_EVERY: Duration = Duration::from_secs(5);
const LARGE_JOBS: usize = 33;
const LARGE_ENV_BYTES: usize = 30_000;
/// How many tenants take turns: one may have 10,000 waiting jobs.
const TENANTS: u64 = 100;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Round trips between regions, in milliseconds.
    pub round_trips_ms: Vec<u64>,
    /// Small submissions a second.
    pub rate_per_s: u64,
    /// Seconds of load.
    pub seconds: u64,
    /// Losses of the leader's region.
    pub rounds: u32,
}

/// Runs all round trips and gives the table.
pub async fn run(muster: &Path, under: &Path, options: &Options) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    for &round_trip_ms in &options.round_trips_ms {
        let mut fleet = Fleet::start(muster, under, round_trip_ms).await?;
        rows.push(load(&fleet, options).await?);
        if options.rounds > 0 {
            rows.push(losses(&mut fleet, options.rounds).await?);
        }
    }
    Ok(vec![Table::new("Five voters in three regions (2 + 2 + 1)", rows)])
}

/// The voters and what delays between them.
struct Fleet {
    muster: std::path::PathBuf,
    round_trip_ms: u64,
    voters: Vec<Voter>,
    map: Map,
    relays: Vec<JoinHandle<()>>,
    data: tempfile::TempDir,
}

struct Voter {
    child: Option<Child>,
    /// Where it listens; others reach it at the address of its relay.
    listens: SocketAddr,
    relay: SocketAddr,
}

impl Fleet {
    async fn start(muster: &Path, under: &Path, round_trip_ms: u64) -> Result<Fleet> {
        let mut fleet = Fleet {
            muster: muster.to_owned(),
            round_trip_ms,
            voters: Vec::new(),
            map: Map::default(),
            relays: Vec::new(),
            data: tempfile::tempdir_in(under)?,
        };
        for region in REGIONS {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let relay_at = listener.local_addr()?;
            let listens = SocketAddr::from(([127, 0, 0, 1], cluster::free_port()?));
            let round_trip = Duration::from_millis(round_trip_ms);
            fleet.relays.push(tokio::spawn(relay(listener, listens, region, round_trip, fleet.map.clone())));
            fleet.voters.push(Voter { child: None, listens, relay: relay_at });
        }
        for at in 0..REGIONS.len() {
            fleet.start_voter(at)?;
        }
        let leader = fleet.leader().await?;
        let tenants: Vec<String> = (0..TENANTS).map(tenant).collect();
        cluster::apply_tenants(fleet.channel(leader)?, &tenants).await?;
        Ok(fleet)
    }

    fn start_voter(&mut self, at: usize) -> Result<()> {
        let id = at + 1;
        let log =
            std::fs::File::options().create(true).append(true).open(self.data.path().join(format!("{id}.log")))?;
        let voter = &self.voters[at];
        let mut command = Command::new(&self.muster);
        command.arg("control").args(["--id", &id.to_string(), "--wan-rtt", &self.round_trip_ms.to_string()]);
        command.arg("--data").arg(self.data.path().join(format!("voter{id}")));
        command.args(["--listen", &voter.listens.to_string(), "--advertise", &voter.relay.to_string()]);
        for (other, voter) in self.voters.iter().enumerate() {
            command.args(["--bootstrap", &format!("{}={}", other + 1, voter.relay)]);
        }
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        self.map.set(child.id(), REGIONS[at]);
        self.voters[at].child = Some(child);
        Ok(())
    }

    fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.voters[at].child.take() {
            // Gone already is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn channel(&self, at: usize) -> Result<Channel> {
        cluster::channel(&self.voters[at].listens.to_string())
    }

    /// What the voters that answer say of themselves.
    async fn statuses(&self) -> Vec<v1::RaftStatusReply> {
        let mut found = Vec::new();
        for voter in &self.voters {
            found.extend(cluster::raft_status(&voter.listens.to_string()).await);
        }
        found
    }

    /// The voter that leads, as it says itself: of several, the one of the newest term.
    async fn leader(&self) -> Result<usize> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let leading = self.statuses().await.into_iter().filter(|status| status.leader == Some(status.id));
            if let Some(leader) = leading.max_by_key(|status| status.term) {
                return Ok(leader.id as usize - 1);
            }
            sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("no leader in {} s; see {}", PATIENCE.as_secs(), self.data.path().display())
    }

    async fn term(&self) -> u64 {
        self.statuses().await.into_iter().map(|status| status.term).max().unwrap_or(0)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        (0..self.voters.len()).for_each(|at| self.kill(at));
        self.relays.iter().for_each(JoinHandle::abort);
    }
}

fn tenant(number: u64) -> String {
    format!("wan-{}", number % TENANTS)
}

fn request(id: String, number: u64, jobs: usize, env_bytes: usize) -> v1::SubmitRequest {
    let mut job = cluster::small_job(&tenant(number), id.clone(), &["true"]);
    if env_bytes > 0 {
        job.env.insert("LARGE".to_owned(), "x".repeat(env_bytes));
    }
    cluster::submission(id, vec![job; jobs])
}

async fn submit(channel: Channel, request: v1::SubmitRequest) -> Option<u64> {
    let began = Instant::now();
    let mut jobs = v1::jobs_client::JobsClient::new(channel);
    matches!(timeout(ANSWER_MAX, jobs.submit(request)).await, Ok(Ok(_))).then(|| began.elapsed().as_micros() as u64)
}

async fn load(fleet: &Fleet, options: &Options) -> Result<Row> {
    // Connections are warm, and nobody is new any more.
    sleep(Duration::from_secs(3)).await;
    let channel = fleet.channel(fleet.leader().await?)?;
    let (term, end) = (fleet.term().await, Instant::now() + Duration::from_secs(options.seconds));
    let mut small = JoinSet::new();
    let large = tokio::spawn({
        let channel = channel.clone();
        async move {
            let mut times = Vec::new();
            for number in 0.. {
                sleep(LARGE_EVERY).await;
                if Instant::now() >= end {
                    break;
                }
                let request = request(format!("wan-large-{number}"), number, LARGE_JOBS, LARGE_ENV_BYTES);
                times.push(submit(channel.clone(), request).await);
            }
            times
        }
    });
    let mut ticks = interval(Duration::from_micros(1_000_000 / options.rate_per_s.max(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0.. {
        ticks.tick().await;
        if Instant::now() >= end {
            break;
        }
        small.spawn(submit(channel.clone(), request(format!("wan-{number}"), number, 1, 0)));
    }
    let small = small.join_all().await;
    let large = large.await.context("the large calls")?;
    let terms = fleet.term().await.saturating_sub(term);
    let mut times: Vec<u64> = small.iter().copied().flatten().collect();
    times.sort_unstable();
    let mut large_times: Vec<u64> = large.iter().copied().flatten().collect();
    large_times.sort_unstable();
    let at = |share| table::time(table::percentile(&times, share));
    let measured = format!(
        "{} acknowledged, {} not; p50 {}, p90 {}, p99 {}; {} of {} large calls, longest {}; {terms} new terms",
        times.len(),
        small.len() - times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        large_times.len(),
        large.len(),
        table::time(table::percentile(&large_times, 1.0)),
    );
    let what = format!(
        "{} ms between regions: {} submissions/s and 1 MB each {} s, {} s",
        fleet.round_trip_ms,
        options.rate_per_s,
        LARGE_EVERY.as_secs(),
        options.seconds
    );
    Ok(Row::new(what, measured, "-", "p50 <= round trip + 10 ms; 0 new terms"))
}

async fn losses(fleet: &mut Fleet, rounds: u32) -> Result<Row> {
    let (mut times, mut terms) = (Vec::new(), 0);
    for round in 0..rounds {
        let leader = fleet.leader().await?;
        // Whoever came back has caught up.
        sleep(Duration::from_secs(4)).await;
        let term = fleet.term().await;
        let lost: Vec<usize> = (0..REGIONS.len()).filter(|at| REGIONS[*at] == REGIONS[leader]).collect();
        let left: Vec<usize> = (0..REGIONS.len()).filter(|at| !lost.contains(at)).collect();
        lost.iter().for_each(|at| fleet.kill(*at));
        let killed = Instant::now();
        let within = ATTEMPT + Duration::from_millis(2 * fleet.round_trip_ms);
        for number in 0.. {
            let channel = fleet.channel(left[number % left.len()])?;
            let request = request(format!("wan-loss-{round}-{number}"), number as u64, 1, 0);
            if matches!(timeout(within, submit(channel, request)).await, Ok(Some(_))) || killed.elapsed() > PATIENCE {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        times.push(killed.elapsed().as_micros() as u64);
        terms += fleet.term().await.saturating_sub(term);
        for at in lost {
            fleet.start_voter(at)?;
        }
    }
    times.sort_unstable();
    let at = |share| table::time(table::percentile(&times, share));
    let measured = format!("median {}, p90 {}, longest {}; {terms} new terms", at(0.5), at(0.9), at(1.0));
    let what = format!("{} ms: the leader's region is lost, {rounds} rounds", fleet.round_trip_ms);
    Ok(Row::new(what, measured, "-", "1.7 s at 40 ms, 2.6 s at 80 ms, 4.3 s at 150 ms"))
}
