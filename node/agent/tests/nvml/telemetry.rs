//! Telemetry of cards and slices: what is sampled, kept and shown, and what is not.

use crate::host::{Host, create, destroy, kill_helper, place, take};
use crate::node::Node;
use muster_agent::HealthMode;
use muster_agent::gpu::GpuBackend;
use muster_gpu_double::{Fleet, Load};
use muster_model::GpuModel;
use muster_model::ids::AllocationId;
use muster_model::mig::MigShape::{G1, G3};
use muster_model::task::HoldMode;
use muster_node_core::telemetry::{Figure, HoldState};
use std::collections::BTreeSet;
use std::time::Duration;

/// Two samples are at least so far apart.
const APART: Duration = Duration::from_millis(120);

fn load(host: &Host, slot: u32, start: Option<u32>, percent: f64) {
    let busy = Load { tensor_percent: 25.0, nvlink_tx_mib_s: 2.0, ..Load::of_kernels(percent) };
    host.faults
        .change_card(slot, |card| match start {
            None => card.gauges.load = busy,
            Some(start) => {
                card.mig.instances.iter_mut().filter(|one| one.start == start).for_each(|one| one.load = busy)
            }
        })
        .expect("the load is set");
}

/// The lines of a metric.
fn lines<'a>(page: &'a str, metric: &str) -> Vec<&'a str> {
    page.lines().filter(|line| line.starts_with(&format!("{metric}{{"))).collect()
}

#[tokio::test]
async fn a_card_tells_what_it_has_and_nothing_else() {
    let host = Host::new(&Fleet::h100(1));
    let gpus = host.gpus();
    load(&host, 0, None, 80.0);
    host.faults.change_card(0, |card| card.gauges.power_mw = 412_500).unwrap();
    let first = gpus.sample(0).await.unwrap();
    assert_eq!(first.figures.get(Figure::SmActive), None, "a mean needs two samples");
    tokio::time::sleep(APART).await;
    let sample = gpus.sample(0).await.unwrap();
    let told = |figure| sample.figures.get(figure);
    assert_eq!(told(Figure::Power), Some(412.5));
    assert_eq!(told(Figure::SmActive), Some(0.8));
    assert_eq!(told(Figure::TensorActive), Some(0.25));
    assert_eq!(told(Figure::NvlinkSent), Some(2_097_152.0), "bytes, not MiB");
    assert_eq!(told(Figure::GpuUtil), Some(80.0));
    assert_eq!(told(Figure::LinksUp), Some(18.0));
    assert_eq!(told(Figure::RowRemapPending), Some(0.0));
    assert_eq!(told(Figure::EncoderUtil), None, "this driver does not tell");
    assert_eq!((sample.pci_bus_id.as_str(), sample.minor), ("00000000:17:00.0", 0));
    assert!(told(Figure::Energy) >= first.figures.get(Figure::Energy) && sample.dropped == 0);
    // Older than Hopper: no GPM, and no rows before Ampere.
    let host = Host::new(&Fleet::of(GpuModel::T4, 1));
    let gpus = host.gpus();
    for _ in 0..2 {
        let figures = gpus.sample(0).await.unwrap().figures;
        assert_eq!((figures.get(Figure::SmActive), figures.get(Figure::RowRemapPending)), (None, None));
        assert_eq!((figures.get(Figure::GpuUtil), figures.get(Figure::LinksUp)), (Some(0.0), None));
        tokio::time::sleep(APART).await;
    }
}

#[tokio::test]
async fn a_sensor_that_fails_is_absent_and_one_that_lies_is_dropped() {
    let host = Host::new(&Fleet::h100(1));
    host.faults.fail(Some(0), "nvmlDeviceGetPowerUsage", muster_gpu_double::Refusal::Unknown).unwrap();
    host.faults.change_card(0, |card| card.gauges.temperature_c = u32::MAX).unwrap();
    let sample = host.gpus().sample(0).await.unwrap();
    assert_eq!(sample.figures.get(Figure::Power), None);
    assert_eq!((sample.figures.get(Figure::Temperature), sample.dropped), (None, 1));
    assert_eq!(sample.figures.get(Figure::SmClock), Some(345.0));
}

#[tokio::test]
async fn slices_tell_for_themselves() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpus = host.gpus();
    take(&gpus, 0, create(G1, 0)).await;
    take(&gpus, 0, create(G3, 4)).await;
    load(&host, 0, Some(4), 60.0);
    gpus.sample(0).await.unwrap();
    tokio::time::sleep(APART).await;
    let sample = gpus.sample(0).await.unwrap();
    assert_eq!(sample.figures.get(Figure::GpuUtil), None, "not told in MIG mode");
    assert_eq!(sample.figures.get(Figure::RowRemapPending), None, "not told with instances");
    assert_eq!(sample.figures.get(Figure::SmActive), None, "activity is that of the slices");
    assert!(sample.figures.get(Figure::Power).is_some());
    let of = |start| sample.instances.iter().find(|one| one.place.is_some_and(|place| place.start == start)).unwrap();
    assert_eq!(of(4).figures.get(Figure::SmActive), Some(0.6));
    assert_eq!(of(0).figures.get(Figure::SmActive), Some(0.0), "an idle slice is told to be idle");
    assert_eq!(of(0).figures.get(Figure::Power), None, "a slice has no power of its own");
    assert!(of(4).figures.get(Figure::MemoryFree) > of(0).figures.get(Figure::MemoryFree));
}

#[tokio::test]
async fn a_slice_with_the_id_of_an_earlier_one_is_another_one() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpus = host.gpus();
    take(&gpus, 0, create(G3, 4)).await;
    load(&host, 0, Some(4), 90.0);
    let before = gpus.sample(0).await.unwrap().instances.remove(0);
    take(&gpus, 0, destroy(G3, 4)).await;
    take(&gpus, 0, create(G3, 4)).await;
    tokio::time::sleep(APART).await;
    let after = gpus.sample(0).await.unwrap().instances.remove(0);
    assert_eq!(after.id, before.id, "the double gives ids again");
    assert_ne!(after.uuid, before.uuid);
    assert_eq!(after.figures.get(Figure::SmActive), None, "no mean with a sample of the earlier one");
    tokio::time::sleep(APART).await;
    let next = gpus.sample(0).await.unwrap().instances.remove(0);
    assert_eq!(next.figures.get(Figure::SmActive), Some(0.0));
}

#[tokio::test]
async fn no_series_of_a_slice_outlives_it() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let setting = host.gpus();
    take(&setting, 0, create(G1, 0)).await;
    take(&setting, 0, create(G3, 4)).await;
    let node = Node::start(&host, HealthMode::Enforce).await;
    node.hold(7, 0, HoldMode::Mig(place(G3, 4)));
    load(&host, 0, Some(4), 50.0);
    // The agent may have sampled just now, before the load.
    tokio::time::sleep(APART).await;
    node.sample().await;
    tokio::time::sleep(APART).await;
    node.sample().await;
    let page = node.page(true);
    let memory = lines(&page, "DCGM_FI_DEV_FB_FREE");
    assert_eq!(memory.len(), 3, "the card and two slices: {memory:?}");
    let active = lines(&page, "DCGM_FI_PROF_SM_ACTIVE");
    assert_eq!(active.len(), 2, "{active:?}");
    let held = active.iter().find(|line| line.contains("3g.40gb")).expect("the held slice");
    assert!(held.contains("GPU_I_PROFILE=\"3g.40gb\",GPU_I_ID=\"") && held.ends_with(" 0.5"), "{held}");
    assert!(held.contains("muster_job=\"107\",muster_allocation=\"7\""), "{held}");
    assert!(held.contains("muster_tenant=\"research/\\\"vision\\\"\""), "{held}");
    let other = active.iter().find(|line| line.contains("1g.10gb")).expect("the free slice");
    assert!(!other.contains("muster_"), "{other}");
    assert!(!memory[0].contains("GPU_I_ID") && !memory[0].contains("muster_"), "a card in MIG mode has no holder");
    // Destroyed between two samples.
    take(&node.gpus, 0, destroy(G1, 0)).await;
    node.sample().await;
    let page = node.page(false);
    assert!(!page.contains("1g.10gb") && page.contains("3g.40gb"), "{page}");
    assert!(
        !page.contains("muster_tenant") && page.contains("muster_job=\"107\""),
        "names only where they may be shown"
    );
    // What was sampled is still there for whoever reads the samples.
    let samples = node.agent.telemetry().since(0);
    let uuids: BTreeSet<_> = samples.iter().filter_map(|sample| sample.series.instance.clone()).collect();
    assert_eq!(uuids.len(), 2);
    // The agent samples once when it starts.
    assert_eq!(samples.len(), 3 * 3 + 2);
    let before_last = samples[samples.len() - 3].at_ms;
    assert_eq!(node.agent.telemetry().since(before_last).len(), 2, "a reader goes on where it stopped");
}

#[tokio::test]
async fn an_allocation_runs_idles_and_is_cleaned() {
    let host = Host::new(&Fleet::h100(2));
    let node = Node::start(&host, HealthMode::ObserveOnly).await;
    node.hold(1, 0, HoldMode::Whole);
    node.hold(2, 1, HoldMode::TimeSlice { memory_mib: 1 });
    node.hold(3, 1, HoldMode::TimeSlice { memory_mib: 1 });
    load(&host, 0, None, 10.0);
    load(&host, 1, None, 10.0);
    node.sample().await;
    let state = |allocation| node.agent.telemetry().hold_state(AllocationId(allocation));
    assert_eq!(state(1), Some(HoldState::Run));
    assert_eq!(state(2), Some(HoldState::Idle), "the driver lists no process of it on the shared card");
    let page = node.page(true);
    assert!(page.contains("muster_allocation=\"1\",state=\"run\"} 1"), "{page}");
    let utilization = lines(&page, "DCGM_FI_DEV_GPU_UTIL");
    assert!(utilization[0].contains("muster_allocation=\"1\""), "{utilization:?}");
    assert!(!utilization[1].contains("muster_allocation"), "two hold it: {utilization:?}");
    load(&host, 0, None, 0.0);
    tokio::time::sleep(APART).await;
    node.sample().await;
    tokio::time::sleep(APART).await;
    node.sample().await;
    assert_eq!(state(1), Some(HoldState::Idle));
    node.kill(1);
    // The reconciler says the same of what it cleans, which is nothing here: it may say so in between.
    for _ in 0..50 {
        node.agent.telemetry().set_cleaning(BTreeSet::from([AllocationId(1)]));
        node.sample().await;
        if state(1) == Some(HoldState::Clean) {
            break;
        }
    }
    assert_eq!(state(1), Some(HoldState::Clean));
    assert_eq!(state(4), None);
}

#[tokio::test]
async fn a_card_that_hangs_costs_no_other_and_no_step_of_its_own() {
    let host = Host::new(&Fleet::h100(2).with_mig());
    let node = Node::start(&host, HealthMode::Enforce).await;
    node.sample().await;
    // A call of the telemetry alone hangs.
    host.faults.hang_function("nvmlDeviceGetPowerUsage").unwrap();
    let telemetry = node.agent.telemetry();
    let sampling = tokio::spawn(async move { telemetry.sample().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let step = tokio::time::timeout(Duration::from_secs(2), node.gpus.take(0, create(G3, 4))).await;
    assert!(matches!(step, Ok(Ok(()))), "a step does not wait for telemetry: {step:?}");
    host.faults.lift().unwrap();
    sampling.await.unwrap();
    // One card hangs altogether: the other is sampled, and the one has no figures instead of old ones.
    host.faults.hang(0).unwrap();
    // A helper that was killed for its hanging call may still be coming up.
    let page = sampled(&node, "gpu=\"1\"").await;
    assert!(!page.contains("gpu=\"0\""), "{page}");
    host.faults.lift().unwrap();
    sampled(&node, "gpu=\"0\"").await;
}

/// The page of the first sample of a few that has this.
async fn sampled(node: &Node, what: &str) -> String {
    let mut page = String::new();
    for _ in 0..10 {
        node.sample().await;
        page = node.page(false);
        if page.contains(what) {
            return page;
        }
    }
    panic!("{what} is not sampled: {page}");
}

#[tokio::test]
async fn a_lost_card_and_a_dead_helper_tell_nothing() {
    let host = Host::new(&Fleet::h100(2));
    let node = Node::start(&host, HealthMode::Enforce).await;
    node.sample().await;
    host.faults.lose(0).unwrap();
    node.sample().await;
    let page = node.page(false);
    assert!(!page.contains("gpu=\"0\"") && page.contains("gpu=\"1\""), "{page}");
    kill_helper(&node.gpus).await;
    // Another helper has no earlier sample: activity comes back with the second one.
    node.sample().await;
    tokio::time::sleep(APART).await;
    node.sample().await;
    let page = node.page(false);
    assert_eq!(lines(&page, "DCGM_FI_PROF_SM_ACTIVE").len(), 1, "{page}");
}
