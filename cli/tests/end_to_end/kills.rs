//! Kill -9 of any process, and of all at once, at random moments: no acknowledged submission is lost, no id is used twice,
//! no task runs twice, and everything comes back by itself. Through the public API of the real binary.

use crate::common::{Ledger, assert_completed, finished_jobs, fleet};
use muster_bench::cluster::Size;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;

/// Kills in all; every tenth takes everything down at once.
const KILLS: u32 = 110;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_anything_at_any_time_loses_nothing() {
    let seed: u64 = std::env::var("MUSTER_KILL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(7);
    println!("seed {seed}; repeat with MUSTER_KILL_SEED={seed}");
    let mut chance = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let size = Size { voters: 3, shards: 2, nodes: 16, gpus_per_node: 8, agents: 2, virtual_tasks: false };
    let mut fleet = fleet(&size).await;
    let ledger = Ledger::start(&fleet, "research/kills").await;
    let mut killed: BTreeMap<String, u32> = BTreeMap::new();
    for round in 1..=KILLS {
        tokio::time::sleep(Duration::from_millis(chance.gen_range(50..700))).await;
        if round % 10 == 0 {
            fleet.kill_everything();
            fleet.start_again().expect("the supervisor starts again");
            *killed.entry("everything".to_owned()).or_default() += 1;
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            continue;
        }
        let Ok(dev) = fleet.dev() else { continue };
        let role = &dev.roles[chance.gen_range(0..dev.roles.len())];
        if kill(Pid::from_raw(role.pid), Signal::SIGKILL).is_ok() {
            *killed.entry(role.role.clone()).or_default() += 1;
        }
    }
    println!("killed: {killed:?}");
    assert!(killed.values().sum::<u32>() >= 100, "at least 100 kills took place: {killed:?}");
    let acknowledged = ledger.stop().await;
    println!("{} submissions were acknowledged meanwhile", acknowledged.len());
    assert!(acknowledged.len() > 100, "work went on between the kills");
    fleet.wait_ready().await.expect("everything is back");

    let jobs = finished_jobs(&fleet, "research/kills", acknowledged.len(), Duration::from_secs(120)).await;
    for (request, id) in &acknowledged {
        assert_completed(jobs.get(id).unwrap_or_else(|| panic!("job {id} of acknowledged request {request} is lost")));
    }
    ledger_checks(&fleet, &acknowledged);
}

/// Every task wrote a line at its start and one at its end: one of each for every acknowledged job.
fn ledger_checks(fleet: &crate::common::Fleet, acknowledged: &BTreeMap<String, u64>) {
    let mut ids: BTreeMap<u64, &str> = BTreeMap::new();
    for (request, id) in acknowledged {
        if let Some(other) = ids.insert(*id, request) {
            panic!("id {id} was given to {other} and to {request}");
        }
    }
    let runs = crate::common::runs(fleet);
    for id in acknowledged.values() {
        let run = runs.get(id).unwrap_or_else(|| panic!("job {id} completed but never ran"));
        assert_eq!((run.starts, run.ends), (1, 1), "job {id} ran twice or did not end");
    }
}
