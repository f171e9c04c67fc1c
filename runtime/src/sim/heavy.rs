//! Long work in a simulation: done at once, in no virtual time.

use crate::heavy::{Full, Heavy, Work};

/// See the module.
pub(super) struct InPlace;

impl Heavy for InPlace {
    fn take(&self, work: Work) -> Result<(), Full> {
        work();
        Ok(())
    }
}
