//! What is withheld of a node's GPUs, between the wire and the model.

use super::allocation::{mig_from_wire, mig_to_wire};
use super::narrow;
use crate::v1;
use muster_model::FieldError;
use muster_model::node::{Repair, Withheld, WithheldSlice};

impl TryFrom<v1::WithheldSlice> for WithheldSlice {
    type Error = FieldError;

    fn try_from(wire: v1::WithheldSlice) -> Result<Self, FieldError> {
        let slice =
            wire.slice.ok_or_else(|| FieldError::new("withheld_slices.slice", "is missing", "name the slice"))?;
        Ok(WithheldSlice { place: mig_from_wire(&slice)?, reason: wire.reason })
    }
}

impl From<Repair> for v1::Repair {
    fn from(repair: Repair) -> Self {
        match repair {
            Repair::Wait => v1::Repair::Wait,
            Repair::Reset => v1::Repair::Reset,
            Repair::Reboot => v1::Repair::Reboot,
            Repair::Inspect => v1::Repair::Inspect,
        }
    }
}

/// A person looks at what only a later version knows how to repair.
pub(super) fn repair(wire: i32) -> Repair {
    match v1::Repair::try_from(wire) {
        Ok(v1::Repair::Wait) => Repair::Wait,
        Ok(v1::Repair::Reset) => Repair::Reset,
        Ok(v1::Repair::Reboot) => Repair::Reboot,
        Ok(v1::Repair::Inspect) | Err(_) => Repair::Inspect,
    }
}

impl From<&Withheld> for v1::WithheldCard {
    fn from(Withheld { gpu, slice, reason, by_verdict, repair }: &Withheld) -> Self {
        let (gpu, slice, reason) = (u32::from(*gpu), slice.map(mig_to_wire), reason.clone());
        v1::WithheldCard { gpu, slice, reason, by_verdict: *by_verdict, repair: v1::Repair::from(*repair).into() }
    }
}

impl TryFrom<v1::WithheldCard> for Withheld {
    type Error = FieldError;

    fn try_from(wire: v1::WithheldCard) -> Result<Self, FieldError> {
        let slice = wire.slice.as_ref().map(mig_from_wire).transpose()?;
        let v1::WithheldCard { gpu, slice: _, reason, by_verdict, repair: asked } = wire;
        Ok(Withheld { gpu: narrow("gpu", gpu, u16::MAX)?, slice, reason, by_verdict, repair: repair(asked) })
    }
}
