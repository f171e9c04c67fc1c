//! Chance: one seeded generator per host.

use parking_lot::Mutex;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
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

thread_local! {
    static OF_THREAD: RefCell<Option<ChaCha8Rng>> = const { RefCell::new(None) };
}

/// Seeds what [`ThreadChance`] draws from on this thread: a simulated run does so once, before anything else happens.
pub fn set_thread_seed(seed: u64) {
    OF_THREAD.with(|of_thread| *of_thread.borrow_mut() = Some(ChaCha8Rng::seed_from_u64(seed)));
}

/// For libraries that ask for a generator without saying for whom (openraft's election timeouts): from the operating system in
/// production, from the run's seed on the thread of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadChance;

impl ThreadChance {
    fn with<T>(draw: impl FnOnce(&mut ChaCha8Rng) -> T) -> T {
        OF_THREAD.with(|of_thread| draw(of_thread.borrow_mut().get_or_insert_with(ChaCha8Rng::from_entropy)))
    }
}

impl RngCore for ThreadChance {
    fn next_u32(&mut self) -> u32 {
        Self::with(RngCore::next_u32)
    }

    fn next_u64(&mut self) -> u64 {
        Self::with(RngCore::next_u64)
    }

    fn fill_bytes(&mut self, dest: &mut [u8]) {
        Self::with(|rng| rng.fill_bytes(dest));
    }

    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), rand::Error> {
        self.fill_bytes(dest);
        Ok(())
    }
}
