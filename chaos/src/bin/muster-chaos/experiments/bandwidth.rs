//! Voters that send at most 100 Mbit/s, and a client that submits nearly 4 MB again and again.

use super::words;
use crate::client::Load;
use crate::cluster::{Cluster, STANDSTILL, Setup};
use crate::judge::judge;
use crate::lab::Lab;
use crate::large::submit_large;
use crate::report::Findings;
use anyhow::Result;
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    let time = lab.measure(15, 6);
    let cluster = Cluster::start(lab, "bandwidth", &Setup::default()).await?;
    cluster.network.slow_down(100)?;
    let load = Load::start(&cluster.endpoints()).await?;
    let mut findings = Findings::of(format!(
        "100 Mbit/s from each voter; submissions of 4 MB for {} s, one after another, beside small ones",
        time.as_secs()
    ));
    load.book.more(20, STANDSTILL).await?;
    let (quiet, term) = (Instant::now(), cluster.term().await);
    sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    let mut large = 0_u32;
    let mut longest_large = Duration::ZERO;
    while began.elapsed() < time {
        let sent = Instant::now();
        submit_large(&cluster, large).await?;
        longest_large = longest_large.max(sent.elapsed());
        large += 1;
    }
    let ended = Instant::now();
    // Other clients must be answered now, at the latest.
    load.book.more(1, STANDSTILL).await?;
    let terms = cluster.term().await.saturating_sub(term);
    findings.see(format!("{large} large submissions, the slowest {}; {terms} terms begun", words(longest_large)));
    findings.see(format!(
        "other clients: {:.0} acknowledgements/s before, {:.0}/s meanwhile, longest without {}",
        load.book.rate(quiet, began),
        load.book.rate(began, ended),
        words(load.book.longest_gap(began, ended))
    ));
    let others = load.book.rate(began, ended);
    findings
        .must(others > 0.0, || format!("no other client had an answer in {} s of large submissions", time.as_secs()));
    let book = load.stop().await;
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}
