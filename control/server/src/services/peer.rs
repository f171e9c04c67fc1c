//! What this control node answers to the others, beside consensus itself: lease renewals when it leads, and logs of the tasks whose
//! agents have their sessions here.

use super::jobs::{LogAnswer, LogQuestion, open_here};
use super::{App, LOG_STREAMS_MAX};
use crate::api::refusal;
use crate::consensus::PeerServices;
use crate::leases::renewal::{RenewAnswer, RenewMessage};
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::BoxStream;
use std::sync::Arc;
use tonic::Status;

struct Answers(App);

/// The answers, for [`crate::consensus::Consensus::peer_service`].
pub(super) fn services(app: App) -> Arc<dyn PeerServices> {
    Arc::new(Answers(app))
}

fn malformed(error: &postcard::Error) -> Status {
    Status::invalid_argument(format!("a message between control nodes cannot be read: {error}"))
}

impl PeerServices for Answers {
    fn renew_leases(&self, payload: Vec<u8>) -> BoxFuture<'static, Result<Vec<u8>, Status>> {
        let app = self.0.clone();
        async move {
            let RenewMessage::V1(renewals) = postcard::from_bytes(&payload).map_err(|error| malformed(&error))?;
            let verdicts = app.leader_leases.renew(&renewals).await;
            let verdicts = verdicts.ok_or_else(|| {
                refusal::unavailable("this control node is not the leader, or cannot confirm that it is")
            })?;
            postcard::to_stdvec(&RenewAnswer::V1(verdicts)).map_err(|error| Status::internal(error.to_string()))
        }
        .boxed()
    }

    fn logs(
        &self,
        payload: Vec<u8>,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Result<Vec<u8>, Status>>, Status>> {
        let app = self.0.clone();
        async move {
            let LogQuestion::V1(target) = postcard::from_bytes(&payload).map_err(|error| malformed(&error))?;
            let permit = Arc::clone(&app.log_streams).try_acquire_owned();
            let permit = permit.map_err(|_| refusal::busy("the number of log streams", LOG_STREAMS_MAX))?;
            let pieces = open_here(&app, &target).await?;
            let answers = pieces.map(move |piece| {
                let _held = &permit;
                postcard::to_stdvec(&LogAnswer::V1(piece?)).map_err(|error| Status::internal(error.to_string()))
            });
            Ok(answers.boxed())
        }
        .boxed()
    }
}
