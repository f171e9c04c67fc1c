//! From the desired and the observed state to ordered steps.
//!
//! [`plan`] is one screen: end what is not wanted, change time limits, see who may start, take cards apart, set cards up, start, forget. It is called
//! again whenever anything has changed, so a step that failed or was cut off is simply planned again. What must stay true:
//! - a task with a record, live or over, is never started again, nor one that ran here and was lost;
//! - a task starts only when no task of another attempt of its job is live here (law 6), when every device it needs can be
//!   had beside what live tasks hold, and when its fence lies ahead;
//! - steps that give back come before steps that take;
//! - a record is forgotten only when its end was acknowledged and it is no longer desired.

use crate::card::{self, CardObserved, CardStep, Holders};
use crate::fence;
use crate::task::{Desired, DesiredTask, ObservedTask, Stopping, TaskKey, TaskSpec};
use muster_model::{Stop, World};
use std::collections::{BTreeMap, BTreeSet};

/// All that the node knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every task it has a record of.
    pub tasks: BTreeMap<TaskKey, ObservedTask>,
    /// Tasks whose present state the control plane has acknowledged.
    pub acknowledged: BTreeSet<TaskKey>,
    /// Cards by index.
    pub cards: Vec<CardObserved>,
    /// CLOCK_BOOTTIME now.
    pub now_ns: u64,
    /// Send time of the newest acknowledged heartbeat; nothing starts before there is one.
    pub confirmed_ns: Option<u64>,
    /// Tasks that were found running without a record and have been ended.
    pub lost: BTreeSet<TaskKey>,
}

/// One thing to do. Doing it twice is the same as doing it once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A signal, a grace, SIGKILL. The grace counts from the first such step that reached the task: taking it again, after a restart of
    /// the agent too, does not begin it anew.
    Stop(TaskKey, Stop),
    /// SIGKILL: the control plane holds the task for dead already.
    Kill(TaskKey),
    /// Changes a card.
    Card {
        /// Its index.
        card: u16,
        /// What to change.
        step: CardStep,
    },
    /// Starts a task; its devices are as it needs them once the steps before this are done.
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

/// The steps from what is to what should be, in the order to take them.
#[must_use]
pub fn plan(desired: &Desired, observed: &Observed) -> Vec<Step> {
    let mut steps = ends(desired, observed);
    steps.extend(limits(desired, observed));
    steps.extend(worlds(desired, observed));
    let (admitted, holders) = admit(desired, observed, &mut steps);
    let (apart, up) = card_steps(observed, &holders);
    steps.extend(apart);
    steps.extend(up);
    steps.extend(admitted.into_iter().map(Step::Start));
    steps.extend(forgettable(desired, observed));
    steps
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

/// Which desired tasks start now, in the order of their keys, and who holds which card once they have.
fn admit(desired: &Desired, observed: &Observed, steps: &mut Vec<Step>) -> (Vec<TaskKey>, Vec<Holders>) {
    let mut holders = vec![Holders::default(); observed.cards.len()];
    let live = || observed.tasks.values().filter(|task| task.is_live());
    for task in live() {
        for hold in &task.spec.devices {
            if let Some(card) = holders.get_mut(usize::from(hold.gpu)) {
                card.add(task.spec.key, hold.mode);
            }
        }
    }
    let mut admitted: Vec<TaskKey> = Vec::new();
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
        if let Err(reason) = could_ever_start(task, &observed.cards) {
            steps.push(Step::RecordCannotStart { key: *key, reason });
            continue;
        }
        // An elastic gang has several allocations in one attempt.
        let is_other = |other: &TaskSpec| other.job == task.spec.job && other.attempt != task.spec.attempt;
        let job_is_elsewhere = live().any(|other| is_other(&other.spec))
            || admitted.iter().any(|other| is_other(&desired.tasks[other].spec));
        if job_is_elsewhere || !fence_lies_ahead(task, observed) {
            continue;
        }
        if let Some(after) = take_devices(key, task, &observed.cards, &holders) {
            holders = after;
            admitted.push(*key);
        }
    }
    (admitted, holders)
}

/// The holders after `task` took its devices; `None` when one of them is not to be had now.
fn take_devices(key: &TaskKey, task: &DesiredTask, cards: &[CardObserved], before: &[Holders]) -> Option<Vec<Holders>> {
    let mut after = before.to_vec();
    for hold in &task.spec.devices {
        let index = usize::from(hold.gpu);
        if !after[index].admit(cards[index].model, hold.mode) {
            return None;
        }
        after[index].add(*key, hold.mode);
    }
    Some(after)
}

fn could_ever_start(task: &DesiredTask, cards: &[CardObserved]) -> Result<(), String> {
    for hold in &task.spec.devices {
        let card = cards
            .get(usize::from(hold.gpu))
            .ok_or_else(|| format!("GPU {} does not exist: this node has {} GPUs", hold.gpu, cards.len()))?;
        card::possible(card.model, hold.mode).map_err(|why| format!("GPU {}: {why}", hold.gpu))?;
        if let Some(why) = &card.withheld {
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

/// What takes cards apart, of all cards, and then what sets them up.
fn card_steps(observed: &Observed, holders: &[Holders]) -> (Vec<Step>, Vec<Step>) {
    let (mut apart, mut up) = (Vec::new(), Vec::new());
    for (index, (card, held)) in observed.cards.iter().zip(holders).enumerate() {
        let named = |step| Step::Card { card: index as u16, step };
        let (first, then) = card::steps(&card.setting, held);
        apart.extend(first.into_iter().map(named));
        up.extend(then.into_iter().map(named));
    }
    (apart, up)
}

fn forgettable<'a>(desired: &'a Desired, observed: &'a Observed) -> impl Iterator<Item = Step> + 'a {
    observed
        .tasks
        .iter()
        .filter(|(key, task)| {
            !task.is_live() && observed.acknowledged.contains(key) && !desired.tasks.contains_key(key)
        })
        .map(|(key, _)| Step::Forget(*key))
}
