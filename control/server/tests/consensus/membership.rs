//! Who belongs to the cluster: learners, voters, replacements, and who may not come back.

use crate::cluster::Cluster;
use muster_control_server::consensus::{AdminError, Consensus};
use std::collections::BTreeMap;
use std::time::Duration;

fn voters(node: &Consensus) -> Vec<u64> {
    node.status().members.iter().filter(|member| member.voter).map(|member| member.id).collect()
}

fn members(node: &Consensus) -> Vec<u64> {
    node.status().members.iter().map(|member| member.id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_grows_and_replaces_its_dead() {
    let mut cluster = Cluster::new();
    cluster.begin(&[1]).await;
    cluster.add(1, "first").await;
    for id in [2, 3, 4] {
        cluster.start(id).await;
        let address = cluster.address(id);
        cluster.node(1).add_learner(id, address).await.expect("adds");
    }
    assert_eq!((voters(cluster.node(1)), members(cluster.node(1))), (vec![1], vec![1, 2, 3, 4]));
    for id in [2, 3] {
        cluster.node(1).promote(id).await.expect("promotes");
        cluster.node(1).promote(id).await.expect("again changes nothing");
    }
    assert_eq!(voters(cluster.node(1)), [1, 2, 3]);
    assert_eq!(cluster.tenants(4).await.len(), 1, "a learner reads as well");

    // A voter dies and the learner takes its place, in one change.
    cluster.kill(3);
    cluster.node(1).remove(3, Some(4)).await.expect("replaces");
    assert_eq!((voters(cluster.node(1)), members(cluster.node(1))), (vec![1, 2, 4], vec![1, 2, 4]));

    // The leader can take itself out; the others go on, and it ends by itself.
    cluster.node(1).remove(1, None).await.expect("removes");
    cluster.ends_as_removed(1).await;
    cluster.kill(1);
    cluster.add(4, "second").await;
    assert_eq!(cluster.tenants(2).await.len(), 2);
    assert_eq!(voters(cluster.node(2)), [2, 4]);
    cluster.assert_replicas_agree().await;
}

/// A removed voter ends and says why, whether it heard of its removal or finds out when it asks to be elected; also when it starts again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_voter_ends() {
    let mut cluster = Cluster::of_three().await;
    let leader = cluster.leader().await;
    let [hears, away] = [1, 2, 3].into_iter().filter(|id| *id != leader).collect::<Vec<_>>()[..] else {
        panic!("two followers")
    };
    cluster.start(4).await;
    let address = cluster.address(4);
    cluster.node(leader).add_learner(4, address).await.expect("adds");
    cluster.kill(away);
    cluster.node(leader).remove(away, Some(4)).await.expect("replaces");
    cluster.start(away).await;
    cluster.ends_as_removed(away).await;
    cluster.kill(away);
    cluster.node(leader).remove(hears, None).await.expect("removes");
    cluster.ends_as_removed(hears).await;
    cluster.kill(hears);
    cluster.start(hears).await;
    cluster.ends_as_removed(hears).await;
    let term = cluster.node(leader).status().term;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(cluster.node(leader).status().term, term, "nobody was disturbed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_make_no_sense_are_refused() {
    let mut cluster = Cluster::of_three().await;
    let leader = cluster.leader().await;
    let follower = (1..=3).find(|id| *id != leader).expect("a follower");
    let node = cluster.node(leader);
    assert!(matches!(node.promote(9).await, Err(AdminError::NotA { id: 9, .. })));
    assert!(matches!(node.remove(9, None).await, Err(AdminError::NotA { id: 9, .. })));
    assert!(matches!(node.remove(follower, Some(9)).await, Err(AdminError::NotA { id: 9, .. })));
    assert!(matches!(node.add_learner(9, "127.0.0.1:1".into()).await, Err(AdminError::Peer { id: 9, .. })));
    let wrong_address = cluster.address(follower);
    assert!(
        matches!(node.add_learner(9, wrong_address).await, Err(AdminError::Peer { id: 9, .. })),
        "another node is there"
    );
    let knows = |cluster: &Cluster| cluster.node(follower).leader().is_some_and(|(id, _)| id == leader);
    cluster.until("the follower to know who leads", knows).await;
    let from_follower = cluster.node(follower).promote(9).await;
    assert!(matches!(from_follower, Err(AdminError::NotLeader { leader: Some((id, _)) }) if id == leader));
    let again: BTreeMap<_, _> = (1..=3).map(|id| (id, cluster.address(id))).collect();
    for id in 1..=3 {
        let refused = cluster.node(id).bootstrap(again.clone()).await;
        assert!(matches!(refused, Err(AdminError::AlreadyMember { .. })), "node {id}: {refused:?}");
    }

    // A node of another cluster is not taken in.
    let mut other = Cluster::new();
    other.begin(&[9]).await;
    let refused = node.add_learner(9, other.address(9)).await;
    assert!(matches!(refused, Err(AdminError::Peer { id: 9, .. })), "{refused:?}");

    // An id is used once: neither a removed node nor a new disk comes back under it.
    cluster.start(5).await;
    let address = cluster.address(5);
    cluster.node(leader).add_learner(5, address.clone()).await.expect("adds");
    cluster.node(leader).remove(5, None).await.expect("removes");
    let refused = cluster.node(leader).add_learner(5, address).await;
    assert_eq!(refused, Err(AdminError::IdUsed { id: 5 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_does_not_come_back_under_its_id() {
    let mut cluster = Cluster::of_three().await;
    let leader = cluster.leader().await;
    cluster.add(leader, "before").await;
    let wiped = (1..=3).find(|id| *id != leader).expect("a follower");
    let other = (1..=3).find(|id| *id != leader && *id != wiped).expect("another");
    cluster.kill(wiped);
    cluster.wipe(wiped).await;
    cluster.start(wiped).await;
    cluster.add(leader, "meanwhile").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let status = cluster.node(wiped).status();
    assert_eq!(
        (status.last_log, status.members.len(), status.term),
        (0, 0, 0),
        "it takes nothing and votes for nobody"
    );

    // With one more node gone there is no quorum: the wiped one does not count.
    cluster.kill(other);
    assert!(cluster.node(leader).confirm_leadership().await.is_err());
    cluster.start(other).await;

    // It is removed, and comes back under a new id.
    let leader = cluster.leader().await;
    let address = cluster.address(wiped);
    let refused = cluster.node(leader).add_learner(wiped, address).await;
    assert_eq!(refused, Err(AdminError::IdUsed { id: wiped }));
    cluster.node(leader).remove(wiped, None).await.expect("removes");
    cluster.kill(wiped);
    cluster.start(7).await;
    let address = cluster.address(7);
    cluster.node(leader).add_learner(7, address).await.expect("adds");
    cluster.node(leader).promote(7).await.expect("promotes");
    assert_eq!(cluster.tenants(7).await.len(), 2);
    cluster.assert_replicas_agree().await;
}
