//! The changes of a card.
//!
//! What must stay true: a mode is entered from the whole card only, and while nobody uses it; a step that was taken already succeeds; one that fails leaves
//! the card as it was, or as a state that the next step repairs.

use super::mps::{Mps, MpsError};
use super::wire::Ask;
use super::{Inner, time_slices};
use crate::gpu::{CardState, GpuError};
use muster_model::request::SharingMode;
use muster_model::sharing::TimeSlice;
use muster_node_core::{CardStep, MpsLimits, MpsStart};

impl Inner {
    pub(super) async fn take(&self, card: u16, step: CardStep) -> Result<(), GpuError> {
        let doing = step.to_string();
        match step {
            CardStep::CreateInstance(place, count) => {
                self.sweep_half_cut(card, &doing).await?;
                match count {
                    1 => self.change(card, Ask::Create(place, 1), &doing).await,
                    count => self.make_cut(card, (place, count), &doing).await,
                }
            }
            CardStep::DestroyInstance(place) => self.destroy(card, place, &doing).await,
            // The helper looks at instances and users itself, which an older reading could not.
            CardStep::EnableMig => {
                self.needs_change(card, step, (SharingMode::Whole, SharingMode::Mig)).await?;
                self.change(card, Ask::SetMig(true), &doing).await
            }
            CardStep::DisableMig => {
                if self.needs_change(card, step, (SharingMode::Mig, SharingMode::Whole)).await? {
                    self.sweep_half_cut(card, &doing).await?;
                    self.change(card, Ask::SetMig(false), &doing).await?;
                }
                Ok(())
            }
            CardStep::NoteMig(on) => {
                self.sweep_half_cut(card, &doing).await?;
                self.change(card, Ask::NoteMig(on), &doing).await
            }
            CardStep::Reset => self.reset(card, &doing).await,
            CardStep::StartMps(start) => self.start_mps(card, start, &doing).await,
            CardStep::SetMpsLimits(limits) => self.set_mps_limits(card, limits, &doing).await,
            CardStep::StopMps => self.stop_mps(card, &doing).await,
            CardStep::SetTimeSlice(length) => {
                if self.needs_change(card, step, (SharingMode::Whole, SharingMode::TimeSlice)).await? {
                    self.nobody(card, step).await?;
                    self.set_time_slice(card, Some(length), &doing).await?;
                }
                Ok(())
            }
            CardStep::ClearTimeSlice => {
                if self.needs_change(card, step, (SharingMode::TimeSlice, SharingMode::Whole)).await? {
                    self.nobody(card, step).await?;
                    self.set_time_slice(card, None, &doing).await?;
                }
                Ok(())
            }
        }
    }

    /// Whether the card is still in the first mode; refused when it is in neither.
    async fn needs_change(
        &self,
        card: u16,
        step: CardStep,
        (from, to): (SharingMode, SharingMode),
    ) -> Result<bool, GpuError> {
        let CardState { mode, withheld, .. } = self.state(card).await?;
        match mode {
            mode if mode == to && withheld.is_none() => Ok(false),
            mode if mode == from || mode == to => Ok(true),
            mode => {
                let (from, mode) = (from.word(), mode.word());
                let why = format!("{step} needs a GPU in mode {from}; this GPU is in mode {mode}");
                Err(GpuError::Refused { card, why })
            }
        }
    }

    /// Refused when a process uses the card.
    pub(super) async fn nobody(&self, card: u16, step: CardStep) -> Result<(), GpuError> {
        let pids: Vec<String> = self.processes(card).await?.iter().map(|one| one.pid.to_string()).collect();
        if pids.is_empty() {
            return Ok(());
        }
        let why = format!("{step} needs an empty GPU; these processes use it: {}", pids.join(", "));
        Err(GpuError::Refused { card, why })
    }

    async fn start_mps(&self, card: u16, start: MpsStart, doing: &str) -> Result<(), GpuError> {
        let (slot, _) = self.slot(card).await?;
        let mps = Mps::of(&self.config, &slot.facts.card.uuid);
        let step = CardStep::StartMps(start);
        if self.needs_change(card, step, (SharingMode::Whole, SharingMode::Mps)).await? {
            self.nobody(card, step).await?;
        }
        let failed = |error: MpsError| failed(card, doing, error);
        // First the folder, by which a compute mode that is left behind is known as ours.
        mps.begin().map_err(failed)?;
        self.change(card, Ask::SetExclusive(true), doing).await?;
        let error = match mps.start(start).await {
            Ok(daemon) => {
                self.mps_limits.lock().insert(card, (daemon, start.limits));
                return Ok(());
            }
            Err(error) => failed(error),
        };
        if let Err(left) = self.end_mps(card, &mps, doing).await {
            tracing::error!(card, error = %left, "MPS could not be taken down after it did not start");
        }
        Err(error)
    }

    async fn stop_mps(&self, card: u16, doing: &str) -> Result<(), GpuError> {
        self.needs_change(card, CardStep::StopMps, (SharingMode::Mps, SharingMode::Whole)).await?;
        let (slot, _) = self.slot(card).await?;
        self.end_mps(card, &Mps::of(&self.config, &slot.facts.card.uuid), doing).await
    }

    /// The folder goes last: by it a later agent knows that the compute mode is to be set back.
    async fn end_mps(&self, card: u16, mps: &Mps<'_>, doing: &str) -> Result<(), GpuError> {
        if !mps.was_begun() {
            return Ok(());
        }
        mps.quit().await.map_err(|error| failed(card, doing, error))?;
        self.change(card, Ask::SetExclusive(false), doing).await?;
        mps.remove().map_err(|error| failed(card, doing, error))
    }

    async fn set_mps_limits(&self, card: u16, limits: MpsLimits, doing: &str) -> Result<(), GpuError> {
        let (slot, _) = self.slot(card).await?;
        let mps = Mps::of(&self.config, &slot.facts.card.uuid);
        let Some(daemon) = mps.daemon() else {
            return Err(GpuError::Refused { card, why: "no MPS server runs on it".to_owned() });
        };
        // Until both are set nobody knows what holds.
        self.mps_limits.lock().remove(&card);
        mps.limit(limits).await.map_err(|error| failed(card, doing, error))?;
        self.mps_limits.lock().insert(card, (daemon, limits));
        Ok(())
    }

    /// Lets go of clients of the card's MPS server.
    pub(super) async fn end_mps_clients(&self, card: u16, pids: &[u32]) -> Result<(), GpuError> {
        let (slot, _) = self.slot(card).await?;
        let mps = Mps::of(&self.config, &slot.facts.card.uuid);
        mps.end_clients(pids).await.map_err(|error| failed(card, "ending clients of MPS", error))
    }

    async fn set_time_slice(&self, card: u16, length: Option<TimeSlice>, doing: &str) -> Result<(), GpuError> {
        let (slot, _) = self.slot(card).await?;
        let set = time_slices::set(&self.time_slices, &self.config, &slot.facts.card.uuid, length).await;
        set.map_err(|error| GpuError::Driver { card, doing: doing.to_owned(), why: error.to_string() })
    }
}

fn failed(card: u16, doing: &str, error: MpsError) -> GpuError {
    let why = error.to_string();
    match error {
        MpsError::InUse { .. } => GpuError::Refused { card, why },
        _ => GpuError::Driver { card, doing: doing.to_owned(), why },
    }
}
