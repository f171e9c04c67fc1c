//! Whether an allocation uses what it holds: `run`, `idle` or `clean`.
//!
//! What must stay true: a pure function of what was seen since the last sample; where a card has no sensor of activity, a process on it counts as use, so
//! nobody is called idle for want of a sensor; whoever shares a card is called active only for processes of its own.

use serde::{Deserialize, Serialize};

/// What an allocation does with its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldState {
    /// Its processes have used a device since the last sample.
    Run,
    /// Held and unused.
    Idle,
    /// Its tasks are over, and what they leave on the devices is being removed.
    Clean,
}

impl HoldState {
    /// All of them.
    pub const ALL: [HoldState; 3] = [HoldState::Run, HoldState::Idle, HoldState::Clean];

    /// The word on the page.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            HoldState::Run => "run",
            HoldState::Idle => "idle",
            HoldState::Clean => "clean",
        }
    }
}

/// What was seen of one device that an allocation holds, since the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Nobody else holds a part of the card or slice.
    pub is_sole: bool,
    /// Whether anything ran on it; `None` where no sensor tells.
    pub is_active: Option<bool>,
    /// Whether a process of the allocation is on it; `None` where the driver did not list processes.
    pub has_process: Option<bool>,
}

/// What was seen of an allocation on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldSeen {
    /// A task of it lives.
    pub is_live: bool,
    /// Its devices are being cleaned.
    pub is_cleaning: bool,
    /// Its devices.
    pub devices: Vec<DeviceUse>,
}

/// What an allocation does with what it holds.
#[must_use]
pub fn hold_state(seen: &HoldSeen) -> HoldState {
    if seen.is_cleaning {
        return HoldState::Clean;
    }
    let is_used = seen.is_live && seen.devices.iter().any(|device| uses(*device));
    if is_used { HoldState::Run } else { HoldState::Idle }
}

fn uses(device: DeviceUse) -> bool {
    match (device.is_active, device.has_process) {
        (Some(false), _) | (None, Some(false) | None) => false,
        (Some(true) | None, Some(true)) => true,
        // Process lists may be empty while a process has the device open: what runs on a device can only be its one holder's.
        (Some(true), Some(false) | None) => device.is_sole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(device: DeviceUse, expected: HoldState) {
        let seen = HoldSeen { is_live: true, is_cleaning: false, devices: vec![DeviceUse::default(), device] };
        assert_eq!(hold_state(&seen), expected, "{device:?}");
        assert_eq!(hold_state(&HoldSeen { is_live: false, ..seen.clone() }), HoldState::Idle, "its tasks are over");
        assert_eq!(hold_state(&HoldSeen { is_cleaning: true, ..seen }), HoldState::Clean);
    }

    #[test]
    fn use_is_activity_of_ones_own() {
        let device = |is_sole, is_active, has_process| DeviceUse { is_sole, is_active, has_process };
        check(device(true, Some(true), Some(true)), HoldState::Run);
        check(device(true, Some(true), Some(false)), HoldState::Run);
        check(device(true, Some(true), None), HoldState::Run);
        check(device(true, Some(false), Some(true)), HoldState::Idle);
        check(device(true, None, Some(true)), HoldState::Run);
        check(device(true, None, Some(false)), HoldState::Idle);
        check(device(true, None, None), HoldState::Idle);
        check(device(false, Some(true), Some(true)), HoldState::Run);
        check(device(false, Some(true), Some(false)), HoldState::Idle);
        check(device(false, Some(true), None), HoldState::Idle);
        check(device(false, None, Some(true)), HoldState::Run);
    }

    #[test]
    fn an_allocation_without_devices_is_idle() {
        assert_eq!(hold_state(&HoldSeen { is_live: true, ..HoldSeen::default() }), HoldState::Idle);
    }
}
