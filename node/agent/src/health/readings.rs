//! Readings of the cards: every card in turn of half a minute, and at once after an Xid of it.
//!
//! What must stay true: cards are read side by side, each with a deadline, and beside the loop that takes events, so a card that hangs delays no event of
//! another; a card that does not answer in time is reported as silent; a link counts as one that should be up once it was seen up, whatever has restarted since;
//! a reading that says nothing new costs no write to the disk, but once a minute.

use super::Health;
use crate::config::AgentError;
use crate::gpu::GpuError;
use crate::gpu::sample::Readings;
use futures::future::try_join_all;
use muster_node_core::health::{GpuUuid, HealthEvent};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// A reading takes milliseconds; a driver that needs longer than this is in trouble.
const READ_MAX: Duration = Duration::from_secs(5);
/// What only says when something was seen last, and the minutes of lowered clocks, may be lost for so long in a crash.
const STORE_EVERY: Duration = Duration::from_secs(60);

impl Health {
    /// Reads the cards until the agent stops.
    ///
    /// # Errors
    /// As [`Health::run`].
    pub(crate) async fn run_readings(&self) -> Result<(), AgentError> {
        let (Some(every), Some(mut wanted)) = (self.parts.backend.readings_every(), self.wanted.lock().take()) else {
            return std::future::pending().await;
        };
        let mut round = tokio::time::interval(every);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let cards: BTreeSet<u16> = tokio::select! {
                biased;
                _ = round.tick() => (0..self.parts.gpus.len() as u16).collect(),
                Some(first) = wanted.recv() => {
                    let mut cards = BTreeSet::from([first]);
                    cards.extend(std::iter::from_fn(|| wanted.try_recv().ok()));
                    cards
                }
            };
            try_join_all(cards.into_iter().map(|card| self.read(card))).await?;
        }
    }

    async fn read(&self, card: u16) -> Result<(), AgentError> {
        let began_ms = self.parts.host.clock.wall_ms();
        let events = match tokio::time::timeout(READ_MAX, self.parts.backend.readings(card)).await {
            Ok(Ok(readings)) => self.events_of(card, &readings),
            Ok(Err(error)) => return self.unreadable(card, &error),
            Err(_) => vec![HealthEvent::DriverSilent { since_ms: began_ms }],
        };
        self.take_readings(card, &events).await
    }

    /// It has answered, but not with readings: a lost card is reported as an event, and a helper that has died is started again.
    fn unreadable(&self, card: u16, error: &GpuError) -> Result<(), AgentError> {
        tracing::debug!(node = %self.parts.host.name, gpu = card, %error, "cannot read the health of a GPU");
        Ok(())
    }

    fn events_of(&self, card: u16, readings: &Readings) -> Vec<HealthEvent> {
        let mut events = vec![HealthEvent::DriverAnswers];
        events.extend(readings.rows.map(HealthEvent::RemappedRows));
        events.extend(readings.double_bits.map(HealthEvent::DoubleBitErrors));
        events.extend(readings.is_slowed().map(HealthEvent::Slowdown));
        events.extend(readings.links_up.and_then(|up| self.links_down(card, up)).map(HealthEvent::LinksDown));
        events
    }

    /// How many links are down of those that were ever up.
    fn links_down(&self, card: u16, up: u32) -> Option<u16> {
        let gpu = self.parts.gpus.get(usize::from(card))?;
        let mut known = self.links_seen.lock();
        let seen = known.entry(gpu.uuid.clone()).or_default();
        *seen |= up;
        u16::try_from((*seen & !up).count_ones()).ok()
    }

    async fn take_readings(&self, card: u16, events: &[HealthEvent]) -> Result<(), AgentError> {
        let Some(gpu) = self.parts.gpus.get(usize::from(card)) else { return Ok(()) };
        let (uuid, now_ms, mode) = (GpuUuid(gpu.uuid.clone()), self.parts.host.clock.wall_ms(), self.parts.config.mode);
        let effects: Vec<_> = {
            let mut ledger = self.ledger.lock();
            events.iter().flat_map(|event| ledger.observe(&uuid, event, now_ms, mode)).collect()
        };
        let is_due = {
            let mut stored = self.stored.lock();
            let is_due = !effects.is_empty() || stored.is_none_or(|at| at.elapsed() >= STORE_EVERY);
            if is_due {
                *stored = Some(Instant::now());
            }
            is_due
        };
        self.follow(effects);
        if is_due { self.store().await } else { Ok(()) }
    }
}
