//! A trial on the fleet itself: allocations are charged and released, pools get other rules, and all of it is undone.
//!
//! What must stay true: a transaction that ends, or is rolled back to a savepoint, leaves the fleet as it was then, the indices with it;
//! that costs what was changed, whatever the size of the fleet. Whoever waits hears nothing of a transaction.

use super::Fleet;
use muster_model::{Allocation, Pool};
use std::ops::Deref;
use std::sync::Arc;

/// See the module. It reads like the fleet.
#[derive(Debug)]
pub(crate) struct Transaction<'f> {
    fleet: &'f mut Fleet,
    done: Vec<Done>,
}

/// What was done, to be undone.
#[derive(Debug)]
enum Done {
    Charged(Arc<Allocation>),
    Released(Arc<Allocation>),
    /// The pool's name, and its rules before.
    Pool(String, Option<Pool>),
}

/// How much had been done at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Savepoint(usize);

impl<'f> Transaction<'f> {
    pub(crate) fn begin(fleet: &'f mut Fleet) -> Self {
        Transaction { fleet, done: Vec::new() }
    }

    pub(crate) fn charge(&mut self, allocation: Arc<Allocation>) {
        self.fleet.charge(&allocation);
        self.done.push(Done::Charged(allocation));
    }

    pub(crate) fn release(&mut self, allocation: Arc<Allocation>) {
        self.fleet.release(&allocation);
        self.done.push(Done::Released(allocation));
    }

    /// Gives a pool these rules, or the standard ones.
    pub(crate) fn set_pool(&mut self, name: &str, rules: Option<Pool>) {
        self.done.push(Done::Pool(name.to_owned(), self.fleet.capacity.pools().get(name).cloned()));
        self.fleet.set_pool(name, rules);
    }

    /// What is done from here on can be undone alone.
    pub(crate) fn savepoint(&self) -> Savepoint {
        Savepoint(self.done.len())
    }

    /// Undoes what was done since, the last first.
    pub(crate) fn roll_back_to(&mut self, savepoint: Savepoint) {
        while self.done.len() > savepoint.0
            && let Some(last) = self.done.pop()
        {
            match last {
                Done::Charged(allocation) => self.fleet.release(&allocation),
                Done::Released(allocation) => self.fleet.charge(&allocation),
                Done::Pool(name, before) => self.fleet.set_pool(&name, before),
            }
        }
    }
}

impl Deref for Transaction<'_> {
    type Target = Fleet;

    fn deref(&self) -> &Fleet {
        self.fleet
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.roll_back_to(Savepoint(0));
    }
}
