//! An operator's `muster events export --follow`, at any control node, from the first to the last revision of a run.
//!
//! What must stay true: calls break off and are continued as the command does it; where no control node has the changes in between, a new log is
//! begun, and the record has both.

use super::client::{ANSWER_MAX, Client};
use super::servers::{Servers, VOTERS};
use crate::history::ExportRecord;
use muster_control_server::event_export::{Export, LogLine};
use muster_model::ids::Revision;
use muster_model::preemption::STOP_MS_MAX;
use muster_proto::v1::admin_client::AdminClient;
use muster_proto::v1::{Consistency, CopyHistoryPart};
use std::cell::RefCell;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Code, Status, Streaming};

/// From the end of a grace to the release: what it takes without faults, the silence of a node, the hold of a mass, and the fence.
const STOP_MS: u64 = STOP_MS_MAX + 60_000;
/// Refusals in a row after which a new log is begun: every control node was asked several times.
const REFUSALS_MAX: u32 = 8 * VOTERS.len() as u32;

/// See the module.
pub(super) struct Exporter<'c> {
    client: &'c Client,
    state: RefCell<State>,
}

struct State {
    export: Export,
    /// Its record in the history.
    record: usize,
    /// Calls that were refused because the history does not reach back, since the last that was not.
    refusals: u32,
}

impl<'c> Exporter<'c> {
    pub(super) fn new(client: &'c Client, servers: &Servers) -> Self {
        let state = State { export: begin(), record: new_record(servers), refusals: 0 };
        Exporter { client, state: RefCell::new(state) }
    }

    /// Follows for ever, one call after another.
    pub(super) async fn follow(&self, servers: &Servers) {
        loop {
            // Calls end after a while, so that many begin.
            let ends = Instant::now() + Duration::from_millis(self.client.chance.between(500, 20_000));
            self.call(servers, true, ends).await;
            self.client.pause(1_000).await;
        }
    }

    /// Continues to the last revision; whether it was reached.
    pub(super) async fn finish(&self, servers: &Servers, by: Instant) -> bool {
        while Instant::now() < by {
            if self.call(servers, false, by).await {
                return true;
            }
            self.client.pause(500).await;
        }
        false
    }

    /// One call; whether it told the end.
    async fn call(&self, servers: &Servers, follow: bool, ends: Instant) -> bool {
        let opened = self.open(follow).await;
        let mut parts = match opened {
            Ok(parts) => parts,
            Err(status) => {
                self.refused(servers, &status);
                return false;
            }
        };
        loop {
            match timeout_at(ends, parts.message()).await {
                Ok(Ok(Some(part))) => {
                    let end = part.end;
                    self.take(servers, part);
                    if end {
                        return true;
                    }
                }
                Ok(Err(status)) => {
                    self.refused(servers, &status);
                    return false;
                }
                Ok(Ok(None)) | Err(_) => return false,
            }
        }
    }

    async fn open(&self, follow: bool) -> Result<Streaming<CopyHistoryPart>, Status> {
        let request = self.state.borrow_mut().export.request(follow, Consistency::Linearizable);
        let mut client = AdminClient::new(self.client.channel());
        match timeout(ANSWER_MAX, client.copy_history(request)).await {
            Ok(reply) => reply.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("no answer")),
        }
    }

    fn take(&self, servers: &Servers, part: CopyHistoryPart) {
        let mut state = self.state.borrow_mut();
        state.refusals = 0;
        let lines = state.export.take(part).expect("what control nodes send has no gap and can be read");
        let mut history = servers.history();
        let record = &mut history.exports[state.record];
        for line in lines {
            match line {
                LogLine::Header(header) => record.header = Some(*header),
                LogLine::Event(line) => record.lines.push(*line),
            }
        }
        record.to = state.export.at();
    }

    fn refused(&self, servers: &Servers, status: &Status) {
        let mut state = self.state.borrow_mut();
        if status.code() != Code::OutOfRange {
            return;
        }
        state.refusals += 1;
        if state.refusals >= REFUSALS_MAX {
            servers.world.note(format_args!("a new event log: {status}"));
            *state = State { export: begin(), record: new_record(servers), refusals: 0 };
        }
    }
}

fn begin() -> Export {
    Export::new(Revision(0), STOP_MS)
}

fn new_record(servers: &Servers) -> usize {
    let mut history = servers.history();
    history.exports.push(ExportRecord::default());
    history.exports.len() - 1
}
