//! What this agent has set up in this boot of the node and the driver cannot say, as a set of words in a file.
//!
//! What must stay true: marks of an earlier boot do not count, since a reboot undoes what they say; a mark is on disk when setting it has returned.

use muster_runtime::{DiskError, Files};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    boot_id: String,
    #[serde(alias = "cards")]
    marks: BTreeSet<String>,
}

/// The marks of one file.
pub(super) struct BootMarks {
    name: &'static str,
    files: Arc<dyn Files>,
    kept: Mutex<Kept>,
    /// The file is written as a whole, so by one at a time.
    writing: tokio::sync::Mutex<()>,
}

/// Why the marks could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum MarksError {
    #[error("{name}: {source}")]
    Disk { name: &'static str, source: DiskError },
    #[error("{name}: {source}")]
    Format { name: &'static str, source: serde_json::Error },
}

impl BootMarks {
    pub(super) fn open(files: Arc<dyn Files>, name: &'static str, boot_id: &str) -> Result<Self, MarksError> {
        let bytes = files.read(name).map_err(|source| MarksError::Disk { name, source })?;
        let kept: Option<Kept> = bytes
            .map(|bytes| serde_json::from_slice(&bytes))
            .transpose()
            .map_err(|source| MarksError::Format { name, source })?;
        let of_this_boot = kept.filter(|kept| kept.boot_id == boot_id);
        let kept = of_this_boot.unwrap_or_else(|| Kept { boot_id: boot_id.to_owned(), ..Kept::default() });
        Ok(BootMarks { name, files, kept: Mutex::new(kept), writing: tokio::sync::Mutex::new(()) })
    }

    pub(super) fn has(&self, mark: &str) -> bool {
        self.kept.lock().marks.contains(mark)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.lock().marks.is_empty()
    }

    pub(super) async fn set(&self, mark: &str, on: bool) -> Result<(), MarksError> {
        let name = self.name;
        let one = self.writing.lock().await;
        let mut kept = self.kept.lock().clone();
        let is_new = if on { kept.marks.insert(mark.to_owned()) } else { kept.marks.remove(mark) };
        if is_new {
            let bytes = serde_json::to_vec(&kept).map_err(|source| MarksError::Format { name, source })?;
            self.files.write(name, bytes).await.map_err(|source| MarksError::Disk { name, source })?;
            *self.kept.lock() = kept;
        }
        drop(one);
        Ok(())
    }
}
