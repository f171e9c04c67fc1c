//! Damage to what is stored: a torn tail is cut, anything else stops the node before it votes.

use super::{entry, log_id, open_stores};
use crate::consensus::stop::Stop;
use crate::consensus::stored::{index_key, log_space, state_space};
use crate::consensus::{Consensus, ConsensusConfig, OpenError};
use muster_runtime::{Batch, DiskError, Host, Kv};
use openraft::Vote;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn host(folder: &Path) -> Host {
    muster_runtime::real::host("damaged", folder)
}

/// A log with entries 0 to 9 and a vote, one sync each; the last is not known to be synced to whoever opens it.
async fn write_log(folder: &Path) {
    let stop = Stop::new();
    let (mut log, replica) = open_stores(&host(folder), &stop).await.expect("opens");
    let identity = crate::consensus::log::Identity { id: 1, disk: 7, cluster: None };
    log.save_identity(&identity).await.expect("saves");
    log.save_vote(&Vote::new(3, 1)).await.expect("saves");
    for index in 0..10 {
        log.blocking_append([entry(3, index, None)]).await.expect("appends");
    }
    let mut machine = crate::consensus::replica::Machine(replica);
    machine.apply(vec![entry(3, 0, None)]).await.expect("applies");
    stop.because("written");
}

async fn raw(host: &Host, name: &str, spaces: &[&'static str]) -> Arc<dyn Kv> {
    for _ in 0..500 {
        match host.disk.open(name, spaces) {
            Ok(kv) => return kv,
            Err(_locked) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    panic!("the store stays locked");
}

async fn flip(folder: &Path, space: &'static str, key: &[u8]) {
    let kv = raw(&host(folder), "log", &log_space::ALL).await;
    let mut bytes = kv.get(space, key).expect("reads").expect("is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let mut batch = Batch::default();
    batch.put(space, key, bytes);
    kv.write(&batch).expect("writes");
    kv.sync().await.expect("syncs");
}

#[tokio::test]
async fn a_torn_tail_is_cut() {
    let folder = tempfile::tempdir().expect("folder");
    write_log(folder.path()).await;
    flip(folder.path(), log_space::ENTRIES, &index_key(9)).await;
    let stop = Stop::new();
    let (mut log, _replica) = open_stores(&host(folder.path()), &stop).await.expect("opens");
    assert_eq!(log.get_log_state().await.expect("reads").last_log_id, Some(log_id(3, 8)));
    log.blocking_append([entry(4, 9, None)]).await.expect("goes on");
}

#[tokio::test]
async fn damage_before_the_last_sync_group_is_refused() {
    for index in [0, 4, 8] {
        let folder = tempfile::tempdir().expect("folder");
        write_log(folder.path()).await;
        flip(folder.path(), log_space::ENTRIES, &index_key(index)).await;
        let opened = open_stores(&host(folder.path()), &Stop::new()).await;
        assert!(matches!(opened.err(), Some(DiskError::Corrupt { .. })), "entry {index}");
    }
}

#[tokio::test]
async fn a_missing_entry_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    write_log(folder.path()).await;
    {
        let kv = raw(&host(folder.path()), "log", &log_space::ALL).await;
        let mut batch = Batch::default();
        batch.delete(log_space::ENTRIES, index_key(5));
        kv.write(&batch).expect("writes");
        kv.sync().await.expect("syncs");
    }
    let opened = open_stores(&host(folder.path()), &Stop::new()).await;
    assert!(matches!(opened.err(), Some(DiskError::Corrupt { .. })));
}

#[tokio::test]
async fn a_damaged_vote_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    write_log(folder.path()).await;
    flip(folder.path(), log_space::META, b"vote").await;
    let opened = open_stores(&host(folder.path()), &Stop::new()).await;
    assert!(matches!(opened.err(), Some(DiskError::Corrupt { .. })));
}

#[tokio::test]
async fn a_node_that_cannot_trust_its_storage_does_not_start() {
    let folder = tempfile::tempdir().expect("folder");
    write_log(folder.path()).await;
    flip(folder.path(), log_space::ENTRIES, &index_key(4)).await;
    let opened = Consensus::open(host(folder.path()), ConsensusConfig::new(1, "127.0.0.1:1")).await;
    let error = opened.err().expect("refused");
    assert!(matches!(error, OpenError::Corrupt { id: 1, .. }), "{error}");
    assert!(error.to_string().contains("under an id that was never used"), "it says what to do: {error}");
}

#[tokio::test]
async fn a_folder_of_another_node_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    write_log(folder.path()).await;
    drop(raw(&host(folder.path()), "log", &log_space::ALL).await);
    let opened = Consensus::open(host(folder.path()), ConsensusConfig::new(2, "127.0.0.1:1")).await;
    assert!(matches!(opened.err(), Some(OpenError::OtherNode { stored: 1, configured: 2 })));
}

#[tokio::test]
async fn a_damaged_state_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    write_log(folder.path()).await;
    {
        let kv = raw(&host(folder.path()), "state-1", &state_space::ALL).await;
        let (key, mut bytes) =
            kv.scan(state_space::OBJECTS, b"", None, 1, false).expect("scans").pop().expect("an object");
        bytes[2] ^= 1;
        let mut batch = Batch::default();
        batch.put(state_space::OBJECTS, key, bytes);
        kv.write(&batch).expect("writes");
    }
    let opened = open_stores(&host(folder.path()), &Stop::new()).await;
    assert!(matches!(opened.err(), Some(DiskError::Corrupt { .. })));
}
