//! What can be observed of a card, as the agent tells it to the ledger.
//!
//! What must stay true: an event says what was seen and nothing of what follows; readings (counters, links, the recovery action) are levels
//! that may be told again at every poll without counting twice; texts are bounded before anything of them is kept.

use super::kmsg::{KernelXid, PROCESS_MAX};
use super::recovery::RecoveryAction;
use super::xid::Xid;
use super::{TEXT_MAX, cut};
use muster_model::mig::MigPlacement;
use serde::{Deserialize, Serialize};
use std::fmt;

/// NVML's UUID of a card (`GPU-…`), never that of a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(pub String);

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who reported an Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum XidSource {
    /// The kernel's log; with its number when it came by `/dev/kmsg`, which tells old records again to every new reader.
    Kernel {
        /// The record's sequence number in this boot.
        seq: Option<u64>,
    },
    /// An event of NVML, which names no process.
    Nvml,
}

/// The MIG GPU instance that the driver names with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Instance {
    /// NVML's GPU instance id; it is given out anew when the instance has gone.
    pub id: u8,
    /// Where it stands; `None` when no instance has that id any more.
    pub place: Option<MigPlacement>,
}

/// An Xid of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidEvent {
    /// The code.
    pub xid: Xid,
    /// The instance that the driver names; `None` for the card as a whole.
    pub instance: Option<Instance>,
    /// Who reported it.
    pub source: XidSource,
    /// When it happened, in ms of Unix time.
    pub at_ms: u64,
    /// The process that the driver names, as the host numbers it. For other than an application's Xid it may be whoever called the driver.
    pub pid: Option<u32>,
    /// Its name.
    pub process: Option<String>,
    /// The rest of the driver's words.
    pub text: String,
}

impl XidEvent {
    /// An Xid of the kernel's log, by a reader that knows when the record was written and where instance `xid.gpu_instance` stands.
    #[must_use]
    pub fn from_kernel(xid: KernelXid, seq: Option<u64>, at_ms: u64, place: Option<MigPlacement>) -> Self {
        XidEvent {
            xid: xid.code,
            instance: xid.gpu_instance.map(|id| Instance { id, place }),
            source: XidSource::Kernel { seq },
            at_ms,
            pid: xid.pid,
            process: xid.process,
            text: xid.text,
        }
    }

    /// An Xid of NVML.
    #[must_use]
    pub const fn from_nvml(xid: Xid, instance: Option<Instance>, at_ms: u64) -> Self {
        XidEvent { xid, instance, source: XidSource::Nvml, at_ms, pid: None, process: None, text: String::new() }
    }
}

/// NVML's `RemappedRows`: the state of a card's spare memory rows. Not readable while MIG instances stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// A remap waits for a reset.
    pub pending: bool,
    /// A remap has failed.
    pub failed: bool,
    /// Rows remapped for corrected errors.
    pub correctable: u32,
    /// Rows remapped for uncorrectable errors.
    pub uncorrectable: u32,
}

/// Something that was observed of one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HealthEvent {
    /// Nothing but that time has passed.
    Tick,
    /// An Xid.
    Xid(XidEvent),
    /// NVML's field 230 was read.
    RecoveryAction(RecoveryAction),
    /// The remapped rows were read.
    RemappedRows(RemappedRows),
    /// The volatile count of double-bit errors was read: it counts from the last reset.
    DoubleBitErrors(u64),
    /// Whether the clocks were lowered for heat or power in the last minute; told once a minute.
    Slowdown(bool),
    /// How many NVLinks that should be up are down.
    LinksDown(u16),
    /// A call of the driver has overrun its deadline.
    DriverSilent {
        /// Since when it does not answer, in ms of Unix time.
        since_ms: u64,
    },
    /// The driver answers for this card.
    DriverAnswers,
    /// NVML says that the card is lost: a reading.
    Lost,
    /// The kernel has said that the card has fallen off the bus.
    FellOffTheBus {
        /// The record's number in the kernel's log of this boot, if it has one.
        seq: Option<u64>,
        /// When it was written, in ms of Unix time.
        at_ms: u64,
    },
    /// A process that Muster did not start has the card open.
    ForeignProcess {
        /// As the host numbers it.
        pid: u32,
        /// Whose it is.
        user: String,
        /// Its command line.
        command: String,
    },
    /// That process does not have the card open any more.
    ForeignGone {
        /// Which.
        pid: u32,
    },
    /// Devices could not be cleaned after a task.
    Unclean {
        /// The slice; `None` for the whole card.
        place: Option<MigPlacement>,
        /// What is left, for people.
        what: String,
    },
    /// They are clean now.
    Cleaned {
        /// The slice; `None` for the whole card.
        place: Option<MigPlacement>,
    },
    /// An operator takes the card for well.
    Cleared {
        /// Who.
        by: String,
        /// Why.
        reason: String,
        /// When, in ms of the control plane's Unix time: what was seen later is not meant.
        #[serde(default)]
        at_ms: u64,
    },
    /// The card was reset, and answers.
    ResetDone,
    /// The kernel's boot id, told at every start of the agent before anything else.
    Booted {
        /// As `/proc/sys/kernel/random/boot_id` says it.
        boot_id: String,
    },
}

impl HealthEvent {
    /// The same with its texts cut to what may be kept.
    #[must_use]
    pub fn bounded(&self) -> Self {
        let short = |text: &String| cut(text, TEXT_MAX);
        match self {
            HealthEvent::Xid(xid) => HealthEvent::Xid(XidEvent {
                process: xid.process.as_ref().map(|name| cut(name, PROCESS_MAX)),
                text: short(&xid.text),
                ..xid.clone()
            }),
            HealthEvent::ForeignProcess { pid, user, command } => {
                HealthEvent::ForeignProcess { pid: *pid, user: short(user), command: short(command) }
            }
            HealthEvent::Unclean { place, what } => HealthEvent::Unclean { place: *place, what: short(what) },
            HealthEvent::Cleared { by, reason, at_ms } => {
                HealthEvent::Cleared { by: short(by), reason: short(reason), at_ms: *at_ms }
            }
            HealthEvent::Booted { boot_id } => HealthEvent::Booted { boot_id: short(boot_id) },
            other => other.clone(),
        }
    }
}
