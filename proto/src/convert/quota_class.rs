//! Who pays for an allocation since when, and what it may be priced by.

use super::{word, word_if};
use crate::v1;
use muster_model::{
    BurstTier, ClassRecord, ClassSegment, ClassSum, FieldError, QuotaClass, RequiredTopology, TenantId,
};

fn class_to_wire(class: QuotaClass) -> (Option<u32>, String) {
    match class {
        QuotaClass::Guaranteed(account) => (Some(account.0), String::new()),
        QuotaClass::Burst(tier) => (None, tier.to_string()),
    }
}

fn class_from_wire(account: Option<u32>, tier: &str) -> Result<QuotaClass, FieldError> {
    match account {
        Some(account) => Ok(QuotaClass::Guaranteed(TenantId(account))),
        None => Ok(QuotaClass::Burst(word::<BurstTier>("tier", tier)?)),
    }
}

/// The segments, and what was before them.
#[must_use]
pub fn record_to_wire(record: &ClassRecord) -> (Vec<v1::ClassSegment>, Option<v1::EarlierClasses>) {
    let segment = |segment: &ClassSegment| {
        let (account, tier) = class_to_wire(segment.class);
        v1::ClassSegment { from_ms: segment.from_ms, account, tier }
    };
    let sum = |sum: &ClassSum| {
        let (account, tier) = class_to_wire(sum.class);
        v1::ClassSum { account, tier, ms: sum.ms }
    };
    let ClassRecord { segments, sums, unattributed_ms } = record;
    let earlier = (!sums.is_empty() || *unattributed_ms > 0)
        .then(|| v1::EarlierClasses { sums: sums.iter().map(sum).collect(), unattributed_ms: *unattributed_ms });
    (segments.iter().map(segment).collect(), earlier)
}

pub(super) fn record_from_wire(
    segments: &[v1::ClassSegment],
    earlier: Option<v1::EarlierClasses>,
) -> Result<ClassRecord, FieldError> {
    let segment = |wire: &v1::ClassSegment| {
        Ok(ClassSegment { from_ms: wire.from_ms, class: class_from_wire(wire.account, &wire.tier)? })
    };
    let sum = |wire: &v1::ClassSum| Ok(ClassSum { class: class_from_wire(wire.account, &wire.tier)?, ms: wire.ms });
    let earlier = earlier.unwrap_or_default();
    Ok(ClassRecord {
        segments: segments.iter().map(segment).collect::<Result<_, FieldError>>()?,
        sums: earlier.sums.iter().map(sum).collect::<Result<_, FieldError>>()?,
        unattributed_ms: earlier.unattributed_ms,
    })
}

impl From<RequiredTopology> for v1::RequiredTopology {
    fn from(topology: RequiredTopology) -> Self {
        v1::RequiredTopology {
            level: topology.level.map(|level| level.to_string()).unwrap_or_default(),
            segment_tasks: topology.segment_tasks,
        }
    }
}

impl TryFrom<v1::RequiredTopology> for RequiredTopology {
    type Error = FieldError;

    fn try_from(wire: v1::RequiredTopology) -> Result<Self, FieldError> {
        Ok(RequiredTopology { level: word_if("level", &wire.level)?, segment_tasks: wire.segment_tasks })
    }
}
