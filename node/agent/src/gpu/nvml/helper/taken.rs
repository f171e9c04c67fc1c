//! What is taken of the driver's answers when a card is sampled.
//!
//! What must stay true: a call that fails leaves its figure out, whatever the code, but for a lost card, which tells nothing at all; a value that cannot be true
//! is counted and not taken.

use super::driver::{Called, GPU_IS_LOST};
use crate::gpu::nvml::wire::Fault;
use muster_node_core::telemetry::{Figure, Figures};

/// `None` for what cannot be read; a lost card is a fault.
pub(super) fn told<T>(called: Called<T>) -> Called<Option<T>> {
    match called {
        Ok(value) => Ok(Some(value)),
        Err(Fault::Nvml { code, call, words }) if code == GPU_IS_LOST => Err(Fault::Nvml { call, code, words }),
        Err(_) => Ok(None),
    }
}

/// Takes values, and counts those that cannot be true.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) figures: Figures,
    pub(super) dropped: u32,
}

impl Taken {
    pub(super) fn put(&mut self, figure: Figure, value: f64) {
        self.dropped += u32::from(!self.figures.put(figure, value));
    }
}
