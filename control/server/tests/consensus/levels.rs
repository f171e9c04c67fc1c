//! Feature levels: what is new waits until every voter knows it, and nothing of it is written before.

use crate::cluster::{Cluster, tenant};
use muster_control_core::Command;
use muster_control_server::consensus::{AdminError, FEATURE_LEVEL_NEWEST, ProposeError};
use std::collections::BTreeMap;
use std::time::Duration;

fn level(cluster: &Cluster, id: u64) -> u32 {
    cluster.node(id).read(|state, _| state.meta.feature_level)
}

/// A command that came with level 2.
fn new_command() -> Command {
    Command::ResetClock
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_new_waits_until_every_voter_knows_it() {
    let mut cluster = Cluster::new();
    cluster.knows_level = BTreeMap::from([(3, 1)]);
    cluster.begin(&[1, 2, 3]).await;
    cluster.add(1, "first").await;
    // Until then a follower does not know at which level the cluster begins, and asks to come again.
    let has_begun = |cluster: &Cluster, id| cluster.node(id).read(|state, _| state.meta.cluster != 0);
    cluster.until("the first entries on all voters", |cluster| (1..=3).all(|id| has_begun(cluster, id))).await;
    for through in [1, 2, 3] {
        assert_eq!(level(&cluster, through), 1, "a cluster begins at what all of its voters know");
        let refused = cluster.node(through).propose(vec![new_command()]).await;
        let Err(ProposeError::Level { what, needed: 2, level: 1 }) = &refused else { panic!("{refused:?}") };
        assert_eq!(what, "Command.ResetClock");
    }
    // Two of three know more. That is a quorum, and not enough.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(level(&cluster, 1), 1);

    // A dead voter knows nothing: it may come back as it was.
    cluster.kill(3);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(level(&cluster, 1), 1);

    cluster.knows_level.clear();
    cluster.start(3).await;
    cluster
        .until("the level that all know", |cluster| (1..=3).all(|id| level(cluster, id) == FEATURE_LEVEL_NEWEST))
        .await;
    let proposed = cluster.node(3).propose(vec![new_command()]).await.expect("is taken");
    assert_eq!(proposed.decided.len(), 1, "it is decided: here, that there is nothing to reset");
    cluster.assert_replicas_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_cluster_begins_at_the_newest_level() {
    let mut cluster = Cluster::of_three().await;
    cluster.add(1, "first").await;
    assert_eq!(level(&cluster, 1), FEATURE_LEVEL_NEWEST);
    // A follower learns a moment later what is committed.
    cluster.until("the level on a follower", |cluster| level(cluster, 2) == FEATURE_LEVEL_NEWEST).await;
    cluster.node(2).propose(vec![new_command()]).await.expect("is taken");

    // An older version could not read what is written.
    cluster.knows_level = BTreeMap::from([(4, 1)]);
    cluster.start(4).await;
    let leader = cluster.leader().await;
    let refused = cluster.node(leader).add_learner(4, cluster.address(4)).await;
    let Err(AdminError::Peer { id: 4, why, .. }) = &refused else { panic!("{refused:?}") };
    assert!(
        why.contains("feature levels up to 1") && why.contains(&format!("the cluster is at {FEATURE_LEVEL_NEWEST}")),
        "{why}"
    );
}

/// The level never goes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_of_the_past_is_refused() {
    let mut cluster = Cluster::new();
    cluster.begin(&[1]).await;
    cluster.add(1, "first").await;
    let lower = Command::RaiseFeatureLevel { level: 1 };
    let proposed = cluster.node(1).propose(vec![tenant("second"), lower]).await.expect("is decided");
    assert!(matches!(proposed.decided[..], [Ok(_), Err(_)]), "{:?}", proposed.decided);
}
