//! Who paid for an allocation or an attempt, since when and for how long, as it is shown.

use crate::units::{show_moment, show_seconds};
use muster_proto::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// From when on an attempt was guaranteed or burst.
#[derive(Clone, Debug, Serialize)]
pub struct QuotaSegment {
    /// The tenant whose floor account pays; absent: burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// What kind of burst it is: standard, spot, marked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tier: String,
    /// RFC 3339.
    pub since: String,
}

/// For how long an attempt was guaranteed or burst.
#[derive(Clone, Debug, Serialize)]
pub struct QuotaTime {
    /// The tenant whose floor account paid; absent: burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// What kind of burst it was.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tier: String,
    /// For how long, in milliseconds.
    pub ms: u64,
}

/// `guaranteed by research/nlp`, `burst (spot)`.
fn words(account: Option<&String>, tier: &str) -> String {
    match account {
        Some(account) => format!("guaranteed by {account}"),
        None if tier.is_empty() => "burst".to_owned(),
        None => format!("burst ({tier})"),
    }
}

fn path_of(paths: &BTreeMap<u32, String>, account: Option<u32>) -> Option<String> {
    account.map(|id| paths.get(&id).cloned().unwrap_or_else(|| format!("#{id}")))
}

impl QuotaSegment {
    fn of(segment: &v1::ClassSegment, paths: &BTreeMap<u32, String>) -> Self {
        QuotaSegment {
            account: path_of(paths, segment.account),
            tier: segment.tier.clone(),
            since: show_moment(segment.from_ms),
        }
    }

    /// Of an allocation; one of which no class was recorded is burst since its binding.
    #[must_use]
    pub fn of_allocation(held: &v1::Allocation, paths: &BTreeMap<u32, String>) -> Vec<Self> {
        if held.classes.is_empty() && held.earlier.is_none() {
            return vec![QuotaSegment { account: None, tier: String::new(), since: show_moment(held.bound_ms) }];
        }
        QuotaSegment::of_all(&held.classes, paths)
    }

    /// In the order of the message.
    #[must_use]
    pub fn of_all(classes: &[v1::ClassSegment], paths: &BTreeMap<u32, String>) -> Vec<Self> {
        classes.iter().map(|segment| QuotaSegment::of(segment, paths)).collect()
    }

    /// `guaranteed by research/nlp since 2026-11-23T02:41:16Z`.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{} since {}", words(self.account.as_ref(), &self.tier), self.since)
    }
}

impl QuotaTime {
    /// Until `ended_ms`: each class once, in the order in which they first held.
    #[must_use]
    pub fn of(
        (classes, earlier): (&[v1::ClassSegment], Option<&v1::EarlierClasses>),
        ended_ms: u64,
        paths: &BTreeMap<u32, String>,
    ) -> Vec<Self> {
        let sums = earlier.into_iter().flat_map(|earlier| &earlier.sums);
        let sums = sums.map(|sum| (sum.account, &sum.tier, sum.ms));
        let ends = classes.iter().skip(1).map(|next| next.from_ms).chain([ended_ms]);
        let segments = classes.iter().zip(ends);
        let segments = segments.map(|(at, end_ms)| (at.account, &at.tier, end_ms.saturating_sub(at.from_ms)));
        let mut times: Vec<QuotaTime> = Vec::new();
        for (account, tier, ms) in sums.chain(segments) {
            let account = path_of(paths, account);
            match times.iter_mut().find(|time| (&time.account, &time.tier) == (&account, tier)) {
                Some(time) => time.ms += ms,
                None => times.push(QuotaTime { account, tier: tier.clone(), ms }),
            }
        }
        times
    }

    /// `burst (spot) 1:30`.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{} {}", words(self.account.as_ref(), &self.tier), show_seconds(self.ms / 1_000))
    }
}
