//! One node alone: proposals, reads, followers, bounds.

use super::{tenant, three};
use crate::consensus::proposer::{CLIENT_COMMANDS, ENTRY_COMMANDS};
use crate::consensus::{AdminError, Consensus, ConsensusConfig, ProposeError};
use muster_control_core::{Command, Done};
use muster_model::Revision;
use std::collections::BTreeMap;
use std::path::Path;

async fn alone(folder: &Path) -> Consensus {
    let host = muster_runtime::real::host("alone", folder);
    let consensus = Consensus::open(host, ConsensusConfig::new(1, "127.0.0.1:1")).await.expect("opens");
    consensus.bootstrap(BTreeMap::from([(1, "127.0.0.1:1".to_owned())])).await.expect("bootstraps");
    consensus
}

/// A user who was faster than the first entries was told to wait for an upgrade.
#[tokio::test]
async fn before_a_cluster_has_begun_nobody_is_told_that_its_level_is_too_low() {
    let folder = tempfile::tempdir().expect("folder");
    let host = muster_runtime::real::host("alone", folder.path());
    let consensus = Consensus::open(host, ConsensusConfig::new(1, "127.0.0.1:1")).await.expect("opens");
    let edit = Command::EditTenants { edits: Vec::new(), prune: false, half_life_s: None };
    let refused = consensus.propose(vec![edit]).await;
    assert!(matches!(refused, Err(ProposeError::NoLeader)), "{refused:?}");
    consensus.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_caller_gets_its_own_answers() {
    let folder = tempfile::tempdir().expect("folder");
    let consensus = alone(folder.path()).await;
    let mut follower = consensus.follow(Revision(0)).expect("follows");
    let callers: Vec<_> = (0..200)
        .map(|caller| {
            let consensus = consensus.clone();
            tokio::spawn(async move {
                let good = tenant(&format!("tenant-{caller}"));
                let bad = tenant(&format!("nobody-{caller}/child"));
                consensus.propose(vec![good, bad]).await.expect("proposes")
            })
        })
        .collect();
    let mut revisions = std::collections::BTreeSet::new();
    for caller in callers {
        let proposed = caller.await.expect("task");
        assert_eq!(proposed.decided.len(), 2);
        assert!(matches!(proposed.decided[0], Ok(Done::Tenants { .. })), "{:?}", proposed.decided);
        assert!(proposed.decided[1].is_err(), "a tenant without its parent");
        revisions.insert(proposed.revision);
    }
    assert!(revisions.len() < 200, "callers share entries: {} entries for 200 calls", revisions.len());
    let index = consensus.read_index().await.expect("reads");
    assert!(index >= *revisions.last().expect("some"));
    assert_eq!(consensus.read(|state, _| state.tenants.len()), 200);
    let (mut puts, mut last) = (0, 0);
    while last < index.0 {
        let applied = follower.next().await.expect("next");
        assert_eq!(applied.revision.0, last + 1, "without a gap");
        last = applied.revision.0;
        puts += applied.changes.len();
    }
    assert!(puts >= 200, "{puts}");
    consensus.confirm_leadership().await.expect("it leads");
    consensus.shutdown().await;
    assert!(matches!(consensus.propose(vec![tenant("late")]).await, Err(ProposeError::Stopped { .. })));
    assert!(matches!(consensus.read_index().await, Err(ProposeError::Stopped { .. })));
    assert!(matches!(consensus.confirm_leadership().await, Err(ProposeError::Stopped { .. })));
    assert!(follower.next().await.is_err());
}

/// Calls of this node's own clients and calls that other nodes pass on arrive in turns: they share entries all the same. On one thread, so
/// that all wait when the first entry is gathered.
#[tokio::test]
async fn calls_from_here_and_from_other_nodes_share_entries() {
    let folder = tempfile::tempdir().expect("folder");
    let consensus = alone(folder.path()).await;
    consensus.leadership().wait_for(|now| now.here).await.expect("leads");
    let proposer = &consensus.inner.proposer;
    let calls = (0..200).map(|call| proposer.propose(vec![tenant(&format!("tenant-{call}"))], None, call % 2 == 0));
    let proposed = futures::future::join_all(calls).await;
    let revisions: std::collections::BTreeSet<_> =
        proposed.into_iter().map(|proposed| proposed.expect("proposes").revision).collect();
    assert!(revisions.len() <= 2, "{} entries for 200 calls that waited together", revisions.len());
    assert_eq!(consensus.read(|state, _| state.tenants.len()), 200);
}

/// While many submissions wait, further ones are refused at once, and what the cluster itself has to say is still taken. On one thread, so that
/// all wait when the first entry is gathered.
#[tokio::test]
async fn clients_leave_room_for_the_cluster() {
    let folder = tempfile::tempdir().expect("folder");
    let consensus = alone(folder.path()).await;
    consensus.leadership().wait_for(|now| now.here).await.expect("leads");
    consensus.room_for_clients().expect("nothing waits");
    let full = || vec![tenant("the same"); ENTRY_COMMANDS];
    let calls = (0..CLIENT_COMMANDS / ENTRY_COMMANDS).map(|_| consensus.propose(full()));
    let mut all = std::pin::pin!(futures::future::join_all(calls));
    assert!(futures::poll!(&mut all).is_pending(), "they wait");
    assert_eq!(consensus.room_for_clients(), Err(ProposeError::Busy { limit: CLIENT_COMMANDS }));
    let (fence, all) = tokio::join!(consensus.propose(vec![tenant("a fence")]), all);
    fence.expect("taken");
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    consensus.room_for_clients().expect("nothing waits any more");
}

/// A follower passes on what its own clients call, and not what another node has passed on already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_passes_on_only_what_was_called_here() {
    let folder = tempfile::tempdir().expect("folder");
    let (nodes, leader) = three(folder.path()).await;
    let proposer = &nodes[(leader + 1) % 3].inner.proposer;
    let calls = (0..20).map(|call| proposer.propose(vec![tenant(&format!("tenant-{call}"))], None, call % 2 == 0));
    for (call, proposed) in futures::future::join_all(calls).await.into_iter().enumerate() {
        match call % 2 {
            0 => assert!(proposed.expect("passed on").decided[0].is_ok()),
            _ => assert_eq!(proposed.err(), Some(ProposeError::NoLeader)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_an_entry_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let consensus = alone(folder.path()).await;
    let many = vec![tenant("same"); ENTRY_COMMANDS + 1];
    assert!(matches!(consensus.propose(many).await, Err(ProposeError::TooLarge { .. })));
    let term = consensus.status().term;
    assert_eq!(consensus.propose_here(term + 1, vec![tenant("early")]).await.err(), Some(ProposeError::NoLeader));
    consensus.propose_here(term, vec![tenant("now")]).await.expect("leads in that term");
    assert_eq!(consensus.read(|state, _| state.tenants.len()), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_begins_one_cluster_only() {
    let folder = tempfile::tempdir().expect("folder");
    let members = BTreeMap::from([(1, "127.0.0.1:1".to_owned())]);
    let consensus = alone(folder.path()).await;
    consensus.propose(vec![tenant("kept")]).await.expect("proposes");
    let incarnation = consensus.read(|state, _| state.meta.incarnation);
    assert_ne!(incarnation, 0);
    assert!(matches!(consensus.bootstrap(members.clone()).await, Err(AdminError::AlreadyMember { .. })));
    consensus.shutdown().await;
    drop(consensus);
    let again = loop {
        let host = muster_runtime::real::host("alone", folder.path());
        match Consensus::open(host, ConsensusConfig::new(1, "127.0.0.1:1")).await {
            Ok(consensus) => break consensus,
            Err(_locked) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    };
    assert!(matches!(again.bootstrap(members).await, Err(AdminError::AlreadyMember { .. })));
    let mut leadership = again.leadership();
    leadership.wait_for(|now| now.here).await.expect("leads again");
    again.read_index().await.expect("reads");
    assert_eq!(again.read(|state, _| (state.tenants.len(), state.meta.incarnation)), (1, incarnation));
}

#[tokio::test]
async fn a_node_without_a_cluster_answers_at_once() {
    let folder = tempfile::tempdir().expect("folder");
    let host = muster_runtime::real::host("alone", folder.path());
    let consensus = Consensus::open(host, ConsensusConfig::new(1, "127.0.0.1:1")).await.expect("opens");
    assert_eq!(consensus.propose(vec![tenant("x")]).await.err(), Some(ProposeError::NoLeader));
    assert_eq!(consensus.read_index().await.err(), Some(ProposeError::NoLeader));
    assert_eq!(consensus.confirm_leadership().await.err(), Some(ProposeError::NoLeader));
    assert_eq!(consensus.leader(), None);
    assert!(matches!(consensus.promote(1).await, Err(AdminError::NotLeader { leader: None })));
    let elsewhere = BTreeMap::from([(2, "127.0.0.1:1".to_owned())]);
    assert!(matches!(consensus.bootstrap(elsewhere).await, Err(AdminError::NotA { .. })));
}
