//! The whole system: three control nodes, two shards, four agents with pretended tasks, and clients on the public API, under faults.
//!
//! What must stay true of a run: after the last fault everything that was acknowledged ends within [`HEALING_MAX`] (where people log in, after the
//! identity provider is back), and every law holds over the whole record.

mod account;
mod client;
mod closing;
mod enroller;
mod exporter;
mod flawed;
mod identities;
mod operator;
mod provider;
mod recorder;
pub mod restored;
mod servers;

use crate::history::History;
use crate::nemesis::{Fleet, Rage, rage};
use crate::{Outcome, laws};
use client::Client;
use exporter::Exporter;
use muster_model::ids::JobId;
use muster_runtime::Chance;
use muster_runtime::sim::{LinkQuality, SimWorld};
use provider::{NO_LOGIN_MAX, Provider};
use servers::{CLIENTS, Servers};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How often what replicas published is taken down.
const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// How many of those go by between two looks at the whole state.
const DRAINS_PER_SAMPLE: u32 = 60;
/// How long after the last fault everything acknowledged has to have ended: the jobs of a run need about a minute of the four nodes, with
/// all their retries and the fences that are still to pass, and gangs that need a whole cell run one after another, some of them three
/// times 30 s long.
const HEALING_MAX: Duration = Duration::from_secs(480);
/// How long the questions at the end of a run may take.
const ASKING_MAX: Duration = Duration::from_secs(60);
/// Longer than a period of usage and the linger of a cut: what ended has been cut by then.
const USAGE_REST: Duration = Duration::from_secs(8);

/// A bug that a run is made with, so that the checkers can be seen to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Disks of control nodes say that they have synced and have not.
    LyingDisks,
    /// Tasks run without a fence, so that they outlive their node's.
    NoFences,
    /// A second host of a name has the first one's identity, as if its folder had been copied and its host were the same.
    ForgedAgents,
    /// An agent whose folder was deleted leaves alone what still runs on its host.
    StraysLive,
}

/// What a run is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Faults.
    Faults,
    /// Faults and a bug, in an open cluster.
    Planted(Planted),
    /// Nothing but what the identity provider does.
    Calm,
}

/// Runs seed `seed`.
#[must_use]
pub fn run_seed(seed: u64, trace: bool) -> Outcome {
    run(seed, trace, Kind::Faults)
}

/// Runs seed `seed` without faults and operators: where the cluster is closed (see [`is_closed`]) the identity provider alone is away.
#[must_use]
pub fn run_calm(seed: u64, trace: bool) -> Outcome {
    run(seed, trace, Kind::Calm)
}

/// Whether the cluster of a run asks who calls, and people log in: in every second run with certificates.
#[must_use]
pub fn is_closed(seed: u64) -> bool {
    seed % 4 == 1
}

/// Runs seed `seed` with a planted bug.
#[must_use]
pub fn run_planted(seed: u64, planted: Planted) -> Outcome {
    run(seed, false, Kind::Planted(planted))
}

fn run(seed: u64, trace: bool, kind: Kind) -> Outcome {
    muster_runtime::sim::run(seed, move |world| async move {
        if trace {
            world.keep_trace();
        }
        let (history, healed) = play(&world, kind).await;
        let mut violations = laws::check(&history);
        match healed {
            Ok(()) => violations.extend(laws::check_rest(&history)),
            Err(what) => violations.push(laws::Violation { law: "healing", what }),
        }
        Outcome::of(&world, violations, &history)
    })
}

async fn play(world: &SimWorld, kind: Kind) -> (History, Result<(), String>) {
    let chance = world.chance().clone();
    let snapshot_every = if chance.between(0, 2) == 0 { 40 } else { 10_000 };
    let planted = match kind {
        Kind::Planted(planted) => Some(planted),
        Kind::Faults | Kind::Calm => None,
    };
    let closed = is_closed(world.seed()) && planted.is_none();
    let provider = closed.then(|| Provider::new(world));
    let servers = Servers::new(world.clone(), snapshot_every, planted, provider);
    let clients: Vec<Client> = CLIENTS.iter().map(|name| Client::new(&servers, name, &chance)).collect();
    let acting = act(world, &servers, &clients, &chance, kind);
    tokio::pin!(acting);
    let mut drains = 0;
    let healed = loop {
        tokio::select! {
            biased;
            healed = &mut acting => break healed,
            () = sleep(DRAIN_EVERY) => {
                drains += 1;
                servers.drain(drains % DRAINS_PER_SAMPLE == 0);
            }
        }
    };
    servers.drain(true);
    let runs = servers.runs();
    let mut history = std::mem::take(&mut *servers.history());
    history.runs = runs;
    (history, healed)
}

/// The run itself: start, faults under load, healing.
async fn act(
    world: &SimWorld,
    servers: &Servers,
    clients: &[Client],
    chance: &Chance,
    kind: Kind,
) -> Result<(), String> {
    for host in servers.voters() {
        servers.start(&host).await;
    }
    servers.bootstrap().await?;
    closing::close(servers, clients).await?;
    for host in servers.others() {
        servers.start(&host).await;
    }
    if kind == Kind::Planted(Planted::LyingDisks) {
        servers.voters().iter().for_each(|host| world.plant_lying_disk(host));
    }
    let working = async {
        timeout(Duration::from_secs(60), clients[0].apply_tenants())
            .await
            .map_err(|_| "tenants could not be applied")?;
        let end = Instant::now() + Duration::from_millis(chance.between(10_000, 45_000));
        tokio::select! {
            biased;
            worked = work(servers, clients, chance, (kind, end)) => worked,
            () = provide(servers, end) => Ok(()),
        }
    };
    tokio::select! {
        biased;
        worked = working => worked,
        _ = futures::future::join_all(clients.iter().map(Client::stay_logged_in)) => Ok(()),
    }
}

/// The identity provider's life, for ever.
async fn provide(servers: &Servers, end: Instant) {
    if let Some(provider) = &servers.provider {
        provider.come_and_go(end).await;
    }
    std::future::pending().await
}

/// Faults under load until `end`, healing, and questions about what came of it.
async fn work(
    servers: &Servers,
    clients: &[Client],
    chance: &Chance,
    (kind, end): (Kind, Instant),
) -> Result<(), String> {
    // For a while nobody may be able to log in, and with a planted bug there may be nothing to wait for.
    let no_login_max = if servers.provider.is_some() { NO_LOGIN_MAX } else { Duration::ZERO };
    let healed_by = end + no_login_max + if matches!(kind, Kind::Planted(_)) { HEALING_MAX / 4 } else { HEALING_MAX };
    let how = Rage { rest_ms_max: 3_500, fault_ms_max: 6_000, isolation_ms_max: 26_000 };
    let submitting =
        futures::future::join_all(clients.iter().map(|client| client.submit_until(servers, end, healed_by)));
    let working = async {
        let raging = async {
            if kind != Kind::Calm {
                rage(&servers.world, servers, chance, how, end).await;
            }
        };
        tokio::join!(raging, submitting);
        servers.world.set_links(LinkQuality::GOOD);
        rest(servers, healed_by).await
    };
    let operating = async {
        if kind == Kind::Calm {
            return std::future::pending().await;
        }
        tokio::join!(
            operator::operate(&clients[clients.len() - 1], servers, end),
            enroller::operate(&clients[1], servers, end)
        );
    };
    // Watches go on until all is at rest.
    let exporter = Exporter::new(&clients[0], servers);
    let watching = futures::future::join_all(clients.iter().map(|client| client.watch(servers)));
    tokio::select! {
        biased;
        rested = working => rested?,
        _ = watching => {}
        () = exporter.follow(servers) => {}
        () = operating => {}
    }
    let asked_by = |now: Instant| now + no_login_max + ASKING_MAX;
    collect(servers, &clients[0], asked_by(Instant::now())).await;
    let exported = exporter.finish(servers, asked_by(Instant::now())).await;
    if exported { Ok(()) } else { Err("the event log could not be exported to its end".to_owned()) }
}

/// Waits until nothing is left to do, and stays so for long enough that usage has been cut and counted.
async fn rest(servers: &Servers, by: Instant) -> Result<(), String> {
    let mut since: Option<Instant> = None;
    let mut last = String::new();
    while Instant::now() < by {
        match servers.unrest() {
            None if since.is_some_and(|since| since.elapsed() > USAGE_REST) => return answered(servers),
            None => drop(since.get_or_insert_with(Instant::now)),
            Some(unrest) => {
                since = None;
                last = unrest;
            }
        }
        sleep(Duration::from_millis(250)).await;
    }
    Err(format!("not at rest so long after the last fault: {last}"))
}

fn answered(servers: &Servers) -> Result<(), String> {
    let history = servers.history();
    let open = history.submissions.iter().filter(|one| one.acknowledged.is_empty() && one.refused.is_none());
    let open: Vec<&str> = open.map(|one| one.request_id.as_str()).collect();
    if open.is_empty() { Ok(()) } else { Err(format!("never answered: {open:?}")) }
}

/// Asks for every acknowledged job.
async fn collect(servers: &Servers, client: &Client, by: Instant) {
    let acknowledged: Vec<JobId> = servers
        .history()
        .submissions
        .iter()
        .flat_map(|one| one.acknowledged.first().cloned().unwrap_or_default())
        .collect();
    for id in acknowledged {
        if let Some(job) = client.get(id, by).await {
            servers.history().finished.insert(id, job);
        }
    }
}
