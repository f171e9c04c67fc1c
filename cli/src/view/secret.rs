//! Secrets as they are listed: names, never values.

use crate::output::{Block, Columns};
use muster_proto::v1;
use serde::Serialize;

/// A secret.
#[derive(Clone, Debug, Serialize)]
pub struct SecretView {
    /// What jobs call it.
    pub name: String,
    /// Who gave it its present value.
    pub by: String,
    /// When, in ms since the Unix epoch.
    pub since_ms: u64,
    /// The key that it is sealed with: the beginning of its SHA-256.
    pub key: String,
}

impl From<v1::SecretView> for SecretView {
    fn from(wire: v1::SecretView) -> Self {
        let v1::SecretView { name, by, since_ms, key } = wire;
        SecretView { name, by, since_ms, key }
    }
}

/// For people.
#[must_use]
pub fn secrets(views: &[SecretView]) -> Vec<Block> {
    let mut columns = Columns::new(&["NAME", "BY", "SINCE", "KEY"]);
    for view in views {
        let since = muster_model::utc::show(view.since_ms);
        columns.row(vec![view.name.clone(), view.by.clone(), since, view.key.clone()]);
    }
    vec![columns.block()]
}
