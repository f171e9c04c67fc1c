//! Moves over random histories: what is judged in each entry, that the referee agrees, and that a bug is found by both.
//!
//! What must stay true: budgets and places are counted here from the records and the objects, not by the rules of `plan`.

use crate::laws::Judge;
use crate::{referee, world};
use muster_model::{
    Allocation, AllocationId, Change, Epoch, GpuUnits, Job, JobId, JobPhase, MoveFate, MoveRecord, NodeId, Object,
    PreemptReason,
};
use serde_json::Value;
use std::collections::BTreeSet;

const HOUR_MS: u64 = 3_600_000;

/// What moves break in one entry.
pub(crate) fn judge(
    after: &Judge,
    before: &Judge,
    taken: &[(Allocation, JobId, PreemptReason)],
    changes: &[Change],
    broken: &mut Vec<String>,
) {
    no_move_without_a_full_plan(after, before, taken, broken);
    let new: Vec<&MoveRecord> = after.moves.values().filter(|one| !before.moves.contains_key(&one.id)).collect();
    budgets_are_kept(after, before, &new, broken);
    moved_jobs_get_their_places(after, before, changes, broken);
}

/// Whoever is moved said so, is burst, and has a claim on other devices in the same entry; so has the gang.
fn no_move_without_a_full_plan(
    after: &Judge,
    before: &Judge,
    taken: &[(Allocation, JobId, PreemptReason)],
    broken: &mut Vec<String>,
) {
    for (held, by, _) in taken.iter().filter(|(_, _, reason)| *reason == PreemptReason::Move) {
        let job = after.jobs.get(&held.job);
        let movable = before.jobs.get(&held.job).is_some_and(|job| job.spec.movable.is_some());
        if held.account().is_some() || !movable {
            broken.push(format!("move: allocation {} is guaranteed, or its job is not movable", held.id));
        }
        let claim = job.and_then(|job| job.claim.as_ref());
        if claim.is_none_or(|claim| claim.tasks == held.tasks || claim.charge != held.charge) {
            broken.push(format!("move: job {} has no new place", held.job));
        }
        let gang = after.jobs.get(by).and_then(|by| by.claim.as_ref());
        if gang.is_none_or(|gang| !gang.victims.contains(&held.id)) {
            broken.push(format!("move: job {} is moved for job {by}, which gets nothing by it", held.job));
        }
    }
}

fn budgets_are_kept(after: &Judge, before: &Judge, new: &[&MoveRecord], broken: &mut Vec<String>) {
    for (at, made) in new.iter().enumerate() {
        let Some(pool) = before.pools.get(&made.pool) else {
            broken.push(format!("move: pool {} is not there", made.pool));
            continue;
        };
        let earlier = before.moves.values().chain(new[..=at].iter().copied()).filter(|one| one.pool == made.pool);
        let within = |one: &&MoveRecord, ms: u64| one.made_ms + ms > after.now_ms;
        let moves: usize = earlier.clone().filter(|one| within(one, HOUR_MS)).map(|one| one.moved.len()).sum();
        let cost = |one: &MoveRecord| -> u64 {
            one.moved.iter().map(|moved| moved.lost_unit_s.unwrap_or(moved.promised_unit_s)).sum()
        };
        let lost: u64 = earlier.filter(|one| within(one, 24 * HOUR_MS)).map(cost).sum();
        let lost_max = u64::from(pool.moves_lost_gpu_hours_per_day) * 3_600 * GpuUnits::CARD.0;
        if moves > pool.moves_per_hour as usize || lost > lost_max {
            broken.push(format!("budget: {moves} moves in an hour and {lost} unit-seconds in a day in {}", made.pool));
        }
    }
}

/// A moved job that waits again had a place that is not what it was, or was bound there; none is left without a result.
fn moved_jobs_get_their_places(after: &Judge, before: &Judge, changes: &[Change], broken: &mut Vec<String>) {
    let bound: BTreeSet<AllocationId> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Put(object) => match &**object {
                Object::Allocation(held) => Some(held.id),
                _ => None,
            },
            _ => None,
        })
        .collect();
    for job in before.jobs.values() {
        let (Some(claim), Some(_)) = (&job.claim, job.moving) else { continue };
        let Some(now) = after.jobs.get(&job.id).filter(|now| now.claim.is_none()) else { continue };
        let same = |(node, epoch): (&NodeId, &Epoch)| {
            after.nodes.get(node).is_some_and(|node| node.epoch == *epoch && node.accepts_work())
        };
        let kept = claim.node_epochs.iter().all(same);
        if !bound.contains(&claim.allocation) && kept {
            broken.push(format!("move: job {} is {:?} and did not get its place", job.id, now.phase));
        }
    }
    for record in after.moves.values() {
        for moved in record.moved.iter().filter(|moved| moved.lost_unit_s.is_none()) {
            let moving = |job: &Job| job.moving == Some(record.id);
            if !after.jobs.get(&moved.job).is_some_and(moving) {
                broken.push(format!("move: nothing says what became of job {}", moved.job));
            }
        }
    }
}

/// Histories of one run; `MUSTER_HISTORIES` says otherwise.
const HISTORIES: u64 = 100;

#[test]
fn moves_have_a_full_plan_keep_their_budget_and_satisfy_the_referee() {
    let first = crate::number("MUSTER_SEED", 1);
    let (mut logs, mut broken) = (Vec::new(), Vec::new());
    let mut fates = std::collections::BTreeMap::<String, u64>::new();
    let (mut started, mut moves) = (0_u64, 0_u64);
    for seed in first..first + crate::number("MUSTER_HISTORIES", HISTORIES) {
        let history = world::run_moving(seed);
        broken.extend(history.broken.iter().take(3).map(|what| format!("seed {seed}: {what}")));
        let mut judge = Judge::begin(history.begin.iter().cloned());
        history.entries.iter().flatten().for_each(|change| judge.apply(change));
        moves += judge.moves.len() as u64;
        for record in judge.moves.values() {
            started += u64::from(record.started_ms.is_some());
            // Nothing stays under way: every job has ended by now.
            if history.broken.is_empty() && !record.is_closed() {
                broken.push(format!("seed {seed}: move {} has no result: {record:?}", record.id));
            }
            record.moved.iter().for_each(|moved| *fates.entry(moved.fate.to_string()).or_default() += 1);
        }
        logs.push(crate::text(&history.header, &history.lines));
    }
    println!("{moves} moves, {started} gangs started; moved jobs: {fates:?}");
    for (at, found) in referee::judge(&logs).into_iter().flatten().enumerate() {
        let found = found
            .iter()
            .filter(|what| !what.starts_with("capacity-exceeded") || !logs[at].contains("\"event\":\"capacity\""))
            .filter(|what| !ended_by_itself(what, &logs[at]) && !fits_on_its_own_cards(what, &logs[at]));
        broken.extend(found.take(3).map(|what| format!("seed {}: referee: {what}", first + at as u64)));
    }
    assert!(broken.is_empty(), "MUSTER_SEED={first}\n{}", broken.join("\n"));
    let resumed = fates.get(&MoveFate::Resumed.to_string()).copied().unwrap_or(0);
    assert!(started >= 20 && resumed >= 20, "the histories reach what they are for: {fates:?}");
}

/// A moved job that completes in its grace needs no new place: its hold has no victims, so nobody was preempted in vain. The referee asks only
/// whether the hold was used.
fn ended_by_itself(what: &str, log: &str) -> bool {
    let over = what.starts_with("preempted-in-vain").then(|| what.split_once("with the hold of preempt ")).flatten();
    over.and_then(|(_, rest)| rest.split(' ').next()).is_some_and(|preempt| {
        let made = format!("\"event\":\"preempt\",\"preempt\":{preempt},");
        log.lines().any(|line| line.contains(&made) && line.contains("\"victims\":[]"))
    })
}

/// The new place of a moved job may have cards of its old one. The referee counts them twice during the grace: as in use, and as held.
fn fits_on_its_own_cards(what: &str, log: &str) -> bool {
    let Some(rest) = what.strip_prefix("capacity-exceeded, line ") else { return false };
    let numbers: Vec<u64> = rest.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    let (&[line, in_use, held, capacity], Some(model)) = (&numbers[..], rest.rsplit(' ').next()) else { return false };
    let events: Vec<Value> =
        log.lines().take(line as usize).filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |kind: &'static str| events.iter().filter(move |event| event["event"] == kind);
    let victims = of("preempt").filter_map(|event| event["victims"].as_array()).flatten();
    let moved = victims.filter(|victim| victim["reason"] == "move").map(|victim| &victim["alloc"]);
    let stops = moved.filter(|alloc| !of("release").any(|event| event["alloc"] == **alloc));
    let bound = stops.filter_map(|alloc| of("bind").find(|event| event["alloc"] == *alloc));
    let units: u64 = bound.filter_map(|event| event["charge"][format!("gpu.{model}")].as_u64()).sum();
    in_use + held <= capacity + units / GpuUnits::CARD.0
}

/// A moved job whose new place is forgotten: the laws find it in the changes, and the referee in the log.
#[test]
fn a_move_without_a_new_place_is_caught() {
    for seed in 1..=100 {
        let history = world::run_moving(seed);
        assert!(history.broken.is_empty(), "seed {seed}: {:?}", history.broken);
        let mut judge = Judge::begin(history.begin.iter().cloned());
        for (revision, changes) in (1_u64..).zip(&history.entries) {
            let moved = changes.iter().find_map(|change| {
                let Change::Put(object) = change else { return None };
                let Object::Job(job) = &**object else { return None };
                let begins = matches!(job.phase, JobPhase::Stopping(_)) && job.claim.is_some();
                (begins && judge.jobs.get(&job.id).is_some_and(|before| before.moving.is_none())).then_some(job.id)
            });
            let Some(moved) = moved else {
                changes.iter().for_each(|change| judge.apply(change));
                continue;
            };
            let forget = |change: &Change| match change {
                Change::Put(object) => match &**object {
                    Object::Job(job) if job.id == moved => {
                        Change::put(Object::Job(Job { claim: None, ..Job::clone(job) }))
                    }
                    _ => change.clone(),
                },
                _ => change.clone(),
            };
            let planted: Vec<Change> = changes.iter().map(forget).collect();
            let found = judge.clone().entry(&planted);
            let expected = format!("move: job {moved} has no new place");
            assert!(found.contains(&expected), "seed {seed}: {found:?}");

            let is_hold = |line: &&muster_control_core::events::Line| {
                let value: Value = serde_json::to_value(line).expect("JSON");
                value["event"] == "preempt"
                    && value["rev"] == revision
                    && value["job"] == serde_json::json!(moved)
                    && value["victims"] == serde_json::json!([])
            };
            let lines: Vec<_> = history.lines.iter().filter(|line| !is_hold(line)).cloned().collect();
            assert_eq!(lines.len() + 1, history.lines.len(), "the log has the hold of job {moved}");
            if let Some(found) = referee::judge(&[crate::text(&history.header, &lines)]) {
                assert!(found[0].iter().any(|what| what.starts_with("invalid-move")), "{:?}", found[0]);
            }
            return;
        }
    }
    panic!("no history has a move");
}
