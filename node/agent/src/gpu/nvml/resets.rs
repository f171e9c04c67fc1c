//! A reset of a card, by `nvidia-smi`: NVML has no call for it.
//!
//! What must stay true: nobody uses the card, and our own helper, which has every card open, is away meanwhile; the helper comes back whatever becomes of the
//! reset; a reset counts as done when the command says so and the card is in the MIG mode that was noted.

use super::Inner;
use super::commands::run_for;
use crate::gpu::GpuError;
use muster_node_core::CardStep;
use std::time::Duration;
use tokio::process::Command;

/// A reset takes some seconds, and longer on hosts with many cards.
const COMMAND_MAX: Duration = Duration::from_secs(90);

impl Inner {
    pub(super) async fn reset(&self, card: u16, doing: &str) -> Result<(), GpuError> {
        self.nobody(card, CardStep::Reset).await?;
        let (slot, _) = self.slot(card).await?;
        let noted = self.seen(card).await?.mig;
        let failed = |why: String| GpuError::Driver { card, doing: doing.to_owned(), why };
        {
            let _away = self.link.away().await;
            let mut command = Command::new(&self.config.smi);
            command.args(["--gpu-reset", "-i", &slot.facts.card.uuid]);
            run_for(command, "", COMMAND_MAX).await.map_err(|error| failed(error.to_string()))?;
        }
        let now = self.seen(card).await?.mig;
        let as_noted = noted.zip(now).is_none_or(|(noted, now)| now.current == noted.pending);
        if as_noted {
            Ok(())
        } else {
            Err(failed("the GPU was reset, and its MIG mode is not the one that was noted".to_owned()))
        }
    }
}
