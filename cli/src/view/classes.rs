//! Device classes as they are shown.

use crate::output::{Block, Columns};
use muster_proto::v1;
use serde::Serialize;

/// A device class.
#[derive(Clone, Debug, Serialize)]
pub struct ClassView {
    /// Its name.
    pub name: String,
    /// Which cards belong to it.
    pub selector: String,
    /// Who may use it; all when empty.
    pub tenants: Vec<String>,
}

impl ClassView {
    /// From the message.
    #[must_use]
    pub fn new(class: &v1::DeviceClass) -> Self {
        let v1::DeviceClass { name, selector, tenants } = class.clone();
        ClassView { name, selector, tenants }
    }
}

/// The table.
#[must_use]
pub fn table(classes: &[ClassView]) -> Vec<Block> {
    let mut columns = Columns::new(&["NAME", "TENANTS", "SELECTOR"]);
    for class in classes {
        let tenants = if class.tenants.is_empty() { "all".to_owned() } else { class.tenants.join(",") };
        columns.row(vec![class.name.clone(), tenants, class.selector.clone()]);
    }
    vec![columns.block()]
}
