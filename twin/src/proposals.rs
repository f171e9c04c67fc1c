//! What a shard proposes, as a command of the state machine; and what its view makes of a refusal.
//!
//! On a real fleet both go over the wire (`scheduler-shard/server/src/planner.rs`, `control/server/src/services/shards/propose.rs`).
//! Everything in virtual time uses these functions. What must stay true: they decide nothing; a view that hears of a refusal is
//! told what a real shard's view is told.

use muster_control_core::{Command, LeasedBinding, Reject};
use muster_model::{CellId, Epoch, JobId};
use muster_scheduler_core::{HAND_OVER_ROUND_MS, Proposal, View};

/// The command that a proposal of the shard stands for that holds `cell` under `epoch`.
#[must_use]
pub fn command(cell: CellId, epoch: Epoch, proposal: Proposal) -> Command {
    let leased = |found| LeasedBinding::under(cell, epoch, found);
    match proposal {
        Proposal::Bind(found) => Command::Bind(leased(found)),
        Proposal::Preempt { binding, victims } => Command::Preempt { binding: leased(binding), victims },
        Proposal::Move { binding, moves } => Command::Move { binding: leased(binding), moves },
        Proposal::Grow(found) => Command::Grow(leased(found)),
        Proposal::Shrink { binding, parts } => Command::Shrink { binding: leased(binding), parts },
        Proposal::HandOver(job) => Command::HandOver { cell, epoch, job },
        Proposal::Reserve { job, reserved } => {
            Command::Reserve { cell, epoch, job, reserved: reserved.as_deref().cloned() }
        }
        Proposal::RecordBypass { job, cards } => Command::RecordBypass { cell, epoch, job, cards },
    }
}

/// Tells the view of a shard that `command` was refused. Commands that no shard proposes change nothing.
pub fn refused(view: &mut View, command: &Command, why: &Reject, now_ms: u64) {
    match (command, why) {
        (Command::HandOver { job, .. }, Reject::NowhereElse { .. }) => {
            view.not_offered_before(*job, now_ms + HAND_OVER_ROUND_MS);
        }
        (Command::Reserve { job, .. }, _) => view.not_reserved(*job, now_ms),
        // It is told again when more has started.
        (Command::RecordBypass { .. }, _) => {}
        _ => {
            if let Some(job) = waits(command) {
                view.refused(job, now_ms);
            }
        }
    }
}

/// For whom a shard proposes this.
fn waits(command: &Command) -> Option<JobId> {
    match command {
        Command::Bind(binding)
        | Command::Preempt { binding, .. }
        | Command::Move { binding, .. }
        | Command::Grow(binding)
        | Command::Shrink { binding, .. } => Some(binding.job),
        Command::HandOver { job, .. } => Some(*job),
        _ => None,
    }
}
