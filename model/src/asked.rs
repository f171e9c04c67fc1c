//! How a job describes the cards it wants, beside the request itself.
//!
//! A job may name a device class, write a selector, say how much memory a card or slice must have, or say its needs alone. The class
//! and the needs are resolved when the job is accepted, so that an accepted job is complete in itself: a class that changes later
//! changes nothing that was accepted.

use crate::needs::{Choice, Needs};
use crate::selector::Selector;
use crate::tenant::lies_under;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Which cards will do; on an accepted job the class's selector is part of it.
    pub selector: Option<Selector>,
    /// The device class it names.
    pub device_class: Option<String>,
    /// Memory that each card, or the MIG slice, must have, in MiB.
    pub gpu_memory_mib: Option<u64>,
    /// What a task needs, when the system is to choose how it gets it.
    pub needs: Option<Needs>,
    /// What the system chose for those needs; set on acceptance.
    pub choice: Option<Choice>,
}

/// A selector with a name that jobs may use; admins make them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceClass {
    /// Its name.
    pub name: String,
    /// Which cards belong to it.
    pub selector: Selector,
    /// Paths of the tenants that may use it, those below them included; empty means all.
    pub tenants: BTreeSet<String>,
}

impl DeviceClass {
    /// Whether the tenant at `path` may use it.
    #[must_use]
    pub fn allows(&self, path: &str) -> bool {
        let within = |top: &String| lies_under(path, top);
        self.tenants.is_empty() || self.tenants.iter().any(within)
    }
}
