//! The reason that is about quota alone: a ceiling. What must stay true: figures are those of the ledger.

use super::reason::Why;
use crate::view::View;
use muster_model::capacity::OverMax;

impl Why {
    pub(super) fn over_max(view: &View, over: OverMax) -> Self {
        let used = view.capacity().tenants().get(&over.tenant).map_or(0, |at| at.used.get(over.resource));
        let asked = over.would_use.saturating_sub(used);
        Why::OverMax { tenant: over.path, resource: over.resource, used, asked, max: over.max }
    }
}
