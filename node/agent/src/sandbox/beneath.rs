//! Opening what lies below a folder that an operator has allowed.
//!
//! What must stay true: no link leads out of the folder, and none of the kernel's own links is followed; nothing is opened for reading or writing here: what is
//! found is a handle, so a pipe or a device does not answer.

use crate::task_folder::record::Beneath;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

impl Beneath {
    /// What a path is, seen from the folder `below`; none where it does not lie there.
    pub(crate) fn of(below: &Path, path: &Path) -> Option<Self> {
        Some(Beneath { below: below.to_owned(), rest: path.strip_prefix(below).ok()?.to_owned() })
    }

    /// A handle on it.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let folder = open(&self.below, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        if self.rest.as_os_str().is_empty() {
            return Ok(folder);
        }
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
        openat2(&folder, &self.rest, how).map_err(|error| match error {
            nix::Error::EXDEV => io::Error::other("a link in it leads out of the folder that its pool allows"),
            error => error.into(),
        })
    }

    /// Its path, for people.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        if self.rest.as_os_str().is_empty() { self.below.clone() } else { self.below.join(&self.rest) }
    }
}

/// A handle on a folder, of which files may be opened.
pub(crate) fn open_folder(at: &Beneath) -> io::Result<OwnedFd> {
    let found = at.open()?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::openat(&found, ".", flags, Mode::empty())?)
}

/// Finds out whether it is there.
pub(crate) fn look(at: &Beneath) -> io::Result<()> {
    at.open().map(drop)
}
