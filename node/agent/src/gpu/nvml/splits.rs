//! MIG instances that this agent cuts into several compute instances, and what is left of one whose cutting was interrupted.
//!
//! What must stay true: an instance that is cut in part looks like one that somebody else has made, so a mark is set before the first compute instance is made,
//! and lifted when the instance has gone; only marked ones are taken down.

use super::Inner;
use super::wire::{Ask, SeenInstance};
use crate::gpu::GpuError;
use muster_model::mig::MigPlacement;

/// Where the marks are.
pub(super) const FILE: &str = "gpu-mig-splits.json";

fn mark(uuid: &str, place: MigPlacement) -> String {
    format!("{uuid} {place}")
}

impl Inner {
    /// Whether this agent has begun to cut the instance and has not finished.
    pub(super) fn is_half_cut(&self, uuid: &str, seen: &SeenInstance) -> bool {
        let is_marked = |place| self.splits.has(&mark(uuid, place));
        seen.compute_instances > 0 && seen.uuids.is_empty() && seen.place.is_some_and(is_marked)
    }

    /// Makes an instance with several compute instances.
    pub(super) async fn make_cut(
        &self,
        card: u16,
        (place, count): (MigPlacement, u8),
        doing: &str,
    ) -> Result<(), GpuError> {
        let (slot, _) = self.slot(card).await?;
        self.set_split(card, &slot.facts.card.uuid, place, true, doing).await?;
        self.change(card, Ask::Create(place, count), doing).await
    }

    /// Destroys an instance, however it is cut.
    pub(super) async fn destroy(&self, card: u16, place: MigPlacement, doing: &str) -> Result<(), GpuError> {
        self.change(card, Ask::Destroy(place), doing).await?;
        let (slot, _) = self.slot(card).await?;
        self.set_split(card, &slot.facts.card.uuid, place, false, doing).await
    }

    /// Takes down what was left half cut.
    pub(super) async fn sweep_half_cut(&self, card: u16, doing: &str) -> Result<(), GpuError> {
        if self.splits.is_empty() {
            return Ok(());
        }
        let (slot, _) = self.slot(card).await?;
        let uuid = slot.facts.card.uuid.as_str();
        let seen = self.seen(card).await?;
        for half in seen.instances.iter().filter(|one| self.is_half_cut(uuid, one)) {
            if let Some(place) = half.place {
                self.destroy(card, place, doing).await?;
            }
        }
        Ok(())
    }

    async fn set_split(
        &self,
        card: u16,
        uuid: &str,
        place: MigPlacement,
        on: bool,
        doing: &str,
    ) -> Result<(), GpuError> {
        let set = self.splits.set(&mark(uuid, place), on).await;
        set.map_err(|error| GpuError::Driver { card, doing: doing.to_owned(), why: error.to_string() })
    }
}
