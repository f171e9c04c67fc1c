//! The leader goes, again and again, and nothing else: how long until the next write is acknowledged, and how many terms it took.

use super::ANSWER_MAX;
use super::cluster::{Cluster, Settings};
use crate::nemesis::Fleet;
use muster_control_core::Command;
use muster_runtime::sim::SimWorld;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long one attempt of a write may take before the next is sent to another voter.
const ATTEMPT: Duration = Duration::from_millis(100);
/// A failover that takes longer counts as this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// How the leader goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its process ends: its host refuses connections.
    Process,
    /// Its host goes: what is sent to it is never answered.
    Host,
}

/// One failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failover {
    /// Until the next acknowledged write.
    pub took: Duration,
    /// Terms begun.
    pub terms: u64,
}

/// Loses the leader `rounds` times in the run of `seed`.
#[must_use]
pub fn run(seed: u64, loss: Loss, rounds: u32) -> Vec<Failover> {
    muster_runtime::sim::run(seed, move |world| async move {
        let cluster = started(&world, Settings::USUAL).await;
        let mut found = Vec::new();
        for _ in 0..rounds {
            found.push(lose_leader(&cluster, loss).await);
        }
        found
    })
}

/// A cluster that has acknowledged something.
pub(super) async fn started(world: &SimWorld, settings: Settings) -> Cluster {
    let cluster = Cluster::new(world.clone(), settings);
    for name in cluster.voters() {
        cluster.start(&name).await;
    }
    cluster.bootstrap().await.expect("a leader on good links");
    assert!(super::prepare(&cluster).await, "the first commands are answered");
    cluster
}

async fn lose_leader(cluster: &Cluster, loss: Loss) -> Failover {
    let world = cluster.world();
    // All voters keep up, and heartbeats and the loss do not fall into step.
    sleep(Duration::from_millis(1_500 + world.chance().between(0, 300))).await;
    let leader = cluster.leader().expect("somebody leads");
    let others: Vec<String> = cluster.voters().into_iter().filter(|name| *name != leader).collect();
    let term = cluster.term();
    if loss == Loss::Host {
        world.partition([leader.as_str()], others.iter().map(String::as_str));
    }
    let lost = Instant::now();
    cluster.crash(&leader).await;
    let mut at = world.chance().between(0, others.len() as u64) as usize;
    while lost.elapsed() < PATIENCE {
        at = (at + 1) % others.len();
        let voter = cluster.voters().iter().position(|name| *name == others[at]).unwrap_or(0);
        if let Some(Ok(_)) = cluster.propose(voter, vec![Command::Sweep], ATTEMPT).await {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    let took = lost.elapsed();
    let terms = cluster.term() - term;
    world.mend_all();
    cluster.start(&leader).await;
    let all_up = async {
        while !cluster.keeps_up() {
            sleep(Duration::from_millis(50)).await
        }
    };
    tokio::time::timeout(ANSWER_MAX * 5, all_up).await.expect("all voters keep up again");
    Failover { took, terms }
}

/// What is at most so large in this share of some times.
#[must_use]
pub fn percentile(found: &[Failover], share: f64) -> Duration {
    let mut times: Vec<Duration> = found.iter().map(|one| one.took).collect();
    times.sort_unstable();
    muster_bench::table::percentile(&times, share)
}

/// A line for people.
#[must_use]
pub fn words(found: &[Failover]) -> String {
    let at = |share| percentile(found, share).as_millis();
    let terms: u64 = found.iter().map(|one| one.terms).sum();
    format!(
        "{} failovers: median {} ms, p90 {} ms, p99 {} ms, longest {} ms; {} terms",
        found.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        terms
    )
}
