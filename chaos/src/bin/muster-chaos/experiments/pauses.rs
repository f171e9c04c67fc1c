//! The leader stopped (SIGSTOP) past its lease, with calls on their way to it, and resumed when another leads.

use super::spread;
use crate::client::Load;
use crate::cluster::{Cluster, STANDSTILL, Setup};
use crate::judge::judge;
use crate::lab::Lab;
use crate::report::Findings;
use anyhow::Result;
use muster_runtime::Chance;
use nix::sys::signal::Signal;
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    let rounds = lab.rounds(6, 3);
    let cluster = Cluster::start(lab, "pauses", &Setup::default()).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    let chance = Chance::from_entropy();
    let mut findings = Findings::of(format!("{rounds} times the leader stopped for 0.3 to 2.5 s, and resumed"));
    let mut outages = Vec::new();
    for _ in 0..rounds {
        load.book.more(20, STANDSTILL).await?;
        let leader = cluster.leader_within(STANDSTILL).await?;
        let began = Instant::now();
        cluster.signal(leader, Signal::SIGSTOP)?;
        sleep(Duration::from_millis(chance.between(300, 2_500))).await;
        cluster.signal(leader, Signal::SIGCONT)?;
        load.book.more(20, STANDSTILL).await?;
        outages.push(load.book.longest_gap(began, Instant::now()));
    }
    let book = load.stop().await;
    findings.see(format!("longest without an acknowledgement: {}", spread(&mut outages)));
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}
