//! One run: its hosts, what listens where, and everything a scenario can do to them.

use super::clock::{START_WALL_MS, SimClock};
use super::disk::{DiskState, SimDisk};
use super::files::{FilesState, SimFiles};
use super::heavy::InPlace;
use super::links::{LinkQuality, Links};
use super::net::SimNet;
use super::network::Network;
use super::pki::SimScheme;
use super::trace::Trace;
use super::trust::TrustCell;
use crate::chance::{Chance, set_thread_seed};
use crate::clock::Clock;
use crate::disk::Files;
use crate::host::{FirstPanic, Host, TaskGroup};
use crate::pki::{CertificateClock, Scheme};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Turns of the scheduler in which the tasks of a crashed host have to be gone: dropping one may wake others, a few times over.
const TURNS_TO_DIE: usize = 1_000;
/// The stack of a run's thread. Futures of a whole fleet nest deeper than an ordinary thread's 2 MiB in unoptimised builds.
const STACK_BYTES: usize = 64 << 20;

struct World {
    start: Instant,
    seed: u64,
    chance: Chance,
    network: Arc<Network>,
    trace: Arc<Trace>,
    panics: Arc<FirstPanic>,
    hosts: Mutex<BTreeMap<String, Slot>>,
}

/// What of a host outlives its crashes, and its present life.
struct Slot {
    lives: u64,
    up: Option<TaskGroup>,
    disk: Arc<DiskState>,
    files: Arc<FilesState>,
    skew_ms: Arc<AtomicI64>,
    booted_before_ns: u64,
}

/// A handle on one run. Cheap to clone.
#[derive(Clone)]
pub struct SimWorld(Arc<World>);

/// Runs a scenario to its end on virtual time, on a thread of its own: whatever libraries keep per thread begins afresh, so
/// that one process can run one seed twice and see the same twice. A panic in any task is a panic of the run.
///
/// # Panics
/// When the scenario or any of its tasks does.
pub fn run<T, F, Fut>(seed: u64, scenario: F) -> T
where
    F: FnOnce(SimWorld) -> Fut + Send + 'static,
    Fut: Future<Output = T>,
    T: Send + 'static,
{
    let thread = std::thread::Builder::new().name(format!("sim-{seed}")).stack_size(STACK_BYTES);
    let running = thread.spawn(move || {
        set_thread_seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()))
            .unhandled_panic(tokio::runtime::UnhandledPanic::ShutdownRuntime)
            .build()
            .expect("a runtime without I/O can always be made");
        let outcome = runtime.block_on(async {
            let world = SimWorld::new(seed);
            let panics = world.0.panics.clone();
            let outcome = tokio::select! {
                biased;
                what = panics.noted() => Err(what),
                outcome = scenario(world.clone()) => Ok(outcome),
            };
            world.end();
            outcome
        });
        // Every task is gone before the run panics: a panic while others are dropped would end the whole process.
        drop(runtime);
        outcome.unwrap_or_else(|what| panic!("a spawned task panicked: {what}"))
    });
    match running.expect("a thread can be started").join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl SimWorld {
    fn new(seed: u64) -> Self {
        let chance = Chance::seeded(seed);
        let links = Links::new(Chance::seeded(chance.u64()));
        let start = Instant::now();
        let trace = Arc::new(Trace::new(start));
        SimWorld(Arc::new(World {
            start,
            seed,
            chance,
            network: Arc::new(Network::new(links, trace.clone())),
            trace,
            panics: Arc::default(),
            hosts: Mutex::default(),
        }))
    }

    /// What this run follows from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Randomness for the scenario itself.
    #[must_use]
    pub fn chance(&self) -> &Chance {
        &self.0.chance
    }

    /// Virtual time since the start of the run.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.start.elapsed()
    }

    /// The right time, in milliseconds since the Unix epoch: what a host whose clock was never shifted shows.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        START_WALL_MS + self.0.start.elapsed().as_millis() as u64
    }

    /// Starts a life of host `name`: new, or down since a [crash](SimWorld::crash), with what is left on its disk.
    ///
    /// # Panics
    /// When it is up.
    #[must_use]
    pub fn boot(&self, name: &str) -> Host {
        let mut hosts = self.0.hosts.lock();
        let slot = hosts.entry(name.to_owned()).or_insert_with(|| {
            let chance = &self.0.chance;
            Slot {
                lives: 0,
                up: None,
                disk: Arc::new(DiskState::new(name.to_owned(), Chance::seeded(chance.u64()))),
                files: Arc::new(FilesState::default()),
                skew_ms: Arc::default(),
                // Up to a month.
                booted_before_ns: chance.between(1, 30 * 86_400) * 1_000_000_000,
            }
        });
        assert!(slot.up.is_none(), "{name} is up already");
        slot.lives += 1;
        let (life, tasks, world) = (slot.lives, TaskGroup::noting(self.0.panics.clone()), self.0.clone());
        slot.up = Some(tasks.clone());
        slot.disk.begin_life(life);
        world.trace.event(format_args!("boot {name} life {life}"));
        let clock: Arc<dyn Clock> = Arc::new(SimClock {
            start: world.start,
            skew_ms: slot.skew_ms.clone(),
            booted_before_ns: slot.booted_before_ns,
        });
        let files: Arc<dyn Files> = Arc::new(SimFiles { state: slot.files.clone(), disk: slot.disk.clone(), life });
        let chance = Chance::seeded(world.chance.u64());
        let pki: Arc<dyn Scheme> = Arc::new(SimScheme { chance: chance.clone() });
        let certificate_clock = Arc::new(CertificateClock::new(Arc::clone(&clock), Arc::clone(&files)));
        let trust = Arc::new(TrustCell::new(Arc::clone(&pki), Arc::clone(&certificate_clock)));
        Host {
            name: name.to_owned(),
            clock,
            net: Arc::new(SimNet {
                network: world.network.clone(),
                host: name.to_owned(),
                tasks: tasks.clone(),
                trust,
            }),
            disk: Arc::new(SimDisk { trace: world.trace.clone(), state: slot.disk.clone(), life }),
            identity: Arc::clone(&files),
            files,
            chance,
            heavy: Arc::new(InPlace),
            pki,
            certificate_clock,
            tasks,
        }
    }

    /// Whether the host is up.
    #[must_use]
    pub fn is_up(&self, name: &str) -> bool {
        self.0.hosts.lock().get(name).is_some_and(|slot| slot.up.is_some())
    }

    /// How often the host has booted, if it is up.
    #[must_use]
    pub fn life_of(&self, name: &str) -> Option<u64> {
        self.0.hosts.lock().get(name).filter(|slot| slot.up.is_some()).map(|slot| slot.lives)
    }

    /// Crashes the host, if it is up: all its tasks end, its connections break, what its disk had not synced is lost but for a random
    /// prefix. Returns once nothing of it runs.
    ///
    /// # Panics
    /// When a task of the host outlives it: the run would go on with a ghost.
    pub async fn crash(&self, name: &str) {
        let Some(tasks) = self.cut_power(name) else { return };
        for _ in 0..TURNS_TO_DIE {
            if tasks.alive() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} tasks of {name} outlive its crash", tasks.alive());
    }

    /// Like [`SimWorld::crash`], but returns at once, with the tasks that are about to end; `None` when the host was down.
    #[must_use]
    pub fn cut_power(&self, name: &str) -> Option<TaskGroup> {
        let (tasks, disk, files) = self.take_down(name)?;
        self.0.trace.event(format_args!("crash {name}"));
        self.0.network.unlisten_all(name);
        tasks.abort_all();
        disk.crash();
        files.crash(&self.0.chance);
        Some(tasks)
    }

    fn take_down(&self, name: &str) -> Option<(TaskGroup, Arc<DiskState>, Arc<FilesState>)> {
        let mut hosts = self.0.hosts.lock();
        let slot = hosts.get_mut(name)?;
        Some((slot.up.take()?, slot.disk.clone(), slot.files.clone()))
    }

    /// Empties the disk of a host that is down: a machine that was replaced.
    ///
    /// # Panics
    /// When it is up.
    pub fn wipe(&self, name: &str) {
        let hosts = self.0.hosts.lock();
        let Some(slot) = hosts.get(name) else { return };
        assert!(slot.up.is_none(), "{name} is up");
        self.0.trace.event(format_args!("wipe {name}"));
        slot.disk.wipe();
        slot.files.wipe();
    }

    /// Sets the quality of all links.
    pub fn set_links(&self, quality: LinkQuality) {
        self.0.trace.event(format_args!("links {quality:?}"));
        self.0.network.links.set_quality(quality);
    }

    /// How far two hosts are apart: every message between them takes half of this round trip longer than the quality of the links says.
    pub fn set_round_trip(&self, one: &str, other: &str, round_trip: Duration) {
        self.0.trace.event(format_args!("round trip {one} - {other} {round_trip:?}"));
        self.0.network.links.set_latency(one, other, round_trip / 2);
        self.0.network.links.set_latency(other, one, round_trip / 2);
    }

    /// Cuts the link one way.
    pub fn cut(&self, from: &str, to: &str) {
        self.0.trace.event(format_args!("cut {from} > {to}"));
        self.0.network.links.cut(from, to);
    }

    /// Mends the link one way.
    pub fn mend(&self, from: &str, to: &str) {
        self.0.trace.event(format_args!("mend {from} > {to}"));
        self.0.network.links.mend(from, to);
    }

    /// Cuts every link between the two groups, both ways.
    pub fn partition<'a>(
        &self,
        ones: impl IntoIterator<Item = &'a str> + Clone,
        others: impl IntoIterator<Item = &'a str> + Clone,
    ) {
        for one in ones {
            for other in others.clone() {
                self.cut(one, other);
                self.cut(other, one);
            }
        }
    }

    /// Mends every link.
    pub fn mend_all(&self) {
        self.0.trace.event(format_args!("mend all"));
        self.0.network.links.mend_all();
    }

    /// Shifts the wall clock of the host: it jumps.
    pub fn skew_wall(&self, name: &str, skew_ms: i64) {
        self.0.trace.event(format_args!("skew {name} {skew_ms}"));
        if let Some(slot) = self.0.hosts.lock().get(name) {
            slot.skew_ms.store(skew_ms, Ordering::Relaxed);
        }
    }

    /// Holds back every sync of the host's disk for so long.
    pub fn stall_disk(&self, name: &str, for_: Duration) {
        self.0.trace.event(format_args!("stall {name} {for_:?}"));
        if let Some(slot) = self.0.hosts.lock().get(name) {
            slot.disk.stall_until(Instant::now() + for_);
        }
    }

    /// Makes every sync of the host's disk fail, or no longer.
    pub fn fail_disk(&self, name: &str, failing: bool) {
        self.0.trace.event(format_args!("fail disk {name} {failing}"));
        if let Some(slot) = self.0.hosts.lock().get(name) {
            slot.disk.set_failing(failing);
        }
    }

    /// Whether the host's disk has been made to fail.
    #[must_use]
    pub fn is_disk_failing(&self, name: &str) -> bool {
        self.0.hosts.lock().get(name).is_some_and(|slot| slot.disk.is_failing())
    }

    /// Makes every sync of the host's disk answer without having made anything durable: a planted bug, which checkers must find.
    pub fn plant_lying_disk(&self, name: &str) {
        self.0.trace.event(format_args!("lying disk {name}"));
        if let Some(slot) = self.0.hosts.lock().get(name) {
            slot.disk.set_lying(true);
        }
    }

    /// Notes something in the trace: what a scenario or a checker saw is part of what must be the same in a replay.
    pub fn note(&self, what: Arguments<'_>) {
        self.0.trace.event(what);
    }

    /// Waits until so many more things have happened: messages sent, syncs ended, notes. Virtual time moves in steps of a millisecond, in
    /// which much happens; a fault may come between any two of these.
    pub async fn after_events(&self, events: u64) {
        // The run ends with the trace.
        let _ = self.0.trace.after(events).await;
    }

    /// Keeps the lines of the trace from now on.
    pub fn keep_trace(&self) {
        self.0.trace.keep_lines();
    }

    /// The lines kept so far, which are then forgotten.
    #[must_use]
    pub fn take_trace(&self) -> Vec<String> {
        self.0.trace.take_lines()
    }

    /// A hash over everything that has happened: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.0.trace.hash()
    }

    /// How much has happened.
    #[must_use]
    pub fn trace_events(&self) -> u64 {
        self.0.trace.events()
    }

    /// Lets go of everything: services hold hosts, and hosts the network that holds the services.
    fn end(&self) {
        self.0.network.end();
        for slot in self.0.hosts.lock().values_mut() {
            if let Some(tasks) = slot.up.take() {
                tasks.abort_all();
            }
        }
    }
}
