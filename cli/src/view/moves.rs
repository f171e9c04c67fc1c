//! Moves that were made, as they are shown: what was promised beside what came of it.

use crate::output::{Block, Columns};
use crate::units::{show_cards, show_moment, show_seconds};
use muster_model::GpuUnits;
use muster_proto::v1;
use serde::Serialize;
use std::collections::HashMap;

/// Moves, and what pools may still move.
#[derive(Debug, Serialize)]
pub struct MovesView {
    /// The newest first.
    pub moves: Vec<MoveView>,
    /// Of each pool that moves jobs.
    pub budgets: Vec<BudgetView>,
    /// The state of the cluster it was read from.
    pub revision: u64,
}

/// Jobs that were moved for one gang.
#[derive(Debug, Serialize)]
pub struct MoveView {
    /// When, RFC 3339.
    pub made: String,
    /// The pool whose budget pays.
    pub pool: String,
    /// The gang.
    pub job: u64,
    /// Whose.
    pub tenant: String,
    /// What it gets, in cards.
    pub gpus: f64,
    /// Where.
    pub nodes: Vec<String>,
    /// Cards that change their sharing mode for it.
    pub converted_gpus: u32,
    /// It has its GPUs within so many seconds.
    pub promised_wait_s: f64,
    /// It had them after so many; none while it waits, or when it came to nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
    /// The gang was cancelled, or a node of its place was lost.
    pub given_up: bool,
    /// The greatest loss of all moved jobs, in GPU-seconds.
    pub promised_loss_gpu_s: u64,
    /// What they lost; none while some do not run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_gpu_s: Option<u64>,
    /// The jobs that were moved.
    pub moved: Vec<MovedView>,
}

/// A job that was moved.
#[derive(Debug, Serialize)]
pub struct MovedView {
    /// Which.
    pub job: u64,
    /// What it holds, in cards.
    pub gpus: f64,
    /// From.
    pub from: Vec<String>,
    /// To.
    pub to: Vec<String>,
    /// What has become of it.
    pub state: String,
    /// The greatest loss, in GPU-seconds.
    pub promised_loss_gpu_s: u64,
    /// What it lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_gpu_s: Option<u64>,
}

/// What a pool may still move.
#[derive(Debug, Serialize)]
pub struct BudgetView {
    /// The pool.
    pub pool: String,
    /// Jobs in an hour.
    pub moves_per_hour: u32,
    /// Of them left.
    pub moves_left: u64,
    /// GPU-hours in a day.
    pub lost_gpu_hours_per_day: u32,
    /// Of them left, in GPU-seconds.
    pub lost_gpu_seconds_left: u64,
}

const fn gpu_s(unit_s: u64) -> u64 {
    unit_s.div_ceil(GpuUnits::CARD.0)
}

fn cards(units: u64) -> f64 {
    units as f64 / GpuUnits::CARD.0 as f64
}

/// The names of these, or their numbers where they are gone.
fn named(ids: &[u32], names: &HashMap<u32, String>) -> Vec<String> {
    ids.iter().map(|id| names.get(id).cloned().unwrap_or_else(|| format!("#{id}"))).collect()
}

impl MovesView {
    /// From the reply.
    #[must_use]
    pub fn new(reply: &v1::ListMovesReply) -> Self {
        let names: HashMap<u32, String> = reply.node_names.iter().map(|(id, name)| (*id, name.clone())).collect();
        let paths: HashMap<u32, String> = reply.tenant_paths.iter().map(|(id, path)| (*id, path.clone())).collect();
        let budget = |of: &v1::MoveBudget| BudgetView {
            pool: of.pool.clone(),
            moves_per_hour: of.moves_per_hour,
            moves_left: of.moves_left,
            lost_gpu_hours_per_day: of.lost_gpu_hours_per_day,
            lost_gpu_seconds_left: of.lost_gpu_seconds_left,
        };
        MovesView {
            moves: reply.moves.iter().map(|record| MoveView::new(record, &names, &paths)).collect(),
            budgets: reply.budgets.iter().map(budget).collect(),
            revision: reply.revision,
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> Vec<Block> {
        let heads = [
            "MADE",
            "GANG",
            "GPUS",
            "MOVED",
            "FROM",
            "TO",
            "STATE",
            "PROMISED START",
            "STARTED",
            "PROMISED LOSS",
            "LOST",
        ];
        let right = ["GANG", "GPUS", "MOVED", "PROMISED START", "STARTED", "PROMISED LOSS", "LOST"];
        let mut columns = Columns::new(&heads).right(&right);
        let loss = |gpu_s: u64| format!("{gpu_s} GPU-s");
        for made in &self.moves {
            for (at, moved) in made.moved.iter().enumerate() {
                let gang = |text: String| if at == 0 { text } else { String::new() };
                columns.row(vec![
                    gang(made.made.clone()),
                    gang(made.job.to_string()),
                    gang(show_cards((made.gpus * GpuUnits::CARD.0 as f64).round() as u64)),
                    moved.job.to_string(),
                    moved.from.join(","),
                    moved.to.join(","),
                    moved.state.clone(),
                    gang(format!("{:.1} s", made.promised_wait_s)),
                    gang(match made.wait_s {
                        Some(wait_s) => format!("{wait_s:.1} s"),
                        None if made.given_up => "given up".to_owned(),
                        None => "-".to_owned(),
                    }),
                    loss(moved.promised_loss_gpu_s),
                    moved.lost_gpu_s.map_or_else(|| "-".to_owned(), loss),
                ]);
            }
        }
        let mut blocks =
            vec![if self.moves.is_empty() { Block::Text("no job was moved".to_owned()) } else { columns.block() }];
        for budget in &self.budgets {
            blocks.push(Block::Text(match budget.moves_per_hour {
                0 => format!("pool {} moves no jobs (moves-per-hour is 0)", budget.pool),
                _ => format!(
                    "pool {} may move {} more jobs in this hour (of {}), for {} GPU-time in this day (of {} GPU-hours)",
                    budget.pool,
                    budget.moves_left,
                    budget.moves_per_hour,
                    show_seconds(budget.lost_gpu_seconds_left),
                    budget.lost_gpu_hours_per_day
                ),
            }));
        }
        blocks
    }
}

impl MoveView {
    fn new(record: &v1::MoveRecord, names: &HashMap<u32, String>, paths: &HashMap<u32, String>) -> Self {
        let after_s = |ms: u64| ms.saturating_sub(record.made_ms) as f64 / 1_000.0;
        let moved = |one: &v1::MovedJob| MovedView {
            job: one.job_id,
            gpus: cards(one.gpu_units),
            from: named(&one.from_nodes, names),
            to: named(&one.to_nodes, names),
            state: one.fate.clone(),
            promised_loss_gpu_s: gpu_s(one.promised_unit_s),
            lost_gpu_s: one.lost_unit_s.map(gpu_s),
        };
        let lost: Option<u64> = record.moved.iter().map(|one| one.lost_unit_s).sum();
        MoveView {
            made: show_moment(record.made_ms),
            pool: record.pool.clone(),
            job: record.job_id,
            tenant: paths.get(&record.tenant_id).cloned().unwrap_or_else(|| format!("#{}", record.tenant_id)),
            gpus: cards(record.gpu_units),
            nodes: named(&record.nodes, names),
            converted_gpus: record.converted_cards,
            promised_wait_s: after_s(record.due_ms),
            wait_s: record.started_ms.map(after_s),
            given_up: record.given_up_ms.is_some(),
            promised_loss_gpu_s: gpu_s(record.moved.iter().map(|one| one.promised_unit_s).sum()),
            lost_gpu_s: lost.map(gpu_s),
            moved: record.moved.iter().map(moved).collect(),
        }
    }
}
