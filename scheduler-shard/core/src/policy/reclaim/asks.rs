//! By which rules a job may take devices from whom: the rules that the control plane proves again.
//!
//! What must stay true: what is legal here is legal there, at the same revision; a cool-down that alone protects something is answered with its end,
//! so that a group that waits for it is tried again then.

use crate::job_class::Offer;
use crate::view::{Known, View};
use muster_model::capacity::Ended;
use muster_model::priority_class::class_preempts;
use muster_model::{Allocation, TenantId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// By which rules a job may take devices from whom.
pub(super) struct Asks<'a> {
    tenant: TenantId,
    pub(super) priority: i32,
    pub(super) offer: &'a Offer,
    /// A floor account covers it.
    pub(super) covered: bool,
    class: Option<Arc<str>>,
    pub(super) now_ms: u64,
    /// Some pool has a cool-down, or a bound of preemptions: most have neither, and then nobody's pool is looked up.
    pools_matter: bool,
}

/// Whether something may be taken for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Legal,
    /// It will be legal then, if nothing changes.
    CoolingDown {
        until_ms: u64,
    },
    Protected,
}

/// Why a job may not preempt what another holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A floor account pays for it.
    Guaranteed,
    /// It is of the same tenant, and its priority is no lower.
    Priority,
    /// It is burst, but no floor account covers the job, nor is the job's priority class marked over its class.
    NotCovered,
    /// It is burst, but the use of its side, below the lowest common ancestor, is within its guarantee.
    WithinGuarantee,
    /// Its cool-down ends then.
    CoolingDown {
        /// In milliseconds from now.
        left_ms: u64,
    },
    /// Its pool allows no more preemptions of one job.
    TooOften {
        /// How often it was preempted.
        preemptions: u32,
    },
    /// The job has lost the right to preempt.
    Barred,
}

/// Why `job` may not preempt `held`, by the rules of the pass; none where it may.
pub(crate) fn protection(
    view: &View,
    (job, offer): (&Known, &Offer),
    held: &Allocation,
    now_ms: u64,
) -> Option<Protection> {
    let asks = Asks::of(view, job, offer, now_ms);
    if job.barred {
        return Some(Protection::Barred);
    }
    match asks.judge(view, held, &mut BTreeMap::new()) {
        Verdict::Legal => None,
        Verdict::CoolingDown { until_ms } => Some(Protection::CoolingDown { left_ms: until_ms.saturating_sub(now_ms) }),
        Verdict::Protected if asks.by_right(view, held, &mut BTreeMap::new()) => {
            Some(Protection::TooOften { preemptions: view.jobs.get(held.job.0).map_or(0, |job| job.preemptions) })
        }
        Verdict::Protected => Some(match held.account() {
            _ if held.tenant == job.tenant => Protection::Priority,
            Some(_) => Protection::Guaranteed,
            None if asks.covered => Protection::WithinGuarantee,
            None => Protection::NotCovered,
        }),
    }
}

/// A victim's tenant, whether the victim frees GPUs, CPU and memory that are asked for, and whether it is growth: whether its side may be
/// reclaimed from goes by these.
pub(super) type Side = (TenantId, [bool; 4]);

impl<'a> Asks<'a> {
    pub(super) fn of(view: &View, job: &Known, offer: &'a Offer, now_ms: u64) -> Self {
        let capacity = &view.fleet.capacity;
        let covered = capacity.account_for(job.tenant, &offer.charge).is_some();
        let (priority, class) = (job.queue_key.priority(), job.priority_class.clone());
        let pools_matter = capacity.pools().values().any(|pool| pool.cool_down_s > 0 || pool.preemptions_max.is_some());
        Asks { tenant: job.tenant, priority, offer, covered, class, now_ms, pools_matter }
    }

    /// Whether it may take this one; see [`Asks::judge`].
    pub(super) fn may_take(&self, view: &View, held: &Allocation, sides: &mut BTreeMap<Side, bool>) -> bool {
        self.judge(view, held, sides) == Verdict::Legal
    }

    /// Legal is a lower priority of the same tenant; of burst that is out of its cool-down also one whose side is above its guarantee, for a job that a
    /// floor covers, and one of lower priority whose class the job's class is marked over. `sides`: what was found of sides since something ended
    /// last.
    pub(super) fn judge(&self, view: &View, held: &Allocation, sides: &mut BTreeMap<Side, bool>) -> Verdict {
        match self.by_right(view, held, sides) {
            false => Verdict::Protected,
            true if self.pools_matter => self.by_pools(view, held, held.account().is_none()),
            true => Verdict::Legal,
        }
    }

    /// The same without the pools' cool-downs and bounds.
    fn by_right(&self, view: &View, held: &Allocation, sides: &mut BTreeMap<Side, bool>) -> bool {
        let capacity = &view.fleet.capacity;
        let burst = held.account().is_none();
        let lower = held.priority < self.priority;
        let mut reclaims = || {
            let asked = (self.tenant, &self.offer.charge);
            *sides.entry(self.side(held)).or_insert_with(|| capacity.may_reclaim(&Ended::default(), asked, held))
        };
        held.tenant == self.tenant && lower
            || burst && self.covered && reclaims()
            || burst && lower && self.is_marked(view, held)
    }

    fn side(&self, held: &Allocation) -> Side {
        let (asked, frees) = (&self.offer.charge, &held.charge);
        let gpus = self.offer.model.is_some_and(|model| asked.gpu(model).0 > 0 && frees.gpu(model).0 > 0);
        let cpu = asked.cpu_milli > 0 && frees.cpu_milli > 0;
        (held.tenant, [gpus, cpu, asked.memory_mib > 0 && frees.memory_mib > 0, held.is_growth])
    }

    pub(super) fn is_marked(&self, view: &View, held: &Allocation) -> bool {
        self.class.is_some() && {
            let theirs = view.jobs.get(held.job.0).and_then(|job| job.priority_class.as_deref());
            class_preempts(&view.priority_classes, self.class.as_deref(), theirs)
        }
    }

    /// Whether it is out of its cool-down, and its job has not been preempted too often.
    fn by_pools(&self, view: &View, held: &Allocation, burst: bool) -> Verdict {
        let capacity = &view.fleet.capacity;
        // Growth has no cool-down, and taking it is no preemption of its job.
        if held.is_growth {
            return Verdict::Legal;
        }
        let preempted = view.jobs.get(held.job.0).map_or(0, |job| job.preemptions);
        if capacity.preemptions_max(held).is_some_and(|most| preempted >= most) {
            return Verdict::Protected;
        }
        let cool_at_ms = held.bound_ms.saturating_add(capacity.cool_down_ms(held));
        if burst && self.now_ms < cool_at_ms { Verdict::CoolingDown { until_ms: cool_at_ms } } else { Verdict::Legal }
    }
}
