//! Which tenants are on a node, card by card.
//!
//! What must stay true: what was added is removed once; a node that nobody is on is as one that nobody has ever been on.

use crate::ids::TenantId;

/// Stands for the host itself, for tasks that hold no card.
const HOST: u16 = u16::MAX;

/// The tenants that hold something of a node: of which card, and how often.
///
/// One word while there are none, since every node has it and few fleets ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenants(Option<Box<Held>>);

/// In order of tenant and card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held(Vec<(TenantId, u16, u32)>);

/// How far a node is free of other tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SoleHolder {
    /// Nobody is on it.
    Nobody,
    /// One tenant is.
    One(TenantId),
}

impl Tenants {
    fn held(&self) -> &[(TenantId, u16, u32)] {
        self.0.as_ref().map_or(&[], |held| &held.0)
    }

    /// A task of `tenant` begins to hold card `gpu`, or, without one, a part of the host.
    pub(super) fn add(&mut self, tenant: TenantId, gpu: Option<u16>) {
        let gpu = gpu.unwrap_or(HOST);
        let held = &mut self.0.get_or_insert_default().0;
        match held.binary_search_by_key(&(tenant, gpu), |(tenant, gpu, _)| (*tenant, *gpu)) {
            Ok(at) => held[at].2 += 1,
            Err(at) => held.insert(at, (tenant, gpu, 1)),
        }
    }

    /// It holds it no longer.
    pub(super) fn remove(&mut self, tenant: TenantId, gpu: Option<u16>) {
        let gpu = gpu.unwrap_or(HOST);
        let Some(Held(held)) = self.0.as_deref_mut() else { return };
        if let Ok(at) = held.binary_search_by_key(&(tenant, gpu), |(tenant, gpu, _)| (*tenant, *gpu)) {
            held[at].2 -= 1;
            if held[at].2 == 0 {
                held.remove(at);
            }
        }
        if held.is_empty() {
            self.0 = None;
        }
    }

    /// Whether nobody or one tenant alone is there; none when there are several.
    #[must_use]
    pub fn sole(&self) -> Option<SoleHolder> {
        match self.held() {
            [] => Some(SoleHolder::Nobody),
            [(first, ..), .., (last, ..)] if first != last => None,
            [(first, ..), ..] => Some(SoleHolder::One(*first)),
        }
    }

    /// Whether a tenant other than `tenant` holds a part of card `gpu`.
    #[must_use]
    pub fn others_on(&self, gpu: u16, tenant: TenantId) -> bool {
        self.held().iter().any(|(other, card, _)| *card == gpu && *other != tenant)
    }

    /// Those on card `gpu`, or on the whole node.
    pub(super) fn on(&self, gpu: Option<u16>) -> impl Iterator<Item = TenantId> + '_ {
        self.held().iter().filter(move |(_, card, _)| gpu.is_none_or(|gpu| *card == gpu)).map(|(tenant, ..)| *tenant)
    }
}

/// Whether it is counted who is where, and why.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Occupancy {
    /// Tenants that are kept apart from others.
    pub(super) rules: usize,
    pub(super) watched: bool,
    pub(super) counting: bool,
}

impl Occupancy {
    pub(super) fn of_interest(self) -> bool {
        self.rules > 0 || self.watched
    }
}
