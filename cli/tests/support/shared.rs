//! A folder that isolated tasks can use: they have users of their own, and write only where their node lets them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Lets every user write in `folder`. An agent learns of it from `MUSTER_TASK_WRITES` or `--task-writes`.
pub(crate) fn open_to_all(folder: &Path) {
    std::fs::set_permissions(folder, Permissions::from_mode(0o777)).expect("the folder is the test's own");
}
