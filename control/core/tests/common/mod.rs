//! Random histories of commands, and laws watched over them.
//!
//! A [`Story`] grows a log from a seed: every command is made with an eye on the state, so that most gangs fit and most reports
//! are of tasks that exist, and a good share is wrong on purpose. A failure names the seed; `MUSTER_SEED=<seed> cargo test -p
//! muster-control-core <name of the test>` runs that history alone.

mod chance;
mod commands;
mod placing;
mod starting;

pub(crate) use chance::Chance;
use muster_control_core::{Command, Decided, Entry, Executed, State, execute};
use muster_model::ids::{JobId, NodeId};
use muster_model::{Change, EndedJob, Object};
use std::collections::BTreeMap;

/// What happened at one entry of a log.
pub(crate) struct Step<'a> {
    pub(crate) before: &'a State,
    pub(crate) entry: &'a Entry,
    pub(crate) decided: &'a Decided,
    pub(crate) changes: &'a [Change],
    pub(crate) after: &'a State,
}

/// A history in the making.
pub(crate) struct Story {
    pub(crate) chance: Chance,
    pub(crate) state: State,
    pub(crate) log: Vec<Entry>,
    pub(crate) now_ms: u64,
    /// Which entries of the log changed anything.
    pub(crate) changed: Vec<bool>,
    /// Submissions made so far, to be repeated.
    submitted: Vec<Command>,
    /// Reports and usage sent so far, to be repeated late.
    sent: Vec<Command>,
    /// How finished jobs ended, as the history on disk has it.
    pub(crate) ended: BTreeMap<JobId, EndedJob>,
    /// The agents' own numbering of usage: stream incarnation and last interval.
    pub(crate) streams: BTreeMap<NodeId, (u64, u64)>,
}

/// A day after the epoch, so that requests may be issued "a day ago".
pub(crate) const START_MS: u64 = 100_000_000;

impl Chance {
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize].clone())
    }
}

impl Story {
    pub(crate) fn new(seed: u64) -> Self {
        Story {
            chance: Chance::new(seed),
            state: State::new(7),
            log: Vec::new(),
            now_ms: START_MS,
            changed: Vec::new(),
            submitted: Vec::new(),
            sent: Vec::new(),
            ended: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }

    /// The next entry: the first ones build a fleet.
    pub(crate) fn next_entry(&mut self) -> Entry {
        self.now_ms += match self.chance.below(40) {
            0 => 40_000,
            1 if self.chance.one_in(10) => 26 * 3_600_000,
            _ => self.chance.below(500),
        };
        // A new leader's clock may be behind.
        let now_ms = if self.chance.one_in(20) { self.now_ms - 5_000 } else { self.now_ms };
        let commands = match self.log.len() {
            0 => self.found_cluster(),
            1 => (0..6).map(|_| self.join_node()).collect(),
            2 => self.acquire_all(),
            _ => (0..=self.chance.below(3)).map(|_| self.next_command()).collect(),
        };
        Entry { now_ms, commands }
    }

    /// Executes an entry and keeps it.
    pub(crate) fn execute(&mut self, entry: &Entry) -> Executed {
        let executed = execute(&mut self.state, entry);
        self.log.push(entry.clone());
        self.changed.push(!executed.changes.is_empty());
        self.ended.extend(executed.changes.iter().filter_map(|change| match change {
            Change::Retire(job) => Some((job.id, EndedJob::of(job))),
            _ => None,
        }));
        executed
    }
}

/// Breaks the state or the answers of a step on purpose; gets the number of the step.
pub(crate) type Tamper<'a> = &'a mut dyn FnMut(usize, &mut State, &mut Executed);

/// Runs one history of `steps` entries past `law`, with `tamper` applied after each step, until the law complains.
pub(crate) fn run(
    seed: u64,
    steps: usize,
    law: &mut dyn FnMut(&Step<'_>) -> Result<(), String>,
    tamper: Tamper<'_>,
) -> Result<(), String> {
    let mut scenario = Story::new(seed);
    for number in 0..steps {
        let before = scenario.state.clone();
        let entry = scenario.next_entry();
        let mut executed = scenario.execute(&entry);
        tamper(number, &mut scenario.state, &mut executed);
        let (decided, changes, after) = (&executed.decided, &executed.changes, &scenario.state);
        law(&Step { before: &before, entry: &entry, decided, changes, after })
            .map_err(|broken| format!("step {number}: {broken}\nentry: {entry:?}"))?;
    }
    Ok(())
}

/// Seeds of a test: the one in `MUSTER_SEED`, or as many as asked.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("MUSTER_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

/// Asserts that a law, made anew for each history, holds over many of them.
pub(crate) fn holds<L: FnMut(&Step<'_>) -> Result<(), String>>(test: &str, mut law: impl FnMut() -> L) {
    for seed in seeds(SEEDS) {
        if let Err(broken) = run(seed, STEPS, &mut law(), &mut |_, _, _| {}) {
            panic!("{broken}\nreplay: MUSTER_SEED={seed} cargo test -p muster-control-core {test}");
        }
    }
}

/// Asserts that a law complains when `tamper` breaks it: in at least one of a few histories, and with `words` in what it says.
pub(crate) fn catches<L: FnMut(&Step<'_>) -> Result<(), String>, T: FnMut(usize, &mut State, &mut Executed)>(
    words: &str,
    mut law: impl FnMut() -> L,
    mut tamper: impl FnMut() -> T,
) {
    let mut said = Vec::new();
    let caught =
        (1..=TAMPERED_SEEDS).filter_map(|seed| run(seed, STEPS, &mut law(), &mut tamper()).err()).any(|broken| {
            let names_it = broken.contains(words);
            said.push(broken);
            names_it
        });
    assert!(caught, "the planted bug was not caught: {said:?}");
}

const SEEDS: u64 = 25;
/// Histories in which a planted bug has to show: some bugs need two shares on one card, which is rare.
const TAMPERED_SEEDS: u64 = 60;
const STEPS: usize = 300;

/// The bytes by which replicas are compared.
pub(crate) fn bytes_of(state: &State) -> Vec<u8> {
    state.objects().flat_map(|object| postcard::to_stdvec(&object).expect("objects serialise")).collect()
}

/// What a state would be if only its changes had travelled.
pub(crate) fn put(state: &mut State, object: Object) {
    state.apply(&Change::put(object));
}

/// Jobs that a step acknowledged anew.
pub(crate) fn acknowledged(step: &Step<'_>) -> Vec<JobId> {
    let answers = step.entry.commands.iter().zip(step.decided);
    let ranges = answers.filter_map(|(command, decided)| match (command, decided) {
        (Command::Submit { .. }, Ok(muster_control_core::Done::Submitted { first, count })) => Some((first.0, *count)),
        _ => None,
    });
    ranges.flat_map(|(first, count)| (first..first + u64::from(count)).map(JobId)).collect()
}
