//! Proposals: bindings, hand-overs, reservations and counts, each answered on its own, in order.
//!
//! What must stay true: one bad proposal fails itself alone; whatever is refused comes back with a kind that the shard can act on.

use crate::api::refusal;
use crate::services::App;
use muster_control_core::{Command, Done, LeasedBinding, Reject};
use muster_model::identity::Author;
use muster_model::validate::bounds::PROPOSALS_PER_CALL_MAX;
use muster_model::{AllocationId, CellId, Epoch, JobId, PlannedMove};
use muster_proto::v1;
use muster_runtime::timeline;
use tonic::Status;
use v1::proposal_result::Result as Answer;
use v1::rejection::Kind;

pub(super) async fn propose(
    app: &App,
    author: &Author,
    request: v1::ProposeRequest,
) -> Result<v1::ProposeReply, Status> {
    let (cell, epoch) = (CellId(request.cell), Epoch(request.epoch));
    if request.proposals.len() > PROPOSALS_PER_CALL_MAX {
        let problem = format!("has {} proposals", request.proposals.len());
        return Err(refusal::field("proposals", problem, "send at most 1,024 in one call"));
    }
    // A malformed proposal keeps its place in the answer without going into the log.
    let mut results: Vec<Option<Answer>> = Vec::with_capacity(request.proposals.len());
    let mut commands = Vec::new();
    let received = timeline::Begun::now();
    for proposal in request.proposals {
        match command(cell, epoch, proposal) {
            Ok(command) => {
                commands.push(command);
                results.push(None);
            }
            Err(text) => results.push(Some(rejected(Kind::WrongShape, text))),
        }
    }
    let (decided, revision) = if commands.is_empty() {
        (Vec::new(), app.consensus.read(|_, revision| revision))
    } else {
        let proposed = app.propose_all(author, commands).await?.map_err(|error| refusal::propose(&error))?;
        (proposed.decided, proposed.revision)
    };
    let ago_ns = received.ns_ago();
    for allocation in decided.iter().filter_map(bound) {
        let (allocation, revision) = (allocation.0, revision.0);
        tracing::trace!(target: timeline::TARGET, step = "bind_received", allocation, ago_ns);
        tracing::trace!(target: timeline::TARGET, step = "bound", allocation, revision);
    }
    let mut decided = decided.into_iter();
    let results = results
        .into_iter()
        .map(|result| result.or_else(|| decided.next().map(answer)))
        .map(|result| v1::ProposalResult { result })
        .collect();
    Ok(v1::ProposeReply { results, revision: revision.0 })
}

fn bound(decided: &Result<Done, Reject>) -> Option<AllocationId> {
    match decided {
        Ok(Done::Bound { allocation }) => Some(*allocation),
        _ => None,
    }
}

fn command(cell: CellId, epoch: Epoch, proposal: v1::Proposal) -> Result<Command, String> {
    match proposal.kind {
        Some(v1::proposal::Kind::Bind(bind)) => {
            let found = bind.try_into().map_err(|error| format!("{error}"))?;
            Ok(Command::Bind(LeasedBinding::under(cell, epoch, found)))
        }
        Some(v1::proposal::Kind::Preempt(preempt)) => {
            let found = preempt.bind.unwrap_or_default().try_into().map_err(|error| format!("{error}"))?;
            let victims = preempt.victims.into_iter().map(AllocationId).collect();
            Ok(Command::Preempt { binding: LeasedBinding::under(cell, epoch, found), victims })
        }
        Some(v1::proposal::Kind::Move(planned)) => {
            let found = planned.bind.unwrap_or_default().try_into().map_err(|error| format!("{error}"))?;
            let moves: Result<Vec<PlannedMove>, _> = planned.moves.into_iter().map(TryInto::try_into).collect();
            let moves = moves.map_err(|error| format!("{error}"))?;
            Ok(Command::Move { binding: LeasedBinding::under(cell, epoch, found), moves })
        }
        Some(v1::proposal::Kind::Grow(bind)) => {
            let found = bind.try_into().map_err(|error| format!("{error}"))?;
            Ok(Command::Grow(LeasedBinding::under(cell, epoch, found)))
        }
        Some(v1::proposal::Kind::Shrink(shrink)) => {
            let found = shrink.bind.unwrap_or_default().try_into().map_err(|error| format!("{error}"))?;
            let parts = shrink.parts.into_iter().map(AllocationId).collect();
            Ok(Command::Shrink { binding: LeasedBinding::under(cell, epoch, found), parts })
        }
        Some(v1::proposal::Kind::HandOver(hand)) => Ok(Command::HandOver { cell, epoch, job: JobId(hand.job) }),
        Some(v1::proposal::Kind::Reserve(reserve)) => {
            let reserved = reserve.reserved.map(Into::into);
            Ok(Command::Reserve { cell, epoch, job: JobId(reserve.job), reserved })
        }
        Some(v1::proposal::Kind::RecordBypass(bypass)) => {
            Ok(Command::RecordBypass { cell, epoch, job: JobId(bypass.job), cards: bypass.cards })
        }
        None => {
            Err("this control node does not know this kind of proposal; upgrade it to the version of the shard"
                .to_owned())
        }
    }
}

fn rejected(kind: Kind, text: impl Into<String>) -> Answer {
    Answer::Rejection(v1::Rejection { kind: kind.into(), text: text.into() })
}

fn answer(decided: Result<Done, Reject>) -> Answer {
    let reject = match decided {
        Ok(Done::Bound { allocation }) => {
            metrics::counter!("muster_bindings_total").increment(1);
            return Answer::Allocation(allocation.0);
        }
        Ok(Done::HandedOver { to }) => return Answer::HandedToCell(to.0),
        // Of what shards propose, only reservations and counts have nothing to tell.
        Ok(Done::Ok) => return Answer::Reserved(v1::Reserved {}),
        Ok(other) => return rejected(Kind::Other, format!("answered {other:?}")),
        Err(reject) => reject,
    };
    let kind = match &reject {
        Reject::StaleEpoch { .. } | Reject::Held { .. } => Kind::StaleEpoch,
        // A job that is over, cancelled or gone is not waiting either.
        Reject::NotWaiting { .. } | Reject::NotFound { .. } => Kind::NotWaiting,
        Reject::DoesNotFit { over_max: true, .. } => Kind::OverMax,
        Reject::DoesNotFit { .. } | Reject::NotPreemptible { .. } | Reject::CannotGrow { .. } => Kind::DoesNotFit,
        Reject::WrongShape { .. } | Reject::Invalid(_) => Kind::WrongShape,
        Reject::NowhereElse { .. } => Kind::NowhereElse,
        Reject::InUse { .. }
        | Reject::RequestReused { .. }
        | Reject::RequestTooOld { .. }
        | Reject::Full { .. }
        | Reject::UsageGap { .. }
        | Reject::NotSilent { .. }
        | Reject::Denied(_)
        | Reject::EndUnknown { .. } => Kind::Other,
    };
    metrics::counter!("muster_proposals_rejected_total", "kind" => kind.as_str_name()).increment(1);
    rejected(kind, reject.to_string())
}
