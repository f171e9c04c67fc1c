//! Which device nodes a task needs for a card or a MIG instance, by what the driver says below `/proc`.
//!
//! What must stay true: a task gets its own card or instance, the control device and the memory manager, and never `nvidia-caps` 1 and 2, which configure and
//! watch MIG; the numbers are read at each start, since those of instances change.

use crate::exec::DeviceNode;
use muster_node_core::health::PciAddress;
use std::fs::read_to_string;
use std::io;
use std::path::{Path, PathBuf};

/// The driver's major number is fixed (Linux, `Documentation/admin-guide/devices.txt`); the control device has the last minor.
const MAJOR: u32 = 195;
const CONTROL_MINOR: u32 = 255;

/// What is below `root` of a card, and of the instance `instance` with its compute instances.
pub(super) fn of(root: &Path, pci: &str, instance: Option<u64>) -> io::Result<Vec<DeviceNode>> {
    let proc = root.join("proc");
    let minor = minor_of_card(&proc, pci)?;
    let node = |name: String, major, minor| DeviceNode { name, major, minor };
    let mut nodes =
        vec![node("nvidiactl".to_owned(), MAJOR, CONTROL_MINOR), node(format!("nvidia{minor}"), MAJOR, minor)];
    let majors = read_to_string(proc.join("devices")).unwrap_or_default();
    // A host on which no CUDA program has run yet may not have the module; CUDA loads it where it may.
    if let Some(major) = major_of(&majors, "nvidia-uvm") {
        nodes.push(node("nvidia-uvm".to_owned(), major, 0));
        nodes.push(node("nvidia-uvm-tools".to_owned(), major, 1));
    }
    let Some(instance) = instance else { return Ok(nodes) };
    let major = major_of(&majors, "nvidia-caps");
    let major = major.ok_or_else(|| io::Error::other("/proc/devices does not name nvidia-caps"))?;
    let of_instance = proc.join(format!("driver/nvidia/capabilities/gpu{minor}/mig/gi{instance}"));
    for access in std::iter::once(of_instance.clone()).chain(compute_instances(&of_instance)?) {
        let access = access.join("access");
        let minor = number_after(&read_to_string(&access)?, "DeviceFileMinor:");
        let minor = minor.ok_or_else(|| io::Error::other(format!("{} names no minor", access.display())))?;
        nodes.push(node(format!("nvidia-caps/nvidia-cap{minor}"), major, minor));
    }
    Ok(nodes)
}

/// The network cards of the host that read and write memory by themselves, with the device by which their connections are made; and a channel of the NVLink domain, where
/// the driver serves them.
pub(super) fn of_fabric(root: &Path, channel: Option<u16>) -> io::Result<Vec<DeviceNode>> {
    let class = root.join("sys/class");
    let mut nodes = Vec::new();
    for entry in std::fs::read_dir(class.join("infiniband_verbs")).into_iter().flatten() {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().filter(|name| name.starts_with("uverbs")).map(str::to_owned) else {
            continue;
        };
        nodes.push(numbered(format!("infiniband/{name}"), &entry.path())?);
    }
    if !nodes.is_empty() && class.join("misc/rdma_cm").exists() {
        nodes.push(numbered("infiniband/rdma_cm".to_owned(), &class.join("misc/rdma_cm"))?);
    }
    let majors = read_to_string(root.join("proc/devices")).unwrap_or_default();
    let major = major_of(&majors, "nvidia-caps-imex-channels");
    nodes.extend(channel.zip(major).map(|(channel, major)| DeviceNode {
        name: format!("nvidia-caps-imex-channels/channel{channel}"),
        major,
        minor: channel.into(),
    }));
    nodes.sort_unstable();
    Ok(nodes)
}

/// A device with the numbers that sysfs has for it.
fn numbered(name: String, at: &Path) -> io::Result<DeviceNode> {
    let text = read_to_string(at.join("dev"))?;
    let numbers =
        text.trim().split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) = numbers.ok_or_else(|| io::Error::other(format!("{} names no device", at.display())))?;
    Ok(DeviceNode { name, major, minor })
}

/// The folders of the compute instances of a GPU instance, `ci0` and so on, in order.
fn compute_instances(of_instance: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(of_instance)? {
        let name = entry?.file_name();
        if name.to_str().and_then(|name| name.strip_prefix("ci")).is_some_and(|id| id.parse::<u32>().is_ok()) {
            found.push(of_instance.join(name));
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(io::Error::other(format!("{} names no compute instance", of_instance.display()))),
        false => Ok(found),
    }
}

/// The folders of cards have their addresses as names, in either case and with the function.
fn minor_of_card(proc: &Path, pci: &str) -> io::Result<u32> {
    let wanted = pci.parse::<PciAddress>().map_err(io::Error::other)?;
    for entry in std::fs::read_dir(proc.join("driver/nvidia/gpus"))? {
        let entry = entry?;
        let is_it = entry.file_name().to_str().is_some_and(|name| name.parse() == Ok(wanted));
        if is_it {
            let said = read_to_string(entry.path().join("information"))?;
            return number_after(&said, "Device Minor:").ok_or_else(|| io::Error::other("no minor is named"));
        }
    }
    Err(io::Error::other(format!("the driver does not name a GPU at {pci}")))
}

fn number_after(text: &str, label: &str) -> Option<u32> {
    text.lines().find_map(|line| line.trim().strip_prefix(label)?.trim().parse().ok())
}

/// From `/proc/devices`: a number and a name on each line.
fn major_of(devices: &str, name: &str) -> Option<u32> {
    devices.lines().find_map(|line| {
        let (number, named) = line.trim().split_once(' ')?;
        (named.trim() == name).then(|| number.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_over_several_nodes_gets_the_network_cards_and_its_own_channel() {
        let root = tempfile::tempdir().expect("a folder");
        let names = |channel| {
            let nodes = of_fabric(root.path(), channel).expect("sysfs says it");
            nodes.iter().map(|node| format!("{} {}:{}", node.name, node.major, node.minor)).collect::<Vec<_>>()
        };
        assert!(names(Some(3)).is_empty(), "a host without either");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("sys/class/infiniband_verbs/uverbs0/dev", "231:192\n");
        write("sys/class/infiniband_verbs/uverbs1/dev", "231:193\n");
        write("sys/class/infiniband_verbs/abi_version", "6\n");
        write("sys/class/misc/rdma_cm/dev", "10:121\n");
        let nics = ["infiniband/rdma_cm 10:121", "infiniband/uverbs0 231:192", "infiniband/uverbs1 231:193"];
        assert_eq!(names(None), nics);
        assert_eq!(names(Some(3)), nics, "no driver of channels");
        write("proc/devices", "Character devices:\n234 nvidia-caps-imex-channels\n");
        assert_eq!(names(Some(3)), [&nics[..], &["nvidia-caps-imex-channels/channel3 234:3"]].concat());
        assert_eq!(names(None), nics, "channels of others are not its own");
    }

    #[test]
    fn a_task_gets_its_own_card_or_instance_and_never_the_configuration_of_mig() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write(
            "proc/devices",
            "Character devices:\n  1 mem\n195 nvidia\n238 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n",
        );
        write("proc/driver/nvidia/gpus/0000:17:00.0/information", "Model: \t x\nDevice Minor: \t 3\n");
        write("proc/driver/nvidia/gpus/0000:65:00.0/information", "Device Minor: \t 0\n");
        write("proc/driver/nvidia/capabilities/gpu3/mig/gi5/access", "DeviceFileMinor: 48\nDeviceFileMode: 292\n");
        write("proc/driver/nvidia/capabilities/gpu3/mig/gi5/ci0/access", "DeviceFileMinor: 49\n");
        let names = |instance| {
            let nodes = of(root.path(), "00000000:17:00.0", instance).expect("the driver says it");
            nodes.iter().map(|node| format!("{} {}:{}", node.name, node.major, node.minor)).collect::<Vec<_>>()
        };
        let card = ["nvidiactl 195:255", "nvidia3 195:3", "nvidia-uvm 511:0", "nvidia-uvm-tools 511:1"];
        assert_eq!(names(None), card);
        let caps = ["nvidia-caps/nvidia-cap48 238:48", "nvidia-caps/nvidia-cap49 238:49"];
        assert_eq!(names(Some(5)), [&card[..], &caps[..]].concat());
        write("proc/driver/nvidia/capabilities/gpu3/mig/gi5/ci1/access", "DeviceFileMinor: 50\n");
        let second = ["nvidia-caps/nvidia-cap50 238:50"];
        assert_eq!(names(Some(5)), [&card[..], &caps[..], &second[..]].concat(), "two compute instances");
        assert!(of(root.path(), "0000:17:00.0", Some(6)).is_err(), "no such instance");
        assert!(of(root.path(), "0000:99:00.0", None).is_err(), "no such card");
    }
}
