//! What openraft hands around as a snapshot: a frozen view of a state store, or a store that one was received into.
//!
//! What must stay true: a store that a snapshot is received into is removed with the last of those who hold it, unless it has become the state.

use muster_runtime::Kv;
use muster_runtime::disk::KvRead;
use std::fmt;
use std::sync::Arc;

/// What openraft hands around as a snapshot. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Frozen {
    /// A view of this node's store.
    View(Arc<dyn KvRead>),
    /// A store of its own, received from the leader and not yet in use.
    Received(Arc<Incoming>),
}

/// A store that a snapshot is received into. It is removed with the last of those who hold this, unless it has become the state.
pub(crate) struct Incoming {
    pub(crate) number: u64,
    pub(crate) kv: Arc<dyn Kv>,
    /// Last, because fields are dropped in order and a store must be closed before it is removed.
    pub(crate) _unused: RemoveUnused,
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Frozen::View(_) => f.write_str("View"),
            Frozen::Received(incoming) => write!(f, "Received({})", incoming.number),
        }
    }
}

/// Removes a store when nobody needs it any more: whoever was to receive into it may be gone at any moment.
pub(crate) struct RemoveUnused(Box<dyn Fn() + Send + Sync>);

impl RemoveUnused {
    /// `remove` is called once, when this is dropped.
    pub(crate) fn new(remove: impl Fn() + Send + Sync + 'static) -> Self {
        RemoveUnused(Box::new(remove))
    }
}

impl Drop for RemoveUnused {
    fn drop(&mut self) {
        (self.0)();
    }
}
