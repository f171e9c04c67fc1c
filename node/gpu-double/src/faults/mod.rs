//! What tests do to a host: faults, processes, reboots.
//!
//! What must stay true: every call changes the files under their lock and is seen by the next call of whoever has the library loaded; cards
//! are named by their slots, which a reboot does not change.

mod kernel_log;
mod mps;
mod processes;

use crate::files::{DoubleError, FAULTS, FLEET, Folder, KERNEL_LOG, Snapshot, replace, write_root};
use crate::state::card::Card;
use crate::state::fault::{Effect, FaultPlan, Rule, XID};
use crate::state::fleet::Fleet;
use crate::state::refusal::Refusal;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

impl Fleet {
    /// Writes the folder of this host: the fleet file, an empty fault file, the driver's folders, an empty kernel log.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), DoubleError> {
        let failed = |source| DoubleError::File { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        write_root(folder, self)?;
        std::fs::write(folder.join(KERNEL_LOG), []).map_err(failed)?;
        replace(folder, FAULTS, &FaultPlan::default())?;
        let mut fleet = self.clone();
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        fleet.cards.iter_mut().filter(|card| card.gauges.energy_at_ms == 0).for_each(|card| {
            card.gauges.energy_at_ms = now_ms;
        });
        // Last: by it the library knows that the folder is one.
        replace(folder, FLEET, &fleet)
    }
}

/// Field 230 after an Xid that asks for a reset or a reboot: until then the driver asks for it.
const fn recovery_after(code: u32) -> Option<u32> {
    match code {
        46 | 62 | 95 | 109 | 110 | 119 | 120 | 140 | 143 | 158 => Some(1),
        79 => Some(2),
        48 | 94 => Some(4),
        _ => None,
    }
}

/// A host's fault file and fleet file, for whoever makes trouble.
#[derive(Debug)]
pub struct Faults {
    folder: Folder,
}

impl Faults {
    /// Of the folder that [`Fleet::write`] has made.
    ///
    /// # Errors
    /// There is no fleet file.
    pub fn open(folder: &Path) -> Result<Self, DoubleError> {
        Ok(Faults { folder: Folder::open(folder)? })
    }

    /// The host as it is now.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn fleet(&self) -> Result<Fleet, DoubleError> {
        Ok(self.folder.read()?.fleet.clone())
    }

    /// The faults as they are now.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn plan(&self) -> Result<FaultPlan, DoubleError> {
        Ok(Arc::unwrap_or_clone(self.folder.read()?).plan)
    }

    /// Every call about a card hangs.
    ///
    /// # Errors
    /// The files cannot be changed; so for all below.
    pub fn hang(&self, card: u32) -> Result<(), DoubleError> {
        self.add_rule(Rule { card: Some(card), function: None, effect: Effect::Hang })
    }

    /// Every call hangs.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn hang_all(&self) -> Result<(), DoubleError> {
        self.add_rule(Rule { card: None, function: None, effect: Effect::Hang })
    }

    /// Every call of one function hangs, for all cards.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn hang_function(&self, function: &str) -> Result<(), DoubleError> {
        self.add_rule(Rule { card: None, function: Some(function.to_owned()), effect: Effect::Hang })
    }

    /// Calls about a card, or all calls, take this long.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn slow(&self, card: Option<u32>, ms: u64) -> Result<(), DoubleError> {
        self.add_rule(Rule { card, function: None, effect: Effect::SlowMs(ms) })
    }

    /// One function fails, for a card or for all.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn fail(&self, card: Option<u32>, function: &str, refusal: Refusal) -> Result<(), DoubleError> {
        self.add_rule(Rule { card, function: Some(function.to_owned()), effect: Effect::Fail(refusal) })
    }

    /// Adds a rule; of two that fit, the older one counts.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn add_rule(&self, rule: Rule) -> Result<(), DoubleError> {
        self.change_plan(|plan| plan.rules.push(rule))
    }

    /// Lifts all rules: calls that hang return.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn lift(&self) -> Result<(), DoubleError> {
        self.change_plan(|plan| plan.rules.clear())
    }

    /// An Xid of a card, or of an instance of it: to the event sets, and to the kernel's log as the act of the first process there.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn xid(&self, card: u32, gpu: Option<u32>, compute: Option<u32>, code: u32) -> Result<(), DoubleError> {
        self.change(|state| {
            state.plan.add_event(card, XID, u64::from(code), (gpu, compute));
            if let Some(action) = recovery_after(code) {
                state.fleet.card_mut(card as usize)?.health.recovery_action = action;
            }
            self.log_xid(state, card, gpu, code)
        })
    }

    /// Another event (`nvmlEventType*`), such as 32768 for a new recovery action.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn event(&self, card: u32, kind: u64, data: u64) -> Result<(), DoubleError> {
        self.change_plan(|plan| plan.add_event(card, kind, data, (None, None)))
    }

    /// A card falls off the bus: every call about it says so, and the kernel's log has Xid 79. After a reboot it is absent.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn lose(&self, card: u32) -> Result<(), DoubleError> {
        self.change(|state| {
            state.plan.lost.insert(card);
            self.log_xid(state, card, None, 79)
        })
    }

    /// A lost card is there again, after the next reboot if it is absent.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn find(&self, card: u32) -> Result<(), DoubleError> {
        self.change_plan(|plan| {
            plan.lost.remove(&card);
        })
    }

    /// The host reboots: instances, processes and event sets end; whoever has the library open must call `nvmlInit` again.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn reboot(&self) -> Result<(), DoubleError> {
        self.change(|state| {
            let Snapshot { fleet, plan } = state;
            fleet.reboot(|slot| plan.is_lost(slot));
            plan.events.clear();
            Ok(())
        })
    }

    /// A card is reset, as by `nvidia-smi --gpu-reset`.
    ///
    /// # Errors
    /// Somebody uses the card; see [`Faults::hang`].
    pub fn reset(&self, card: u32) -> Result<(), DoubleError> {
        self.change(|state| Ok(state.fleet.reset_card(card as usize, 0)?))
    }

    /// Whether callers are refused what only root may.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn no_permission(&self, is_refused: bool) -> Result<(), DoubleError> {
        self.change_plan(|plan| plan.no_permission = is_refused)
    }

    /// This driver lacks a function.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn unsupported(&self, function: &str) -> Result<(), DoubleError> {
        self.change_plan(|plan| {
            plan.unsupported.insert(function.to_owned());
        })
    }

    /// Changes anything of a card: its counters, temperatures, load, links.
    ///
    /// # Errors
    /// There is no such card; see [`Faults::hang`].
    pub fn change_card(&self, card: u32, change: impl FnOnce(&mut Card)) -> Result<(), DoubleError> {
        self.change(|state| {
            change(state.fleet.card_mut(card as usize)?);
            Ok(())
        })
    }

    pub(crate) fn change_plan(&self, change: impl FnOnce(&mut FaultPlan)) -> Result<(), DoubleError> {
        self.change(|state| {
            change(&mut state.plan);
            Ok(())
        })
    }

    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Snapshot) -> Result<T, DoubleError>,
    ) -> Result<T, DoubleError> {
        self.folder.change(change)
    }
}
