//! Folders and files of the host that a sandbox shows at places of its own.
//!
//! What must stay true: they are taken while the host's files are in sight, and put where they belong when those are not; nothing is made in a folder of the host; on the way to a place
//! no link is followed, since a link of an image could lead into a folder of the host that is mounted already, or onto the sandbox's own folders.

use super::{SandboxError, doing, doing_as_asked, sys};
use crate::task_folder::record::Bind;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

/// What was taken, where it goes, and whether it is a folder.
pub(super) struct Taken<'a> {
    mount: OwnedFd,
    target: &'a Path,
    is_folder: bool,
}

/// Takes them.
pub(super) fn take(binds: &[Bind]) -> Result<Vec<Taken<'_>>, SandboxError> {
    binds.iter().map(take_one).collect()
}

fn take_one(bind: &Bind) -> Result<Taken<'_>, SandboxError> {
    let take = || {
        let source = bind.source.open()?;
        Ok((sys::detached_mount_of(&source, bind.read_only)?, is_folder(&source)?))
    };
    let (mount, is_folder) = take().map_err(doing_as_asked(format!("opening {}", bind.source.path().display())))?;
    Ok(Taken { mount, target: &bind.target, is_folder })
}

/// The file systems that belong to the sandbox, by their device numbers: only there may a place be made. Anything else is the host's, and what is made
/// there by root would stay.
pub(super) struct Own(Vec<u64>);

impl Own {
    /// Those that are mounted at these paths.
    pub(super) fn at(paths: &[&str]) -> Result<Self, SandboxError> {
        let device = |path: &&str| Ok(std::fs::symlink_metadata(path)?.dev());
        paths
            .iter()
            .map(device)
            .collect::<io::Result<_>>()
            .map(Own)
            .map_err(doing("looking at the sandbox's own files"))
    }

    fn has(&self, folder: &OwnedFd) -> io::Result<bool> {
        Ok(self.0.contains(&fstat(folder)?.st_dev))
    }
}

/// Puts them where they belong.
pub(super) fn put(taken: &[Taken<'_>], own: &Own) -> Result<(), SandboxError> {
    for Taken { mount, target, is_folder } in taken {
        put_one(mount, target, *is_folder, own)?;
    }
    Ok(())
}

/// Puts a mount at a path, which is made where it is not there.
pub(super) fn put_one(mount: &OwnedFd, target: &Path, is_folder: bool, own: &Own) -> Result<(), SandboxError> {
    let put = place(target, is_folder, own).and_then(|place| sys::attach_mount_on(mount, &place));
    put.map_err(doing_as_asked(format!("mounting {} inside", target.display())))
}

fn is_folder(file: &OwnedFd) -> io::Result<bool> {
    Ok(kind(file)? == SFlag::S_IFDIR)
}

fn kind(file: &OwnedFd) -> io::Result<SFlag> {
    Ok(SFlag::from_bits_truncate(fstat(file)?.st_mode) & SFlag::S_IFMT)
}

/// A handle on the file or folder at an absolute path; what is missing of the way is made.
fn place(path: &Path, is_folder: bool, own: &Own) -> io::Result<OwnedFd> {
    let mut at = open("/", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut parts = path.components().filter(|part| !matches!(part, Component::RootDir)).peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        let is_last = parts.peek().is_none();
        at = step(&at, name, is_folder || !is_last, own)?;
    }
    Ok(at)
}

fn step(at: &OwnedFd, name: &OsStr, is_folder: bool, own: &Own) -> io::Result<OwnedFd> {
    let look = || openat(at, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty());
    let found = match look() {
        Ok(found) if !is_folder && kind(&found)? == SFlag::S_IFLNK && own.has(at)? => {
            // Images bring links of these names: to files of other drivers, or to what a service of theirs would write.
            unlinkat(at, name, UnlinkatFlags::NoRemoveDir)?;
            make(at, name, is_folder, own)?;
            look()?
        }
        Err(Errno::ENOENT) => {
            make(at, name, is_folder, own)?;
            look()?
        }
        other => other?,
    };
    match kind(&found)? {
        SFlag::S_IFLNK => {
            Err(io::Error::other("a symbolic link is in its place or on the way there: name the path it leads to"))
        }
        SFlag::S_IFDIR if !is_folder => Err(io::Error::other("a folder is in the place of a file")),
        SFlag::S_IFDIR => Ok(found),
        _ if is_folder => Err(io::Error::other("a file is in the place of a folder")),
        _ => Ok(found),
    }
}

fn make(at: &OwnedFd, name: &OsStr, is_folder: bool, own: &Own) -> io::Result<()> {
    if !own.has(at)? {
        let said = "there is no such path, and none can be made: use a target that is there, or one below /tmp or /run";
        return Err(io::Error::other(said));
    }
    if is_folder {
        return Ok(mkdirat(at, name, Mode::from_bits_truncate(0o755))?);
    }
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(at, name, flags, Mode::from_bits_truncate(0o644)).map(drop)?;
    Ok(())
}
