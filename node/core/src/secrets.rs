//! The secrets of a task, on their way from the control plane to its environment.
//!
//! What must stay true: they are in no record, no log and no message of the agent's; a task whose secrets are missing waits.

use std::collections::BTreeMap;
use std::fmt;

/// Values of variables.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Each value, by the variable that it is for.
    pub values: BTreeMap<String, String>,
    /// Why the control plane could not send them, if it could not.
    pub missing: Option<String>,
}

/// What is printed has no value in it.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.values.keys().collect();
        f.debug_struct("Secrets").field("names", &names).field("missing", &self.missing).finish()
    }
}
