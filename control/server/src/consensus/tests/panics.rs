//! A bug in the state machine: the entry that meets it stops the node, loudly, and nothing of it is served or stored.

use super::{entry, open_log};
use crate::consensus::replica::{Machine, Replica};
use crate::consensus::stop::Stop;
use muster_control_core::{Entry, Executed, State, execute};
use openraft::storage::RaftStateMachine;

/// Executes entries until the one of `now_ms` 1,003, of which it makes half.
fn panicking(state: &mut State, entry: &Entry) -> Executed {
    let executed = execute(state, entry);
    assert!(entry.now_ms != 1_003, "a bug in the state machine");
    executed
}

#[tokio::test]
async fn an_entry_that_panics_stops_the_node_and_leaves_no_trace() {
    let folder = tempfile::tempdir().expect("folder");
    let host = muster_runtime::real::host("panics", folder.path());
    let stop = Stop::new();
    let (log, generation) = open_log(&host, 2, &stop).await.expect("opens");
    let replica = Replica::open_with(&host, log, generation, stop.clone(), panicking).await.expect("opens");
    let mut machine = Machine(replica.clone());
    machine.apply((0..3).map(|index| entry(1, index, None)).collect::<Vec<_>>()).await.expect("applies");
    let mut follower = replica.hub.follow(muster_model::Revision(2)).expect("follows");

    let failed = machine.apply(vec![entry(1, 3, None), entry(1, 4, None)]).await;
    assert!(failed.is_err(), "consensus hears of it");
    let why = stop.reason().expect("the node has stopped");
    assert!(why.contains("log entry 3 to 4") && why.contains("a bug in the state machine"), "{why}");
    assert!(follower.next().await.is_err(), "nothing of it is published");
    drop((machine, replica, follower));

    // Every start meets the same entry again, and stops again: the state on disk is the one before it.
    let stop = Stop::new();
    let (log, generation) = open_log(&host, 2, &stop).await.expect("opens");
    let replica = Replica::open_with(&host, log, generation, stop.clone(), panicking).await.expect("opens");
    assert_eq!(replica.read(|state, revision| (state.tenants.len(), revision.0)), (3, 2));
    assert!(Machine(replica).apply(vec![entry(1, 3, None)]).await.is_err());
    assert!(stop.reason().is_some());
}
