//! What a task reads of how NVIDIA's driver was loaded.
//!
//! A library of the driver that finds no device node for a card asks the driver whether it may make one, and makes it: `ModifyDeviceFiles`. Inside, the answer is always no. What must
//! stay true: all else is as the driver says it; the host's own file is not touched.

use super::{SandboxError, doing};
use nix::mount::{MsFlags, mount};
use std::io;
use std::path::Path;

/// Where the copy is kept inside: below a folder that tasks cannot write to.
const COPY: &str = "/run/muster/driver-params";
const NAME: &str = "ModifyDeviceFiles:";

/// Puts a copy of `params` over it that lets nobody make device nodes. A host without the driver has none.
pub(super) fn closed(params: &Path) -> Result<(), SandboxError> {
    let text = match std::fs::read_to_string(params) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(doing(format!("reading {}", params.display()))(error)),
    };
    std::fs::write(COPY, closed_text(&text)).map_err(doing(format!("writing {COPY}")))?;
    let none = None::<&str>;
    let say = || format!("mounting {}", params.display());
    mount(Some(COPY), params, none, MsFlags::MS_BIND, none).map_err(doing(say()))?;
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(none, params, none, flags, none).map_err(doing(say()))
}

fn closed_text(text: &str) -> String {
    let others = text.lines().filter(|line| !line.starts_with(NAME));
    let mut lines: Vec<String> = others.map(str::to_owned).collect();
    lines.push(format!("{NAME} 0"));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_are_not_made_and_the_rest_is_as_it_was() {
        let text = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nRmProfilingAdminOnly: 1\n";
        let closed = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\nModifyDeviceFiles: 0\n";
        assert_eq!(closed_text(text), closed);
        assert_eq!(closed_text(""), "ModifyDeviceFiles: 0\n", "a driver that does not say it means 1");
    }
}
