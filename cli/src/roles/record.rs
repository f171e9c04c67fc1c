//! `muster node record`: what the driver of this machine tells of its GPUs, as a file that the double of the driver can be.
//!
//! What must stay true: nothing is set on this machine; what the double cannot be (a card of a model that it does not have, a profile of another size) is said,
//! and never rounded to the nearest; without `--anonymous` UUIDs and serial numbers are those of the cards.

use crate::args::node::Record;
use crate::failure::Failure;
use crate::output::{self, Out};
use muster_agent::gpu::nvml::recorder;
use muster_agent::gpu::nvml::recording::{Place, RecordedCard, RecordedInstance, RecordedLink, Recording};
use muster_gpu_double::state::card::Architecture;
use muster_gpu_double::state::gauges::Gauges;
use muster_gpu_double::state::health::{EccCounts, Health, RemappedRows};
use muster_gpu_double::state::instance::MigState;
use muster_gpu_double::state::{profiles, uuid};
use muster_gpu_double::{Card, ComputeInstance, Fabric, Fleet, GpuInstance, Link, LinkRemote, Nic, PciAddress};
use muster_model::GpuModel;
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};

/// Writes the recording.
///
/// # Errors
/// The driver cannot be asked, no card is of a model that the double has, or the file cannot be written.
pub fn run(args: &Record, out: &Out) -> Result<(), Failure> {
    let failed = |why: String| Failure::io("recording the GPUs of this machine", std::io::Error::other(why));
    let seen = recorder::record(&args.driver_root, &args.nvml_library).map_err(failed)?;
    let mut notes = seen.unread.clone();
    let mut fleet = fleet(&seen, &mut notes);
    for note in &notes {
        output::note(&format!("muster node record: {note}"));
    }
    if fleet.cards.is_empty() {
        return Err(failed("none of its cards can be recorded".to_owned()));
    }
    if args.anonymous {
        fleet = anonymous(fleet, RandomState::new().hash_one(0_u8));
    }
    let text = serde_json::to_string_pretty(&fleet).map_err(|error| failed(error.to_string()))?;
    match &args.out {
        Some(path) => {
            std::fs::write(path, text + "\n").map_err(|error| Failure::io(format!("writing {}", path.display()), error))
        }
        None => out.line(&text),
    }
}

/// The host as the double is one.
fn fleet(seen: &Recording, notes: &mut Vec<String>) -> Fleet {
    let mut fleet = Fleet { cards: Vec::new(), nics: Vec::new(), ..Fleet::of(GpuModel::H100, 0) };
    (fleet.driver_version, fleet.cuda_version) = (seen.driver.clone(), seen.cuda);
    let mut numbers = Numbers::default();
    for (index, card) in seen.cards.iter().enumerate() {
        let known = card.model.zip(architecture(card.architecture)).zip(address(&card.place.pci));
        let Some(((model, architecture), pci)) = known else {
            notes.push(format!("GPU {index} ({}) is of no model that the double has; it is left out", card.name));
            continue;
        };
        notes.extend(differences(model, card).into_iter().map(|what| format!("GPU {index}: {what}")));
        let mig = MigState {
            is_on: card.mig_mode.0,
            is_on_pending: card.mig_mode.1,
            instances: card.instances.iter().map(|one| instance(one, &mut fleet.made)).collect(),
        };
        fleet.cards.push(Card { mig, ..of(card, (model, architecture, pci), &mut numbers) });
    }
    fleet.cards.sort_by_key(|card| card.pci);
    for (name, place) in &seen.nics {
        let Some(pci) = address(&place.pci) else { continue };
        let (switch, bridge) = numbers.of(place);
        fleet.nics.push(Nic { name: name.clone(), pci, numa: place.numa, switch, bridge });
    }
    fleet
}

fn of(card: &RecordedCard, known: (GpuModel, Architecture, PciAddress), numbers: &mut Numbers) -> Card {
    let (model, architecture, pci) = known;
    let (switch, bridge) = numbers.of(&card.place);
    let (sensors, errors) = (&card.sensors, &card.errors);
    let counts = |(corrected, uncorrected)| EccCounts { corrected, uncorrected };
    let (corrected, uncorrected, is_pending, has_failed) = errors.rows;
    Card {
        model,
        name: card.name.clone(),
        uuid: card.uuid.clone(),
        serial: card.serial.clone(),
        pci,
        pci_device_id: card.pci_device_id,
        minor: card.minor,
        numa: card.place.numa,
        switch,
        bridge,
        memory_mib: card.memory_mib,
        reserved_mib: card.reserved_mib,
        architecture,
        links: card.links.iter().map(link).collect(),
        fabric: card.fabric.map(|(cluster_uuid, clique, state, status, health_mask)| Fabric {
            cluster_uuid,
            clique,
            state,
            status,
            health_mask,
        }),
        mig: MigState::default(),
        processes: Vec::new(),
        clients: Vec::new(),
        memory_other_bytes: card.used_bytes,
        compute_mode: card.compute_mode,
        is_persistent: card.is_persistent,
        is_accounting: card.is_accounting,
        time_slice: 0,
        gauges: Gauges {
            temperature_c: sensors.temperature_c,
            memory_temperature_c: sensors.memory_temperature_c,
            power_mw: sensors.power_mw,
            power_limit_mw: sensors.power_limit_mw,
            energy_mj: sensors.energy_mj,
            clocks_event_reasons: sensors.clocks_event_reasons,
            sm_clock_mhz: sensors.sm_clock_mhz,
            memory_clock_mhz: sensors.memory_clock_mhz,
            ..Gauges::default()
        },
        health: Health {
            ecc_volatile: counts(errors.volatile),
            ecc_aggregate: counts(errors.aggregate),
            rows: RemappedRows { corrected, uncorrected, is_pending, has_failed },
            recovery_action: errors.recovery_action,
            pcie_replays: errors.pcie_replays,
            ..Health::default()
        },
        is_absent: false,
    }
}

fn link(link: &RecordedLink) -> Link {
    let at = address(&link.pci).unwrap_or_default();
    let remote = if link.is_switch { LinkRemote::Switch(at) } else { LinkRemote::Card(at) };
    Link { is_active: link.is_active, version: link.version, remote }
}

/// `made` counts instances, each with a number of its own.
fn instance(one: &RecordedInstance, made: &mut u32) -> GpuInstance {
    let mut next = || {
        *made += 1;
        *made
    };
    let serial = next();
    let compute = one.compute.iter().map(|compute| ComputeInstance {
        id: compute.id,
        profile_id: compute.profile_id,
        start: compute.start,
        size: compute.size,
        uuid: compute.uuid.clone(),
        serial: next(),
    });
    GpuInstance {
        id: one.id,
        profile_id: one.profile_id,
        start: one.start,
        size: one.size,
        serial,
        compute: compute.collect(),
        memory_other_bytes: 0,
        load: Default::default(),
    }
}

/// In what the driver's profiles differ from those that the double has for the model: the double goes on with its own.
fn differences(model: GpuModel, card: &RecordedCard) -> Vec<String> {
    let mut found = Vec::new();
    for seen in &card.profiles {
        match profiles::by_id(model, seen.id) {
            None => found.push(format!("the double has no profile {} (number {}) of a {model}", seen.id, seen.number)),
            Some(own) => {
                let mine =
                    (own.compute_slices, own.memory_slices, own.instances_max, own.memory_mib(), own.starts.to_vec());
                let theirs =
                    (seen.compute_slices, seen.memory_slices, seen.instances_max, seen.memory_mib, seen.starts.clone());
                if mine != theirs {
                    let what = "compute slices, memory slices, most of it, MiB, starts";
                    found
                        .push(format!("profile {}: the double has {mine:?}, the driver {theirs:?} ({what})", own.name));
                }
            }
        }
    }
    let missing = profiles::of(model)
        .iter()
        .filter(|own| !card.profiles.is_empty() && card.profiles.iter().all(|seen| seen.id != own.id));
    found.extend(missing.map(|own| format!("the driver does not offer the profile {} that the double has", own.name)));
    found
}

/// With other UUIDs and serial numbers, which tell nothing of the first ones.
fn anonymous(fleet: Fleet, seed: u64) -> Fleet {
    let mut fleet = fleet.with_seed(seed);
    let seed_bytes = seed.to_le_bytes();
    for slot in 0..fleet.cards.len() {
        for instance in 0..fleet.cards[slot].mig.instances.len() {
            for at in 0..fleet.cards[slot].mig.instances[instance].compute.len() {
                let serial = fleet.cards[slot].mig.instances[instance].compute[at].serial;
                let name = uuid::opaque("MIG", seed, u64::from(serial) + (1 << 32));
                fleet.cards[slot].mig.instances[instance].compute[at].uuid = name;
            }
        }
        // Zeros say that the fabric ends at the host.
        if let Some(fabric) = fleet.cards[slot].fabric.as_mut().filter(|fabric| fabric.cluster_uuid != [0; 16]) {
            fabric.cluster_uuid = std::array::from_fn(|at| seed_bytes[at % seed_bytes.len()]);
        }
    }
    fleet
}

/// Small numbers for switches and host bridges, in the order in which they are met.
#[derive(Default)]
struct Numbers {
    switches: BTreeMap<String, u32>,
    bridges: BTreeMap<String, u32>,
}

impl Numbers {
    fn of(&mut self, place: &Place) -> (u32, u32) {
        let number = |all: &mut BTreeMap<String, u32>, name: &String| {
            let next = all.len() as u32;
            *all.entry(name.clone()).or_insert(next)
        };
        (number(&mut self.switches, &place.switch), number(&mut self.bridges, &place.bridge))
    }
}

const fn architecture(number: u32) -> Option<Architecture> {
    Some(match number {
        4 => Architecture::Pascal,
        5 => Architecture::Volta,
        6 => Architecture::Turing,
        7 => Architecture::Ampere,
        8 => Architecture::Ada,
        9 => Architecture::Hopper,
        10 => Architecture::Blackwell,
        _ => return None,
    })
}

/// `0000:17:00.0`.
fn address(text: &str) -> Option<PciAddress> {
    let (rest, _function) = text.rsplit_once('.')?;
    let numbers: Vec<u32> = rest.split(':').map(|part| u32::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [domain, bus, device] => Some(PciAddress { domain, bus, device }),
        _ => None,
    }
}
