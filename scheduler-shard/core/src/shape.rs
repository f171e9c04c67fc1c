//! Shapes: everything about a job that decides where it can stand.
//!
//! Few shapes are asked for again and again, so each is kept once, with what follows from it alone: the models it may land on and
//! what it is charged there. What must stay true: two shapes are equal exactly when what they ask for is.

use crate::fractions::{CARD_MILLI, Demand, Kinds};
use crate::view::milli_of;
use muster_model::mig::MigShape;
use muster_model::request::TaskRequest;
use muster_model::{
    DeviceRequest, DriverVersion, GpuModel, GpuUnits, Job, NumaPolicy, ResourceVec, Selector, Spread, Topology,
    WorkloadClass,
};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// Others may take this many times a gang's size past it before free cards are kept for it.
pub(crate) use crate::plan::PASSED_OVER_SIZES_MAX;

/// Shapes kept at once; a fleet's tenants ask for some hundreds. Beyond, those that nobody waits with are forgotten.
const SHAPES_MAX: usize = 4_096;

/// A model that a gang may land on, and what all of it is charged there; no model for a gang without GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) model: Option<GpuModel>,
    pub(crate) charge: ResourceVec,
}

/// What a job asks for.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) tasks: u32,
    pub(crate) request: TaskRequest,
    pub(crate) topology: Topology,
    pub(crate) numa: NumaPolicy,
    pub(crate) driver_min: Option<DriverVersion>,
    pub(crate) selector: Option<Selector>,
    pub(crate) class: WorkloadClass,
    pub(crate) pool: Option<String>,
    /// It goes where no other tenant is, if it can.
    pub(crate) latency_critical: bool,
    /// How long it is there at most, in seconds, a little rounded up ([`rounded_up_s`]) so that few shapes differ in it alone; none when
    /// nothing bounds it.
    pub(crate) lasts_s: Option<u64>,
    /// The same without a time limit; none where this is that.
    unlimited: Option<Arc<Shape>>,
    /// From SIGTERM to SIGKILL, rounded up the same way.
    pub(crate) grace_s: u64,
    /// Tenants that admins keep apart are; only an explanation asks what would be otherwise.
    pub(crate) heeds_neighbours: bool,
    /// The models that could ever serve it, the preferred first; it follows from the rest.
    possible: Vec<GpuModel>,
    /// The MIG slice that it is on each of them; empty for other requests.
    slices: Vec<(GpuModel, MigShape)>,
    /// Tells most shapes apart at a glance; it follows from the rest.
    glance: u64,
    offers: OnceLock<Box<[Offer]>>,
    demand: OnceLock<Demand>,
}

impl Shape {
    fn of(job: &Job) -> Self {
        let spec = &job.spec;
        Shape {
            tasks: spec.tasks,
            request: spec.request.clone(),
            topology: spec.topology,
            numa: spec.numa,
            driver_min: spec.driver_min,
            selector: spec.asked.selector.clone(),
            class: spec.class,
            pool: spec.pool.clone(),
            latency_critical: spec.is_latency_critical(),
            grace_s: rounded_up_s(spec.grace_s),
            lasts_s: spec.time_limit_s.map(|limit_s| rounded_up_s(limit_s).saturating_add(rounded_up_s(spec.grace_s))),
            unlimited: None,
            heeds_neighbours: true,
            possible: Vec::new(),
            slices: Vec::new(),
            glance: 0,
            offers: OnceLock::new(),
            demand: OnceLock::new(),
        }
        .at_a_glance()
    }

    /// The same with its glance as it follows from the rest.
    fn at_a_glance(self) -> Self {
        let (kind, one, two) = match &self.request.devices {
            DeviceRequest::None => (0, 0, 0),
            DeviceRequest::Whole { count, .. } => (1, u64::from(*count), 0),
            DeviceRequest::Mig { profile, .. } => (2, fold(0, profile.bytes().map(u64::from)), 0),
            DeviceRequest::Mps { percent, memory_mib, .. } => (3, u64::from(*percent), *memory_mib),
            DeviceRequest::TimeSlice { memory_mib, .. } => (4, *memory_mib, 0),
        };
        let required = self.topology.required.map_or(0, |level| 1 + level as u64);
        let request = [self.request.cpu_milli, self.request.memory_mib, kind, one, two, required];
        let rest = [u64::from(self.tasks), self.lasts_s.unwrap_or(u64::MAX), self.grace_s, self.class as u64];
        let glance = fold(0, request.into_iter().chain(rest));
        Shape { glance, ..self }
    }

    /// Whether it asks for CPU and memory only.
    pub(crate) fn needs_no_card(&self) -> bool {
        matches!(self.request.devices, DeviceRequest::None)
    }

    /// The MIG slice that it is on each model that it may land on; empty for other requests.
    pub(crate) fn slices(&self) -> &[(GpuModel, MigShape)] {
        &self.slices
    }

    /// The same for so many tasks, within `required`.
    pub(crate) fn with(&self, tasks: u32, required: Option<muster_model::TopologyLevel>) -> Self {
        let topology = Topology { required, ..self.topology };
        Shape { tasks, topology, offers: OnceLock::new(), ..self.clone() }.at_a_glance()
    }

    /// The same inside one pool.
    pub(crate) fn in_pool(&self, pool: &str) -> Self {
        Shape { pool: Some(pool.to_owned()), ..self.clone() }
    }

    /// The same without a NUMA policy.
    pub(crate) fn anyhow_in_numa(&self) -> Self {
        Shape { numa: NumaPolicy::None, ..self.clone() }
    }

    /// The same with its tasks so far apart.
    pub(crate) fn spread(&self, spread: Option<Spread>) -> Self {
        let topology = Topology { spread, ..self.topology };
        Shape { topology, offers: OnceLock::new(), ..self.clone() }
    }

    /// The same beside anybody.
    pub(crate) fn beside_anybody(&self) -> Self {
        Shape { heeds_neighbours: false, ..self.clone() }
    }

    /// Cards that the whole gang touches.
    pub(crate) fn cards(&self) -> u64 {
        u64::from(self.tasks) * u64::from(self.request.devices.cards())
    }

    /// What it asks for if nothing bounded its time.
    pub(crate) fn without_limit(self: &Arc<Self>) -> Arc<Shape> {
        self.unlimited.clone().unwrap_or_else(|| self.clone())
    }

    /// Whole cards that each task takes of its node; 0 where parts of cards or none will do.
    pub(crate) fn whole_cards_each(&self) -> u32 {
        match self.request.devices {
            DeviceRequest::Whole { count, .. } => count,
            _ => 0,
        }
    }

    /// Whole cards that all of it takes.
    pub(crate) fn whole_cards(&self) -> u64 {
        u64::from(self.tasks) * u64::from(self.whole_cards_each())
    }

    /// Cards that others may take past it before cards are kept for it.
    pub(crate) fn patience(&self) -> u64 {
        PASSED_OVER_SIZES_MAX * self.cards()
    }

    /// What the whole gang is charged on `model`.
    pub(crate) fn charge_on(&self, model: Option<GpuModel>) -> ResourceVec {
        if let Some(offer) = self.offers().iter().find(|offer| offer.model == model) {
            return offer.charge;
        }
        self.charge(model)
    }

    fn charge(&self, model: Option<GpuModel>) -> ResourceVec {
        let each = match model {
            Some(model) => self.request.charge_on(model),
            None => ResourceVec::of_host(self.request.cpu_milli, self.request.memory_mib),
        };
        each.times(u64::from(self.tasks))
    }

    /// The models it may land on, the preferred first; one without a model for a gang without GPUs.
    pub(crate) fn offers(&self) -> &[Offer] {
        self.offers.get_or_init(|| {
            let offer = |model| Offer { model, charge: self.charge(model) };
            if self.request.devices.mode().is_none() {
                return Box::new([offer(None)]);
            }
            self.possible.iter().map(|model| offer(Some(*model))).collect()
        })
    }

    /// One of its tasks, as the measure of fragmentation counts it.
    pub(crate) fn demand(&self) -> &Demand {
        self.demand.get_or_init(|| {
            let request = &self.request;
            let cards = request.devices.cards() as u16;
            let any = request.devices.models().is_empty() && self.selector.is_none();
            let kinds = Kinds::of(self.possible.iter().map(|model| *model as u8).filter(|_| !any));
            let of_a_card = |model: &GpuModel| request.devices.charge_on(*model).0 / u64::from(cards.max(1));
            let milli = milli_of(GpuUnits(self.possible.first().map_or(0, of_a_card))).min(u64::from(CARD_MILLI));
            let milli = if cards == 0 { 0 } else { milli as u16 };
            Demand { cards, milli, kinds, cpu_milli: request.cpu_milli, memory_mib: request.memory_mib }
        })
    }

    fn key(&self) -> impl Ord + '_ {
        let quiet = (self.class, self.latency_critical, self.lasts_s, self.grace_s);
        (self.tasks, &self.request, &self.topology, quiet, &self.pool, self.numa, self.driver_min, &self.selector)
    }
}

/// Seconds rounded up by at most a quarter: to multiples of fifteen minutes, or of fifteen seconds below that, of which three bits are
/// kept. Usual limits of whole hours stand as they are.
fn rounded_up_s(seconds: u64) -> u64 {
    let unit = if seconds < 900 { 15 } else { 900 };
    let units = seconds.div_ceil(unit);
    let step = 1 << units.checked_ilog2().unwrap_or(0).saturating_sub(2);
    let rounded = units.next_multiple_of(step) * unit;
    if seconds < 900 { rounded.min(900) } else { rounded }
}

/// The longest time that [`rounded_up_s`] leaves at or below so many seconds.
pub(crate) fn rounded_down_s(seconds: u64) -> u64 {
    let unit = if seconds < 900 { 15 } else { 900 };
    let units = seconds / unit;
    let step = 1 << units.checked_ilog2().unwrap_or(0).saturating_sub(2);
    units / step * step * unit
}

/// Mixes numbers into one; any order of them gives another.
fn fold(start: u64, numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(start, |mix, number| (mix ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29))
}

impl PartialEq for Shape {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || self.glance == other.glance && self.key() == other.key()
    }
}

impl Eq for Shape {}

impl PartialOrd for Shape {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Shape {
    fn cmp(&self, other: &Self) -> Ordering {
        if std::ptr::eq(self, other) {
            return Ordering::Equal;
        }
        self.glance.cmp(&other.glance).then_with(|| self.key().cmp(&other.key()))
    }
}

/// Each shape once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shapes {
    known: BTreeSet<Arc<Shape>>,
}

impl Shapes {
    /// The one shape of `job`.
    pub(crate) fn of(&mut self, job: &Job) -> Arc<Shape> {
        let shape = Shape::of(job);
        if let Some(known) = self.known.get(&shape) {
            return known.clone();
        }
        if self.known.len() >= SHAPES_MAX {
            self.known.retain(|shape| Arc::strong_count(shape) > 1);
        }
        let possible: Vec<GpuModel> = job.spec.possible_models().collect();
        let slice = |model: &GpuModel| Some((*model, job.spec.request.devices.mig_shape(*model)?));
        let slices = possible.iter().filter_map(slice).collect();
        let shape = Shape { possible, slices, ..shape };
        if shape.lasts_s.is_none() {
            return self.keep(shape);
        }
        let unlimited = self.keep(Shape { lasts_s: None, ..shape.clone() }.at_a_glance());
        self.keep(Shape { unlimited: Some(unlimited), ..shape })
    }

    fn keep(&mut self, shape: Shape) -> Arc<Shape> {
        if let Some(known) = self.known.get(&shape) {
            return known.clone();
        }
        let shape = Arc::new(shape);
        self.known.insert(shape.clone());
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::{rounded_down_s, rounded_up_s};

    #[test]
    fn usual_limits_stand_and_none_grows_by_more_than_a_quarter() {
        let hours = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 48, 96].map(|hours| hours * 3_600);
        assert_eq!(hours.map(rounded_up_s), hours);
        assert_eq!([0, 30, 60, 300, 600, 900].map(rounded_up_s), [0, 30, 60, 300, 600, 900]);
        for seconds in (0..100_000).chain([31_622_400]) {
            let rounded = rounded_up_s(seconds);
            assert!(rounded >= seconds && rounded <= seconds + (seconds / 4).max(900), "{seconds} became {rounded}");
            assert_eq!(rounded_up_s(rounded), rounded, "{seconds}");
            let down = rounded_down_s(seconds);
            assert!(
                down <= seconds && rounded_up_s(down) == down && rounded_up_s(down + 1) > seconds,
                "{seconds} {down}"
            );
        }
    }
}
