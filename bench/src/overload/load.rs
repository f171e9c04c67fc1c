//! Loads that count what they are refused with: clients that call one after another, and calls at a fixed rate whatever is answered.

use crate::cluster;
use crate::table;
use muster_proto::v1;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::Status;
use tonic::transport::Channel;

/// A client that was refused without a delay waits this long, so that it does not spin.
const PAUSE: Duration = Duration::from_millis(5);
/// Calls of an open loop that are under way at a time; beyond it they are counted as not sent. More is the bench's own memory.
const UNDER_WAY_MAX: usize = 100_000;
/// Calls of an open loop are begun together each so many milliseconds.
const TICK: Duration = Duration::from_millis(2);
/// What is under way when a load ends is waited for this long: longer than a call can wait in the server.
const DRAIN: Duration = Duration::from_secs(30);

/// Request ids are never used twice in one run.
static CALL: AtomicU64 = AtomicU64::new(0);

/// What a load found.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) accepted: u64,
    /// By code and reason; one message of each.
    pub(super) refused: BTreeMap<String, (u64, String)>,
    pub(super) seconds: f64,
    /// Of accepted calls, in microseconds, sorted.
    pub(super) latencies_us: Vec<u64>,
}

impl Found {
    fn count(&mut self, result: Result<u64, Status>) {
        match result {
            Ok(us) => {
                self.accepted += 1;
                self.latencies_us.push(us);
            }
            Err(status) => self.refused.entry(kind(&status)).or_insert((0, words(&status))).0 += 1,
        }
    }

    fn add(&mut self, other: Found) {
        self.accepted += other.accepted;
        self.latencies_us.extend(other.latencies_us);
        for (kind, (count, words)) in other.refused {
            self.refused.entry(kind).or_insert((0, words)).0 += count;
        }
    }

    fn finished(mut self, since: Instant) -> Self {
        self.seconds = since.elapsed().as_secs_f64();
        self.latencies_us.sort_unstable();
        self
    }

    pub(super) fn per_second(&self) -> f64 {
        self.accepted as f64 / self.seconds.max(0.001)
    }

    pub(super) fn latency(&self) -> String {
        let at = |share| table::time(table::percentile(&self.latencies_us, share));
        format!("p50 {}, p99 {}", at(0.5), at(0.99))
    }

    /// Refusals a second, by what they say.
    pub(super) fn refusals(&self) -> String {
        if self.refused.is_empty() {
            return "none".to_owned();
        }
        let one = |(kind, (count, _)): (&String, &(u64, String))| {
            format!("{:.0}/s {kind}", *count as f64 / self.seconds.max(0.001))
        };
        self.refused.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// What refused clients were told, one message of each kind.
    pub(super) fn told(&self) -> String {
        self.refused.values().map(|(_, words)| words.as_str()).collect::<Vec<_>>().join(" | ")
    }
}

fn kind(status: &Status) -> String {
    let reason = muster_proto::status::reason(status).unwrap_or_default();
    format!("{:?} {reason}", status.code()).trim_end().to_owned()
}

/// The message, and how long the client is asked to wait.
pub(super) fn words(status: &Status) -> String {
    let message = muster_proto::status::clipped(status.message(), 160);
    match muster_proto::status::retry_delay(status) {
        Some(delay) => format!("\"{message}\" (retry after {} ms)", delay.as_millis()),
        None => format!("\"{message}\""),
    }
}

/// One submission of `jobs` jobs, each for all cards, and its time.
pub(super) async fn submit(channel: Channel, tenant: &str, jobs: usize) -> Result<u64, Status> {
    let number = CALL.fetch_add(1, Ordering::Relaxed);
    let jobs = vec![crate::submissions::of_all_cards(tenant, &["true"]); jobs];
    let request = cluster::submission(format!("overload-{number}"), jobs);
    let sent = Instant::now();
    v1::jobs_client::JobsClient::new(channel).submit(request).await?;
    Ok(sent.elapsed().as_micros() as u64)
}

/// What a closed loop submits.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// Each client's tenant, in turn.
    pub(super) tenants: Vec<String>,
    /// Jobs of one submission.
    pub(super) jobs: usize,
    /// Each client waits so long between two calls.
    pub(super) pause: Duration,
    /// A refused client waits as long as it is asked to; otherwise it calls again nearly at once.
    pub(super) obeys: bool,
}

/// Clients that call one after another until they are told to stop.
pub(super) struct Running {
    stop: Arc<AtomicBool>,
    since: Instant,
    clients: tokio::task::JoinSet<Found>,
}

impl Running {
    pub(super) fn start(channels: &[Channel], clients: u64, work: &Work) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut set = tokio::task::JoinSet::new();
        for client in 0..clients as usize {
            let channel = channels[client % channels.len()].clone();
            let (tenant, work, stop) = (work.tenants[client % work.tenants.len()].clone(), work.clone(), stop.clone());
            set.spawn(async move {
                let mut found = Found::default();
                while !stop.load(Ordering::Relaxed) {
                    let result = submit(channel.clone(), &tenant, work.jobs).await;
                    let wait = match &result {
                        Ok(_) => work.pause,
                        Err(status) if work.obeys => muster_proto::status::retry_delay(status).unwrap_or(PAUSE),
                        Err(_) => PAUSE,
                    };
                    found.count(result);
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                    }
                }
                found
            });
        }
        Running { stop, since: Instant::now(), clients: set }
    }

    /// Lets every client finish its call.
    pub(super) async fn finish(mut self) -> Found {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Found::default();
        while let Some(found) = self.clients.join_next().await {
            all.add(found.unwrap_or_default());
        }
        all.finished(self.since)
    }
}

/// Calls at a fixed rate whatever is answered: the rate of accepted ones while it goes on, and how many could not be sent.
pub(super) async fn open_loop(channels: &[Channel], tenants: &[String], rate: f64, seconds: f64) -> (Found, u64) {
    let begin = Instant::now();
    let mut ticks = tokio::time::interval(TICK);
    let (mut sent, mut unsent) = (0_u64, 0);
    let mut calls = tokio::task::JoinSet::new();
    let mut found = Found::default();
    loop {
        ticks.tick().await;
        let elapsed = begin.elapsed().as_secs_f64();
        if elapsed >= seconds {
            break;
        }
        while (sent as f64) < rate * elapsed {
            let at = sent as usize;
            sent += 1;
            if calls.len() >= UNDER_WAY_MAX {
                unsent += 1;
                continue;
            }
            let (channel, tenant) = (channels[at % channels.len()].clone(), tenants[at % tenants.len()].clone());
            calls.spawn(async move { submit(channel, &tenant, 1).await });
        }
        while let Some(Ok(result)) = calls.try_join_next() {
            found.count(result);
        }
    }
    // The rate is that of the answers within the time; what was under way then is only waited for.
    let mut found = found.finished(begin);
    let drain = async {
        while let Some(Ok(result)) = calls.join_next().await {
            if let Err(status) = result {
                found.count(Err(status));
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN, drain).await;
    (found, unsent)
}
