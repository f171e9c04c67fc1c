//! What the state of a form-4 folder has not got: the order in which finished jobs ended, and their number.
//!
//! What must stay true: it is made from the history alone, which is the same on every replica, so all of them come to the same; made again, it
//! is the same.

use super::Memory;
use crate::consensus::forms::form_of;
use crate::consensus::stored::{self, encode, ended_key, object_key, state_space};
use muster_model::object::FinishedJob;
use muster_model::{Change, Key, Object};
use muster_runtime::{Batch, DiskError, Kv};

/// Finished jobs read at once; other tasks run in between.
const PAGE_JOBS: usize = 512;

/// Orders and counts the finished jobs, where that was never done.
pub(super) async fn order_history(kv: &dyn Kv, memory: &mut Memory) -> Result<(), DiskError> {
    let mut meta = memory.state.meta.clone();
    if meta.finished_kept > 0 || meta.finished_forgotten > 0 {
        return Ok(());
    }
    let mut from = Vec::new();
    loop {
        let page = kv.scan(state_space::HISTORY, &from, None, PAGE_JOBS, false)?;
        let mut batch = Batch::default();
        for (_, bytes) in &page {
            batch.put(state_space::ENDED, ended_key(&FinishedJob::of(&stored::job(bytes)?)), []);
            meta.finished_kept += 1;
        }
        let Some((last, _)) = page.last() else { break };
        kv.write(&batch)?;
        // The next page begins right after the last key.
        from.clone_from(last);
        from.push(0);
        tokio::task::yield_now().await;
    }
    if meta.finished_kept > 0 {
        tracing::info!(jobs = meta.finished_kept, "upgrading the data folder: sorting finished jobs by end time");
        let object = Object::Meta(meta);
        let mut batch = Batch::default();
        let stored = encode(form_of(memory.state.meta.feature_level), &object);
        batch.put(state_space::OBJECTS, object_key(&Key::Meta), stored);
        kv.write(&batch)?;
        memory.state.apply(&Change::put(object));
    }
    Ok(())
}
