//! One thread for long work.

use crate::heavy::{Full, Heavy, Work};
use parking_lot::Mutex;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Pieces of work that wait: whoever hands it over bounds its own part, this bounds them together.
const WAITING_MAX: usize = 64;
/// How much less than other threads the operating system prefers this one: elections and heartbeats go first on a busy machine.
const NICENESS: libc::c_int = 10;

/// The thread is started with the first work, so that hosts without any have none. It ends when the host is gone.
pub(super) struct HeavyThread {
    name: String,
    queue: Mutex<Option<SyncSender<Work>>>,
}

impl HeavyThread {
    pub(super) fn new(host: &str) -> Self {
        HeavyThread { name: format!("heavy-{host}"), queue: Mutex::new(None) }
    }

    fn start(&self) -> Option<SyncSender<Work>> {
        let (queue, works) = sync_channel(WAITING_MAX);
        let started = std::thread::Builder::new().name(self.name.clone()).spawn(move || run(&works));
        match started {
            Ok(_) => Some(queue),
            Err(error) => {
                tracing::error!(%error, "cannot start a thread for long work");
                None
            }
        }
    }
}

impl Heavy for HeavyThread {
    fn take(&self, work: Work) -> Result<(), Full> {
        let full = Full { limit: WAITING_MAX };
        let mut queue = self.queue.lock();
        if queue.is_none() {
            *queue = self.start();
        }
        match queue.as_ref().ok_or(full)?.try_send(work) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(full),
            Err(TrySendError::Disconnected(_)) => {
                // The next one starts a new thread.
                *queue = None;
                Err(full)
            }
        }
    }
}

fn run(works: &Receiver<Work>) {
    // SAFETY: a plain system call. On Linux it concerns the calling thread alone; that it may fail is no harm.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
    for work in works {
        // A panic breaks off this work and leaves the thread to the next; its caller is told, and the log.
        if std::panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!("long work panicked");
        }
    }
}
