//! Taking over the data folder, the host, and what an earlier agent has left running. Everything here blocks.

use super::Inner;
use crate::exec::kept::Kept;
use crate::exec::start::Found;
use crate::exec::{ExecError, Owner, claim, orphans, start};
use crate::sandbox::member;
use crate::task_folder::record::LaunchRecord;
use crate::task_folder::{TaskFolder, VOID, checkpoint, world};
use muster_model::Checkpoint;
use muster_node_core::{Phase, TaskKey};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

/// A task of an earlier agent: what it was started with, what is there, its newest checkpoint, and the size of its gang that it was told last.
pub(super) type Adopted = (LaunchRecord, Found, Option<Checkpoint>, Option<u64>);

impl Inner {
    /// Takes the data folder, and reads what an earlier agent has left there. Blocks.
    pub(super) fn take_over(&self) -> Result<(Kept, Vec<Adopted>), ExecError> {
        let config = &self.config;
        *self.folder_lock.lock() = Some(claim::lock_folder(&config.data_dir)?);
        if config.reaps_orphans {
            nix::sys::prctl::set_child_subreaper(true).map_err(|error| self.failed(error.into()))?;
        }
        let kept = Kept::open(config.data_dir.join("kept"), config.kept_tasks_max, config.kept_bytes_max);
        let kept = kept.map_err(|source| self.failed(source))?;
        let adopted = self.adopt_all().map_err(|source| self.failed(source))?;
        self.end_abandoned_sandboxes();
        self.images.clean();
        Ok((kept, adopted))
    }

    /// Takes the host, and ends what runs there of this owner without a record. Blocks.
    pub(super) fn claim(&self, owner: Owner) -> Result<BTreeSet<TaskKey>, ExecError> {
        let config = &self.config;
        let listener = claim::lock_host(&owner, &config.boot_id)?;
        let live: BTreeSet<PathBuf> = {
            let tasks = self.tasks.lock();
            let live = tasks.iter().filter(|(_, entry)| !matches!(entry.phase, Phase::Over { .. }));
            live.map(|(key, _)| self.folder(*key).path().to_owned()).collect()
        };
        let lost = claim::end_strays(&owner, &config.boot_id, &config.data_dir, &live, config.reaps_orphans)?;
        *self.owner.lock() = Some((owner, listener));
        Ok(lost)
    }

    /// Ends and removes sandboxes that no shim uses: of another boot, or of shims that were killed. Blocks.
    fn end_abandoned_sandboxes(&self) {
        let Ok(left) = std::fs::read_dir(self.config.data_dir.join("sandboxes")) else { return };
        for path in left.flatten().map(|entry| entry.path()) {
            if let Err(error) = member::end_abandoned(&path, || orphans::reap_adopted(self.config.reaps_orphans)) {
                tracing::warn!(folder = %path.display(), %error, "cannot end a sandbox that no task uses");
            }
        }
    }

    /// Reads every folder. Blocks.
    fn adopt_all(&self) -> io::Result<Vec<Adopted>> {
        std::fs::create_dir_all(&self.live)?;
        let mut adopted = Vec::new();
        for entry in std::fs::read_dir(&self.live)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == VOID) {
                std::fs::remove_dir_all(&path)?;
            }
            let named = path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.parse::<TaskKey>().is_ok());
            if !named {
                continue;
            }
            let (boot_id, adopts) = (&self.config.boot_id, self.config.reaps_orphans);
            match start::adopt(&TaskFolder::new(&path), boot_id, self.now_ns(), adopts) {
                Ok(Some((record, found))) => {
                    let made = checkpoint::read(&TaskFolder::new(&path)).unwrap_or_default();
                    adopted.push((record, found, made, world::generation(&TaskFolder::new(&path))));
                }
                Ok(None) => tracing::debug!(folder = %path.display(), "this task folder has no started task"),
                // Its fence still holds; to go on without the others would be worse.
                Err(error) => tracing::error!(folder = %path.display(), %error, "cannot take over a task folder"),
            }
        }
        Ok(adopted)
    }
}
