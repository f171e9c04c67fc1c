//! The command's output, from pipes into files of bounded size. Runs in its own thread, so that a stalled disk stalls only it.

use crate::exec::folder::{Stream, TaskFolder};
use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// After the last process is dead, pipes end at once unless somebody outside was handed one; nobody waits longer for that.
const FINISH_MAX: Duration = Duration::from_secs(2);
/// As much as a pipe holds.
const BUFFER_BYTES: usize = 64 * 1024;

pub(super) struct Pump {
    ended: Receiver<()>,
    dropped_bytes: Arc<AtomicU64>,
}

/// Starts to copy both streams, each into its file up to `bytes_max`.
pub(super) fn start(folder: &TaskFolder, bytes_max: u64, stdout: PipeReader, stderr: PipeReader) -> Pump {
    let (tell, ended) = channel();
    let dropped_bytes = Arc::new(AtomicU64::new(0));
    for (stream, pipe) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
        let (folder, tell, dropped) = (folder.clone(), tell.clone(), dropped_bytes.clone());
        std::thread::spawn(move || copy(&folder, stream, pipe, bytes_max, &dropped, &tell));
    }
    Pump { ended, dropped_bytes }
}

impl Pump {
    /// Waits for the rest of the output; gives how many bytes did not fit.
    pub(super) fn finish(self) -> u64 {
        for _ in [Stream::Stdout, Stream::Stderr] {
            // A thread that fails drops its sender, which ends the wait too.
            let _ = self.ended.recv_timeout(FINISH_MAX);
        }
        self.dropped_bytes.load(Ordering::Acquire)
    }
}

fn copy(folder: &TaskFolder, stream: Stream, mut pipe: PipeReader, max: u64, dropped: &AtomicU64, tell: &Sender<()>) {
    let mut file = File::options().create(true).append(true).open(folder.log(stream)).ok();
    let mut room = max;
    let mut marked = false;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let keep = room.min(read as u64) as usize;
        if let Some(open) = &mut file
            && open.write_all(&buffer[..keep]).is_err()
        {
            // A full disk must not block the task: its output is lost and counted instead.
            file = None;
            room = 0;
        }
        room = room.saturating_sub(keep as u64);
        let lost = (read - keep) as u64;
        if lost > 0 && !marked {
            marked = File::create(folder.truncated(stream)).is_ok();
        }
        dropped.fetch_add(lost, Ordering::AcqRel);
    }
    let _ = tell.send(());
}
