//! Random quota trees and random histories over the real cores, judged by the laws here and by an independent referee.

mod chance;
mod laws;
mod moves;
mod planted;
mod referee;
mod rich;
mod suggestions;
mod tree;
mod windows;
mod world;

use muster_control_core::events::{Header, Line};
use muster_model::{Change, Claim, Key, NodeId, Object, Window};
use std::collections::BTreeMap;

/// How many histories one run of the test has; `MUSTER_HISTORIES` says otherwise, and `MUSTER_SEED` where they begin.
const HISTORIES: u64 = 1_000;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A log as text.
fn text(header: &Header, lines: &[Line]) -> String {
    let mut text = serde_json::to_string(header).expect("JSON");
    for line in lines {
        text.push('\n');
        text.push_str(&serde_json::to_string(line).expect("JSON"));
    }
    text.push('\n');
    text
}
/// Histories with windows: each plans a few, so fewer will do.
const WITH_WINDOWS: u64 = 400;

/// Histories with all that [`rich`] adds, without windows and with them.
const RICH: u64 = 150;

#[test]
fn random_histories_keep_the_laws_and_satisfy_the_referee() {
    judged(HISTORIES, world::run);
}

/// The same with floors that are not lent, floors of CPU and memory, trust, tenants that move, arrays, and jobs that are changed, held and queued again.
#[test]
fn rich_histories_keep_the_laws_and_satisfy_the_referee() {
    judged(RICH, world::run_rich);
}

#[test]
fn rich_histories_with_windows_keep_the_laws_and_satisfy_the_referee() {
    judged(RICH, world::run_rich_with_windows);
}

/// The same with maintenance, reservations and drains by a deadline: nothing is placed that may still run at a start, a reservation's devices are
/// there when it opens, and only those that name it stand on them.
#[test]
fn random_windows_are_kept_and_satisfy_the_referee() {
    judged(WITH_WINDOWS, world::run_with_windows);
}

/// Whether the revision that the referee names binds or claims more than once.
fn binds_several(log: &str, what: &str) -> bool {
    let Some(revision) = number_after(what, "(rev ") else { return false };
    let here = |line: &&str| line.ends_with(&format!("\"rev\":{revision}}}"));
    let binds = |line: &&str| ["bind", "preempt"].iter().any(|event| line.contains(&format!("\"event\":\"{event}\"")));
    log.lines().filter(here).filter(binds).count() > 1
}

/// The number after `before` in what the referee says.
fn number_after(what: &str, before: &str) -> Option<u64> {
    let (_, rest) = what.split_once(before)?;
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

/// Whether the hold that the referee misses was given up since a window has begun on its nodes meanwhile. The referee knows no windows; that nothing is
/// bound in one that is open is judged in `windows.rs`.
fn given_up_for_a_window(history: &world::History, what: &str) -> bool {
    let (Some(revision), Some(job)) = (number_after(what, "(rev "), number_after(what, "for job ")) else {
        return false;
    };
    let (mut windows, mut claimed): (BTreeMap<String, Window>, Option<Box<Claim>>) = Default::default();
    for change in history.entries.iter().take(revision as usize).flatten() {
        match change {
            Change::Put(object) => match &**object {
                Object::Window(window) => drop(windows.insert(window.name.clone(), window.clone())),
                // The last claim that it had is the one that was given up.
                Object::Job(found) if found.id.0 == job => claimed = found.claim.clone().or(claimed),
                _ => {}
            },
            Change::Delete(Key::Window(name)) => drop(windows.remove(name)),
            _ => {}
        }
    }
    let nodes: Vec<NodeId> = claimed.iter().flat_map(|claim| &claim.tasks).map(|task| task.node).collect();
    windows.values().any(|window| window.open && nodes.iter().any(|node| window.nodes.contains(node)))
}

fn judged(histories: u64, run: fn(u64) -> world::History) {
    let first = number("MUSTER_SEED", 1);
    let (mut logs, mut preemptions, mut promotions, mut growth) = (Vec::new(), 0, 0, [0; 3]);
    let mut refusals: BTreeMap<String, u64> = BTreeMap::new();
    let mut broken: Vec<String> = Vec::new();
    for seed in first..first + number("MUSTER_HISTORIES", histories) {
        let history = run(seed);
        broken.extend(history.broken.iter().take(3).map(|what| format!("seed {seed}: {what}")));
        preemptions += history.preemptions;
        promotions += history.promotions;
        growth.iter_mut().zip(history.growth).for_each(|(sum, one)| *sum += one);
        for (what, count) in history.refusals {
            *refusals.entry(what).or_default() += count;
        }
        logs.push(text(&history.header, &history.lines));
        if broken.len() > 30 {
            break;
        }
    }
    println!("{preemptions} preemptions, {promotions} promotions, growth {growth:?}; refusals: {refusals:#?}");
    for (at, found) in referee::judge(&logs).into_iter().flatten().enumerate() {
        let seed = first + at as u64;
        if let Ok(folder) = std::env::var("MUSTER_LOGS")
            && !found.is_empty()
        {
            std::fs::write(format!("{folder}/{seed}.jsonl"), &logs[at]).expect("the folder is there");
        }
        // What is released counts against the allowance for lost capacity, wherever it stood: while others on the lost or drained node still hold theirs,
        // the allowance has shrunk too far. Cards are counted one by one by the state's own check of law 1.
        let found = found
            .iter()
            .filter(|what| !what.starts_with("capacity-exceeded") || !logs[at].contains("\"event\":\"capacity\""))
            // The referee does not know lending by resource, and looks at a step as a whole: what is bound after a burst binding of the same entry may
            // take what was kept from that one. The law judges both.
            .filter(|what| {
                let by_resource = || logs[at].contains("\"lends\":");
                !what.starts_with("unlent-floor-used") || !by_resource() && !binds_several(&logs[at], what)
            })
            .filter(|what| !what.starts_with("preempted-in-vain") || !given_up_for_a_window(&run(seed), what));
        broken.extend(found.take(3).map(|what| format!("seed {seed}: referee: {what}")));
    }
    assert!(broken.is_empty(), "MUSTER_SEED={first}\n{}", broken.join("\n"));
    assert!(preemptions > 0 && promotions > 0, "the histories reach what they are for");
    assert!(growth.iter().all(|count| *count > 0), "gangs grow, give back and are preempted: {growth:?}");
}
