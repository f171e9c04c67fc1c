//! `muster explain`: why a job waits, and the smallest change that would start it.

use crate::client::Client;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output::Block;
use crate::view::plan::{OpeningView, WhyView};
use muster_proto::v1;
use muster_proto::v1::Consistency;
use muster_proto::v1::jobs_client::JobsClient;
use serde::Serialize;
use std::collections::BTreeMap;

/// The explanation.
#[derive(Debug, Default, Serialize)]
pub struct Explanation {
    /// Of which job.
    pub job: u64,
    /// Where it stands.
    pub state: String,
    /// Jobs before it in the order of its cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_it: Option<u64>,
    /// Why it waits, the weightiest first.
    pub reasons: Vec<ReasonView>,
    /// What wider levels would cost it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wider: Vec<WiderView>,
    /// Moves of other jobs that alone would start it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moves: Option<OpeningView>,
    /// Why no moves would, when closeness is what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_moves: Option<WhyView>,
    /// When it would start, the earliest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub estimates: Vec<EstimateView>,
    /// The state of the cluster it was read at.
    pub revision: u64,
}

/// When a job would start.
#[derive(Debug, Serialize)]
pub struct EstimateView {
    /// ms since the Unix epoch.
    pub start_ms: u64,
    /// How far away that is, in seconds.
    pub in_s: u64,
    /// What it rests on.
    pub basis: String,
    /// It starts no later, unless hardware is lost.
    pub latest: bool,
    /// Half of the earlier predictions were off by at most this factor, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_half_percent: Option<u64>,
    /// Nine in ten were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_most_percent: Option<u64>,
    /// For people.
    pub text: String,
}

impl EstimateView {
    fn new(of: v1::StartEstimate) -> Self {
        let v1::StartEstimate { start_ms, in_ms, basis, latest, error_half_percent, error_most_percent, text } = of;
        EstimateView { start_ms, in_s: in_ms / 1_000, basis, latest, error_half_percent, error_most_percent, text }
    }
}

/// One reason.
#[derive(Debug, Default, Serialize)]
pub struct ReasonView {
    /// A stable word.
    pub code: String,
    /// For people.
    pub text: String,
    /// What it names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// The smallest change that would start it: the first of the remedies.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// Each alone would start it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<RemedyView>,
    /// Its figures.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, String>,
    /// Who holds what it lacks, in the place where it lacks least.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<BlockerView>,
}

/// What would start a waiting job.
#[derive(Debug, Serialize)]
pub struct RemedyView {
    /// A stable word.
    pub kind: String,
    /// For people.
    pub text: String,
}

/// A job in the way.
#[derive(Debug, Serialize)]
pub struct BlockerView {
    /// Which.
    pub job: u64,
    /// Cards, instances or shares it holds there.
    pub cards: u64,
    /// The first node of the place that it stands on.
    pub node: String,
    /// Nodes of the place that it stands on.
    pub nodes: u64,
    /// Whether it may be moved.
    pub movable: bool,
    /// For people.
    pub text: String,
}

/// A wider level.
#[derive(Debug, Serialize)]
pub struct WiderView {
    /// On this model.
    pub model: String,
    /// What the job requires.
    pub required: String,
    /// The wider level.
    pub level: String,
    /// MB/s of each card in one direction where it requires, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_mb_s: Option<u64>,
    /// MB/s of each card in one direction at the wider level, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level_mb_s: Option<u64>,
    /// It would start at once.
    pub starts: bool,
    /// For people.
    pub text: String,
}

impl Explanation {
    /// From the message.
    #[must_use]
    pub fn new(job: u64, reply: v1::ExplainReply) -> Self {
        let reason = |reason: v1::Reason| {
            let v1::Reason { code, text, subject, fix, figures, blockers, remedies } = reason;
            let blockers = blockers.into_iter().map(|held| {
                let v1::Blocker { job_id: job, cards, node, movable, nodes, text } = held;
                BlockerView { job, cards, node, nodes, movable, text }
            });
            let blockers = blockers.collect();
            let remedies = remedies.into_iter().map(|v1::Remedy { kind, text }| RemedyView { kind, text }).collect();
            ReasonView { code, text, subject, fix, figures, blockers, remedies }
        };
        let wider = |wider: v1::WiderLevel| {
            let v1::WiderLevel { model, required, level, required_mb_s, level_mb_s, starts, text } = wider;
            WiderView { model, required, level, required_mb_s, level_mb_s, starts, text }
        };
        Explanation {
            wider: reply.wider.into_iter().map(wider).collect(),
            moves: reply.moves.as_ref().map(OpeningView::new),
            no_moves: reply.no_moves.map(WhyView::new),
            estimates: reply.estimates.into_iter().map(EstimateView::new).collect(),
            job,
            state: reply.phase,
            before_it: reply.position,
            reasons: reply.reasons.into_iter().map(reason).collect(),
            revision: reply.revision,
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let before = match self.before_it {
            Some(before) => format!(" (position {} in its cell)", before + 1),
            None => String::new(),
        };
        let mut lines = vec![format!("job {} is {}{before}", self.job, self.state)];
        for reason in &self.reasons {
            lines.push(format!("  {}: {}", reason.code, reason.text));
            if reason.remedies.is_empty() && !reason.fix.is_empty() {
                lines.push(format!("    would start it: {}", reason.fix));
            }
            for (at, remedy) in reason.remedies.iter().enumerate() {
                let word = if at == 0 { "would start it" } else { "or" };
                lines.push(format!("    {word}: {}", remedy.text));
            }
            lines.extend(reason.blockers.iter().map(|held| format!("    blocked by: {}", held.text)));
        }
        lines.extend(self.wider.iter().map(|wider| format!("  wider level: {}", wider.text)));
        if let Some(moves) = &self.moves {
            lines.push(format!("  moves would start it: {}", moves.text()));
            lines.extend(moves.moves.iter().map(|made| format!("    {}", made.text())));
        }
        if let Some(why) = &self.no_moves {
            lines.push(format!("  no moves would start it: {}", why.text));
        }
        for estimate in &self.estimates {
            let word = if estimate.latest { "starts at the latest" } else { "expected start" };
            lines.push(format!("  {word} ({}): {}", estimate.basis, estimate.text));
        }
        lines.join("\n")
    }
}

/// Explains.
///
/// # Errors
/// When there is no such job, or the cluster stays away.
pub async fn run(context: &Context, id: u64) -> Result<(), Failure> {
    let explanation = explain(&context.client, id, context.consistency).await?;
    context.out.show(&explanation, |_| vec![Block::Text(explanation.text())])
}

/// Asks.
///
/// # Errors
/// As [`run`].
pub async fn explain(client: &Client, job_id: u64, consistency: Consistency) -> Result<Explanation, Failure> {
    let request = v1::ExplainRequest { job_id, consistency: consistency.into() };
    let ask = |channel| async move { JobsClient::new(channel).explain(request).await };
    Ok(Explanation::new(job_id, client.call("explain", ask).await?))
}
