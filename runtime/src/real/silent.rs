//! Connections that have said nothing yet.
//!
//! What must stay true: they are bounded, and it is the oldest that makes room for a new one: whoever says something at once gets in,
//! however many sockets are open beside it and say nothing.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Silent {
    most: usize,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    /// The oldest first.
    places: BTreeMap<u64, CancellationToken>,
}

/// The place of one connection; left when dropped.
pub struct SilentPlace {
    among: Silent,
    number: u64,
    close: CancellationToken,
}

impl Silent {
    /// At most so many.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Silent { most, waiting: Arc::default() }
    }

    /// A connection has been made; the oldest one goes when there are too many.
    #[must_use]
    pub fn enter(&self) -> SilentPlace {
        let close = CancellationToken::new();
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.places.insert(number, close.clone());
        if waiting.places.len() > self.most
            && let Some((_, oldest)) = waiting.places.pop_first()
        {
            metrics::counter!("muster_connections_dropped_total", "why" => "silent").increment(1);
            oldest.cancel();
        }
        drop(waiting);
        SilentPlace { among: self.clone(), number, close }
    }
}

impl SilentPlace {
    /// Cancelled when the connection is to be closed.
    #[must_use]
    pub fn close(&self) -> &CancellationToken {
        &self.close
    }
}

impl Drop for SilentPlace {
    fn drop(&mut self) {
        self.among.waiting.lock().places.remove(&self.number);
    }
}
