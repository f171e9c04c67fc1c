//! Simulated cards keep the rules of real ones.

use muster_agent::gpu::sim::SimGpus;
use muster_agent::gpu::{CardState, GpuBackend, GpuError};
use muster_model::GpuModel;
use muster_model::mig::{MigPlacement, MigShape};
use muster_model::node::Gpu;
use muster_model::request::SharingMode;
use muster_model::sharing::TimeSlice;
use muster_node_core::{CardStep, MpsLimits, MpsStart};
use muster_runtime::real;

const START_MPS: CardStep = CardStep::StartMps(MpsStart {
    limits: MpsLimits { percent: 50, memory_mib: 1_024 },
    user: Some(7),
    for_all: false,
});
const SET_TIME_SLICE: CardStep = CardStep::SetTimeSlice(TimeSlice::Medium);

pub(crate) fn gpus(models: &[GpuModel]) -> Vec<Gpu> {
    (0..).zip(models).map(|(index, model)| Gpu::usual("node", index, *model)).collect()
}

fn place(shape: MigShape, start: u8) -> MigPlacement {
    MigPlacement { shape, start }
}

async fn take(gpus: &SimGpus, card: u16, step: CardStep) {
    gpus.take(card, step).await.expect("the card takes the step");
}

async fn refused(gpus: &SimGpus, card: u16, step: CardStep) {
    let answer = gpus.take(card, step).await;
    assert!(matches!(answer, Err(GpuError::Refused { .. })), "{step}: {answer:?}");
}

async fn state(gpus: &SimGpus, card: u16) -> CardState {
    gpus.state(card).await.expect("readable")
}

#[tokio::test]
async fn instances_stand_only_where_the_geometry_lets_them() {
    let gpus = SimGpus::open(gpus(&[GpuModel::H100, GpuModel::T4]), "b", None).expect("new cards");
    let create = |shape, start| CardStep::CreateInstance(place(shape, start), 1);
    refused(&gpus, 0, create(MigShape::G3, 0)).await;
    take(&gpus, 0, CardStep::EnableMig).await;
    take(&gpus, 0, create(MigShape::G3, 0)).await;
    let first = state(&gpus, 0).await.instances[0].clone();
    refused(&gpus, 0, create(MigShape::G1, 2)).await;
    refused(&gpus, 0, create(MigShape::G3, 2)).await;
    take(&gpus, 0, create(MigShape::G3, 0)).await;
    assert_eq!(state(&gpus, 0).await.instances, std::slice::from_ref(&first), "made once");
    take(&gpus, 0, create(MigShape::G1, 4)).await;
    refused(&gpus, 0, CardStep::DisableMig).await;
    refused(&gpus, 1, CardStep::EnableMig).await;
    let missing = gpus.take(2, CardStep::EnableMig).await;
    assert!(matches!(missing, Err(GpuError::NoCard { card: 2, cards: 2 })));
    take(&gpus, 0, CardStep::DestroyInstance(first.place)).await;
    take(&gpus, 0, CardStep::DestroyInstance(first.place)).await;
    take(&gpus, 0, CardStep::CreateInstance(first.place, 1)).await;
    assert_ne!(first.uuids, state(&gpus, 0).await.instances[0].uuids, "a new instance has a new name");
}

#[tokio::test]
async fn a_card_changes_its_mode_only_when_empty() {
    let gpus = SimGpus::open(gpus(&[GpuModel::H100]), "b", None).expect("new cards");
    gpus.set_busy(0, true);
    for step in [CardStep::EnableMig, START_MPS, SET_TIME_SLICE] {
        refused(&gpus, 0, step).await;
    }
    gpus.set_busy(0, false);
    take(&gpus, 0, START_MPS).await;
    refused(&gpus, 0, CardStep::EnableMig).await;
    refused(&gpus, 0, SET_TIME_SLICE).await;
    let more = MpsLimits { percent: 60, memory_mib: 2_048 };
    assert_eq!(state(&gpus, 0).await.mps_user, Some(7));
    take(&gpus, 0, CardStep::SetMpsLimits(more)).await;
    assert_eq!(state(&gpus, 0).await.mps_limits, Some(more));
    take(&gpus, 0, CardStep::StopMps).await;
    refused(&gpus, 0, CardStep::SetMpsLimits(more)).await;
    take(&gpus, 0, SET_TIME_SLICE).await;
    refused(&gpus, 0, START_MPS).await;
    take(&gpus, 0, CardStep::ClearTimeSlice).await;
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::Whole);
}

#[tokio::test]
async fn cards_survive_an_agent_and_not_a_reboot() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let files = real::host("test", dir.path()).files;
    let cards = || gpus(&[GpuModel::A100_80]);
    let first = SimGpus::open(cards(), "boot-1", Some(files.clone())).expect("new cards");
    take(&first, 0, CardStep::EnableMig).await;
    take(&first, 0, CardStep::CreateInstance(place(MigShape::G2, 2), 1)).await;
    let before = state(&first, 0).await;
    let second = SimGpus::open(cards(), "boot-1", Some(files.clone())).expect("the same cards");
    assert_eq!(state(&second, 0).await, before);
    let rebooted = SimGpus::open(cards(), "boot-2", Some(files)).expect("cards after a boot");
    assert_eq!(state(&rebooted, 0).await.mode, SharingMode::Whole);
}

#[tokio::test]
async fn a_fault_is_told_once_and_changes_nothing() {
    let gpus = SimGpus::open(gpus(&[GpuModel::H100]), "b", None).expect("new cards");
    gpus.fail_next(0, "Xid 79");
    let failed = gpus.take(0, CardStep::EnableMig).await;
    assert!(failed.is_err_and(|error| error.to_string() == "GPU 0: entering MIG mode failed: Xid 79"));
    assert_eq!(state(&gpus, 0).await.mode, SharingMode::Whole);
    take(&gpus, 0, CardStep::EnableMig).await;
}
