//! Records a host, for tests on hosts that are not there.
//!
//! What must stay true: nothing is set, made or ended, on the cards or on the host; what cannot be read is named and not made up; a driver that does not answer
//! is not waited for beyond [`ANSWER_WITHIN`].

use super::recording::{Place, Recording};
use super::{helper, models};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// A host with many cards is read within seconds; a driver that hangs takes for ever.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Reads the host whose driver is `library`; sysfs is below `root`.
///
/// # Errors
/// The library cannot be loaded, or the driver does not answer.
pub fn record(root: &Path, library: &Path) -> Result<Recording, String> {
    let (tell, told) = mpsc::channel();
    let library = library.as_os_str().to_owned();
    // A call that hangs ends with this process.
    std::thread::spawn(move || tell.send(helper::record(&library)));
    let mut recording = told
        .recv_timeout(ANSWER_WITHIN)
        .map_err(|_| format!("the driver has not answered within {} s", ANSWER_WITHIN.as_secs()))??;
    for card in &mut recording.cards {
        card.model = models::model(&card.name, card.memory_mib);
        card.place = place(root, &card.place.pci);
    }
    recording.nics = nics(root);
    Ok(recording)
}

fn nics(root: &Path) -> Vec<(String, Place)> {
    let found = std::fs::read_dir(root.join("sys/class/infiniband")).into_iter().flatten().flatten();
    let nic = |entry: std::fs::DirEntry| {
        let path = entry.path().join("device").canonicalize().ok()?;
        let pci = path.file_name()?.to_str()?.to_owned();
        Some((entry.file_name().to_string_lossy().into_owned(), place(root, &pci)))
    };
    let mut nics: Vec<_> = found.filter_map(nic).collect();
    nics.sort_by(|(one, _), (other, _)| (one.len(), one).cmp(&(other.len(), other)));
    nics
}

fn place(root: &Path, pci: &str) -> Place {
    let device = root.join("sys/bus/pci/devices").join(pci);
    let numa = std::fs::read_to_string(device.join("numa_node")).ok().and_then(|text| text.trim().parse().ok());
    let (bridge, switch) = above(&device.canonicalize().unwrap_or_else(|_| PathBuf::from(pci)));
    Place { pci: pci.to_owned(), numa: numa.unwrap_or(-1), bridge, switch }
}

/// Host bridge and switch of a path below `sys/devices`. The device hangs on a port of its switch, or on a port of the host bridge.
fn above(device: &Path) -> (String, String) {
    let parts: Vec<String> = device.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let Some(first) = parts.iter().position(|part| part.starts_with("pci")) else {
        return (String::new(), parts.join("/"));
    };
    let parts = &parts[first..];
    let end = if parts.len() > 3 { parts.len() - 2 } else { parts.len() - 1 };
    (parts[0].clone(), parts[..end.max(1)].join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_one_switch_have_one_name_for_it() {
        let check = |path: &str, bridge: &str, switch: &str| {
            let found = above(&PathBuf::from("/sys/devices").join(path));
            assert_eq!(found, (bridge.to_owned(), switch.to_owned()), "{path}");
        };
        let on_switch = "pci0000:10/0000:10:01.0/0000:11:00.0";
        check(&format!("{on_switch}/0000:12:00.0/0000:13:00.0"), "pci0000:10", on_switch);
        check(&format!("{on_switch}/0000:12:01.0/0000:14:00.0"), "pci0000:10", on_switch);
        check("pci0000:20/0000:20:02.0/0000:21:00.0", "pci0000:20", "pci0000:20/0000:20:02.0");
        check("pci0000:20/0000:20:03.0", "pci0000:20", "pci0000:20");
    }
}
