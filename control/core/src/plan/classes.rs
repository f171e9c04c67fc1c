//! Device classes: selectors with a name, which admins make and jobs use.
//!
//! What must stay true: a class is resolved when a job is accepted, so that changing or removing one changes nothing that waits or
//! runs.

use crate::bounds::DEVICE_CLASSES_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::object::Key;
use muster_model::{DeviceClass, Object};

/// Tenants need not exist: a class may be made before the team.
pub(super) fn put(draft: &mut Draft<'_>, class: &DeviceClass) -> Result<Done, Reject> {
    class.validate().map_err(Reject::Invalid)?;
    let known = draft.state.device_classes.get(&class.name);
    if known.is_none() && draft.state.device_classes.len() >= DEVICE_CLASSES_MAX {
        return Err(Reject::Full { what: "the table of device classes".to_owned(), limit: DEVICE_CLASSES_MAX as u64 });
    }
    if known != Some(class) {
        draft.put(Object::DeviceClass(class.clone()));
    }
    Ok(Done::Ok)
}

pub(super) fn delete(draft: &mut Draft<'_>, name: &str) -> Result<Done, Reject> {
    if !draft.state.device_classes.contains_key(name) {
        return Err(Reject::not_found("device class", name));
    }
    draft.delete(Key::DeviceClass(name.to_owned()));
    Ok(Done::Ok)
}
