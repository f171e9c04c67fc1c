//! Indexes that outlive reboots, and what a host has.

use crate::host::{Host, kill_helper, refused, state, take};
use muster_agent::gpu::GpuBackend;
use muster_gpu_double::Fleet;
use muster_model::GpuModel;
use muster_node_core::CardStep;

#[tokio::test]
async fn cards_are_what_the_double_says() {
    let host = Host::new(&Fleet::h100(8));
    let gpus = host.gpus();
    let cards = gpus.cards().await.unwrap();
    let fleet = host.faults.fleet().unwrap();
    assert_eq!(
        cards.iter().map(|card| &card.uuid).collect::<Vec<_>>(),
        fleet.cards.iter().map(|c| &c.uuid).collect::<Vec<_>>()
    );
    assert!(cards.iter().all(|card| card.model == GpuModel::H100 && card.memory_mib == 81_920 && card.island == 0));
    assert_eq!(cards.iter().map(|card| card.numa).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
    assert!(cards.iter().all(|card| card.withheld.is_none()));
    let versions = gpus.host().await.unwrap();
    assert_eq!((versions.version.as_str(), versions.cuda.as_str()), ("580.95.05", "13.0"));
}

#[tokio::test]
async fn islands_follow_the_links() {
    let islands = async |fleet: Fleet| -> Vec<u8> {
        let host = Host::new(&fleet);
        host.gpus().cards().await.unwrap().iter().map(|card| card.island).collect()
    };
    assert_eq!(islands(Fleet::a100(4)).await, [0, 0, 0, 0], "by switches");
    assert_eq!(islands(Fleet::of(GpuModel::V100_32, 4).with_bridges(2, 2)).await, [0, 0, 1, 1], "by neighbours");
    assert_eq!(islands(Fleet::of(GpuModel::L40S, 3)).await, [0, 1, 2], "without links");
    let cliques = Fleet::h100(4).with_card(1, |card| card.fabric.as_mut().unwrap().clique = 7);
    assert_eq!(islands(cliques).await, [0, 1, 0, 0], "by cliques");
}

#[tokio::test]
async fn a_card_that_is_missing_after_a_reboot_keeps_its_index() {
    let host = Host::new(&Fleet::h100(4));
    let before = host.gpus().cards().await.unwrap();
    host.faults.lose(1).unwrap();
    host.faults.reboot().unwrap();
    let gpus = host.gpus_of_boot("boot-2");
    let after = gpus.cards().await.unwrap();
    assert_eq!(
        after.iter().map(|card| &card.uuid).collect::<Vec<_>>(),
        before.iter().map(|c| &c.uuid).collect::<Vec<_>>()
    );
    let why = after[1].withheld.clone().expect("the missing card is withheld");
    assert_eq!(why, format!("GPU {} at 0000:2a:00.0 is missing: NVML does not list it", before[1].uuid));
    assert_eq!(state(&gpus, 1).await.withheld, Some(why.clone()));
    assert_eq!(refused(&gpus, 1, CardStep::EnableMig).await, why);
    gpus.take(2, CardStep::EnableMig).await.unwrap();
    assert!(host.faults.fleet().unwrap().cards[2].mig.is_on, "index 2 is still the third card");
    // It is found again.
    host.faults.find(1).unwrap();
    host.faults.reboot().unwrap();
    assert!(host.gpus_of_boot("boot-3").cards().await.unwrap().iter().all(|card| card.withheld.is_none()));
}

#[tokio::test]
async fn another_card_in_the_same_place_takes_the_index() {
    let host = Host::new(&Fleet::h100(3));
    let before = host.gpus().cards().await.unwrap();
    host.faults.change_card(1, |card| card.uuid = "GPU-11111111-2222-3333-4444-555555555555".to_owned()).unwrap();
    let after = host.gpus_of_boot("boot-2").cards().await.unwrap();
    assert_eq!(after.len(), 3);
    assert_eq!((&after[0].uuid, &after[2].uuid), (&before[0].uuid, &before[2].uuid));
    assert!(after[1].uuid.starts_with("GPU-11111111") && after[1].withheld.is_none());
}

#[tokio::test]
async fn an_unknown_model_costs_only_itself() {
    let fleet = Fleet::h100(3).with_card(1, |card| card.name = "NVIDIA RTX PRO 9999".to_owned());
    let host = Host::new(&fleet);
    let gpus = host.gpus();
    let cards = gpus.cards().await.unwrap();
    assert_eq!(cards.len(), 2);
    assert_eq!(cards[1].uuid, fleet.cards[2].uuid);
    state(&gpus, 1).await;
}

#[tokio::test]
async fn a_card_that_hangs_at_the_start_is_withheld_and_comes_back() {
    let host = Host::new(&Fleet::h100(3));
    host.gpus().cards().await.unwrap();
    host.faults.hang(1).unwrap();
    let gpus = host.gpus();
    let cards = gpus.cards().await.unwrap();
    assert_eq!(cards.len(), 3);
    let why = cards[1].withheld.clone().expect("withheld");
    assert!(why.contains("cannot be read: GPU 1 of NVML: the driver does not answer"), "{why}");
    assert!(cards[0].withheld.is_none() && cards[2].withheld.is_none());
    host.faults.lift().unwrap();
    state(&gpus, 1).await;
    assert!(gpus.cards().await.unwrap()[1].withheld.is_none());
}

#[tokio::test]
async fn a_driver_that_is_loaded_anew_needs_no_new_agent() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    gpus.cards().await.unwrap();
    host.faults.reboot().unwrap();
    // The first call finds the driver changed, and the helper ends by it.
    let mut answer = gpus.state(0).await;
    if answer.is_err() {
        answer = gpus.state(0).await;
    }
    answer.unwrap();
}

#[tokio::test]
async fn a_step_never_reaches_another_card_than_was_meant() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    gpus.cards().await.unwrap();
    host.faults.change_card(1, |card| card.uuid = "GPU-11111111-2222-3333-4444-555555555555".to_owned()).unwrap();
    // Whoever looks the card up anew finds another one there.
    kill_helper(&gpus).await;
    let error = gpus.take(1, CardStep::EnableMig).await.unwrap_err().to_string();
    assert!(error.contains("restart the agent to take it over"), "{error}");
    assert!(!host.faults.fleet().unwrap().cards[1].mig.is_on);
    take(&gpus, 0, CardStep::EnableMig).await;
}
