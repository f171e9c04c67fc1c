//! What the driver tells by itself, and who uses a card.

use crate::host::{BOOT, Host, create, kill_helper, place, state, take};
use futures::StreamExt;
use futures::stream::BoxStream;
use muster_agent::gpu::sim::SimGpus;
use muster_agent::gpu::{GpuBackend, GpuProcess};
use muster_gpu_double::{Fleet, Process, ProcessKind};
use muster_model::GpuModel;
use muster_model::mig::MigShape::{G1, G3};
use muster_model::node::Gpu;
use muster_node_core::health::{HealthEvent, Instance, RecoveryAction, XidEvent, XidSource};
use std::time::Duration;
use tokio::time::timeout;

type Events = BoxStream<'static, (u16, HealthEvent)>;

async fn next(events: &mut Events) -> (u16, HealthEvent) {
    timeout(Duration::from_secs(10), events.next()).await.expect("an event within 10 s").expect("the stream goes on")
}

async fn nothing_more(events: &mut Events) {
    assert!(timeout(Duration::from_millis(300), events.next()).await.is_err(), "told once");
}

#[tokio::test]
async fn an_xid_is_told_once_with_its_slice() {
    let host = Host::new(&Fleet::h100(2).with_mig());
    let gpus = host.gpus();
    let mut events = gpus.events();
    gpus.cards().await.unwrap();
    take(&gpus, 1, create(G1, 0)).await;
    take(&gpus, 1, create(G3, 4)).await;
    let instance = host.faults.fleet().unwrap().cards[1].mig.instances.iter().find(|one| one.start == 4).unwrap().id;
    host.faults.xid(1, Some(instance), Some(0), 94).unwrap();
    let (card, HealthEvent::Xid(XidEvent { xid, instance: told, source, at_ms, .. })) = next(&mut events).await else {
        panic!("no Xid")
    };
    assert_eq!((card, xid.0, source), (1, 94, XidSource::Nvml));
    assert_eq!(told, Some(Instance { id: instance as u8, place: Some(place(G3, 4)) }));
    assert!(at_ms > 1_600_000_000_000);
    nothing_more(&mut events).await;
    host.faults.xid(0, None, None, 79).unwrap();
    let (card, event) = next(&mut events).await;
    assert!(matches!(event, HealthEvent::Xid(XidEvent { instance: None, .. })) && card == 0, "{event:?}");
}

#[tokio::test]
async fn a_recovery_action_is_told_and_can_be_asked_for() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    let mut events = gpus.events();
    assert_eq!(gpus.read_recovery_action(0).await.unwrap(), RecoveryAction::None);
    host.faults.change_card(0, |card| card.health.recovery_action = 4).unwrap();
    host.faults.event(0, 32_768, 0).unwrap();
    assert_eq!(next(&mut events).await, (0, HealthEvent::RecoveryAction(RecoveryAction::DrainAndReset)));
    assert_eq!(gpus.read_recovery_action(0).await.unwrap(), RecoveryAction::DrainAndReset);
}

#[tokio::test]
async fn a_lost_card_hides_no_event_of_another() {
    let host = Host::new(&Fleet::h100(2));
    let gpus = host.gpus();
    let mut events = gpus.events();
    gpus.cards().await.unwrap();
    state(&gpus, 0).await;
    state(&gpus, 1).await;
    host.faults.lose(0).unwrap();
    assert_eq!(next(&mut events).await, (0, HealthEvent::Lost));
    host.faults.xid(1, None, None, 48).unwrap();
    assert!(matches!(next(&mut events).await, (1, HealthEvent::Xid(_))));
    nothing_more(&mut events).await;
    let error = gpus.state(0).await.unwrap_err().to_string();
    assert!(error.contains("GPU is lost"), "{error}");
}

#[tokio::test]
async fn events_go_on_after_the_helper_has_died() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    let mut events = gpus.events();
    state(&gpus, 0).await;
    kill_helper(&gpus).await;
    // Nobody asks anything: the backend starts another helper by itself, which asks for the events.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        host.faults.xid(0, None, None, 31).unwrap();
        if let Ok(Some((card, event))) = timeout(Duration::from_millis(50), events.next()).await {
            assert!(matches!(event, HealthEvent::Xid(_)) && card == 0);
            return;
        }
    }
    panic!("no event after the helper has died");
}

#[tokio::test]
async fn the_stream_ends_with_the_backend() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    let mut events = gpus.events();
    state(&gpus, 0).await;
    let pid = gpus.helper_pid().unwrap();
    drop(gpus);
    assert_eq!(timeout(Duration::from_secs(5), events.next()).await.expect("it ends"), None);
    crate::host::until("the helper has gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    })
    .await;
}

#[tokio::test]
async fn processes_are_listed_with_their_slices() {
    let host = Host::new(&Fleet::h100(2).with_mig());
    let gpus = host.gpus();
    take(&gpus, 0, create(G3, 4)).await;
    let instance = Some(host.faults.fleet().unwrap().cards[0].mig.instances[0].id);
    let process = |pid, kind, mib: u64, gpu_instance: Option<u32>| {
        let compute_instance = gpu_instance.map(|_| 0);
        Process { pid, kind, memory_bytes: mib << 20, gpu_instance, compute_instance, ..Process::default() }
    };
    host.faults.add_process(0, process(70, ProcessKind::Compute, 100, instance)).unwrap();
    host.faults.add_process(0, process(71, ProcessKind::Mps, 200, instance)).unwrap();
    host.faults.add_process(1, process(72, ProcessKind::Graphics, 300, None)).unwrap();
    host.faults.add_process(1, process(72, ProcessKind::Compute, 400, None)).unwrap();
    let held = Some(place(G3, 4));
    let listed = |pid, place, mib| GpuProcess { pid, place, used_mib: Some(mib) };
    assert_eq!(gpus.processes(0).await.unwrap(), [listed(70, held, 100), listed(71, held, 200)]);
    assert_eq!(gpus.processes(1).await.unwrap(), [listed(72, None, 400)], "one process, its larger account");
    // Many of them.
    for pid in 1_000..1_150 {
        host.faults.add_process(1, process(pid, ProcessKind::Compute, 1, None)).unwrap();
    }
    assert_eq!(gpus.processes(1).await.unwrap().len(), 151);
}

#[tokio::test]
async fn simulated_cards_tell_what_they_are_told_to() {
    let gpus = SimGpus::open(vec![Gpu::usual("node", 0, GpuModel::H100)], BOOT, None).unwrap();
    let mut events = gpus.events();
    gpus.tell(0, HealthEvent::Lost);
    gpus.tell(0, HealthEvent::Slowdown(true));
    assert_eq!(next(&mut events).await, (0, HealthEvent::Lost));
    assert_eq!(next(&mut events).await, (0, HealthEvent::Slowdown(true)));
    assert_eq!(gpus.processes(0).await.unwrap(), []);
}
