//! Priority classes as they are shown.

use crate::output::{Block, Columns};
use muster_proto::v1;
use serde::Serialize;

/// A priority class.
#[derive(Clone, Debug, Serialize)]
pub struct PriorityClassView {
    /// Its name.
    pub name: String,
    /// The priority of its jobs.
    pub priority: i32,
    /// Classes whose burst jobs its jobs may preempt in other tenants.
    pub preempts: Vec<String>,
    /// Who may use it; all when empty.
    pub tenants: Vec<String>,
}

impl PriorityClassView {
    /// From the message.
    #[must_use]
    pub fn new(class: &v1::PriorityClass) -> Self {
        let v1::PriorityClass { name, priority, preempts, tenants } = class.clone();
        PriorityClassView { name, priority, preempts, tenants }
    }
}

/// The table.
#[must_use]
pub fn table(classes: &[PriorityClassView]) -> Vec<Block> {
    let mut columns = Columns::new(&["NAME", "PRIORITY", "PREEMPTS", "TENANTS"]);
    for class in classes {
        let or = |names: &[String], none: &str| if names.is_empty() { none.to_owned() } else { names.join(",") };
        let (preempts, tenants) = (or(&class.preempts, "-"), or(&class.tenants, "all"));
        columns.row(vec![class.name.clone(), class.priority.to_string(), preempts, tenants]);
    }
    vec![columns.block()]
}
