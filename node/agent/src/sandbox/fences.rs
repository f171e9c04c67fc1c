//! What the kernel asks before a process of a control group of version 2 opens a device or uses a port: programs on the group.
//!
//! What must stay true: a task without ports of its own to keep to has no program for them; what was attached is what is there, or is put back.

use super::device_program::{self, Device};
use super::socket_program;
use super::sys::bpf::{self, Hook, Instruction};
use crate::task_folder::record::{Cgroup, Controller, PortFence};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The programs of one group.
pub(super) struct Fences(Vec<(Hook, Vec<Instruction>)>);

/// The programs that were found right when they were last looked at, by the group's file number: what has still the same number needs no second look.
#[derive(Debug, Default)]
pub(crate) struct Seen(BTreeMap<(u64, Hook), u32>);

impl Seen {
    /// Groups kept in mind: of more than a node has tasks, so that what is forgotten is of groups that are gone.
    const MAX: usize = 16_384;

    fn note(&mut self, inode: u64, hook: Hook, id: u32) {
        if self.0.len() >= Seen::MAX {
            self.0.clear();
        }
        self.0.insert((inode, hook), id);
    }
}

impl Fences {
    /// All that the group takes.
    pub(super) fn of(cgroup: &Cgroup, devices: &[Device], ports: Option<&PortFence>) -> Self {
        let mut fences = Fences(Vec::new());
        if cgroup.controllers.contains(&Controller::Devices) {
            fences.0.extend(Fences::of_devices(devices).0);
        }
        if let Some(ports) = ports.filter(|_| cgroup.fences_ports) {
            fences.0.extend(Fences::of_ports(ports).0);
        }
        fences
    }

    pub(super) fn of_devices(devices: &[Device]) -> Self {
        Fences(vec![(Hook::Device, device_program::program(devices))])
    }

    pub(super) fn of_ports(ports: &PortFence) -> Self {
        Fences(Hook::OF_SOCKETS.into_iter().map(|hook| (hook, socket_program::program(hook, ports))).collect())
    }

    pub(super) fn attach(&self, group: &File) -> io::Result<()> {
        self.0.iter().try_for_each(|(hook, program)| bpf::attach(group, *hook, program))
    }

    /// Attaches what is not there any more; says what that was.
    pub(super) fn restore(&self, group: &File, seen: &mut Seen) -> io::Result<Vec<&'static str>> {
        let inode = group.metadata()?.ino();
        let mut lifted = Vec::new();
        for (hook, program) in &self.0 {
            let there = bpf::attached(group, *hook)?;
            let is_right = match there.as_slice() {
                [id] if seen.0.get(&(inode, *hook)) == Some(id) => continue,
                [id] => bpf::is(*id, *hook, program)?,
                _ => false,
            };
            if !is_right {
                bpf::attach(group, *hook, program)?;
                let what = if *hook == Hook::Device { "the program for devices" } else { "a program for ports" };
                lifted.push(what);
            }
            if let [id] = bpf::attached(group, *hook)?.as_slice() {
                seen.note(inode, *hook, *id);
            }
        }
        Ok(lifted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::device_program::usual;
    use std::path::{Path, PathBuf};

    /// A group of version 2 of this test alone; none where this machine has none, or the test is not root.
    fn group() -> Option<PathBuf> {
        let mounted = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let at = mounted.into_iter().find(|at| at.join("cgroup.controllers").exists())?;
        let group = at.join(format!("muster-test-{}", std::process::id()));
        std::fs::create_dir(&group).ok().map(|()| group)
    }

    #[test]
    fn what_somebody_has_taken_away_or_replaced_is_put_back_once() {
        let Some(at) = group() else {
            assert!(std::env::var_os("MUSTER_CI").is_none(), "it takes root, and control groups of version 2");
            return eprintln!("skipped: it takes root, and control groups of version 2");
        };
        let opened = File::open(&at).expect("it was made");
        let cgroup =
            Cgroup { is_v2: true, controllers: vec![Controller::Devices], base: PathBuf::new(), fences_ports: true };
        let fences = Fences::of(&cgroup, &usual(), Some(&PortFence::default()));
        let mut seen = Seen::default();
        let first = fences.restore(&opened, &mut seen);
        let second = fences.restore(&opened, &mut seen);
        // Somebody's own program, which allows more.
        let more = Device { major: 1, minor: None };
        Fences::of_devices(&[more]).attach(&opened).expect("root may");
        let replaced = fences.restore(&opened, &mut seen);
        let after = fences.restore(&opened, &mut Seen::default());
        std::fs::remove_dir(&at).expect("nobody is in it");
        assert_eq!(first.expect("it can be looked at").len(), 7, "nothing was there");
        assert_eq!(second.expect("it can be looked at"), Vec::<&str>::new());
        assert_eq!(replaced.expect("it can be looked at"), ["the program for devices"]);
        assert_eq!(after.expect("it can be looked at"), Vec::<&str>::new(), "a new agent finds them right too");
    }
}
