//! Loading the state from its store.

use super::upgrade::order_history;
use super::{Execute, Generation, Memory, Replica, UsedIds, check_level, key, store_name};
use crate::consensus::hub::Hub;
use crate::consensus::log::Log;
use crate::consensus::stop::Stop;
use crate::consensus::stored::{self, corrupt, state_space};
use crate::consensus::types::{LogId, Membership};
use muster_control_core::{State, execute};
use muster_model::Object;
use muster_runtime::disk::KvRead;
use muster_runtime::{DiskError, Host};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::time::Instant;

/// Objects read at once; other tasks run in between.
const PAGE_OBJECTS: usize = 512;

impl Replica {
    /// Opens the state store of that generation, or makes it, and loads it into memory.
    ///
    /// # Errors
    /// When the disk fails or what is stored is damaged.
    pub(crate) async fn open(host: &Host, log: Log, generation: u64, stop: Stop) -> Result<Arc<Replica>, DiskError> {
        Replica::open_with(host, log, generation, stop, execute).await
    }

    /// The same, executing entries by `execute`.
    pub(crate) async fn open_with(
        host: &Host,
        log: Log,
        generation: u64,
        stop: Stop,
        execute: Execute,
    ) -> Result<Arc<Replica>, DiskError> {
        let kv = host.disk.open(&store_name(generation), &state_space::ALL)?;
        let mut memory = load(kv.as_ref()).await?;
        order_history(kv.as_ref(), &mut memory).await?;
        // What is read here may not be durable after a mere restart of the process; entries up to it may be purged later.
        kv.sync().await?;
        log.form().follow(memory.state.meta.feature_level);
        let applied = memory.applied.map_or(0, |applied| applied.index);
        let replica = Arc::new(Replica {
            host: host.clone(),
            log,
            hub: Arc::new(Hub::new(applied, stop.clone())),
            stop,
            memory: RwLock::new(memory),
            store: RwLock::new(Generation { number: generation, kv }),
            current: Mutex::new(None),
            next_generation: AtomicU64::new(generation + 1),
            unreclaimed: AtomicU64::new(0),
            execute,
        });
        replica.remove_old_stores()?;
        Ok(replica)
    }
}

/// Reads what `kv` holds.
pub(super) async fn load(kv: &dyn KvRead) -> Result<Memory, DiskError> {
    let (applied, membership, used) = marks(kv)?;
    let mut objects: Vec<Object> = Vec::new();
    let mut from = Vec::new();
    loop {
        let page = kv.scan(state_space::OBJECTS, &from, None, PAGE_OBJECTS, false)?;
        let full = page.len() == PAGE_OBJECTS;
        for (stored_under, bytes) in page {
            let object = stored::object(&bytes)?;
            if stored::object_key(&object.key()) != stored_under {
                return Err(corrupt("the state", &format!("{:?} is stored under another key", object.key())));
            }
            objects.push(object);
            from = stored_under;
        }
        if !full {
            break;
        }
        // The next page begins right after the last key.
        from.push(0);
        tokio::task::yield_now().await;
    }
    if applied.is_none() && !objects.is_empty() {
        return Err(corrupt("the state", &"objects without a mark of what was applied"));
    }
    let state = State::from_objects(objects);
    check_level("the state", state.meta.feature_level)?;
    Ok(Memory { state, timed: Instant::now(), applied, membership, used })
}

/// What `kv` says it has applied, and the membership.
pub(super) fn marks(kv: &dyn KvRead) -> Result<(Option<LogId>, Membership, UsedIds), DiskError> {
    let applied = match kv.get(state_space::META, key::APPLIED)? {
        Some(bytes) => stored::decode_stored("the mark of what was applied", &bytes)?,
        None => None,
    };
    let (membership, used) = match kv.get(state_space::META, key::MEMBERSHIP)? {
        Some(bytes) => stored::decode_stored("the membership", &bytes)?,
        None => Default::default(),
    };
    Ok((applied, membership, used))
}
