//! Unpacking layers one over the other into one folder.
//!
//! What must stay true: nothing outside of the folder is made, changed, linked or removed, whatever the archives say; links inside of it mean what they
//! would mean if it were the root, and the kernel itself looks them up so; no device, no pipe, and nothing that changes its user or group is made; a bound on bytes and
//! entries holds over all layers together.

use super::entries::{Entries, Entry, Kind};
use super::{Bounds, ImageError};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstatat, futimens, mkdirat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A name of this kind in a layer removes what lower layers have under the rest of the name.
const WHITEOUT: &[u8] = b".wh.";
/// And this one all that lower layers have in its folder.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// What the union file system of old kept for itself.
const OF_AUFS: &[u8] = b".wh..wh.";
const PATH_BYTES_MAX: usize = 4_096;
const NAME_BYTES_MAX: usize = 255;
/// Links to folders that are not there yet, one behind the other.
const LINKS_MAX: u32 = 8;

/// A root file system that is being unpacked.
pub(super) struct Unpacking {
    root: OwnedFd,
    bounds: Bounds,
    bytes: u64,
    entries: u64,
}

/// What an entry asks for that no image may.
fn refused(entry: &Entry, why: &str) -> ImageError {
    let name = String::from_utf8_lossy(&entry.path[..entry.path.len().min(200)]).into_owned();
    ImageError::Hostile { entry: name, why: why.to_owned() }
}

fn folder_flags() -> OFlag {
    OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC
}

impl Unpacking {
    /// Into a folder that is there and empty.
    pub(super) fn into(folder: &Path, bounds: Bounds) -> Result<Self, ImageError> {
        let root = open(folder, folder_flags(), Mode::empty())
            .map_err(|error| ImageError::disk(format!("opening {}", folder.display()), error.into()))?;
        Ok(Unpacking { root, bounds, bytes: 0, entries: 0 })
    }

    /// Bytes of all files so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Unpacks one layer over those before it; gives back what is left of its input.
    pub(super) fn layer<R: Read>(&mut self, input: R) -> Result<R, ImageError> {
        let mut entries = Entries::new(input);
        let mut made = BTreeSet::new();
        loop {
            let entry = entries.next_entry().map_err(ImageError::archive)?;
            let Some(entry) = entry else { return Ok(entries.into_input()) };
            self.entries += 1;
            self.bytes = self.bytes.saturating_add(entry.size);
            if self.entries > self.bounds.entries_max || self.bytes > self.bounds.bytes_max {
                let Bounds { bytes_max, entries_max, .. } = self.bounds;
                return Err(ImageError::TooLarge { bytes_max, entries_max });
            }
            self.apply(&entry, &mut entries, &mut made)?;
        }
    }

    fn apply(&self, entry: &Entry, content: &mut impl Read, made: &mut BTreeSet<PathBuf>) -> Result<(), ImageError> {
        let parts = parts_of(&entry.path).ok_or_else(|| refused(entry, "its path leads out of the image"))?;
        let Some((name, above)) = parts.split_last() else { return Ok(()) };
        let failed = |error: io::Error| match error.raw_os_error() {
            // What the image itself has put in the way.
            Some(libc::ENOTDIR | libc::EEXIST | libc::ELOOP | libc::EXDEV | libc::EISDIR | libc::EINVAL) => {
                refused(entry, &error.to_string())
            }
            _ => ImageError::disk(format!("unpacking {}", String::from_utf8_lossy(&entry.path)), error),
        };
        let bytes = name.as_bytes();
        if bytes.starts_with(WHITEOUT) {
            let removed = OsStr::from_bytes(&bytes[WHITEOUT.len()..]);
            if matches!(removed.as_bytes(), b"." | b"..") {
                return Err(refused(entry, "it would remove a folder above"));
            }
            let Some(folder) = self.folder(above, false).map_err(failed)? else { return Ok(()) };
            let above: PathBuf = above.iter().collect();
            return if bytes == OPAQUE {
                clear(&folder, &above, made).map_err(failed)
            } else if bytes.starts_with(OF_AUFS) || bytes == WHITEOUT {
                Ok(())
            } else {
                remove(&folder, removed).map_err(failed)
            };
        }
        let Some(folder) = self.folder(above, true).map_err(failed)? else { return Ok(()) };
        match entry.kind {
            Kind::Folder => make_folder(&folder, name, entry.mode).map_err(failed)?,
            Kind::File => make_file(&folder, name, entry, content).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                    ImageError::archive(error)
                }
                _ => failed(error),
            })?,
            Kind::Symlink => {
                let fits = !entry.link.is_empty() && entry.link.len() <= PATH_BYTES_MAX && !entry.link.contains(&0);
                if !fits {
                    return Err(refused(entry, "its link is empty or too long"));
                }
                remove(&folder, name).map_err(failed)?;
                symlinkat(OsStr::from_bytes(&entry.link), &folder, *name).map_err(|error| failed(error.into()))?;
            }
            Kind::HardLink => self.hard_link(entry, &folder, name, failed)?,
            Kind::Other => return Err(refused(entry, "it is a device, a pipe, or of an unknown kind")),
        }
        made.insert(parts.iter().collect());
        Ok(())
    }

    fn hard_link(
        &self,
        entry: &Entry,
        folder: &OwnedFd,
        name: &OsStr,
        failed: impl Fn(io::Error) -> ImageError,
    ) -> Result<(), ImageError> {
        let parts = parts_of(&entry.link).ok_or_else(|| refused(entry, "its hard link leads out of the image"))?;
        let Some((to, above)) = parts.split_last() else {
            return Err(refused(entry, "its hard link is empty"));
        };
        let there = self.folder(above, false).map_err(&failed)?;
        let there = there.ok_or_else(|| refused(entry, "its hard link leads to nothing"))?;
        match kind_of(&there, to).map_err(&failed)? {
            Some(SFlag::S_IFREG | SFlag::S_IFLNK) => {}
            _ => return Err(refused(entry, "its hard link does not lead to a file of the image")),
        }
        remove(folder, name).map_err(&failed)?;
        linkat(&there, *to, folder, name, AtFlags::empty()).map_err(|error| match error {
            Errno::ENOENT => refused(entry, "its hard link leads to itself"),
            error => failed(error.into()),
        })
    }

    /// A handle on a folder inside; none where it is not there and not to be made.
    fn folder(&self, parts: &[&OsStr], make: bool) -> io::Result<Option<OwnedFd>> {
        let whole: PathBuf = parts.iter().collect();
        match self.open_folder(&whole) {
            Err(Errno::ENOENT) if !make => return Ok(None),
            Err(Errno::ENOENT) => {}
            found => return Ok(Some(found?)),
        }
        self.make_folder_at(&whole, LINKS_MAX).map(Some)
    }

    /// Makes a folder with all that is missing above it, also where a link leads that is there already.
    fn make_folder_at(&self, path: &Path, links: u32) -> io::Result<OwnedFd> {
        match self.open_folder(path) {
            Err(Errno::ENOENT) => {}
            found => return Ok(found?),
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::EINVAL.into());
        };
        let folder = self.make_folder_at(above, links)?;
        match mkdirat(&folder, name, Mode::from_bits_truncate(0o755)) {
            Err(Errno::EEXIST) if links > 0 => {
                let to = PathBuf::from(readlinkat(&folder, name)?);
                let to = to.strip_prefix("/").map_or_else(|_| above.join(&to), Path::to_owned);
                self.make_folder_at(&to, links - 1)?;
            }
            made => made?,
        }
        Ok(self.open_folder(path)?)
    }

    /// The kernel takes every link as if the image were the root.
    fn open_folder(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS | ResolveFlag::RESOLVE_NO_XDEV;
        openat2(&self.root, path, OpenHow::new().flags(folder_flags()).resolve(resolve))
    }
}

/// The names on the way to an entry, from the root on; none where the way leads up, or is no path.
fn parts_of(path: &[u8]) -> Option<Vec<&OsStr>> {
    if path.len() > PATH_BYTES_MAX || path.contains(&0) {
        return None;
    }
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let parts: Vec<&OsStr> = parts.map(OsStr::from_bytes).collect();
    let is_fine = |part: &&OsStr| part.len() <= NAME_BYTES_MAX && part.as_bytes() != b"..";
    parts.iter().all(is_fine).then_some(parts)
}

/// What is there under a name, no link followed.
fn kind_of(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<SFlag>> {
    match fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(there) => Ok(Some(SFlag::from_bits_truncate(there.st_mode) & SFlag::S_IFMT)),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes what is there under a name, with all that is below it.
fn remove(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match kind_of(folder, name)? {
        None => Ok(()),
        // It follows no link on its way down.
        Some(SFlag::S_IFDIR) => std::fs::remove_dir_all(through(folder).join(name)),
        Some(_) => Ok(unlinkat(folder, name, UnlinkatFlags::NoRemoveDir)?),
    }
}

/// Removes from a folder what this layer has not made. `path` is where the folder is.
fn clear(folder: &OwnedFd, path: &Path, made: &BTreeSet<PathBuf>) -> io::Result<()> {
    let names: Vec<OsString> =
        std::fs::read_dir(through(folder))?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    for name in names {
        let own = path.join(&name);
        let is_of_this_layer = made.range(own.clone()..).next().is_some_and(|next| next.starts_with(&own));
        if !is_of_this_layer {
            remove(folder, &name)?;
        } else if kind_of(folder, &name)? == Some(SFlag::S_IFDIR) {
            let flags = folder_flags() | OFlag::O_NOFOLLOW;
            clear(&openat(folder, name.as_os_str(), flags, Mode::empty())?, &own, made)?;
        }
    }
    Ok(())
}

/// A path that leads to what the handle means, wherever it is by now.
fn through(folder: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string())
}

fn make_folder(above: &OwnedFd, name: &OsStr, mode: u32) -> io::Result<()> {
    if kind_of(above, name)? != Some(SFlag::S_IFDIR) {
        remove(above, name)?;
        mkdirat(above, name, Mode::from_bits_truncate(0o755))?;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = openat(above, name, flags, Mode::empty())?;
    // The task is none of the image's users: what its root may see, the task may.
    fchmod(&folder, Mode::from_bits_truncate(mode & 0o1777 | 0o755))?;
    Ok(())
}

fn make_file(above: &OwnedFd, name: &OsStr, entry: &Entry, content: &mut impl Read) -> io::Result<()> {
    remove(above, name)?;
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(above, name, flags, Mode::from_bits_truncate(0o600))?);
    let written = io::copy(&mut content.take(entry.size), &mut file)?;
    if written < entry.size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let may_run = if entry.mode & 0o100 == 0 { 0 } else { 0o111 };
    fchmod(&file, Mode::from_bits_truncate(entry.mode & 0o777 | 0o644 | may_run))?;
    // Compiled Python files name the time of their source.
    let changed = TimeSpec::new(i64::try_from(entry.changed_s).unwrap_or(0), 0);
    futimens(&file, &changed, &changed)?;
    Ok(())
}
