//! A voter's disk: ext4 on a loop device, which can lose power, fill up and freeze.
//!
//! Power is lost with ext4's own shutdown call: from then on nothing is written, and what was not synced is not there after the next
//! mount. What must stay true: dropping a disk unmounts it, frozen or not.

use crate::enclosure::{FOLDER, disk_prefix};
use crate::tools::run;
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// `EXT4_IOC_SHUTDOWN`, which is `_IOR('X', 125, __u32)`.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Its argument: the journal is not flushed before, as when power is lost.
static NO_LOG_FLUSH: u32 = 2;
/// Unmounting waits for the last file to be closed by a process that was just killed.
const UNMOUNT_TRIES: u32 = 100;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A mounted disk.
pub(crate) struct Disk {
    image: PathBuf,
    mounted: PathBuf,
}

impl Disk {
    /// A new, empty one.
    ///
    /// # Errors
    /// When there are no loop devices, or no ext4.
    pub(crate) fn new(mib: u64) -> Result<Disk> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(FOLDER);
        let disk = Disk {
            image: folder.join(format!("{}disk{number}.img", disk_prefix())),
            mounted: folder.join(format!("disk{number}")),
        };
        std::fs::File::create(&disk.image)?.set_len(mib << 20)?;
        std::fs::create_dir(&disk.mounted)?;
        run("mkfs.ext4", &["-q", "-F", &disk.image.to_string_lossy()])?;
        disk.mount()?;
        Ok(disk)
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> &Path {
        &self.mounted
    }

    fn mount(&self) -> Result<()> {
        run("mount", &["-o", "loop", &self.image.to_string_lossy(), &self.mounted.to_string_lossy()])
    }

    fn unmount(&self) -> Result<()> {
        let mut last = Ok(());
        for _ in 0..UNMOUNT_TRIES {
            last = run("umount", &[&self.mounted.to_string_lossy()]);
            if last.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        last
    }

    /// Power is lost now: every byte that was not synced is gone, and nothing is written any more.
    ///
    /// # Errors
    /// When the kernel does not know the call.
    pub(crate) fn lose_power(&self) -> Result<()> {
        let folder = std::fs::File::open(&self.mounted)?;
        // SAFETY: the descriptor is open, and the call reads one u32 that outlives it.
        let done = unsafe { libc::ioctl(folder.as_raw_fd(), SHUTDOWN, &raw const NO_LOG_FLUSH) };
        ensure!(done == 0, "the file system does not shut down: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// The machine starts again: what was synced is there. No process may use the disk.
    ///
    /// # Errors
    /// When it is still in use, or cannot be mounted.
    pub(crate) fn restore_power(&self) -> Result<()> {
        self.unmount().context("after a power loss")?;
        self.mount()
    }

    /// Fills it to the last byte.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(crate) fn fill(&self) -> Result<()> {
        let mut file = std::fs::File::create(self.mounted.join("filler"))?;
        let block = vec![1_u8; 64 << 10];
        while file.write_all(&block).is_ok() {}
        // The rest, in small pieces: the blocks that were too large for it.
        while file.write_all(&block[..512]).is_ok() {}
        let _ = file.sync_all();
        Ok(())
    }

    /// What filled it goes.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub(crate) fn empty(&self) -> Result<()> {
        std::fs::remove_file(self.mounted.join("filler")).context("removing what filled the disk")
    }

    /// Every write waits from now on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn freeze(&self) -> Result<()> {
        run("fsfreeze", &["-f", &self.mounted.to_string_lossy()])
    }

    /// Writes go on.
    ///
    /// # Errors
    /// When it was not frozen.
    pub(crate) fn thaw(&self) -> Result<()> {
        run("fsfreeze", &["-u", &self.mounted.to_string_lossy()])
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What stays in spite of this goes with the run's own namespace. Most disks are not frozen.
        let _ = self.thaw();
        let _ = self.unmount();
        let _ = std::fs::remove_file(&self.image);
    }
}

/// Whether a disk can be made, lose power and come back here.
pub(crate) fn try_one() -> Result<()> {
    let disk = Disk::new(16)?;
    disk.lose_power()?;
    disk.restore_power()
}
