//! The part of the demonstration in which the agent works through NVIDIA's calls: on a double of the driver, MIG instances are created for two jobs, one of them gets an
//! Xid, and all are destroyed at the end. Then jobs share a GPU, and one tenant follows another ([`super::sharers`]).
//!
//! What must stay true: the cluster is one of its own, started as anybody would; what the driver did is read from the driver's side, the rest through the public API.

use super::gpu_fault::{job_of, until};
use super::narrator::Narrator;
use super::sharers::{self, Sharers, cancel, failed};
use super::stage::Stage;
use super::{CALL_MAX, workload};
use crate::commands::submit::submit;
use crate::commands::{fleet, now_ms};
use crate::failure::Failure;
use muster_gpu_double::{Faults, library_beside};
use muster_proto::v1;
use muster_proto::v1::Consistency;
use std::path::Path;
use std::time::{Duration, Instant};

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    /// From the Xid to the slice being withheld.
    pub withheld: Duration,
    /// The job of that slice runs again, in its second attempt.
    pub restarted: bool,
    /// The job on the other slice of the card is in its first attempt.
    pub neighbour_runs: bool,
    /// No GPU instance stands at the end, and MIG mode is off.
    pub destroyed: bool,
    /// What was seen of jobs that share a GPU, or have it one after another.
    pub sharers: Sharers,
}

const SIZE: &[&str] = &["--voters", "1", "--shards", "1", "--nodes", "1", "--gpus-per-node", "2", "--gpus", "double"];
/// Xid 94: an uncorrectable memory error that the driver has confined.
const CONTAINED: u32 = 94;

/// Plays it; nothing where the double is not beside the command.
pub(super) async fn show(say: &Narrator, folder: &Path) -> Result<Option<Slices>, Failure> {
    if std::env::current_exe().ok().and_then(|exe| library_beside(&exe)).is_none() {
        say.line("the double of NVIDIA's driver is not beside this command: the part with MIG slices is left out")?;
        return Ok(None);
    }
    let stage = Stage::start_as(&folder.join("slices"), SIZE).await?;
    let seen = play(say, &stage).await;
    stage.stop().await;
    seen.map(Some)
}

async fn play(say: &Narrator, stage: &Stage) -> Result<Slices, Failure> {
    let client = &stage.client(CALL_MAX)?;
    let folder = stage.node_folder("node-0000")?.join("gpu-double");
    let driver = Faults::open(&folder).map_err(failed)?;
    let both = vec![workload::slice("slice-a"), workload::slice("slice-b")];
    let jobs = submit(client, &workload::request_id("slices"), now_ms(), both).await?.job_ids;
    let [first, second] = jobs[..] else { return Err(Failure::Job("two jobs were to be made".to_owned())) };
    for job in [first, second] {
        until("the job runs", async || Ok(job_of(client, job).await?.phase() == v1::JobPhase::Running)).await?;
    }
    let fleet = driver.fleet().map_err(failed)?;
    let card = fleet.cards.iter().position(|card| !card.mig.instances.is_empty());
    let card = card.ok_or_else(|| Failure::Job("the driver has no GPU instance".to_owned()))?;
    let made: Vec<String> =
        fleet.cards[card].mig.instances.iter().map(|one| format!("{} at slice {}", one.id, one.start)).collect();
    say.line(&format!(
        "a second cluster, on a double of NVIDIA's driver: GPU {card} has the GPU instances {}",
        made.join(", ")
    ))?;
    let instance = fleet.cards[card].mig.instances[0].clone();
    say.line(&format!("the driver reports Xid {CONTAINED} (a confined memory error) in GPU instance {}", instance.id))?;
    let said = Instant::now();
    let (index, gpu_instance) = (card as u32, Some(instance.id));
    driver.xid(index, gpu_instance, None, CONTAINED).map_err(failed)?;
    let view = async || {
        let all = fleet::list_gpus(client, "node-0000", Consistency::Linearizable).await?;
        all.into_iter().find(|gpu| gpu.index == index).ok_or_else(|| Failure::Job("the GPU has gone".to_owned()))
    };
    until("the slice is withheld", async || Ok(!view().await?.unavailable.is_empty())).await?;
    let withheld = said.elapsed();
    say.quote("muster gpus node-0000", &format!("GPU {card}: {}", view().await?.held))?;
    // Which of the two it was is known by its attempts.
    let again = async || {
        let (a, b) = (job_of(client, first).await?, job_of(client, second).await?);
        let runs_again = |job: &v1::Job| job.phase() == v1::JobPhase::Running && job.attempts.len() == 1;
        Ok(runs_again(&a) || runs_again(&b))
    };
    until("its job runs again", again).await?;
    let (a, b) = (job_of(client, first).await?, job_of(client, second).await?);
    let (victim, neighbour) = if a.attempts.is_empty() { (b, a) } else { (a, b) };
    let why = victim.attempts.first().map(|attempt| attempt.reason.clone()).unwrap_or_default();
    say.line(&format!(
        "job {} runs again elsewhere; job {} on the other slice goes on. Its first attempt ended because: {why}",
        victim.id, neighbour.id
    ))?;
    let (restarted, neighbour_runs) =
        (why.contains("Xid 94"), neighbour.attempts.is_empty() && neighbour.phase() == v1::JobPhase::Running);
    for job in [first, second] {
        cancel(client, job).await?;
    }
    let is_empty = async || {
        let fleet = driver.fleet().map_err(failed)?;
        Ok(fleet.cards.iter().all(|card| card.mig.instances.is_empty() && !card.mig.is_on))
    };
    until("the GPU instances are destroyed", is_empty).await?;
    say.line("both are cancelled: the driver has no GPU instance any more, and MIG mode is off")?;
    let told_by_whom = sharers::neighbours(say, client, &driver).await?;
    let (held_back, cleaned) = sharers::tenant_change(say, client, &driver).await?;
    let sharers = Sharers { told_by_whom, held_back, cleaned };
    Ok(Slices { withheld, restarted, neighbour_runs, destroyed: true, sharers })
}
