//! openraft's own suite for log stores and state machines, and what it leaves out.

use super::{entry, log_id, open_stores};
use crate::consensus::frozen::Frozen;
use crate::consensus::log::{Identity, Log};
use crate::consensus::replica::Machine;
use crate::consensus::snapshot::{Frames, Unpacker};
use crate::consensus::stop::Stop;
use crate::consensus::types::{StorageError, Types};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{RaftLogReader, RaftSnapshotBuilder, Vote};
use tempfile::TempDir;

struct Stores;

impl StoreBuilder<Types, Log, Machine, TempDir> for Stores {
    async fn build(&self) -> Result<(TempDir, Log, Machine), StorageError> {
        let folder = tempfile::tempdir().expect("folder");
        let host = muster_runtime::real::host("suite", folder.path());
        let (log, replica) = open_stores(&host, &Stop::new()).await.expect("opens");
        Ok((folder, log, Machine(replica)))
    }
}

#[test]
fn the_stores_pass_openrafts_suite() {
    Suite::test_all(Stores).expect("passes");
}

#[tokio::test]
async fn what_was_synced_is_there_after_a_restart() {
    let folder = tempfile::tempdir().expect("folder");
    let stop = Stop::new();
    {
        let host = muster_runtime::real::host("before", folder.path());
        let (mut log, replica) = open_stores(&host, &stop).await.expect("opens");
        log.save_identity(&Identity { id: 1, disk: 7, cluster: None }).await.expect("saves");
        log.save_vote(&Vote::new(3, 1)).await.expect("saves");
        log.blocking_append((0..10).map(|index| entry(3, index, None))).await.expect("appends");
        // It goes to the disk with the next entries.
        log.save_committed(Some(log_id(3, 6))).await.expect("saves");
        log.blocking_append([entry(3, 10, None)]).await.expect("appends");
        let mut machine = Machine(replica);
        machine.apply((0..=4).map(|index| entry(3, index, None)).collect::<Vec<_>>()).await.expect("applies");
        stop.because("the test goes on");
    }
    let host = muster_runtime::real::host("after", folder.path());
    let stop = Stop::new();
    let (mut log, replica) = open_stores(&host, &stop).await.expect("opens");
    assert_eq!(log.read_vote().await.expect("reads"), Some(Vote::new(3, 1)));
    assert_eq!(log.get_log_state().await.expect("reads").last_log_id, Some(log_id(3, 10)));
    assert_eq!(log.read_committed().await.expect("reads"), Some(log_id(3, 6)));
    let entries = log.try_get_log_entries(0..10).await.expect("reads");
    assert_eq!(entries, (0..10).map(|index| entry(3, index, None)).collect::<Vec<_>>());
    let limited = log.limited_get_log_entries(2, 5).await.expect("reads");
    assert_eq!(limited.len(), 3);
    assert_eq!(Machine(replica.clone()).applied_state().await.expect("reads").0, Some(log_id(3, 4)));
    assert_eq!(replica.read(|state, revision| (state.tenants.len(), revision.0)), (5, 4));
}

#[tokio::test]
async fn an_entry_meant_for_another_term_is_void() {
    let folder = tempfile::tempdir().expect("folder");
    let host = muster_runtime::real::host("void", folder.path());
    let (_log, replica) = open_stores(&host, &Stop::new()).await.expect("opens");
    let mut machine = Machine(replica.clone());
    let entries = vec![entry(3, 0, Some(2)), entry(3, 1, Some(3)), entry(3, 2, None)];
    let answers = machine.apply(entries).await.expect("applies");
    assert!(answers[0].is_none(), "void");
    assert!(answers[1].as_ref().is_some_and(|decided| decided[0].is_ok()));
    assert!(answers[2].as_ref().is_some_and(|decided| decided[0].is_ok()));
    assert_eq!(replica.read(|state, _| state.tenants.len()), 2);
}

#[tokio::test]
async fn a_snapshot_is_the_state_frame_by_frame() {
    let folder = tempfile::tempdir().expect("folder");
    let host = muster_runtime::real::host("from", folder.path().join("from"));
    let (_log, from) = open_stores(&host, &Stop::new()).await.expect("opens");
    let mut machine = Machine(from.clone());
    let entries: Vec<_> = (0..500).map(|index| entry(1, index, None)).collect();
    machine.apply(entries).await.expect("applies");
    let snapshot = machine.get_snapshot_builder().await.build_snapshot().await.expect("builds");
    // What comes after is not in it.
    machine.apply(vec![entry(1, 500, None)]).await.expect("applies");

    let host = muster_runtime::real::host("to", folder.path().join("to"));
    let (_log, to) = open_stores(&host, &Stop::new()).await.expect("opens");
    let Frozen::View(view) = *snapshot.snapshot else { panic!("a view") };
    let Frozen::Received(incoming) = to.begin_receiving().expect("begins") else { panic!("a store") };
    let (mut frames, mut unpacker) = (Frames::new(view), Unpacker::new(incoming.kv.as_ref()));
    let mut ended = false;
    while let Some(frame) = frames.next().expect("reads") {
        assert!(!ended, "nothing comes after the end");
        ended = unpacker.take(frame).expect("takes");
    }
    assert!(ended);
    let mut installing = Machine(to.clone());
    installing.install_snapshot(&snapshot.meta, Box::new(Frozen::Received(incoming))).await.expect("installs");
    assert_eq!(to.read(|state, revision| (state.tenants.len(), revision.0)), (500, 499));
    let objects = |replica: &crate::consensus::replica::Replica| {
        replica
            .read(|state, _| state.objects().filter(|object| !matches!(object, muster_model::Object::Meta(_))).count())
    };
    assert_eq!(objects(&from), objects(&to) + 1);
    assert!(to.hub.follow(muster_model::Revision(498)).is_err(), "followers have to begin at the snapshot");
}
