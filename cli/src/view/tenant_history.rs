//! What a tenant was over time, as it is shown: the first version with its values, then what each change changed.

use super::tenants::{ChangeView, FieldView};
use crate::output::Block;
use crate::units::show_moment;
use muster_proto::v1;
use serde::Serialize;

/// The versions of one tenant.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryView {
    /// Its id.
    pub tenant_id: u32,
    /// Its path, or the last one that it had.
    pub path: String,
    /// The first version is not the tenant's first: older ones are not known.
    pub is_cut: bool,
    /// When it was removed, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<String>,
    /// The oldest first.
    pub versions: Vec<VersionView>,
}

/// What it was from some time on.
#[derive(Clone, Debug, Serialize)]
pub struct VersionView {
    /// RFC 3339.
    pub since: String,
    /// Its path then.
    pub path: String,
    /// What differs from the version before; of the first version, all that is not usual.
    pub fields: Vec<FieldView>,
}

impl HistoryView {
    /// From the message.
    #[must_use]
    pub fn new(history: &v1::TenantHistory) -> Self {
        let before = [None].into_iter().chain(history.versions.iter().map(|version| version.spec.clone()));
        let version = |(version, before): (&v1::TenantVersion, Option<v1::TenantSpec>)| {
            let moved = before.as_ref().map(|spec| spec.path.clone());
            let change = ChangeView::new(&v1::TenantChange { before, after: version.spec.clone() });
            let path = FieldView { field: "path".to_owned(), before: moved, after: Some(change.path.clone()) };
            let path = Some(path).filter(|path| path.before.is_some() && path.before != path.after);
            VersionView {
                since: show_moment(version.from_ms),
                path: change.path,
                fields: path.into_iter().chain(change.fields).collect(),
            }
        };
        let last = history.versions.last().and_then(|version| version.spec.as_ref());
        HistoryView {
            tenant_id: history.tenant_id,
            path: last.map(|spec| spec.path.clone()).unwrap_or_default(),
            is_cut: history.is_cut,
            removed: history.removed_ms.map(show_moment),
            versions: history.versions.iter().zip(before).map(version).collect(),
        }
    }

    fn lines(&self) -> Vec<String> {
        let gone = if self.removed.is_some() { ", removed" } else { "" };
        let mut lines = vec![format!("tenant {} (#{}{gone})", self.path, self.tenant_id)];
        if self.is_cut {
            lines.push("  what it was before is not known".to_owned());
        }
        for (place, version) in self.versions.iter().enumerate() {
            let first = place == 0;
            let how = if first && !self.is_cut { ": created" } else { "" };
            lines.push(format!("  {}{how}", version.since));
            lines.extend(version.fields.iter().map(|field| format!("    {}", field.words(first))));
        }
        lines.extend(self.removed.as_ref().map(|at| format!("  {at}: removed")));
        lines
    }
}

/// For people.
#[must_use]
pub fn text(histories: &[HistoryView]) -> Vec<Block> {
    vec![Block::Text(histories.iter().flat_map(HistoryView::lines).collect::<Vec<_>>().join("\n"))]
}
