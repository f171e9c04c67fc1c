//! Chance: one seeded generator per host.

use parking_lot::Mutex;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// A host's randomness; from the operating system in production, from the run's seed in simulation.
#[derive(Clone)]
pub struct Chance(Arc<Mutex<ChaCha8Rng>>);

impl Chance {
    /// From a seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Chance(Arc::new(Mutex::new(ChaCha8Rng::seed_from_u64(seed))))
    }

    /// From the operating system.
    #[must_use]
    pub fn from_entropy() -> Self {
        Chance(Arc::new(Mutex::new(ChaCha8Rng::from_entropy())))
    }

    /// Any number.
    #[must_use]
    pub fn u64(&self) -> u64 {
        self.0.lock().next_u64()
    }

    /// From `low` to below `high`.
    #[must_use]
    pub fn between(&self, low: u64, high: u64) -> u64 {
        self.0.lock().gen_range(low..high.max(low + 1))
    }

    /// Thirty-two hexadecimal digits: a name that is not used twice.
    #[must_use]
    pub fn token(&self) -> String {
        format!("{:016x}{:016x}", self.u64(), self.u64())
    }
}
