//! The clean-up of devices between two tasks (law 13): what must be gone, and until when it is waited for.
//!
//! What must stay true: devices count as clean only when a look at all of them has found nothing; a look that could not be made finds something; what is
//! not clean in time has failed, is withheld, and is looked at again until it is clean; what was clean once stays so, since others may use it by then.

use crate::task::TaskKey;
use muster_model::task::CleanUp;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// How long devices may take to become clean. A driver frees what a killed process held within seconds, also after a fault.
pub const CLEAN_MAX: Duration = Duration::from_secs(30);
/// Between the first look and the second; the wait doubles up to the longest one.
const LOOK_MIN: Duration = Duration::from_millis(20);
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Memory that a card may have in use above what was seen of it when idle, in MiB: the driver's own buffers come and go.
pub const MEMORY_TOLERANCE_MIB: u64 = 64;
/// Things that are named; more are counted.
const NAMED_MAX: usize = 4;

/// Something that was found on a device after its task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// The driver lists a process that holds it, and no task that may.
    Process {
        /// On which GPU.
        gpu: u16,
        /// As the host numbers it.
        pid: u32,
        /// Whose it is, and its command line.
        who: String,
    },
    /// A process has its device node open, and is no task that may.
    OpenFile {
        /// Which node, such as `/dev/nvidia0`.
        path: String,
        /// As the host numbers it.
        pid: u32,
        /// Whose it is, and its command line.
        who: String,
    },
    /// More of its memory is in use than when it was idle.
    Memory {
        /// Of which GPU.
        gpu: u16,
        /// In use now, in MiB.
        used_mib: u64,
        /// In use when it was idle, in MiB.
        idle_mib: u64,
    },
    /// The driver was told not to erase memory when it is freed.
    NotErased,
    /// It could not be looked at.
    Unread {
        /// Which GPU.
        gpu: u16,
        /// Why.
        why: String,
    },
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::Process { gpu, pid, who } => write!(f, "process {pid} ({who}) still uses GPU {gpu}"),
            Left::OpenFile { path, pid, who } => write!(f, "process {pid} ({who}) has {path} open"),
            Left::Memory { gpu, used_mib, idle_mib } => {
                write!(f, "GPU {gpu} has {used_mib} MiB in use, {idle_mib} MiB when idle")
            }
            Left::NotErased => f.write_str(
                "the driver does not erase freed memory (RMDisableScrubOnFree is set); remove that option of the nvidia module and reboot",
            ),
            Left::Unread { gpu, why } => write!(f, "GPU {gpu} could not be looked at: {why}"),
        }
    }
}

/// What is left, for people.
#[must_use]
pub fn in_words(left: &[Left]) -> String {
    let mut named: Vec<String> = left.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let others = left.len().saturating_sub(NAMED_MAX);
    if others > 0 {
        named.push(format!("and {others} more"));
    }
    format!("not clean after the last task: {}", named.join("; "))
}

/// The clean-up of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
enum One {
    UnderWay { since_ns: u64, looks: u32 },
    Done { took_ms: u64 },
    Failed { reason: String },
}

/// What follows from a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The devices are clean.
    Clean,
    /// Look again after this.
    Again(Duration),
    /// The time is over: withhold them for this reason, then call [`CleanUps::give_up`].
    Withhold(String),
}

/// The clean-ups of a node's tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanUps {
    tasks: BTreeMap<TaskKey, One>,
}

impl CleanUps {
    /// A task is over. Says whether its devices are to be looked at from now on: they are not when they were already, or when there is nothing
    /// to clean.
    pub fn over(&mut self, key: TaskKey, has_devices: bool, now_ns: u64) -> bool {
        if self.tasks.contains_key(&key) {
            return false;
        }
        let one = if has_devices { One::UnderWay { since_ns: now_ns, looks: 0 } } else { One::Done { took_ms: 0 } };
        self.tasks.insert(key, one);
        has_devices
    }

    /// All devices of a task were looked at, and `left` was found.
    pub fn looked(&mut self, key: TaskKey, left: &[Left], now_ns: u64) -> Next {
        let Some(one) = self.tasks.get_mut(&key) else { return Next::Clean };
        let One::UnderWay { since_ns, looks } = one else { return Next::Clean };
        let took = Duration::from_nanos(now_ns.saturating_sub(*since_ns));
        if left.is_empty() {
            // Rounded up, so that a record of a clean-up is never mistaken for none.
            *one = One::Done { took_ms: took.as_millis() as u64 + 1 };
            return Next::Clean;
        }
        if took >= CLEAN_MAX {
            return Next::Withhold(in_words(left));
        }
        let wait = LOOK_MIN.saturating_mul(1 << (*looks).min(10)).min(LOOK_MAX);
        *looks += 1;
        Next::Again(wait)
    }

    /// The devices of a task are withheld: they need not be held for it any more.
    pub fn give_up(&mut self, key: TaskKey, reason: String) {
        if let Some(one @ One::UnderWay { .. }) = self.tasks.get_mut(&key) {
            *one = One::Failed { reason };
        }
    }

    /// Tasks whose devices may have something of them left.
    #[must_use]
    pub fn under_way(&self) -> BTreeSet<TaskKey> {
        let is_under_way = |one: &One| matches!(one, One::UnderWay { .. });
        self.tasks.iter().filter(|(_, one)| is_under_way(one)).map(|(key, _)| *key).collect()
    }

    /// What is known of the devices of a task that is over.
    #[must_use]
    pub fn of(&self, key: TaskKey) -> CleanUp {
        match self.tasks.get(&key) {
            None | Some(One::UnderWay { .. }) => CleanUp::UnderWay,
            Some(One::Done { took_ms }) => CleanUp::Done { took_ms: *took_ms },
            Some(One::Failed { reason }) => CleanUp::Failed { reason: reason.clone() },
        }
    }

    /// The record of a task is forgotten.
    pub fn forget(&mut self, key: TaskKey) {
        self.tasks.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::ids::{AllocationId, Rank};
    use proptest::prelude::*;

    const KEY: TaskKey = TaskKey { allocation: AllocationId(7), rank: Rank(0) };

    fn process(pid: u32) -> Left {
        Left::Process { gpu: 3, pid, who: "alice: python train.py".to_owned() }
    }

    #[test]
    fn a_task_without_devices_has_nothing_to_clean() {
        let mut all = CleanUps::default();
        assert_eq!(all.of(KEY), CleanUp::UnderWay, "nothing is known yet");
        assert!(!all.over(KEY, false, 5));
        assert_eq!(all.of(KEY), CleanUp::Done { took_ms: 0 });
    }

    #[test]
    fn what_is_left_is_named_and_the_rest_counted() {
        let left: Vec<Left> = (1..=6).map(process).collect();
        let words = in_words(&left);
        assert!(words.contains("process 4 (alice: python train.py) still uses GPU 3; and 2 more"), "{words}");
    }

    proptest! {
        /// Whatever is found and whenever: clean only after a look that found nothing, given up only when the time was over, and then for good.
        #[test]
        fn law_13_devices_are_clean_only_when_a_look_found_nothing(
            looks in proptest::collection::vec((any::<bool>(), 0_u64..4_000), 1..40),
        ) {
            let mut all = CleanUps::default();
            let mut now_ns = 1_000;
            prop_assert!(all.over(KEY, true, now_ns));
            let mut found_nothing = false;
            for (is_empty, ms) in looks {
                now_ns += ms * 1_000_000;
                let left = if is_empty { Vec::new() } else { vec![process(9)] };
                let before = all.of(KEY);
                let next = all.looked(KEY, &left, now_ns);
                found_nothing |= is_empty && before == CleanUp::UnderWay;
                match next {
                    Next::Again(wait) => prop_assert!(wait <= LOOK_MAX && !left.is_empty()),
                    Next::Withhold(reason) => {
                        prop_assert!(now_ns - 1_000 >= CLEAN_MAX.as_nanos() as u64);
                        prop_assert!(all.under_way().contains(&KEY), "held until it is withheld");
                        all.give_up(KEY, reason);
                    }
                    Next::Clean => {}
                }
                if matches!(all.of(KEY), CleanUp::Done { .. }) {
                    prop_assert!(found_nothing);
                }
                if before != CleanUp::UnderWay {
                    prop_assert_eq!(&before, &all.of(KEY), "what has ended stays so");
                }
                prop_assert_eq!(all.under_way().contains(&KEY), all.of(KEY) == CleanUp::UnderWay);
            }
        }
    }
}
