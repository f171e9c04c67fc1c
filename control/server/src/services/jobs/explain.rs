//! Why a job stands where it stands, at a stated revision.
//!
//! A waiting job is explained by the scheduler's own core, as a search ([`crate::services::search`]). What must stay true: the answer
//! holds at the revision it names; every job gets at least one reason.

use super::{limited, preempted, unknown};
use crate::services::{App, plan};
use muster_control_core::State;
use muster_model::identity::Author;
use muster_model::{
    Job, JobId, JobPhase, Node, NotEligible, NumaPolicy, Outcome, Revision, Rpc, Topology, TopologyLevel, closeness,
    utc,
};
use muster_proto::v1;
use muster_scheduler_core::View;
use muster_scheduler_core::planner::{Settings, open_for};
use std::collections::BTreeSet;
use std::sync::Arc;
use tonic::Status;

pub(super) async fn explain(
    app: &App,
    author: &Author,
    request: v1::ExplainRequest,
) -> Result<v1::ExplainReply, Status> {
    let id = JobId(request.job_id);
    app.catch_up(request.consistency).await?;
    let job = app.consensus.read(|state, _| state.jobs.get(&id).map(Arc::clone));
    let (job, allowed) = super::get::find(app, author, Rpc::JobsExplain, job, id)?;
    let sees = allowed.sees();
    let (spread_out, victim, no_nodes, now_ms, revision) = app.consensus.read(|state, revision| {
        let victim = preempted::reason(state, sees, &job).or_else(|| cleaning(state, &job));
        (wider_than_preferred(state, &job), victim, state.nodes.is_empty(), state.meta.now_ms, revision)
    });
    if !matches!(job.phase, JobPhase::Queued) {
        let phase = job.phase.word().to_owned();
        let reasons = std::iter::once(standing(&job)).chain(victim).chain(spread_out).chain(chosen(&job)).collect();
        return Ok(v1::ExplainReply { revision: revision.0, phase, reasons, ..v1::ExplainReply::default() });
    }
    let not_eligible = job.not_eligible();
    if !not_eligible.is_empty() {
        let phase = job.phase.word().to_owned();
        let reasons = not_eligible.iter().map(not_started).chain(victim).chain(chosen(&job)).collect();
        return Ok(v1::ExplainReply { revision: revision.0, phase, reasons, ..v1::ExplainReply::default() });
    }
    let now_ms = now_ms.max(app.consensus.now_ms());
    let looked = move |view: &mut View, at: Revision| {
        let explained = muster_scheduler_core::explain(view, id, now_ms)?;
        let any = |of: fn(&muster_scheduler_core::Reason) -> bool| explained.reasons.iter().any(of);
        let apart = any(muster_scheduler_core::Reason::is_about_closeness);
        let looks = apart || any(muster_scheduler_core::Reason::is_about_free_cards);
        let settings = Settings { share_percent: 100, ..Settings::at(now_ms) };
        let moves = if looks { open_for(view, id, &settings) } else { None };
        // Small parts may be scattered over the cards; where they are not, too few free cards say enough.
        let moves = moves.filter(|found| apart || found.is_ok());
        let moves = moves.map(|found| found.map(|opening| plan::opening(view, &opening)));
        Some((explained, moves, at))
    };
    let found = app.searches.enter()?.look(app, revision, looked).await?;
    // Between the two looks it may have ended.
    let (mut explained, mut moves, revision) = found.ok_or_else(|| unknown(app, author, id))?;
    if !sees.shows_fleet() {
        explained = app.consensus.read(|state, _| limited::with_names(state, sees, |names| explained.limited(names)));
        // They name nodes and jobs of others, and are an operator's to make.
        moves = moves.filter(Result::is_err);
    }
    let mut reasons: Vec<v1::Reason> = explained.reasons.iter().map(told).collect();
    if no_nodes {
        reasons = vec![v1::Reason {
            fix: "start an agent with `muster node` on a GPU node".to_owned(),
            ..reason("no_nodes", "the fleet has no nodes yet")
        }];
    } else if reasons.is_empty() {
        reasons.push(reason(explained.phase, format!("is {}", explained.phase)));
    }
    if let Some(victim) = victim {
        // It says more of the same.
        reasons.retain(|reason| reason.code != "requeued");
        reasons.push(victim);
    }
    reasons.extend(chosen(&job));
    Ok(v1::ExplainReply {
        revision: revision.0,
        phase: explained.phase.to_owned(),
        reasons,
        position: explained.position,
        wider: explained.wider.iter().map(wider).collect(),
        estimates: explained.estimates.iter().map(estimate).collect(),
        no_moves: moves.as_ref().and_then(|found| found.as_ref().err()).map(|why| plan::no_plan(*why)),
        moves: moves.and_then(Result::ok),
    })
}

/// Why a job may not start yet, whatever is free.
fn not_started(why: &NotEligible) -> v1::Reason {
    v1::Reason {
        subject: why.job().map(|job| job.to_string()).unwrap_or_default(),
        fix: why.fix().to_owned(),
        ..reason(why.code(), why.text())
    }
}

fn told(reason: &muster_scheduler_core::Reason) -> v1::Reason {
    v1::Reason {
        code: reason.code().to_owned(),
        text: reason.text(),
        subject: reason.subject(),
        fix: reason.fix(),
        figures: reason.figures(),
        blockers: reason.holders.iter().map(blocker).collect(),
        remedies: reason.remedies.iter().map(remedy).collect(),
    }
}

fn blocker(held: &muster_scheduler_core::explain::Blocker) -> v1::Blocker {
    v1::Blocker {
        job_id: held.job.0,
        cards: held.cards,
        node: held.node.clone(),
        movable: held.movable,
        nodes: held.nodes,
        text: held.text(),
    }
}

fn remedy(remedy: &muster_scheduler_core::explain::Remedy) -> v1::Remedy {
    v1::Remedy { kind: remedy.kind().to_owned(), text: remedy.text() }
}

fn estimate(of: &muster_scheduler_core::explain::Estimate) -> v1::StartEstimate {
    let (error_half_percent, error_most_percent) = of.errors_percent();
    v1::StartEstimate {
        start_ms: of.start_ms,
        in_ms: of.in_ms,
        basis: of.basis().to_owned(),
        latest: of.is_bound(),
        error_half_percent,
        error_most_percent,
        text: of.text(),
    }
}

fn wider(wider: &muster_scheduler_core::explain::Wider) -> v1::WiderLevel {
    v1::WiderLevel {
        model: wider.model.to_string(),
        required: wider.required.to_string(),
        level: wider.level.to_string(),
        required_mb_s: wider.now.map(|link| link.mb_s),
        level_mb_s: wider.then.map(|link| link.mb_s),
        starts: wider.starts,
        text: wider.text(),
    }
}

fn reason(code: &str, text: impl Into<String>) -> v1::Reason {
    v1::Reason { code: code.to_owned(), text: text.into(), ..v1::Reason::default() }
}

/// How the system picked the cards of a job that said its needs alone.
fn chosen(job: &Job) -> Option<v1::Reason> {
    let choice = job.spec.asked.choice.as_ref()?;
    let figures = [
        ("rule", choice.rule.to_string()),
        ("model", choice.model.to_string()),
        ("compute_percent", choice.compute_percent.to_string()),
        ("memory_mib", choice.memory_mib.to_string()),
    ];
    let text = format!("for its needs, Muster chose {}", choice.text(&job.spec.request.devices));
    let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
    Some(v1::Reason { figures, ..reason("chosen", text) })
}

/// That a job has not got the level that it prefers, when it holds devices that lie wider.
fn wider_than_preferred(state: &State, job: &Job) -> Option<v1::Reason> {
    let preferred = job.spec.topology.preferred?;
    let held = state.allocations.get(&job.phase.allocation()?)?;
    let ground: Option<Vec<&Node>> = held.tasks.iter().map(|task| Some(&**state.nodes.get(&task.node)?)).collect();
    let ground = ground?;
    let inside = |level| {
        let required = Topology { required: Some(level), ..Topology::default() };
        closeness::check(&required, NumaPolicy::None, &held.tasks, &ground).is_ok()
    };
    if inside(preferred) {
        return None;
    }
    let level = TopologyLevel::ALL.into_iter().filter(|level| *level > preferred).find(|level| inside(*level));
    let lies = level.map_or_else(|| "uses its whole cell".to_owned(), |level| format!("runs inside one {level}"));
    let text =
        format!("it prefers topology {preferred}, but no {preferred} had room for it when it started; it {lies}");
    Some(reason("preference_not_met", text))
}

/// Of a job whose tasks have ended and whose devices are not clean yet.
fn cleaning(state: &State, job: &Job) -> Option<v1::Reason> {
    let JobPhase::Stopping(id) = job.phase else { return None };
    state.allocations.get(&id).filter(|held| held.has_ended())?;
    let text = "its tasks have ended, and its GPUs are allocated until nothing of them is left there; `muster gpus` shows which";
    Some(reason("cleaning", text))
}

/// Where a job stands that does not wait.
fn standing(job: &Job) -> v1::Reason {
    let nodes = job.nodes.iter().collect::<BTreeSet<_>>().len();
    match &job.phase {
        JobPhase::Queued => reason("just_queued", "is pending: the scheduler shard of its cell has not planned it yet"),
        JobPhase::Starting(_) => {
            reason("starting", "is starting: its GPUs are allocated, and some tasks do not run yet")
        }
        JobPhase::Running(_) => {
            reason("running", if nodes == 1 { "runs on 1 node".to_owned() } else { format!("runs on {nodes} nodes") })
        }
        JobPhase::Stopping(_) => {
            reason("completing", "is completing: its GPUs are allocated until the last task has ended")
        }
        JobPhase::Finished(Outcome::Failed { reason: why }) => {
            let fix = "see its output with `muster logs`".to_owned();
            v1::Reason { fix, ..reason("failed", why.clone()) }
        }
        JobPhase::Finished(Outcome::TimedOut) => {
            let text = format!("reached its time limit of {} s", job.spec.time_limit_s.unwrap_or(0));
            v1::Reason { fix: "submit it again with a longer time limit".to_owned(), ..reason("timeout", text) }
        }
        JobPhase::Finished(Outcome::DeadlineMissed) => {
            let text = match (job.started_ms, job.spec.start.deadline_ms) {
                (Some(_), Some(deadline_ms)) => format!("was stopped at its deadline, {}", utc::show(deadline_ms)),
                (_, deadline_ms) => {
                    format!("could not end by its deadline, {}", utc::show(deadline_ms.unwrap_or_default()))
                }
            };
            v1::Reason { fix: "submit it again with a later deadline".to_owned(), ..reason("deadline", text) }
        }
        JobPhase::Finished(Outcome::Cancelled) if job.is_to_be_killed() => {
            let never = job.unmet.never.map(|on| NotEligible::Never(on).text()).unwrap_or_default();
            reason("cancelled", format!("was cancelled: {never}"))
        }
        JobPhase::Finished(outcome) => reason(outcome.word(), format!("is {}", outcome.word())),
    }
}
