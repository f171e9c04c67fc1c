//! Telemetry of the node's cards: samples every ten seconds, the last hour of them in memory, and the page that Prometheus reads.
//!
//! What must stay true:
//! - cards are sampled side by side, each with a deadline and beside everything else: a card that hangs delays no other card, no step and no stop;
//! - figures that are older than [`SHOWN_MAX`] are not shown, nor those of an instance that the agent has destroyed;
//! - who holds a card is said where exactly one allocation holds it, and a tenant's name only where the page may show it.

mod holders;
mod page;

pub use muster_node_core::telemetry::Figure;
pub use page::{PAGE, page};

use crate::cards::Cards;
use crate::exec::Executor;
use crate::gpu::sample::{CardSample, InstanceSample};
use crate::gpu::{GpuBackend, GpuError};
use crate::health::Health;
use futures::future::join_all;
use muster_model::ids::AllocationId;
use muster_model::node::Gpu;
use muster_node_core::health::GpuUuid;
use muster_node_core::telemetry::ring::Sample;
use muster_node_core::telemetry::{HoldState, Ring, Series};
use muster_runtime::Host;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// A sample takes milliseconds; a driver that needs longer than this is in trouble.
const SAMPLE_MAX: Duration = Duration::from_secs(5);
/// Three samples at the usual rate: figures of then are not those of now.
const SHOWN_MAX: Duration = Duration::from_secs(30);

/// Telemetry of one node.
pub struct Telemetry {
    parts: Parts,
    ring: Mutex<Ring>,
    /// The last sample of each card.
    latest: Mutex<Vec<Option<Latest>>>,
    /// What allocations did between the last two samples.
    holds: Mutex<BTreeMap<AllocationId, holders::Held>>,
    /// Allocations whose devices are being cleaned.
    cleaning: Mutex<BTreeSet<AllocationId>>,
}

/// What it works with.
pub(crate) struct Parts {
    pub(crate) host: Host,
    pub(crate) backend: Arc<dyn GpuBackend>,
    pub(crate) cards: Arc<Cards>,
    pub(crate) health: Arc<Health>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) gpus: Vec<Gpu>,
    /// The node's cell.
    pub(crate) cell: String,
}

/// A sample, and when it was taken.
struct Latest {
    at: Instant,
    sample: CardSample,
    /// Of the card and of each instance, in their order.
    series: Vec<Arc<Series>>,
}

impl Telemetry {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let latest = parts.gpus.iter().map(|_| None).collect();
        Arc::new(Telemetry {
            parts,
            ring: Mutex::default(),
            latest: Mutex::new(latest),
            holds: Mutex::default(),
            cleaning: Mutex::default(),
        })
    }

    /// How often cards are sampled; none for cards that have no telemetry.
    pub(crate) fn every(&self) -> Option<Duration> {
        self.parts.backend.samples_every()
    }

    /// Samples until it is dropped.
    pub(crate) async fn run(&self, every: Duration) {
        let mut round = tokio::time::interval(every);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            round.tick().await;
            self.sample().await;
        }
    }

    /// Samples every card once, side by side.
    pub async fn sample(&self) {
        let cards = 0..self.parts.gpus.len() as u16;
        join_all(cards.map(|card| self.sample_card(card))).await;
        let held = holders::held(self);
        *self.holds.lock() = held;
        self.tell();
    }

    async fn sample_card(&self, card: u16) {
        let sampled = tokio::time::timeout(SAMPLE_MAX, self.parts.backend.sample(card)).await;
        let error = match sampled {
            Ok(Ok(sample)) => return self.take(card, sample),
            Ok(Err(error)) => error,
            Err(_) => GpuError::Driver {
                card,
                doing: "reading its telemetry".to_owned(),
                why: format!("no answer within {} s", SAMPLE_MAX.as_secs()),
            },
        };
        let was_there = self.latest.lock().get_mut(usize::from(card)).and_then(Option::take).is_some();
        // Logged once: the health of a card that stays so says it.
        if was_there {
            tracing::warn!(node = %self.parts.host.name, gpu = card, %error, "the telemetry of a GPU cannot be read");
        }
    }

    fn take(&self, card: u16, mut sample: CardSample) {
        let Some(gpu) = self.parts.gpus.get(usize::from(card)) else { return };
        if let Some(xid) = self.parts.health.last_xid(card) {
            sample.figures.put(Figure::XidLast, xid.into());
        }
        let host = &self.parts.host;
        let (gpu_label, name) = (card.to_string(), host.name.clone());
        if sample.dropped > 0 {
            metrics::counter!("muster_agent_gpu_figures_dropped_total", "gpu" => gpu_label, "Hostname" => name.clone())
                .increment(sample.dropped.into());
        }
        metrics::counter!("muster_agent_sampler_cpu_microseconds_total", "Hostname" => name).increment(sample.cpu_us);
        let at_ms = host.clock.boottime_ns() / 1_000_000;
        let mut latest = self.latest.lock();
        let Some(slot) = latest.get_mut(usize::from(card)) else { return };
        let before = slot.take().map(|latest| latest.series).unwrap_or_default();
        // Names are shared with the samples of before.
        let named = |instance: Option<(u32, String)>| {
            let series = Series { card: GpuUuid(gpu.uuid.clone()), instance };
            before.iter().find(|known| ***known == series).cloned().unwrap_or_else(|| Arc::new(series))
        };
        let of = |instance: &InstanceSample| named(Some((instance.id, instance.uuid.clone())));
        let series: Vec<_> = std::iter::once(named(None)).chain(sample.instances.iter().map(of)).collect();
        let mut ring = self.ring.lock();
        let figures = std::iter::once(&sample.figures).chain(sample.instances.iter().map(|one| &one.figures));
        for (series, figures) in series.iter().zip(figures) {
            ring.push(at_ms, series, figures.clone());
        }
        *slot = Some(Latest { at: Instant::now(), sample, series });
    }

    /// The samples after a moment, in ms of CLOCK_BOOTTIME, oldest first. At most an hour's.
    #[must_use]
    pub fn since(&self, after_ms: u64) -> Vec<Sample> {
        self.ring.lock().since(after_ms).cloned().collect()
    }

    /// Bytes that the samples take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ring.lock().bytes()
    }

    /// The allocations whose devices are being cleaned from now on.
    pub fn set_cleaning(&self, allocations: BTreeSet<AllocationId>) {
        *self.cleaning.lock() = allocations;
    }

    /// What an allocation did between the last two samples; `None` for one that held nothing here then.
    #[must_use]
    pub fn hold_state(&self, allocation: AllocationId) -> Option<HoldState> {
        self.holds.lock().get(&allocation).map(|held| held.state)
    }

    /// Tells the recorder of the process what each card is worth a look for.
    fn tell(&self) {
        let Parts { host, cards, health, gpus, cell, .. } = &self.parts;
        let mut withheld = cards.withheld();
        withheld.extend(health.withheld());
        for (card, gpu) in (0_u16..).zip(gpus) {
            let of_card = || {
                [
                    metrics::Label::new("gpu", card.to_string()),
                    metrics::Label::new("UUID", gpu.uuid.clone()),
                    metrics::Label::new("Hostname", host.name.clone()),
                    metrics::Label::new("cell", cell.clone()),
                ]
                .to_vec()
            };
            let mine = || withheld.iter().filter(|one| one.gpu == card);
            let is_withheld = mine().any(|one| one.slice.is_none());
            let slices = mine().filter_map(|one| one.slice).collect::<BTreeSet<_>>().len();
            let answers = self.latest.lock().get(usize::from(card)).is_some_and(Option::is_some);
            metrics::gauge!("muster_agent_gpu_answers", of_card()).set(f64::from(u8::from(answers)));
            metrics::gauge!("muster_agent_gpu_withheld", of_card()).set(f64::from(u8::from(is_withheld)));
            metrics::gauge!("muster_agent_gpu_slices_withheld", of_card()).set(slices as f64);
            metrics::gauge!("muster_agent_gpu_foreign_processes", of_card()).set(health.strangers(card) as f64);
        }
    }
}
