//! The whole system: three control nodes, two shards, four agents with pretended tasks, and clients on the public API, under faults.
//!
//! What must stay true of a run: after the last fault everything that was acknowledged ends within [`HEALING_MAX`], and every law
//! holds over the whole record.

mod client;
mod enroller;
mod exporter;
mod flawed;
mod identities;
mod operator;
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

/// Runs seed `seed`.
#[must_use]
pub fn run_seed(seed: u64, trace: bool) -> Outcome {
    run(seed, trace, None)
}

/// Runs seed `seed` with a planted bug.
#[must_use]
pub fn run_planted(seed: u64, planted: Planted) -> Outcome {
    run(seed, false, Some(planted))
}

fn run(seed: u64, trace: bool, planted: Option<Planted>) -> Outcome {
    muster_runtime::sim::run(seed, move |world| async move {
        if trace {
            world.keep_trace();
        }
        let (history, healed) = play(&world, planted).await;
        let mut violations = laws::check(&history);
        match healed {
            Ok(()) => violations.extend(laws::check_rest(&history)),
            Err(what) => violations.push(laws::Violation { law: "healing", what }),
        }
        Outcome::of(&world, violations, &history)
    })
}

async fn play(world: &SimWorld, planted: Option<Planted>) -> (History, Result<(), String>) {
    let chance = world.chance().clone();
    let snapshot_every = if chance.between(0, 2) == 0 { 40 } else { 10_000 };
    let servers = Servers::new(world.clone(), snapshot_every, planted);
    let clients = CLIENTS.iter().map(|name| {
        let host = world.boot(name);
        servers.identities.introduce(&host);
        Client { host, chance: Chance::seeded(chance.u64()), expect: servers.identities.expect() }
    });
    let clients: Vec<Client> = clients.collect();
    let acting = act(world, &servers, &clients, &chance, planted);
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
    planted: Option<Planted>,
) -> Result<(), String> {
    for host in servers.voters() {
        servers.start(&host).await;
    }
    servers.bootstrap().await?;
    for host in servers.others() {
        servers.start(&host).await;
    }
    if planted == Some(Planted::LyingDisks) {
        servers.voters().iter().for_each(|host| world.plant_lying_disk(host));
    }
    timeout(Duration::from_secs(60), clients[0].apply_tenants()).await.map_err(|_| "tenants could not be applied")?;
    let end = Instant::now() + Duration::from_millis(chance.between(10_000, 45_000));
    // With a planted bug there may be nothing to wait for.
    let healed_by = end + if planted.is_some() { HEALING_MAX / 4 } else { HEALING_MAX };
    let how = Rage { rest_ms_max: 3_500, fault_ms_max: 6_000, isolation_ms_max: 26_000 };
    let submitting =
        futures::future::join_all(clients.iter().map(|client| client.submit_until(servers, end, healed_by)));
    let working = async {
        tokio::join!(rage(world, servers, chance, how, end), submitting);
        world.set_links(LinkQuality::GOOD);
        rest(servers, healed_by).await
    };
    // Watches go on until all is at rest.
    let exporter = Exporter::new(&clients[0], servers);
    let watching = futures::future::join_all(clients.iter().map(|client| client.watch(servers)));
    tokio::select! {
        biased;
        rested = working => rested?,
        _ = watching => {}
        () = exporter.follow(servers) => {}
        () = operator::operate(&clients[clients.len() - 1], servers, end) => {}
        () = enroller::operate(&clients[1], servers, end) => {}
    }
    collect(servers, &clients[0], Instant::now() + Duration::from_secs(60)).await;
    let exported = exporter.finish(servers, Instant::now() + Duration::from_secs(60)).await;
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
    Err(format!("not at rest {HEALING_MAX:?} after the last fault: {last}"))
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
