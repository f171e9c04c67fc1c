//! The driver's part of `/proc`, `/dev` and `/sys`, as plain files beside the fleet file.
//!
//! What must stay true: device nodes are there for the minors that the cards have now, and for no others; what never changes is written
//! once. Nodes below `dev/nvidia-caps` are made by whoever needs them, as on a real host.

use super::DoubleError;
use crate::state::card::PciAddress;
use crate::state::fleet::Fleet;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// GPU instance ids of a card.
const GPU_INSTANCES: u32 = 15;
/// Compute instance ids of a GPU instance.
const COMPUTE_INSTANCES: u32 = 8;
/// Cards for which the driver reserves capability minors.
const CARDS: u32 = 32;

/// Writes or refreshes the folders `proc`, `dev` and `sys` of a fleet.
///
/// # Errors
/// They cannot be written.
pub(crate) fn write_root(folder: &Path, fleet: &Fleet) -> Result<(), DoubleError> {
    let failed = |source| DoubleError::File { path: folder.to_owned(), source };
    write_once(folder, fleet).map_err(failed)?;
    write_nodes(folder, fleet).map_err(failed)?;
    write_cards(folder, fleet).map_err(failed)
}

fn write_once(folder: &Path, fleet: &Fleet) -> io::Result<()> {
    let driver = folder.join("proc/driver/nvidia");
    if driver.join("version").exists() {
        return Ok(());
    }
    fs::create_dir_all(driver.join("capabilities"))?;
    fs::write(driver.join("capabilities/mig-minors"), mig_minors())?;
    let params = "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\n\
                  DeviceFileMode: 438\nInitializeSystemMemoryAllocations: 1\nRmProfilingAdminOnly: 1\nRegistryDwords: \"\"\n";
    fs::write(driver.join("params"), params)?;
    let devices =
        "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n238 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n";
    fs::write(folder.join("proc/devices"), devices)?;
    for nic in &fleet.nics {
        let place = add_pci_device(folder, nic.bridge, nic.switch, nic.pci, [0x15b3, 0x1021], nic.numa)?;
        let name = folder.join("sys/class/infiniband").join(&nic.name);
        fs::create_dir_all(&name)?;
        symlink(Path::new("../../../..").join(place), name.join("device"))?;
    }
    for card in &fleet.cards {
        let ids = [card.pci_device_id & 0xffff, card.pci_device_id >> 16];
        add_pci_device(folder, card.bridge, card.switch, card.pci, ids, card.numa)?;
    }
    // Last, since by it the rest is known to be there.
    let version = format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}\n", fleet.driver_version);
    fs::write(driver.join("version"), version)
}

/// Adds a device below its host bridge and switch; gives its folder from `folder`.
fn add_pci_device(
    folder: &Path,
    bridge: u32,
    switch: u32,
    pci: PciAddress,
    [vendor, device]: [u32; 2],
    numa: i32,
) -> io::Result<PathBuf> {
    let (domain, root_bus, up_bus) = (pci.domain, bridge * 16, switch * 16 + 1);
    let below = format!("sys/devices/pci{domain:04x}:{root_bus:02x}/{domain:04x}:{up_bus:02x}:00.0/{pci}");
    let place = folder.join(&below);
    fs::create_dir_all(&place)?;
    fs::write(place.join("numa_node"), format!("{numa}\n"))?;
    fs::write(place.join("vendor"), format!("0x{vendor:04x}\n"))?;
    fs::write(place.join("device"), format!("0x{device:04x}\n"))?;
    let devices = folder.join("sys/bus/pci/devices");
    fs::create_dir_all(&devices)?;
    symlink(Path::new("../../../..").join(&below), devices.join(pci.to_string()))?;
    Ok(PathBuf::from(below))
}

fn write_nodes(folder: &Path, fleet: &Fleet) -> io::Result<()> {
    let dev = folder.join("dev");
    fs::create_dir_all(dev.join("nvidia-caps"))?;
    let mut wanted: Vec<String> = fleet.present().map(|(_, card)| format!("nvidia{}", card.minor)).collect();
    wanted.extend(["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"].map(str::to_owned));
    for entry in fs::read_dir(&dev)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && !wanted.iter().any(|name| entry.file_name() == name.as_str()) {
            fs::remove_file(entry.path())?;
        }
    }
    wanted.iter().filter(|name| !dev.join(name).exists()).try_for_each(|name| fs::write(dev.join(name), []))
}

/// `proc/driver/nvidia/gpus/ADDRESS/information`, and below `capabilities` what stands on each card.
fn write_cards(folder: &Path, fleet: &Fleet) -> io::Result<()> {
    let driver = folder.join("proc/driver/nvidia");
    let capabilities = driver.join("capabilities");
    let mut standing = BTreeMap::new();
    for (_, card) in fleet.present() {
        let (name, uuid, pci, minor) = (&card.name, &card.uuid, card.pci, card.minor);
        let text =
            format!("Model: \t\t {name}\nGPU UUID: \t {uuid}\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n");
        write_changed(&driver.join("gpus").join(pci.to_string()), "information", &text)?;
        for instance in &card.mig.instances {
            let of_instance = capabilities.join(format!("gpu{minor}/mig/gi{}", instance.id));
            let node = node_minor(minor, instance.id);
            for compute in &instance.compute {
                standing.insert(of_instance.join(format!("ci{}", compute.id)), node + 1 + compute.id);
            }
            standing.insert(of_instance, node);
        }
    }
    for (place, minor) in &standing {
        let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        write_changed(place, "access", &text)?;
    }
    remove_gone(&capabilities, &|place| standing.contains_key(place))
}

/// Removes the folders of instances (`giN`, `ciN`) below `place` that do not stand.
fn remove_gone(place: &Path, stands: &dyn Fn(&Path) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(place)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let is_instance = name.to_str().is_some_and(|name| name.starts_with("gi") || name.starts_with("ci"));
        if is_instance && !stands(&path) {
            fs::remove_dir_all(&path)?;
        } else if path.is_dir() {
            remove_gone(&path, stands)?;
        }
    }
    Ok(())
}

/// Writes a file unless it says that already, and then as a whole, so that nobody reads half of it.
fn write_changed(place: &Path, name: &str, text: &str) -> io::Result<()> {
    let file = place.join(name);
    if fs::read_to_string(&file).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::create_dir_all(place)?;
    let new = place.join(format!(".{name}"));
    fs::write(&new, text)?;
    fs::rename(new, file)
}

/// Minor of a GPU instance's node below `nvidia-caps`; 1 and 2 are `config` and `monitor`.
const fn node_minor(card_minor: u32, gpu_instance: u32) -> u32 {
    3 + (card_minor * GPU_INSTANCES + gpu_instance) * (1 + COMPUTE_INSTANCES)
}

fn mig_minors() -> String {
    let mut text = "config 1\nmonitor 2\n".to_owned();
    for card in 0..CARDS {
        for gpu in 0..GPU_INSTANCES {
            let minor = node_minor(card, gpu);
            let _ = writeln!(text, "gpu{card}/gi{gpu}/access {minor}");
            for compute in 0..COMPUTE_INSTANCES {
                let _ = writeln!(text, "gpu{card}/gi{gpu}/ci{compute}/access {}", minor + 1 + compute);
            }
        }
    }
    text
}
