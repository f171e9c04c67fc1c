//! Which of its telemetry a card gives, by its generation and its MIG mode.
//!
//! What must stay true: a card under MIG gives no utilisation of the whole.

use super::card::{Architecture, Card};
use super::gauges::Load;
use super::refusal::{Answer, Refusal};

impl Card {
    /// Load of GPU and memory in percent.
    ///
    /// # Errors
    /// The card is in MIG mode.
    pub fn utilization(&self) -> Answer<(u32, u32)> {
        if self.mig.is_on {
            return Err(Refusal::NotSupported);
        }
        Ok((self.gauges.load.graphics_percent as u32, self.gauges.load.memory_percent as u32))
    }

    /// # Errors
    /// The card is in MIG mode.
    pub fn has_accounting(&self) -> Answer<()> {
        if self.mig.is_on { Err(Refusal::NotSupported) } else { Ok(()) }
    }

    /// # Errors
    /// The card retires pages instead, or has GPU instances.
    pub fn has_remapped_rows(&self) -> Answer<()> {
        let has_rows = self.architecture >= Architecture::Ampere && self.mig.instances.is_empty();
        if has_rows { Ok(()) } else { Err(Refusal::NotSupported) }
    }

    /// # Errors
    /// The card is older than Hopper.
    pub fn has_gpm(&self) -> Answer<()> {
        if self.architecture >= Architecture::Hopper { Ok(()) } else { Err(Refusal::NotSupported) }
    }

    /// The load of the whole card or of one GPU instance.
    ///
    /// # Errors
    /// The card is older than Hopper, or there is no such instance.
    pub fn load(&self, gpu_instance: Option<u32>) -> Answer<Load> {
        self.has_gpm()?;
        gpu_instance.map_or(Ok(self.gauges.load), |id| Ok(self.instance(id)?.load))
    }
}
