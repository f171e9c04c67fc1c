//! Why this node has stopped, if it has: said once, heard everywhere.

use crate::consensus::error::ProposeError;
use std::sync::Arc;
use tokio::sync::watch;

/// Shared by all parts of a node. The first reason stays.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<watch::Sender<Option<String>>>);

impl Stop {
    pub(crate) fn new() -> Self {
        Stop(Arc::new(watch::Sender::new(None)))
    }

    /// Stops the node.
    pub(crate) fn because(&self, why: impl Into<String>) {
        let why = why.into();
        self.0.send_if_modified(|reason| {
            let first = reason.is_none();
            if first {
                *reason = Some(why);
            }
            first
        });
    }

    /// The reason, if the node has stopped.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.borrow().clone()
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
            Ok(why) => why.clone().unwrap_or_default(),
            // Not while `self` lives.
            Err(_gone) => String::new(),
        }
    }
}
