//! Takes cells that nobody holds.
//!
//! Several shards spread by themselves: each takes its share of the cells at once, one after another with a pause that grows with
//! what it holds, so that the one with least is first; beyond its share only what nobody has wanted for a while, and not while
//! others are still taking theirs. What must stay true: races are harmless, because the control plane gives each lease to one.

use crate::config::ShardConfig;
use crate::control::Control;
use crate::leases::Leases;
use muster_model::{Cell, CellId, Epoch};
use muster_runtime::Chance;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often a shard looks for free cells.
const LOOK_EVERY_MS: u64 = 100;
/// Pause before each further cell, per cell held: others come first meanwhile.
const PAUSE_PER_CELL_MS: u64 = 60;
/// The longest such pause: shorter than the others wait, who would take it for the end of the spreading.
const PAUSE_MAX_MS: u64 = 240;

pub(crate) struct Seeker {
    name: String,
    cells_max: usize,
    shards_expected: usize,
    wait_max: Duration,
    chance: Chance,
    control: Arc<Control>,
    leases: Arc<Leases>,
    cells: watch::Receiver<Arc<Vec<Cell>>>,
    free_since: BTreeMap<CellId, Instant>,
    not_before: Instant,
    /// When another shard was last seen to take a cell.
    others_took: Option<Instant>,
}

impl Seeker {
    pub(crate) fn new(
        name: &str,
        config: &ShardConfig,
        chance: Chance,
        control: Arc<Control>,
        leases: Arc<Leases>,
        cells: watch::Receiver<Arc<Vec<Cell>>>,
    ) -> Self {
        Seeker {
            name: name.to_owned(),
            cells_max: config.cells_max,
            shards_expected: config.shards_expected,
            wait_max: Duration::from_millis(config.patience_ms),
            chance,
            control,
            leases,
            cells,
            free_since: BTreeMap::new(),
            not_before: Instant::now(),
            others_took: None,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let jitter_ms = self.chance.between(0, LOOK_EVERY_MS / 2);
            let pause = Duration::from_millis(LOOK_EVERY_MS + jitter_ms);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => self.look().await,
            }
        }
    }

    async fn look(&mut self) {
        let cells = self.cells.borrow_and_update().clone();
        let now = Instant::now();
        let held = self.leases.all();
        let free = |cell: &Cell| free_for(&self.name, &held, cell);
        let free: BTreeSet<CellId> = cells.iter().filter(|cell| free(cell)).map(|cell| cell.id).collect();
        if self.free_since.keys().any(|cell| !free.contains(cell) && !held.contains_key(cell)) {
            self.others_took = Some(now);
        }
        self.free_since.retain(|cell, _| free.contains(cell));
        for cell in &free {
            self.free_since.entry(*cell).or_insert(now);
        }
        if now < self.not_before || held.len() >= self.cells_max {
            return;
        }
        let in_share = held.len() < share(&self.name, &cells, self.shards_expected);
        let quiet_since = |since: &Instant| self.others_took.map_or(*since, |took| took.max(*since));
        let long_free =
            |cell: &&CellId| self.free_since.get(*cell).is_some_and(|since| now - quiet_since(since) >= self.wait_max);
        if let Some(cell) = free.iter().find(|cell| in_share || long_free(cell)) {
            self.take(*cell, held.len()).await;
        }
    }

    async fn take(&mut self, cell: CellId, held: usize) {
        let sent = Instant::now();
        match self.control.acquire(&self.name, cell).await {
            Ok(reply) => {
                let until = sent + Duration::from_millis(reply.lease_ms);
                tracing::info!(shard = %self.name, %cell, epoch = reply.epoch, revision = reply.revision, "cell acquired");
                self.leases.take(cell, Epoch(reply.epoch), until, reply.revision);
            }
            Err(status) => tracing::debug!(shard = %self.name, %cell, error = %status, "cell not acquired"),
        }
        let pause_ms = (PAUSE_PER_CELL_MS * (held as u64 + 1)).min(PAUSE_MAX_MS);
        self.not_before = Instant::now() + Duration::from_millis(pause_ms + self.chance.between(0, PAUSE_PER_CELL_MS));
    }
}

/// Whether nobody else holds the cell, and this shard does not know of a lease of its own.
fn free_for(name: &str, held: &BTreeMap<CellId, Epoch>, cell: &Cell) -> bool {
    cell.holder.as_deref().is_none_or(|holder| holder == name) && !held.contains_key(&cell.id)
}

/// The cells that are a shard's due, rounded up, among those that hold any and those that are expected.
fn share(name: &str, cells: &[Cell], shards_expected: usize) -> usize {
    let mut alive: BTreeSet<&str> = cells.iter().filter_map(|cell| cell.holder.as_deref()).collect();
    alive.insert(name);
    cells.len().div_ceil(alive.len().max(shards_expected).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_what_is_due_among_the_living_and_the_expected() {
        let check = |holders: &[Option<&str>], expected: usize, due: usize| {
            let cell = |(id, holder): (usize, &Option<&str>)| Cell {
                id: CellId(id as u32),
                name: String::new(),
                epoch: Epoch(1),
                holder: holder.map(str::to_owned),
            };
            let cells: Vec<Cell> = holders.iter().enumerate().map(cell).collect();
            assert_eq!(share("me", &cells, expected), due, "{holders:?} {expected}");
        };
        check(&[], 1, 0);
        check(&[None, None, None], 1, 3);
        check(&[None, None, None], 2, 2);
        check(&[Some("me"), Some("you"), None], 1, 2);
        check(&[Some("you"), Some("they"), None, None], 1, 2);
        check(&[Some("you"), Some("you")], 2, 1);
    }
}
