//! Plans of moves in the background, for shards that are told to make them: one cell at a time, told in the log and in metrics.
//!
//! What must stay true: nothing is moved by it; a cell is planned at most once in each period, and one cell between two passes.

use crate::config::MovesConfig;
use muster_model::CellId;
use muster_scheduler_core::View;
use muster_scheduler_core::planner::{MovePlan, Settings, plan_moves};
use std::collections::BTreeMap;

/// When each cell was last planned.
pub(crate) struct Moves {
    config: MovesConfig,
    planned_ms: BTreeMap<CellId, u64>,
}

impl Moves {
    pub(crate) fn new(config: MovesConfig) -> Self {
        Moves { config, planned_ms: BTreeMap::new() }
    }

    /// Plans the cell of those held that has waited longest, if it is due.
    pub(crate) fn plan_one(&mut self, view: &mut View, held: impl Iterator<Item = CellId>, now_ms: u64) {
        let waited = |cell: &CellId| self.planned_ms.get(cell).copied().unwrap_or(0);
        let Some(cell) = held.min_by_key(|cell| (waited(cell), *cell)) else { return };
        if self.planned_ms.get(&cell).is_some_and(|last_ms| now_ms < last_ms + self.config.every_ms) {
            return;
        }
        self.planned_ms.insert(cell, now_ms);
        let settings = Settings { share_percent: self.config.share_percent, ..Settings::at(now_ms) };
        tell(cell, &plan_moves(view, cell, &settings));
    }
}

fn tell(cell: CellId, plan: &MovePlan) {
    let moves = plan.openings.iter().map(|one| one.moves.len()).chain(plan.packings.iter().map(|one| one.moves.len()));
    let moves: usize = moves.sum();
    let (openings, packings) = (plan.openings.len(), plan.packings.len());
    let gpus: u64 = plan.openings.iter().map(|one| one.cards).sum();
    let label = cell.to_string();
    let gauge = |name: &'static str, value: usize| metrics::gauge!(name, "cell" => label.clone()).set(value as f64);
    gauge("muster_shard_planned_openings", openings);
    gauge("muster_shard_planned_packings", packings);
    gauge("muster_shard_planned_moves", moves);
    gauge("muster_shard_planned_conversions", plan.conversions.len());
    gauge("muster_shard_planned_gpus_opened", gpus as usize);
    if moves > 0 {
        tracing::info!(%cell, openings, gpus, packings, moves, "moves would start pending gangs; see `muster plan`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_take_turns_and_none_comes_before_its_time() {
        let mut moves = Moves::new(MovesConfig { share_percent: 2, every_ms: 100 });
        let mut view = View::default();
        let mut planned = |now_ms: u64| {
            moves.plan_one(&mut view, [CellId(1), CellId(2)].into_iter(), now_ms);
            moves.planned_ms.clone().into_iter().map(|(cell, at_ms)| (cell.0, at_ms)).collect::<Vec<_>>()
        };
        assert_eq!(planned(1_000), [(1, 1_000)]);
        assert_eq!(planned(1_010), [(1, 1_000), (2, 1_010)]);
        assert_eq!(planned(1_099), [(1, 1_000), (2, 1_010)], "none is due");
        assert_eq!(planned(1_100), [(1, 1_100), (2, 1_010)]);
        assert_eq!(planned(1_110), [(1, 1_100), (2, 1_110)]);
    }
}
