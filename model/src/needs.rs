//! Needs-only requests: a task says what it needs, the system picks how it holds a card.
//!
//! [`choose`] is a pure function of the needs, of who asks and of what the fleet's pools offer; its answer is part of the accepted job
//! and is never reconsidered, so a replay gives the same. What must stay true: what is chosen holds the memory asked, gives the
//! compute asked (within the pool's tolerance, for steady work alone; on a time-slice, what is left when all places of the card are taken), keeps the
//! isolation asked, and is allowed by a pool.
//!
//! | asked | tried, in this order |
//! | --- | --- |
//! | bursty and latency-critical, or strict | a MIG slice sized for the peak, a whole card |
//! | bursty, best effort | a time-slice, an MPS share: both borrow a neighbour's idle time; then as above |
//! | bursty, trusted | an MPS share, then as above |
//! | steady | the smallest MIG slice within the tolerance, an MPS share unless strict, a time-slice at best effort, a whole card |
//! | more than a card | whole cards on one island |
//!
//! MIG has no peer access, so gangs of several tasks are given none; training is given no time-slice; untrusted tenants share a card
//! through MIG alone.

use crate::bounds::CARDS_PER_TASK_MAX;
use crate::capacity::ShareRule;
use crate::field_error::FieldError;
use crate::gpu::{GpuModel, MigFamily};
use crate::mig::{self, MigShape, PinnedLayout};
use crate::node::Pool;
use crate::request::{DeviceRequest, SharingMode};
use crate::words::words;
use crate::workload::WorkloadClass;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How far a task must be kept from its neighbours on a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Isolation {
    /// By the hardware: whole cards and MIG.
    Strict,
    /// Inside its own trust domain, under MPS.
    Trusted,
    /// Any way.
    #[default]
    BestEffort,
}

words!(Isolation, "isolation",
    Isolation::Strict => "strict", Isolation::Trusted => "trusted", Isolation::BestEffort => "best-effort");

/// What one task needs of a card. For bursty work the figures are those of its peak.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Needs {
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Compute in percent of a card; 0 when it does not matter, above 100 for more than a card.
    pub compute_percent: u32,
    /// From its neighbours.
    pub isolation: Isolation,
    /// It is idle most of the time.
    pub bursty: bool,
    /// It must not wait for a neighbour.
    pub latency_critical: bool,
    /// Acceptable models, the preferred first; empty means any.
    pub models: Vec<GpuModel>,
}

/// Cards that the job might get: one model in one pool that serves its class.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The model.
    pub model: GpuModel,
    /// The pool's rules.
    pub pool: &'a Pool,
    /// Cards of the model in the largest island.
    pub island_cards: u32,
    /// How much of a card its shares may have.
    pub shares: ShareRule,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Size of the gang.
    pub tasks: u32,
    /// Kind of work.
    pub class: WorkloadClass,
    /// The tenant may share a card through MIG alone.
    pub untrusted: bool,
}

/// Which rule decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Rule {
    /// More than one card is needed.
    LargerThanACard,
    /// Isolation by the hardware was asked.
    StrictIsolation,
    /// Bursts must not wait for a neighbour.
    LatencyCritical,
    /// Bursts can borrow a neighbour's idle time.
    BorrowsIdleTime,
    /// Bursts could borrow idle time, but nothing that is allowed lets them.
    SizedForPeak,
    /// The work is steady and smaller than a card.
    SteadyAndSmall,
    /// No part of a card that is allowed is large enough.
    NothingSmaller,
}

words!(Rule, "rule",
    Rule::LargerThanACard => "larger-than-a-card", Rule::StrictIsolation => "strict-isolation",
    Rule::LatencyCritical => "latency-critical", Rule::BorrowsIdleTime => "borrows-idle-time",
    Rule::SizedForPeak => "sized-for-peak", Rule::SteadyAndSmall => "steady-and-small",
    Rule::NothingSmaller => "nothing-smaller");

/// What was chosen and why; the request itself stands beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Choice {
    /// The rule that decided.
    pub rule: Rule,
    /// The model it was sized on.
    pub model: GpuModel,
    /// Compute that one task gets there at least, in percent of a card; under time-slicing, while every place of the card is taken.
    pub compute_percent: u32,
    /// Memory that one task gets there, in MiB.
    pub memory_mib: u64,
}

impl Choice {
    /// For people: what it is and why, with the figures.
    #[must_use]
    pub fn text(&self, devices: &DeviceRequest) -> String {
        let Choice { rule, model, compute_percent, memory_mib } = self;
        let what = match devices {
            DeviceRequest::None => "no GPU".to_owned(),
            DeviceRequest::Whole { count: 1, .. } => "a whole GPU".to_owned(),
            DeviceRequest::Whole { count, .. } => format!("{count} whole GPUs on one island"),
            DeviceRequest::Mig { profile, .. } => format!("MIG slice {profile}"),
            DeviceRequest::Mps { .. } => "an MPS share".to_owned(),
            DeviceRequest::TimeSlice { .. } => "a time-slice".to_owned(),
        };
        let why = match rule {
            Rule::LargerThanACard => "it needs more than one GPU",
            Rule::StrictIsolation => "strict isolation needs whole GPUs or MIG",
            Rule::LatencyCritical => "latency-critical work gets its peak compute, without sharing in time",
            Rule::BorrowsIdleTime => "bursts can use the idle time of other tasks on the GPU",
            Rule::SizedForPeak => "no sharing of idle time is allowed, so it gets its peak compute",
            Rule::SteadyAndSmall => "it is the smallest part of a GPU that is enough for steady work",
            Rule::NothingSmaller => "no allowed part of a GPU is large enough",
        };
        let compute = match devices {
            DeviceRequest::TimeSlice { .. } => {
                format!("at least {compute_percent} % of the compute of a GPU, by time-slicing")
            }
            _ => format!("{compute_percent} % of the compute of a GPU"),
        };
        format!("{what}, because {why}: {memory_mib} MiB and {compute} on {model}")
    }
}

/// One way of holding cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A MIG slice; `tolerant`: a little less compute will do.
    Mig {
        tolerant: bool,
    },
    Mps,
    TimeSlice,
    Whole,
    Cards,
}

/// Picks the way to hold cards, with the models it holds for; the second of the pair is the reason.
///
/// # Errors
/// When no pool offers a way, naming the field and the fix.
pub fn choose(needs: &Needs, asker: &Asker, offers: &[Offer<'_>]) -> Result<(DeviceRequest, Choice), FieldError> {
    let ranked = ranked(needs, offers);
    if ranked.is_empty() {
        return Err(no_offer(needs, offers));
    }
    let (rule, mut ways) = ways(needs, asker);
    // The job may land in any of these pools: each must give the compute when all its places are taken.
    let sliced = ranked.iter().filter(|offer| offer.pool.modes.contains(&SharingMode::TimeSlice));
    let least = sliced.map(|offer| least_time_sliced(offer.pool)).min().unwrap_or(0);
    ways.retain(|way| *way != Way::TimeSlice || needs.compute_percent <= least);
    for way in ways {
        let Some((request, mut choice)) = ranked.iter().find_map(|offer| fit(way, needs, offer)) else { continue };
        if way == Way::TimeSlice {
            choice.compute_percent = least;
        }
        choice.rule = match way {
            Way::Cards => Rule::LargerThanACard,
            Way::Whole if !matches!(rule, Rule::StrictIsolation | Rule::LatencyCritical) => Rule::NothingSmaller,
            Way::Mig { .. } if rule == Rule::BorrowsIdleTime => Rule::SizedForPeak,
            _ => rule,
        };
        let same = |offer: &&&Offer<'_>| fit(way, needs, offer).is_some_and(|(other, _)| other == request);
        let mut models: Vec<GpuModel> = Vec::new();
        for offer in ranked.iter().filter(same) {
            if !models.contains(&offer.model) {
                models.push(offer.model);
            }
        }
        return Ok((with_models(request, models), choice));
    }
    Err(nothing_fits(needs, &ranked))
}

/// The offers of acceptable models, in the order of preference.
fn ranked<'a, 'b>(needs: &Needs, offers: &'a [Offer<'b>]) -> Vec<&'a Offer<'b>> {
    if needs.models.is_empty() {
        return offers.iter().collect();
    }
    needs.models.iter().flat_map(|model| offers.iter().filter(move |offer| offer.model == *model)).collect()
}

/// The ways to try in order, and the rule they follow.
fn ways(needs: &Needs, asker: &Asker) -> (Rule, Vec<Way>) {
    let steady = !needs.bursty && !needs.latency_critical;
    let mig = Way::Mig { tolerant: steady };
    let (rule, mut ways) = match needs.isolation {
        _ if needs.bursty && needs.latency_critical => (Rule::LatencyCritical, vec![mig]),
        Isolation::Strict => (Rule::StrictIsolation, vec![mig]),
        Isolation::BestEffort if needs.bursty => (Rule::BorrowsIdleTime, vec![Way::TimeSlice, Way::Mps, mig]),
        Isolation::Trusted if needs.bursty => (Rule::BorrowsIdleTime, vec![Way::Mps, mig]),
        _ if needs.latency_critical => (Rule::LatencyCritical, vec![mig]),
        Isolation::Trusted => (Rule::SteadyAndSmall, vec![mig, Way::Mps]),
        Isolation::BestEffort => (Rule::SteadyAndSmall, vec![mig, Way::Mps, Way::TimeSlice]),
    };
    ways.extend([Way::Whole, Way::Cards]);
    ways.retain(|way| match way {
        Way::Mig { .. } => asker.tasks == 1,
        Way::Mps => !asker.untrusted,
        Way::TimeSlice => !asker.untrusted && asker.class != WorkloadClass::Training,
        Way::Whole | Way::Cards => true,
    });
    (rule, ways)
}

/// What `way` would be on an offer, if it is allowed there and large enough.
fn fit(way: Way, needs: &Needs, offer: &Offer<'_>) -> Option<(DeviceRequest, Choice)> {
    let (model, pool) = (offer.model, offer.pool);
    let card_mib = model.memory_mib();
    let on_a_card = needs.memory_mib <= card_mib && needs.compute_percent <= 100;
    let mode = match way {
        Way::Mig { .. } => SharingMode::Mig,
        Way::Mps => SharingMode::Mps,
        Way::TimeSlice => SharingMode::TimeSlice,
        Way::Whole | Way::Cards => SharingMode::Whole,
    };
    // Cards that are pinned serve the slots of their layout alone.
    let pin = pool.pin_of_all(model);
    if !pool.modes.contains(&mode) || (!on_a_card && way != Way::Cards) || (pin.is_some() && mode != SharingMode::Mig) {
        return None;
    }
    if matches!(way, Way::Mps | Way::TimeSlice) && needs.memory_mib > offer.shares.largest_mib(model, mode, card_mib) {
        return None;
    }
    let models = Vec::new();
    let memory_mib = needs.memory_mib;
    let (request, compute_percent, memory_mib) = match way {
        Way::Mig { tolerant } => {
            let tolerance = if tolerant { pool.compute_tolerance_percent } else { 0 };
            let (profile, percent, memory_mib) = smallest_slice(needs, model, tolerance, pin)?;
            (DeviceRequest::Mig { profile, models }, percent, memory_mib)
        }
        Way::Mps => {
            // Without a figure for compute, as much of it as of the memory.
            let by_memory = (memory_mib * 100).div_ceil(card_mib) as u32;
            let percent = if needs.compute_percent == 0 { by_memory } else { needs.compute_percent };
            (DeviceRequest::Mps { percent: percent as u8, memory_mib, models }, percent, memory_mib)
        }
        Way::TimeSlice => (DeviceRequest::TimeSlice { memory_mib, models }, least_time_sliced(pool), memory_mib),
        Way::Whole => (DeviceRequest::Whole { count: 1, models }, 100, card_mib),
        Way::Cards => {
            let count = u64::from(needs.compute_percent.div_ceil(100)).max(memory_mib.div_ceil(card_mib)) as u32;
            if count > offer.island_cards.min(CARDS_PER_TASK_MAX) {
                return None;
            }
            (DeviceRequest::Whole { count, models }, count * 100, u64::from(count) * card_mib)
        }
    };
    Some((request, Choice { rule: Rule::NothingSmaller, model, compute_percent, memory_mib }))
}

/// Compute of one place while all places of a card are taken, in percent of the card.
fn least_time_sliced(pool: &Pool) -> u32 {
    100 / u32::from(pool.time_slice_replicas.max(1))
}

/// The smallest profile of `model` that holds the memory, and the compute less `tolerance_percent` of it; with its compute in
/// percent and its memory. Not the one that takes the whole card: that is a whole card with less. Where all cards are pinned, one of
/// the layout's.
fn smallest_slice(
    needs: &Needs,
    model: GpuModel,
    tolerance_percent: u8,
    pin: Option<&PinnedLayout>,
) -> Option<(String, u32, u64)> {
    let family = model.facts().mig?;
    let slices_all = match family {
        MigFamily::Four => 4,
        MigFamily::Eight => 7,
    };
    let enough = |shape: MigShape| {
        let given = u64::from(shape.compute_slices()) * 100 * 100;
        let asked = u64::from(needs.compute_percent) * u64::from(100 - tolerance_percent.min(100)) * slices_all;
        given >= asked && mig::instance_memory_mib(model, shape).is_some_and(|mib| mib >= needs.memory_mib)
    };
    MigShape::ALL
        .into_iter()
        .filter(|shape| !shape.has_media() && !shape.starts(family).is_empty())
        .filter(|shape| u64::from(shape.compute_slices()) < slices_all && enough(*shape))
        .filter(|shape| pin.is_none_or(|pin| pin.count(*shape) > 0))
        .min_by_key(|shape| (shape.charge(family), shape.compute_slices()))
        .and_then(|shape| {
            let percent = u32::from(shape.compute_slices()) * 100 / slices_all as u32;
            Some((mig::profile_name(model, shape)?, percent, mig::instance_memory_mib(model, shape)?))
        })
}

fn with_models(request: DeviceRequest, models: Vec<GpuModel>) -> DeviceRequest {
    match request {
        DeviceRequest::None => DeviceRequest::None,
        DeviceRequest::Whole { count, .. } => DeviceRequest::Whole { count, models },
        DeviceRequest::Mig { profile, .. } => DeviceRequest::Mig { profile, models },
        DeviceRequest::Mps { percent, memory_mib, .. } => DeviceRequest::Mps { percent, memory_mib, models },
        DeviceRequest::TimeSlice { memory_mib, .. } => DeviceRequest::TimeSlice { memory_mib, models },
    }
}

fn no_offer(needs: &Needs, offers: &[Offer<'_>]) -> FieldError {
    let there: BTreeSet<String> = offers.iter().map(|offer| offer.model.to_string()).collect();
    if there.is_empty() {
        let problem = "no pool that allows the job has a GPU that it accepts";
        return FieldError::new("needs", problem, "change the class, the pool, the selector or the driver minimum");
    }
    let asked: Vec<String> = needs.models.iter().map(ToString::to_string).collect();
    let there = there.into_iter().collect::<Vec<_>>().join(", ");
    FieldError::new("needs.models", format!("no node has {}", asked.join(" or ")), format!("use one of {there}"))
}

fn nothing_fits(needs: &Needs, offers: &[&Offer<'_>]) -> FieldError {
    let largest = offers
        .iter()
        .map(|offer| (u64::from(offer.island_cards) * offer.model.memory_mib(), offer))
        .max_by_key(|(mib, _)| *mib);
    if let Some((most_mib, offer)) = largest
        && (needs.memory_mib > most_mib || needs.compute_percent > offer.island_cards * 100)
    {
        let problem = format!(
            "{} MiB and {} % of a GPU are more than the largest island ({} {}) has",
            needs.memory_mib, needs.compute_percent, offer.island_cards, offer.model
        );
        return FieldError::new("needs", problem, "split the work into tasks, each within one island");
    }
    let pools: BTreeSet<String> = offers
        .iter()
        .map(|offer| {
            if let Some(pin) = offer.pool.pin_of_all(offer.model) {
                return format!(
                    "pool {} keeps the MIG layout {} on {}",
                    offer.pool.name,
                    pin.in_words(offer.model),
                    offer.model
                );
            }
            let mode = |mode: &SharingMode| match mode {
                SharingMode::TimeSlice if needs.compute_percent > 0 => {
                    format!("time-slice (at least {} % of the compute of a GPU)", least_time_sliced(offer.pool))
                }
                mode => mode.word().to_owned(),
            };
            let modes: Vec<String> = offer.pool.modes.iter().map(mode).collect();
            format!("pool {} allows {}", offer.pool.name, modes.join(", "))
        })
        .collect();
    let problem = format!("fits no pool: {}", pools.into_iter().collect::<Vec<_>>().join("; "));
    FieldError::new("needs", problem, "request weaker isolation, less memory or compute, or another pool")
}
