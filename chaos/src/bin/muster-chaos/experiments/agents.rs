//! Two agents of one node name in two network namespaces, and an agent whose folder is deleted while its task runs: no two copies of a job run
//! at once, by what the task itself wrote.

use crate::client::{job, make_tenant, now_ms};
use crate::cluster::{Cluster, STANDSTILL, Setup, VOTERS, channel};
use crate::lab::Lab;
use crate::report::Findings;
use anyhow::{Result, ensure};
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use nix::sys::signal::{Signal, kill};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Hosts of the two agents.
const FIRST: u8 = VOTERS.len() as u8 + 1;
const SECOND: u8 = FIRST + 1;
/// How long two agents stand against each other.
const RIVALS_FOR: Duration = Duration::from_secs(6);
/// How long a job may take to start: after a lost agent, longer than it takes to call a node lost.
const STARTS_MAX: Duration = Duration::from_secs(120);
/// The task beats five times a second, and ends by itself after this many beats, whatever becomes of the run.
const BEATS: u32 = 900;

/// First and last sign of each copy, in seconds, by attempt and process.
type Copies = BTreeMap<(u32, u32), (f64, f64)>;

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    let mut cluster = Cluster::start(lab, "agents", &Setup { more_hosts: 2, ..Setup::default() }).await?;
    make_tenant(&cluster.endpoints()).await?;
    cluster.start_role(None, "shard", &["shard", "--name", "shard"])?;
    let folder = cluster.folder().to_owned();
    std::fs::write(folder.join("node.yaml"), "name: node\n")?;
    // The task has a user of its own.
    std::fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    let mut findings = Findings::of(
        "two agents of one node name on two hosts; then the first killed, its folder deleted and started again",
    );
    let first = start_agent(&mut cluster, FIRST, "one", "0")?;
    submit(&cluster, &folder).await?;
    until_attempt(&folder, 1).await?;
    // As another machine: of another boot.
    let second = start_agent(&mut cluster, SECOND, "two", "1")?;
    sleep(RIVALS_FOR).await;
    let beside = copies(&folder);
    findings.must(beside.len() == 1, || format!("two agents of one name: more than one copy ran: {beside:?}"));
    findings.see(format!("beside a second agent: {} copy", beside.len()));
    kill(second, Signal::SIGKILL)?;
    kill(first, Signal::SIGKILL)?;
    std::fs::remove_dir_all(folder.join("one"))?;
    start_agent(&mut cluster, FIRST, "one", "0")?;
    until_attempt(&folder, 2).await?;
    sleep(Duration::from_secs(2)).await;
    let after = copies(&folder);
    let mut spans: Vec<(f64, f64)> = after.values().copied().collect();
    spans.sort_by(|one, other| one.0.total_cmp(&other.0));
    findings.must(spans.windows(2).all(|pair| pair[0].1 < pair[1].0), || format!("copies ran at once: {after:?}"));
    let attempts: Vec<u32> = after.keys().map(|(attempt, _)| *attempt).collect();
    findings.must(attempts == [1, 2], || format!("an attempt ran twice: {after:?}"));
    findings.see(format!("after the folder was deleted: attempts {attempts:?}, none beside another"));
    Ok(findings)
}

fn start_agent(cluster: &mut Cluster, host: u8, data: &str, boot: &str) -> Result<nix::unistd::Pid> {
    let (data, spec) = (cluster.folder().join(data), cluster.folder().join("node.yaml"));
    let (data, spec) = (data.display().to_string(), spec.display().to_string());
    let shared = cluster.folder().display().to_string();
    let words = ["node", "--data", &data, "--spec", &spec, "--boot", boot, "--task-writes", &shared];
    cluster.start_role(Some(host), &format!("agent-{host}"), &words)
}

fn beats(folder: &Path) -> PathBuf {
    folder.join("beats")
}

/// Submits a task that writes down its attempt, a number of its own and the time again and again.
async fn submit(cluster: &Cluster, folder: &Path) -> Result<()> {
    let file = beats(folder).display().to_string();
    let script = format!(
        "me=$(date +%N); for i in $(seq {BEATS}); do echo $MUSTER_ATTEMPT $me $(cut -d' ' -f1 /proc/uptime) >> {file}; sleep 0.2; done"
    );
    let kind = Some(v1::device_request::Kind::Whole(v1::WholeGpus { count: 1 }));
    let mut spec = job("beats");
    spec.command = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    if let Some(request) = &mut spec.request {
        request.devices = Some(v1::DeviceRequest { kind, models: Vec::new() });
    }
    let call = v1::SubmitRequest { request_id: "beats".to_owned(), issued_ms: Some(now_ms()), jobs: vec![spec] };
    let leader = cluster.leader_within(STANDSTILL).await?;
    JobsClient::new(channel(&cluster.endpoint(leader))?).submit(call).await?;
    Ok(())
}

fn copies(folder: &Path) -> Copies {
    let text = std::fs::read_to_string(beats(folder)).unwrap_or_default();
    let mut copies = Copies::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (attempt, process) = (words.next().and_then(|w| w.parse().ok()), words.next().and_then(|w| w.parse().ok()));
        let at: Option<f64> = words.next().and_then(|w| w.parse().ok());
        // The last line may be written just now.
        let (Some(attempt), Some(process), Some(at)) = (attempt, process, at) else { continue };
        copies.entry((attempt, process)).and_modify(|seen| seen.1 = at).or_insert((at, at));
    }
    copies
}

async fn until_attempt(folder: &Path, attempt: u32) -> Result<()> {
    let until = Instant::now() + STARTS_MAX;
    while !copies(folder).keys().any(|(at, _)| *at == attempt) {
        ensure!(Instant::now() < until, "attempt {attempt} does not start within {} s", STARTS_MAX.as_secs());
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
