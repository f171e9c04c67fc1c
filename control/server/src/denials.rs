//! What was refused at this node, and what was read of others' content: a chain of records of its own, beside the log's.
//!
//! What must stay true:
//! - a flood of refusals costs a bounded amount: of each caller so many a second are kept in full, and the rest is counted;
//! - a call never waits for a record; one that is lost because the queue is full is counted as well;
//! - the chain's head is committed to the log now and then, so that a record that is cut off or altered later shows.

use crate::consensus::Consensus;
use muster_control_core::rate::{Buckets, Rate};
use muster_control_core::{Command, audit_link};
use muster_model::identity::Author;
use muster_model::{AccessMode, AuditRecord, Principal};
use muster_runtime::{Batch, DiskError, Host, Kv};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

const STORE: &str = "denials";
const RECORDS: &str = "records";
const SPACES: [&str; 1] = [RECORDS];
/// Records that wait to be written.
const QUEUE_MAX: usize = 1_024;
/// Records that are kept: at ten a second of one caller, more than a day of a constant flood; some hundred megabytes.
const KEPT_MAX: u64 = 1_000_000;
/// Of each caller, in full.
const IN_FULL: Rate = Rate { per_s: 10, burst: 10 };
/// Callers whose rate is remembered.
const CALLERS_MAX: usize = 4_096;
/// Between two heads in the log.
const COMMIT_EVERY: Duration = Duration::from_secs(10);

/// Takes what is to be recorded. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Denials {
    queue: mpsc::Sender<Noted>,
    kv: Arc<dyn Kv>,
}

struct Noted {
    author: Author,
    rpc: &'static str,
    what: String,
}

impl Denials {
    /// Opens this node's chain and starts writing it.
    ///
    /// # Errors
    /// When the store cannot be opened or read.
    pub(crate) fn start(host: &Host, consensus: Consensus) -> Result<Self, DiskError> {
        let kv = host.disk.open(STORE, &SPACES)?;
        let last = kv.scan(RECORDS, &[], None, 1, true)?;
        let last = last.first().map(|(_, bytes)| read(bytes)).transpose()?;
        let (queue, noted) = mpsc::channel(QUEUE_MAX);
        let (number, head) = last.map_or((0, [0; 32]), |record| (record.number, record.hash));
        let chain = Chain {
            consensus,
            kv: Arc::clone(&kv),
            number,
            head,
            committed: number,
            counted: 0,
            callers: Buckets::new(CALLERS_MAX),
        };
        host.spawn(chain.run(noted));
        Ok(Denials { queue, kv })
    }

    /// Records a refusal, or that something was read.
    pub(crate) fn note(&self, author: &Author, rpc: &'static str, what: String) {
        if self.queue.try_send(Noted { author: author.clone(), rpc, what }).is_err() {
            metrics::counter!("muster_denials_not_recorded_total").increment(1);
        }
    }

    /// Records below number `before` (all, without one), the newest first.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) fn newest(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>, DiskError> {
        let to = before.map(u64::to_be_bytes);
        let pairs = self.kv.scan(RECORDS, &[], to.as_ref().map(<[u8; 8]>::as_slice), limit, true)?;
        pairs.iter().map(|(_, bytes)| read(bytes)).collect()
    }
}

fn read(bytes: &[u8]) -> Result<AuditRecord, DiskError> {
    postcard::from_bytes(bytes)
        .map_err(|error| DiskError::Corrupt { what: "a record of refusals".to_owned(), why: error.to_string() })
}

/// The writing side.
struct Chain {
    consensus: Consensus,
    kv: Arc<dyn Kv>,
    number: u64,
    head: [u8; 32],
    /// The number that the log knows.
    committed: u64,
    /// Refusals that were not kept in full since the last head.
    counted: u64,
    callers: Buckets<String>,
}

impl Chain {
    async fn run(mut self, mut noted: mpsc::Receiver<Noted>) {
        let mut commits = tokio::time::interval(COMMIT_EVERY);
        commits.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                one = noted.recv() => match one {
                    Some(one) => self.take(one),
                    None => return,
                },
                _ = commits.tick() => self.commit().await,
            }
        }
    }

    fn take(&mut self, one: Noted) {
        let caller = format!("{} {}", one.author.principal, one.author.from);
        if self.callers.take(&caller, self.consensus.now_ms(), IN_FULL).is_err() {
            self.counted += 1;
            return;
        }
        self.append(one.author, one.rpc, one.what);
    }

    fn append(&mut self, author: Author, rpc: &str, target: String) {
        let (number, at_ms) = (self.number + 1, self.consensus.now_ms());
        let mut record = AuditRecord { number, at_ms, author, rpc: rpc.to_owned(), target, hash: [0; 32] };
        record.hash = audit_link(&self.head, &record);
        let Ok(bytes) = postcard::to_stdvec(&record) else { return };
        let mut batch = Batch::default();
        batch.put(RECORDS, number.to_be_bytes(), bytes);
        if number > KEPT_MAX {
            batch.delete(RECORDS, (number - KEPT_MAX).to_be_bytes());
        }
        if let Err(error) = self.kv.write(&batch) {
            // A full or failing disk stops no call: it is counted, and the log's own chain goes on.
            tracing::warn!(%error, "a refusal cannot be recorded");
            metrics::counter!("muster_denials_not_recorded_total").increment(1);
            return;
        }
        (self.number, self.head) = (number, record.hash);
    }

    /// Puts the head into the log, when there is something new and the cluster asks who calls.
    async fn commit(&mut self) {
        if self.counted > 0 {
            let counted = std::mem::take(&mut self.counted);
            let own = Author { principal: Principal::Member(self.consensus.id()), ..Author::default() };
            self.append(own, "counted", format!("{counted} more refusals that are not listed"));
        }
        let closed = self.consensus.read(|state, _| state.meta.access == AccessMode::Closed);
        if self.number == self.committed || !closed || self.kv.sync().await.is_err() {
            return;
        }
        let (member, number, hash) = (self.consensus.id(), self.number, self.head);
        let author = Author { principal: Principal::Member(member), ..Author::default() };
        let command = Command::CommitAuditHead { member, number, hash }.by(author);
        match self.consensus.propose(vec![command]).await {
            Ok(proposed) if proposed.decided.iter().all(Result::is_ok) => self.committed = number,
            Ok(proposed) => tracing::warn!(?proposed.decided, "the head of the recorded refusals was refused"),
            Err(error) => tracing::debug!(%error, "the head of the recorded refusals waits for a leader"),
        }
    }
}
