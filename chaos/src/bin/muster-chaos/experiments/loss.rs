//! Packets lost between voters, at 5, 10, 20 and 30 percent, beside etcd on hosts of the same kind.
//!
//! One client writes one thing after another, to the leader as long as it answers, then to the next member. Both systems are asked alike.

use super::words;
use crate::client::{TENANT, job, make_tenant, now_ms};
use crate::cluster::{Cluster, STANDSTILL, Setup, channel};
use crate::etcd::{self, Etcd, Settings};
use crate::lab::Lab;
use crate::report::Findings;
use anyhow::Result;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;

/// The shares of packets that are lost, in percent; without loss first, to compare with.
const LEVELS: [u32; 5] = [0, 5, 10, 20, 30];
/// How long the client waits for one answer before it asks the next member.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Before the measurement begins, so that what was on its way before the loss does not count.
const SETTLE: Duration = Duration::from_secs(1);
/// How many tenants take turns: one may have 10,000 waiting jobs.
const TENANTS: u64 = 20;

/// What one system did at one level.
struct Figures {
    percent: u32,
    terms: u64,
    per_s: f64,
    longest: Duration,
}

impl Figures {
    fn words(&self) -> String {
        let Figures { percent, terms, per_s, longest } = self;
        format!("{percent} %: {terms} terms, {per_s:.0}/s, gap {}", words(*longest))
    }
}

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    let time = lab.measure(8, 3);
    let mut findings = Findings::of(format!(
        "0, 5, 10, 20, 30 % of the packets between voters lost, {} s each; terms begun, acknowledged writes a second of one client, longest time without",
        time.as_secs()
    ));
    let ours = muster(lab, time).await?;
    for figures in &ours {
        findings.see(format!("muster {}", figures.words()));
        findings.must(figures.per_s > 0.0, || {
            format!("nothing was acknowledged within {} s at {} % loss", STANDSTILL.as_secs(), figures.percent)
        });
    }
    match etcd::version() {
        Err(why) => findings.see(why),
        Ok(version) => {
            findings.see(version);
            for (settings, name) in
                [(Settings::Usual, "etcd 100/1000 ms"), (Settings::Tuned, "etcd 50/500 ms, pre-vote")]
            {
                for figures in etcd_figures(lab, settings, time).await? {
                    findings.see(format!("{name} {}", figures.words()));
                }
            }
        }
    }
    Ok(findings)
}

async fn muster(lab: &Lab, time: Duration) -> Result<Vec<Figures>> {
    let cluster = Cluster::start(lab, "loss", &Setup::default()).await?;
    make_tenant(&cluster.endpoints()).await?;
    let tenants: Vec<v1::TenantSpec> =
        (0..TENANTS).map(|n| v1::TenantSpec { path: format!("{TENANT}/{n}"), ..Default::default() }).collect();
    let apply = v1::ApplyTenantsRequest { tenants, ..Default::default() };
    let leader = cluster.leader_within(STANDSTILL).await?;
    v1::tenants_client::TenantsClient::new(channel(&cluster.endpoint(leader))?).apply(apply).await?;
    let mut all = Vec::new();
    for percent in LEVELS {
        let leader = cluster.leader_within(STANDSTILL).await?;
        let first = usize::from(leader) - 1;
        cluster.network.lose(percent)?;
        sleep(SETTLE).await;
        let before = cluster.term().await;
        let (per_s, longest) = write_for(&cluster.endpoints(), first, time, move |to, number| async move {
            let name = format!("loss-{percent}-{number}");
            let spec = v1::JobSpec { tenant: format!("{TENANT}/{}", number % TENANTS), ..job(&name) };
            let call = v1::SubmitRequest { request_id: name, issued_ms: Some(now_ms()), jobs: vec![spec] };
            JobsClient::new(to).submit(call).await.is_ok()
        })
        .await?;
        let terms = cluster.term().await.saturating_sub(before);
        cluster.network.heal()?;
        all.push(Figures { percent, terms, per_s, longest });
        sleep(SETTLE).await;
    }
    Ok(all)
}

async fn etcd_figures(lab: &Lab, settings: Settings, time: Duration) -> Result<Vec<Figures>> {
    let etcd = Etcd::start(lab, settings).await?;
    let mut all = Vec::new();
    for percent in LEVELS {
        let first = etcd.leader().await.map_or(0, |host| usize::from(host) - 1);
        etcd.network.lose(percent)?;
        sleep(SETTLE).await;
        let before = etcd.term().await;
        let (per_s, longest) = write_for(&etcd.endpoints(), first, time, move |to, number| async move {
            etcd::put(
                to,
                format!("loss/{percent}/{number}").into_bytes(),
                b"a job of usual size, about as many bytes as this".to_vec(),
            )
            .await
            .is_ok()
        })
        .await?;
        let terms = etcd.term().await.saturating_sub(before);
        etcd.network.heal()?;
        all.push(Figures { percent, terms, per_s, longest });
        sleep(SETTLE).await;
    }
    Ok(all)
}

/// Writes one after another for `time`: acknowledgements a second, and the longest time without one. If there is no acknowledgement in that time, it
/// writes until the first one, at most for [`STANDSTILL`]: at 30 % loss an election alone can take longer than a short measurement.
async fn write_for<W, F>(endpoints: &[String], first: usize, time: Duration, write: W) -> Result<(f64, Duration)>
where
    W: Fn(Channel, u64) -> F,
    F: Future<Output = bool>,
{
    let channels: Vec<Channel> = endpoints.iter().map(|endpoint| channel(endpoint)).collect::<Result<_>>()?;
    let began = Instant::now();
    let (mut at, mut last, mut longest, mut count) = (first, began, Duration::ZERO, 0_u64);
    for number in 0.. {
        if began.elapsed() >= if count == 0 { STANDSTILL } else { time } {
            break;
        }
        let answered = timeout(ANSWER_MAX, write(channels[at % channels.len()].clone(), number)).await;
        if answered == Ok(true) {
            longest = longest.max(last.elapsed());
            (last, count) = (Instant::now(), count + 1);
        } else {
            at += 1;
            sleep(Duration::from_millis(5)).await;
        }
    }
    let spent = began.elapsed();
    Ok((count as f64 / spent.as_secs_f64(), longest.max(last.elapsed())))
}
