//! kill -9 at a random acknowledgement: of the leader, of a follower, of all.

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

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    run_with(lab, lab.rounds(15, 6), None).await
}

/// The same with a planted bug, if one is named.
pub(super) async fn run_with(lab: &Lab, rounds: u32, planted: Option<&'static str>) -> Result<Findings> {
    let mut cluster = Cluster::start(lab, "kills", &Setup { planted, ..Setup::default() }).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    let chance = Chance::from_entropy();
    let mut findings = Findings::of(format!("{rounds} times kill -9 of leader, follower or all at an acknowledgement"));
    let mut outages = Vec::new();
    for round in 0..rounds {
        load.book.more(chance.between(1, 40) as usize, STANDSTILL).await?;
        let leader = cluster.leader_within(STANDSTILL).await?;
        let follower = VOTERS[(usize::from(leader) + chance.between(0, 2) as usize) % 3];
        let victims: Vec<u8> = match round % 3 {
            0 => vec![leader],
            1 => VOTERS.to_vec(),
            _ => vec![follower],
        };
        // At the moment of an acknowledgement, not of a question about the leader.
        load.book.more(chance.between(1, 5) as usize, STANDSTILL).await?;
        let killed = Instant::now();
        for id in &victims {
            cluster.kill(*id).await?;
        }
        let away = chance.between(0, 3);
        sleep(Duration::from_millis(away * 300)).await;
        for id in &victims {
            cluster.start_voter(*id)?;
        }
        load.book.more(1, STANDSTILL).await?;
        if victims != [follower] {
            outages.push(killed.elapsed());
        }
    }
    let book = load.stop().await;
    findings.see(format!("to the next acknowledgement, restart included: {}", spread(&mut outages)));
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}
