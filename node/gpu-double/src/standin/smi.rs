//! `nvidia-smi -L`, `nvidia-smi compute-policy --set-timeslice 0..3 [-i ID,ID]` and `nvidia-smi --gpu-reset [-i ID,ID]`.
//!
//! What must stay true: the exit status of a refusal is NVML's code, and the words name the card.

use crate::files::Folder;
use crate::state::card::Card;
use crate::state::fleet::Fleet;
use crate::state::refusal::{Answer, Refusal, words};
use std::fmt::Write;
use std::path::Path;

/// What `nvidia-smi` prints, and its exit status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// Standard output.
    pub text: String,
    /// Exit status.
    pub status: u8,
}

/// Runs it with these arguments (without its name) on a folder.
#[must_use]
pub fn run(arguments: &[String], folder: Option<&Path>) -> Printed {
    let Some(folder) = folder.and_then(|path| Folder::open(path).ok()) else {
        let text = concat!(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. ",
            "Make sure that the latest NVIDIA driver is installed and running.\n\n"
        );
        return Printed { text: text.to_owned(), status: 9 };
    };
    let mut printed = Printed::default();
    let plain: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = match plain.as_slice() {
        ["-L" | "--list-gpus"] => list(&folder, &mut printed.text),
        ["compute-policy", options @ ..] => compute_policy(&folder, options, &mut printed.text),
        ["-r" | "--gpu-reset"] => reset(&folder, None, &mut printed.text),
        ["-r" | "--gpu-reset", "-i" | "--id", ids] => reset(&folder, Some(ids), &mut printed.text),
        _ => {
            let _ =
                writeln!(printed.text, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.");
            Err(Refusal::InvalidArgument)
        }
    };
    printed.status = answer.map_or_else(|refusal| refusal.code().try_into().unwrap_or(u8::MAX), |()| 0);
    printed
}

/// What the driver calls an error.
fn in_words(refusal: Refusal) -> String {
    words(refusal.code()).to_string_lossy().into_owned()
}

fn list(folder: &Folder, text: &mut String) -> Answer<()> {
    let mut snapshot = folder.pass("nvmlInit_v2", None)?;
    let slots: Vec<usize> = snapshot.fleet.present().map(|(slot, _)| slot).collect();
    for (index, slot) in slots.into_iter().enumerate() {
        snapshot = folder.pass("nvmlDeviceGetUUID", Some(slot))?;
        let card = snapshot.fleet.card(slot)?;
        if snapshot.plan.is_lost(slot) {
            let bus = card.pci.nvml();
            let _ = writeln!(
                text,
                "Unable to determine the device handle for GPU{index}: {bus}: GPU is lost.  Reboot the system to recover this GPU"
            );
            return Err(Refusal::GpuIsLost);
        }
        let _ = writeln!(text, "GPU {index}: {} (UUID: {})", card.name, card.uuid);
        for (number, (gpu, compute)) in card.mig_devices().enumerate() {
            let profile = card.profile_by_id(gpu.profile_id)?;
            let name = crate::state::compute::ComputeProfile::of(profile, compute.profile_id)?.name(profile);
            let _ = writeln!(text, "  MIG {name:<11} Device {number:>2}: (UUID: {})", compute.uuid);
        }
    }
    Ok(())
}

fn reset(folder: &Folder, ids: Option<&str>, text: &mut String) -> Answer<()> {
    let snapshot = folder.pass("nvmlInit_v2", None)?;
    for slot in slots(&snapshot.fleet, ids, text)? {
        let bus = snapshot.fleet.card(slot)?.pci.nvml();
        reset_one(folder, slot).inspect_err(|refusal| {
            let _ = match refusal {
                Refusal::InUse => writeln!(
                    text,
                    "The following GPUs could not be reset:\n  GPU {bus}: In use by another client\n\n1 device is currently being used by one or more other \
                     processes (e.g., Fabric Manager, CUDA application, graphics application such as an X server, or a monitoring application such as \
                     another instance of nvidia-smi). Please first kill all processes using this device and all compute applications running in the system."
                ),
                other => writeln!(text, "GPU Reset couldn't run for GPU {bus}: {}", in_words(*other)),
            };
        })?;
        let _ = writeln!(text, "GPU {bus} was successfully reset.");
    }
    let _ = writeln!(text, "All done.");
    Ok(())
}

fn reset_one(folder: &Folder, slot: usize) -> Answer<()> {
    let snapshot = folder.pass("nvidia-smi --gpu-reset", Some(slot))?;
    if snapshot.plan.is_lost(slot) {
        return Err(Refusal::GpuIsLost);
    }
    if snapshot.plan.no_permission {
        return Err(Refusal::NoPermission);
    }
    folder.change(|state| state.fleet.reset_card(slot, 0))
}

fn compute_policy(folder: &Folder, options: &[&str], text: &mut String) -> Answer<()> {
    let (mut time_slice, mut ids) = (None, None);
    let mut rest = options.iter().flat_map(|option| match option.split_once('=') {
        Some((name, value)) => vec![name, value],
        None => vec![*option],
    });
    while let Some(option) = rest.next() {
        match option {
            "--set-timeslice" => time_slice = rest.next(),
            "-i" | "--id" => ids = rest.next(),
            other => {
                let _ = writeln!(text, "Option \"{other}\" is not recognized.");
                return Err(Refusal::InvalidArgument);
            }
        }
    }
    let value = time_slice.and_then(|value| value.parse::<u32>().ok()).filter(|value| *value <= 3);
    let Some(value) = value else {
        let _ = writeln!(text, "Invalid value for --set-timeslice: use 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG.");
        return Err(Refusal::InvalidArgument);
    };
    let snapshot = folder.pass("nvmlInit_v2", None)?;
    for slot in slots(&snapshot.fleet, ids, text)? {
        set(folder, slot, value).inspect_err(|refusal| {
            let name = ["Default", "Short", "Medium", "Long"][value as usize];
            let why = in_words(*refusal);
            let _ = writeln!(text, "Failed to set timeslice policy with value {name} for GPU {slot} : {why}");
            let _ = writeln!(text, "Failed to set timeslice for requested devices : {why}");
        })?;
    }
    let _ = writeln!(text, "All done.");
    Ok(())
}

fn set(folder: &Folder, slot: usize, value: u32) -> Answer<()> {
    let snapshot = folder.pass("nvidia-smi compute-policy", Some(slot))?;
    if snapshot.plan.is_lost(slot) {
        return Err(Refusal::GpuIsLost);
    }
    if snapshot.plan.no_permission {
        return Err(Refusal::NoPermission);
    }
    folder.change(|state| {
        let card = state.fleet.card_mut(slot)?;
        // Volta and later have it.
        if card.architecture < crate::state::card::Architecture::Volta {
            return Err(Refusal::NotSupported);
        }
        card.time_slice = value;
        Ok(())
    })
}

/// The slots of the cards that `-i` names by index, UUID or PCI address; without it all.
fn slots(fleet: &Fleet, ids: Option<&str>, text: &mut String) -> Answer<Vec<usize>> {
    let Some(ids) = ids else { return Ok(fleet.present().map(|(slot, _)| slot).collect()) };
    let one = |id: &str| {
        let is_it = |(index, (_, card)): &(usize, (usize, &Card))| {
            id == index.to_string() || id == card.uuid || id.eq_ignore_ascii_case(&card.pci.nvml())
        };
        fleet.present().enumerate().find(is_it).map(|(_, (slot, _))| slot)
    };
    ids.split(',').map(|id| one(id).ok_or(id)).collect::<Result<_, _>>().map_err(|id: &str| {
        let _ = writeln!(text, "No devices were found for id {id}");
        Refusal::NotFound
    })
}
