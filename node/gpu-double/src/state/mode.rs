//! Changes of the MIG mode, resets and reboots.
//!
//! What must stay true: a wanted mode is noted at once (*pending*) and active only when nobody uses the card; before Hopper it takes a reset
//! besides, which the double's driver does not do by itself unless it is told so; a change gives the card another minor number; a reboot
//! takes every instance, process and client, and the mode too unless the card is an Ampere.

use super::card::Architecture;
use super::fleet::Fleet;
use super::refusal::{Answer, Refusal};

/// What became of a change that was accepted: active, or why it is still pending.
pub type Activation = Answer<()>;

impl Fleet {
    /// Sets the MIG mode of a card, on behalf of the process `caller`.
    ///
    /// # Errors
    /// The card has no MIG. Otherwise the call succeeds, and the answer says whether the mode is active.
    pub fn set_mig_mode(&mut self, slot: usize, on: bool, caller: u32) -> Answer<Activation> {
        let resets_cards = self.resets_cards;
        let minor = self.unused_minor();
        let card = self.card_mut(slot)?;
        if !card.has_mig() {
            return Err(Refusal::NotSupported);
        }
        card.mig.is_on_pending = on;
        if card.mig.is_on == on {
            return Ok(Ok(()));
        }
        let has_others = card.clients.iter().any(|client| client.pid != caller);
        if has_others || !card.processes.is_empty() || !card.mig.instances.is_empty() {
            return Ok(Err(Refusal::InUse));
        }
        if !card.is_resetless() && !resets_cards {
            return Ok(Err(Refusal::ResetRequired));
        }
        card.mig.is_on = on;
        card.minor = minor;
        Ok(Ok(()))
    }

    /// Resets a card, as `nvidia-smi --gpu-reset` does.
    ///
    /// # Errors
    /// A process or an NVML client other than `caller` uses it.
    pub fn reset_card(&mut self, slot: usize, caller: u32) -> Answer<()> {
        let minor = self.unused_minor();
        let card = self.card_mut(slot)?;
        if !card.processes.is_empty() || card.clients.iter().any(|client| client.pid != caller) {
            return Err(Refusal::InUse);
        }
        if card.mig.is_on != card.mig.is_on_pending {
            card.mig.is_on = card.mig.is_on_pending;
            card.minor = minor;
        }
        card.mig.instances.clear();
        card.memory_other_bytes = 0;
        card.health.after_reset();
        Ok(())
    }

    /// Reboots the host. Cards that are `lost` are absent afterwards, so that those behind them move up by one index and minor.
    pub fn reboot(&mut self, is_lost: impl Fn(usize) -> bool) {
        self.boot += 1;
        self.mps.clear();
        let mut minor = 0;
        for (slot, card) in self.cards.iter_mut().enumerate() {
            card.is_absent = is_lost(slot);
            if !card.is_absent {
                card.minor = minor;
                minor += 1;
            }
            let keeps_mode = card.architecture == Architecture::Ampere;
            card.mig.is_on_pending &= keeps_mode;
            card.mig.is_on = card.mig.is_on_pending;
            card.mig.instances.clear();
            card.processes.clear();
            card.clients.clear();
            card.memory_other_bytes = 0;
            (card.compute_mode, card.time_slice) = (0, 0);
            (card.is_persistent, card.is_accounting) = (false, false);
            card.health.after_reset();
        }
    }

    /// The lowest minor number beyond those of a fresh boot, or the lowest that a change of mode has set free.
    fn unused_minor(&self) -> u32 {
        let is_unused = |minor: &u32| self.cards.iter().all(|card| card.is_absent || card.minor != *minor);
        (0..).find(is_unused).unwrap_or_default()
    }
}
