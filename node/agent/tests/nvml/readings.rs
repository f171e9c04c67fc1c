//! What cards tell of their health when they are asked, and what the agent makes of it.

use crate::host::{Host, kill_helper};
use crate::node::Node;
use muster_agent::HealthMode;
use muster_gpu_double::Fleet;
use std::time::Duration;

async fn node(host: &Host) -> Node {
    let node = Node::start(host, HealthMode::Enforce).await;
    node.until_nothing_is_withheld().await;
    rounds().await;
    node
}

/// Several rounds of readings.
async fn rounds() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

#[tokio::test]
async fn a_row_to_be_remapped_withholds_until_it_is() {
    let host = Host::new(&Fleet::h100(2));
    let node = node(&host).await;
    host.faults.change_card(0, |card| card.health.rows.is_pending = true).unwrap();
    node.until_withheld("0: a memory row is to be remapped").await;
    assert_eq!(node.withheld().len(), 1);
    // As after a reset.
    host.faults.change_card(0, |card| card.health.after_reset()).unwrap();
    node.until_nothing_is_withheld().await;
}

#[tokio::test]
async fn a_row_that_cannot_be_remapped_stays_for_inspection() {
    let host = Host::new(&Fleet::h100(1));
    let first = node(&host).await;
    host.faults.change_card(0, |card| card.health.rows.has_failed = true).unwrap();
    first.until_withheld("0: a memory row could not be remapped").await;
    let why = first.withheld().remove(0);
    assert!(why.contains("clear-gpu") || why.contains("operator"), "{why}");
    first.agent.stop().await.unwrap();
    // Neither a restart nor a good reading lifts it.
    host.faults.change_card(0, |card| card.health.rows.has_failed = false).unwrap();
    let second = Node::start(&host, HealthMode::Enforce).await;
    rounds().await;
    second.until_withheld("could not be remapped").await;
}

#[tokio::test]
async fn double_bit_errors_withhold_until_a_reset() {
    let host = Host::new(&Fleet::h100(1));
    let node = node(&host).await;
    host.faults.change_card(0, |card| card.health.ecc_volatile.uncorrected = 2).unwrap();
    node.until_withheld("2 uncorrectable (double-bit) memory errors").await;
}

#[tokio::test]
async fn a_link_that_was_up_once_is_missed_when_it_is_down() {
    let host = Host::new(&Fleet::h100(2));
    let first = node(&host).await;
    let set = |is_active| {
        host.faults.change_card(1, |card| card.links.iter_mut().take(2).for_each(|link| link.is_active = is_active))
    };
    set(false).unwrap();
    first.until_withheld("1: 2 NVLinks are down").await;
    first.agent.stop().await.unwrap();
    // An agent that starts now knows that they were up.
    let second = Node::start(&host, HealthMode::Enforce).await;
    rounds().await;
    second.until_withheld("2 NVLinks are down").await;
    set(true).unwrap();
    second.until_nothing_is_withheld().await;
}

#[tokio::test]
async fn links_are_not_judged_in_mig_mode() {
    let host = Host::new(&Fleet::h100(1));
    let node = node(&host).await;
    rounds().await;
    host.faults
        .change_card(0, |card| {
            (card.mig.is_on, card.mig.is_on_pending) = (true, true);
            card.links.iter_mut().for_each(|link| link.is_active = false);
        })
        .unwrap();
    rounds().await;
    assert_eq!(node.withheld(), Vec::<String>::new());
}

/// Six slow minutes of ten: the test's clock goes on by a minute at a time.
#[tokio::test]
async fn lowered_clocks_count_by_minutes() {
    let host = Host::new(&Fleet::h100(1));
    let node = node(&host).await;
    // The power cap of the software is no slowdown.
    host.faults.change_card(0, |card| card.gauges.clocks_event_reasons = 0x4).unwrap();
    for _ in 0..8 {
        node.put_forward(Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(node.withheld(), Vec::<String>::new());
    host.faults.change_card(0, |card| card.gauges.clocks_event_reasons = 0x80).unwrap();
    for minute in 0..5 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        // The fifth may be the sixth: real time goes on too, and may pass from one minute to the next meanwhile.
        if minute < 4 {
            assert_eq!(node.withheld(), Vec::<String>::new(), "after {minute} slow minutes");
        }
        node.put_forward(Duration::from_secs(60));
    }
    node.until_withheld("clocks were lowered for heat or power in six of ten minutes").await;
    host.faults.change_card(0, |card| card.gauges.clocks_event_reasons = 1).unwrap();
    for _ in 0..12 {
        node.put_forward(Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    node.until_nothing_is_withheld().await;
}

#[tokio::test]
async fn observing_withholds_nothing() {
    let host = Host::new(&Fleet::h100(1));
    let node = Node::start(&host, HealthMode::ObserveOnly).await;
    host.faults.change_card(0, |card| card.health.rows.has_failed = true).unwrap();
    let ledger = host.folder.path().join("node/files/gpu-health.json");
    node.until("the ledger has it", |_| {
        std::fs::read_to_string(&ledger).is_ok_and(|text| text.contains("could not be remapped"))
    })
    .await;
    assert_eq!(node.withheld(), Vec::<String>::new());
}

#[tokio::test]
async fn an_xid_has_its_card_read_at_once() {
    let host = Host::new(&Fleet::h100(1));
    // Nobody reads by himself for an hour.
    let gpus = host.gpus().polled_every(Duration::from_secs(3_600), Duration::from_secs(3_600));
    let node = Node::start_with(&host, HealthMode::Enforce, gpus).await;
    rounds().await;
    host.faults.change_card(0, |card| card.health.rows.is_pending = true).unwrap();
    rounds().await;
    assert_eq!(node.withheld(), Vec::<String>::new());
    // A fault of the program: the card is not to blame for it, and is looked at.
    host.faults.xid(0, None, None, 31).unwrap();
    node.until_withheld("a memory row is to be remapped").await;
}

#[tokio::test]
async fn a_card_that_hangs_is_withheld_until_it_answers() {
    let host = Host::new(&Fleet::h100(2));
    let node = node(&host).await;
    host.faults.hang(0).unwrap();
    node.until_withheld("0: the driver does not answer").await;
    assert_eq!(node.withheld().len(), 1, "the other card is read: {:?}", node.withheld());
    host.faults.lift().unwrap();
    node.until_nothing_is_withheld().await;
}

#[tokio::test]
async fn a_lost_card_is_told_of_and_a_dead_helper_is_no_fault_of_a_card() {
    let host = Host::new(&Fleet::h100(2));
    let node = node(&host).await;
    kill_helper(&node.gpus).await;
    rounds().await;
    assert_eq!(node.withheld(), Vec::<String>::new());
    host.faults.lose(1).unwrap();
    node.until_withheld("1: ").await;
    node.until("one card alone", |node| node.withheld().iter().all(|why| why.starts_with("1: "))).await;
}
