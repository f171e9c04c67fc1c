//! Thousands of sockets that say nothing, on the leader: clients, voters and the health of the cluster go on.

use super::words;
use crate::client::Load;
use crate::cluster::{Cluster, STANDSTILL, Setup};
use crate::judge::judge;
use crate::lab::Lab;
use crate::report::Findings;
use anyhow::Result;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Several times the 1,024 that a process may have open where nobody raises the limit.
const SOCKETS: usize = 3_000;

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    let time = lab.measure(6, 3);
    let mut cluster = Cluster::start(lab, "sockets", &Setup::default()).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    load.book.more(20, STANDSTILL).await?;
    let leader = cluster.leader_within(STANDSTILL).await?;
    let term = cluster.term().await;
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard)?;
    let mut idle = Vec::new();
    for _ in 0..SOCKETS.min(hard.saturating_sub(300) as usize) {
        // One that is refused is what the leader may do with it.
        if let Ok(Ok(socket)) = timeout(Duration::from_secs(2), TcpStream::connect(cluster.endpoint(leader))).await {
            idle.push(socket);
        }
    }
    let began = Instant::now();
    sleep(time).await;
    // A voter that starts again needs new connections in both directions.
    let follower = leader % 3 + 1;
    cluster.kill(follower).await?;
    cluster.start_voter(follower)?;
    load.book.more(20, STANDSTILL).await?;
    let until = Instant::now() + STANDSTILL;
    let mut follows = false;
    while !follows && Instant::now() < until {
        follows = cluster.status(follower).await.is_some_and(|status| status.leader.is_some());
        sleep(Duration::from_millis(50)).await;
    }
    let ended = Instant::now();
    let mut findings =
        Findings::of(format!("{} idle sockets on the leader, then a follower started again", idle.len()));
    findings.must(idle.len() > 1_024, || {
        format!("only {} sockets could be opened: the experiment shows nothing", idle.len())
    });
    findings.must(follows, || "a follower that was started again finds no leader beside idle sockets".to_owned());
    findings.see(format!(
        "{:.0} acknowledgements/s meanwhile, longest without {}, {} terms begun",
        load.book.rate(began, ended),
        words(load.book.longest_gap(began, ended)),
        cluster.term().await.saturating_sub(term)
    ));
    drop(idle);
    let book = load.stop().await;
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}
