//! A reset of a card, by `nvidia-smi`: NVML has no call for it.
//!
//! What must stay true: nobody uses the card, and our own helper, which has every card open, is away meanwhile; the helper comes back whatever becomes of the
//! reset; a reset is done when the command says so, whatever is read after it.

use super::Inner;
use super::commands::run_for;
use crate::gpu::GpuError;
use muster_node_core::CardStep;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// A reset takes some seconds, and longer on hosts with many cards.
const COMMAND_MAX: Duration = Duration::from_secs(90);
/// A helper opens every card when it starts.
const BACK_MAX: Duration = Duration::from_secs(120);

impl Inner {
    pub(super) async fn reset(&self, card: u16, doing: &str) -> Result<(), GpuError> {
        self.nobody(card, CardStep::Reset).await?;
        let (slot, _) = self.slot(card).await?;
        let mut command = Command::new(&self.config.smi);
        command.args(["--gpu-reset", "-i", &slot.facts.card.uuid]);
        let away = self.link.away().await;
        let done = run_for(command, "", COMMAND_MAX).await;
        drop(away);
        // It was reset all the same where the helper takes longer than that.
        let _ = timeout(BACK_MAX, self.link.until_back()).await;
        done.map(drop).map_err(|error| GpuError::Driver { card, doing: doing.to_owned(), why: error.to_string() })
    }
}
