//! Decides one command.
//!
//! One family of operations per file; this one only routes. What must stay true: nothing but the state, the command and the
//! entry's time is read, and a refusal leaves nothing behind.

mod access;
mod array_edits;
mod arrays;
mod attempts;
mod audit;
mod bind;
mod bypass;
mod cancel;
mod cells;
mod charge;
mod checkpoints;
mod claims;
mod classes;
mod clean_ups;
mod clearance;
mod clock;
mod conditions;
mod consequences;
mod credentials;
mod dependents;
mod due;
mod growth;
mod hand_over;
mod history;
mod hold;
mod infeasible;
mod isolation;
mod join_tokens;
mod joining;
mod machines;
mod move_records;
mod moves;
mod nodes;
mod pools;
mod ports;
mod preempt;
mod priority_classes;
mod requests;
mod requeue;
mod reserve;
mod resolve;
mod restoration;
mod run_times;
mod secrets;
mod shape;
mod starts;
mod submit;
mod sweep;
mod tasks;
mod tenants;
mod update;
mod usage;
mod windows;
mod withholding;

use crate::command::Command;
use crate::draft::Draft;
use crate::level;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::Change;

pub(crate) use charge::charge_of;
pub use nodes::drained_by;
pub use windows::drain_name;

/// Decides `command` at the entry's time `now_ms`: the changes it makes, in order, with its answer; or why it is refused.
///
/// # Errors
/// A typed refusal; nothing has changed then.
pub fn plan(state: &State, now_ms: u64, command: &Command) -> Result<(Vec<Change>, Done), Reject> {
    let (author, command) = command.parts();
    let mut draft = match command {
        Command::ResetClock => Draft::at(state, now_ms),
        _ => Draft::new(state, now_ms),
    };
    draft.author = author;
    if let Some(author) = author {
        access::judge(state, draft.now_ms, author, command)?;
    }
    let d = &mut draft;
    let done = match command {
        Command::Submit { request_id, issued_ms, payload_hash, specs, ended } => {
            submit::submit(d, request_id, *issued_ms, *payload_hash, specs, ended)
        }
        Command::Cancel { job } => cancel::cancel(d, *job),
        Command::ApplyTenants { tenants } => tenants::apply(d, tenants),
        Command::EditTenants { edits, prune, half_life_s } => tenants::edit(d, edits, *prune, *half_life_s),
        Command::MoveTenant { path, to } => tenants::relocate(d, path, to),
        Command::DeleteTenant { path } => tenants::delete(d, path),
        Command::PutPool(pool) => pools::put(d, pool),
        Command::DeletePool { name } => pools::delete(d, name),
        Command::JoinNode { spec, usage_incarnation, agent } => joining::join(d, spec, *usage_incarnation, *agent),
        Command::SetDrained { node, drained, reason, force } => nodes::set_drained(d, *node, *drained, reason, *force),
        Command::RemoveNode { node } => nodes::remove(d, *node),
        Command::MarkSilent { node, epoch } => nodes::mark_silent(d, *node, *epoch),
        Command::MarkReady { node, epoch } => nodes::mark_ready(d, *node, *epoch),
        Command::FenceNode { node, epoch } => nodes::fence(d, *node, *epoch),
        Command::AcquireCell { cell, shard } => cells::acquire(d, *cell, shard),
        Command::ExpireCell { cell, epoch } => cells::expire(d, *cell, *epoch),
        Command::Bind(binding) => bind::bind(d, binding),
        Command::HandOver { cell, epoch, job } => hand_over::hand_over(d, *cell, *epoch, *job),
        Command::ReportTasks { node, epoch, reports } => tasks::report(d, *node, *epoch, reports),
        Command::RecordUsage { node, incarnation, intervals } => usage::record(d, *node, *incarnation, intervals),
        Command::Sweep => sweep::sweep(d),
        Command::PutDeviceClass(class) => classes::put(d, class),
        Command::DeleteDeviceClass { name } => classes::delete(d, name),
        Command::PutPriorityClass(class) => priority_classes::put(d, class),
        Command::DeletePriorityClass { name } => priority_classes::delete(d, name),
        Command::Reserve { cell, epoch, job, reserved } => reserve::reserve(d, *cell, *epoch, *job, reserved.as_ref()),
        Command::ResetClock => clock::reset(d),
        Command::RecordBypass { cell, epoch, job, cards } => bypass::record(d, *cell, *epoch, *job, *cards),
        Command::Move { binding, moves } => moves::make(d, binding, moves),
        Command::Requeue { job } => requeue::requeue(d, *job),
        Command::UpdateJob { job, update } => update::update(d, *job, update),
        Command::ForgetFinished { forgotten, jobs } => history::forget(d, *forgotten, jobs),
        Command::RaiseFeatureLevel { level } => raise_feature_level(d, *level),
        Command::Preempt { binding, victims } => preempt::preempt(d, binding, victims),
        Command::Grow(binding) => growth::grow(d, binding),
        Command::Shrink { binding, parts } => growth::shrink(d, binding, parts),
        Command::Hold { job, by } => hold::hold(d, *job, *by),
        Command::Release { job, by } => hold::release(d, *job, *by),
        Command::DecideDue => due::decide(d),
        Command::PutWindow(spec) => windows::put(d, spec),
        Command::DeleteWindow { name } => windows::delete(d, name),
        Command::CancelTasks { job, indices } => array_edits::cancel_tasks(d, *job, indices),
        Command::ReportCards { node, epoch, withheld } => joining::report_cards(d, *node, *epoch, withheld),
        Command::ReportLinks { node, epoch, links } => joining::report_links(d, *node, *epoch, links),
        Command::ReportProofs { node, epoch, proofs } => isolation::report_proofs(d, *node, *epoch, proofs),
        Command::ClearGpu { node, gpu, reason } => nodes::clear_gpu(d, *node, *gpu, reason),
        Command::SetArrayLimit { job, max_running } => array_edits::set_limit(d, *job, *max_running),
        Command::PutGrant { subject, role, at, until_ms, reason } => {
            access::grant(d, subject, *role, at.as_deref(), *until_ms, reason)
        }
        Command::RevokeGrant { id } => access::revoke_grant(d, *id),
        Command::PutCredential { kind, principal, groups, secret_sha256, ttl_ms, scope, from, note } => {
            let secret = credentials::Secret { kind: *kind, sha256: *secret_sha256, ttl_ms: *ttl_ms };
            let scope = scope.as_ref().map(|(role, at)| (*role, at.as_str()));
            credentials::put(d, secret, credentials::Of { principal, groups, scope, from, note })
        }
        Command::RevokeCredential { id } => credentials::revoke(d, *id),
        Command::SetAccess { mode } => access::set_mode(d, *mode),
        Command::CommitAuditHead { member, number, hash } => audit::commit_head(d, *member, *number, *hash),
        Command::TrimAudit { through } => audit::trim(d, *through),
        Command::PutSecret { at, tenant, name, sealed } => secrets::put(d, at, *tenant, name, sealed),
        Command::DeleteSecret { at, name } => secrets::delete(d, at, name),
        Command::PutJoinToken { secret_sha256, role, names, enrolled, ttl_ms, rejoin } => {
            let token = join_tokens::Token { role: *role, names, enrolled, ttl_ms: *ttl_ms, rejoin: *rejoin };
            join_tokens::put(d, *secret_sha256, &token)
        }
        Command::RevokeJoinToken { id } => join_tokens::revoke(d, *id),
        Command::EnrollMachine { token, secret_sha256, machine, key_sha256 } => {
            join_tokens::enroll(d, (*token, secret_sha256), machine, *key_sha256)
        }
        Command::RenewMachine { machine, shown_sha256, key_sha256 } => {
            machines::renew(d, machine, *shown_sha256, *key_sha256)
        }
        Command::PinMachines { machines, replace } => machines::pin(d, machines, *replace),
        Command::SuspendMachine { machine, reason } => machines::suspend(d, machine, reason),
        Command::ResumeMachine { machine } => machines::resume(d, machine),
        Command::RemoveMachine { machine } => machines::remove(d, machine),
        Command::SetEnrolment { enrolment, members } => machines::set_enrolment(d, *enrolment, members),
        Command::Restore(step) => restoration::plan(d, step),
        Command::BeginSession { machine, session } => machines::begin_session(d, machine, *session),
        // Taken apart above; a second wrapping has been refused.
        Command::Authored { .. } => Err(access::wrapped_twice()),
    }?;
    consequences::draw(d);
    Ok(draft.finish(done))
}

fn raise_feature_level(draft: &mut Draft<'_>, to: u32) -> Result<Done, Reject> {
    let now = draft.meta.feature_level;
    if to < now {
        return Err(Reject::field("level", format!("is {to}, below the present level {now}"), "raise it only"));
    }
    draft.meta.feature_level = to;
    if (now..to).contains(&(level::QUOTAS - 1)) {
        tenants::begin_versions(draft);
    }
    Ok(Done::Ok)
}
