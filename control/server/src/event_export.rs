//! The reading side of `Admin.CopyHistory`: makes the event log of a running cluster from what control nodes send.
//!
//! The same [`Follower`] makes the log of a replay. What must stay true:
//! - a log has every revision after the one that it begins with, in order: a call that breaks off is continued with the next one, at any
//!   control node, and what would leave a gap is an error;
//! - a revision is told when it is complete, and once;
//! - it does no I/O: calls, files and waiting belong to the caller.

use crate::consensus::copied::{self, NotAnObject};
use muster_control_core::events::{About, Follower, Header, Line};
use muster_model::ids::{AllocationId, NodeId, TenantId};
use muster_model::{Change, Key, Object, Revision};
use muster_proto::v1;
use muster_proto::v1::copied_change::Change as Copied;
use serde::Serialize;
use std::collections::BTreeMap;

/// A line of the log's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LogLine {
    /// The first.
    Header(Box<Header>),
    /// Every other.
    Event(Box<Line>),
}

/// Why a log cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A part cannot be read.
    #[error("revision {revision} cannot be read: {source}; use a command that is no older than the control nodes")]
    Unreadable {
        /// Of which revision.
        revision: u64,
        /// Why.
        source: NotAnObject,
    },
    /// A revision is missing.
    #[error("a control node sent revision {got} where revision {expected} follows")]
    Gap {
        /// The next one.
        expected: u64,
        /// What came.
        got: u64,
    },
}

/// A log in the making.
#[derive(Debug)]
pub struct Export {
    since: Revision,
    stop_ms_max: u64,
    stage: Stage,
    /// Up to here everything was taken in.
    at: Revision,
    now_ms: u64,
    /// Changes of a revision of which more is to come.
    partial: Vec<Change>,
}

#[derive(Debug)]
enum Stage {
    /// The state that the log begins with is being put together.
    Gathering {
        objects: BTreeMap<Key, Object>,
        whole: bool,
    },
    Following(Box<Follower>),
}

impl Stage {
    fn empty() -> Stage {
        Stage::Gathering { objects: BTreeMap::new(), whole: false }
    }
}

impl Export {
    /// A log that begins with the state at revision `since`; 0: the earliest that the control node which is asked first can tell. From the end
    /// of a grace to the release it takes `stop_ms_max` at most.
    #[must_use]
    pub fn new(since: Revision, stop_ms_max: u64) -> Self {
        Export { since, stop_ms_max, stage: Stage::empty(), at: since, now_ms: 0, partial: Vec::new() }
    }

    /// What to ask for next. What a broken call sent of an incomplete revision or state is forgotten.
    pub fn request(&mut self, follow: bool, consistency: v1::Consistency) -> v1::CopyHistoryRequest {
        self.partial.clear();
        let with_state = !matches!(self.stage, Stage::Following(_));
        if with_state {
            (self.stage, self.at) = (Stage::empty(), self.since);
        }
        v1::CopyHistoryRequest { after_revision: self.at.0, with_state, follow, consistency: consistency.into() }
    }

    /// The last revision that is in the log.
    #[must_use]
    pub fn at(&self) -> Revision {
        self.at
    }

    /// Whether the log has begun: then it is continued, otherwise it begins anew.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        matches!(self.stage, Stage::Following(_))
    }

    /// Takes in a part; gives what it adds to the log.
    ///
    /// # Errors
    /// [`ExportError`]; the log ends before this part then.
    pub fn take(&mut self, part: v1::CopyHistoryPart) -> Result<Vec<LogLine>, ExportError> {
        let v1::CopyHistoryPart { revision, now_ms, state, objects, changes, more, end } = part;
        let unreadable = |source| ExportError::Unreadable { revision, source };
        if state {
            let Stage::Gathering { objects: gathered, whole } = &mut self.stage else {
                return Err(ExportError::Gap { expected: self.at.0.saturating_add(1), got: revision });
            };
            for bytes in objects {
                let object = copied::decode(&bytes).map_err(unreadable)?;
                gathered.insert(object.key(), object);
            }
            *whole = !more;
            (self.at, self.now_ms) = (Revision(revision), now_ms);
            return Ok(self.begin_if_due(false));
        }
        if end {
            let mut lines = self.begin_if_due(true);
            lines.extend(self.end(now_ms));
            return Ok(lines);
        }
        if revision == self.at.0 && changes.is_empty() {
            // Nothing has happened since.
            return Ok(Vec::new());
        }
        let expected = self.at.0.saturating_add(1);
        if revision != expected || matches!(self.stage, Stage::Gathering { whole: false, .. }) {
            return Err(ExportError::Gap { expected, got: revision });
        }
        for change in changes.into_iter().filter_map(|change| change.change) {
            self.partial.push(read(change).map_err(unreadable)?);
        }
        if more {
            return Ok(Vec::new());
        }
        let changes = std::mem::take(&mut self.partial);
        (self.at, self.now_ms) = (Revision(revision), now_ms);
        match &mut self.stage {
            Stage::Following(follower) => {
                let lines = follower.follow(revision, now_ms, &changes);
                Ok(lines.into_iter().map(|line| LogLine::Event(Box::new(line))).collect())
            }
            Stage::Gathering { objects, .. } => {
                changes.into_iter().for_each(|change| put(objects, change));
                Ok(self.begin_if_due(false))
            }
        }
    }

    /// The last line: nothing was observed after `now_ms`. None before the log has begun.
    pub fn end(&mut self, now_ms: u64) -> Option<LogLine> {
        match &mut self.stage {
            Stage::Following(follower) => Some(LogLine::Event(Box::new(follower.end(now_ms)))),
            Stage::Gathering { .. } => None,
        }
    }

    /// Begins the log when the state is whole and that of the revision asked for. A cluster has no time before its first command: its log begins
    /// after that, unless it has to begin now.
    fn begin_if_due(&mut self, now: bool) -> Vec<LogLine> {
        let Stage::Gathering { objects, whole: true } = &mut self.stage else { return Vec::new() };
        if !now && (self.at < self.since || self.now_ms == 0) {
            return Vec::new();
        }
        let objects: Vec<Object> = std::mem::take(objects).into_values().collect();
        let pools = objects.iter().filter_map(|object| match object {
            Object::Pool(pool) => Some(pool),
            _ => None,
        });
        let about = About::of_pools(pools, self.stop_ms_max);
        let (follower, header, lines) = Follower::begin(objects, (self.at.0, self.now_ms), about);
        self.stage = Stage::Following(Box::new(follower));
        let events = lines.into_iter().map(|line| LogLine::Event(Box::new(line)));
        std::iter::once(LogLine::Header(Box::new(header))).chain(events).collect()
    }
}

fn put(objects: &mut BTreeMap<Key, Object>, change: Change) {
    match change {
        Change::Put(object) => drop(objects.insert(object.key(), *object)),
        Change::Delete(key) => drop(objects.remove(&key)),
        Change::Retire(job) => drop(objects.remove(&Key::Job(job.id))),
        Change::Audit(_) => {}
    }
}

fn read(change: Copied) -> Result<Change, NotAnObject> {
    // Ids of tenants and nodes have 32 bits; one that has more was never given, and so names nothing.
    let small = |id: u64| u32::try_from(id).unwrap_or(u32::MAX);
    Ok(match change {
        Copied::Put(bytes) => Change::put(copied::decode(&bytes)?),
        Copied::RetiredJob(bytes) => Change::Retire(Box::new(copied::decode_job(&bytes)?)),
        Copied::DeletedTenant(id) => Change::Delete(Key::Tenant(TenantId(small(id)))),
        Copied::DeletedPool(name) => Change::Delete(Key::Pool(name)),
        Copied::DeletedNode(id) => Change::Delete(Key::Node(NodeId(small(id)))),
        Copied::DeletedAllocation(id) => Change::Delete(Key::Allocation(AllocationId(id))),
    })
}
