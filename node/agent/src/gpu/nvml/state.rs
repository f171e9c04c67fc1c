//! How a card is driven, from what the driver says and what only the agent knows.
//!
//! What must stay true: only whole instances are shown, since only they can be held; a card that is in no mode by which it can be used is withheld, with
//! what to do; reading changes nothing, but for an exclusive compute mode that an agent has left behind on its way to MPS.

use super::mps::Mps;
use super::slots::Slot;
use super::wire::{Answer, Ask, MigMode, Seen, SeenInstance};
use super::{Inner, Presence, wire};
use crate::gpu::{CardState, GpuError, MigInstance};
use muster_model::request::SharingMode;

const DOING: &str = "reading its state";

impl Inner {
    pub(super) async fn state(&self, card: u16) -> Result<CardState, GpuError> {
        let (slot, presence) = self.slot(card).await?;
        if let Presence::Missing(why) = presence {
            return Ok(CardState { withheld: Some(why), ..whole(&slot) });
        }
        let seen = self.seen(card).await?;
        let uuid = slot.facts.card.uuid.as_str();
        let mps = Mps::of(&self.config, uuid);
        let known = CardState {
            withheld: unusable(&seen, |one| self.is_half_cut(uuid, one)),
            is_reset_pending: seen.mig.is_some_and(|mode| mode.current != mode.pending),
            mode_needs_reset: seen.mig.is_some() && !seen.is_resetless,
            ..whole(&slot)
        };
        if seen.mig.is_some_and(|mode| mode.current) {
            let instances = seen.instances.iter().filter_map(whole_instance).collect();
            return Ok(CardState { mode: SharingMode::Mig, instances, ..known });
        }
        if let Some(daemon) = mps.daemon() {
            let mps_pipe = Some(mps.pipe().display().to_string());
            // Of an earlier daemon, or of an earlier agent: nobody knows.
            let limits = self.mps_limits.lock().get(&card).copied();
            let mps_limits = limits.filter(|(of, _)| *of == daemon).map(|(_, limits)| limits);
            let mps_user = mps.only_user();
            return Ok(CardState { mode: SharingMode::Mps, mps_pipe, mps_limits, mps_user, ..known });
        }
        if seen.is_exclusive && mps.was_begun() {
            // Its daemon was not started or has died; one task of several processes could not run so.
            self.change(card, Ask::SetExclusive(false), "setting the compute mode back").await?;
        }
        let mode = if self.time_slices.has(uuid) { SharingMode::TimeSlice } else { SharingMode::Whole };
        Ok(CardState { mode, ..known })
    }

    pub(super) async fn seen(&self, card: u16) -> Result<wire::Seen, GpuError> {
        match self.ask(card, Ask::State, DOING).await? {
            Answer::State(seen) => Ok(seen),
            _ => Err(self.unexpected(card, DOING)),
        }
    }
}

/// As a card is that nothing is known of.
fn whole(slot: &Slot) -> CardState {
    CardState {
        uuid: slot.facts.card.uuid.clone(),
        model: slot.model,
        mode: SharingMode::Whole,
        instances: Vec::new(),
        mps_pipe: None,
        mps_limits: None,
        mps_user: None,
        withheld: None,
        is_reset_pending: false,
        mode_needs_reset: false,
    }
}

fn whole_instance(seen: &SeenInstance) -> Option<MigInstance> {
    (!seen.uuids.is_empty()).then_some(())?;
    Some(MigInstance { handle: seen.id.into(), uuids: seen.uuids.clone(), place: seen.place? })
}

fn unusable(seen: &Seen, is_own: impl Fn(&SeenInstance) -> bool) -> Option<String> {
    let is_foreign = |one: &&SeenInstance| {
        one.compute_instances > 0 && !is_own(one) && (one.uuids.is_empty() || one.place.is_none())
    };
    if let Some(MigMode { current, pending }) = seen.mig
        && current != pending
    {
        let word = if pending { "on" } else { "off" };
        return Some(format!(
            "MIG will be {word} after a reset of the GPU; drain the node: the agent resets the GPU when nobody uses the node"
        ));
    }
    let foreign = seen.instances.iter().find(is_foreign)?;
    let (id, parts) = (foreign.id, foreign.compute_instances);
    Some(format!(
        "GPU instance {id} with {parts} compute instances is not of Muster's making; destroy it with nvidia-smi"
    ))
}
