//! What happened in a run, as seen from outside the servers: the evidence that the [laws](crate::laws) are checked against.
//!
//! What must stay true: nothing in here comes from what a server says of itself beside what it told the world (changes it
//! published, states it showed, answers it gave, tasks it ran); a checker needs nothing but this record, so a doctored record tests it.

mod sessions;

pub use sessions::{Login, LoginAnswer, ProviderThen, Refusal, Sessions};

use fnv::FnvHasher;
use muster_control_core::events::{Header, Line};
use muster_model::ids::{AllocationId, Attempt, JobId, Rank, Revision};
use muster_model::usage::UseKind;
use muster_model::{Change, Job, Object};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher as _;
use std::sync::Arc;

/// What is metered: whose devices, and what was done with them.
pub type Held = (AllocationId, UseKind);

/// The record of one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The state at `base_revision`, before the first recorded change.
    pub base: Vec<Object>,
    /// See `base`.
    pub base_revision: Revision,
    /// The changes of every later revision, as the first replica published them.
    pub log: BTreeMap<Revision, Arc<Vec<Change>>>,
    /// The time of the state after each of them, with the right time when it was seen at the latest.
    pub times: BTreeMap<Revision, (u64, u64)>,
    /// The right time now: what a clock that is kept well shows.
    pub wall_ms: u64,
    /// What each life of each replica published.
    pub replicas: Vec<ReplicaRecord>,
    /// States that replicas showed.
    pub samples: Vec<Sample>,
    /// Calls that submit jobs, in the order in which they were first made.
    pub submissions: Vec<Submission>,
    /// Finished jobs as they were found at the end of the run.
    pub finished: BTreeMap<JobId, Job>,
    /// What clients asked for and were told, call by call.
    pub operations: Vec<Operation>,
    /// Logins, and refusals for want of a session, where the cluster is closed.
    pub sessions: Sessions,
    /// Counts calls and answers, so that they have an order.
    pub moments: u64,
    /// What clients' watches were told.
    pub watches: Vec<WatchRecord>,
    /// Event logs that were exported.
    pub exports: Vec<ExportRecord>,
    /// What ran where, by the nodes' own record.
    pub runs: Vec<Run>,
    /// Usage that agents had on disk under a number of their stream, and so reported or were about to.
    pub metered: BTreeMap<Interval, (Held, u64)>,
    /// Hosts of agents whose streams of usage ended before all was sent: their folder was deleted, or another agent was their node.
    pub lost_usage: BTreeSet<String>,
    /// How often each node was asked to be taken out of the fleet.
    pub removals: BTreeMap<String, u64>,
    /// Intervals whose content changed after they had been numbered.
    pub remetered: Vec<Interval>,
}

/// One life of one replica.
#[derive(Clone, Debug, Default)]
pub struct ReplicaRecord {
    /// Its host.
    pub name: String,
    /// Which life of the host, where lives are counted.
    pub life: u64,
    /// The revision after which it was followed.
    pub after: Revision,
    /// The revisions it published since.
    pub revisions: BTreeSet<Revision>,
    /// Revisions at which it published something else than the first replica that did.
    pub differs_at: Vec<Revision>,
    /// Spans `(after, to]` in which it published nothing because it installed a snapshot.
    pub skipped: Vec<(Revision, Revision)>,
}

/// A state that a replica showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Whose.
    pub replica: String,
    /// Applied so far.
    pub revision: Revision,
    /// Hash over all objects, in their stored form.
    pub digest: u64,
    /// What the state's own check found broken.
    pub broken: Option<String>,
}

/// One submission, with all its retries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submission {
    /// The client's id for it.
    pub request_id: String,
    /// How many jobs it asks for.
    pub jobs: usize,
    /// Every acknowledgement it got: one for each call that was answered.
    pub acknowledged: Vec<Vec<JobId>>,
    /// It was refused for good.
    pub refused: Option<String>,
}

/// One call of a client about one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The request id that the job was submitted under: names the job before it has an id.
    pub of: String,
    /// Through whom.
    pub through: String,
    /// What was asked for.
    pub call: Call,
    /// When, in the order of all calls and answers.
    pub called: u64,
    /// The number of the session that was sent with it, if one was.
    pub session: Option<u64>,
    /// `None` when no answer came: then it may have taken effect at any moment after the call, or never.
    pub answer: Option<Answered>,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// To submit the job, perhaps again.
    Submit,
    /// To read it, linearizably.
    Get {
        /// Whether there is anybody to run it, so that it may end by itself.
        runs: bool,
    },
    /// To cancel it.
    Cancel {
        /// See [`Call::Get`].
        runs: bool,
    },
}

/// An answer, when it came, and the revision it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// When, in the order of all calls and answers.
    pub at: u64,
    /// Which, where the answer names one.
    pub revision: Option<Revision>,
    /// What.
    pub said: Answer,
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Accepted,
    /// The job is there and has not ended.
    Live,
    /// The job has ended.
    Ended,
    /// There is no such job.
    Absent,
    /// There is no such job, or it has ended.
    Gone,
}

/// What one watch session was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchRecord {
    /// Who watched.
    pub watcher: String,
    /// The revision that was asked for; 0 for a snapshot.
    pub from: Revision,
    /// The snapshot it began with, if any: at which revision, and the jobs in it.
    pub snapshot: Option<(Revision, BTreeSet<JobId>)>,
    /// Every change after that, in the order in which it came.
    pub events: Vec<(Revision, JobId)>,
}

/// An event log that an operator exported while the run went on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportRecord {
    /// Its first line, once it has begun.
    pub header: Option<Header>,
    /// Every other.
    pub lines: Vec<Line>,
    /// The last revision that is in it.
    pub to: Revision,
}

/// What names a usage interval.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// The node's name.
    pub node: String,
    /// The stream.
    pub incarnation: u64,
    /// The number in it.
    pub seq: u64,
    /// How often the node's name had been asked to be taken out of the fleet: who comes back under it is another node, whose streams begin anew.
    pub removals: u64,
}

/// One task that ran, by the record of the node it ran on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The node's name.
    pub node: String,
    /// Under which allocation.
    pub allocation: AllocationId,
    /// Of which job.
    pub job: JobId,
    /// Which run of it.
    pub attempt: Attempt,
    /// Which rank.
    pub rank: Rank,
    /// When it started, in nanoseconds since the run began.
    pub from_ns: u64,
    /// When nothing of it was left; `None` while it runs.
    pub to_ns: Option<u64>,
}

impl History {
    /// Every change of the run in order, beginning with the objects of the base.
    pub fn changes(&self) -> impl Iterator<Item = (Revision, Change)> + '_ {
        let base = self.base.iter().map(|object| (self.base_revision, Change::put(object.clone())));
        let log =
            self.log.iter().flat_map(|(revision, changes)| changes.iter().map(|change| (*revision, change.clone())));
        base.chain(log)
    }

    /// Begins the record of a submission, and gives its index.
    pub fn submit(&mut self, submission: Submission) -> usize {
        self.submissions.push(submission);
        self.submissions.len() - 1
    }

    /// A client calls; gives the index of the operation.
    pub fn called(&mut self, of: &str, through: &str, call: Call) -> usize {
        self.moments += 1;
        let (of, through) = (of.to_owned(), through.to_owned());
        self.operations.push(Operation { of, through, call, called: self.moments, session: None, answer: None });
        self.operations.len() - 1
    }

    /// The call was answered.
    pub fn answered(&mut self, operation: usize, revision: impl Into<Option<Revision>>, said: Answer) {
        self.moments += 1;
        self.operations[operation].answer = Some(Answered { at: self.moments, revision: revision.into(), said });
    }

    /// Takes in a usage interval that an agent has on disk: its allocation and unit-milliseconds.
    pub fn metered(&mut self, mut interval: Interval, content: (Held, u64)) {
        interval.removals = self.removals.get(&interval.node).copied().unwrap_or(0);
        match self.metered.get(&interval) {
            Some(known) if *known != content => self.remetered.push(interval),
            Some(_) => {}
            None => {
                self.metered.insert(interval, content);
            }
        }
    }

    /// Takes in what a replica published; the index of its record is `replica`.
    pub fn published(&mut self, replica: usize, revision: Revision, now_ms: u64, changes: &Arc<Vec<Change>>) {
        let wall_ms = self.wall_ms;
        self.times.entry(revision).or_insert((now_ms, wall_ms));
        let record = &mut self.replicas[replica];
        record.revisions.insert(revision);
        match self.log.get(&revision) {
            Some(first) if first != changes => record.differs_at.push(revision),
            Some(_) => {}
            None => {
                self.log.insert(revision, Arc::clone(changes));
            }
        }
    }
}

/// The hash that samples carry: over the stored form of every object, in order.
pub fn digest(objects: impl Iterator<Item = Object>) -> u64 {
    let mut hash = FnvHasher::default();
    for object in objects {
        hash.write(&postcard::to_allocvec(&object).expect("every object can be stored"));
    }
    hash.finish()
}
