//! Plans of moves and conversions, on request, at a stated revision.
//!
//! They are made by the scheduler's own core, as searches ([`super::search`]), and change nothing. What must stay true: the answer holds
//! at the revision it names; a question is bounded by the planner's own steps for each cell.

use super::App;
use crate::api::refusal;
use muster_control_core::authz::{About, Ask};
use muster_model::identity::Author;
use muster_model::{CellId, NodeId, Revision, Rpc, TaskPlacement};
use muster_proto::v1;
use muster_scheduler_core::View;
use muster_scheduler_core::planner::{
    self, MovePlan, NoPlan, SHARE_PERCENT_DEFAULT, Settings, plan_moves as plan_cell,
};
use tonic::Status;

pub(super) async fn plan_moves(
    app: &App,
    author: &Author,
    request: &v1::PlanMovesRequest,
) -> Result<v1::PlanMovesReply, Status> {
    let share = request.share_percent.unwrap_or(u32::from(SHARE_PERCENT_DEFAULT));
    let share_percent = u8::try_from(share).ok().filter(|share| *share <= 100);
    let share_percent = share_percent.ok_or_else(|| {
        refusal::field("share_percent", format!("is {share}"), "use 0 to 100 (percent of the GPUs of movable jobs)")
    })?;
    let named = |state: &muster_control_core::State| -> Result<Vec<(CellId, String)>, Status> {
        let cells = state.cells.values().map(|cell| (cell.id, cell.name.clone()));
        let cells: Vec<_> = cells.filter(|(_, name)| request.cell.is_empty() || *name == request.cell).collect();
        if cells.is_empty() && !request.cell.is_empty() {
            return Err(refusal::not_found("cell", &request.cell));
        }
        Ok(cells)
    };
    let ask = Ask { rpc: Rpc::FleetPlanMoves, about: About::Nothing };
    let (cells, state_ms, revision) = app
        .look(author, ask, request.consistency, |state, revision, _| (named(state), state.meta.now_ms, revision))
        .await?;
    let cells = cells?;
    let now_ms = state_ms.max(app.consensus.now_ms());
    let settings = Settings { share_percent, ..Settings::at(now_ms) };
    let mut reply = v1::PlanMovesReply { now_ms, ..v1::PlanMovesReply::default() };
    let search = app.searches.enter()?;
    // Cell by cell, so that other searches get their turn; each says its own revision.
    for (id, name) in cells {
        let made = move |view: &mut View, at| {
            let plan = plan_cell(view, id, &settings);
            cell_plan(view, name, at, &plan)
        };
        reply.cells.push(search.look(app, revision, made).await?);
    }
    reply.revision = reply.cells.iter().map(|plan| plan.revision).min().unwrap_or(revision.0);
    Ok(reply)
}

fn cell_plan(view: &View, cell: String, at: Revision, plan: &MovePlan) -> v1::CellPlan {
    v1::CellPlan {
        cell,
        movable_jobs: plan.movable_jobs,
        movable_gpu_units: plan.movable.0,
        share_percent: u32::from(plan.share_percent),
        moved_gpu_units: plan.moved.0,
        openings: plan.openings.iter().map(|one| opening(view, one)).collect(),
        packings: plan.packings.iter().map(|one| packing(view, one)).collect(),
        conversions: plan.conversions.iter().map(|one| conversion(view, one)).collect(),
        unmatched: plan.unmatched.iter().map(unmatched).collect(),
        unhelped: plan
            .unhelped
            .iter()
            .map(|one| v1::Unhelped { job_id: one.job.0, why: Some(no_plan(one.why)) })
            .collect(),
        starting: plan.starting.iter().map(|job| job.0).collect(),
        complete: plan.complete,
        revision: at.0,
    }
}

pub(super) fn no_plan(why: NoPlan) -> v1::NoPlan {
    v1::NoPlan { code: why.code().to_owned(), text: why.text() }
}

/// An opening with the names of its nodes.
pub(super) fn opening(view: &View, one: &planner::Opening) -> v1::Opening {
    v1::Opening {
        job_id: one.job.0,
        model: one.model.to_string(),
        cards: one.cards,
        level: one.level.to_string(),
        islands: one.islands,
        moves: moves(view, &one.moves),
        tasks: placed(view, &one.tasks),
        cheapest: one.cheapest,
        lost_card_seconds: lost(&one.moves),
    }
}

fn packing(view: &View, one: &planner::Packing) -> v1::Packing {
    let card = |(node, gpu): &(NodeId, u16)| v1::PlannedCard {
        node: name(view, *node),
        gpu: u32::from(*gpu),
        layout: String::new(),
    };
    v1::Packing {
        model: one.model.to_string(),
        cards: one.cards.iter().map(card).collect(),
        moves: moves(view, &one.moves),
        lost_card_seconds: lost(&one.moves),
    }
}

fn conversion(view: &View, one: &planner::Conversion) -> v1::Conversion {
    let card = |(node, gpu, layout): &(NodeId, u16, String)| v1::PlannedCard {
        node: name(view, *node),
        gpu: u32::from(*gpu),
        layout: layout.clone(),
    };
    v1::Conversion {
        pool: one.pool.clone(),
        model: one.model.to_string(),
        to: one.to.to_string(),
        needs_rule: one.needs_rule,
        cards: one.cards.iter().map(card).collect(),
        jobs: one.jobs.iter().map(|job| job.0).collect(),
        card_seconds: one.card_seconds,
        pinned: one.pinned.clone().unwrap_or_default(),
    }
}

fn unmatched(one: &planner::Unmatched) -> v1::UnmatchedSlices {
    v1::UnmatchedSlices {
        pool: one.pool.clone(),
        model: one.model.to_string(),
        profile: one.profile.clone().unwrap_or_default(),
        count: one.count,
        cards: one.cards,
        running: one.running,
    }
}

fn moves(view: &View, moves: &[planner::Move]) -> Vec<v1::JobMove> {
    let one = |made: &planner::Move| v1::JobMove {
        job_id: made.job.0,
        model: made.model.to_string(),
        gpu_units: made.units.0,
        from: placed(view, &made.from),
        to: placed(view, &made.to),
        unsaved_s: made.loss.unsaved_s,
        restart_s: made.loss.restart_s,
        lost_card_seconds: made.loss.card_seconds(),
    };
    moves.iter().map(one).collect()
}

fn lost(moves: &[planner::Move]) -> u64 {
    moves.iter().map(|made| made.loss.card_seconds()).sum()
}

fn placed(view: &View, tasks: &[TaskPlacement]) -> Vec<v1::PlacedTask> {
    let task = |task: &TaskPlacement| v1::PlacedTask {
        node: name(view, task.node),
        devices: task.devices.iter().map(Into::into).collect(),
    };
    tasks.iter().map(task).collect()
}

fn name(view: &View, node: NodeId) -> String {
    view.capacity().nodes().get(&node).map_or_else(|| format!("#{node}"), |there| there.node.spec.name.clone())
}
