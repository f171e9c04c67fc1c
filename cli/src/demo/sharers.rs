//! The part of the demonstration in which jobs share a GPU, on the double of NVIDIA's driver: a program's fault takes its neighbour of the same MPS server along, which is told
//! whose fault it was; and a GPU passes to another tenant only when it is clean.
//!
//! What must stay true: what happens to the GPU is done on the driver's side; what follows is watched through the public API.

use super::gpu_fault::{job_of, until};
use super::narrator::Narrator;
use super::workload;
use crate::client::Client;
use crate::commands::submit::submit;
use crate::commands::tenants::apply;
use crate::commands::{fleet, now_ms};
use crate::failure::Failure;
use crate::spec;
use crate::view::job::is_over;
use muster_gpu_double::Faults;
use muster_proto::v1;
use muster_proto::v1::Consistency;
use muster_proto::v1::jobs_client::JobsClient;
use std::time::Duration;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Sharers {
    /// The neighbour's attempt ended with the fault of the other job as its cause.
    pub told_by_whom: bool,
    /// The second tenant's job was not running while memory of the first was left.
    pub held_back: bool,
    /// How long the GPU was cleaned.
    pub cleaned: Duration,
}

/// Memory that stays in use after a job, and what an idle GPU has in use, in bytes.
const LEFT: u64 = 6 << 30;
const IDLE: u64 = 0;

/// A program makes a fault on an MPS server that it shares.
pub(super) async fn neighbours(say: &Narrator, client: &Client, driver: &Faults) -> Result<bool, Failure> {
    // Their commands differ, so that the process of one can be found.
    let both = vec![workload::mps_share("share-a", 3_001), workload::mps_share("share-b", 3_002)];
    let jobs = submit(client, &workload::request_id("shares"), now_ms(), both).await?.job_ids;
    let [first, second] = jobs[..] else { return Err(Failure::Job("two jobs were to be made".to_owned())) };
    for job in [first, second] {
        runs(client, job).await?;
    }
    let on = gpus(client).await?.into_iter().find(|gpu| gpu.jobs.contains(&first) && gpu.jobs.contains(&second));
    let Some(on) = on else { return Err(Failure::Job("the two shares are not on one GPU".to_owned())) };
    let pid = process_of(3_001).ok_or_else(|| Failure::Job("the process of a share was not found".to_owned()))?;
    let fleet = driver.fleet().map_err(failed)?;
    let pci = fleet.cards.get(on.index as usize).map(|card| card.pci.to_string()).unwrap_or_default();
    let pci = pci.rsplit_once('.').map_or(pci.clone(), |(without, _)| without.to_owned());
    let line = format!("Xid (PCI:{pci}): 31, pid={pid}, name=sleep, Ch 00000008");
    say.line(&format!(
        "jobs {first} and {second} share GPU {} by MPS; the driver reports an access out of bounds: {line}",
        on.index
    ))?;
    driver.kernel_log(&line).map_err(failed)?;
    until("both attempts end", async || {
        Ok(!job_of(client, first).await?.attempts.is_empty() && !job_of(client, second).await?.attempts.is_empty())
    })
    .await?;
    let why = |job: &v1::Job| job.attempts.first().map(|attempt| attempt.reason.clone()).unwrap_or_default();
    let (own, neighbours) = (why(&job_of(client, first).await?), why(&job_of(client, second).await?));
    say.quote(&format!("muster job {second}"), &neighbours)?;
    // The program that made the fault has failed; its neighbour runs again.
    cancel(client, second).await?;
    until("both are over", async || {
        Ok(is_over(job_of(client, first).await?.phase()) && is_over(job_of(client, second).await?.phase()))
    })
    .await?;
    Ok(own.contains("Xid 31") && neighbours.contains("Xid 31") && neighbours.contains(&format!("job {first}")))
}

/// A GPU passes from one tenant to another.
pub(super) async fn tenant_change(
    say: &Narrator,
    client: &Client,
    driver: &Faults,
) -> Result<(bool, Duration), Failure> {
    let tenants = spec::tenants::parse("other: {}\n", "the demo's second tenant")?;
    apply(client, tenants, false, false).await?;
    let of = |name: &str, tenant: &str| workload::whole(name, tenant);
    let first = one(client, "leaves-memory", of("leaves-memory", "dev")).await?;
    runs(client, first).await?;
    let on = gpus(client).await?.into_iter().find(|gpu| gpu.jobs.contains(&first));
    let on = on.ok_or_else(|| Failure::Job("no GPU has the job".to_owned()))?.index;
    driver.set_memory_used(on, LEFT).map_err(failed)?;
    cancel(client, first).await?;
    until("its task has ended", async || Ok(!cleaning(client, on).await?.is_empty())).await?;
    say.line(&format!("job {first} of tenant dev was cancelled, and 6 GiB of GPU {on} are still in use"))?;
    let second = one(client, "next", of("next", "other")).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let held = cleaning(client, on).await?;
    say.quote("muster gpus node-0000", &format!("GPU {on}: {held}"))?;
    let held_back = job_of(client, second).await?.phase() == v1::JobPhase::Pending && held.contains("being cleaned");
    driver.set_memory_used(on, IDLE).map_err(failed)?;
    runs(client, second).await?;
    let attempts = job_of(client, first).await?.attempts;
    let cleaned_ms = attempts.last().map_or(0, |attempt| attempt.cleaned_ms);
    say.line(&format!(
        "the memory is free: the GPU was clean after {cleaned_ms} ms, which is in the record of job {first}; job {second} of tenant other runs on it"
    ))?;
    cancel(client, second).await?;
    Ok((held_back, Duration::from_millis(cleaned_ms)))
}

async fn one(client: &Client, name: &str, spec: v1::JobSpec) -> Result<u64, Failure> {
    let made = submit(client, &workload::request_id(name), now_ms(), vec![spec]).await?.job_ids;
    made.first().copied().ok_or_else(|| Failure::Job("no job was made".to_owned()))
}

async fn runs(client: &Client, job: u64) -> Result<(), Failure> {
    until("the job runs", async || Ok(job_of(client, job).await?.phase() == v1::JobPhase::Running)).await
}

async fn gpus(client: &Client) -> Result<Vec<v1::GpuView>, Failure> {
    fleet::list_gpus(client, "node-0000", Consistency::Linearizable).await
}

/// How a GPU is held, while it is being cleaned.
async fn cleaning(client: &Client, index: u32) -> Result<String, Failure> {
    let view = gpus(client).await?.into_iter().find(|gpu| gpu.index == index && !gpu.cleaning.is_empty());
    Ok(view.map(|gpu| gpu.held).unwrap_or_default())
}

pub(super) async fn cancel(client: &Client, job: u64) -> Result<(), Failure> {
    let call = |channel| async move { JobsClient::new(channel).cancel(v1::CancelRequest { job_id: job }).await };
    client.call("cancel", call).await.map(|_| ())
}

pub(super) fn failed(error: muster_gpu_double::DoubleError) -> Failure {
    Failure::io("the double of the driver", std::io::Error::other(error))
}

/// The process whose command is `sleep SECONDS`, as the host numbers it.
fn process_of(seconds: u32) -> Option<u32> {
    let wanted = format!("sleep\0{seconds}\0");
    let pids =
        std::fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words == wanted.as_bytes());
    pids.into_iter().find(is_it)
}
