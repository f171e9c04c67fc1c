//! One list of checks, for the double and for real cards: what holds of one must hold of the other.
//!
//! On a host with cards: `MUSTER_REAL_NVML=1 cargo test -p muster-agent --test nvml conformance -- --nocapture`. Only checks that read are made there.

use crate::host::{BOOT, Host, create, place};
use futures::future::{BoxFuture, FutureExt};
use muster_agent::gpu::GpuBackend;
use muster_agent::gpu::nvml::{NvmlConfig, NvmlGpus};
use muster_gpu_double::Fleet;
use muster_model::mig::MigShape;
use muster_model::request::SharingMode;
use muster_node_core::CardStep;
use muster_node_core::telemetry::Figure;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

type Outcome = Result<(), String>;

struct Check {
    name: &'static str,
    /// Whether it leaves the cards as they are.
    reads_only: bool,
    run: for<'a> fn(&'a NvmlGpus) -> BoxFuture<'a, Outcome>,
}

/// A check, from its name and body; what a call refuses is the outcome.
macro_rules! check {
    ($reads_only:expr, $name:expr, |$gpus:ident| $body:block) => {
        Check { name: $name, reads_only: $reads_only, run: |$gpus: &NvmlGpus| async move { $body }.boxed() }
    };
}

fn ensure(holds: bool, otherwise: impl std::fmt::Debug) -> Outcome {
    if holds { Ok(()) } else { Err(format!("{otherwise:?}")) }
}

fn words<T>(answer: Result<T, muster_agent::gpu::GpuError>) -> Result<T, String> {
    answer.map_err(|error| error.to_string())
}

fn checks() -> Vec<Check> {
    vec![
        check!(true, "the driver and CUDA have versions", |gpus| {
            let host = words(gpus.host().await)?;
            let numbers = |text: &str| text.split('.').all(|part| part.parse::<u32>().is_ok());
            ensure(numbers(&host.version) && numbers(&host.cuda) && host.version.matches('.').count() >= 1, host)
        }),
        check!(true, "every card has a UUID of its own, a known model, and its memory", |gpus| {
            let cards = words(gpus.cards().await)?;
            let uuids: BTreeSet<_> = cards.iter().map(|card| card.uuid.clone()).collect();
            let is_sound = |card: &muster_model::node::Gpu| {
                let sheet = card.model.memory_mib();
                card.uuid.starts_with("GPU-") && card.uuid.len() == 40 && card.memory_mib.abs_diff(sheet) * 10 <= sheet
            };
            ensure(!cards.is_empty() && uuids.len() == cards.len() && cards.iter().all(is_sound), cards)
        }),
        check!(true, "cards keep their indexes when they are listed again", |gpus| {
            let (one, other) = (words(gpus.cards().await)?, words(gpus.cards().await)?);
            ensure(one == other, (one, other))
        }),
        check!(true, "islands are numbered from 0 in the order of their first cards", |gpus| {
            let islands: Vec<u8> = words(gpus.cards().await)?.iter().map(|card| card.island).collect();
            let mut next = 0;
            let in_order = islands.iter().all(|island| {
                next = next.max(island + u8::from(*island == next));
                *island < next
            });
            ensure(in_order, islands)
        }),
        check!(true, "a card says the same of itself as the list", |gpus| {
            for (index, card) in (0..).zip(words(gpus.cards().await)?) {
                let state = words(gpus.state(index).await)?;
                ensure((&state.uuid, state.model) == (&card.uuid, card.model), state)?;
            }
            Ok(())
        }),
        check!(true, "what stands on a card is legal, and in MIG mode only", |gpus| {
            for (index, card) in (0..).zip(words(gpus.cards().await)?) {
                let state = words(gpus.state(index).await)?;
                ensure(state.mode == SharingMode::Mig || state.instances.is_empty(), &state)?;
                let places: Vec<_> = state.instances.iter().map(|one| one.place).collect();
                for (at, one) in places.iter().enumerate() {
                    let family = card.model.facts().mig.ok_or("instances on a card without MIG")?;
                    ensure(muster_model::mig::can_stand(family, &places[..at], *one), &places)?;
                }
            }
            Ok(())
        }),
        check!(true, "processes are listed with what they hold", |gpus| {
            for (index, card) in (0..).zip(words(gpus.cards().await)?) {
                let listed = words(gpus.processes(index).await)?;
                let fits =
                    listed.iter().all(|one| one.pid > 0 && one.used_mib.is_none_or(|mib| mib <= card.memory_mib));
                ensure(fits, listed)?;
            }
            Ok(())
        }),
        check!(true, "a healthy card asks for no recovery action, or its driver does not tell", |gpus| {
            let action = gpus.read_recovery_action(0).await.map_err(|error| error.to_string());
            let is_none = |action: &muster_node_core::health::RecoveryAction| action.code() == 0;
            ensure(action.as_ref().map_or_else(|why| why.contains("does not tell"), is_none), action)
        }),
        check!(true, "an index beyond the cards is no card", |gpus| {
            ensure(gpus.state(9_999).await.is_err(), "a state")
        }),
        check!(false, "an instance stands where it was made, and goes", |gpus| {
            words(gpus.take(0, CardStep::EnableMig).await)?;
            words(gpus.take(0, create(MigShape::G2, 2)).await)?;
            let made = words(gpus.state(0).await)?.instances;
            ensure(
                made.len() == 1 && made[0].place == place(MigShape::G2, 2) && made[0].uuids[0].starts_with("MIG-"),
                made,
            )?;
            let slices = words(gpus.slices_memory(0).await)?;
            ensure(slices.len() == 1 && slices[0].place == place(MigShape::G2, 2) && slices[0].used_mib == 0, slices)?;
            words(gpus.take(0, CardStep::DestroyInstance(place(MigShape::G2, 2))).await)?;
            words(gpus.take(0, CardStep::DisableMig).await)?;
            ensure(words(gpus.state(0).await)?.mode == SharingMode::Whole, "still in MIG mode")
        }),
    ]
}

/// What the agent reads again and again.
fn readings() -> Vec<Check> {
    vec![
        check!(true, "no more memory is in use than a card has", |gpus| {
            for (index, card) in (0..).zip(words(gpus.cards().await)?) {
                let used_mib = words(gpus.memory_used(index, None).await)?;
                ensure(used_mib.is_some_and(|used_mib| used_mib <= card.memory_mib), used_mib)?;
            }
            Ok(())
        }),
        check!(true, "what stands on a card tells its memory", |gpus| {
            for (index, _) in (0..).zip(words(gpus.cards().await)?) {
                let (state, slices) = (words(gpus.state(index).await)?, words(gpus.slices_memory(index).await)?);
                let places: BTreeSet<_> = state.instances.iter().map(|one| one.place).collect();
                let told: BTreeSet<_> = slices.iter().map(|slice| slice.place).collect();
                let fits = slices.iter().all(|slice| slice.total_mib > 0 && slice.used_mib <= slice.total_mib);
                ensure(places == told && fits, (state, slices))?;
            }
            Ok(())
        }),
        check!(true, "telemetry names the card, and has figures that can be true", |gpus| {
            for (index, _) in (0..).zip(words(gpus.cards().await)?) {
                let sample = words(gpus.sample(index).await)?;
                let has_memory = sample.figures.get(Figure::MemoryUsed).is_some();
                ensure(has_memory && sample.dropped == 0 && sample.pci_bus_id.len() == 16, sample)?;
            }
            Ok(())
        }),
        check!(true, "remapped rows are told, or the card is in MIG mode or has none", |gpus| {
            for (index, card) in (0..).zip(words(gpus.cards().await)?) {
                let (readings, mode) = (words(gpus.readings(index).await)?, words(gpus.state(index).await)?.mode);
                let is_old = card.model.facts().mig.is_none();
                ensure(readings.rows.is_some() || mode == SharingMode::Mig || is_old, readings)?;
            }
            Ok(())
        }),
        check!(true, "two cards reach each other alike from both sides", |gpus| {
            let links = words(gpus.node_links().await)?.ok_or("no links are told")?;
            let (cards, width) = (usize::from(links.gpus), usize::from(links.gpus) + links.nics.len());
            let code = |from: usize, to: usize| links.matrix.get(from * width + to).copied();
            let alike = (0..cards).all(|one| (0..cards).all(|other| code(one, other) == code(other, one)));
            ensure(links.matrix.len() == cards * width && alike, links)
        }),
        check!(true, "a card has its device nodes, and none that configures MIG", |gpus| {
            for (index, _) in (0..).zip(words(gpus.cards().await)?) {
                let nodes = words(gpus.device_nodes(index, None))?;
                let has = |name: &str| nodes.iter().any(|node| node.name == name);
                let minors: BTreeSet<_> = nodes.iter().map(|node| (node.major, node.minor)).collect();
                let is_sound = has("nvidiactl") && minors.len() == nodes.len() && nodes.len() >= 2;
                ensure(is_sound && nodes.iter().all(|node| !node.name.starts_with("nvidia-caps")), nodes)?;
            }
            Ok(())
        }),
    ]
}

async fn run(gpus: &NvmlGpus, only_reads: bool) -> Vec<(&'static str, Option<Outcome>)> {
    let mut outcomes = Vec::new();
    for check in checks().into_iter().chain(readings()) {
        let outcome = if only_reads && !check.reads_only { None } else { Some((check.run)(gpus).await) };
        outcomes.push((check.name, outcome));
    }
    outcomes
}

fn real() -> Option<(NvmlGpus, tempfile::TempDir)> {
    std::env::var("MUSTER_REAL_NVML").ok().filter(|value| value == "1")?;
    let folder = tempfile::tempdir().expect("a folder");
    let config = NvmlConfig {
        library: PathBuf::from("libnvidia-ml.so.1"),
        smi: PathBuf::from("nvidia-smi"),
        mps_control: PathBuf::from("nvidia-cuda-mps-control"),
        helper: vec![OsString::from(env!("CARGO_BIN_EXE_muster-gpu-helper"))],
        folder: folder.path().join("agent"),
        pipes: folder.path().join("mps"),
        driver_root: PathBuf::from("/"),
    };
    let machine = muster_runtime::real::host("real", folder.path().join("data"));
    Some((NvmlGpus::open(machine, config, BOOT).expect("the backend opens"), folder))
}

#[tokio::test]
async fn conformance() {
    let host = Host::new(&Fleet::h100(8));
    let double = run(&host.gpus(), false).await;
    let card = match real() {
        Some((gpus, _folder)) => run(&gpus, true).await,
        None => double.iter().map(|(name, _)| (*name, None)).collect(),
    };
    let word = |outcome: &Option<Outcome>| match outcome {
        None => "not run",
        Some(Ok(())) => "holds",
        Some(Err(_)) => "FAILS",
    };
    println!("| check | double | card |\n| --- | --- | --- |");
    for ((name, double), (_, card)) in double.iter().zip(&card) {
        println!("| {name} | {} | {} |", word(double), word(card));
    }
    let failed: Vec<_> = double.iter().chain(&card).filter(|(_, outcome)| matches!(outcome, Some(Err(_)))).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
