//! Three voters alone, without services: commands against crashes, partitions, bad links and stalled disks.
//!
//! The smallest simulation, and the one that finds what is wrong with consensus, log, snapshots and the state machine.

mod cluster;
pub mod failover;
pub mod links;
mod power;
pub mod wan;

use crate::history::{Answer, Call, History, Submission};
use crate::nemesis::{Fleet, Rage, rage};
use crate::{Outcome, laws, specs};
use cluster::{Cluster, Settings};
use muster_control_core::{Command, Done};
use muster_control_server::PlantedBug;
use muster_model::ids::{JobId, Revision};
use muster_runtime::Chance;
use muster_runtime::sim::{LinkQuality, SimWorld};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Clients that submit at the same time.
const CLIENTS: usize = 3;
/// Clients that read and cancel at the same time.
const ASKERS: usize = 4;
/// How long clients wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// How often what replicas published is taken down.
const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// How many of those go by between two looks at the whole state.
const DRAINS_PER_SAMPLE: u32 = 40;
/// How long after the last fault everything must be in order again.
const HEALING_MAX: Duration = Duration::from_secs(60);

/// Runs seed `seed`.
#[must_use]
pub fn run_seed(seed: u64, trace: bool) -> Outcome {
    run(seed, trace, Kind::Plain)
}

/// Runs seed `seed` while one voter after another is lost with its disk and replaced by a new node.
#[must_use]
pub fn run_seed_with_replacements(seed: u64, trace: bool) -> Outcome {
    run(seed, trace, Kind::Replacements)
}

/// Runs seed `seed` on disks that say they have synced and have not: a planted bug that the laws must show.
#[must_use]
pub fn run_on_lying_disks(seed: u64) -> Outcome {
    run(seed, false, Kind::LyingDisks)
}

/// Runs seed `seed` with a bug in the voters, which the laws must show.
#[must_use]
pub fn run_planted(seed: u64, bug: PlantedBug) -> Outcome {
    run(seed, false, Kind::Planted(bug))
}

/// Runs seed `seed` while voters lose power again and again, any of them, between any two events; with a bug in the voters if one is named.
#[must_use]
pub fn run_losing_power(seed: u64, trace: bool, planted: Option<PlantedBug>) -> Outcome {
    run(seed, trace, Kind::PowerLosses(planted))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Replacements,
    LyingDisks,
    Planted(PlantedBug),
    PowerLosses(Option<PlantedBug>),
}

fn run(seed: u64, trace: bool, kind: Kind) -> Outcome {
    muster_runtime::sim::run(seed, move |world| async move {
        if trace {
            world.keep_trace();
        }
        let (history, healed) = play(&world, kind).await;
        let mut violations = laws::check(&history);
        if let Err(what) = healed {
            violations.push(laws::Violation { law: "healing", what });
        }
        Outcome::of(&world, violations, &history)
    })
}

async fn play(world: &SimWorld, kind: Kind) -> (History, Result<(), String>) {
    let chance = world.chance().clone();
    // Half of the runs snapshot and purge so often that a follower that was away needs one.
    let snapshot_every = if chance.between(0, 2) == 0 { 30 } else { 10_000 };
    let planted = match kind {
        Kind::Planted(bug) => Some(bug),
        Kind::PowerLosses(bug) => bug,
        Kind::Plain | Kind::Replacements | Kind::LyingDisks => None,
    };
    let cluster = Cluster::new(world.clone(), Settings { snapshot_every, planted, ..Settings::USUAL });
    for host in cluster.voters() {
        cluster.start(&host).await;
    }
    if let Err(why) = cluster.bootstrap().await {
        return (cluster.take_history(), Err(why));
    }
    if !prepare(&cluster).await {
        return (cluster.take_history(), Err("the first commands had no answer".to_owned()));
    }
    if kind == Kind::LyingDisks {
        cluster.voters().iter().for_each(|voter| world.plant_lying_disk(voter));
    }
    let raging = Duration::from_millis(chance.between(5_000, 40_000));
    let end = Instant::now() + raging;
    let how = Rage { rest_ms_max: 4_000, fault_ms_max: 5_000, isolation_ms_max: 12_000 };
    let clients: Vec<_> = (0..CLIENTS).map(|client| submit_until(&cluster, &chance, client, end)).collect();
    let watched = async {
        let replacing = replace_until(&cluster, &chance, end, kind);
        let asking = futures::future::join_all((0..ASKERS).map(|_| ask_until(&cluster, &chance, end)));
        let raging = async {
            match kind {
                Kind::PowerLosses(_) => power::lose(world, &cluster, &chance, end).await,
                _ => rage(world, &cluster, &chance, how, end).await,
            }
        };
        tokio::join!(raging, futures::future::join_all(clients), asking, replacing);
        cluster.settles(HEALING_MAX).await
    };
    tokio::pin!(watched);
    let mut drains = 0;
    let healed = loop {
        tokio::select! {
            biased;
            healed = &mut watched => break healed,
            () = sleep(DRAIN_EVERY) => {
                drains += 1;
                cluster.drain(drains % DRAINS_PER_SAMPLE == 0);
            }
        }
    };
    cluster.drain(true);
    (cluster.take_history(), healed)
}

/// Loses voters one after another, if the run is of that kind.
async fn replace_until(cluster: &Cluster, chance: &Chance, end: Instant, kind: Kind) {
    while kind == Kind::Replacements && Instant::now() < end {
        sleep(Duration::from_millis(chance.between(500, 8_000))).await;
        cluster.replace(chance.between(0, 3) as usize).await;
    }
}

async fn prepare(cluster: &Cluster) -> bool {
    let mut commands = vec![Command::ApplyTenants { tenants: specs::tenants() }];
    commands.extend((0..4).map(|number| Command::JoinNode {
        spec: specs::node(number, "boot-1"),
        usage_incarnation: None,
        agent: 1,
    }));
    for _ in 0..50 {
        if let Some(Ok(_)) = cluster.propose(0, commands.clone(), ANSWER_MAX).await {
            return true;
        }
        sleep(Duration::from_millis(300)).await;
    }
    false
}

/// Submits one request after another, each retried under its id until it is answered.
async fn submit_until(cluster: &Cluster, chance: &Chance, client: usize, end: Instant) {
    for number in 0.. {
        if Instant::now() >= end {
            return;
        }
        let jobs = chance.between(1, 4);
        let specs: Vec<_> = (0..jobs)
            .map(|job| specs::job(chance, number * 10 + job).validate().expect("simulated jobs are well formed"))
            .collect();
        let request_id = format!("client-{client}-{number}");
        let issued_ms = cluster.wall_ms();
        let command = Command::Submit {
            request_id: request_id.clone(),
            issued_ms,
            payload_hash: number,
            specs,
            ended: Vec::new(),
        };
        let submission = Submission { request_id: request_id.clone(), jobs: jobs as usize, ..Submission::default() };
        let index = cluster.history().submit(submission);
        // After the end of the faults an answer must come soon: the submission is then judged with all others.
        while Instant::now() < end + HEALING_MAX {
            let voter = chance.between(0, 3) as usize;
            let call = cluster.history().called(&request_id, &cluster.name(voter), Call::Submit);
            if let Some(Ok((revision, decided))) = cluster.propose(voter, vec![command.clone()], ANSWER_MAX).await {
                let mut history = cluster.history();
                match &decided[0] {
                    Ok(Done::Submitted { first, count }) => {
                        let ids = (0..u64::from(*count)).map(|offset| JobId(first.0 + offset)).collect();
                        history.submissions[index].acknowledged.push(ids);
                        history.answered(call, revision, Answer::Accepted);
                    }
                    Ok(other) => history.submissions[index].refused = Some(format!("odd answer {other:?}")),
                    Err(reject) => history.submissions[index].refused = Some(reject.to_string()),
                }
                // A client that did not hear the answer asks again.
                if chance.between(0, 4) > 0 {
                    break;
                }
            }
            sleep(Duration::from_millis(chance.between(10, 400))).await;
        }
        sleep(Duration::from_millis(chance.between(0, 500))).await;
    }
}

/// Reads jobs whose submission was acknowledged, and now and then cancels one, through any voter.
async fn ask_until(cluster: &Cluster, chance: &Chance, end: Instant) {
    while Instant::now() < end {
        sleep(Duration::from_millis(chance.between(1, 120))).await;
        let known = {
            let history = cluster.history();
            let acknowledged = |submission: &Submission| {
                Some((submission.request_id.clone(), *submission.acknowledged.first()?.first()?))
            };
            // The youngest are those of which something may have been lost.
            let known: Vec<(String, JobId)> =
                history.submissions.iter().rev().filter_map(acknowledged).take(8).collect();
            known
        };
        if known.is_empty() {
            continue;
        }
        let (of, job) = &known[chance.between(0, known.len() as u64) as usize];
        let voter = chance.between(0, 3) as usize;
        let through = cluster.name(voter);
        if chance.between(0, 12) == 0 {
            let call = cluster.history().called(of, &through, Call::Cancel { runs: false });
            let cancel = vec![Command::Cancel { job: *job }];
            if let Some(Ok((revision, decided))) = cluster.propose(voter, cancel, ANSWER_MAX).await {
                let said = if decided[0].is_ok() { Answer::Accepted } else { Answer::Gone };
                cluster.history().answered(call, revision, said);
            }
        } else {
            let call = cluster.history().called(of, &through, Call::Get { runs: false });
            if let Some((revision, said)) = cluster.get(voter, *job, ANSWER_MAX).await {
                cluster.history().answered(call, revision, said);
            }
        }
    }
}

impl Cluster {
    /// Waits until there is one leader, a fresh write succeeds, and all replicas have applied it.
    async fn settles(&self, within: Duration) -> Result<(), String> {
        self.world().set_links(LinkQuality::GOOD);
        let settled = async {
            loop {
                if let Some(Ok(_)) = self.propose(0, vec![Command::Sweep], ANSWER_MAX).await {
                    break;
                }
                sleep(Duration::from_millis(200)).await;
            }
            loop {
                let applied: Vec<Revision> = self.applied();
                if applied.len() == 3 && applied.iter().all(|revision| *revision == applied[0]) {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(within, settled)
            .await
            .map_err(|_| format!("not in order {within:?} after the last fault: {}", self.describe()))?;
        let unanswered: Vec<String> = (self.history().submissions.iter())
            .filter(|submission| submission.acknowledged.is_empty() && submission.refused.is_none())
            .map(|submission| submission.request_id.clone())
            .collect();
        if unanswered.is_empty() { Ok(()) } else { Err(format!("never answered: {unanswered:?}")) }
    }
}
