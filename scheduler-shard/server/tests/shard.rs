//! Shards against the real state machine on a simulated network: leases, take-over, fail-over, and what a stuck call may not do.

mod test_plane;

use muster_model::{CellId, Epoch, JobSpec, ValidJobSpec};
use muster_runtime::sim::{SimWorld, run};
use muster_scheduler_server::{Shard, ShardConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;
use test_plane::{Cluster, LEASE};

const SECOND: Duration = Duration::from_secs(1);

fn start(world: &SimWorld, name: &str, change: impl Fn(&mut ShardConfig)) -> Shard {
    let mut config = ShardConfig::new("s", vec!["c1:1".to_owned(), "c2:1".to_owned()]);
    change(&mut config);
    Shard::start(&world.boot(name), config).expect("starts")
}

/// Two control hosts that share one state, with cells filled.
async fn cluster(world: &SimWorld, cells: &[&str], nodes: u32, gpus: u16) -> Cluster {
    let cluster = Cluster::new();
    for name in ["c1", "c2"] {
        cluster.serve(&world.boot(name)).await;
    }
    cluster.fill(cells, nodes, gpus);
    cluster
}

/// Laws 5 and 7 as far as shards could break them: nothing was bound twice, epochs of a cell only grow, and the capacity ledgers agree.
fn check(cluster: &Cluster) {
    let plane = cluster.plane.lock();
    plane.state.check().expect("the state keeps the laws");
    let mut newest: BTreeMap<CellId, Epoch> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (cell, epoch, job) in &plane.bound {
        let last = newest.entry(*cell).or_insert(*epoch);
        assert!(*last <= *epoch, "cell {cell} was bound in under {epoch} after {last}");
        *last = *epoch;
        assert!(seen.insert(*job), "job {job} was bound twice");
    }
}

#[test]
fn a_shard_takes_a_cell_and_binds_what_waits_and_what_comes() {
    run(1, |world| async move {
        let cluster = cluster(&world, &["a"], 4, 8).await;
        cluster.submit(20, 1);
        let shard = start(&world, "s1", |_| {});
        cluster.until("the backlog runs", SECOND, |c| c.running() == 20).await;
        cluster.submit(12, 1);
        cluster.until("the rest runs", SECOND, |c| c.running() == 32).await;
        cluster.submit(1, 8);
        tokio::time::sleep(5 * SECOND).await;
        assert_eq!(cluster.running(), 32);
        let status = shard.status();
        assert_eq!((status.cells.len(), status.bound, status.pending, status.waiting), (1, 32, 0, 1));
        assert_eq!(cluster.plane.lock().refused, [], "its view is as good as the capacity ledger");
        shard.stop().await;
        assert!(cluster.holders().is_empty(), "leases are given back");
        check(&cluster);
    });
}

/// What was accepted stays accepted: a shard plans it although today's rules would refuse it.
#[test]
fn a_job_that_todays_rules_would_refuse_is_planned() {
    run(3, |world| async move {
        let cluster = cluster(&world, &["a"], 1, 8).await;
        let spec = JobSpec { priority: 2_000_000, ..cluster.spec(1) };
        assert!(spec.clone().validate().is_err(), "today's rules refuse it");
        let shard = start(&world, "s1", |_| {});
        cluster.submit_accepted(ValidJobSpec::from_control_plane(spec));
        cluster.until("it runs", SECOND, |c| c.running() == 1).await;
        shard.stop().await;
        check(&cluster);
    });
}

#[test]
fn shards_spread_and_the_dead_ones_cells_are_taken_over() {
    for seed in 0..32 {
        run(seed, |world| async move {
            let cells = ["a", "b", "c", "d"];
            let cluster = cluster(&world, &cells, 2, 8).await;
            let one = start(&world, "s1", |config| config.shards_expected = 2);
            let two = start(&world, "s2", |config| config.shards_expected = 2);
            let held = || (one.status().cells.len(), two.status().cells.len());
            cluster.until("each holds half of the cells", 3 * SECOND, |_| held() == (2, 2)).await;
            cluster.submit(32, 1);
            world.crash("s1").await;
            cluster.submit(32, 1);
            cluster.until("everything runs", LEASE + 6 * SECOND, |c| c.running() == 64).await;
            assert_eq!(two.status().cells.len(), 4);
            check(&cluster);
        });
    }
}

#[test]
fn a_control_node_that_dies_is_left_for_another() {
    for seed in 0..32 {
        run(seed, |world| async move {
            let cluster = cluster(&world, &["a"], 4, 8).await;
            let shard = start(&world, "s1", |_| {});
            cluster.submit(8, 1);
            cluster.until("work runs", 2 * SECOND, |c| c.running() == 8).await;
            let epochs = shard.status().cells;
            world.crash("c1").await;
            cluster.submit(8, 1);
            cluster.until("more runs", 3 * SECOND, |c| c.running() == 16).await;
            cluster.serve(&world.boot("c1")).await;
            world.crash("c2").await;
            cluster.submit(8, 1);
            cluster.until("more runs again", 5 * SECOND, |c| c.running() == 24).await;
            assert_eq!(shard.status().cells, epochs, "the lease was never lost");
            check(&cluster);
        });
    }
}

/// A control node that accepts calls and answers none (stopped, or behind a dead link) is noticed by its silence.
#[test]
fn a_quiet_control_node_costs_seconds_and_no_lease() {
    run(3, |world| async move {
        let cluster = cluster(&world, &["a"], 4, 8).await;
        let shard = start(&world, "s1", |_| {});
        cluster.submit(8, 1);
        cluster.until("work runs", 2 * SECOND, |c| c.running() == 8).await;
        let epochs = shard.status().cells;
        world.partition(["s1"], ["c1"]);
        cluster.submit(8, 1);
        cluster.until("more runs", 8 * SECOND, |c| c.running() == 16).await;
        assert_eq!(shard.status().cells, epochs);
        check(&cluster);
    });
}

#[test]
fn a_shard_that_is_cut_off_lets_go_before_its_lease_is_given_to_another() {
    for seed in 0..32 {
        run(seed, |world| async move {
            let cluster = cluster(&world, &["a"], 4, 8).await;
            let one = start(&world, "s1", |_| {});
            cluster.until("held", SECOND, |c| c.holders().len() == 1).await;
            let two = start(&world, "s2", |_| {});
            tokio::time::sleep(SECOND).await;
            world.partition(["s1"], ["c1", "c2"]);
            let first = one.status().cells;
            while cluster.plane.lock().state.cells[&CellId(1)].holder.as_deref() == Some(one.name()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(one.status().cells.is_empty(), "it has let go before the lease ran out on the other side");
            cluster.submit(4, 1);
            cluster.until("the other one takes over", 3 * SECOND, |c| c.running() == 4).await;
            world.mend_all();
            cluster.submit(4, 1);
            cluster.until("and goes on", 3 * SECOND, |c| c.running() == 8).await;
            assert!(two.status().cells.values().all(|epoch| Some(epoch) > first.values().next()));
            check(&cluster);
        });
    }
}

/// Decisions never hold up the renewal: with every proposal stuck, the lease is kept for as long as it takes.
#[test]
fn stuck_proposals_cost_no_lease() {
    run(5, |world| async move {
        let cluster = cluster(&world, &["a"], 4, 8).await;
        let shard = start(&world, "s1", |_| {});
        cluster.until("held", SECOND, |c| c.holders().len() == 1).await;
        tokio::time::sleep(SECOND).await;
        cluster.mute_proposals.store(true, Ordering::Relaxed);
        cluster.submit(20, 1);
        let epochs = shard.status().cells;
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!((shard.status().cells, cluster.running()), (epochs, 0));
        cluster.mute_proposals.store(false, Ordering::Relaxed);
        cluster.until("it goes on by itself", 6 * SECOND, |c| c.running() == 20).await;
        check(&cluster);
    });
}

/// A job routed to a full cell runs in another one that frees up first.
#[test]
fn a_job_without_room_goes_to_another_cell() {
    run(6, |world| async move {
        let cluster = cluster(&world, &["a", "b"], 1, 4).await;
        let _shard = start(&world, "s1", |_| {});
        // Routing balances: four whole nodes' worth fill both cells, the rest waits.
        let jobs = cluster.submit(10, 1);
        cluster.until("both are full", 3 * SECOND, |c| c.running() == 8).await;
        let waiting: Vec<_> = {
            let plane = cluster.plane.lock();
            jobs.iter()
                .filter_map(|job| plane.state.jobs.get(job))
                .filter(|job| job.phase.allocation().is_none())
                .cloned()
                .collect()
        };
        assert_eq!(waiting.len(), 2);
        let home = waiting[0].cell.expect("routed");
        // Everything in the other cell is cancelled and its tasks are reported gone.
        let ended: Vec<_> = {
            let plane = cluster.plane.lock();
            plane.state.allocations.values().filter(|held| held.cell != home).cloned().collect()
        };
        for held in &ended {
            cluster.decide(vec![muster_control_core::Command::Cancel { job: held.job }]);
            let reports = vec![muster_control_core::TaskReport {
                allocation: held.id,
                rank: muster_model::Rank(0),
                state: muster_model::TaskState::Stopped,
                ended_ms: None,
                checkpoint: None,
                clean_up: muster_model::task::CleanUp::default(),
            }];
            let node = held.tasks[0].node;
            let epoch = held.node_epochs[&node];
            cluster.decide(vec![muster_control_core::Command::ReportTasks { node, epoch, reports }]);
        }
        assert_eq!(cluster.running(), 4);
        cluster.until("the others moved over", 10 * SECOND, |c| c.running() == 6).await;
        check(&cluster);
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let bindings = |seed| {
        run(seed, |world| async move {
            let cluster = cluster(&world, &["a", "b"], 2, 8).await;
            let _one = start(&world, "s1", |_| {});
            let _two = start(&world, "s2", |_| {});
            cluster.submit(16, 1);
            tokio::time::sleep(3 * SECOND).await;
            world.crash("s1").await;
            cluster.submit(16, 1);
            tokio::time::sleep(6 * SECOND).await;
            let bound = cluster.plane.lock().bound.clone();
            (bound, world.trace_hash())
        })
    };
    assert_eq!(bindings(9), bindings(9));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    run(1, |world| async move {
        let host = world.boot("s1");
        let plain = ShardConfig::new("s", vec!["c1:1".to_owned()]);
        let check = |config: ShardConfig, words: &str| {
            let error = Shard::start(&host, config).err().expect("refused").to_string();
            assert!(error.contains(words), "{error}");
        };
        check(ShardConfig::new("s", vec![]), "no control endpoint");
        check(ShardConfig::new("s", vec!["nonsense".to_owned()]), "HOST:PORT");
        check(ShardConfig { renew_every_ms: 0, ..plain.clone() }, "renew_every_ms");
        check(ShardConfig { cells_max: 0, ..plain }, "cells_max");
    });
}
