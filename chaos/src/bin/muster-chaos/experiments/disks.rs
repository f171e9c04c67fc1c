//! Disks that fail: errors and delays of fsync, a full disk, a frozen one.

use super::words;
use crate::client::Load;
use crate::cluster::{Cluster, STANDSTILL, Setup, VOTERS};
use crate::judge::judge;
use crate::lab::Lab;
use crate::large::submit_large;
use crate::report::Findings;
use anyhow::{Context, Result};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// How long a voter whose disk fails may take to end: its next sync is a heartbeat or an acknowledgement away.
const ENDS_MAX: Duration = Duration::from_secs(30);
/// Room for a voter until somebody fills it.
const SMALL_MIB: u64 = 1_024;

/// Errors of fsync on one voter: it stops and says so, the others go on.
pub(super) async fn errors(lab: &Lab) -> Result<Findings> {
    let mut cluster = Cluster::start(lab, "fsync-errors", &Setup::default()).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    let mut findings =
        Findings::of("fsync fails with EIO on a follower, then on the leader; the voter is started again afterwards");
    for who in ["follower", "leader"] {
        load.book.more(20, STANDSTILL).await?;
        let leader = cluster.leader_within(STANDSTILL).await?;
        let victim = if who == "leader" { leader } else { leader % 3 + 1 };
        let before = cluster.log(victim).len();
        let began = Instant::now();
        let mut tracer = inject(&cluster, victim, "error=EIO").await?;
        let ended = cluster.ends_within(victim, ENDS_MAX).await;
        findings.must(ended, || format!("the {who} goes on for {} s on a disk whose fsync fails", ENDS_MAX.as_secs()));
        let _ = tracer.kill().await;
        load.book.more(20, STANDSTILL).await?;
        let log = cluster.log(victim);
        let said = log
            .get(before..)
            .unwrap_or_default()
            .lines()
            .filter(|line| line.contains("nput/output error") || line.contains("os error 5"))
            .count();
        findings.must(said > 0, || format!("the {who} ended without a word about the error of its disk"));
        findings.see(format!(
            "{who}: ended after {}, others {:.0} acknowledgements/s",
            words(began.elapsed()),
            load.book.rate(began, Instant::now())
        ));
        cluster.kill(victim).await?;
        cluster.start_voter(victim)?;
    }
    let book = load.stop().await;
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}

/// Slow fsync, on one voter and on all: no needless elections.
pub(super) async fn delays(lab: &Lab) -> Result<Findings> {
    let time = lab.measure(8, 4);
    let cluster = Cluster::start(lab, "fsync-delays", &Setup::default()).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    let mut findings = Findings::of(format!(
        "every fsync takes 200 ms longer, {} s each: on a follower, on the leader, on all",
        time.as_secs()
    ));
    for who in ["follower", "leader", "all"] {
        load.book.more(20, STANDSTILL).await?;
        let leader = cluster.leader_within(STANDSTILL).await?;
        let victims = match who {
            "leader" => vec![leader],
            "follower" => vec![leader % 3 + 1],
            _ => VOTERS.to_vec(),
        };
        let mut tracers = Vec::new();
        for id in victims {
            tracers.push(inject(&cluster, id, "delay_exit=200000").await?);
        }
        let (began, term) = (Instant::now(), cluster.term().await);
        sleep(time).await;
        let (ended, terms) = (Instant::now(), cluster.term().await.saturating_sub(term));
        let rate = load.book.rate(began, ended);
        findings.see(format!(
            "{who}: {rate:.0} acknowledgements/s, longest without {}, {terms} terms begun",
            words(load.book.longest_gap(began, ended))
        ));
        for mut tracer in tracers {
            let _ = tracer.kill().await;
        }
    }
    load.book.more(20, STANDSTILL).await?;
    let book = load.stop().await;
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}

/// Traces a voter that runs, and makes its syncs fail or wait.
async fn inject(cluster: &Cluster, id: u8, how: &str) -> Result<Child> {
    let pid = cluster.pid(id)?;
    let syncs = "fsync,fdatasync,sync_file_range";
    let tracer = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-p", &pid.to_string()])
        .args(["-e", &format!("trace={syncs}"), "-e", &format!("inject={syncs}:{how}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start strace")?;
    let until = Instant::now() + Duration::from_secs(10);
    while !is_traced(pid.as_raw()) && Instant::now() < until {
        sleep(Duration::from_millis(10)).await;
    }
    Ok(tracer)
}

fn is_traced(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

/// Large submissions until a full disk must have been noticed: 160 MB.
const LARGE_MAX: u32 = 40;

/// A disk that is full: the voter refuses or ends, the others go on, and it comes back when there is room.
pub(super) async fn full(lab: &Lab) -> Result<Findings> {
    let setup = Setup { disk_mib: Some(SMALL_MIB), ..Setup::default() };
    let mut cluster = Cluster::start(lab, "disk-full", &setup).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    let mut findings = Findings::of(
        "the disk of a follower, then of the leader, full to the last byte; emptied, and the voter started again",
    );
    let mut large = 0;
    for who in ["follower", "leader"] {
        load.book.more(20, STANDSTILL).await?;
        let leader = cluster.leader_within(STANDSTILL).await?;
        let victim = if who == "leader" { leader } else { leader % 3 + 1 };
        let began = Instant::now();
        cluster.disk(victim)?.fill()?;
        // The store has room set aside for its log: it notices when that is used up.
        let mut ended = false;
        for _ in 0..LARGE_MAX {
            large += 1;
            submit_large(&cluster, large).await?;
            ended = cluster.ends_within(victim, Duration::from_millis(1)).await;
            if ended {
                break;
            }
        }
        load.book.more(20, STANDSTILL).await?;
        findings.see(format!(
            "{who}: {}, longest without an acknowledgement {}",
            if ended { "ended by itself" } else { "runs to the end" },
            words(load.book.longest_gap(began, Instant::now()))
        ));
        cluster.disk(victim)?.empty()?;
        cluster.kill(victim).await?;
        cluster.start_voter(victim)?;
    }
    let book = load.stop().await;
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}

/// A disk that answers nothing for a while: another voter leads meanwhile.
pub(super) async fn frozen(lab: &Lab) -> Result<Findings> {
    let setup = Setup { disk_mib: Some(SMALL_MIB), ..Setup::default() };
    let cluster = Cluster::start(lab, "disk-frozen", &setup).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    let mut findings = Findings::of("the leader's disk frozen for 5 s, then thawed");
    for _ in 0..lab.rounds(2, 1) {
        load.book.more(20, STANDSTILL).await?;
        let leader = cluster.leader_within(STANDSTILL).await?;
        let began = Instant::now();
        cluster.disk(leader)?.freeze()?;
        sleep(Duration::from_secs(5)).await;
        let meanwhile = load.book.rate(began, Instant::now());
        cluster.disk(leader)?.thaw()?;
        load.book.more(20, STANDSTILL).await?;
        findings.see(format!(
            "{meanwhile:.0} acknowledgements/s meanwhile, longest without {}",
            words(load.book.longest_gap(began, Instant::now()))
        ));
    }
    let book = load.stop().await;
    judge(&cluster, &book, &mut findings).await?;
    Ok(findings)
}
