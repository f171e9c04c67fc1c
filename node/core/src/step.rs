//! From the desired and the observed state to ordered steps.
//!
//! [`plan`] is one screen: end what is not wanted, change time limits, see who may start, start those whose cards are seen to be ready, forget; and
//! what each card needs. It is called again whenever anything has changed, so a step that failed or was cut off is simply planned again. What
//! must stay true:
//! - a task with a record, live or over, is never started again, nor one that ran here and was lost;
//! - a task starts only when no task of another attempt of its job is live here (law 6), when every device it needs can be
//!   had beside what live tasks hold, is clean of those before (law 13) and was *seen* to be set for it, when its secrets are there, and when its fence
//!   lies ahead;
//! - no step waits for a card: the work on cards is a list of its own for each card, so a slow one delays only the starts that need it;
//! - steps that end something come before steps that start something;
//! - a record is forgotten only when its end was acknowledged and it is no longer desired;
//! - a card is reset only while the node is drained and nobody uses or is about to use any of its cards: a reset may reach those that are linked with it.

use crate::card::{self, CardObserved, CardSetting, CardWork, Holder, Holders, Readiness, SettingRules};
use crate::fence;
use crate::task::{Desired, DesiredTask, ObservedTask, Stopping, TaskKey, TaskSpec};
use crate::users::TaskUsers;
use muster_model::mig::MigPlacement;
use muster_model::task::HoldMode;
use muster_model::{Stop, World};
use std::collections::{BTreeMap, BTreeSet};

/// All that the node knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every task it has a record of.
    pub tasks: BTreeMap<TaskKey, ObservedTask>,
    /// Tasks whose present state the control plane has acknowledged.
    pub acknowledged: BTreeSet<TaskKey>,
    /// Tasks that are over and whose devices are being cleaned.
    pub cleaning: BTreeSet<TaskKey>,
    /// Cards by index.
    pub cards: Vec<CardObserved>,
    /// CLOCK_BOOTTIME now.
    pub now_ns: u64,
    /// Send time of the newest acknowledged heartbeat; nothing starts before there is one.
    pub confirmed_ns: Option<u64>,
    /// Tasks that were found running without a record and have been ended.
    pub lost: BTreeSet<TaskKey>,
    /// As which users tasks run.
    pub users: TaskUsers,
    /// Cards may be reset in a drain.
    pub resets: bool,
}

/// One thing to do. Doing it twice is the same as doing it once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A signal, a grace, SIGKILL. The grace counts from the first such step that reached the task: taking it again, after a restart of
    /// the agent too, does not begin it anew.
    Stop(TaskKey, Stop),
    /// SIGKILL: the control plane holds the task for dead already.
    Kill(TaskKey),
    /// Starts a task; its devices are as it needs them.
    Start(TaskKey),
    /// Gives a live task another time limit, in seconds from its start; none: it has no limit any more.
    SetTimeLimit(TaskKey, Option<u64>),
    /// Tells a live worker of an elastic gang the gang's new size and its own place.
    SetWorld(TaskKey, World),
    /// Records that a task was stopped before it ever started.
    RecordNeverStarted(TaskKey),
    /// Records that a task ran here, was lost, and is over.
    RecordLost(TaskKey),
    /// Records that a task cannot be started here.
    RecordCannotStart {
        /// Which.
        key: TaskKey,
        /// Why, for people.
        reason: String,
    },
    /// Drops the record of a task that is over; its logs are kept for a while.
    Forget(TaskKey),
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Steps to take now, in this order. None of them waits for a driver.
    pub steps: Vec<Step>,
    /// What each card needs, by index. The cards are worked on side by side.
    pub cards: Vec<CardWork>,
}

/// From what is to what should be.
#[must_use]
pub fn plan(desired: &Desired, observed: &Observed) -> Plan {
    let mut steps = ends(desired, observed);
    steps.extend(limits(desired, observed));
    steps.extend(worlds(desired, observed));
    let (ready, holders) = admit(desired, observed, &mut steps);
    steps.extend(ready.into_iter().map(Step::Start));
    steps.extend(forgettable(desired, observed));
    Plan { steps, cards: card_work(desired, observed, &holders) }
}

/// Live tasks that must end, and how urgently.
fn ends(desired: &Desired, observed: &Observed) -> Vec<Step> {
    let mut steps = Vec::new();
    for (key, task) in observed.tasks.iter().filter(|(_, task)| task.is_live()) {
        let (how, step) = match desired.tasks.get(key) {
            Some(DesiredTask { stop: None, .. }) => continue,
            Some(DesiredTask { stop: Some(stop), .. }) => (Stopping::Gracefully, Step::Stop(*key, *stop)),
            None if is_held_for_dead(task, desired) => (Stopping::AtOnce, Step::Kill(*key)),
            None => (Stopping::Gracefully, Step::Stop(*key, Stop::term(task.spec.grace_s))),
        };
        if how > task.stopping {
            steps.push(step);
        }
    }
    steps
}

/// Live tasks that have another time limit now.
fn limits<'a>(desired: &'a Desired, observed: &'a Observed) -> impl Iterator<Item = Step> + 'a {
    let live = observed.tasks.iter().filter(|(_, task)| task.is_live() && task.stopping == Stopping::No);
    live.filter_map(|(key, task)| {
        let wanted = desired.tasks.get(key).filter(|wanted| wanted.stop.is_none())?.spec.time_limit_s;
        (wanted != task.time_limit_s).then_some(Step::SetTimeLimit(*key, wanted))
    })
}

/// Live workers of elastic gangs whose size has changed since they were told.
fn worlds<'a>(desired: &'a Desired, observed: &'a Observed) -> impl Iterator<Item = Step> + 'a {
    let live = observed.tasks.iter().filter(|(_, task)| task.is_live() && task.stopping == Stopping::No);
    live.filter_map(|(key, task)| {
        let world = desired.tasks.get(key).filter(|wanted| wanted.stop.is_none())?.spec.world?;
        (task.world_generation != Some(world.generation)).then_some(Step::SetWorld(*key, world))
    })
}

/// Whether the control plane has given up on this task: its node was fenced since, or another attempt of its job is here.
fn is_held_for_dead(task: &ObservedTask, desired: &Desired) -> bool {
    let fenced_since = task.node_epoch < desired.stamp.node_epoch;
    let (job, attempt) = (task.spec.job, task.spec.attempt);
    // Growth of an elastic gang is of the same attempt: it leaves the others alone.
    let other = |other: &DesiredTask| other.spec.job == job && other.stop.is_none() && other.spec.attempt != attempt;
    fenced_since || desired.tasks.values().any(other)
}

/// Which desired tasks start now, in the order of their keys; and who holds which card, those included that wait until it is set for them.
fn admit(desired: &Desired, observed: &Observed, steps: &mut Vec<Step>) -> (Vec<TaskKey>, Vec<Holders>) {
    let mut holders = vec![Holders::default(); observed.cards.len()];
    let live = || observed.tasks.values().filter(|task| task.is_live());
    let cleaning = observed.cleaning.iter().filter_map(|key| observed.tasks.get(key)).filter(|task| !task.is_live());
    for task in live().chain(cleaning) {
        for hold in &task.spec.devices {
            if let Some(card) = holders.get_mut(usize::from(hold.gpu)) {
                card.add(Holder::of(&task.spec, hold.mode, observed.users).begun());
            }
        }
    }
    let mut admitted: Vec<TaskKey> = Vec::new();
    let mut ready: Vec<TaskKey> = Vec::new();
    for (key, task) in &desired.tasks {
        if observed.tasks.contains_key(key) {
            continue;
        }
        if task.stop.is_some() {
            steps.push(Step::RecordNeverStarted(*key));
            continue;
        }
        if observed.lost.contains(key) {
            steps.push(Step::RecordLost(*key));
            continue;
        }
        // It waits for them: the control plane says so whenever that changes.
        if task.spec.secrets.missing.is_some() {
            continue;
        }
        if let Err(reason) = could_ever_start(task, &observed.cards) {
            steps.push(Step::RecordCannotStart { key: *key, reason });
            continue;
        }
        // An elastic gang has several allocations in one attempt.
        let is_other = |other: &TaskSpec| other.job == task.spec.job && other.attempt != task.spec.attempt;
        // Two attempts may have one number where a state was restored from a backup: what is not desired is none of this one.
        let is_left = |key: &TaskKey, other: &TaskSpec| other.job == task.spec.job && !desired.tasks.contains_key(key);
        let mut running = observed.tasks.iter().filter(|(_, other)| other.is_live());
        let job_is_elsewhere = running.any(|(key, other)| is_other(&other.spec) || is_left(key, &other.spec))
            || admitted.iter().any(|other| is_other(&desired.tasks[other].spec));
        if job_is_elsewhere || !fence_lies_ahead(task, observed) {
            continue;
        }
        let Some(after) = take_devices(task, observed, &holders) else { continue };
        match readiness(task, observed) {
            Readiness::Failed(why) => {
                steps.push(Step::RecordCannotStart { key: *key, reason: why.to_owned() });
                continue;
            }
            Readiness::Ready => ready.push(*key),
            Readiness::NotYet => {}
        }
        holders = after;
        admitted.push(*key);
    }
    (ready, holders)
}

/// How far the cards of a task are: failed when one is, ready when all are.
fn readiness<'a>(task: &DesiredTask, observed: &'a Observed) -> Readiness<'a> {
    let mut all = Readiness::Ready;
    for hold in &task.spec.devices {
        let holder = Holder::of(&task.spec, hold.mode, observed.users);
        match observed.cards[usize::from(hold.gpu)].readiness(&holder) {
            failed @ Readiness::Failed(_) => return failed,
            Readiness::NotYet => all = Readiness::NotYet,
            Readiness::Ready => {}
        }
    }
    all
}

/// The holders after `task` took its devices; `None` when one of them is not to be had now.
fn take_devices(task: &DesiredTask, observed: &Observed, before: &[Holders]) -> Option<Vec<Holders>> {
    let mut after = before.to_vec();
    for hold in &task.spec.devices {
        let index = usize::from(hold.gpu);
        if !after[index].admit(observed.cards[index].model, hold.mode) {
            return None;
        }
        after[index].add(Holder::of(&task.spec, hold.mode, observed.users));
    }
    Some(after)
}

fn could_ever_start(task: &DesiredTask, cards: &[CardObserved]) -> Result<(), String> {
    for hold in &task.spec.devices {
        let card = cards
            .get(usize::from(hold.gpu))
            .ok_or_else(|| format!("GPU {} does not exist: this node has {} GPUs", hold.gpu, cards.len()))?;
        card::possible(card.model, hold.mode).map_err(|why| format!("GPU {}: {why}", hold.gpu))?;
        if let Some(why) = card.withheld_from(hold.mode) {
            return Err(format!("GPU {} is withheld: {why}", hold.gpu));
        }
    }
    Ok(())
}

fn fence_lies_ahead(task: &DesiredTask, observed: &Observed) -> bool {
    observed
        .confirmed_ns
        .is_some_and(|confirmed| fence::deadline_ns(confirmed, task.spec.disconnect_grace_s) > observed.now_ns)
}

/// What each card needs. A card that could not be read is left alone: nobody knows what is on it.
fn card_work(desired: &Desired, observed: &Observed, holders: &[Holders]) -> Vec<CardWork> {
    let has_live = |card: u16| {
        let mut live = observed.tasks.values().filter(|task| task.is_live());
        live.any(|task| task.spec.devices.iter().any(|hold| hold.gpu == card))
    };
    let may_reset = observed.resets && desired.drained && is_unused(desired, observed, holders);
    let work = |(card, (seen, held)): (u16, (&CardObserved, &Holders))| {
        let pinned = pinned_on(desired, card, seen);
        let rules =
            SettingRules { model: seen.model, sharing: &desired.sharing, users: observed.users, pinned: &pinned };
        let steps = match &seen.setting {
            None => Vec::new(),
            Some(CardSetting::Mps(_)) if seen.mps_failed && has_live(card) => Vec::new(),
            Some(CardSetting::Mps(_)) if seen.mps_failed => card::steps_after_failed_mps(held, rules),
            Some(setting) if may_reset && seen.asks_for_reset => card::steps_to_reset(setting),
            Some(setting) => {
                let steps = card::steps(setting, held, rules);
                let by_reset = card::changed_by_reset(&steps).filter(|_| may_reset && seen.mode_needs_reset);
                by_reset.unwrap_or(steps)
            }
        };
        CardWork { card, steps }
    };
    (0..).zip(observed.cards.iter().zip(holders)).map(work).collect()
}

/// Whether nobody uses a card of the node, or is about to.
fn is_unused(desired: &Desired, observed: &Observed, holders: &[Holders]) -> bool {
    let is_over = observed.tasks.values().all(|task| !task.is_live());
    // Also one that waits for its secrets.
    let mut waits = desired.tasks.iter().filter(|(key, task)| task.stop.is_none() && !observed.tasks.contains_key(key));
    is_over && waits.next().is_none() && observed.cleaning.is_empty() && holders.iter().all(Holders::is_empty)
}

/// The MIG instances that stand on a card also while nobody holds them, of those that it can have. On what is withheld none is made, and none that stands is
/// taken apart: the card is in doubt, and may be kept in use.
fn pinned_on(desired: &Desired, card: u16, seen: &CardObserved) -> Vec<MigPlacement> {
    let stands = |slot: &MigPlacement| matches!(&seen.setting, Some(CardSetting::Mig(standing)) if standing.get(slot) == Some(&1));
    let serves = |slot: &MigPlacement| {
        let mode = HoldMode::Mig(*slot);
        let is_left = stands(slot) || seen.withheld_from(mode).is_none();
        is_left && card::possible(seen.model, mode).is_ok()
    };
    desired.pinned.get(&card).into_iter().flatten().copied().filter(serves).collect()
}

fn forgettable<'a>(desired: &'a Desired, observed: &'a Observed) -> impl Iterator<Item = Step> + 'a {
    observed
        .tasks
        .iter()
        .filter(|(key, task)| {
            let is_done = !task.is_live() && !observed.cleaning.contains(key);
            is_done && observed.acknowledged.contains(key) && !desired.tasks.contains_key(key)
        })
        .map(|(key, _)| Step::Forget(*key))
}
