//! Five voters in three regions, two, two and one, under load: how long commits take, whether leaders change without need, and how long it
//! takes when a region is lost.

use super::cluster::{Cluster, Settings};
use super::failover::{Failover, started};
use super::links::submit;
use crate::nemesis::Fleet;
use muster_control_core::Command;
use muster_runtime::sim::SimWorld;
use std::cell::RefCell;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// The voters of each region, by their places.
const REGIONS: [&[usize]; 3] = [&[0, 1], &[2, 3], &[4]];
/// Small submissions a second.
const RATE: u64 = 300;
/// A large one, of about 1 MB, so often.
const LARGE_EVERY: Duration = Duration::from_secs(5);
const LARGE_JOBS: u64 = 33;
const LARGE_ENV_BYTES: usize = 30_000;
/// Longer waits no client.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long one attempt of a write may take in a failover before the next is sent to another voter, beside the round trips.
const ATTEMPT: Duration = Duration::from_millis(200);
/// A failover that takes longer counts as this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run under load came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// How long the leader took to acknowledge each small submission, in order of length.
    pub took: Vec<Duration>,
    /// Small submissions that were not acknowledged.
    pub unanswered: usize,
    /// Large submissions that were acknowledged, and their longest time.
    pub large: (usize, Duration),
    /// Terms begun meanwhile.
    pub terms: u64,
}

impl Load {
    /// What is at most so large in this share of the times.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Duration {
        muster_bench::table::percentile(&self.took, share)
    }
}

async fn regions(world: &SimWorld, round_trip_ms: u64) -> Cluster {
    let settings = Settings { voters: 5, round_trip_ms, ..Settings::USUAL };
    let names: Vec<String> = (1..=5).map(|id| format!("control-{id}")).collect();
    let region_of = |place: usize| REGIONS.iter().position(|region| region.contains(&place));
    for (one, a) in names.iter().enumerate() {
        for (other, b) in names.iter().enumerate().skip(one + 1) {
            if region_of(one) != region_of(other) {
                world.set_round_trip(a, b, Duration::from_millis(round_trip_ms));
            }
        }
    }
    started(world, settings).await
}

/// Runs seed `seed` for `time` under load, which the leader is given.
#[must_use]
pub fn load(seed: u64, round_trip_ms: u64, time: Duration) -> Load {
    muster_runtime::sim::run(seed, move |world| async move {
        let cluster = regions(&world, round_trip_ms).await;
        // So that nobody is new any more.
        sleep(Duration::from_secs(5)).await;
        let (term, end) = (cluster.term(), Instant::now() + time);
        let found = RefCell::new(Load::default());
        tokio::join!(small_until(&cluster, &found, end), large_until(&cluster, &found, end));
        let mut found = found.into_inner();
        found.took.sort_unstable();
        found.terms = cluster.term() - term;
        found
    })
}

fn leading(cluster: &Cluster) -> usize {
    let leader = cluster.leader();
    cluster.voters().iter().position(|name| Some(name) == leader.as_ref()).unwrap_or(0)
}

async fn small_until(cluster: &Cluster, found: &RefCell<Load>, end: Instant) {
    use futures::StreamExt;
    let mut ticks = interval(Duration::from_micros(1_000_000 / RATE));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut under_way = futures::stream::FuturesUnordered::new();
    let mut number = 0;
    loop {
        tokio::select! {
            biased;
            Some(()) = under_way.next(), if !under_way.is_empty() => {}
            _ = ticks.tick(), if Instant::now() < end => {
                number += 1;
                under_way.push(async move {
                    let began = Instant::now();
                    let command = submit(cluster, &format!("small-{number}"), 1, 0);
                    let answer = cluster.propose(leading(cluster), vec![command], ANSWER_MAX).await;
                    let mut found = found.borrow_mut();
                    match answer {
                        Some(Ok(_)) => found.took.push(began.elapsed()),
                        _ => found.unanswered += 1,
                    }
                });
            }
            else => return,
        }
    }
}

async fn large_until(cluster: &Cluster, found: &RefCell<Load>, end: Instant) {
    for number in 0.. {
        sleep(LARGE_EVERY).await;
        if Instant::now() >= end {
            return;
        }
        let began = Instant::now();
        let command = submit(cluster, &format!("large-{number}"), LARGE_JOBS, LARGE_ENV_BYTES);
        if let Some(Ok(_)) = cluster.propose(leading(cluster), vec![command], ANSWER_MAX).await {
            let mut found = found.borrow_mut();
            found.large = (found.large.0 + 1, found.large.1.max(began.elapsed()));
        }
    }
}

/// Loses the leader's region `rounds` times in the run of `seed`: its voters end, and nothing that is sent there is answered.
#[must_use]
pub fn lose_regions(seed: u64, round_trip_ms: u64, rounds: u32) -> Vec<Failover> {
    muster_runtime::sim::run(seed, move |world| async move {
        let cluster = regions(&world, round_trip_ms).await;
        let mut found = Vec::new();
        for _ in 0..rounds {
            found.push(lose_region(&cluster, round_trip_ms).await);
        }
        found
    })
}

async fn lose_region(cluster: &Cluster, round_trip_ms: u64) -> Failover {
    let world = cluster.world();
    sleep(Duration::from_millis(8_000 + world.chance().between(0, 1_000))).await;
    let leader = leading(cluster);
    let lost = REGIONS.iter().copied().find(|region| region.contains(&leader)).unwrap_or_default();
    let names = cluster.voters();
    let left: Vec<usize> = (0..names.len()).filter(|place| !lost.contains(place)).collect();
    let term = cluster.term();
    world.partition(lost.iter().map(|at| names[*at].as_str()), left.iter().map(|at| names[*at].as_str()));
    for at in lost {
        cluster.crash(&names[*at]).await;
    }
    let began = Instant::now();
    let mut asked = world.chance().between(0, left.len() as u64) as usize;
    let within = ATTEMPT + Duration::from_millis(2 * round_trip_ms);
    while began.elapsed() < PATIENCE {
        asked = (asked + 1) % left.len();
        if let Some(Ok(_)) = cluster.propose(left[asked], vec![Command::Sweep], within).await {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    let found = Failover { took: began.elapsed(), terms: cluster.term() - term };
    world.mend_all();
    for at in lost {
        cluster.start(&names[*at]).await;
    }
    let all_up = async {
        while !cluster.keeps_up() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_up).await.expect("all voters keep up again");
    found
}
