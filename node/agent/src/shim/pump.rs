//! The command's output, from pipes into files of bounded size. Runs in its own thread, so that a stalled disk stalls only it.

use crate::task_folder::output::Writer;
use crate::task_folder::{Stream, TaskFolder};
use std::io::{PipeReader, Read};
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

/// Starts to copy both streams, each into its files of `bytes_max` in all.
pub(super) fn start(folder: &TaskFolder, bytes_max: u64, stdout: PipeReader, stderr: PipeReader) -> Pump {
    let (tell, ended) = channel();
    let dropped_bytes = Arc::new(AtomicU64::new(0));
    for (stream, pipe) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
        let (tell, dropped) = (tell.clone(), dropped_bytes.clone());
        let writer = Writer::new(folder, stream, bytes_max);
        std::thread::spawn(move || copy(writer, pipe, &dropped, &tell));
    }
    Pump { ended, dropped_bytes }
}

impl Pump {
    /// Waits for the rest of the output; gives how many bytes were not kept.
    pub(super) fn finish(self) -> u64 {
        for _ in [Stream::Stdout, Stream::Stderr] {
            // A thread that fails drops its sender, which ends the wait too.
            let _ = self.ended.recv_timeout(FINISH_MAX);
        }
        self.dropped_bytes.load(Ordering::Acquire)
    }
}

fn copy(mut writer: Writer, mut pipe: PipeReader, dropped: &AtomicU64, tell: &Sender<()>) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => writer.write(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    dropped.fetch_add(writer.dropped(), Ordering::AcqRel);
    let _ = tell.send(());
}
