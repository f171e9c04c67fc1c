//! Why a tenant gets more or less than its siblings, as it is shown.

use super::by_resource::{by_word, words};
use super::tenants::Amounts;
use crate::output::{Block, Columns};
use crate::units::show_cards;
use muster_proto::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// The answer.
#[derive(Debug, Serialize)]
pub struct TenantExplanation {
    /// The tenant.
    pub tenant: StandingView,
    /// Its siblings, in the order of their burst share over weight.
    pub neighbours: Vec<StandingView>,
    /// How many more there are.
    pub more_neighbours: u32,
    /// What there is to say.
    pub reasons: Vec<ReasonView>,
    /// The state of the cluster it was read at, and its time.
    pub revision: u64,
    /// ms since the Unix epoch.
    pub now_ms: u64,
    /// The half-life of past use in seconds; 0: past use does not count.
    pub half_life_s: u64,
}

/// One sentence.
#[derive(Debug, Serialize)]
pub struct ReasonView {
    /// A stable word.
    pub code: String,
    /// For people.
    pub text: String,
    /// The other tenant that it names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
}

/// How a tenant stands.
#[derive(Debug, Serialize)]
pub struct StandingView {
    /// Its path.
    pub path: String,
    /// What it can always have.
    pub guarantee: Amounts,
    /// Its ceiling.
    pub max: Amounts,
    /// Its share among siblings.
    pub weight: u32,
    /// Whether others may borrow what it leaves idle.
    pub lend: bool,
    /// Weights of resources that have one of their own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// The same for lending.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lends: BTreeMap<String, bool>,
    /// In use.
    pub used: Amounts,
    /// The part that floors pay.
    pub covered: Amounts,
    /// What pending jobs ask for.
    pub waiting: Amounts,
    /// The largest part of a guarantee in use, in millionths.
    pub floor_share: Option<u64>,
    /// The dominant share of burst use, in millionths.
    pub burst_share: Option<u64>,
    /// Where a half-life is set: the share of average burst use of the past, in millionths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub historic_share: Option<u64>,
    /// That share, or with a half-life the mean of the two, over the weight.
    pub burst_over_weight: u64,
    /// Of which resource it is.
    pub burst_resource: String,
    /// When what it uses changed last.
    pub used_since_ms: Option<u64>,
    /// Since when the oldest job waits.
    pub waiting_since_ms: Option<u64>,
}

impl StandingView {
    fn new(of: &v1::TenantStanding) -> Self {
        StandingView {
            path: of.path.clone(),
            guarantee: Amounts::vec(of.guarantee.as_ref()),
            max: Amounts::limits(of.max.as_ref()),
            weight: of.weight,
            lend: of.lend,
            weights: by_word(&of.weights),
            lends: by_word(&of.lends),
            used: Amounts::vec(of.used.as_ref()),
            covered: Amounts::vec(of.covered.as_ref()),
            waiting: Amounts::vec(of.waiting.as_ref()),
            floor_share: of.floor_share,
            burst_share: of.burst_share,
            historic_share: of.historic_share,
            burst_over_weight: of.burst_over_weight,
            burst_resource: of.burst_resource.clone(),
            used_since_ms: of.used_since_ms,
            waiting_since_ms: of.waiting_since_ms,
        }
    }

    fn row(&self, with_past: bool) -> Vec<String> {
        let cards = |amounts: &Amounts| match amounts.units.values().sum() {
            0_u64 => "-".to_owned(),
            units => show_cards(units),
        };
        let share = |share: Option<u64>| share.map_or_else(|| "-".to_owned(), percent);
        let mut row = vec![
            self.path.clone(),
            cards(&self.guarantee),
            cards(&self.used),
            share(self.floor_share),
            words(self.weight, &self.weights, |weight| weight.to_string()),
            share(self.burst_share),
        ];
        row.extend(with_past.then(|| share(self.historic_share)));
        row.extend([percent(self.burst_over_weight), cards(&self.waiting)]);
        row
    }
}

/// Millionths in percent with one decimal.
fn percent(millionths: u64) -> String {
    format!("{}.{} %", millionths / 10_000, millionths / 1_000 % 10)
}

impl TenantExplanation {
    /// From the message.
    #[must_use]
    pub fn new(reply: &v1::ExplainTenantReply) -> Self {
        let reason = |said: &v1::TenantReason| ReasonView {
            code: said.code.clone(),
            text: said.text.clone(),
            subject: said.subject.clone(),
        };
        TenantExplanation {
            tenant: StandingView::new(&reply.tenant.clone().unwrap_or_default()),
            neighbours: reply.neighbours.iter().map(StandingView::new).collect(),
            more_neighbours: reply.more_neighbours,
            reasons: reply.reasons.iter().map(reason).collect(),
            revision: reply.revision,
            now_ms: reply.now_ms,
            half_life_s: reply.half_life_s,
        }
    }

    /// The sentences, then the tenant and its siblings side by side; GPUs of all models together.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let mut lines = vec![format!("tenant {}", self.tenant.path)];
        lines.extend(self.reasons.iter().map(|reason| format!("  {}: {}", reason.code, reason.text)));
        let with_past = self.half_life_s > 0;
        let mut heads = vec!["TENANT", "GUARANTEE", "USED", "OF GUARANTEE", "WEIGHT", "BURST SHARE"];
        heads.extend(with_past.then_some("HISTORIC"));
        heads.extend(["OVER WEIGHT", "WAITING"]);
        let mut columns = Columns::new(&heads).right(&heads[1..]);
        columns.row(self.tenant.row(with_past));
        self.neighbours.iter().for_each(|other| columns.row(other.row(with_past)));
        let mut blocks = vec![Block::Text(lines.join("\n")), columns.block()];
        if self.more_neighbours > 0 {
            blocks.push(Block::Text(format!("and {} more siblings that use less", self.more_neighbours)));
        }
        blocks
    }
}
