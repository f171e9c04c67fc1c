//! Who has a device node open, by `/proc`.
//!
//! What must stay true: the node is known by its numbers and not by its name, since every sandbox has names of its own; a process that ends in the meantime has
//! nothing open; what may not be read belongs to other users, which an agent without root's rights cannot judge.

use crate::exec::DeviceNode;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// A device node that a process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) pid: u32,
    pub(super) path: String,
}

/// Everybody who has one of these nodes open.
pub(super) fn of(nodes: &[DeviceNode]) -> io::Result<Vec<Open>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let opened = files.filter_map(|file| fs::metadata(file.ok()?.path()).ok());
        let devices = opened.filter(|file| file.file_type().is_char_device()).map(|file| file.rdev());
        let numbers: Vec<(u64, u64)> =
            devices.map(|device| (nix::sys::stat::major(device), nix::sys::stat::minor(device))).collect();
        let is_open = |node: &&DeviceNode| numbers.contains(&(u64::from(node.major), u64::from(node.minor)));
        found.extend(nodes.iter().find(is_open).map(|node| Open { pid, path: format!("/dev/{}", node.name) }));
    }
    Ok(found)
}

/// A process of root or of the agent's own user.
pub(super) fn is_of_the_host(pid: u32) -> bool {
    // One that has gone has nothing open any more.
    fs::metadata(format!("/proc/{pid}")).map_or(true, |it| it.uid() == 0 || it.uid() == nix::unistd::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_node_open_is_found_by_its_numbers() {
        // A device that hardly anybody has open.
        let _open = fs::File::open("/dev/full").expect("every Linux has it");
        let node = |minor| DeviceNode { name: "nvidia7".to_owned(), major: 1, minor };
        let own = std::process::id();
        let found = of(&[node(7)]).expect("/proc is there");
        assert!(found.contains(&Open { pid: own, path: "/dev/nvidia7".to_owned() }), "{found:?}");
        assert!(!of(&[node(200)]).expect("/proc is there").iter().any(|open| open.pid == own));
        assert!(is_of_the_host(own));
    }
}
