//! Whether voters measure time alike: a leader says with each heartbeat how often it sends one, and when it expects elections.
//!
//! A voter with shorter timeouts than the leader's heartbeats allow would ask for elections all the time, one with longer ones would stand
//! last. Settings differ for a while when they are changed, one voter after another, so a voter that finds a difference goes on, and says it.
//! It travels beside the message, in a header that older versions do not send and do not read.

use crate::consensus::config::ConsensusConfig;
use muster_proto::v1::Payload;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

const HEADER: &str = "muster-raft-timing";
/// A difference is named in the log so often.
const REPEAT_WARNING: Duration = Duration::from_secs(60);

/// Of one node.
#[derive(Debug)]
pub(super) struct Timing {
    own: String,
    header: Option<MetadataValue<Ascii>>,
    warned: Mutex<Option<Instant>>,
}

impl Timing {
    pub(super) fn new(config: &ConsensusConfig) -> Self {
        let (min, max) = config.election_ms;
        let own = format!("heartbeat {} ms, election timeout {min}-{max} ms", config.heartbeat_ms);
        let header = own.parse().ok();
        Timing { own, header, warned: Mutex::default() }
    }

    /// A heartbeat as it is sent.
    pub(super) fn with(&self, heartbeat: Payload) -> Request<Payload> {
        let mut request = Request::new(heartbeat);
        if let Some(header) = &self.header {
            request.metadata_mut().insert(HEADER, header.clone());
        }
        request
    }

    /// A heartbeat of node `leader` came with these headers.
    pub(super) fn compare(&self, leader: u64, headers: &MetadataMap) {
        let Some(theirs) = self.difference(headers) else { return };
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| at.elapsed() >= REPEAT_WARNING) {
            *warned = Some(Instant::now());
            tracing::warn!(
                leader,
                leaders = theirs,
                own = self.own,
                "the leader and this control node were started with different round trips: start all control nodes with the same --wan-rtt"
            );
        }
    }

    /// What the sender's settings are, where they are not this node's.
    fn difference<'a>(&self, headers: &'a MetadataMap) -> Option<&'a str> {
        headers.get(HEADER)?.to_str().ok().filter(|theirs| *theirs != self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_with_other_settings_is_noticed() {
        let near = Timing::new(&ConsensusConfig::new(1, "a:1"));
        let far = Timing::new(&ConsensusConfig::new(2, "b:1").far(80));
        let payload = || Payload { data: Vec::new() };
        assert_eq!(near.difference(near.with(payload()).metadata()), None);
        assert_eq!(
            near.difference(far.with(payload()).metadata()),
            Some("heartbeat 230 ms, election timeout 690-1035 ms")
        );
        assert_eq!(near.difference(Request::new(payload()).metadata()), None, "an older version says nothing");
    }
}
