//! The laws, each watched over many random histories, and each shown to be caught when it is broken on purpose.

mod common;
mod isolation;
mod starts;

use common::{Step, Story, acknowledged, bytes_of, catches, holds, put, seeds};
use muster_control_core::{Command, Done, Entry, Executed, Reject, State, execute, plan};
use muster_model::ids::{AllocationId, CellId, Epoch, JobId, NodeId};
use muster_model::laws::IN_FORCE;
use muster_model::object::Key;
use muster_model::usage::UnitMs;
use muster_model::{Allocation, Change, DeviceRequest, HoldMode, Job, Object, TaskState, Trust};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Watched = Result<(), String>;

/// The state's own checks, after every entry, growth over a max, and use of what is not lent.
fn checked(step: &Step<'_>) -> Watched {
    step.after.check().map_err(|broken| broken.to_string())?;
    step.after.check_growth(step.before).map_err(|broken| broken.to_string())?;
    step.after.check_lending(step.before).map_err(|broken| broken.to_string())
}

/// No edit, no move and no binding puts use above a max, from feature level 3 on; and a live job names the path of its tenant.
fn under_max(step: &Step<'_>) -> Watched {
    if step.before.meta.feature_level < 3 {
        return Ok(());
    }
    let within = |state: &State, id, resource| {
        let (tenant, at) = (state.tenants.get(&id), state.capacity().tenants().get(&id));
        tenant
            .zip(at)
            .is_none_or(|(tenant, at)| tenant.max.get(resource).is_none_or(|max| at.used.get(resource) <= max))
    };
    for (id, at) in step.after.capacity().tenants() {
        for (resource, used) in at.used.nonzero() {
            if within(step.before, *id, resource) && !within(step.after, *id, resource) {
                return Err(format!("tenant {} uses {used} of {resource}, above its max", at.path));
            }
        }
    }
    let named =
        |job: &&Arc<Job>| step.after.tenants.get(&job.tenant).is_some_and(|tenant| tenant.path == job.spec.tenant);
    match step.after.jobs.values().find(|job| !named(job)) {
        Some(job) => Err(format!("job {} names {}, which is not its tenant", job.id, job.spec.tenant)),
        None => Ok(()),
    }
}

/// Guarantees of all organisations that an entry raised fit into what the fleet has at its end or had before: hardware may go in the same entry.
fn promises_fit(step: &Step<'_>) -> Watched {
    let (before, after) = (step.before.capacity(), step.after.capacity());
    if step.before.meta.feature_level < 3 || before.nodes().is_empty() {
        return Ok(());
    }
    for (resource, guaranteed_total) in after.guaranteed_total().nonzero() {
        let there = before.healthy().get(resource).max(after.healthy().get(resource));
        if guaranteed_total > before.guaranteed_total().get(resource) && guaranteed_total > there {
            return Err(format!("{guaranteed_total} of {resource} are guaranteed now, {there} are there"));
        }
    }
    Ok(())
}

#[test]
fn law_3_no_edit_puts_use_above_a_max_or_guarantees_above_the_fleet() {
    holds("law_3_no_edit", || under_max);
    holds("law_3_no_edit", || promises_fit);
    catches(
        "above its max",
        || under_max,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let used = state.capacity().tenants().iter().find(|(_, at)| at.used.nonzero().next().is_some());
                let Some(id) = used.map(|(id, _)| *id) else { return };
                let Some(mut tenant) = state.tenants.get(&id).cloned() else { return };
                tenant.max.gpu.insert(muster_model::GpuModel::H100, muster_model::GpuUnits(1));
                put(state, Object::Tenant(tenant));
            }
        },
    );
}

fn clone_of(state: &State, which: impl Fn(&Allocation) -> bool) -> Option<Allocation> {
    state.allocations.values().find(|held| which(held)).map(|held| Allocation::clone(held))
}

#[test]
fn law_1_nothing_is_held_twice() {
    holds("law_1", || checked);
    // A second allocation on the same devices. The capacity ledger would refuse to charge it, so it enters behind its back.
    catches(
        "law 1 is broken",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                if let Some(mut twin) = clone_of(state, |held| !held.charge.gpus().collect::<Vec<_>>().is_empty()) {
                    twin.id = AllocationId(1_000_000);
                    state.allocations.insert(twin.id, Arc::new(twin));
                }
            }
        },
    );
    // A share that has grown beyond the card.
    catches(
        "oversubscribed",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let shared = |hold: &HoldMode| matches!(hold, HoldMode::Mps { .. });
                let found = clone_of(state, |held| held.tasks.iter().flat_map(|t| &t.devices).any(|h| shared(&h.mode)));
                if let Some(mut grown) = found {
                    for hold in grown.tasks.iter_mut().flat_map(|task| &mut task.devices) {
                        hold.mode = HoldMode::Mps { percent: 100, memory_mib: 200_000 };
                    }
                    state.allocations.insert(grown.id, Arc::new(grown));
                }
            }
        },
    );
}

#[test]
fn law_1_a_card_is_in_one_mode() {
    // One share of a card turns into another kind under its neighbour.
    catches(
        "several modes at once",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let mut seen: BTreeMap<(NodeId, u16), AllocationId> = BTreeMap::new();
                let mut second = None;
                for held in state.allocations.values() {
                    for task in &held.tasks {
                        for hold in &task.devices {
                            let first = *seen.entry((task.node, hold.gpu)).or_insert(held.id);
                            second = second.or((first != held.id).then_some((held.id, task.node, hold.gpu)));
                        }
                    }
                }
                let Some((id, node, gpu)) = second else { return };
                let Some(mut turned) = clone_of(state, |held| held.id == id) else { return };
                for task in turned.tasks.iter_mut().filter(|task| task.node == node) {
                    for hold in task.devices.iter_mut().filter(|hold| hold.gpu == gpu) {
                        hold.mode = match hold.mode {
                            HoldMode::TimeSlice { .. } => HoldMode::Mps { percent: 1, memory_mib: 1 },
                            _ => HoldMode::TimeSlice { memory_mib: 1 },
                        };
                    }
                }
                state.allocations.insert(id, Arc::new(turned));
            }
        },
    );
}

/// What is newly bound on a card that its pool pins is one of the layout's slots, counted by hand.
fn slots_alone() -> impl FnMut(&Step<'_>) -> Watched {
    |step| {
        let pools_change = |command: &Command| matches!(command, Command::PutPool(_) | Command::DeletePool { .. });
        if step.entry.commands.iter().any(pools_change) {
            return checked(step);
        }
        for change in step.changes {
            let Change::Put(object) = change else { continue };
            let Object::Allocation(held) = &**object else { continue };
            if step.before.allocations.contains_key(&held.id) {
                continue;
            }
            for task in &held.tasks {
                let Some(node) = step.before.nodes.get(&task.node) else { continue };
                let Some(pool) = step.before.pools.get(&node.spec.pool) else { continue };
                for hold in &task.devices {
                    let (before, card) =
                        (&node.spec.gpus[..usize::from(hold.gpu)], &node.spec.gpus[usize::from(hold.gpu)]);
                    let rank = before.iter().filter(|other| other.model == card.model).count();
                    let Some(pin) = pool.pinned.get(&card.model) else { continue };
                    let pinned = pin.cards_per_node().is_none_or(|cards| rank < usize::from(cards));
                    let slot = matches!(hold.mode, HoldMode::Mig(place) if pin.slots().contains(&place));
                    if pinned && !slot {
                        return Err(format!("{} is bound on a card pinned to {:?}", hold.mode, pin.slots()));
                    }
                }
            }
        }
        checked(step)
    }
}

#[test]
fn pinned_cards_serve_their_slots_alone() {
    holds("pinned", slots_alone);
    // A slot that was bound turns out to be something else.
    catches("is bound on a card pinned to", slots_alone, || {
        |_, _: &mut State, executed: &mut Executed| {
            for change in &mut executed.changes {
                let Change::Put(object) = change else { continue };
                let mut turned = Object::clone(object);
                let Object::Allocation(held) = &mut turned else { continue };
                for hold in held.tasks.iter_mut().flat_map(|task| &mut task.devices) {
                    if matches!(hold.mode, HoldMode::Mig(_)) {
                        hold.mode = HoldMode::TimeSlice { memory_mib: 1 };
                    }
                }
                *change = Change::put(turned);
            }
        }
    });
}

/// Every accepted binding holds all that was asked; a refused one holds nothing.
fn whole_gangs() -> impl FnMut(&Step<'_>) -> Watched {
    |step| {
        for (command, decided) in step.entry.commands.iter().zip(step.decided) {
            let Command::Bind(binding) = command else { continue };
            let bound = step.changes.iter().find_map(|change| match change {
                Change::Put(object) => match &**object {
                    Object::Allocation(held) if held.job == binding.job && held.attempt == binding.attempt => {
                        Some(held)
                    }
                    _ => None,
                },
                _ => None,
            });
            if let (Ok(Done::Bound { .. }), Some(held)) = (decided, bound) {
                let asked = step.before.jobs.get(&binding.job).map(|job| job.spec.tasks as usize);
                if asked.is_some_and(|asked| asked != held.tasks.len()) || held.tasks != binding.tasks {
                    return Err(format!("law 2: {asked:?} tasks were asked, {} are bound", held.tasks.len()));
                }
            }
        }
        checked(step)
    }
}

#[test]
fn law_2_gangs_are_bound_whole() {
    holds("law_2", whole_gangs);
    catches("law 2", whole_gangs, || {
        |_, state: &mut State, _: &mut Executed| {
            if let Some(mut part) = clone_of(state, |held| held.tasks.len() > 1) {
                drop((part.tasks.pop(), part.task_states.pop()));
                state.allocations.insert(part.id, Arc::new(part));
            }
        }
    });
    // An attempt that is over keeps its devices.
    catches("still holds its devices", whole_gangs, || {
        |_, state: &mut State, _: &mut Executed| {
            if let Some(mut over) = clone_of(state, |_| true) {
                over.task_states.iter_mut().for_each(|state| *state = TaskState::Exited { code: 0 });
                state.allocations.insert(over.id, Arc::new(over));
            }
        }
    });
}

#[test]
fn law_3_no_tenant_exceeds_its_max() {
    holds("law_3", || checked);
    // Whatever is bound, its tenant's max sinks below it before the step is judged, as if the binding had passed it.
    catches(
        "law 3 is broken: tenant",
        || checked,
        || {
            |_, state: &mut State, executed: &mut Executed| {
                for change in &executed.changes {
                    let Change::Put(object) = change else { continue };
                    let Object::Allocation(held) = &**object else { continue };
                    let new = held.task_states.iter().all(|state| *state == TaskState::Pending);
                    if new && let Some(tenant) = state.tenants.get_mut(&held.tenant) {
                        tenant.max.cpu_milli = Some(0);
                    }
                }
            }
        },
    );
    catches(
        "are guaranteed",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let parent = state.tenants.values().find(|tenant| tenant.parent.is_none()).cloned();
                if let Some(mut parent) = parent {
                    parent.guarantee = muster_model::ResourceVec::default();
                    put(state, Object::Tenant(parent));
                }
            }
        },
    );
    // A charge that is not in the capacity ledger.
    catches(
        "the capacity ledger says",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                if let Some(mut dearer) = clone_of(state, |_| true) {
                    dearer.charge = dearer.charge.times(2);
                    state.allocations.insert(dearer.id, Arc::new(dearer));
                }
            }
        },
    );
}

/// Every acknowledged job is live or over exactly once; ids are new whenever they are given out.
fn nothing_is_lost() -> impl FnMut(&Step<'_>) -> Watched {
    let mut known: BTreeSet<JobId> = BTreeSet::new();
    let mut over: BTreeSet<JobId> = BTreeSet::new();
    let mut allocations: BTreeSet<AllocationId> = BTreeSet::new();
    let mut attempts: BTreeMap<(JobId, u32), AllocationId> = BTreeMap::new();
    let mut requests: BTreeMap<(String, u64), Done> = BTreeMap::new();
    move |step| {
        for (command, decided) in step.entry.commands.iter().zip(step.decided) {
            let (Command::Submit { request_id, payload_hash, .. }, Ok(done)) = (command, decided) else { continue };
            let before = requests.entry((request_id.clone(), *payload_hash)).or_insert_with(|| done.clone());
            if before != done {
                return Err(format!("law 5: request {request_id} was answered {before:?} and then {done:?}"));
            }
        }
        let fresh: Vec<JobId> = acknowledged(step).into_iter().filter(|id| !known.contains(id)).collect();
        for id in &fresh {
            if *id < step.before.meta.next_job {
                return Err(format!("law 5: job id {id} was given out before"));
            }
        }
        known.extend(fresh);
        for change in step.changes {
            match change {
                Change::Retire(job) if !over.insert(job.id) => {
                    return Err(format!("law 5: job {} ended twice", job.id));
                }
                Change::Put(object) => match &**object {
                    Object::Allocation(held) => {
                        let bound = attempts.entry((held.job, held.attempt.0)).or_insert(held.id);
                        // A claim's id was given out with the claim.
                        let claimed = step.before.jobs.get(&held.job).and_then(|job| job.claim.as_ref());
                        let claimed = claimed.is_some_and(|claim| claim.allocation == held.id);
                        let old = !claimed && held.id < step.before.meta.next_allocation;
                        if *bound != held.id || (!allocations.contains(&held.id) && old) {
                            return Err(format!("law 5: allocation {} repeats an attempt or an id", held.id));
                        }
                        allocations.insert(held.id);
                    }
                    Object::Job(job) if over.contains(&job.id) => {
                        return Err(format!("law 5: job {} came back", job.id));
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        if let Some(lost) = known.iter().find(|id| !over.contains(id) && !step.after.jobs.contains_key(id)) {
            return Err(format!("law 5: job {lost} was acknowledged and is lost"));
        }
        checked(step)
    }
}

#[test]
fn law_5_acknowledged_jobs_are_not_lost_and_ids_not_reused() {
    holds("law_5", nothing_is_lost);
    catches("was acknowledged and is lost", nothing_is_lost, || {
        |number, state: &mut State, _: &mut Executed| {
            if number == 50
                && let Some((&id, _)) = state.jobs.first_key_value()
            {
                state.apply(&Change::Delete(Key::Job(id)));
            }
        }
    });
    // A counter that was restored from an older snapshot.
    catches("law 5", nothing_is_lost, || {
        |number, state: &mut State, _: &mut Executed| {
            if number == 60 {
                let mut meta = state.meta.clone();
                meta.next_job = JobId(1);
                put(state, Object::Meta(meta));
            }
        }
    });
    // A request id that is forgotten too early.
    catches("was answered", nothing_is_lost, || {
        |_, state: &mut State, _: &mut Executed| {
            let ids: Vec<String> = state.requests.sorted().map(|request| request.id.to_string()).collect();
            ids.into_iter().for_each(|id| state.apply(&Change::Delete(Key::Request(id))));
        }
    });
    // A job that runs twice.
    catches("two live attempts", nothing_is_lost, || {
        |_, state: &mut State, _: &mut Executed| {
            if let Some(mut twin) = clone_of(state, |held| held.charge.gpu_total().0 == 0) {
                twin.id = AllocationId(1_000_000);
                state.allocations.insert(twin.id, Arc::new(twin));
            }
        }
    });
}

/// What agents run, as a referee outside the state keeps it: a rank is over once its agent said so, its node was fenced, or another
/// agent or boot came to be its node. Devices may be released, and so the next attempt bound, only when every rank is; a node that is
/// heard of is neither given up nor handed to another, and a stranger comes only when nothing can be left of the one before.
fn released_when_over() -> impl FnMut(&Step<'_>) -> Watched {
    let mut places: BTreeMap<AllocationId, Vec<NodeId>> = BTreeMap::new();
    let mut over: BTreeSet<(AllocationId, usize)> = BTreeSet::new();
    let mut serving: BTreeMap<NodeId, (u64, String)> = BTreeMap::new();
    let mut silent: BTreeSet<NodeId> = BTreeSet::new();
    let mut down: BTreeSet<NodeId> = BTreeSet::new();
    move |step| {
        for change in step.changes {
            let Change::Put(object) = change else { continue };
            let Object::Allocation(held) = &**object else { continue };
            places.insert(held.id, held.tasks.iter().map(|task| task.node).collect());
        }
        for (command, decided) in step.entry.commands.iter().zip(step.decided) {
            let dead = match (command, decided) {
                (Command::ReportTasks { node, reports, .. }, Ok(_)) => {
                    for report in reports.iter().filter(|report| report.state.is_over()) {
                        let rank = report.rank.0 as usize;
                        if places.get(&report.allocation).and_then(|nodes| nodes.get(rank)) == Some(node) {
                            over.insert((report.allocation, rank));
                        }
                    }
                    None
                }
                (Command::MarkSilent { node, .. }, Ok(_)) => {
                    silent.insert(*node);
                    None
                }
                (Command::MarkReady { node, .. }, Ok(_)) => {
                    silent.remove(node);
                    None
                }
                (Command::FenceNode { node, .. }, Ok(_)) => {
                    if !silent.remove(node) {
                        return Err(format!("law 6: node {node} was heard of and is given up"));
                    }
                    down.insert(*node);
                    Some(*node)
                }
                (Command::JoinNode { spec, agent, .. }, Ok(Done::Joined { node, .. })) => {
                    let (was_silent, was_down) = (silent.remove(node), down.remove(node));
                    let before = serving.insert(*node, (*agent, spec.boot_id.clone()));
                    let other = before.filter(|(known, boot)| known != agent || *boot != spec.boot_id);
                    if other.is_some() && !was_silent && !was_down {
                        return Err(format!("law 6: node {node} is served by two agents"));
                    }
                    let stranger = other.as_ref().is_some_and(|(known, boot)| known != agent && *boot != spec.boot_id);
                    // What the same entry has bound may stand behind the join in it.
                    let was_there = |id: &AllocationId| step.before.allocations.contains_key(id);
                    let runs = |(id, nodes): (&AllocationId, &Vec<NodeId>)| {
                        was_there(id)
                            && nodes.iter().enumerate().any(|(rank, at)| at == node && !over.contains(&(*id, rank)))
                    };
                    if stranger && !was_down && places.iter().any(runs) {
                        return Err(format!("law 6: node {node} is a stranger's while tasks may still run there"));
                    }
                    other.map(|_| *node)
                }
                _ => None,
            };
            for (id, nodes) in &places {
                let ranks = nodes.iter().enumerate().filter(|(_, node)| Some(**node) == dead);
                over.extend(ranks.map(|(rank, _)| (*id, rank)));
            }
        }
        for change in step.changes {
            let Change::Delete(Key::Allocation(id)) = change else { continue };
            let ranks = places.remove(id).unwrap_or_default().len();
            if let Some(live) = (0..ranks).find(|rank| !over.contains(&(*id, *rank))) {
                return Err(format!("law 6: allocation {id} is released while rank {live} may run"));
            }
        }
        checked(step)
    }
}

#[test]
fn law_6_a_rank_never_runs_in_two_places() {
    holds("law_6", released_when_over);
    // Devices that are given away too early: the allocation goes while its tasks run.
    catches("is released while rank", released_when_over, || {
        |_, state: &mut State, executed: &mut Executed| {
            let running = |held: &Allocation| held.task_states.contains(&TaskState::Running);
            if let Some(held) = clone_of(state, running) {
                executed.changes.push(Change::Delete(Key::Allocation(held.id)));
            }
        }
    });
    // A node whose epoch grows while its tasks are still taken for live.
    catches("law 6 is broken", released_when_over, || {
        |number, state: &mut State, _: &mut Executed| {
            let node = clone_of(state, |_| true).map(|held| held.tasks[0].node);
            let node = node.and_then(|id| state.nodes.get(&id).cloned());
            if number > 20
                && let Some(node) = node
            {
                let mut node = muster_model::Node::clone(&node);
                node.epoch = node.epoch.next();
                put(state, Object::Node(node));
            }
        }
    });
}

/// Leases as a referee outside the state keeps them, from the answers alone.
fn newest_holder_only() -> impl FnMut(&Step<'_>) -> Watched {
    let mut leases: BTreeMap<CellId, (Epoch, bool)> = BTreeMap::new();
    move |step| {
        for (command, decided) in step.entry.commands.iter().zip(step.decided) {
            match (command, decided) {
                (Command::AcquireCell { cell, .. }, Ok(Done::Acquired { epoch, .. })) => {
                    let before = leases.insert(*cell, (*epoch, true));
                    if before.is_some_and(|(before, _)| before >= *epoch) {
                        return Err(format!("law 7: cell {cell} was at {before:?} and is leased at {epoch}"));
                    }
                }
                (Command::ExpireCell { cell, .. }, Ok(_)) => {
                    leases.entry(*cell).and_modify(|lease| lease.1 = false);
                }
                (Command::Bind(binding), Ok(_)) => allowed(&leases, binding.cell, binding.epoch)?,
                (
                    Command::HandOver { cell, epoch, .. }
                    | Command::Reserve { cell, epoch, .. }
                    | Command::RecordBypass { cell, epoch, .. },
                    Ok(_),
                ) => {
                    allowed(&leases, *cell, *epoch)?;
                }
                _ => {}
            }
        }
        checked(step)
    }
}

fn allowed(leases: &BTreeMap<CellId, (Epoch, bool)>, cell: CellId, epoch: Epoch) -> Watched {
    let newest = leases.get(&cell).copied();
    if newest == Some((epoch, true)) {
        Ok(())
    } else {
        Err(format!("law 7: cell {cell} is at {newest:?}, {epoch} acted"))
    }
}

#[test]
fn law_7_only_the_newest_holder_binds() {
    holds("law_7", newest_holder_only);
    // An epoch that goes back.
    catches("law 7", newest_holder_only, || {
        |number, state: &mut State, _: &mut Executed| {
            let newest = state.cells.values().max_by_key(|cell| cell.epoch).cloned();
            if number % 40 == 39
                && let Some(mut cell) = newest
            {
                cell.epoch = Epoch(cell.epoch.0 - 1);
                put(state, Object::Cell(cell));
            }
        }
    });
    // A lease that does not end.
    catches("law 7", newest_holder_only, || {
        |_, state: &mut State, _: &mut Executed| {
            let ended: Vec<_> =
                state.cells.values().filter(|cell| cell.holder.is_none() && cell.epoch.0 > 0).cloned().collect();
            for mut cell in ended {
                cell.holder = Some("ghost".to_owned());
                put(state, Object::Cell(cell));
            }
        }
    });
}

#[test]
fn law_8_untrusted_tenants_do_not_share() {
    holds("law_8", || checked);
    catches(
        "law 8 is broken: untrusted",
        || checked,
        || {
            |number, state: &mut State, _: &mut Executed| {
                if number % 20 == 19 {
                    state.tenants.values_mut().for_each(|tenant| tenant.trust = Trust::Untrusted);
                }
            }
        },
    );
    // Two organisations on one shared card, or one share that changed hands.
    catches(
        "law 8 is broken: domains",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let mut cards: BTreeMap<(NodeId, u16), AllocationId> = BTreeMap::new();
                let shares =
                    state.allocations.values().flat_map(|held| held.tasks.iter().map(move |task| (held, task)));
                let mut pair = None;
                for (held, task) in shares {
                    for hold in
                        task.devices.iter().filter(|hold| !matches!(hold.mode, HoldMode::Whole | HoldMode::Mig(_)))
                    {
                        let other = *cards.entry((task.node, hold.gpu)).or_insert(held.id);
                        pair = pair.or((other != held.id).then_some(held.id));
                    }
                }
                let held = pair.and_then(|id| state.allocations.get(&id).cloned());
                let domain =
                    |tenant| state.tenants.get(&tenant).map(|t| t.path.split('/').next().unwrap_or("").to_owned());
                let stranger = held.as_ref().and_then(|held| {
                    let others = state.tenants.values().filter(|t| t.trust == Trust::Trusted);
                    others.map(|t| t.id).find(|id| domain(*id) != domain(held.tenant))
                });
                if let (Some(held), Some(stranger)) = (held, stranger) {
                    let mut changed = Allocation::clone(&held);
                    changed.tenant = stranger;
                    state.allocations.insert(changed.id, Arc::new(changed));
                }
            }
        },
    );
}

/// The ledger against what a referee counted: each numbered interval of each stream once.
fn counted_once() -> impl FnMut(&Step<'_>) -> Watched {
    let mut counted: BTreeSet<(NodeId, u64, u64)> = BTreeSet::new();
    let mut sums = UnitMs::default();
    move |step| {
        for (command, decided) in step.entry.commands.iter().zip(step.decided) {
            let (Command::RecordUsage { node, incarnation, intervals }, Ok(Done::Counted { mark })) =
                (command, decided)
            else {
                continue;
            };
            for interval in intervals.iter().filter(|interval| interval.seq <= *mark) {
                if counted.insert((*node, *incarnation, interval.seq)) {
                    sums.add(interval.kind, interval.gpu_unit_ms);
                }
            }
            if (1..=*mark).any(|seq| !counted.contains(&(*node, *incarnation, seq))) {
                return Err(format!(
                    "law 9: node {node} is acknowledged up to {mark}, something before it was never sent"
                ));
            }
        }
        let totals = step.after.usage_totals.values();
        let booked = totals.clone().fold(UnitMs::default(), |mut sums, total| {
            sums += UnitMs { run: total.gpu_unit_ms, idle: total.idle_gpu_unit_ms, clean: total.clean_gpu_unit_ms };
            sums
        });
        let number: u64 = totals.map(|total| total.intervals).sum();
        if booked != sums || number != counted.len() as u64 {
            return Err(format!(
                "law 9: {} intervals of {sums:?} were sent, {number} of {booked:?} are booked",
                counted.len()
            ));
        }
        Ok(())
    }
}

#[test]
fn law_9_usage_is_counted_once() {
    holds("law_9", counted_once);
    // A mark that is lost: what was counted is counted again.
    catches("law 9", counted_once, || {
        |_, state: &mut State, _: &mut Executed| {
            let streams: Vec<_> = state.usage_streams.values().filter(|stream| stream.mark > 0).cloned().collect();
            for mut stream in streams {
                stream.mark -= 1;
                put(state, Object::UsageStream(stream));
            }
        }
    });
    // What was held idle is charged as if it had run.
    catches("law 9", counted_once, || {
        |_, state: &mut State, _: &mut Executed| {
            let totals: Vec<_> =
                state.usage_totals.values().filter(|total| total.idle_gpu_unit_ms > 0).cloned().collect();
            for mut total in totals {
                total.gpu_unit_ms += std::mem::take(&mut total.idle_gpu_unit_ms);
                put(state, Object::UsageTotal(total));
            }
        }
    });
    // A sum that is lost.
    catches("law 9", counted_once, || {
        |_, state: &mut State, _: &mut Executed| {
            if let Some((&tenant, _)) = state.usage_totals.first_key_value() {
                state.apply(&Change::Delete(Key::UsageTotal(tenant)));
            }
        }
    });
}

fn scenario(seed: u64, entries: usize) -> Story {
    let mut scenario = Story::new(seed);
    for _ in 0..entries {
        let entry = scenario.next_entry();
        scenario.execute(&entry);
    }
    scenario
}

fn replay(log: &[Entry]) -> State {
    let mut state = State::new(7);
    for entry in log {
        execute(&mut state, entry);
    }
    state
}

#[test]
fn law_10_replaying_the_log_gives_the_same_bytes() {
    for seed in seeds(10) {
        let scenario = scenario(seed, 400);
        assert_eq!(bytes_of(&scenario.state), bytes_of(&replay(&scenario.log)), "seed {seed}");
        // From a snapshot in the middle, the rest of the log leads to the same place.
        let (head, tail) = scenario.log.split_at(scenario.log.len() / 2);
        let mut restored = State::from_objects(replay(head).objects());
        tail.iter().for_each(|entry| drop(execute(&mut restored, entry)));
        assert_eq!(bytes_of(&scenario.state), bytes_of(&restored), "seed {seed}, from a snapshot");
        // Planted: the last entry that changed something is lost.
        let last = scenario.changed.iter().rposition(|changed| *changed).unwrap_or(0);
        let mut shorter = scenario.log.clone();
        shorter.remove(last);
        assert_ne!(bytes_of(&replay(&shorter)), bytes_of(&scenario.state), "seed {seed}: entry {last} was lost unseen");
    }
}

#[test]
fn law_10_changes_alone_give_the_same_bytes() {
    for seed in seeds(6) {
        let mut scenario = Story::new(seed);
        let mut follower = State::new(7);
        for _ in 0..300 {
            let entry = scenario.next_entry();
            let executed = scenario.execute(&entry);
            // A change carries the whole new value: applied twice it is applied once.
            for change in &executed.changes {
                follower.apply(change);
                follower.apply(change);
            }
        }
        assert_eq!(bytes_of(&scenario.state), bytes_of(&follower), "seed {seed}");
        follower.check().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

/// Where past use counts, each record says what is in use, and was brought up when that changed.
#[test]
fn law_10_histories_of_use_follow_what_is_in_use() {
    catches(
        "its history says",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                // Planted: what was released stays in the record.
                let used = state.use_histories.values().find(|record| !record.burst.since.is_empty());
                let Some(mut record) = used.cloned() else { return };
                record.burst.since = muster_model::ResourceVec::default();
                put(state, Object::UseHistory(record));
            }
        },
    );
    for seed in seeds(6) {
        let mut scenario = Story::new(seed);
        for _ in 0..300 {
            let entry = scenario.next_entry();
            let before = scenario.state.use_histories.clone();
            let executed = scenario.execute(&entry);
            let now_ms = scenario.state.meta.now_ms;
            for record in executed.changes.iter().filter_map(|change| match change {
                Change::Put(object) => Some(&**object),
                _ => None,
            }) {
                let Object::UseHistory(record) = record else { continue };
                if executed.changes.contains(&Change::Delete(Key::UseHistory(record.tenant))) {
                    continue; // Turned off and on in one entry.
                }
                assert_eq!(record.at_ms, now_ms, "seed {seed}: a record is brought up to the entry's time");
                // What was used until now counts for as long as it lasted, whatever else the entry did.
                let expected = before.get(&record.tenant).map(|old| old.burst_at(now_ms)).unwrap_or_default();
                assert_eq!(record.burst_at(now_ms), expected, "seed {seed}: tenant {}", record.tenant);
            }
        }
    }
}

#[test]
fn from_objects_equals_incremental() {
    for seed in seeds(12) {
        let scenario = scenario(seed, 250);
        let mut objects: Vec<Object> = scenario.state.objects().collect();
        let keys: Vec<Key> = objects.iter().map(Object::key).collect();
        assert!(keys.is_sorted(), "objects come in the order of their keys");
        objects.reverse();
        let loaded = State::from_objects(objects);
        assert_eq!(bytes_of(&scenario.state), bytes_of(&loaded), "seed {seed}");
        assert_eq!(scenario.state.index(), loaded.index(), "seed {seed}");
        let ledger = |state: &State| {
            let nodes = state.capacity().nodes().values();
            let held: Vec<String> = nodes
                .map(|there| {
                    let cards = &there.cards[..there.node.spec.gpus.len()];
                    format!("{} {cards:?} {} {}", there.node.id, there.cpu_free_milli, there.memory_free_mib)
                })
                .collect();
            (held, format!("{:?}", state.capacity().tenants()))
        };
        assert_eq!(ledger(&scenario.state), ledger(&loaded), "seed {seed}");
        // Planted: an object is lost.
        let without =
            State::from_objects(scenario.state.objects().filter(|object| !matches!(object, Object::Allocation(_))));
        assert!(scenario.state.allocations.is_empty() || without.check().is_err(), "seed {seed}");
    }
}

/// A refused command alone in its entry leaves every byte as it was, and yields no change.
fn refusals_change_nothing(execute: fn(&mut State, &Entry) -> Executed, seed: u64) -> Result<usize, String> {
    let mut scenario = Story::new(seed);
    let mut refused = 0;
    for _ in 0..250 {
        let entry = scenario.next_entry();
        for command in &entry.commands {
            let single = Entry { now_ms: entry.now_ms, commands: vec![command.clone()] };
            let before = bytes_of(&scenario.state);
            let executed = execute(&mut scenario.state, &single);
            if executed.decided[0].is_err() {
                refused += 1;
                if before != bytes_of(&scenario.state) || !executed.changes.is_empty() {
                    return Err(format!("law 11: {:?} changed something: {command:?}", executed.decided[0]));
                }
            }
        }
        scenario.log.push(entry);
    }
    Ok(refused)
}

#[test]
fn law_11_a_rejected_command_changes_nothing() {
    let mut refused = 0;
    for seed in seeds(8) {
        refused += refusals_change_nothing(execute, seed).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
    assert!(refused > 100, "only {refused} commands were refused");
    // Planted: the clock moves, or an id is used up, whatever is decided.
    let clock = |state: &mut State, entry: &Entry| {
        let executed = execute(state, entry);
        let mut meta = state.meta.clone();
        meta.now_ms = meta.now_ms.max(entry.now_ms);
        put(state, Object::Meta(meta));
        executed
    };
    assert!(refusals_change_nothing(clock, 1).is_err(), "the planted bug was not caught");
}

#[test]
fn histories_reach_what_they_are_meant_to_test() {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 1..=16 {
        let mut scenario = Story::new(seed);
        for _ in 0..300 {
            let entry = scenario.next_entry();
            let executed = scenario.execute(&entry);
            for (command, decided) in entry.commands.iter().zip(&executed.decided) {
                let word = match (command, decided) {
                    (Command::Submit { .. }, Ok(_)) => "submitted",
                    (_, Ok(Done::Bound { .. })) => "bound",
                    (_, Ok(Done::HandedOver { .. })) => "handed over",
                    (Command::FenceNode { .. }, Ok(_)) => "fenced",
                    (Command::RemoveNode { .. }, Ok(_)) => "removed",
                    (Command::ApplyTenants { .. }, Ok(_)) => "tenants changed",
                    (_, Ok(Done::Tenants { half_life_before_s: Some(_), .. })) => "half-life changed",
                    (Command::EditTenants { .. }, Ok(_)) => "tenants edited",
                    (Command::MoveTenant { .. }, Ok(_)) => "tenant moved",
                    (_, Err(Reject::DoesNotFit { over_max: true, .. })) => "over max",
                    (_, Err(Reject::DoesNotFit { .. })) => "does not fit",
                    (_, Err(Reject::WrongShape { .. })) => "wrong shape",
                    (_, Err(Reject::StaleEpoch { .. })) => "stale",
                    (_, Err(Reject::UsageGap { .. })) => "usage gap",
                    (_, Err(Reject::RequestReused { .. })) => "request reused",
                    (_, Err(Reject::RequestTooOld { .. })) => "request too old",
                    (_, Err(Reject::NotWaiting { .. })) => "not waiting",
                    (_, Err(Reject::InUse { .. })) => "in use",
                    _ => "other",
                };
                *seen.entry(word).or_default() += 1;
            }
            for change in &executed.changes {
                let word = match change {
                    Change::Retire(job) => job.phase.word(),
                    Change::Put(object) => match &**object {
                        Object::Job(job) if job.requeue_reason.is_some() && job.phase.word() == "pending" => "requeued",
                        Object::Job(job) => job.phase.word(),
                        Object::Allocation(held) => kind(held, &scenario.state),
                        _ => continue,
                    },
                    Change::Delete(_) => "deleted",
                    Change::Audit(_) => "audited",
                };
                *seen.entry(word).or_default() += 1;
            }
        }
    }
    for word in [
        "submitted",
        "bound",
        "handed over",
        "fenced",
        "removed",
        "tenants changed",
        "over max",
        "does not fit",
        "wrong shape",
        "stale",
        "tenants edited",
        "tenant moved",
        "usage gap",
        "request reused",
        "request too old",
        "not waiting",
        "in use",
        "requeued",
        "running",
        "completing",
        "completed",
        "failed",
        "cancelled",
        "timeout",
        "whole",
        "mig",
        "mps",
        "time-slice",
    ] {
        assert!(seen.get(word).is_some_and(|count| *count >= 5), "{word} is rare: {seen:?}");
    }
}

fn kind(held: &Allocation, state: &State) -> &'static str {
    let devices = state.jobs.get(&held.job).map(|job: &Arc<Job>| &job.spec.request.devices);
    devices.and_then(DeviceRequest::mode).map_or("no GPU", |mode| mode.word())
}

#[test]
fn planning_leaves_the_state_alone() {
    let mut scenario = scenario(3, 100);
    for _ in 0..100 {
        let entry = scenario.next_entry();
        let before = bytes_of(&scenario.state);
        for command in &entry.commands {
            drop(plan(&scenario.state, entry.now_ms, command));
        }
        assert_eq!(before, bytes_of(&scenario.state));
        scenario.execute(&entry);
    }
}

/// Only a law of something that is not built has no test.
#[test]
fn every_law_in_force_has_a_test_of_its_name() {
    let tests = concat!(include_str!("laws.rs"), include_str!("preemption.rs"), include_str!("clean_ups.rs"));
    for law in 1..=13 {
        let tested = tests.contains(&format!("fn law_{law}_"));
        assert_eq!(tested, IN_FORCE.contains(&law), "law {law}");
    }
}
