//! Submissions from more and more clients: where the rate stops growing (the knee), and what becomes of it at three times that.

use super::load::{Found, Running, Work, open_loop};
use super::{Options, Target};
use crate::process::{self, Used};
use crate::table::{Row, Table};
use anyhow::Result;
use std::time::Duration;

/// The knee: doubling the clients brings less than this.
const GROWS: f64 = 1.10;
/// The sweep ends here even when the rate still grows.
const CLIENTS_MAX: u64 = 4_096;
/// The sweep ends after so many steps in a row that brought less: one may be the machine's.
const STEPS_WITHOUT_GROWTH: u32 = 2;

pub(super) async fn run(target: &Target, options: &Options) -> Result<Table> {
    let mut sweep = Sweep { target, seconds: options.seconds, steps: 0, rows: Vec::new() };
    let (mut clients, mut flat) = (options.clients, 0);
    let (mut knee, mut peak) = (options.clients, 0.0_f64);
    while flat < STEPS_WITHOUT_GROWTH && clients <= CLIENTS_MAX {
        let rate = sweep.closed(clients, format!("{clients} clients")).await?;
        if rate > peak * GROWS {
            (knee, peak, flat) = (clients, rate, 0);
        } else {
            flat += 1;
        }
        clients *= 2;
    }
    sweep.closed(knee * 3, format!("{} clients: three times the number at the highest rate", knee * 3)).await?;
    let times_the_knee = [1_u32, 2, 3];
    for times in times_the_knee {
        sweep.open(peak * f64::from(times), times).await?;
    }
    sweep
        .closed(
            knee,
            format!("{knee} clients again: the number at the highest rate, with the jobs that are pending now"),
        )
        .await?;
    let title =
        "Overload by submissions of one job, 3 replicas with fsync; clients share the processor with the voters";
    let columns = ["load", "accepted", "refused, with the message", "cores of the clients, of the leader; its memory"];
    Ok(Table::new(title, sweep.rows).with_columns(columns))
}

struct Sweep<'a> {
    target: &'a Target,
    seconds: f64,
    steps: u32,
    rows: Vec<Row>,
}

impl Sweep<'_> {
    /// Clients that call one after another; gives the rate that was accepted.
    async fn closed(&mut self, clients: u64, what: String) -> Result<f64> {
        let work = Work { tenants: self.tenants().await?, jobs: 1, pause: Duration::ZERO, obeys: true };
        let before = self.used()?;
        let running = Running::start(&self.target.channels(clients)?, clients, &work);
        tokio::time::sleep(Duration::from_secs_f64(self.seconds)).await;
        let found = running.finish().await;
        self.row(what, &found, &before)?;
        Ok(found.per_second())
    }

    /// Calls at a fixed rate, whatever is answered.
    async fn open(&mut self, rate: f64, times: u32) -> Result<()> {
        let tenants = self.tenants().await?;
        let channels = self.target.channels(u64::MAX)?;
        let before = self.used()?;
        let (found, unsent) = open_loop(&channels, &tenants, rate, self.seconds).await;
        let kept_back = if unsent > 0 { format!(", {unsent} not sent") } else { String::new() };
        let what = format!("{rate:.0} calls/s whatever is answered: {times} times the knee's rate{kept_back}");
        self.row(what, &found, &before)
    }

    /// New ones for each step.
    async fn tenants(&mut self) -> Result<Vec<String>> {
        self.steps += 1;
        self.target.tenants(&format!("step{}", self.steps)).await
    }

    /// By the clients, which are this process, and by the leader.
    fn used(&self) -> Result<(Used, Used)> {
        Ok((Used::of(std::process::id().cast_signed())?, Used::of(self.target.pid)?))
    }

    fn row(&mut self, what: String, found: &Found, before: &(Used, Used)) -> Result<()> {
        let (clients, leader) = self.used()?;
        let accepted = format!("{:.0}/s, {}", found.per_second(), found.latency());
        let refused = match found.told() {
            told if told.is_empty() => found.refusals(),
            told => format!("{}: {told}", found.refusals()),
        };
        let (own, of_leader) = (clients.cores_since(&before.0), leader.cores_since(&before.1));
        let used = format!("{own:.2}, {of_leader:.2}; {}", process::memory(leader.rss_kib));
        self.rows.push(Row::new(what, accepted, refused, used));
        Ok(())
    }
}
