//! Who pays for an allocation over its life: the quota classes that it had, as segments with their time.
//!
//! What must stay true: each millisecond from the binding on belongs to one class. Segments follow each other in time, and neighbours differ. When
//! there are too many of them, the oldest are added up by class; then it is known how long each class lasted, but no longer when. No time passes from one
//! class to another.

use crate::ids::TenantId;
use crate::words::words;
use serde::{Deserialize, Serialize};

/// Segments that are kept with their time: one or two are usual, and each is some bytes of an object that is written again with each report.
pub const CLASS_SEGMENTS_MAX: usize = 64;
/// Segments in all records of one job's attempts: older attempts keep sums, so that a job which is preempted often stays small.
pub const CLASS_SEGMENTS_PER_JOB_MAX: usize = 256;
/// Classes that are added up apart: eight levels of accounts and the tiers of burst, and as many more after moves of tenants.
pub const CLASS_SUMS_MAX: usize = 32;

/// What kind of burst an allocation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BurstTier {
    /// Under its max alone, and kept from preemption for the cool-down of its pools.
    #[default]
    Standard,
    /// Under its max alone, without a least run time: no cool-down protects it. Growth of elastic gangs is of this kind.
    Spot,
    /// Of a priority class that is marked to preempt burst of other tenants.
    Marked,
}

words!(BurstTier, "burst tier",
    BurstTier::Standard => "standard", BurstTier::Spot => "spot", BurstTier::Marked => "marked");

/// Who pays for an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum QuotaClass {
    /// The floor account of this tenant.
    Guaranteed(TenantId),
    /// No floor account.
    Burst(BurstTier),
}

impl QuotaClass {
    /// Guaranteed where an account pays, else burst of that tier.
    #[must_use]
    pub fn of(account: Option<TenantId>, tier: BurstTier) -> Self {
        account.map_or(QuotaClass::Burst(tier), QuotaClass::Guaranteed)
    }

    /// The tenant whose floor account pays.
    #[must_use]
    pub const fn account(self) -> Option<TenantId> {
        match self {
            QuotaClass::Guaranteed(account) => Some(account),
            QuotaClass::Burst(_) => None,
        }
    }
}

impl From<Option<TenantId>> for QuotaClass {
    /// For those who plan: which tier of burst it is matters to bills alone.
    fn from(account: Option<TenantId>) -> Self {
        QuotaClass::of(account, BurstTier::default())
    }
}

/// From when on a class holds, until the next segment or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSegment {
    /// Milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// Who pays.
    pub class: QuotaClass,
}

/// For how long one class held, of the time before the segments that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSum {
    /// Who paid.
    pub class: QuotaClass,
    /// For how long, in ms.
    pub ms: u64,
}

/// The classes of one allocation. Without a segment or a sum nothing was recorded: it is burst from the binding on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRecord {
    /// The newest segments, the oldest first; at most [`CLASS_SEGMENTS_MAX`].
    pub segments: Vec<ClassSegment>,
    /// The time before them, by class; at most [`CLASS_SUMS_MAX`].
    pub sums: Vec<ClassSum>,
    /// The part of that time that had still other classes. Nobody may be billed for it.
    pub unattributed_ms: u64,
}

impl ClassRecord {
    /// Who pays now.
    #[must_use]
    pub fn now(&self) -> Option<QuotaClass> {
        self.segments.last().map(|segment| segment.class)
    }

    /// Whether nothing is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The time before the segments, in ms.
    #[must_use]
    pub fn summed_ms(&self) -> u64 {
        self.sums.iter().fold(self.unattributed_ms, |all, sum| all.saturating_add(sum.ms))
    }

    /// From `now_ms` on this class holds. `bound_ms` is when the allocation was bound: it was burst until the first class was recorded.
    pub fn set(&mut self, class: QuotaClass, bound_ms: u64, now_ms: u64) {
        if self.segments.is_empty() && self.sums.is_empty() && bound_ms < now_ms {
            self.segments.push(ClassSegment { from_ms: bound_ms, class: QuotaClass::Burst(BurstTier::default()) });
        }
        if self.now() == Some(class) {
            return;
        }
        // No earlier than what holds already, also where a clock was ahead.
        let now_ms = self.segments.last().map_or(bound_ms, |last| last.from_ms).max(now_ms);
        if self.segments.last().is_some_and(|last| last.from_ms == now_ms) {
            self.segments.pop();
            // What held for no time was nobody's: the one before may be of the same class.
            if self.now() == Some(class) {
                return;
            }
        }
        if self.segments.len() >= CLASS_SEGMENTS_MAX {
            self.fold_first(now_ms);
        }
        self.segments.push(ClassSegment { from_ms: now_ms, class });
    }

    /// Adds up everything: only sums are left of an attempt that ended at `end_ms`.
    pub fn fold(&mut self, end_ms: u64) {
        while !self.segments.is_empty() {
            self.fold_first(end_ms);
        }
    }

    /// Adds the first segment to the sums; the one segment that there may be lasts until `end_ms`.
    fn fold_first(&mut self, end_ms: u64) {
        let first = self.segments.remove(0);
        let until_ms = self.segments.first().map_or(end_ms, |next| next.from_ms);
        self.add(first.class, until_ms.saturating_sub(first.from_ms));
    }

    fn add(&mut self, class: QuotaClass, ms: u64) {
        match self.sums.iter().position(|sum| sum.class == class) {
            Some(place) => self.sums[place].ms = self.sums[place].ms.saturating_add(ms),
            None if self.sums.len() < CLASS_SUMS_MAX => self.sums.push(ClassSum { class, ms }),
            None => self.unattributed_ms = self.unattributed_ms.saturating_add(ms),
        }
    }

    /// Whether a time in it is ahead of `now_ms`.
    #[must_use]
    pub fn is_ahead(&self, now_ms: u64) -> bool {
        self.segments.iter().any(|segment| segment.from_ms > now_ms)
    }

    /// Brings times back that are ahead of `now_ms`, when a clock was wrong; `bound_ms` is when the allocation was bound, brought back already.
    pub fn set_back(&mut self, bound_ms: u64, now_ms: u64) {
        let mut back: Vec<ClassSegment> = Vec::with_capacity(self.segments.len());
        for segment in &self.segments {
            let segment = ClassSegment { from_ms: segment.from_ms.min(now_ms), ..*segment };
            // Of those that would begin at once, the last one holds.
            while back.last().is_some_and(|last| last.from_ms >= segment.from_ms) {
                back.pop();
            }
            if back.last().is_none_or(|last| last.class != segment.class) {
                back.push(segment);
            }
        }
        // Time that never was is nobody's.
        let mut left = back.first().map_or(now_ms, |first| first.from_ms).saturating_sub(bound_ms);
        for ms in self.sums.iter_mut().map(|sum| &mut sum.ms).chain([&mut self.unattributed_ms]) {
            *ms = (*ms).min(left);
            left -= *ms;
        }
        self.segments = back;
    }

    /// What is wrong with the record of an allocation that was bound at `bound_ms`, if anything is.
    #[must_use]
    pub fn fault(&self, bound_ms: u64) -> Option<String> {
        let first = self.segments.first()?;
        let begins_ms = bound_ms.saturating_add(self.summed_ms());
        if first.from_ms != begins_ms {
            return Some(format!(
                "its segments begin at {}, and {begins_ms} is the first time without a sum",
                first.from_ms
            ));
        }
        let in_order = self.segments.is_sorted_by(|one, next| one.from_ms < next.from_ms && one.class != next.class);
        let bounded = self.segments.len() <= CLASS_SEGMENTS_MAX && self.sums.len() <= CLASS_SUMS_MAX;
        (!in_order || !bounded).then(|| format!("its segments are {:?}", self.segments))
    }
}
