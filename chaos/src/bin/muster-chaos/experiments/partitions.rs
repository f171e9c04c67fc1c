//! Partitions between voters while clients reach all of them: the leader alone, the leader deaf, the leader mute, a ring of majorities.

use super::words;
use crate::client::Load;
use crate::cluster::{Cluster, STANDSTILL, Setup, VOTERS};
use crate::judge::judge;
use crate::lab::Lab;
use crate::report::Findings;
use anyhow::Result;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Long enough for several elections.
const CUT_FOR: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
enum Partition {
    /// The leader neither hears nor is heard.
    Alone,
    /// The leader hears nobody, and is heard.
    Deaf,
    /// The leader hears, and nobody hears it.
    Mute,
    /// Each voter has a majority, the leader's with only one of the others.
    Ring,
}

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    let cluster = Cluster::start(lab, "partitions", &Setup::default()).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    let mut findings = Findings::of(format!(
        "voters parted for {} s, clients reach all: leader alone, deaf, mute, cut from one",
        CUT_FOR.as_secs()
    ));
    for _ in 0..lab.rounds(2, 1) {
        for partition in [Partition::Alone, Partition::Deaf, Partition::Mute, Partition::Ring] {
            load.book.more(20, STANDSTILL).await?;
            let leader = cluster.leader_within(STANDSTILL).await?;
            let term = cluster.term().await;
            let began = Instant::now();
            part(&cluster, partition, leader)?;
            sleep(CUT_FOR).await;
            // The others are a majority: work goes on without the leader, however long the partition lasts.
            load.book.more(1, STANDSTILL).await?;
            let cut = Instant::now();
            cluster.network.heal()?;
            load.book.more(20, STANDSTILL).await?;
            let terms = cluster.term().await.saturating_sub(term);
            let gap = load.book.longest_gap(began, cut);
            findings.see(format!(
                "{}: longest without an acknowledgement {}, {terms} terms",
                format!("{partition:?}").to_lowercase(),
                words(gap)
            ));
        }
    }
    let book = load.stop().await;
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}

fn part(cluster: &Cluster, partition: Partition, leader: u8) -> Result<()> {
    let mut others = VOTERS.iter().copied().filter(|id| *id != leader);
    match partition {
        Partition::Alone => others.try_for_each(|id| cluster.network.cut(leader, id)),
        Partition::Deaf => others.try_for_each(|id| cluster.network.cut_one_way(id, leader)),
        Partition::Mute => others.try_for_each(|id| cluster.network.cut_one_way(leader, id)),
        Partition::Ring => others.next().map_or(Ok(()), |id| cluster.network.cut(leader, id)),
    }
}
