//! How many handshakes an endpoint has at a time: each costs a millisecond, and whoever has not finished one has proved nothing.
//!
//! What must stay true: at most [`HANDSHAKES_MAX`] run, [`FOR_MEMBERS`] of which nobody takes but addresses at which control nodes have
//! proved themselves, so that strangers who shake hands slowly delay no election; one address runs and waits for few; of those who wait,
//! control nodes are first, then whoever has waited longest.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::oneshot;

/// At a time, in all: some milliseconds of work on each core.
const HANDSHAKES_MAX: usize = 64;
/// Of these only for control nodes: the three connections of each of five.
const FOR_MEMBERS: usize = 16;
/// At a time from one address that is no control node's.
const PER_ADDRESS_MAX: usize = 8;
/// That wait from one address: a host with several agents, or a site behind one address; the others come again.
const WAIT_PER_ADDRESS_MAX: usize = 64;
/// That wait in all, as many as connections may be silent.
const WAIT_MAX: usize = 1_024;

/// More wait already than may.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Crowded;

/// See the module.
#[derive(Default)]
pub(super) struct Handshakes(Mutex<State>);

#[derive(Default)]
struct State {
    running: usize,
    /// Of these, by addresses that are no control node's.
    strangers: usize,
    by_address: BTreeMap<IpAddr, usize>,
    members_waiting: VecDeque<Waiting>,
    strangers_waiting: VecDeque<Waiting>,
}

struct Waiting {
    address: IpAddr,
    grant: oneshot::Sender<Pass>,
}

/// The right to one handshake; given back when dropped.
pub(super) struct Pass {
    of: Arc<Handshakes>,
    address: IpAddr,
    is_member: bool,
}

impl State {
    fn has_room(&self, address: IpAddr, is_member: bool) -> bool {
        self.running < HANDSHAKES_MAX
            && (is_member
                || (self.strangers < HANDSHAKES_MAX - FOR_MEMBERS
                    && self.by_address.get(&address).copied().unwrap_or(0) < PER_ADDRESS_MAX))
    }

    fn begin(&mut self, address: IpAddr, is_member: bool) {
        self.running += 1;
        if !is_member {
            self.strangers += 1;
            *self.by_address.entry(address).or_default() += 1;
        }
    }

    fn end(&mut self, address: IpAddr, is_member: bool) {
        self.running -= 1;
        if !is_member {
            self.strangers -= 1;
            let left = self.by_address.entry(address).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// The next of those who wait that may begin.
    fn next(&mut self) -> Option<(Waiting, bool)> {
        self.members_waiting.retain(|waiting| !waiting.grant.is_closed());
        self.strangers_waiting.retain(|waiting| !waiting.grant.is_closed());
        if let Some(waiting) = self.members_waiting.front()
            && self.has_room(waiting.address, true)
        {
            return self.members_waiting.pop_front().map(|waiting| (waiting, true));
        }
        let at = self.strangers_waiting.iter().position(|waiting| self.has_room(waiting.address, false))?;
        self.strangers_waiting.remove(at).map(|waiting| (waiting, false))
    }
}

impl Handshakes {
    /// Waits for a place. Whoever does not wait any more, because its connection was closed, takes none.
    pub(super) async fn enter(self: &Arc<Self>, address: IpAddr, is_member: bool) -> Result<Pass, Crowded> {
        let granted = {
            let mut state = self.0.lock();
            if state.has_room(address, is_member) {
                state.begin(address, is_member);
                return Ok(Pass { of: Arc::clone(self), address, is_member });
            }
            let queue = if is_member { &mut state.members_waiting } else { &mut state.strangers_waiting };
            queue.retain(|waiting| !waiting.grant.is_closed());
            let of_address = queue.iter().filter(|waiting| waiting.address == address).count();
            if queue.len() >= WAIT_MAX || (!is_member && of_address >= WAIT_PER_ADDRESS_MAX) {
                return Err(Crowded);
            }
            let (grant, granted) = oneshot::channel();
            queue.push_back(Waiting { address, grant });
            granted
        };
        granted.await.map_err(|_| Crowded)
    }

    fn grant(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.0.lock();
                let Some((waiting, is_member)) = state.next() else { return };
                state.begin(waiting.address, is_member);
                (waiting, is_member)
            };
            let (Waiting { address, grant }, is_member) = next;
            // Whoever has gone meanwhile gives it back at once.
            drop(grant.send(Pass { of: Arc::clone(self), address, is_member }));
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.of.0.lock().end(self.address, self.is_member);
        self.of.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::net::Ipv4Addr;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number))
    }

    async fn now(handshakes: &Arc<Handshakes>, from: u32, is_member: bool) -> Option<Pass> {
        handshakes.enter(address(from), is_member).now_or_never().and_then(Result::ok)
    }

    #[tokio::test]
    async fn strangers_leave_places_for_members() {
        let handshakes = Arc::<Handshakes>::default();
        let mut held = Vec::new();
        for from in 0..100 {
            held.extend(now(&handshakes, from, false).await);
        }
        assert_eq!(held.len(), HANDSHAKES_MAX - FOR_MEMBERS);
        for _ in 0..FOR_MEMBERS {
            held.push(now(&handshakes, 1_000, true).await.expect("a place for a member"));
        }
        assert!(now(&handshakes, 1_001, true).await.is_none(), "more run than may");
        assert_eq!(held.len(), HANDSHAKES_MAX);
        held.clear();
        assert_eq!(handshakes.0.lock().running, 0);
        assert!(handshakes.0.lock().by_address.is_empty());
    }

    #[tokio::test]
    async fn one_address_runs_and_waits_for_few() {
        let handshakes = Arc::<Handshakes>::default();
        let mut held = Vec::new();
        for _ in 0..PER_ADDRESS_MAX {
            held.push(now(&handshakes, 1, false).await.expect("a place"));
        }
        let mut waiting: Vec<_> =
            (0..WAIT_PER_ADDRESS_MAX).map(|_| Box::pin(handshakes.enter(address(1), false))).collect();
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none(), "it waits");
        }
        assert_eq!(handshakes.enter(address(1), false).await.err(), Some(Crowded));
        assert!(now(&handshakes, 2, false).await.is_some(), "another address does not wait behind it");
        // Who goes leaves room; who is next begins when a place is free.
        drop(waiting.remove(0));
        assert!(handshakes.enter(address(1), false).now_or_never().is_none(), "there is room to wait");
        held.pop();
        let pass = waiting.remove(0).now_or_never().expect("granted").expect("a place");
        drop((pass, waiting, held));
        assert_eq!(handshakes.0.lock().running, 0);
    }

    #[tokio::test]
    async fn members_are_first_of_those_who_wait() {
        let handshakes = Arc::<Handshakes>::default();
        let mut held = Vec::new();
        for _ in 0..HANDSHAKES_MAX {
            held.push(now(&handshakes, 1, true).await.expect("a place"));
        }
        let mut stranger = Box::pin(handshakes.enter(address(2), false));
        assert!(stranger.as_mut().now_or_never().is_none());
        let mut member = Box::pin(handshakes.enter(address(1), true));
        assert!(member.as_mut().now_or_never().is_none());
        held.pop();
        assert!(stranger.as_mut().now_or_never().is_none(), "the member is first");
        let first = member.now_or_never().expect("granted").expect("a place");
        held.pop();
        assert!(stranger.now_or_never().expect("granted").is_ok());
        drop(first);
    }
}
