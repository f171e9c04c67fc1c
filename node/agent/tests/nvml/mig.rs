//! MIG, from entering the mode to leaving it.

use crate::host::{Host, create, destroy, place, places, refused, state, take};
use muster_gpu_double::{Fleet, Process};
use muster_model::mig::MigShape::{G1, G1Double, G1Media, G2, G3, G4, G7};
use muster_model::request::SharingMode;
use muster_node_core::CardStep;

#[tokio::test]
async fn an_h100_is_cut_and_made_whole_again() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    assert!(refused(&gpus, 0, create(G1, 0)).await.contains("not in MIG mode"));
    take(&gpus, 0, CardStep::EnableMig).await;
    take(&gpus, 0, CardStep::EnableMig).await;
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::Mig);
    assert_eq!(state(&gpus, 1).await.mode, SharingMode::Whole, "the other card is as it was");
    for (shape, start) in [(G3, 4), (G1Media, 0), (G1Double, 2), (G1, 1)] {
        take(&gpus, 0, create(shape, start)).await;
    }
    let before = state(&gpus, 0).await;
    assert_eq!(places(&gpus, 0).await, [place(G1Media, 0), place(G1, 1), place(G1Double, 2), place(G3, 4)]);
    assert!(before.instances.iter().all(|one| one.uuids.len() == 1 && one.uuids[0].starts_with("MIG-")), "{before:?}");
    take(&gpus, 0, create(G3, 4)).await;
    assert_eq!(state(&gpus, 0).await, before, "made once");
    assert!(refused(&gpus, 0, create(G2, 4)).await.contains("conflicts with MIG instance G3@4"));
    assert!(refused(&gpus, 0, CardStep::DisableMig).await.contains("destroy it first"));
    assert_eq!(state(&gpus, 0).await, before, "a refusal changes nothing");
    take(&gpus, 0, destroy(G3, 4)).await;
    take(&gpus, 0, destroy(G3, 4)).await;
    take(&gpus, 0, create(G3, 4)).await;
    assert_ne!(state(&gpus, 0).await.instances[3].uuids, before.instances[3].uuids, "a new instance has a new name");
    for one in before.instances {
        take(&gpus, 0, CardStep::DestroyInstance(one.place)).await;
    }
    take(&gpus, 0, CardStep::DisableMig).await;
    take(&gpus, 0, CardStep::DisableMig).await;
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::Whole);
}

#[tokio::test]
async fn every_layout_of_each_family_is_made() {
    for fleet in [Fleet::of(muster_model::GpuModel::A30, 1).with_mig(), Fleet::h100(1).with_mig()] {
        let model = fleet.cards[0].model;
        let host = Host::new(&fleet);
        let gpus = host.gpus();
        let family = model.facts().mig.expect("it has MIG");
        for shape in muster_model::mig::MigShape::ALL {
            for start in shape.starts(family) {
                take(&gpus, 0, create(shape, *start)).await;
                assert_eq!(places(&gpus, 0).await, [place(shape, *start)], "{model}");
                take(&gpus, 0, destroy(shape, *start)).await;
            }
        }
        assert_eq!(host.standing(0), []);
    }
}

#[tokio::test]
async fn ampere_needs_a_reset_and_is_not_changed_silently() {
    let host = Host::new(&Fleet::a100(1));
    let gpus = host.gpus();
    let why = refused(&gpus, 0, CardStep::EnableMig).await;
    assert!(why.contains("needs a reset of the GPU; drain the node: the agent resets"), "{why}");
    let mig = host.faults.fleet().unwrap().cards[0].mig.clone();
    assert!(!mig.is_on && !mig.is_on_pending, "not even pending: the next reboot would change it");
    // An operator has asked for it with nvidia-smi: it is said, and taken back by nobody but them.
    host.faults.change_card(0, |card| card.mig.is_on_pending = true).unwrap();
    let withheld = state(&gpus, 0).await.withheld.expect("a card whose next mode is another one is withheld");
    assert!(withheld.contains("MIG will be on after a reset"), "{withheld}");
}

#[tokio::test]
async fn a_driver_that_would_reset_the_card_by_itself_is_not_asked_to() {
    let host = Host::new(&Fleet::a100(1).with_driver_resets());
    let why = refused(&host.gpus(), 0, CardStep::EnableMig).await;
    assert!(why.contains("needs a reset of the GPU"), "{why}");
    assert!(!host.faults.fleet().unwrap().cards[0].mig.is_on);
}

#[tokio::test]
async fn another_client_of_the_driver_blocks_the_mode_and_nothing_stays_pending() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    state(&gpus, 0).await;
    host.faults.add_client(0, 4_000_000).unwrap();
    let why = refused(&gpus, 0, CardStep::EnableMig).await;
    assert!(why.contains("the driver does not change the MIG mode while the GPU is open elsewhere"), "{why}");
    assert!(!host.faults.fleet().unwrap().cards[0].mig.is_on_pending);
    assert_eq!(state(&gpus, 0).await.withheld, None);
    host.faults.remove_client(4_000_000).unwrap();
    take(&gpus, 0, CardStep::EnableMig).await;
}

#[tokio::test]
async fn who_has_the_device_file_open_is_named() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    state(&gpus, 0).await;
    let mut holder = std::process::Command::new("sleep")
        .arg("60")
        .stdin(std::fs::File::open(host.folder.path().join("dev/nvidia0")).unwrap())
        .spawn()
        .unwrap();
    host.faults.add_client(0, holder.id()).unwrap();
    let why = refused(&gpus, 0, CardStep::EnableMig).await;
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(why.contains(&format!("process {} sleep", holder.id())), "{why}");
}

#[tokio::test]
async fn a_user_keeps_its_instance_and_is_named() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpus = host.gpus();
    take(&gpus, 0, create(G4, 0)).await;
    take(&gpus, 0, create(G2, 4)).await;
    let instance = host.faults.fleet().unwrap().cards[0].mig.instances.iter().find(|one| one.start == 4).unwrap().id;
    let (gpu_instance, compute_instance) = (Some(instance), Some(0));
    let memory_bytes = 3 << 30;
    let process = Process { pid: 77, memory_bytes, gpu_instance, compute_instance, ..Process::default() };
    host.faults.add_process(0, process).unwrap();
    let why = refused(&gpus, 0, destroy(G2, 4)).await;
    assert!(why.contains("is in use by process 77"), "{why}");
    assert_eq!(places(&gpus, 0).await, [place(G4, 0), place(G2, 4)]);
    take(&gpus, 0, destroy(G4, 0)).await;
    host.faults.remove_process(0, 77).unwrap();
    take(&gpus, 0, destroy(G2, 4)).await;
    take(&gpus, 0, create(G7, 0)).await;
}

#[tokio::test]
async fn an_instance_is_cut_into_equal_compute_instances() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpus = host.gpus();
    let cut = |shape, start, count| CardStep::CreateInstance(place(shape, start), count);
    take(&gpus, 0, cut(G3, 4, 3)).await;
    take(&gpus, 0, cut(G4, 0, 2)).await;
    assert_eq!(host.standing(0), [(0, 2), (4, 3)]);
    let devices: Vec<usize> = state(&gpus, 0).await.instances.iter().map(|one| one.uuids.len()).collect();
    assert_eq!(devices, [2, 3]);
    take(&gpus, 0, cut(G3, 4, 3)).await;
    assert!(refused(&gpus, 0, create(G3, 4)).await.contains("destroy it first"), "it is cut otherwise");
    take(&gpus, 0, destroy(G3, 4)).await;
    assert!(refused(&gpus, 0, cut(G3, 4, 2)).await.contains("cannot cut 3 compute slices"));
    assert_eq!(host.standing(0), [(0, 2)]);
}

/// Leaves `G3@4` with one of three compute instances, as a helper does that was killed between two.
async fn half_cut(host: &Host) {
    let gpus = host.gpus();
    take(&gpus, 0, CardStep::CreateInstance(place(G3, 4), 3)).await;
    host.faults
        .change_card(0, |card| {
            let id = card.mig.instances.iter().find(|one| one.start == 4).unwrap().id;
            card.destroy_compute(id, 2).unwrap();
            card.destroy_compute(id, 1).unwrap();
        })
        .unwrap();
}

#[tokio::test]
async fn what_was_cut_by_half_gives_way_to_the_next_step() {
    for (wanted, then) in [
        (CardStep::CreateInstance(place(G3, 4), 3), vec![(4, 3)]),
        (create(G3, 4), vec![(4, 1)]),
        (create(G2, 4), vec![(4, 1)]),
        (create(G1, 0), vec![(0, 1)]),
        (CardStep::DisableMig, vec![]),
    ] {
        let host = Host::new(&Fleet::h100(1).with_mig());
        half_cut(&host).await;
        let gpus = host.gpus();
        let seen = state(&gpus, 0).await;
        assert!(seen.withheld.is_none() && seen.instances.is_empty(), "{seen:?}");
        take(&gpus, 0, wanted).await;
        assert_eq!(host.standing(0), then, "{wanted}");
    }
}

#[tokio::test]
async fn what_another_program_has_made_is_told_and_left_alone() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpus = host.gpus();
    // 3g with one compute slice used, as `nvidia-smi mig -cgi 9 -C`-like tools leave it.
    host.faults
        .change_card(0, |card| {
            let id = card.make_instance(9, Some((0, 4)), 900).unwrap().id;
            card.make_compute(id, 0, None, 901, "MIG-foreign".to_owned()).unwrap();
        })
        .unwrap();
    let seen = state(&gpus, 0).await;
    assert_eq!(seen.instances, []);
    assert!(seen.withheld.as_ref().is_some_and(|why| why.contains("not of Muster's making")), "{seen:?}");
    assert!(refused(&gpus, 0, create(G1, 1)).await.contains("conflicts with"));
    assert!(refused(&gpus, 0, create(G3, 0)).await.contains("that Muster did not make"));
    take(&gpus, 0, create(G3, 4)).await;
    // Told to destroy just that place, the agent does.
    take(&gpus, 0, destroy(G3, 0)).await;
    assert_eq!(state(&gpus, 0).await.withheld, None);
}
