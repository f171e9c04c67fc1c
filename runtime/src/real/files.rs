//! Small files, each replaced whole: written beside, synced, renamed, folder synced. Only their owner reads them: keys are among them.

use super::folder;
use crate::disk::{DiskError, Files};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const OWNER_ONLY: u32 = 0o600;

/// Files below one folder.
pub(super) struct SyncedFiles {
    folder: PathBuf,
    /// One write at a time, so that two writes of one name cannot share the file beside it.
    writing: Arc<Mutex<()>>,
}

impl SyncedFiles {
    pub(super) fn new(folder: PathBuf) -> Self {
        SyncedFiles { folder, writing: Arc::default() }
    }
}

impl Files for SyncedFiles {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, DiskError> {
        folder::check_name(name)?;
        let path = self.folder.join(name);
        match fs::read(&path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(folder::io("reading", &path, &error)),
        }
    }

    fn write(&self, name: &str, content: Vec<u8>) -> BoxFuture<'static, Result<(), DiskError>> {
        if let Err(error) = folder::check_name(name) {
            return std::future::ready(Err(error)).boxed();
        }
        let (folder, name, writing) = (self.folder.clone(), name.to_owned(), self.writing.clone());
        let written = tokio::task::spawn_blocking(move || {
            let _one_at_a_time = writing.lock();
            replace(&folder, &name, &content)
        });
        async move {
            written.await.unwrap_or_else(|lost| {
                Err(DiskError::Io { doing: "writing a file".to_owned(), why: format!("the writer ended: {lost}") })
            })
        }
        .boxed()
    }
}

fn replace(folder: &Path, name: &str, content: &[u8]) -> Result<(), DiskError> {
    folder::make(folder)?;
    let (path, beside) = (folder.join(name), folder.join(format!(".{name}.new")));
    let write = || -> std::io::Result<()> {
        let mut file = File::options().write(true).create(true).truncate(true).mode(OWNER_ONLY).open(&beside)?;
        // What a crash has left there may have been open to others.
        file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    };
    write().map_err(|error| folder::io("writing", &path, &error))?;
    folder::sync(folder)
}
