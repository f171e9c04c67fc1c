//! How often callers may call, and may fail to prove who they are, on this node.
//!
//! What must stay true: machines of the cluster are not held up here, nor is whoever calls from this very machine for failures; whoever is refused is told
//! when to come again.

use muster_control_core::failed_tries::FailedTries;
use muster_control_core::rate::{Buckets, Rate};
use muster_model::Principal;
use parking_lot::Mutex;
use std::net::{IpAddr, SocketAddr};

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
    /// Logins and enrolments that failed, by address.
    failed: Mutex<FailedTries<IpAddr>>,
}

impl Callers {
    pub(crate) fn new(rates: CallRates) -> Self {
        let (buckets, failed) = (Buckets::new(CALLERS_MAX), FailedTries::new(CALLERS_MAX));
        Callers { rates, buckets: Mutex::new(buckets), failed: Mutex::new(failed) }
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

    /// Whether somebody at this address may try to log in or to enrol now.
    ///
    /// # Errors
    /// In how many milliseconds, if too many tries have failed.
    pub(crate) fn may_try(&self, from: &str, now_ms: u64) -> Result<(), u64> {
        address(from).map_or(Ok(()), |from| self.failed.lock().may(&from, now_ms))
    }

    /// Such a try has failed, or has not.
    pub(crate) fn tried(&self, from: &str, now_ms: u64, failed: bool) {
        let Some(from) = address(from) else { return };
        match failed {
            true => self.failed.lock().failed(&from, now_ms),
            false => self.failed.lock().succeeded(&from),
        }
    }
}

/// The address whose failures are counted: none for this machine itself, whose users share it.
fn address(from: &str) -> Option<IpAddr> {
    let from: SocketAddr = from.parse().ok()?;
    let from = match from.ip().to_canonical() {
        // A host chooses the lower half by itself.
        IpAddr::V6(ip) if !ip.is_loopback() => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
        ip => ip,
    };
    (!from.is_loopback()).then_some(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_an_address_are_counted_whatever_its_port_and_those_of_this_machine_are_not() {
        let callers = Callers::new(CallRates::default());
        for port in 1..=6 {
            for host in ["10.0.0.9", "127.0.0.1", "[::ffff:10.0.0.8]", "[::1]"] {
                callers.tried(&format!("{host}:{port}"), 1_000, true);
            }
        }
        assert_eq!(callers.may_try("10.0.0.9:77", 1_000), Err(1_000));
        assert_eq!(callers.may_try("10.0.0.8:77", 1_500), Err(500));
        for free in ["127.0.0.1:77", "[::1]:77", "10.0.0.7:77", "no address"] {
            assert_eq!(callers.may_try(free, 1_000), Ok(()), "{free}");
        }
        for host in 1..=6 {
            callers.tried(&format!("[2001:db8::{host}]:1"), 1_000, true);
        }
        assert_eq!(callers.may_try("[2001:db8::7]:1", 1_000), Err(1_000), "one host has many addresses");
        callers.tried("10.0.0.9:77", 2_000, false);
        callers.tried("10.0.0.9:78", 2_000, true);
        assert_eq!(callers.may_try("10.0.0.9:79", 2_000), Ok(()));
    }
}
