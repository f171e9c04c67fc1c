//! Ten bugs that a scheduler could have, each planted in a good history: the laws of [`crate::laws`] find it in the changes, and the referee finds it in
//! the log.
//!
//! What must stay true: a history is good before the bug is planted, for both; the bug is one and the same in the changes and in the log.

use crate::laws::Judge;
use crate::{referee, world};
use muster_model::resources::Resource;
use muster_model::{
    Allocation, AllocationState, Change, EndCause, GpuModel, Job, JobId, JobPhase, Limits, Object, PreemptReason,
    Tenant, TenantId,
};
use serde_json::{Value, json};

/// Histories that are looked through for places where each bug can be planted.
const SEEDS: u64 = 400;

/// A planted bug.
struct Planted {
    /// The changes of one entry, after `before`.
    changes: Vec<Change>,
    before: Judge,
    log: Vec<Value>,
}

/// A good entry, and the good log that it is part of.
struct Place<'a> {
    begin: &'a [Object],
    before: &'a Judge,
    after: &'a Judge,
    changes: &'a [Change],
    log: &'a [Value],
    revision: u64,
}

type Plant = fn(&Place<'_>) -> Option<Planted>;

/// The bugs: what it is, how it is planted, what the laws call it, and the referee.
const BUGS: [(&str, Plant, &str, &str); 10] = [
    ("a floor is preempted", floor_preempted, "law 4: guaranteed allocation", "floor-preempted"),
    ("a child is above its max", child_above_max, "law 3:", "max-exceeded"),
    (
        "a victim below the lowest common ancestor is within its guarantee",
        within_guarantee,
        "reclaim: the side",
        "reclaim-within-guarantee",
    ),
    ("a gang is preempted by half", half_preempted, "law 2: job", "gang-split"),
    ("a hold is given away", given_away, "law 2: the hold of job", "hold-mismatch"),
    ("a promotion is forgotten", promotion_forgotten, "promotion: burst allocation", "promotion-missed"),
    ("two jobs evict each other", cycle, "law 12: job", "preemption-cycle"),
    ("growth is charged to a floor", growth_guaranteed, "law 4: growth", "invalid-account"),
    ("a minimum is preempted before its growth", growth_kept, "law 2: job", "gang-split"),
    ("burst uses a floor that is not lent", kept_floor_used, "lending: burst", "unlent-floor-used"),
];

fn put(object: Object) -> Change {
    Change::put(object)
}

/// The last value that an entry gives an allocation, by its place among the changes.
fn allocations(changes: &[Change]) -> impl DoubleEndedIterator<Item = (usize, &Allocation)> {
    changes.iter().enumerate().filter_map(|(at, change)| match change {
        Change::Put(object) => match &**object {
            Object::Allocation(held) => Some((at, held)),
            _ => None,
        },
        _ => None,
    })
}

impl Place<'_> {
    /// The line of the log that begins a preemption for this job in this entry.
    fn preempt_of(&self, job: JobId) -> Option<usize> {
        let is_it = |line: &Value| line["event"] == "preempt" && line["job"] == json!(job) && self.is_here(line);
        self.log.iter().position(is_it)
    }

    fn is_here(&self, line: &Value) -> bool {
        line["rev"] == json!(self.revision)
    }

    /// A reclaim of this entry: for whom.
    fn reclaim(&self) -> Option<&Job> {
        let taken = self.after.taken(self.before, self.changes);
        let (_, by, _) = taken.into_iter().find(|(_, _, reason)| *reason == PreemptReason::Reclaim)?;
        self.after.jobs.get(&by)
    }

    /// One more victim of this entry's reclaim.
    fn one_more(&self, fits: impl Fn(&Job, &Allocation) -> bool) -> Option<Planted> {
        let by = self.reclaim()?;
        let line = self.preempt_of(by.id)?;
        let touched = |held: &Allocation| allocations(self.changes).any(|(_, other)| other.id == held.id);
        let active = self.after.held.values().filter(|held| held.state == AllocationState::Active && !touched(held));
        let victim = active.into_iter().find(|held| held.tenant != by.tenant && fits(by, held))?;
        let cause = EndCause::Preempted { by: Some(by.id), reason: PreemptReason::Reclaim };
        let mut changes = self.changes.to_vec();
        changes.push(put(Object::Allocation(Allocation { state: AllocationState::Stopping(cause), ..victim.clone() })));
        let mut log = self.log.to_vec();
        let named = json!({"alloc": victim.id, "job": victim.job, "reason": "reclaim", "grace_ms": 0});
        log[line]["victims"].as_array_mut()?.push(named);
        Some(Planted { changes, before: self.before.clone(), log })
    }
}

fn floor_preempted(place: &Place<'_>) -> Option<Planted> {
    place.one_more(|_, held| held.account().is_some())
}

fn within_guarantee(place: &Place<'_>) -> Option<Planted> {
    let used = place.before.used();
    place.one_more(|by, held| {
        let mine: Vec<TenantId> = place.before.line(by.tenant).map(|at| at.id).collect();
        let Some(side) = place.before.line(held.tenant).take_while(|at| !mine.contains(&at.id)).last() else {
            return false;
        };
        let Some(claim) = &by.claim else { return false };
        let both = |model: &GpuModel| held.charge.gpu(*model).0 > 0 && claim.charge.gpu(*model).0 > 0;
        let both: Vec<Resource> = GpuModel::ALL.into_iter().filter(both).map(Resource::Gpu).collect();
        let use_of = used.get(&side.id).copied().unwrap_or_default();
        let within = |resource: &Resource| use_of.get(*resource) <= side.guarantee.get(*resource);
        held.account().is_none() && !both.is_empty() && both.iter().all(within)
    })
}

/// The tree said another max from the beginning than the one that was kept.
fn child_above_max(place: &Place<'_>) -> Option<Planted> {
    let fresh = |held: &&Allocation| !place.before.held.contains_key(&held.id);
    let child = |held: &&Allocation| place.before.tenants.get(&held.tenant).is_some_and(|at| at.parent.is_some());
    let held = allocations(place.changes).map(|(_, held)| held).filter(fresh).find(child)?;
    let (model, units) = held.charge.gpus().find(|(_, units)| units.0 > 0)?;
    let max = Limits { gpu: [(model, muster_model::GpuUnits(units.0 - 1))].into(), ..Limits::default() };
    let tenant = Tenant { max: max.clone(), ..place.before.tenants.get(&held.tenant)?.clone() };
    place
        .begin
        .iter()
        .find(|object| matches!(object, Object::Tenant(at) if at.id == tenant.id && at.path == tenant.path))?;
    let mut before = place.before.clone();
    before.apply(&put(Object::Tenant(tenant.clone())));
    let mut log = place.log.to_vec();
    let record = log[0]["tree"].as_array_mut()?.iter_mut().find(|at| at["path"] == json!(tenant.path))?;
    record["max"] = json!({ (format!("gpu.{model}")): units.0 - 1 });
    Some(Planted { changes: place.changes.to_vec(), before, log })
}

fn half_preempted(place: &Place<'_>) -> Option<Planted> {
    let taken = place.after.taken(place.before, place.changes);
    let (victim, by, _) = taken.into_iter().find(|(victim, _, _)| victim.tasks.len() > 1)?;
    let line = place.preempt_of(by)?;
    let mut changes = place.changes.to_vec();
    let (at, held) = allocations(place.changes).rfind(|(_, held)| held.id == victim.id)?;
    let mut held = held.clone();
    drop((held.tasks.pop(), held.task_states.pop()));
    changes[at] = put(Object::Allocation(held));
    // In the log the gang has one task more than the preemption names.
    let tenant = place.before.tenants.get(&victim.tenant)?;
    let mut log = place.log.to_vec();
    let rest = json!({"event": "bind", "t": log[line]["t"], "rev": log[line]["rev"], "alloc": 1_000_000_001, "job": victim.job,
        "attempt": victim.attempt, "tenant": tenant.path, "tasks": 1, "charge": {"cpu_milli": 1}, "kind": "burst", "elastic": true});
    log.insert(line, rest);
    Some(Planted { changes, before: place.before.clone(), log })
}

/// What was claimed for one job becomes another's.
fn given_away(place: &Place<'_>) -> Option<Planted> {
    let claimed = |held: &Allocation| {
        let mut claims = place.before.jobs.values().filter_map(|job| job.claim.as_ref());
        claims.any(|claim| claim.allocation == held.id)
    };
    let (at, held) = allocations(place.changes).rfind(|(_, held)| claimed(held))?;
    let line = place.log.iter().position(|line| {
        line["event"] == "bind"
            && line["alloc"] == json!(held.id)
            && line["for_preempt"].is_u64()
            && place.is_here(line)
    })?;
    let waits = |job: &&Job| job.phase == JobPhase::Queued && job.claim.is_none() && job.id != held.job;
    let other = place.after.jobs.values().find(waits)?;
    let tenant = place.after.tenants.get(&other.tenant)?;
    let mut changes = place.changes.to_vec();
    changes[at] = put(Object::Allocation(Allocation { job: other.id, tenant: other.tenant, ..held.clone() }));
    let mut log = place.log.to_vec();
    log[line]["job"] = json!(other.id);
    log[line]["tenant"] = json!(tenant.path);
    log[line]["attempt"] = json!(other.attempt.0 + 1);
    log[line]["tasks"] = json!(other.spec.tasks);
    Some(Planted { changes, before: place.before.clone(), log })
}

fn promotion_forgotten(place: &Place<'_>) -> Option<Planted> {
    let promoted = |(_, held): &(usize, &Allocation)| {
        let before = place.before.held.get(&held.id);
        held.pays() && held.account().is_some() && before.is_some_and(|before| before.account().is_none())
    };
    let (at, held) = allocations(place.changes).rfind(promoted)?;
    let classes = place.before.held.get(&held.id)?.classes.clone();
    let mut changes = place.changes.to_vec();
    changes[at] = put(Object::Allocation(Allocation { classes, ..held.clone() }));
    let mut log = place.log.to_vec();
    let is_it = |line: &Value| line["event"] == "promote" && line["alloc"] == json!(held.id) && place.is_here(line);
    log.remove(log.iter().position(is_it)?);
    Some(Planted { changes, before: place.before.clone(), log })
}

fn growth_guaranteed(place: &Place<'_>) -> Option<Planted> {
    let fresh = |held: &Allocation| held.is_growth && !place.before.held.contains_key(&held.id);
    let (at, held) = allocations(place.changes).rfind(|(_, held)| fresh(held))?;
    let is_it = |line: &Value| line["event"] == "bind" && line["alloc"] == json!(held.id) && place.is_here(line);
    let line = place.log.iter().position(is_it)?;
    let mut guaranteed = held.clone();
    guaranteed.set_class(Some(held.tenant).into(), held.bound_ms);
    let mut changes = place.changes.to_vec();
    changes[at] = put(Object::Allocation(guaranteed));
    let mut log = place.log.to_vec();
    log[line]["kind"] = json!("guaranteed");
    log[line]["account"] = json!(place.after.tenants.get(&held.tenant)?.path);
    Some(Planted { changes, before: place.before.clone(), log })
}

/// The growth of a victim is left out of the preemption of its minimum.
fn growth_kept(place: &Place<'_>) -> Option<Planted> {
    let taken = place.after.taken(place.before, place.changes);
    let minimum = |part: &Allocation| taken.iter().any(|(held, ..)| held.job == part.job && !held.is_growth);
    let (part, by, _) = taken.iter().find(|(held, ..)| held.is_growth && minimum(held))?;
    let line = place.preempt_of(*by)?;
    let of_part = |change: &Change| allocations(std::slice::from_ref(change)).any(|(_, held)| held.id == part.id);
    let changes = place.changes.iter().filter(|change| !of_part(change)).cloned().collect();
    let mut log = place.log.to_vec();
    log[line]["victims"].as_array_mut()?.retain(|victim| victim["alloc"] != json!(part.id));
    Some(Planted { changes, before: place.before.clone(), log })
}

/// The tree said from the beginning that a tenant does not lend whose idle guarantee is more than what a new burst allocation of another leaves.
fn kept_floor_used(place: &Place<'_>) -> Option<Planted> {
    let Judge { tenants, .. } = place.after;
    if *tenants != place.before.tenants || place.after.nodes != place.before.nodes {
        return None;
    }
    let fresh =
        |held: &&Allocation| !place.before.held.contains_key(&held.id) && held.pays() && held.account().is_none();
    let held = allocations(place.changes).map(|(_, held)| held).find(fresh)?;
    let (model, _) = held.charge.gpus().find(|(_, units)| units.0 > 0)?;
    let resource = Resource::Gpu(model);
    let (used, mine) = (place.after.used(), place.after.line(held.tenant).map(|at| at.id).collect::<Vec<_>>());
    let use_of = |at: &Tenant| used.get(&at.id).map_or(0, |used| used.get(resource));
    let in_use: u64 = tenants.values().filter(|at| at.parent.is_none()).map(use_of).sum();
    let free = place.after.healthy().get(resource).saturating_sub(in_use);
    let owner = tenants.values().find(|at| {
        let idle = at.guarantee.get(resource).saturating_sub(use_of(at));
        let same = place.begin.iter().any(|object| matches!(object, Object::Tenant(began) if began == *at));
        !mine.contains(&at.id) && idle > free && same
    })?;
    let mut before = place.before.clone();
    before.apply(&put(Object::Tenant(Tenant { lend: false, ..owner.clone() })));
    let mut log = place.log.to_vec();
    let record = log[0]["tree"].as_array_mut()?.iter_mut().find(|at| at["path"] == json!(owner.path))?;
    record["lend"] = json!(false);
    Some(Planted { changes: place.changes.to_vec(), before, log })
}

/// Whoever was evicted evicts the one that evicted it.
fn cycle(place: &Place<'_>) -> Option<Planted> {
    let back = |(victim, taker): &(&JobId, &muster_model::AllocationId)| {
        let job = place.after.jobs.get(victim)?;
        let held = place.after.held.get(taker).filter(|held| held.state == AllocationState::Active)?;
        (job.phase == JobPhase::Queued && job.claim.is_none()).then(|| (job.clone(), held.clone()))
    };
    let (job, held) = place.after.reclaimed_from.iter().find_map(|pair| back(&pair))?;
    let claim = place.before.jobs.values().find_map(|job| job.claim.clone())?;
    let cause = EndCause::Preempted { by: Some(job.id), reason: PreemptReason::Reclaim };
    let mut mine = claim;
    (mine.charge, mine.account, mine.victims) = (held.charge, None, [held.id].into());
    mine.allocation = muster_model::AllocationId(1_000_000_002);
    let changes = vec![
        put(Object::Allocation(Allocation { state: AllocationState::Stopping(cause), ..held.clone() })),
        put(Object::Job(Job { claim: Some(mine), ..job.clone() })),
    ];
    let last = place.log.iter().rposition(|line| place.is_here(line))?;
    let charge: serde_json::Map<String, Value> =
        held.charge.nonzero().map(|(resource, amount)| (resource.to_string(), json!(amount))).collect();
    let mut log = place.log.to_vec();
    let preempt = json!({"event": "preempt", "t": log[last]["t"], "rev": log[last]["rev"], "preempt": 1_000_000_002, "job": job.id,
        "charge": charge, "victims": [{"alloc": held.id, "job": held.job, "reason": "reclaim", "grace_ms": 0}]});
    log.insert(last + 1, preempt);
    Some(Planted { changes, before: place.after.clone(), log })
}

fn values(history: &world::History) -> Vec<Value> {
    let header = serde_json::to_value(&history.header).expect("JSON");
    let lines = history.lines.iter().map(|line| serde_json::to_value(line).expect("JSON"));
    std::iter::once(header).chain(lines).collect()
}

fn text(log: &[Value]) -> String {
    log.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn each_planted_bug_is_found_by_the_laws_and_by_the_referee() {
    let mut found: Vec<Option<(u64, Planted, String)>> = BUGS.iter().map(|_| None).collect();
    for seed in 1..=SEEDS {
        if found.iter().all(Option::is_some) {
            break;
        }
        let history = world::run(seed);
        assert!(history.broken.is_empty(), "seed {seed}: {:?}", history.broken);
        let log = values(&history);
        // What the referee does not understand of lost nodes is no good history here.
        if log.iter().any(|line| line["why"] == "lost") {
            continue;
        }
        let mut judge = Judge::begin(history.begin.iter().cloned());
        for (at, changes) in history.entries.iter().enumerate() {
            let before = judge.clone();
            assert_eq!(judge.entry(changes), Vec::<String>::new(), "seed {seed}: it was good");
            let (begin, revision) = (&history.begin, at as u64 + 1);
            let place = Place { begin, before: &before, after: &judge, changes, log: &log, revision };
            for ((_, plant, _, _), found) in BUGS.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
                *found = plant(&place).map(|planted| (seed, planted, text(&log)));
            }
        }
    }
    let mut logs = Vec::new();
    for ((name, _, law, _), found) in BUGS.iter().zip(&found) {
        let Some((seed, planted, good)) = found else { panic!("no place for: {name}") };
        let broken = planted.before.clone().entry(&planted.changes);
        assert!(broken.iter().any(|what| what.contains(law)), "{name}, seed {seed}: the laws find {broken:?}");
        logs.extend([good.clone(), text(&planted.log)]);
    }
    let Some(judged) = referee::judge(&logs) else { return };
    for (((name, _, _, check), pair), found) in BUGS.iter().zip(judged.chunks(2)).zip(&found) {
        let seed = found.as_ref().map_or(0, |(seed, _, _)| *seed);
        assert!(pair[0].is_empty(), "{name}, seed {seed}: the referee rejects the good log: {:?}", pair[0]);
        let rejected = pair[1].iter().any(|what| what.starts_with(check));
        assert!(rejected, "{name}, seed {seed}: the referee finds {:?}", pair[1]);
    }
}
