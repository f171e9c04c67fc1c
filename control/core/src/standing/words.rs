//! A tenant's standing as people read it.

use super::{Cause, Comparison, Limit, MILLION, Standing, TenantExplanation};
use muster_model::ResourceVec;
use muster_model::resources::Resource;
use muster_model::use_history::half_life_in_words;
use muster_model::utc;

/// One sentence, with a stable word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// A stable word.
    pub code: &'static str,
    /// For people.
    pub text: String,
    /// The tenant that it names beside the one that is explained.
    pub subject: String,
}

impl TenantExplanation {
    /// What there is to say, first of the tenant itself.
    #[must_use]
    pub fn sentences(&self) -> Vec<Sentence> {
        let mut said = self.tenant.about_itself();
        said.extend(self.past_use());
        said.extend(self.place_in_order());
        said.extend(self.comparisons.iter().filter_map(|one| one.sentence(&self.tenant.path)));
        said
    }

    /// What it used before, where that counts.
    fn past_use(&self) -> Option<Sentence> {
        let (resource, _) = self.tenant.burst?;
        let what = resource.to_string();
        let what = what.strip_prefix("gpu.").unwrap_or(&what);
        let past = percent(self.tenant.historic_share?);
        let half_life = half_life_in_words(self.half_life_s);
        let text = format!(
            "past use counts with a half-life of {half_life}: its burst use was {past} of the fleet's {what} on average; \
             neighbours go by the mean of that and of present use, over weight"
        );
        Some(Sentence { code: "past_use", text, subject: String::new() })
    }

    /// Where it stands among the siblings that ask for more.
    fn place_in_order(&self) -> Option<Sentence> {
        if self.tenant.waiting.is_empty() {
            return None;
        }
        let asks = self.neighbours.iter().filter(|other| !other.waiting.is_empty() && other.limit.is_none());
        let key = |of: &Standing| (of.burst_over_weight(), of.id);
        let (before, after): (Vec<&Standing>, Vec<&Standing>) = asks.partition(|other| key(other) < key(&self.tenant));
        let share = percent(self.tenant.burst_over_weight());
        let text = match (before.last(), after.first()) {
            (None, None) => format!("no sibling asks for more; its burst share over weight is {share}"),
            (Some(first), _) => format!(
                "above guarantees {} of {} siblings that ask for more go first: its burst share over weight is {share}, {} has {}",
                before.len(),
                before.len() + after.len(),
                first.path,
                percent(first.burst_over_weight())
            ),
            (None, Some(next)) => format!(
                "above guarantees it goes first: its burst share over weight is {share}, {} has {}",
                next.path,
                percent(next.burst_over_weight())
            ),
        };
        let subject = before.last().or(after.first()).map(|other| other.path.clone()).unwrap_or_default();
        Some(Sentence { code: "order", text, subject })
    }
}

impl Standing {
    fn about_itself(&self) -> Vec<Sentence> {
        let said = |code, text| Sentence { code, text, subject: String::new() };
        let mut all = Vec::new();
        let since = self.used_since_ms.map(|ms| format!(" since {}", utc::show(ms))).unwrap_or_default();
        let floor = match self.floor_share {
            Some(share) => format!("{} of its guarantee ({}) is in use", percent(share), amounts(&self.guarantee)),
            None => "it has no guarantee".to_owned(),
        };
        let burst = self.burst_use();
        let burst = if burst.is_empty() { String::new() } else { format!(", {} of it is burst", amounts(&burst)) };
        all.push(said("use", format!("it uses {}{since}{burst}; {floor}", amounts(&self.used))));
        match self.waiting_since_ms.filter(|_| !self.waiting.is_empty()) {
            Some(ms) => {
                let waiting = amounts(&self.waiting);
                all.push(said(
                    "waiting",
                    format!("{waiting} of its pending jobs wait, the oldest since {}", utc::show(ms)),
                ));
            }
            None if self.waiting.is_empty() => all.push(said("no_demand", "nothing of it waits".to_owned())),
            None => all.push(said("not_eligible", "none of its pending jobs may start yet".to_owned())),
        }
        let limit = self.limit.as_ref();
        all.extend(limit.map(|limit| Sentence { code: "over_max", text: limit.text(), subject: limit.path.clone() }));
        all
    }
}

impl Limit {
    fn text(&self) -> String {
        let Limit { path, resource, used, max, jobs, since_ms } = self;
        let jobs = if *jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs") };
        format!(
            "the max of {path} keeps {jobs} waiting: {} of {} in use since {}",
            resource.in_words(*used),
            resource.in_words(*max),
            utc::show(*since_ms)
        )
    }
}

impl Comparison {
    fn sentence(&self, tenant: &str) -> Option<Sentence> {
        let cause = self.cause.as_ref()?;
        let (own, other) = self.used;
        let (more, less) = if own > other { (tenant, &*self.neighbour) } else { (&*self.neighbour, tenant) };
        let than = if own > other { "more" } else { "less" };
        let because = match cause {
            Cause::NoDemand { since_ms } => {
                format!("{less} asks for no more{}", at(", the last that it got began at ", *since_ms))
            }
            Cause::AtMax(limit) => format!("the max of {} keeps {less}", limit.path),
            Cause::Floor { since_ms, guarantee_ms } => format!(
                "floors pay for what {more} has more{}{}",
                at(", the last of it since ", *since_ms),
                at(", its guarantee has been the same since ", *guarantee_ms)
            ),
            Cause::Weight { since_ms } => format!("{more} has the higher weight{}", at(" since ", *since_ms)),
            Cause::PastUse { more: more_before, less: less_before } => format!(
                "{less} used more before ({} of the fleet on average, {more} {}), so what gets free goes to {more} first",
                percent(*less_before),
                percent(*more_before)
            ),
            Cause::Borrowed { since_ms } => {
                format!(
                    "{more} borrowed what was idle{}; what gets free goes to {less} first, and only a floor takes burst back",
                    at(", the last of it at ", *since_ms)
                )
            }
        };
        let (own, other) = (self.resource.in_words(own), self.resource.in_words(other));
        let text = format!("it has {own}, {than} than {} with {other}: {because}", self.neighbour);
        Some(Sentence { code: cause.code(), text, subject: self.neighbour.clone() })
    }
}

impl Cause {
    /// A stable word.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Cause::NoDemand { .. } => "neighbour_no_demand",
            Cause::AtMax(_) => "neighbour_max",
            Cause::Floor { .. } => "neighbour_floor",
            Cause::Weight { .. } => "neighbour_weight",
            Cause::PastUse { .. } => "neighbour_past_use",
            Cause::Borrowed { .. } => "neighbour_borrowed",
        }
    }
}

/// A time after some words; nothing where it is not known.
fn at(words: &str, ms: Option<u64>) -> String {
    ms.map(|ms| format!("{words}{}", utc::show(ms))).unwrap_or_default()
}

/// `8 h100`, or all kinds of GPUs; CPU and memory where there is no GPU.
fn amounts(of: &ResourceVec) -> String {
    let gpus: Vec<String> = of
        .gpus()
        .filter(|(_, units)| units.0 > 0)
        .map(|(model, units)| Resource::Gpu(model).in_words(units.0))
        .collect();
    match (gpus.is_empty(), of.is_empty()) {
        (false, _) => gpus.join(", "),
        (true, true) => "nothing".to_owned(),
        (true, false) => {
            of.nonzero().map(|(resource, amount)| resource.in_words(amount)).collect::<Vec<_>>().join(", ")
        }
    }
}

/// Millionths in percent with at most one decimal.
fn percent(millionths: u64) -> String {
    let tenths = millionths * 1_000 / MILLION;
    match tenths % 10 {
        0 => format!("{} %", tenths / 10),
        tenth => format!("{}.{tenth} %", tenths / 10),
    }
}
