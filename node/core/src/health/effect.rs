//! What follows from an event: what the agent is to do and to tell.
//!
//! What must stay true: effects say what, the agent knows how; taking one twice is the same as taking it once. The agent takes the effects
//! of an event before it stores the ledger: after a crash between the two the kernel's log tells the event again.

use super::event::{GpuUuid, HealthEvent};
use super::verdict::{Scope, Verdict, VerdictKind};
use serde::{Deserialize, Serialize};

/// Whether verdicts are acted on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They are: cards are withheld, tasks ended.
    #[default]
    Enforce,
    /// They are computed and reported; nothing is withheld and nobody ended.
    ObserveOnly,
}

/// One thing that follows from an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Of which card.
    pub uuid: GpuUuid,
    /// Only to be told: the mode is [`Mode::ObserveOnly`].
    pub observed: bool,
    /// What.
    pub kind: EffectKind,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectKind {
    /// Tasks that hold the scope end with this cause.
    EndHolders {
        /// Whose holders.
        scope: Scope,
        /// Only the task that has this process; nobody when none has it any more. With MPS a fatal fault of one client takes all of
        /// the card: then the agent ends them all.
        process: Option<u32>,
        /// For the task's owner.
        cause: String,
        /// The program did it, and the card is not to blame.
        by_job: bool,
    },
    /// What may be done with a scope has changed.
    VerdictChanged {
        /// Of which scope.
        scope: Scope,
        /// What could be done before.
        from: VerdictKind,
        /// What holds now; `None` when the scope may be used as far as its own conditions go.
        to: Option<Verdict>,
    },
    /// The driver's recovery action is to be read and told.
    ReadRecoveryAction,
    /// To be logged and metered; each fault once.
    Record(HealthEvent),
}
