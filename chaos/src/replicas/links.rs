//! Three voters on links that carry little or lose much, and nothing else goes wrong: how many acknowledgements come, how late, and whether
//! leaders change without need.

use super::cluster::{Cluster, Settings};
use crate::specs;
use muster_control_core::Command;
use muster_control_server::PlantedBug;
use muster_runtime::sim::LinkQuality;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a run lasts.
const LASTS: Duration = Duration::from_secs(30);
/// How long a client waits for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Jobs of one large submission, each with an environment of [`LARGE_ENV_BYTES`]: together about as much as one call may carry.
const LARGE_JOBS: u64 = 120;
const LARGE_ENV_BYTES: usize = 30_000;

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weathered {
    /// Terms begun after the first leader had been elected.
    pub terms: u64,
    /// Small submissions that were answered in time.
    pub answered: usize,
    /// Those that were not.
    pub unanswered: usize,
    /// The longest that an answer took.
    pub longest: Duration,
    /// Large submissions that were answered in time.
    pub large: usize,
}

/// Runs seed `seed` on such links; with `large`, one client submits as much as a call may carry, again and again.
#[must_use]
pub fn run(seed: u64, links: LinkQuality, large: bool, planted: Option<PlantedBug>) -> Weathered {
    muster_runtime::sim::run(seed, move |world| async move {
        let cluster = Cluster::new(world.clone(), Settings { planted, ..Settings::USUAL });
        for id in 0..3 {
            cluster.start_voter(id).await;
        }
        cluster.bootstrap().await.expect("a leader on good links");
        assert!(super::prepare(&cluster).await, "the first commands are answered");
        let term = cluster.term();
        world.set_links(links);
        let end = Instant::now() + LASTS;
        let (small, large) = tokio::join!(small_until(&cluster, end), large_until(&cluster, end, large));
        let longest = small.iter().flatten().max().copied().unwrap_or_default();
        let answered = small.iter().flatten().count();
        Weathered { terms: cluster.term() - term, answered, unanswered: small.len() - answered, longest, large }
    })
}

/// Submits one small job after another; how long each answer took.
async fn small_until(cluster: &Cluster, end: Instant) -> Vec<Option<Duration>> {
    let mut took = Vec::new();
    for number in 0.. {
        if Instant::now() >= end {
            break;
        }
        let began = Instant::now();
        let command = submit(cluster, &format!("small-{number}"), 1, 0);
        let answer = cluster.propose(number % 3, vec![command], ANSWER_MAX).await;
        took.push(answer.is_some_and(|answer| answer.is_ok()).then(|| began.elapsed()));
        sleep(Duration::from_millis(50)).await;
    }
    took
}

async fn large_until(cluster: &Cluster, end: Instant, large: bool) -> usize {
    let mut answered = 0;
    for number in 0.. {
        if !large || Instant::now() >= end {
            break;
        }
        let command = submit(cluster, &format!("large-{number}"), LARGE_JOBS, LARGE_ENV_BYTES);
        answered += usize::from(matches!(cluster.propose(0, vec![command], ANSWER_MAX).await, Some(Ok(_))));
        sleep(Duration::from_secs(1)).await;
    }
    answered
}

pub(super) fn submit(cluster: &Cluster, request_id: &str, jobs: u64, env_bytes: usize) -> Command {
    let chance = cluster.world().chance();
    let spec = |number| {
        let mut spec = specs::job(chance, number);
        if env_bytes > 0 {
            spec.env.insert("LARGE".to_owned(), "x".repeat(env_bytes));
        }
        spec.validate().expect("simulated jobs are well formed")
    };
    let (request_id, issued_ms) = (request_id.to_owned(), cluster.wall_ms());
    Command::Submit {
        request_id,
        issued_ms,
        payload_hash: jobs,
        specs: (0..jobs).map(spec).collect(),
        ended: Vec::new(),
    }
}
