//! Simulated cards keep the rules of real ones.

use muster_agent::gpu::sim::SimGpus;
use muster_agent::gpu::{GpuBackend, GpuError};
use muster_model::GpuModel;
use muster_model::mig::{MigPlacement, MigShape};
use muster_model::node::Gpu;
use muster_model::request::SharingMode;
use muster_runtime::real;

pub(crate) fn gpus(models: &[GpuModel]) -> Vec<Gpu> {
    (0..).zip(models).map(|(index, model)| Gpu::usual("node", index, *model)).collect()
}

fn place(shape: MigShape, start: u8) -> MigPlacement {
    MigPlacement { shape, start }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, GpuError>) {
    assert!(matches!(answer, Err(GpuError::Refused { .. })), "{answer:?}");
}

#[tokio::test]
async fn instances_stand_only_where_the_geometry_lets_them() {
    let gpus = SimGpus::open(gpus(&[GpuModel::H100, GpuModel::T4]), "b", None).expect("new cards");
    refused(gpus.create_instance(0, place(MigShape::G3, 0)).await);
    gpus.set_mig(0, true).await.expect("an empty card");
    let first = gpus.create_instance(0, place(MigShape::G3, 0)).await.expect("room");
    refused(gpus.create_instance(0, place(MigShape::G1, 2)).await);
    refused(gpus.create_instance(0, place(MigShape::G3, 2)).await);
    let again = gpus.create_instance(0, place(MigShape::G3, 0)).await.expect("it stands");
    assert_eq!(first, again, "made once");
    gpus.create_instance(0, place(MigShape::G1, 4)).await.expect("room");
    refused(gpus.set_mig(0, false).await);
    refused(gpus.set_mig(1, true).await);
    assert!(matches!(gpus.set_mig(2, true).await, Err(GpuError::NoCard { card: 2, cards: 2 })));
    gpus.destroy_instance(0, first.place).await.expect("it stands");
    gpus.destroy_instance(0, first.place).await.expect("gone already is as good");
    let anew = gpus.create_instance(0, first.place).await.expect("room again");
    assert_ne!(first.uuid, anew.uuid, "a new instance has a new name");
}

#[tokio::test]
async fn a_card_changes_its_mode_only_when_empty() {
    let gpus = SimGpus::open(gpus(&[GpuModel::H100]), "b", None).expect("new cards");
    gpus.set_busy(0, true);
    refused(gpus.set_mig(0, true).await);
    refused(gpus.start_mps(0).await);
    refused(gpus.set_time_slice(0, true).await);
    gpus.set_busy(0, false);
    gpus.start_mps(0).await.expect("an empty card");
    refused(gpus.set_mig(0, true).await);
    refused(gpus.set_time_slice(0, true).await);
    gpus.stop_mps(0).await.expect("no clients");
    gpus.set_time_slice(0, true).await.expect("an empty card");
    refused(gpus.start_mps(0).await);
    gpus.set_time_slice(0, false).await.expect("an empty card");
    assert_eq!(gpus.state().await.expect("readable")[0].mode, SharingMode::Whole);
}

#[tokio::test]
async fn cards_survive_an_agent_and_not_a_reboot() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let files = real::host("test", dir.path()).files;
    let cards = || gpus(&[GpuModel::A100_80]);
    let first = SimGpus::open(cards(), "boot-1", Some(files.clone())).expect("new cards");
    first.set_mig(0, true).await.expect("an empty card");
    first.create_instance(0, place(MigShape::G2, 2)).await.expect("room");
    let before = first.state().await.expect("readable");
    let second = SimGpus::open(cards(), "boot-1", Some(files.clone())).expect("the same cards");
    assert_eq!(second.state().await.expect("readable"), before);
    let rebooted = SimGpus::open(cards(), "boot-2", Some(files)).expect("cards after a boot");
    assert_eq!(rebooted.state().await.expect("readable")[0].mode, SharingMode::Whole);
}

#[tokio::test]
async fn a_fault_is_told_once_and_changes_nothing() {
    let gpus = SimGpus::open(gpus(&[GpuModel::H100]), "b", None).expect("new cards");
    gpus.fail_next(0, "Xid 79");
    let failed = gpus.set_mig(0, true).await;
    assert!(failed.is_err_and(|error| error.to_string() == "GPU 0: entering MIG mode failed: Xid 79"));
    assert_eq!(gpus.state().await.expect("readable")[0].mode, SharingMode::Whole);
    gpus.set_mig(0, true).await.expect("it has recovered");
}
