//! A tap on an agent's small files: every usage interval that is on its disk under a number is taken down.
//!
//! That is what law 9 speaks of: an agent sends a number only after the interval behind it is on disk, so what is on disk is what was
//! reported, or will be once the agent is back.

use crate::history::{History, Interval};
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_model::usage::UsageInterval;
use muster_runtime::{DiskError, Files};
use std::sync::{Arc, Mutex};

/// The file of an agent's meter.
const METER: &str = "usage.json";

/// What taps have seen; shared with the tasks of the hosts.
pub(super) type Seen = Arc<Mutex<History>>;

pub(super) struct Recorder {
    pub(super) node: String,
    pub(super) files: Arc<dyn Files>,
    pub(super) seen: Seen,
}

impl Files for Recorder {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, DiskError> {
        let content = self.files.read(name)?;
        if let (METER, Some(content)) = (name, &content) {
            note(&self.seen, &self.node, content);
        }
        Ok(content)
    }

    fn write(&self, name: &str, content: Vec<u8>) -> BoxFuture<'static, Result<(), DiskError>> {
        let written = self.files.write(name, content.clone());
        if name != METER {
            return written;
        }
        let (node, seen) = (self.node.clone(), self.seen.clone());
        async move {
            written.await?;
            note(&seen, &node, &content);
            Ok(())
        }
        .boxed()
    }
}

/// Takes down the intervals that wait in the meter, once it has a stream.
fn note(seen: &Seen, node: &str, content: &[u8]) {
    let stored: serde_json::Value = serde_json::from_slice(content).expect("agents store JSON");
    let meter = &stored["meter"];
    let Some(incarnation) = meter["incarnation"].as_u64() else { return };
    let pending: Vec<UsageInterval> =
        serde_json::from_value(meter["pending"].clone()).expect("a meter lists the intervals that wait");
    let mut seen = seen.lock().expect("no panic while it was held");
    for UsageInterval { seq, allocation, gpu_unit_ms, kind, .. } in pending {
        let interval = Interval { node: node.to_owned(), incarnation, seq, removals: 0 };
        seen.metered(interval, ((allocation, kind), gpu_unit_ms));
    }
}
