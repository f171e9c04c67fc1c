//! `muster node record` on the double: what is recorded is the host, nothing of the host is changed, and the double is that host when it loads the recording.

use crate::site::Site;
use muster_gpu_double::{Faults, Fleet, Process, library_beside, library_into};
use muster_model::GpuModel;
use std::path::Path;
use std::process::Command;

/// The double with this fleet, in a folder of its own.
fn host(fleet: &Fleet) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fleet.write(folder.path()).expect("the fleet is written");
    let built = library_beside(Path::new(env!("CARGO_BIN_EXE_muster"))).expect("the double is built");
    library_into(&built, folder.path()).expect("the library is copied");
    folder
}

/// What is recorded of it, and what is said beside that.
fn record(folder: &Path, words: &[&str]) -> (Fleet, String) {
    let out = folder.join("recording.json");
    let output = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["node", "record", "--out"])
        .arg(&out)
        .arg("--driver-root")
        .arg(folder)
        .arg("--nvml-library")
        .arg(folder.join("lib/libnvidia-ml.so.1"))
        .args(words)
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let text = std::fs::read_to_string(&out).expect("a recording");
    (serde_json::from_str(&text).expect("a fleet file"), said)
}

/// Eight H100 in two pairs of switches, two of them cut, one of them with errors; NICs, NVSwitches and a fabric.
fn fleet() -> Fleet {
    let mut fleet = Fleet::h100(8).with_seed(7).with_driver("570.86.15", 12_080);
    for slot in [2, 5] {
        let card = &mut fleet.cards[slot];
        (card.mig.is_on, card.mig.is_on_pending) = (true, true);
        for (profile, start, size, compute) in [(19, 0, 1, 0), (14, 2, 2, 1), (9, 4, 4, 2)] {
            let (of_gpu, of_compute) = (fleet.next_serial(), fleet.next_serial());
            let uuid = fleet.mig_uuid(of_compute);
            let card = &mut fleet.cards[slot];
            let id = card.make_instance(profile, Some((start, size)), of_gpu).expect("there is room").id;
            card.make_compute(id, compute, None, of_compute, uuid).expect("it fills its GPU instance");
        }
    }
    fleet.with_card(1, |card| {
        card.health.ecc_aggregate.corrected = 12;
        card.health.rows.corrected = 3;
        card.health.pcie_replays = 5;
        card.links[4].is_active = false;
        card.is_persistent = true;
        card.compute_mode = 3;
        card.memory_other_bytes = 600 << 20;
    })
}

/// Without what is not recorded: energy goes on, numbers of instances are the double's own, and who has NVML open is of the moment.
fn compared(mut fleet: Fleet) -> Fleet {
    (fleet.made, fleet.seed) = (0, 0);
    for card in &mut fleet.cards {
        (card.gauges.energy_mj, card.gauges.energy_at_ms) = (0, 0);
        (card.clients, card.processes) = (Vec::new(), Vec::new());
        for instance in &mut card.mig.instances {
            instance.serial = 0;
            instance.compute.iter_mut().for_each(|compute| compute.serial = 0);
        }
    }
    fleet
}

#[test]
fn a_recording_is_the_host_and_the_double_is_the_recording() {
    let first = host(&fleet());
    let before = Faults::open(first.path()).expect("readable").fleet().expect("readable");
    let (recorded, said) = record(first.path(), &[]);
    assert_eq!(said, "", "nothing is missing, and its profiles are those of the double");
    assert_eq!(compared(recorded.clone()), compared(before.clone()));
    let after = Faults::open(first.path()).expect("readable").fleet().expect("readable");
    assert_eq!(after.cards.iter().map(|card| card.clients.len()).sum::<usize>(), 0, "nobody has it open any more");
    assert_eq!(after.made, before.made);
    assert_eq!(compared(after), compared(before), "nothing was changed");
    let second = host(&recorded);
    assert_eq!(compared(record(second.path(), &[]).0), compared(recorded));
}

#[test]
fn processes_are_not_recorded_and_neither_is_their_memory() {
    let folder = host(&Fleet::of(GpuModel::A100_80, 2));
    let faults = Faults::open(folder.path()).expect("readable");
    faults.add_process(1, Process { pid: 4_711, memory_bytes: 3 << 30, ..Process::default() }).expect("added");
    faults.set_memory_used(1, 100 << 20).expect("set");
    let (recorded, _) = record(folder.path(), &[]);
    assert_eq!((recorded.cards[1].processes.len(), recorded.cards[1].memory_other_bytes), (0, 100 << 20));
}

#[test]
fn what_cannot_be_read_is_said() {
    let folder = host(&fleet());
    let faults = Faults::open(folder.path()).expect("readable");
    faults.no_permission(true).expect("set");
    let (recorded, said) = record(folder.path(), &[]);
    assert!(said.contains("GPU 2: nvmlDeviceGetGpuInstances") && said.contains("NVML code 4"), "{said}");
    assert!(recorded.cards[2].mig.instances.is_empty() && recorded.cards.len() == 8);
    faults.no_permission(false).expect("set");
    faults.lose(3).expect("lost");
    let (recorded, said) = record(folder.path(), &[]);
    assert!(said.contains("GPU 3: ") && said.contains("the card is left out"), "{said}");
    assert_eq!(recorded.cards.len(), 7);
}

#[test]
fn an_anonymous_recording_has_no_number_of_the_host() {
    let folder = host(&fleet().with_fabric([9; 16], 4));
    let (named, _) = record(folder.path(), &[]);
    let (recorded, _) = record(folder.path(), &["--anonymous"]);
    let text = std::fs::read_to_string(folder.path().join("recording.json")).expect("it is there");
    for card in &named.cards {
        let slices = card.mig_devices().map(|(_, compute)| compute.uuid.clone());
        for name in slices.chain([card.uuid.clone(), card.serial.clone()]) {
            assert!(!text.contains(&name), "{name}");
        }
    }
    assert_ne!(recorded.cards[0].fabric.as_ref().expect("a fabric").cluster_uuid, [9; 16]);
    let shape = |fleet: &Fleet| -> Vec<_> {
        fleet.cards.iter().map(|card| (card.pci, card.mig.instances.len(), card.links.clone())).collect()
    };
    assert_eq!(shape(&recorded), shape(&named));
    let (again, _) = record(folder.path(), &["--anonymous"]);
    assert_ne!(again.cards[0].uuid, recorded.cards[0].uuid, "two recordings cannot be told to be of one host");
}

#[test]
fn an_agent_runs_on_a_recorded_host() {
    let folder = host(&Fleet::of(GpuModel::A30, 3).with_seed(11));
    let (recorded, _) = record(folder.path(), &[]);
    let file = folder.path().join("recording.json").display().to_string();
    let site = Site::start();
    std::fs::write(site.path("node.yaml"), "name: recorded\n").expect("a file");
    let words = ["--data", "data", "--spec", "node.yaml", "--gpus", "double", "--gpu-recording", &file];
    let _agent = site.agent("agent", &words);
    site.until_node("recorded", "ready");
    let gpus = site.json(&["gpus", "recorded"]);
    let uuids: Vec<&str> = gpus.as_array().expect("a list").iter().filter_map(|gpu| gpu["uuid"].as_str()).collect();
    assert_eq!(uuids, recorded.cards.iter().map(|card| card.uuid.as_str()).collect::<Vec<_>>(), "{gpus}");
    // Its driver serves CUDA 13.0.
    let asks_for = |cuda: &str| {
        let selector = format!("device.cuda >= version(\"{cuda}\")");
        site.submit(&["--gpus", "1", "--selector", &selector, "--", "true"])
    };
    let (runs, waits) = (asks_for("13.0"), asks_for("13.1"));
    site.until_job(&runs, "completed");
    let why = site.until("an explanation", || {
        let why = site.said(&["explain", &waits]);
        why.contains("device.cuda >= version(\"13.1\")").then_some(why)
    });
    assert!(why.contains("selector"), "{why}");
}
