//! One Xid that two sources report counts once, and one record of the kernel's log that is read twice.
//!
//! What must stay true: a report is matched with at most one of the other source; two reports of one source are two faults; what is
//! remembered is bounded.

use super::event::{XidEvent, XidSource};
use super::xid::Xid;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How far apart the two reports of one Xid may lie, in ms. Both are written within the same interrupt; a driver under load delivers NVML's
/// events some seconds late.
pub const MATCH_WINDOW_MS: u64 = 10_000;

/// Reports that wait for the other source's: a fault of a kernel that runs on every multiprocessor writes about a hundred lines at once.
const RECENT_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Report {
    xid: Xid,
    instance: Option<u8>,
    from_kernel: bool,
    at_ms: u64,
}

impl Report {
    fn matches(&self, other: &Report) -> bool {
        (self.xid, self.instance) == (other.xid, other.instance)
            && self.from_kernel != other.from_kernel
            && self.at_ms.abs_diff(other.at_ms) <= MATCH_WINDOW_MS
    }
}

/// How a report stands to earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A fault that was not told before.
    New,
    /// The other source told it already; this one may say more of it.
    ByTheOtherSource,
    /// The same record of the kernel's log.
    Before,
}

/// Reports without a match so far, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecentXids {
    unmatched: VecDeque<Report>,
    /// The highest record of the kernel's log that was read in this boot.
    kernel_seq: Option<u64>,
}

impl RecentXids {
    pub(crate) fn see(&mut self, event: &XidEvent) -> Seen {
        if let XidSource::Kernel { seq: Some(seq) } = event.source
            && !self.is_new_record(seq)
        {
            return Seen::Before;
        }
        let report = Report {
            xid: event.xid,
            instance: event.instance.map(|instance| instance.id),
            from_kernel: matches!(event.source, XidSource::Kernel { .. }),
            at_ms: event.at_ms,
        };
        if let Some(at) = self.unmatched.iter().position(|earlier| earlier.matches(&report)) {
            self.unmatched.remove(at);
            return Seen::ByTheOtherSource;
        }
        if self.unmatched.len() >= RECENT_MAX {
            self.unmatched.pop_front();
        }
        self.unmatched.push_back(report);
        Seen::New
    }

    /// Whether a record of the kernel's log was not told before.
    pub(crate) fn is_new_record(&mut self, seq: u64) -> bool {
        let is_new = self.kernel_seq.is_none_or(|highest| seq > highest);
        if is_new {
            self.kernel_seq = Some(seq);
        }
        is_new
    }

    /// A new boot: the kernel counts its records anew.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}
