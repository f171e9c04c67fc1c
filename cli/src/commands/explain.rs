//! `muster explain`: why a job waits, and the smallest change that would start it.

use crate::client::Client;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output::Block;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use serde::Serialize;
use std::collections::BTreeMap;

/// The explanation.
#[derive(Debug, Serialize)]
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
    /// The state of the cluster it was read at.
    pub revision: u64,
}

/// One reason.
#[derive(Debug, Serialize)]
pub struct ReasonView {
    /// A stable word.
    pub code: String,
    /// For people.
    pub text: String,
    /// What it names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// The smallest change that would start it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// Its figures.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, String>,
}

impl Explanation {
    /// From the message.
    #[must_use]
    pub fn new(job: u64, reply: v1::ExplainReply) -> Self {
        let reason = |reason: v1::Reason| {
            let v1::Reason { code, text, subject, fix, figures } = reason;
            ReasonView { code, text, subject, fix, figures }
        };
        Explanation {
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
            Some(0) => ", first in its cell".to_owned(),
            Some(count) => format!(", {count} before it in its cell"),
            None => String::new(),
        };
        let mut lines = vec![format!("job {} is {}{before}", self.job, self.state)];
        for reason in &self.reasons {
            lines.push(format!("  {}: {}", reason.code, reason.text));
            if !reason.fix.is_empty() {
                lines.push(format!("    would start it: {}", reason.fix));
            }
        }
        lines.join("\n")
    }
}

/// Explains.
///
/// # Errors
/// When there is no such job, or the cluster stays away.
pub async fn run(context: &Context, id: u64) -> Result<(), Failure> {
    let explanation = explain(&context.client, id).await?;
    context.out.show(&explanation, |_| vec![Block::Text(explanation.text())])
}

/// Asks.
///
/// # Errors
/// As [`run`].
pub async fn explain(client: &Client, job_id: u64) -> Result<Explanation, Failure> {
    let ask = |channel| async move { JobsClient::new(channel).explain(v1::ExplainRequest { job_id }).await };
    Ok(Explanation::new(job_id, client.call("explain", ask).await?))
}
