//! The study's own result table: `t,sc_policy,mean,std,arrived`.

use super::trace;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// Its name beside the pods.
const FILE: &str = "published_alloc_by_policy.csv";

/// Mean allocation in percent, by trace, policy and arrived percent.
#[derive(Clone, Debug, Default)]
pub struct Published {
    cells: BTreeMap<(String, String, u32), f64>,
}

impl Published {
    /// One cell.
    #[must_use]
    pub fn at(&self, trace: &str, policy: &str, percent: u32) -> Option<f64> {
        self.cells.get(&(trace.to_owned(), policy.to_owned(), percent)).copied()
    }
}

/// The table at `named`, or beside `pods` when there is one.
///
/// # Errors
/// When the named one, or the one that is there, cannot be read.
pub fn beside(named: Option<&Path>, pods: &Path) -> Result<Option<Published>> {
    let beside = pods.with_file_name(FILE);
    let path = match named {
        Some(named) => named,
        None if beside.is_file() => &beside,
        None => return Ok(None),
    };
    let mut found = Published::default();
    for row in trace::rows(path)? {
        let key = (row.text("t")?.to_owned(), row.text("sc_policy")?.to_owned(), row.text("arrived")?.parse()?);
        found.cells.insert(key, row.text("mean")?.parse()?);
    }
    Ok(Some(found))
}
