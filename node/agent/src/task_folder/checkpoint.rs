//! The file that a task replaces after each checkpoint: its time is the checkpoint's, its text the note.
//!
//! What must stay true: the task may put anything at that path, so what is no plain file is as good as none, nothing here waits for the
//! task, and no more than a note is read.

use super::TaskFolder;
use muster_model::Checkpoint;
use muster_model::checkpoint::{NOTE_BYTES_MAX, note};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::time::UNIX_EPOCH;

/// What the task has written last; `None` when it has not written yet.
///
/// # Errors
/// When the disk refuses.
pub(crate) fn read(folder: &TaskFolder) -> io::Result<Option<Checkpoint>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match File::options().read(true).custom_flags(flags).open(folder.checkpoint()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ELOOP) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let what = file.metadata()?;
    if !what.is_file() {
        return Ok(None);
    }
    let since = what.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut text = Vec::new();
    // One more than is kept, so that a longer one is seen to be cut.
    file.take(NOTE_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    let at_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Ok(Some(Checkpoint { at_ms, note: note(&String::from_utf8_lossy(&text)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_file_is_a_checkpoint_and_only_its_beginning_a_note() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let folder = TaskFolder::new(dir.path());
        let seen = || read(&folder).expect("it can be read");
        assert_eq!(seen(), None);
        std::fs::write(folder.checkpoint(), "step 40\n").expect("a file");
        let made = seen().expect("a checkpoint");
        assert!(made.note == "step 40" && made.at_ms > 1_600_000_000_000, "{made:?}");
        std::fs::write(folder.checkpoint(), "x".repeat(1 << 20)).expect("a file");
        assert_eq!(seen().expect("a checkpoint").note.len(), NOTE_BYTES_MAX);
        std::fs::remove_file(folder.checkpoint()).expect("it is there");
        std::os::unix::fs::symlink("/etc/passwd", folder.checkpoint()).expect("a link");
        assert_eq!(seen(), None, "a link leads elsewhere");
        std::fs::remove_file(folder.checkpoint()).expect("it is there");
        nix::unistd::mkfifo(&folder.checkpoint(), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert_eq!(seen(), None, "a pipe that nobody writes to does not hold anybody up");
    }
}
