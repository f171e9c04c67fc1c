//! The part of the demonstration in which a GPU fails: the kernel's log of a node says so, and what follows is watched through the public API.
//!
//! What must stay true: nothing is asked of the agent but what a kernel would tell it; every figure is what a client saw.

use super::narrator::Narrator;
use super::stage::Stage;
use super::{CALL_MAX, workload};
use crate::client::Client;
use crate::commands::submit::submit;
use crate::commands::{fleet, job, now_ms};
use crate::failure::Failure;
use crate::view::job::is_over;
use muster_proto::v1;
use muster_proto::v1::Consistency;
use std::io::Write;
use std::time::{Duration, Instant};

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct GpuFault {
    /// From the kernel's line to the GPU being withheld.
    pub withheld: Duration,
    /// The job of that GPU completed on another one.
    pub ran_elsewhere: bool,
    /// The GPU takes work again after an operator has cleared it.
    pub cleared: bool,
}

const PAUSE: Duration = Duration::from_millis(20);

/// Fails the GPU of a running job.
pub(super) async fn show(say: &Narrator, stage: &Stage, client: &Client) -> Result<GpuFault, Failure> {
    let submitted =
        submit(client, &workload::request_id("gpu-fault"), now_ms(), vec![workload::sleeper("gpu-fault", 4)]).await?;
    let id = submitted.job_ids.first().copied().ok_or_else(|| Failure::Job("no job was made".to_owned()))?;
    until("the job runs", async || Ok(phase(client, id).await? == v1::JobPhase::Running)).await?;
    let held = gpus(client, "").await?.into_iter().find(|gpu| gpu.jobs.contains(&id));
    let held = held.ok_or_else(|| Failure::Job("no GPU has the job".to_owned()))?;
    // Simulated GPUs sit on the PCI buses from 10 on.
    let line = format!("NVRM: Xid (PCI:0000:{:02x}:00): 79, GPU has fallen off the bus.", 0x10 + held.index);
    say.line(&format!("job {id} runs on GPU {} of {}, whose kernel now says: {line}", held.index, held.node))?;
    let said = Instant::now();
    let log = stage.node_folder(&held.node)?.join("kernel-log");
    let written = std::fs::File::options().write(true).open(&log).and_then(|mut file| writeln!(file, "{line}"));
    written.map_err(|error| Failure::io(format!("writing {}", log.display()), error))?;
    let view = async || {
        let all = gpus(client, &held.node).await?;
        all.into_iter().find(|gpu| gpu.index == held.index).ok_or_else(|| Failure::Job("the GPU has gone".to_owned()))
    };
    until("the GPU is withheld", async || Ok(!view().await?.unavailable.is_empty())).await?;
    let withheld = said.elapsed();
    say.quote(&format!("muster gpus {}", held.node), &format!("GPU {}: {}", held.index, view().await?.unavailable))?;
    until("the job is over", async || Ok(is_over(phase(client, id).await?))).await?;
    let completed = phase(client, id).await? == v1::JobPhase::Completed;
    let attempts = job_of(client, id).await?.attempts;
    let why = attempts.first().map(|attempt| attempt.reason.clone()).unwrap_or_default();
    say.line(&format!("job {id} ran again on another GPU; its first attempt ended because: {why}"))?;
    let clear = |channel| {
        let (node, gpu, reason) = (held.node.clone(), held.index, "replaced the riser".to_owned());
        async move { v1::fleet_client::FleetClient::new(channel).clear_gpu(v1::ClearGpuRequest { node, gpu, reason }).await }
    };
    client.call("clear GPU", clear).await?;
    until("the GPU is used again", async || Ok(view().await?.unavailable.is_empty())).await?;
    say.line(&format!("muster clear-gpu {} {}: the GPU takes work again", held.node, held.index))?;
    Ok(GpuFault { withheld, ran_elsewhere: completed && why.contains("GPU fault"), cleared: true })
}

async fn gpus(client: &Client, node: &str) -> Result<Vec<v1::GpuView>, Failure> {
    fleet::list_gpus(client, node, Consistency::Linearizable).await
}

pub(super) async fn job_of(client: &Client, id: u64) -> Result<v1::Job, Failure> {
    let reply = job::get(client, id, Consistency::Linearizable).await?;
    reply.job.ok_or_else(|| Failure::Job(format!("job {id} is not there")))
}

async fn phase(client: &Client, id: u64) -> Result<v1::JobPhase, Failure> {
    Ok(job_of(client, id).await?.phase())
}

pub(super) async fn until(what: &str, enough: impl AsyncFn() -> Result<bool, Failure>) -> Result<(), Failure> {
    let end = Instant::now() + CALL_MAX;
    while !enough().await? {
        if Instant::now() > end {
            return Err(Failure::Job(format!("this did not come within {} s: {what}", CALL_MAX.as_secs())));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
