//! The record of a run: a running hash of everything that happened, and the lines themselves when asked for.
//!
//! Two runs of one seed are the same if and only if their hashes are; the lines then show where they part.

use parking_lot::Mutex;
use std::fmt::{Arguments, Write};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// See the module.
pub(super) struct Trace {
    /// Events are noted with the virtual time since then.
    start: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    hash: u64,
    events: u64,
    /// Lines, when they are kept. Bounded by the length of a run, which the scenario bounds.
    lines: Option<Vec<String>>,
    /// Reused for each line.
    line: String,
    /// Who waits for that many events.
    awaited: Vec<(u64, oneshot::Sender<()>)>,
}

/// FNV-1a's offset and prime: any mixing hash would do, this one needs no state but a word.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

impl Trace {
    pub(super) fn new(start: Instant) -> Self {
        Trace { start, inner: Mutex::default() }
    }

    pub(super) fn keep_lines(&self) {
        self.inner.lock().lines = Some(Vec::new());
    }

    pub(super) fn event(&self, what: Arguments<'_>) {
        let at_us = self.start.elapsed().as_micros();
        let mut inner = self.inner.lock();
        let Inner { hash, events, lines, line, awaited } = &mut *inner;
        line.clear();
        write!(line, "{at_us:>12} {what}").expect("writing to a string cannot fail");
        *hash = line.bytes().fold(*hash ^ FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
        *events += 1;
        if let Some(lines) = lines {
            lines.push(line.clone());
        }
        for due in awaited.extract_if(.., |(count, _)| *count <= *events) {
            // Who does not wait any more need not know.
            let _ = due.1.send(());
        }
    }

    /// Resolves with the event that is so many after the last one.
    pub(super) fn after(&self, events: u64) -> oneshot::Receiver<()> {
        let (reached, awaited) = oneshot::channel();
        let mut inner = self.inner.lock();
        let count = inner.events + events.max(1);
        inner.awaited.push((count, reached));
        awaited
    }

    pub(super) fn hash(&self) -> u64 {
        self.inner.lock().hash
    }

    pub(super) fn events(&self) -> u64 {
        self.inner.lock().events
    }

    pub(super) fn take_lines(&self) -> Vec<String> {
        self.inner.lock().lines.take().unwrap_or_default()
    }
}
