//! When what could help a waiting job last changed, as a count of changes: no time is involved.

use muster_model::{CellId, GpuModel, TenantId};
use std::collections::BTreeMap;

/// Counts changes, and remembers at which count room or quota last grew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    now: u64,
    freed: BTreeMap<(CellId, Option<GpuModel>), u64>,
    relieved: BTreeMap<TenantId, u64>,
}

impl Clock {
    /// The present count.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Something has happened.
    pub(crate) fn tick(&mut self) {
        self.now += 1;
    }

    /// Room of `model` (or CPU alone) has grown in `cell`.
    pub(crate) fn freed(&mut self, cell: CellId, model: Option<GpuModel>) {
        self.freed.insert((cell, model), self.now);
    }

    /// Quota of `tenant` has grown or is used less.
    pub(crate) fn relieved(&mut self, tenant: TenantId) {
        self.relieved.insert(tenant, self.now);
    }

    /// When room of `model` last grew in `cell`.
    pub(crate) fn freed_at(&self, cell: CellId, model: Option<GpuModel>) -> u64 {
        self.freed.get(&(cell, model)).copied().unwrap_or(0)
    }

    /// When quota of `tenant` last grew.
    pub(crate) fn relieved_at(&self, tenant: TenantId) -> u64 {
        self.relieved.get(&tenant).copied().unwrap_or(0)
    }
}
