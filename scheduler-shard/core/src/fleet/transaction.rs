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
    log: UndoLog,
}

/// What was done to a fleet, the last at the end. Whoever keeps one undoes it, with [`UndoLog::roll_back_to`], on the same fleet.
#[derive(Debug, Default)]
pub(crate) struct UndoLog(Vec<Done>);

/// What was done, to be undone.
#[derive(Debug)]
enum Done {
    Charged(Arc<Allocation>),
    Released(Arc<Allocation>),
    /// The pool's name, and its rules before.
    Pool(String, Option<Box<Pool>>),
}

/// How much had been done at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Savepoint(usize);

impl UndoLog {
    pub(crate) fn charge(&mut self, fleet: &mut Fleet, allocation: Arc<Allocation>) {
        fleet.charge(&allocation);
        self.0.push(Done::Charged(allocation));
    }

    pub(crate) fn release(&mut self, fleet: &mut Fleet, allocation: Arc<Allocation>) {
        fleet.release(&allocation);
        self.0.push(Done::Released(allocation));
    }

    fn set_pool(&mut self, fleet: &mut Fleet, name: &str, rules: Option<Pool>) {
        self.0.push(Done::Pool(name.to_owned(), fleet.capacity.pools().get(name).cloned().map(Box::new)));
        fleet.set_pool(name, rules);
    }

    /// Undoes what was done since, the last first.
    pub(crate) fn roll_back_to(&mut self, savepoint: Savepoint, fleet: &mut Fleet) {
        while self.0.len() > savepoint.0
            && let Some(last) = self.0.pop()
        {
            match last {
                Done::Charged(allocation) => fleet.release(&allocation),
                Done::Released(allocation) => fleet.charge(&allocation),
                Done::Pool(name, before) => fleet.set_pool(&name, before.map(|rules| *rules)),
            }
        }
    }
}

impl<'f> Transaction<'f> {
    pub(crate) fn begin(fleet: &'f mut Fleet) -> Self {
        Transaction { fleet, log: UndoLog::default() }
    }

    pub(crate) fn charge(&mut self, allocation: Arc<Allocation>) {
        self.log.charge(self.fleet, allocation);
    }

    pub(crate) fn release(&mut self, allocation: Arc<Allocation>) {
        self.log.release(self.fleet, allocation);
    }

    /// Gives a pool these rules, or the standard ones.
    pub(crate) fn set_pool(&mut self, name: &str, rules: Option<Pool>) {
        self.log.set_pool(self.fleet, name, rules);
    }

    /// What is done from here on can be undone alone.
    pub(crate) fn savepoint(&self) -> Savepoint {
        Savepoint(self.log.0.len())
    }

    /// Undoes what was done since, the last first.
    pub(crate) fn roll_back_to(&mut self, savepoint: Savepoint) {
        self.log.roll_back_to(savepoint, self.fleet);
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
        self.roll_back_to(Savepoint::default());
    }
}
