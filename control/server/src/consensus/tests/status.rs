//! A node is asked for its status while it commits: neither waits for the other.

use super::{NoServices, tenant};
use crate::consensus::{Consensus, ConsensusConfig};
use muster_runtime::{Admission, Clock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A clock that takes its time when a certain thread reads it.
struct SlowClock {
    clock: Arc<dyn Clock>,
    slow_for: Mutex<Option<ThreadId>>,
}

impl Clock for SlowClock {
    fn wall_ms(&self) -> u64 {
        let slow_for = *self.slow_for.lock();
        if slow_for == Some(std::thread::current().id()) {
            // Long enough for an entry to be committed meanwhile.
            std::thread::sleep(Duration::from_millis(300));
        }
        self.clock.wall_ms()
    }

    fn boottime_ns(&self) -> u64 {
        self.clock.boottime_ns()
    }
}

#[test]
fn a_status_does_not_stop_a_leader_that_commits() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let mut host = muster_runtime::real::host("node-1", folder.path());
    let clock = Arc::new(SlowClock { clock: host.clock.clone(), slow_for: Mutex::new(None) });
    host.clock = clock.clone();
    let node = runtime.block_on(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        drop(listener);
        let node = Consensus::open(host.clone(), ConsensusConfig::new(1, &address)).await.expect("opens");
        let routes = tonic::service::Routes::new(node.peer_service(Arc::new(NoServices)));
        host.net.serve(&address, routes, Admission::plain(), CancellationToken::new()).await.expect("serves");
        node.bootstrap(BTreeMap::from([(1, address)])).await.expect("bootstraps");
        while !node.is_leader() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        node
    });
    let (asked, asking) = (node.clone(), clock);
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        *asking.slow_for.lock() = Some(std::thread::current().id());
        let _ = answer.send(asked.status().id);
    });
    let committing = node.clone();
    runtime.spawn(async move {
        for number in 0..200 {
            let _ = committing.propose(vec![tenant(&format!("tenant-{number}"))]).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let answer = answered.recv_timeout(Duration::from_secs(30));
    // Its threads may stand still.
    runtime.shutdown_background();
    assert_eq!(answer, Ok(1), "the status has an answer");
}
