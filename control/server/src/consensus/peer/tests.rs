//! What peers send that nobody should: a snapshot that breaks off.

use super::client;
use super::envelope::Envelope;
use crate::consensus::forms::NEWEST;
use crate::consensus::snapshot::Frame;
use crate::consensus::tests::NoServices;
use crate::consensus::types::{Member, Vote};
use crate::consensus::{Consensus, ConsensusConfig, stored};
use muster_proto::v1::Payload;
use muster_runtime::{Admission, Expect, Host};
use openraft::SnapshotMeta;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A cluster of one that listens, and where.
async fn serving(host: &Host) -> (Consensus, String) {
    let consensus = Consensus::open(host.clone(), ConsensusConfig::new(1, "127.0.0.1:1")).await.expect("opens");
    consensus.bootstrap(BTreeMap::from([(1, "127.0.0.1:1".to_owned())])).await.expect("bootstraps");
    let routes = tonic::service::Routes::new(consensus.peer_service(Arc::new(NoServices)));
    let served =
        host.net.serve("127.0.0.1:0", routes, Admission::plain(), CancellationToken::new()).await.expect("serves");
    (consensus, served.endpoint)
}

fn state_stores(host: &Host) -> usize {
    host.disk.list().expect("lists").iter().filter(|name| name.starts_with("state-")).count()
}

/// Waits until so many state stores are on disk.
async fn until_stores(host: &Host, count: usize) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while state_stores(host) != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "{} state stores, expected {count}", state_stores(host));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_stream_that_is_reset_leaves_no_store_behind() {
    for pause_ms in [0, 300] {
        reset_after(Duration::from_millis(pause_ms)).await;
    }
}

async fn reset_after(pause: Duration) {
    let folder = tempfile::tempdir().expect("folder");
    let host = muster_runtime::real::host("receiver", folder.path());
    let (consensus, endpoint) = serving(&host).await;
    let me = consensus.inner.core.peers.me();
    let envelope =
        Envelope { cluster: me.cluster.expect("a member"), from: 2, from_disk: 9, to: me.id, to_disk: me.disk };
    let meta: SnapshotMeta<u64, Member> = SnapshotMeta::default();
    let head = stored::encode(NEWEST, &(envelope, Vote::new_committed(99, 2), meta));
    let pairs = vec![(b"key".to_vec(), b"value".to_vec())];
    let frame = stored::encode(NEWEST, &Frame::Pairs { space: 0, pairs });
    let (sender, frames) = tokio::sync::mpsc::channel(4);
    for data in [head, frame] {
        sender.send(Payload { data }).await.expect("sends");
    }
    let mut peer = client(host.net.dial(&endpoint, Expect::Plain).expect("dials"));
    let frames = tokio_stream::wrappers::ReceiverStream::new(frames);
    let sending = tokio::spawn(async move { peer.install_snapshot(frames).await });
    until_stores(&host, 2).await;
    // The sender goes away in the middle, and its connection resets the stream: at once, or when frames have been written.
    tokio::time::sleep(pause).await;
    sending.abort();
    until_stores(&host, 1).await;
    drop(sender);
}
