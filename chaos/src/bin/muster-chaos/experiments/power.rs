//! Power loss at a random acknowledgement: of all voters at once, or of the leader alone. Every byte that was not synced is gone.
//!
//! In half of the rounds the network carries only small packets at first: voters hear each other, but entries do not arrive. So a leader that
//! may answer before it knows what its last term committed answers for longer than a moment, and the readers see it.

use super::spread;
use crate::client::Load;
use crate::cluster::{Cluster, STANDSTILL, Setup, VOTERS};
use crate::judge::judge;
use crate::lab::Lab;
use crate::report::Findings;
use anyhow::Result;
use muster_runtime::Chance;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Room for what a run of hundreds of rounds writes; the image takes only what is written.
const DISK_MIB: u64 = 2_048;
/// What passes: heartbeats, votes and handshakes. An entry has more: a job of the clients is larger.
const SMALL_BYTES: u32 = 700;
/// For how long only that passes after the restart.
const SMALL_ONLY: Duration = Duration::from_millis(1_200);

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    run_with(lab, lab.rounds(14, 6), None).await
}

/// The same with a planted bug, if one is named.
pub(super) async fn run_with(lab: &Lab, rounds: u32, planted: Option<&'static str>) -> Result<Findings> {
    let setup = Setup { disk_mib: Some(DISK_MIB), planted, ..Setup::default() };
    let mut cluster = Cluster::start(lab, "power", &setup).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    let chance = Chance::from_entropy();
    let mut findings =
        Findings::of(format!("{rounds} times power loss of all voters or of the leader at an acknowledgement"));
    let mut outages = Vec::new();
    for round in 0..rounds {
        load.book.more(chance.between(1, 40) as usize, STANDSTILL).await?;
        let leader = cluster.leader_within(STANDSTILL).await?;
        let victims = if round % 2 == 0 { VOTERS.to_vec() } else { vec![leader] };
        load.book.more(chance.between(1, 5) as usize, STANDSTILL).await?;
        let lost = Instant::now();
        for id in &victims {
            cluster.disk(*id)?.lose_power()?;
        }
        for id in &victims {
            cluster.kill(*id).await?;
        }
        for id in &victims {
            cluster.disk(*id)?.restore_power()?;
        }
        sleep(Duration::from_millis(chance.between(0, 2) * 300)).await;
        let small_only = round % 4 < 2;
        if small_only {
            cluster.network.lose_large(SMALL_BYTES)?;
        }
        for id in &victims {
            cluster.start_voter(*id)?;
        }
        if small_only {
            sleep(SMALL_ONLY).await;
            cluster.network.heal()?;
        }
        load.book.more(1, STANDSTILL).await?;
        if !small_only {
            outages.push(lost.elapsed());
        }
    }
    let book = load.stop().await;
    findings.see(format!("to the next acknowledgement, restart included: {}", spread(&mut outages)));
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}
