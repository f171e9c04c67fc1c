//! Calls to the control plane: any node serves, every call has a deadline, and a failure moves on to the next node.

use crate::config::{ShardConfig, StartError};
use muster_model::{CellId, Epoch};
use muster_proto::v1;
use muster_proto::v1::shards_client::ShardsClient;
use muster_runtime::{Channel, Net};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tonic::{Code, Request, Response, Status, Streaming};

/// A part of a snapshot may be this large; the control plane cuts them far below.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

type Client = ShardsClient<Channel>;

/// The control nodes, one of them current.
pub(crate) struct Control {
    clients: Vec<Client>,
    current: AtomicUsize,
    deadline: Duration,
}

impl Control {
    pub(crate) fn new(net: &dyn Net, config: &ShardConfig) -> Result<Self, StartError> {
        let dial = |endpoint: &String| {
            let client = ShardsClient::new(net.dial(endpoint, config.transport.control())?);
            Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
        };
        let clients = config.endpoints.iter().map(dial).collect::<Result<Vec<_>, StartError>>()?;
        let deadline = Duration::from_millis(config.call_timeout_ms);
        Ok(Control { clients, current: AtomicUsize::new(0), deadline })
    }

    /// One call to the current node. After a failure that another node might not have, the next one is current.
    async fn call<R, F>(&self, name: &'static str, ask: impl FnOnce(Client) -> F) -> Result<R, Status>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let at = self.current();
        let answer = tokio::time::timeout(self.deadline, ask(self.clients[at].clone())).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("{name}: no answer in time"))));
        if let Err(status) = &answer {
            metrics::counter!("muster_shard_calls_failed_total", "call" => name).increment(1);
            if elsewhere(status) {
                self.turn_from(at);
            }
        }
        answer.map(Response::into_inner)
    }

    /// The next node becomes current, unless another is already: `at` has failed or gone quiet.
    pub(crate) fn turn_from(&self, at: usize) {
        let next = (at + 1) % self.clients.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The node that calls go to now.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.clients.len()
    }

    pub(crate) async fn acquire(&self, shard: &str, cell: CellId) -> Result<v1::AcquireReply, Status> {
        let request = v1::AcquireRequest { cell: cell.0, shard: shard.to_owned() };
        self.call("acquire", |mut client| async move { client.acquire(Request::new(request)).await }).await
    }

    pub(crate) async fn renew(&self, shard: &str, leases: Vec<v1::HeldLease>) -> Result<v1::RenewReply, Status> {
        let request = v1::RenewRequest { shard: shard.to_owned(), leases };
        self.call("renew", |mut client| async move { client.renew(Request::new(request)).await }).await
    }

    pub(crate) async fn release(&self, shard: &str, cell: CellId, epoch: Epoch) -> Result<(), Status> {
        let lease = Some(v1::HeldLease { cell: cell.0, epoch: epoch.0 });
        let request = v1::ReleaseRequest { shard: shard.to_owned(), lease };
        self.call("release", |mut client| async move { client.release(Request::new(request)).await }).await.map(|_| ())
    }

    pub(crate) async fn propose(&self, request: v1::ProposeRequest) -> Result<v1::ProposeReply, Status> {
        self.call("propose", |mut client| async move { client.propose(Request::new(request)).await }).await
    }

    /// The stream itself has no deadline: whoever reads it counts the silence.
    pub(crate) async fn watch(&self, from_revision: u64) -> Result<Streaming<v1::WatchEvent>, Status> {
        let request = v1::WatchRequest { from_revision };
        self.call("watch", |mut client| async move { client.watch(Request::new(request)).await }).await
    }
}

/// Whether another control node might answer better.
fn elsewhere(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Internal | Code::Cancelled | Code::Aborted
    )
}
