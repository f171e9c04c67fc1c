//! Why this node has stopped, if it has: said once, heard everywhere.

use crate::consensus::error::ProposeError;
use muster_runtime::DiskError;
use std::sync::Arc;
use tokio::sync::watch;

/// Shared by all parts of a node. The first reason stays.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<watch::Sender<Option<Reason>>>);

#[derive(Clone, Debug)]
struct Reason {
    why: String,
    /// When the disk was the reason.
    disk: Option<DiskError>,
}

impl Stop {
    pub(crate) fn new() -> Self {
        Stop(Arc::new(watch::Sender::new(None)))
    }

    /// Stops the node.
    pub(crate) fn because(&self, why: impl Into<String>) {
        self.stop(Reason { why: why.into(), disk: None });
    }

    /// Stops the node because its disk fails: nobody knows any more what is durable.
    pub(crate) fn failed(&self, doing: &str, error: &DiskError) {
        if self.reason().is_none() {
            tracing::error!(%error, "{doing} failed; this node stops");
        }
        self.stop(Reason { why: format!("{doing} fails: {error}"), disk: Some(error.clone()) });
    }

    fn stop(&self, reason: Reason) {
        self.0.send_if_modified(|stored| {
            let first = stored.is_none();
            if first {
                *stored = Some(reason);
            }
            first
        });
    }

    /// The reason, if the node has stopped.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.borrow().as_ref().map(|reason| reason.why.clone())
    }

    /// The disk's error, if that was the reason.
    pub(crate) fn disk_error(&self) -> Option<DiskError> {
        self.0.borrow().as_ref().and_then(|reason| reason.disk.clone())
    }

    /// An error if the node has stopped.
    pub(crate) fn check(&self) -> Result<(), ProposeError> {
        match self.reason() {
            Some(why) => Err(ProposeError::Stopped { why }),
            None => Ok(()),
        }
    }

    /// Resolves when the node stops.
    pub(crate) async fn stopped(&self) -> String {
        let mut reason = self.0.subscribe();
        match reason.wait_for(Option::is_some).await {
            Ok(reason) => reason.as_ref().map(|reason| reason.why.clone()).unwrap_or_default(),
            // Not while `self` lives.
            Err(_gone) => String::new(),
        }
    }
}
