//! How a call passes the fault rules.
//!
//! What must stay true: no lock is held while a call waits, so a call that hangs keeps no other process and no other thread from anything.

use super::{DoubleError, Folder, Snapshot};
use crate::state::fault::Effect;
use crate::state::refusal::{Answer, Refusal};
use std::sync::Arc;
use std::time::Duration;

/// How often a call that hangs looks whether it still must.
const LOOK: Duration = Duration::from_millis(5);

impl From<DoubleError> for Refusal {
    fn from(error: DoubleError) -> Self {
        match error {
            DoubleError::Refused(refusal) => refusal,
            // A file that cannot be read or written is no answer of a driver, and nobody should take it for one.
            error => {
                eprintln!("muster-gpu-double: {error}");
                Refusal::Unknown
            }
        }
    }
}

impl Folder {
    /// Waits as long as the rules about this function and card say; gives the state after that.
    ///
    /// # Errors
    /// A rule lets the call fail, the driver lacks the function, or the files cannot be read.
    pub(crate) fn pass(&self, function: &str, card: Option<usize>) -> Answer<Arc<Snapshot>> {
        let mut has_waited = false;
        loop {
            let snapshot = self.read()?;
            match snapshot.plan.effect(function, card) {
                Some(Effect::Hang) => std::thread::sleep(LOOK),
                Some(Effect::SlowMs(ms)) if !has_waited => {
                    has_waited = true;
                    std::thread::sleep(Duration::from_millis(ms));
                }
                Some(Effect::Fail(refusal)) => return Err(refusal),
                _ if snapshot.plan.unsupported.contains(function) => return Err(Refusal::NotSupported),
                _ => return Ok(snapshot),
            }
        }
    }
}
