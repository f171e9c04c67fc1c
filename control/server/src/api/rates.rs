//! How often callers may call, on this node.
//!
//! What must stay true: machines of the cluster are not held up here; whoever is refused is told when to come again.

use muster_control_core::rate::{Buckets, Rate};
use muster_model::Principal;
use parking_lot::Mutex;

/// Callers whose rate is remembered: every user and service of a large organisation.
const CALLERS_MAX: usize = 65_536;

/// How often each kind of caller may call a control node, in a closed cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRates {
    /// Whoever has not said who they are, by address.
    pub anonymous: Rate,
    /// A person.
    pub users: Rate,
    /// A service.
    pub services: Rate,
}

impl Default for CallRates {
    fn default() -> Self {
        CallRates { anonymous: Rate::per_second(5), users: Rate::per_second(50), services: Rate::per_second(500) }
    }
}

/// The rates, and who has called.
pub(crate) struct Callers {
    rates: CallRates,
    buckets: Mutex<Buckets<String>>,
}

impl Callers {
    pub(crate) fn new(rates: CallRates) -> Self {
        Callers { rates, buckets: Mutex::new(Buckets::new(CALLERS_MAX)) }
    }

    /// Counts a call.
    ///
    /// # Errors
    /// In how many milliseconds the next one is taken.
    pub(crate) fn count(&self, principal: &Principal, from: &str, now_ms: u64) -> Result<(), u64> {
        let (caller, rate) = match principal {
            Principal::Anonymous => {
                let host = from.rsplit_once(':').map_or(from, |(host, _)| host);
                (format!("anonymous {host}"), self.rates.anonymous)
            }
            Principal::User(_) => (principal.to_string(), self.rates.users),
            Principal::Service(_) => (principal.to_string(), self.rates.services),
            Principal::Node(_) | Principal::Shard(_) | Principal::Member(_) | Principal::System => return Ok(()),
        };
        self.buckets.lock().take(&caller, now_ms, rate)
    }
}
