//! Job classes: everything about a job that decides whether and where it can start.
//!
//! Jobs of one tenant and class are interchangeable to the scheduler, so one decision serves all of them. Few classes are asked for again
//! and again, so each is kept once, with what follows from it alone: the models it may land on and what it is charged there. What must
//! stay true: two jobs share a class exactly when no decision could tell them apart. [`ClassKey::of`] names every field of a
//! specification, so a new field does not compile before somebody has decided whether it matters.

use crate::fractions::{CARD_MILLI, Demand, Kinds, milli_of};
use muster_model::eligibility::{Eligibility, possible_on};
use muster_model::mig::MigShape;
use muster_model::needs::Needs;
use muster_model::request::TaskRequest;
use muster_model::{
    Asked, DeviceRequest, DriverVersion, GpuModel, GpuUnits, JobSpec, Mount, NumaPolicy, ResourceVec, Selector, Spread,
    Topology, TopologyLevel, WorkloadClass,
};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A task runs at most this long after it was bound.
pub(crate) const START_MS: u64 = muster_model::window::START_MS;

/// Free cards are held back for a gang once jobs behind it have started on this many times its size: low enough that a large gang's wait is
/// bounded by what runs when that happens, high enough that short jobs usually flow past.
pub const BYPASSED_SIZES_MAX: u64 = 8;

/// Classes kept at once; a fleet's tenants ask for some hundreds. Beyond, those that nobody waits with are forgotten.
const CLASSES_MAX: usize = 4_096;

/// A model that a gang may land on, and what all of it is charged there; no model for a gang without GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) model: Option<GpuModel>,
    pub(crate) charge: ResourceVec,
}

/// What the jobs of a class have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassKey {
    pub(crate) tasks: u32,
    pub(crate) request: TaskRequest,
    pub(crate) topology: Topology,
    pub(crate) numa: NumaPolicy,
    pub(crate) driver_min: Option<DriverVersion>,
    pub(crate) selector: Option<Selector>,
    /// Memory that each card, or the MIG slice, must have: it decides which models are possible.
    pub(crate) gpu_memory_mib: Option<u64>,
    pub(crate) workload: WorkloadClass,
    pub(crate) pool: Option<String>,
    /// Whom it may preempt goes by this.
    pub(crate) priority_class: Option<String>,
    /// It goes where no other tenant is, if it can.
    pub(crate) latency_critical: bool,
    /// How long it is there at most, in seconds, a little rounded up ([`rounded_up_s`]) so that few classes differ in it alone; none
    /// when nothing bounds it.
    pub(crate) lasts_s: Option<u64>,
    /// From SIGTERM to SIGKILL, rounded up the same way.
    pub(crate) grace_s: u64,
    /// Tenants that admins keep apart are; only an explanation asks what would be otherwise.
    pub(crate) heeds_neighbours: bool,
    /// The reservation on whose nodes alone it runs.
    pub(crate) reservation: Option<String>,
    /// Windows keep it off; only an explanation asks what would be otherwise.
    pub(crate) heeds_windows: bool,
    /// Pools allow images and mounts.
    pub(crate) image: Option<String>,
    pub(crate) mounts: Vec<Mount>,
    /// It said so itself; a search that tries it on one node does not change it.
    pub(crate) on_one_node: bool,
}

impl ClassKey {
    /// What decides about a job of this specification. Every field is named here on purpose.
    fn of(spec: &JobSpec) -> Self {
        let on_one_node = spec.is_on_one_node();
        let JobSpec {
            tenant: _, // Groups of jobs are kept by tenant.
            name: _,
            tasks,
            request,
            topology,
            numa,
            driver_min,
            asked,
            class,
            pool,
            priority: _, // It orders the jobs of a group; it does not say where they fit.
            command: _,
            env: _,
            workdir: _,
            time_limit_s,
            grace_s,
            disconnect_grace_s: _, // It counts once the job runs.
            max_retries: _,
            movable: _, // It counts once the job runs.
            user: _,
            preemption: _,   // It counts once the job runs.
            limit_signal: _, // It counts once the job runs.
            start: _,
            array: _,
            priority_class,
            reservation,
            elastic: _, // It counts once the job runs, but for `on_one_node`.
            image,
            mounts,
            compute_instances: _, // It counts on the node.
            comment: _,
            secret_env: _,
        } = spec;
        // On an accepted job the device class is part of the selector, and what the needs came to is the request.
        let Asked { selector, device_class: _, gpu_memory_mib, needs, choice: _ } = asked;
        let by_needs = |needs: &Needs| {
            let Needs { memory_mib: _, compute_percent: _, isolation: _, bursty: _, latency_critical, models: _ } =
                needs;
            *latency_critical
        };
        let lasts_s = |limit_s: u64| rounded_up_s(limit_s).saturating_add(rounded_up_s(*grace_s));
        ClassKey {
            tasks: *tasks,
            request: request.clone(),
            topology: *topology,
            numa: *numa,
            driver_min: *driver_min,
            selector: selector.clone(),
            gpu_memory_mib: *gpu_memory_mib,
            workload: *class,
            pool: pool.clone(),
            priority_class: priority_class.clone(),
            latency_critical: *class == WorkloadClass::Inference || needs.as_ref().is_some_and(by_needs),
            lasts_s: time_limit_s.map(lasts_s),
            grace_s: rounded_up_s(*grace_s),
            heeds_neighbours: true,
            reservation: reservation.clone(),
            heeds_windows: true,
            image: image.clone(),
            mounts: mounts.clone(),
            on_one_node,
        }
    }

    /// A time limit of so many seconds from now on.
    pub(crate) fn limit_time(&mut self, limit_s: u64) {
        self.lasts_s = Some(rounded_up_s(limit_s).saturating_add(self.grace_s));
    }

    /// What it asks of the pools and nodes that it runs on.
    pub(crate) fn eligibility(&self) -> Eligibility<'_> {
        Eligibility {
            pool: self.pool.as_deref(),
            class: self.workload,
            mode: self.request.devices.mode(),
            driver_min: self.driver_min,
            selector: self.selector.as_ref(),
            image: self.image.as_deref(),
            mounts: &self.mounts,
            on_one_node: self.on_one_node,
        }
    }

    /// A number that tells most keys apart without comparing them.
    fn fingerprint(&self) -> u64 {
        let (kind, one, two) = match &self.request.devices {
            DeviceRequest::None => (0, 0, 0),
            DeviceRequest::Whole { count, .. } => (1, u64::from(*count), 0),
            DeviceRequest::Mig { profile, .. } => (2, fold(0, profile.bytes().map(u64::from)), 0),
            DeviceRequest::Mps { percent, memory_mib, .. } => (3, u64::from(*percent), *memory_mib),
            DeviceRequest::TimeSlice { memory_mib, .. } => (4, *memory_mib, 0),
        };
        let required = self.topology.required.map_or(0, |level| 1 + level as u64);
        let request = [self.request.cpu_milli, self.request.memory_mib, kind, one, two, required];
        let rest = [u64::from(self.tasks), self.lasts_s.unwrap_or(u64::MAX), self.grace_s, self.workload as u64];
        fold(self.gpu_memory_mib.unwrap_or(0), request.into_iter().chain(rest))
    }
}

/// See the module. Its fields are those of its key.
#[derive(Clone, Debug)]
pub(crate) struct JobClass {
    key: ClassKey,
    fingerprint: u64,
    /// The same without a time limit; none where this is that.
    unlimited: Option<Arc<JobClass>>,
    /// The models that could ever serve it, the preferred first.
    possible: Vec<GpuModel>,
    /// The MIG slice that it is on each of them; empty for other requests.
    slices: Vec<(GpuModel, MigShape)>,
    offers: OnceLock<Box<[Offer]>>,
    demand: OnceLock<Demand>,
}

impl Deref for JobClass {
    type Target = ClassKey;
    fn deref(&self) -> &ClassKey {
        &self.key
    }
}

impl JobClass {
    /// What compares like the class of this key; nothing that follows from it is known yet.
    fn bare(key: ClassKey) -> Self {
        let (offers, demand) = (OnceLock::new(), OnceLock::new());
        let (possible, slices) = (Vec::new(), Vec::new());
        JobClass { fingerprint: key.fingerprint(), key, unlimited: None, possible, slices, offers, demand }
    }

    /// The class of a key with all that follows from it.
    fn of(key: ClassKey) -> Self {
        JobClass::bare(key).complete()
    }

    /// The same with what follows from its key.
    fn complete(self) -> Self {
        let ClassKey { request, gpu_memory_mib, selector, .. } = &self.key;
        let devices = &request.devices;
        let serves = |model: &GpuModel| possible_on(devices, *gpu_memory_mib, selector.as_ref(), *model);
        let possible: Vec<GpuModel> = devices.possible_models().filter(serves).collect();
        let slice = |model: &GpuModel| Some((*model, devices.mig_shape(*model)?));
        let slices = possible.iter().filter_map(slice).collect();
        JobClass { possible, slices, ..self }
    }

    /// The class of jobs that would ask otherwise.
    pub(crate) fn edited(&self, edit: impl FnOnce(&mut ClassKey)) -> Self {
        let mut key = self.key.clone();
        edit(&mut key);
        JobClass::of(key)
    }

    /// The same with another key.
    fn keyed(&self, key: ClassKey) -> Self {
        JobClass { fingerprint: key.fingerprint(), key, offers: OnceLock::new(), ..self.clone() }
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
    pub(crate) fn with(&self, tasks: u32, required: Option<TopologyLevel>) -> Self {
        let topology = Topology { required, ..self.topology };
        self.keyed(ClassKey { tasks, topology, ..self.key.clone() })
    }

    /// The same inside one pool.
    pub(crate) fn in_pool(&self, pool: &str) -> Self {
        self.keyed(ClassKey { pool: Some(pool.to_owned()), ..self.key.clone() })
    }

    /// The same with the level that it prefers required, where that is closer than what it requires.
    pub(crate) fn as_close_as_preferred(&self) -> Option<Self> {
        let preferred =
            self.topology.preferred.filter(|level| self.topology.required.is_none_or(|widest| *level < widest))?;
        // A task without cards stands on no island, and whatever is on one node lies as close as it can.
        let level = if self.needs_no_card() { preferred.max(TopologyLevel::Node) } else { preferred };
        Some(self.with(self.tasks, Some(level)))
    }

    /// The same with its tasks so far apart.
    pub(crate) fn spread(&self, spread: Option<Spread>) -> Self {
        let topology = Topology { spread, ..self.topology };
        self.keyed(ClassKey { topology, ..self.key.clone() })
    }

    /// The same beside anybody.
    pub(crate) fn beside_anybody(&self) -> Self {
        self.keyed(ClassKey { heeds_neighbours: false, ..self.key.clone() })
    }

    /// Cards that jobs behind a gang of this class may start on before the starvation guard protects it; none where it is no gang.
    pub(crate) fn guarded_after_cards(&self) -> Option<u64> {
        (self.cards() > 1).then(|| BYPASSED_SIZES_MAX * self.cards())
    }

    /// Cards that the whole gang touches.
    pub(crate) fn cards(&self) -> u64 {
        u64::from(self.tasks) * u64::from(self.request.devices.cards())
    }

    /// What it asks for if nothing bounded its time.
    pub(crate) fn without_limit(self: &Arc<Self>) -> Arc<JobClass> {
        self.unlimited.clone().unwrap_or_else(|| self.clone())
    }

    /// How long it holds its devices at most from its start on, in ms; the greatest number when nothing bounds it.
    pub(crate) fn stays_at_most_ms(&self) -> u64 {
        self.lasts_s.map_or(u64::MAX, |lasts_s| START_MS.saturating_add(1_000 * lasts_s))
    }

    /// The longest time limit, in seconds, with which it would be over by `until_ms` if it started at `now_ms`; none when that is too soon.
    pub(crate) fn limit_until_s(&self, now_ms: u64, until_ms: u64) -> Option<u64> {
        let left_ms = until_ms.saturating_sub(now_ms).saturating_sub(START_MS);
        Some(rounded_down_s((left_ms / 1_000).saturating_sub(self.grace_s))).filter(|limit_s| *limit_s > 0)
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

impl PartialEq for JobClass {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || self.fingerprint == other.fingerprint && self.key == other.key
    }
}

impl Eq for JobClass {}

impl PartialOrd for JobClass {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for JobClass {
    fn cmp(&self, other: &Self) -> Ordering {
        if std::ptr::eq(self, other) {
            return Ordering::Equal;
        }
        self.fingerprint.cmp(&other.fingerprint).then_with(|| self.key.cmp(&other.key))
    }
}

/// Each class once.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobClasses {
    known: BTreeSet<Arc<JobClass>>,
}

impl JobClasses {
    /// The one class of jobs that ask as `class` does.
    pub(crate) fn known_as(&mut self, class: JobClass) -> Arc<JobClass> {
        if class.lasts_s.is_none() {
            return self.keep(JobClass { unlimited: None, ..class });
        }
        let unlimited = self.keep(class.keyed(ClassKey { lasts_s: None, ..class.key.clone() }));
        self.keep(JobClass { unlimited: Some(unlimited), ..class })
    }

    /// The one class of jobs with this specification.
    pub(crate) fn of(&mut self, spec: &JobSpec) -> Arc<JobClass> {
        let class = JobClass::bare(ClassKey::of(spec));
        if let Some(known) = self.known.get(&class) {
            return known.clone();
        }
        let class = class.complete();
        if self.known.len() >= CLASSES_MAX {
            self.known.retain(|class| Arc::strong_count(class) > 1);
        }
        if class.lasts_s.is_none() {
            return self.keep(class);
        }
        let unlimited = self.keep(class.keyed(ClassKey { lasts_s: None, ..class.key.clone() }));
        self.keep(JobClass { unlimited: Some(unlimited), ..class })
    }

    fn keep(&mut self, class: JobClass) -> Arc<JobClass> {
        if let Some(known) = self.known.get(&class) {
            return known.clone();
        }
        let class = Arc::new(class);
        self.known.insert(class.clone());
        class
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
