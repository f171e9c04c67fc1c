//! What is acknowledged survives: leaders killed, everybody killed, a follower left far behind, a full queue.

use crate::cluster::{Cluster, PATIENCE, tenant};
use muster_control_core::{Command, Done};
use muster_control_server::consensus::ProposeError;
use muster_model::request::TaskRequest;
use muster_model::{DeviceRequest, JobId, JobSpec, Revision};
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_loses_nothing_acknowledged() {
    let mut cluster = Cluster::of_three().await;
    let mut acknowledged = BTreeSet::new();
    for round in 0..3 {
        let leader = cluster.leader().await;
        for through in 1..=3 {
            let path = format!("round-{round}-through-{through}");
            cluster.add(through, &path).await;
            acknowledged.insert(path);
        }
        cluster.kill(leader);
        let rest: Vec<u64> = cluster.nodes.keys().copied().collect();
        for through in &rest {
            let path = format!("round-{round}-without-{leader}-through-{through}");
            cluster.add(*through, &path).await;
            acknowledged.insert(path);
        }
        for through in rest {
            assert_eq!(cluster.tenants(through).await, acknowledged, "through {through}");
        }
        cluster.start(leader).await;
        assert_eq!(cluster.tenants(leader).await, acknowledged, "the killed leader catches up");
    }
    cluster.assert_replicas_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_killed_at_once_keeps_all_acknowledged() {
    let mut cluster = Cluster::of_three().await;
    let mut acknowledged = BTreeSet::new();
    for round in 0..2 {
        for number in 0..20 {
            let path = format!("round-{round}-{number}");
            cluster.add(1 + number % 3, &path).await;
            acknowledged.insert(path);
        }
        for id in 1..=3 {
            cluster.kill(id);
        }
        for id in 1..=3 {
            cluster.start(id).await;
        }
        for id in 1..=3 {
            assert_eq!(cluster.tenants(id).await, acknowledged, "through {id}");
        }
    }
    cluster.assert_replicas_agree().await;
}

fn job() -> JobSpec {
    let request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 1_000, memory_mib: 100 };
    JobSpec::usual("research", request, &["/bin/true"])
}

/// Accepts a job and cancels it: it is finished then, and on disk only.
async fn finish_a_job(cluster: &Cluster, through: u64, number: u64) -> JobId {
    let issued_ms = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64;
    let specs = vec![job().validate().expect("valid")];
    let submit = Command::Submit {
        request_id: format!("request-{number}"),
        issued_ms,
        payload_hash: number,
        specs,
        ended: Vec::new(),
    };
    let node = cluster.node(through);
    let proposed = node.propose(vec![submit]).await.expect("proposes");
    let Ok(Done::Submitted { first, .. }) = proposed.decided[0] else { panic!("{:?}", proposed.decided) };
    let cancelled = node.propose(vec![Command::Cancel { job: first }]).await.expect("proposes");
    assert!(cancelled.decided[0].is_ok(), "{:?}", cancelled.decided);
    first
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_far_behind_installs_a_snapshot() {
    let mut cluster = Cluster::new();
    (cluster.snapshot_every_entries, cluster.keep_entries) = (50, 10);
    cluster.begin(&[1, 2, 3]).await;
    let leader = cluster.leader().await;
    cluster.add(leader, "research").await;
    let behind = (1..=3).find(|id| *id != leader).expect("a follower");
    cluster.kill(behind);
    let mut finished = Vec::new();
    for number in 0..60 {
        finished.push(finish_a_job(&cluster, leader, number).await);
        cluster.add(leader, &format!("tenant-{number}")).await;
    }
    cluster.until("the log to be purged", |cluster| cluster.node(leader).status().purged > 50).await;
    cluster.start(behind).await;
    let node = cluster.node(behind);
    // One that followed what the snapshot jumps over is told so.
    let applied = node.read(|_, revision| revision);
    let mut follower = node.follow(applied).expect("follows");
    assert_eq!(cluster.tenants(behind).await.len(), 61);
    assert!(node.status().snapshot > applied.0, "it came as a snapshot: {:?}", node.status());
    assert!(follower.next().await.is_err());
    for id in &finished {
        assert!(node.finished_job(*id).expect("reads").is_some(), "history came along: job {id}");
    }
    let newest = node.finished_jobs(None, true, 5).expect("reads");
    assert_eq!(
        newest.iter().map(|job| job.id).collect::<Vec<_>>(),
        finished.iter().rev().take(5).copied().collect::<Vec<_>>()
    );
    let older = node.finished_jobs(Some(newest[4].id), true, 1).expect("reads");
    assert_eq!(older[0].id, finished[finished.len() - 6]);
    let next = node.finished_jobs(Some(finished[0]), false, 1).expect("reads");
    assert_eq!(next[0].id, finished[1]);
    cluster.assert_replicas_agree().await;
    // It goes on from the snapshot, also after a restart, and can lead.
    cluster.kill(behind);
    cluster.start(behind).await;
    let other = (1..=3).find(|id| *id != behind && *id != leader).expect("another");
    cluster.kill(leader);
    cluster.add(behind, "afterwards").await;
    assert_eq!(cluster.tenants(behind).await, cluster.tenants(other).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_answers_busy() {
    let mut cluster = Cluster::of_three().await;
    let leader = cluster.leader().await;
    for other in (1..=3).filter(|id| *id != leader) {
        cluster.kill(other);
    }
    // Without a quorum nothing is decided any more: what is proposed waits, up to the bound.
    let waiting: Vec<_> = (0..64)
        .map(|_| {
            let node = cluster.node(leader).clone();
            tokio::spawn(async move { node.propose(vec![tenant("waits"); 1_024]).await })
        })
        .collect();
    let mut busy = 0;
    for answered in waiting {
        match tokio::time::timeout(PATIENCE, answered).await.expect("every proposal is answered").expect("task") {
            Err(ProposeError::Busy { limit }) => {
                assert!(limit < 64 * 1_024);
                busy += 1;
            }
            Err(ProposeError::Unknown { .. } | ProposeError::NoLeader) => {}
            other => panic!("{other:?}"),
        }
        if busy >= 16 {
            return;
        }
    }
    panic!("only {busy} of 64 were refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_quorum_confirms_nothing() {
    let mut cluster = Cluster::of_three().await;
    let leader = cluster.leader().await;
    cluster.add(leader, "before").await;
    let seen = cluster.node(leader).read(|_, revision| revision);
    assert!(seen > Revision(0));
    for other in (1..=3).filter(|id| *id != leader) {
        cluster.kill(other);
    }
    assert_eq!(cluster.node(leader).confirm_leadership().await, Err(ProposeError::NoLeader));
    assert_eq!(cluster.node(leader).read_index().await, Err(ProposeError::NoLeader));
    // What is applied can still be looked at, by who does not mind that it may be old.
    assert_eq!(cluster.node(leader).read(|state, _| state.tenants.len()), 1);
}
