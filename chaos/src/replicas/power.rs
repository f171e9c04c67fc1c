//! Voters lose power, any of them at once, between any two events of the run; the others are cut off meanwhile, or not.
//!
//! An answer that comes before enough disks have synced is wrong only while those disks sync, so some disks are slow just before, and power
//! goes between any two events. Whoever has what was answered may be away while the others, back with what their disks kept, elect a
//! leader and go on. What must stay true: when [`lose`] returns, all voters are up and all links whole.

use super::cluster::Cluster;
use crate::nemesis::Fleet;
use muster_runtime::Chance;
use muster_runtime::sim::SimWorld;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How many events at most go by while disks are slow, before the loss: a submission takes about fifty.
const EVENTS_MAX: u64 = 120;
/// How much later than usual syncs may end then.
const SLOW_MS_MAX: u64 = 300;
/// The longest that a voter is without power.
const DARK_MS_MAX: u64 = 400;
/// The longest that the others are cut off: several elections.
const AWAY_MS_MAX: u64 = 4_000;
/// The longest rest before the next loss.
const REST_MS_MAX: u64 = 1_500;
/// Nothing may happen for as long while no leader is there.
const EVENTS_WITHIN: Duration = Duration::from_secs(2);

/// Loses power again and again until `end`.
pub(super) async fn lose(world: &SimWorld, cluster: &Cluster, chance: &Chance, end: Instant) {
    while Instant::now() < end {
        sleep(Duration::from_millis(chance.between(50, REST_MS_MAX))).await;
        let voters = cluster.voters();
        // The leader's answers are at stake; with it and one more slow, only the third may have what was answered.
        let leader = voters.iter().position(|host| Some(host) == cluster.leader().as_ref());
        let slow = match leader {
            Some(leader) if chance.between(0, 2) == 0 => {
                1 << leader | 1 << ((leader as u64 + chance.between(1, voters.len() as u64)) % voters.len() as u64)
            }
            _ => chance.between(0, 1 << voters.len()),
        };
        for (place, host) in voters.iter().enumerate().filter(|(place, _)| slow >> place & 1 == 1) {
            world.note(format_args!("slow disk of voter {place}"));
            world.stall_disk(host, Duration::from_millis(chance.between(1, SLOW_MS_MAX)));
        }
        // A few of the events that are waited for never come.
        let _ = timeout(EVENTS_WITHIN, world.after_events(chance.between(1, EVENTS_MAX))).await;
        let any = chance.between(1, 1 << voters.len());
        let hit = if chance.between(0, 2) == 0 { slow.max(1) } else { any };
        let (dark, lit): (Vec<_>, Vec<_>) = voters.iter().enumerate().partition(|(place, _)| hit >> place & 1 == 1);
        let cut_off = chance.between(0, 3) > 0;
        world.note(format_args!("power lost by {dark:?}, others cut off: {cut_off}"));
        for (_, host) in &dark {
            cluster.crash(host).await;
        }
        // When all are dark, one of them comes back later than the others.
        let late =
            if lit.is_empty() { Some(voters[chance.between(0, voters.len() as u64) as usize].clone()) } else { None };
        if cut_off {
            for (_, host) in &lit {
                let others = voters.iter().filter(|other| other != host).map(String::as_str);
                world.partition([host.as_str()], others);
            }
        }
        sleep(Duration::from_millis(chance.between(1, DARK_MS_MAX))).await;
        for (_, host) in dark.iter().filter(|(_, host)| Some(*host) != late.as_ref()) {
            cluster.start(host).await;
        }
        sleep(Duration::from_millis(chance.between(1, AWAY_MS_MAX))).await;
        world.mend_all();
        if let Some(late) = late {
            cluster.start(&late).await;
        }
    }
}
