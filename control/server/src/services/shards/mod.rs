//! `muster.v1.Shards`: leases of cells, the watch that a shard plans from, and its proposals.

mod propose;
mod watch;

use super::App;
use super::guarded::{Of, guarded};
use crate::api::{auth, refusal};
use crate::leases::renewal::{Renewal, Verdict};
use futures::stream::BoxStream;
use muster_control_core::authz::About;
use muster_control_core::{Command, Done};
use muster_model::validate::bounds::{LEASES_PER_RENEW_MAX, SHARD_NAME_BYTES_MAX};
use muster_model::{CellId, Epoch, Rpc};
use muster_proto::v1;
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct ShardsService(pub(crate) App);

#[tonic::async_trait]
impl v1::shards_server::Shards for ShardsService {
    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::AcquireRequest { cell, shard } = request;
        check_shard(&shard)?;
        let (done, revision) =
            self.0.decide(&author, Command::AcquireCell { cell: CellId(cell), shard: shard.clone() }).await?;
        let Done::Acquired { epoch, .. } = done else {
            return Err(Status::internal(format!("a lease was answered {done:?}")));
        };
        tracing::info!(cell, shard, %epoch, %revision, "cell acquired");
        let lease_ms = self.0.leases.cell_lease_ms;
        Ok(Response::new(v1::AcquireReply { epoch: epoch.0, lease_ms, revision: revision.0 }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::RenewRequest { shard, leases } = request;
        check_shard(&shard)?;
        self.0.allow(&author, Rpc::ShardsRenew, About::Shard(&shard))?;
        if leases.len() > LEASES_PER_RENEW_MAX {
            let problem = format!("has {} leases", leases.len());
            return Err(refusal::field("leases", problem, "renew at most 4,096 cells in one call"));
        }
        let renewing = leases
            .iter()
            .map(|held| self.0.renewals.renew(Renewal::Cell(CellId(held.cell), Epoch(held.epoch), shard.clone())));
        let verdicts = futures::future::join_all(renewing).await;
        if verdicts.contains(&Verdict::Unknown) {
            return Err(refusal::unavailable("the leader did not answer; leases are valid until they expire"));
        }
        let lost = leases.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Lost);
        let lost_cells = lost.map(|(held, _)| held.cell).collect();
        Ok(Response::new(v1::RenewReply { lost_cells, lease_ms: self.0.leases.cell_lease_ms }))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::ReleaseRequest { shard, lease } = request;
        check_shard(&shard)?;
        self.0.allow(&author, Rpc::ShardsRelease, About::Shard(&shard))?;
        let lease = lease.ok_or_else(|| refusal::field("lease", "is missing", "give the cell and the epoch"))?;
        let (cell, epoch) = (CellId(lease.cell), Epoch(lease.epoch));
        self.0.decide(&author, Command::ExpireCell { cell, epoch }).await?;
        tracing::info!(%cell, shard, %epoch, "cell released");
        Ok(Response::new(v1::ReleaseReply {}))
    }

    type WatchStream = BoxStream<'static, Result<v1::WatchEvent, Status>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let shown = auth::shown(&request);
        let (author, request) = auth::split(request);
        self.0.allow(&author, Rpc::ShardsWatch, About::Nothing)?;
        let events = watch::watch(&self.0, request);
        events.map(|events| guarded(&self.0, (&author, shown), Rpc::ShardsWatch, Of::Many, events)).map(Response::new)
    }

    async fn propose(&self, request: Request<v1::ProposeRequest>) -> Result<Response<v1::ProposeReply>, Status> {
        let (author, request) = auth::split(request);
        propose::propose(&self.0, &author, request).await.map(Response::new)
    }
}

fn check_shard(shard: &str) -> Result<(), Status> {
    if shard.is_empty() || shard.len() > SHARD_NAME_BYTES_MAX {
        let problem = format!("has {} bytes", shard.len());
        return Err(refusal::field("shard", problem, "use 1 to 128 bytes, a new name for each start of the process"));
    }
    Ok(())
}
