//! What goes wrong in a run, drawn from its seed: one fault after another, several at once, each undone after a while.
//!
//! What must stay true: when [`rage`] returns, everything that it broke is whole again: links are mended, disks work, hosts that it
//! took down have been started; what clocks it shifted stay shifted.

use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use muster_runtime::Chance;
use muster_runtime::sim::{LinkQuality, SimWorld};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// How far clocks that are kept well differ from the right time, in milliseconds.
pub const KEPT_CLOCK_MS_MAX: u64 = 400;
/// How far a clock that is wrong jumps.
const WRONG_CLOCK_MS_MAX: u64 = 730 * 86_400_000;

/// What can be crashed and started, and by which names.
pub trait Fleet {
    /// Hosts that keep the replicated state.
    fn voters(&self) -> Vec<String>;

    /// All other servers.
    fn others(&self) -> Vec<String>;

    /// Hosts that are never crashed, but may be cut off: clients.
    fn bystanders(&self) -> Vec<String>;

    /// Hosts that are down unless a fault starts them: each says that it is another host of [`Fleet::others`].
    fn doubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// Hosts whose server keeps what it knows of its tasks in a folder, which may be deleted while the tasks run.
    fn folders(&self) -> Vec<String> {
        Vec::new()
    }

    /// Deletes the folder of a host that is down.
    fn lose_folder(&self, _host: &str) {}

    /// Takes a host down with everything it had not synced.
    fn crash<'a>(&'a self, host: &'a str) -> LocalBoxFuture<'a, ()>;

    /// Starts a host that is down, with what is left on its disk.
    fn start<'a>(&'a self, host: &'a str) -> LocalBoxFuture<'a, ()>;

    /// The voter that leads, if one is known.
    fn leader(&self) -> Option<String>;
}

/// One fault. Durations are how long it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    Crash(String, Duration),
    CrashAllVoters(Duration),
    /// Cut off from every other host, both ways.
    Isolate(String, Duration),
    /// Hears nothing, is heard.
    Deaf(String, Duration),
    /// Is not heard, hears.
    Mute(String, Duration),
    /// Two hosts that do not reach each other, while others reach both.
    Apart(String, String, Duration),
    BadLinks(Duration),
    Skew(String, i64),
    StallDisk(String, Duration),
    /// Every sync fails; then the host is started again, on a disk that works.
    FailDisk(String, Duration),
    /// A host says for a while that it is another.
    Double(String, Duration),
    /// A host is killed, its folder deleted, and started again.
    LoseFolder(String, Duration),
}

/// How hard a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rage {
    /// The longest rest between two faults begun.
    pub rest_ms_max: u64,
    /// The longest that a fault lasts, isolation aside.
    pub fault_ms_max: u64,
    /// The longest that a host is isolated: past the grace of its tasks, where there are any.
    pub isolation_ms_max: u64,
}

/// Breaks things until `end`, then makes them whole.
pub async fn rage(world: &SimWorld, fleet: &dyn Fleet, chance: &Chance, how: Rage, end: Instant) {
    let mut under_way = FuturesUnordered::new();
    // Of the voters, who decide about time, only one has a clock that may be wrong by days.
    let wrong_clock = pick(chance, &fleet.voters());
    while Instant::now() < end {
        let rest = Duration::from_millis(chance.between(50, how.rest_ms_max));
        let next = sleep_until((Instant::now() + rest).min(end));
        tokio::pin!(next);
        loop {
            tokio::select! {
                biased;
                () = &mut next => break,
                Some(()) = under_way.next(), if !under_way.is_empty() => {}
            }
        }
        let fault = draw(fleet, chance, how, &wrong_clock);
        world.note(format_args!("fault {fault:?}"));
        under_way.push(inflict(world, fleet, fault));
    }
    while under_way.next().await.is_some() {}
    world.mend_all();
    world.set_links(LinkQuality::GOOD);
    for host in fleet.voters().into_iter().chain(fleet.others()) {
        if !world.is_up(&host) {
            fleet.start(&host).await;
        }
    }
}

fn pick(chance: &Chance, from: &[String]) -> String {
    from[chance.between(0, from.len() as u64) as usize].clone()
}

fn draw(fleet: &dyn Fleet, chance: &Chance, how: Rage, wrong_clock: &str) -> Fault {
    let (voters, others) = (fleet.voters(), fleet.others());
    let all: Vec<String> = voters.iter().chain(&others).cloned().collect();
    let lasts = Duration::from_millis(chance.between(20, how.fault_ms_max));
    let isolated = Duration::from_millis(chance.between(20, how.isolation_ms_max));
    // Half of what befalls voters befalls the leader, where most can go wrong.
    let voter = match fleet.leader() {
        Some(leader) if chance.between(0, 2) == 0 => leader,
        _ => pick(chance, &voters),
    };
    let any = if others.is_empty() || chance.between(0, 3) == 0 { voter.clone() } else { pick(chance, &others) };
    let (doubles, folders) = (fleet.doubles(), fleet.folders());
    match chance.between(0, 22) {
        19..=20 if !doubles.is_empty() => Fault::Double(pick(chance, &doubles), isolated),
        21 if !folders.is_empty() => Fault::LoseFolder(pick(chance, &folders), lasts),
        0..=4 => Fault::Crash(any, lasts),
        5 => Fault::CrashAllVoters(lasts),
        6..=8 => Fault::Isolate(any, isolated),
        9 => Fault::Deaf(any, isolated),
        10 => Fault::Mute(any, isolated),
        11..=12 => {
            let other = pick(chance, &all);
            Fault::Apart(any, other, lasts)
        }
        13..=14 => Fault::BadLinks(lasts),
        15 => {
            let host = if chance.between(0, 3) == 0 { wrong_clock.to_owned() } else { any };
            let kept = voters.contains(&host) && host != *wrong_clock;
            let most = if kept { KEPT_CLOCK_MS_MAX } else { WRONG_CLOCK_MS_MAX };
            Fault::Skew(host, chance.between(0, 2 * most) as i64 - most as i64)
        }
        16..=17 => Fault::StallDisk(pick(chance, &all), lasts),
        _ => Fault::FailDisk(pick(chance, &all), lasts),
    }
}

async fn inflict(world: &SimWorld, fleet: &dyn Fleet, fault: Fault) {
    let others = |host: &str| -> Vec<String> {
        let all = fleet.voters().into_iter().chain(fleet.others()).chain(fleet.bystanders());
        all.filter(|other| other != host).collect()
    };
    match fault {
        Fault::Crash(host, lasts) => crash(world, fleet, &[host], lasts).await,
        Fault::CrashAllVoters(lasts) => crash(world, fleet, &fleet.voters(), lasts).await,
        Fault::Isolate(host, lasts) => {
            let links =
                others(&host).into_iter().flat_map(|other| [(host.clone(), other.clone()), (other, host.clone())]);
            cut(world, links.collect(), lasts).await;
        }
        Fault::Deaf(host, lasts) => {
            cut(world, others(&host).into_iter().map(|other| (other, host.clone())).collect(), lasts).await;
        }
        Fault::Mute(host, lasts) => {
            cut(world, others(&host).into_iter().map(|other| (host.clone(), other)).collect(), lasts).await;
        }
        Fault::Apart(one, other, lasts) => cut(world, vec![(one.clone(), other.clone()), (other, one)], lasts).await,
        Fault::BadLinks(lasts) => {
            world.set_links(LinkQuality::BAD);
            sleep(lasts).await;
            world.set_links(LinkQuality::GOOD);
        }
        Fault::Double(host, lasts) => {
            // Two faults may want the same host.
            if !world.is_up(&host) {
                fleet.start(&host).await;
                sleep(lasts).await;
                fleet.crash(&host).await;
            }
        }
        Fault::LoseFolder(host, lasts) => {
            fleet.crash(&host).await;
            fleet.lose_folder(&host);
            sleep(lasts).await;
            if !world.is_up(&host) {
                fleet.start(&host).await;
            }
        }
        Fault::Skew(host, skew_ms) => world.skew_wall(&host, skew_ms),
        Fault::StallDisk(host, lasts) => world.stall_disk(&host, lasts),
        Fault::FailDisk(host, lasts) => {
            world.fail_disk(&host, true);
            sleep(lasts).await;
            fleet.crash(&host).await;
            world.fail_disk(&host, false);
            if !world.is_up(&host) {
                fleet.start(&host).await;
            }
        }
    }
}

async fn crash(world: &SimWorld, fleet: &dyn Fleet, hosts: &[String], lasts: Duration) {
    for host in hosts {
        fleet.crash(host).await;
    }
    sleep(lasts).await;
    for host in hosts {
        if !world.is_up(host) {
            fleet.start(host).await;
        }
    }
}

async fn cut(world: &SimWorld, links: Vec<(String, String)>, lasts: Duration) {
    for (from, to) in &links {
        world.cut(from, to);
    }
    sleep(lasts).await;
    for (from, to) in &links {
        world.mend(from, to);
    }
}
