//! Simulated stores: ordered maps, with the batches that no sync has covered yet kept apart.
//!
//! What must stay true: a write can be read at once; a crash keeps everything synced and a random prefix of the rest, never half a
//! batch and never a later batch without an earlier one; a handle from before a crash can do nothing any more; a checkpoint is frozen.
//! A scenario may stall the syncs of a disk or make them fail.

use super::trace::Trace;
use crate::chance::Chance;
use crate::disk::{Batch, Disk, DiskError, Kv, KvRead, Op, Pair};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

type Space = Arc<BTreeMap<Vec<u8>, Vec<u8>>>;

/// A frozen view, and what the live and the durable side of a store are made of. Cloning shares; the first write after a clone
/// copies the space it touches.
#[derive(Clone, Default)]
struct Spaces(BTreeMap<&'static str, Space>);

impl Spaces {
    fn apply(&mut self, batch: &Batch) {
        for op in &batch.ops {
            match op {
                Op::Put(space, key, value) => {
                    self.writable(space).insert(key.clone(), value.clone());
                }
                Op::Delete(space, key) => {
                    self.writable(space).remove(key);
                }
                Op::DeleteRange(space, from, to) => {
                    let map = self.writable(space);
                    if from < to {
                        let gone: Vec<Vec<u8>> =
                            map.range(from.clone()..to.clone()).map(|(key, _)| key.clone()).collect();
                        for key in gone {
                            map.remove(&key);
                        }
                    }
                }
            }
        }
    }

    fn writable(&mut self, space: &'static str) -> &mut BTreeMap<Vec<u8>, Vec<u8>> {
        Arc::make_mut(self.0.entry(space).or_default())
    }

    fn space(&self, space: &'static str) -> Result<&Space, DiskError> {
        self.0.get(space).ok_or_else(|| DiskError::Io {
            doing: format!("reading space {space:?}"),
            why: "the store was not opened with it".to_owned(),
        })
    }
}

impl KvRead for Spaces {
    fn get(&self, space: &'static str, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        Ok(self.space(space)?.get(key).cloned())
    }

    fn scan(
        &self,
        space: &'static str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<Pair>, DiskError> {
        if to.is_some_and(|to| to <= from) {
            return Ok(Vec::new());
        }
        let end = to.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.space(space)?.range::<[u8], _>((Bound::Included(from), end));
        let pair = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
        Ok(if reverse { range.rev().take(limit).map(pair).collect() } else { range.take(limit).map(pair).collect() })
    }
}

#[derive(Default)]
struct Store {
    live: Spaces,
    durable: Spaces,
    /// Written but not synced, oldest first.
    unsynced: VecDeque<Batch>,
    /// How many batches of this store have become durable, ever: what a sync waits for is a number in this count.
    synced: u64,
    /// The handle, while it is open: a store is open once.
    open: Weak<SimKv>,
}

impl Store {
    fn sync_to(&mut self, target: u64) {
        while self.synced < target
            && let Some(batch) = self.unsynced.pop_front()
        {
            self.durable.apply(&batch);
            self.synced += 1;
        }
    }

    fn crash(&mut self, chance: &Chance) {
        let kept = chance.between(0, self.unsynced.len() as u64 + 1);
        self.sync_to(self.synced + kept);
        self.unsynced.clear();
        self.live = self.durable.clone();
        self.open = Weak::new();
    }
}

/// What is on a host's disk; it outlives the host's crashes.
pub(super) struct DiskState {
    host: String,
    chance: Chance,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    stores: BTreeMap<String, Store>,
    /// The life of the host that may use it; handles of earlier lives are refused.
    life: u64,
    stalled_until: Option<Instant>,
    failing: bool,
    lying: bool,
}

impl DiskState {
    pub(super) fn new(host: String, chance: Chance) -> Self {
        DiskState { host, chance, inner: Mutex::default() }
    }

    pub(super) fn begin_life(&self, life: u64) {
        self.inner.lock().life = life;
    }

    pub(super) fn crash(&self) {
        let mut inner = self.inner.lock();
        inner.life = u64::MAX;
        for store in inner.stores.values_mut() {
            store.crash(&self.chance);
        }
    }

    pub(super) fn wipe(&self) {
        self.inner.lock().stores.clear();
    }

    pub(super) fn stall_until(&self, until: Instant) {
        self.inner.lock().stalled_until = Some(until);
    }

    pub(super) fn set_failing(&self, failing: bool) {
        self.inner.lock().failing = failing;
    }

    pub(super) fn is_failing(&self) -> bool {
        self.inner.lock().failing
    }

    pub(super) fn set_lying(&self, lying: bool) {
        self.inner.lock().lying = lying;
    }

    /// The latency of one sync: mostly short, sometimes a disk's bad moment.
    pub(super) fn sync_delay(&self) -> Duration {
        let bad = self.chance.between(0, 100) == 0;
        Duration::from_micros(if bad { self.chance.between(5_000, 40_000) } else { self.chance.between(50, 3_000) })
    }

    /// Waits as a sync does; an error when the disk fails or the host has crashed meanwhile.
    pub(super) async fn wait_for_sync(&self, life: u64, doing: &str) -> Result<(), DiskError> {
        tokio::time::sleep(self.sync_delay()).await;
        loop {
            let stalled_until = self.inner.lock().stalled_until;
            match stalled_until {
                Some(until) if until > Instant::now() => tokio::time::sleep_until(until).await,
                _ => break,
            }
        }
        self.usable(&self.inner.lock(), life, doing)?;
        if self.inner.lock().failing {
            return Err(self.error(doing, "injected I/O error"));
        }
        Ok(())
    }

    pub(super) fn check_life(&self, life: u64, doing: &str) -> Result<(), DiskError> {
        self.usable(&self.inner.lock(), life, doing)
    }

    fn usable(&self, inner: &Inner, life: u64, doing: &str) -> Result<(), DiskError> {
        if inner.life == life { Ok(()) } else { Err(self.error(doing, "the host has crashed since")) }
    }

    fn error(&self, doing: &str, why: &str) -> DiskError {
        DiskError::Io { doing: format!("{doing} on {}", self.host), why: why.to_owned() }
    }
}

/// The disk as one life of its host sees it.
pub(super) struct SimDisk {
    pub(super) trace: Arc<Trace>,
    pub(super) state: Arc<DiskState>,
    pub(super) life: u64,
}

impl Disk for SimDisk {
    fn open(&self, name: &str, spaces: &[&'static str]) -> Result<Arc<dyn Kv>, DiskError> {
        let mut inner = self.state.inner.lock();
        self.state.usable(&inner, self.life, "opening a store")?;
        let store = inner.stores.entry(name.to_owned()).or_default();
        if store.open.strong_count() > 0 {
            return Err(self.state.error(&format!("opening {name:?}"), "it is open already"));
        }
        for space in spaces {
            store.live.writable(space);
            store.durable.writable(space);
        }
        let kv = Arc::new(SimKv {
            trace: self.trace.clone(),
            state: self.state.clone(),
            life: self.life,
            name: name.to_owned(),
        });
        store.open = Arc::downgrade(&kv);
        Ok(kv)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let mut inner = self.state.inner.lock();
        self.state.usable(&inner, self.life, "removing a store")?;
        if inner.stores.get(name).is_some_and(|store| store.open.strong_count() > 0) {
            return Err(self.state.error(&format!("removing {name:?}"), "it is open"));
        }
        inner.stores.remove(name);
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        let inner = self.state.inner.lock();
        self.state.usable(&inner, self.life, "listing stores")?;
        Ok(inner.stores.keys().cloned().collect())
    }
}

struct SimKv {
    trace: Arc<Trace>,
    state: Arc<DiskState>,
    life: u64,
    name: String,
}

impl SimKv {
    fn with<T>(&self, doing: &str, act: impl FnOnce(&mut Store) -> Result<T, DiskError>) -> Result<T, DiskError> {
        let mut inner = self.state.inner.lock();
        self.state.usable(&inner, self.life, doing)?;
        match inner.stores.get_mut(&self.name) {
            Some(store) => act(store),
            None => Err(self.state.error(doing, "the store has been removed")),
        }
    }
}

impl KvRead for SimKv {
    fn get(&self, space: &'static str, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        self.with("reading", |store| store.live.get(space, key))
    }

    fn scan(
        &self,
        space: &'static str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<Pair>, DiskError> {
        self.with("scanning", |store| store.live.scan(space, from, to, limit, reverse))
    }
}

impl Kv for SimKv {
    fn write(&self, batch: &Batch) -> Result<(), DiskError> {
        self.with("writing", |store| {
            for op in &batch.ops {
                let (Op::Put(space, ..) | Op::Delete(space, _) | Op::DeleteRange(space, ..)) = op;
                store.live.space(space)?;
            }
            store.live.apply(batch);
            store.unsynced.push_back(batch.clone());
            Ok(())
        })
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        let target = self.with("syncing", |store| Ok(store.synced + store.unsynced.len() as u64));
        let (trace, state, life, name) = (self.trace.clone(), self.state.clone(), self.life, self.name.clone());
        async move {
            let target = target?;
            state.wait_for_sync(life, "syncing").await?;
            let mut inner = state.inner.lock();
            let lying = inner.lying;
            if let Some(store) = inner.stores.get_mut(&name).filter(|_| !lying) {
                store.sync_to(target);
            }
            drop(inner);
            trace.event(format_args!("synced {}/{name} to {target}", state.host));
            Ok(())
        }
        .boxed()
    }

    fn checkpoint(&self) -> Result<Arc<dyn KvRead>, DiskError> {
        self.with("freezing", |store| Ok(Arc::new(store.live.clone()) as Arc<dyn KvRead>))
    }

    /// What is removed here takes no space.
    fn reclaim(&self, _space: &'static str) {}
}
