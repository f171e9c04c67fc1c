//! What all hosts of a run share of the network: the links between them, and who listens where.
//!
//! What must stay true: an address has one listener at a time; what a host listened on is gone when it crashes; whatever passes is an event of
//! the run's trace.

use super::links::Links;
use super::trace::Trace;
use super::trust::TrustCell;
use crate::host::TaskGroup;
use crate::net::{Demand, NetError};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tonic::service::Routes;

/// The first port given to whoever asks for port 0.
const FIRST_FREE_PORT: u16 = 40_000;

/// Somebody who listens.
#[derive(Clone)]
pub(super) struct Listener {
    pub(super) routes: Routes,
    pub(super) tasks: TaskGroup,
    pub(super) demand: Demand,
    /// Of its host.
    pub(super) trust: Arc<TrustCell>,
    /// No other of the run has it: connections end with it.
    pub(super) number: u64,
}

/// See the module.
pub(super) struct Network {
    pub(super) links: Links,
    trace: Arc<Trace>,
    listening: Mutex<BTreeMap<(String, u16), Listener>>,
    numbers: AtomicU64,
}

impl Network {
    pub(super) fn new(links: Links, trace: Arc<Trace>) -> Self {
        Network { links, trace, listening: Mutex::default(), numbers: AtomicU64::default() }
    }

    pub(super) fn event(&self, what: Arguments<'_>) {
        self.trace.event(what);
    }

    /// A number that no one else of the run has.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes somebody reachable; port 0 chooses one.
    pub(super) fn listen(&self, host: &str, port: u16, listener: Listener) -> Result<u16, NetError> {
        let mut listening = self.listening.lock();
        let taken = |port: u16| listening.contains_key(&(host.to_owned(), port));
        let port = if port == 0 { (FIRST_FREE_PORT..).find(|port| !taken(*port)).unwrap_or(port) } else { port };
        if taken(port) {
            return Err(NetError::Listen { endpoint: format!("{host}:{port}"), why: "address in use".to_owned() });
        }
        listening.insert((host.to_owned(), port), listener);
        Ok(port)
    }

    pub(super) fn unlisten(&self, host: &str, port: u16) {
        self.listening.lock().remove(&(host.to_owned(), port));
    }

    /// The host listens nowhere any more.
    pub(super) fn unlisten_all(&self, host: &str) {
        self.listening.lock().retain(|(other, _), _| other != host);
    }

    pub(super) fn endpoint(&self, host: &str, port: u16) -> Option<Listener> {
        self.listening.lock().get(&(host.to_owned(), port)).cloned()
    }

    /// Nobody listens any more.
    pub(super) fn end(&self) {
        self.listening.lock().clear();
    }
}
