//! Tenants and usage as they are shown.

use super::by_resource::{by_word, word, words, yes_no};
use crate::output::{Block, Columns};
use crate::units::{counted, exact_cards, exact_mebibytes, show_cards, show_cpus, show_mebibytes, show_moment};
use muster_model::usage::gpu_seconds;
use muster_model::use_history::half_life_in_words;
use muster_proto::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// Amounts, GPUs in cards by model.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Amounts {
    /// Cards by model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<String, f64>,
    /// Milli-CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    #[serde(skip)]
    pub(super) units: BTreeMap<String, u64>,
}

impl Amounts {
    fn new(units: &BTreeMap<String, u64>, cpu_milli: Option<u64>, memory_mib: Option<u64>) -> Self {
        let cards = |(model, units): (&String, &u64)| (model.clone(), muster_model::GpuUnits(*units).as_cards());
        Amounts { gpus: units.iter().map(cards).collect(), cpu_milli, memory_mib, units: units.clone() }
    }

    pub(super) fn vec(amounts: Option<&v1::ResourceVec>) -> Self {
        let some = |amount: u64| Some(amount).filter(|amount| *amount > 0);
        let Some(amounts) = amounts else { return Self::default() };
        let units = amounts.gpu_units.iter().filter(|(_, units)| **units > 0);
        let units = units.map(|(model, units)| (model.clone(), *units)).collect();
        Self::new(&units, some(amounts.cpu_milli), some(amounts.memory_mib))
    }

    pub(super) fn limits(limits: Option<&v1::Limits>) -> Self {
        limits.map_or_else(Self::default, |a| Self::new(&a.gpu_units, a.cpu_milli, a.memory_mib))
    }

    /// Whether there is nothing of anything.
    pub(super) fn is_nothing(&self) -> bool {
        self.units.values().all(|units| *units == 0) && self.cpu_milli.is_none() && self.memory_mib.is_none()
    }

    fn words(&self) -> String {
        let mut words: Vec<String> =
            self.units.iter().map(|(model, units)| format!("{model} {}", show_cards(*units))).collect();
        words.extend(self.cpu_milli.map(|milli| format!("cpus {}", show_cpus(milli))));
        words.extend(self.memory_mib.map(|mib| format!("memory {}", show_mebibytes(mib))));
        if words.is_empty() { "-".to_owned() } else { words.join(", ") }
    }
}

/// A tenant.
#[derive(Clone, Debug, Serialize)]
pub struct TenantView {
    /// Names from the top.
    pub path: String,
    /// What it can always have.
    pub guarantee: Amounts,
    /// Its ceiling.
    pub max: Amounts,
    /// In use now, those below it included.
    pub used: Amounts,
    /// Its share among siblings.
    pub weight: u32,
    /// trusted or untrusted.
    pub trust: String,
    /// Whom it is kept apart from, and what they may not share.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub anti_affinity: BTreeMap<String, String>,
    /// Whether burst of other tenants may use its idle guarantee.
    pub lend: bool,
    /// Weights of resources that have one of their own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// The same for lending.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lends: BTreeMap<String, bool>,
    /// The user that its tasks run as, where it says so itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as: Option<u32>,
}

impl TenantView {
    /// From the message.
    #[must_use]
    pub fn new(tenant: &v1::Tenant) -> Self {
        let spec = tenant.spec.clone().unwrap_or_default();
        TenantView {
            anti_affinity: spec.anti_affinity.into_iter().map(|apart| (apart.tenant, apart.level)).collect(),
            path: spec.path,
            guarantee: Amounts::vec(spec.guarantee.as_ref()),
            max: Amounts::limits(spec.max.as_ref()),
            used: Amounts::vec(tenant.used.as_ref()),
            weight: spec.weight.unwrap_or(1),
            trust: if spec.trust.is_empty() { "trusted".to_owned() } else { spec.trust },
            lend: spec.lend.unwrap_or(true),
            weights: by_word(&spec.weights),
            lends: by_word(&spec.lends),
            run_as: spec.run_as,
        }
    }
}

/// The list, or the same indented as a tree.
#[must_use]
pub fn table(tenants: &[TenantView], tree: bool) -> Vec<Block> {
    // Few fleets keep anybody apart: the column is there where one does.
    let apart = tenants.iter().any(|tenant| !tenant.anti_affinity.is_empty());
    // And nearly all lend.
    let lend = tenants.iter().any(|tenant| !tenant.lend || !tenant.lends.is_empty());
    let mut heads = vec!["TENANT", "GUARANTEE", "MAX", "USED", "WEIGHT", "TRUST"];
    let users = tenants.iter().any(|tenant| tenant.run_as.is_some());
    heads.extend(lend.then_some("LEND"));
    heads.extend(users.then_some("RUN AS"));
    heads.extend(apart.then_some("APART FROM"));
    let mut columns = Columns::new(&heads).right(&["WEIGHT"]);
    let mut sorted: Vec<&TenantView> = tenants.iter().collect();
    sorted.sort_by_key(|tenant| tenant.path.split('/').map(str::to_owned).collect::<Vec<_>>());
    for tenant in sorted {
        let (level, name) = match tenant.path.rsplit_once('/') {
            Some((above, name)) => (above.split('/').count(), name),
            None => (0, tenant.path.as_str()),
        };
        let mut row = vec![
            if tree { format!("{}{name}", "  ".repeat(level)) } else { tenant.path.clone() },
            tenant.guarantee.words(),
            tenant.max.words(),
            tenant.used.words(),
            words(tenant.weight, &tenant.weights, |weight| weight.to_string()),
            tenant.trust.clone(),
        ];
        if lend {
            row.push(words(tenant.lend, &tenant.lends, yes_no));
        }
        if users {
            row.push(tenant.run_as.map_or_else(|| "-".to_owned(), |user| user.to_string()));
        }
        if apart {
            let words: Vec<String> =
                tenant.anti_affinity.iter().map(|(path, level)| format!("{path} ({level})")).collect();
            row.push(if words.is_empty() { "-".to_owned() } else { words.join(", ") });
        }
        columns.row(row);
    }
    vec![columns.block()]
}

/// What `muster tenants apply` did, or would do.
#[derive(Clone, Debug, Serialize)]
pub struct AppliedView {
    /// Nothing was changed: it was only asked what would.
    pub dry_run: bool,
    /// What differs, by tenant.
    pub changes: Vec<ChangeView>,
    /// What is removed, as it was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<ChangeView>,
    /// Tenants that were named and are as they were.
    pub unchanged: u32,
    /// The half-life of past use, if it changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_life: Option<FieldView>,
    /// The state of the cluster it holds for.
    pub revision: u64,
}

/// What differs of one tenant.
#[derive(Clone, Debug, Serialize)]
pub struct ChangeView {
    /// Names from the top.
    pub path: String,
    /// It did not exist.
    pub new: bool,
    /// Value by value.
    pub fields: Vec<FieldView>,
}

/// What differs of one value.
#[derive(Clone, Debug, Serialize)]
pub struct FieldView {
    /// In the words of the file: `max.h100`, `weight`, `anti-affinity.ads`.
    pub field: String,
    /// As it was, if there was any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// As it is now, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl AppliedView {
    /// From the reply.
    #[must_use]
    pub fn new(reply: &v1::ApplyTenantsReply, dry_run: bool) -> Self {
        AppliedView {
            dry_run,
            changes: reply.changes.iter().map(ChangeView::new).collect(),
            removed: reply.removed.iter().map(ChangeView::removed).collect(),
            unchanged: reply.unchanged,
            half_life: reply.half_life_before_s.map(|before_s| FieldView {
                field: "half-life".to_owned(),
                before: Some(half_life_in_words(before_s)),
                after: reply.half_life_s.map(half_life_in_words),
            }),
            revision: reply.revision,
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        lines.extend(self.half_life.iter().map(|field| field.words(false)));
        for change in &self.changes {
            lines.push(if change.new { format!("{}: new", change.path) } else { format!("{}:", change.path) });
            lines.extend(change.fields.iter().map(|field| format!("  {}", field.words(change.new))));
        }
        for change in &self.removed {
            lines.push(format!("{}: removed", change.path));
            lines.extend(change.fields.iter().map(|field| format!("  {}", field.words(false))));
        }
        lines.push(self.summary());
        lines.join("\n")
    }

    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.removed.is_empty() && self.half_life.is_none()
    }

    fn summary(&self) -> String {
        let new = self.changes.iter().filter(|change| change.new).count();
        let (changed, removed) = (self.changes.len() - new, self.removed.len());
        let as_before = if self.unchanged > 0 { format!(" ({} unchanged)", self.unchanged) } else { String::new() };
        if self.changes.is_empty() && self.removed.is_empty() {
            return format!("no tenant {}{as_before}", if self.dry_run { "would change" } else { "changed" });
        }
        let kinds = [("add", "added", new), ("change", "changed", changed), ("remove", "removed", removed)];
        let mut parts = Vec::new();
        for (would, done, count) in kinds.into_iter().filter(|(_, _, count)| *count > 0) {
            // The noun stands once: `2 tenants added and 1 changed`.
            let counted = if parts.is_empty() { counted(count, "tenant") } else { count.to_string() };
            parts.push(if self.dry_run { format!("{would} {counted}") } else { format!("{counted} {done}") });
        }
        let last = parts.pop().unwrap_or_default();
        let words = if parts.is_empty() { last } else { format!("{} and {last}", parts.join(", ")) };
        if self.dry_run {
            format!("would {words}{as_before}; nothing was changed")
        } else {
            format!("{words}{as_before}")
        }
    }
}

/// What `muster tenants move` did, or would do.
#[derive(Clone, Debug, Serialize)]
pub struct MovedView {
    /// Nothing was changed: it was only asked what would.
    pub dry_run: bool,
    /// Tenants with another path.
    pub moved: Vec<FieldView>,
    /// What else differs, by tenant: rules that name the moved ones.
    pub changes: Vec<ChangeView>,
    /// The state of the cluster it holds for.
    pub revision: u64,
}

impl MovedView {
    /// From the reply.
    #[must_use]
    pub fn new(reply: &v1::MoveTenantReply, dry_run: bool) -> Self {
        let path = |spec: &Option<v1::TenantSpec>| spec.as_ref().map(|spec| spec.path.clone());
        let paths = reply.changes.iter().map(|change| (path(&change.before), path(&change.after)));
        let moved = paths.filter(|(before, after)| before != after);
        let changes = reply.changes.iter().map(ChangeView::new).filter(|change| !change.fields.is_empty());
        MovedView {
            dry_run,
            moved: moved.map(|(before, after)| FieldView { field: "path".to_owned(), before, after }).collect(),
            changes: changes.collect(),
            revision: reply.revision,
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let word = |path: &Option<String>| path.clone().unwrap_or_default();
        let mut lines: Vec<String> =
            self.moved.iter().map(|moved| format!("{} -> {}", word(&moved.before), word(&moved.after))).collect();
        for change in &self.changes {
            lines.push(format!("{}:", change.path));
            lines.extend(change.fields.iter().map(|field| format!("  {}", field.words(false))));
        }
        let tenants = counted(self.moved.len(), "tenant");
        lines.push(if self.dry_run {
            format!("would move {tenants}; nothing was changed")
        } else {
            format!("{tenants} moved")
        });
        lines.join("\n")
    }
}

impl FieldView {
    pub(super) fn words(&self, new: bool) -> String {
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        if new {
            return format!("{}: {}", self.field, word(&self.after));
        }
        format!("{}: {} -> {}", self.field, word(&self.before), word(&self.after))
    }
}

impl ChangeView {
    /// A tenant that is gone, with what is usual left out.
    fn removed(spec: &v1::TenantSpec) -> Self {
        let told = values(spec).into_iter().filter(|(field, value)| !is_usual(field, value));
        let fields = told.map(|(field, value)| FieldView { field, before: Some(value), after: None });
        ChangeView { path: spec.path.clone(), new: false, fields: fields.collect() }
    }

    pub(super) fn new(change: &v1::TenantChange) -> Self {
        let before = change.before.as_ref().map(values).unwrap_or_default();
        let after = change.after.as_ref().map(values).unwrap_or_default();
        let mut names: Vec<&String> = before.iter().chain(&after).map(|(name, _)| name).collect();
        let mut seen = std::collections::BTreeSet::new();
        names.retain(|name| seen.insert(*name));
        let value = |values: &[(String, String)], name: &String| {
            values.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
        };
        let new = change.before.is_none();
        let field =
            |name: &String| FieldView { field: name.clone(), before: value(&before, name), after: value(&after, name) };
        // What a new tenant has as usual is no news.
        let usual =
            |field: &FieldView| new && field.after.as_deref().is_some_and(|value| is_usual(&field.field, value));
        let fields = names.into_iter().map(field).filter(|field| field.before != field.after && !usual(field));
        ChangeView {
            path: change.after.as_ref().map(|spec| spec.path.clone()).unwrap_or_default(),
            new,
            fields: fields.collect(),
        }
    }
}

/// Whether a value is what a tenant has of which nothing is said.
fn is_usual(field: &str, value: &str) -> bool {
    matches!((field, value), ("weight", "1") | ("trust", "trusted") | ("lend", "yes"))
}

/// In the order of names, whatever kind of map the message has.
fn sorted<'a, T: 'a>(values: impl IntoIterator<Item = (&'a String, &'a T)>) -> Vec<(&'a String, &'a T)> {
    let mut sorted: Vec<_> = values.into_iter().collect();
    sorted.sort_by_key(|(name, _)| *name);
    sorted
}

/// Every value of a tenant in the words of its file, in their order there.
fn values(spec: &v1::TenantSpec) -> Vec<(String, String)> {
    let mut values = Vec::new();
    for (key, amounts) in
        [("guarantee", Amounts::vec(spec.guarantee.as_ref())), ("max", Amounts::limits(spec.max.as_ref()))]
    {
        let cards = amounts.units.iter().map(|(model, units)| (model.clone(), exact_cards(*units)));
        let cpus = amounts.cpu_milli.map(|milli| ("cpus".to_owned(), show_cpus(milli)));
        let memory = amounts.memory_mib.map(|mib| ("memory".to_owned(), exact_mebibytes(mib)));
        values.extend(cards.chain(cpus).chain(memory).map(|(name, value)| (format!("{key}.{name}"), value)));
    }
    values.push(("weight".to_owned(), spec.weight.unwrap_or(1).to_string()));
    let own = sorted(&spec.weights).into_iter();
    values.extend(own.map(|(resource, weight)| (format!("weight.{}", word(resource)), weight.to_string())));
    values.push(("trust".to_owned(), if spec.trust.is_empty() { "trusted".to_owned() } else { spec.trust.clone() }));
    values.push(("lend".to_owned(), yes_no(spec.lend.unwrap_or(true))));
    let own = sorted(&spec.lends).into_iter();
    values.extend(own.map(|(resource, lend)| (format!("lend.{}", word(resource)), yes_no(*lend))));
    values.extend(spec.run_as.map(|user| ("run-as".to_owned(), user.to_string())));
    let apart = spec.anti_affinity.iter();
    values.extend(apart.map(|apart| (format!("anti-affinity.{}", apart.tenant), apart.level.clone())));
    values
}

/// What a tenant has used.
#[derive(Clone, Debug, Serialize)]
pub struct UsageView {
    /// Names from the top.
    pub path: String,
    /// Of the tenant itself.
    pub gpu_seconds: f64,
    /// Those below it included.
    pub gpu_seconds_with_children: f64,
    /// GPU units (1/7,000 of a card) × milliseconds in which tasks of the tenant itself ran, exact.
    pub gpu_unit_ms: String,
    /// The same of GPUs that gangs held on after their task was over.
    pub idle_gpu_unit_ms: String,
    /// The same of GPUs that were being cleaned up after its tasks.
    pub clean_gpu_unit_ms: String,
    /// Intervals counted.
    pub intervals: u64,
    /// When the last one was counted, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_of: Option<String>,
}

impl UsageView {
    /// From the message.
    #[must_use]
    pub fn new(usage: &v1::TenantUsage) -> Self {
        UsageView {
            path: usage.path.clone(),
            gpu_seconds: usage.gpu_seconds,
            gpu_seconds_with_children: usage.gpu_seconds_with_children,
            gpu_unit_ms: usage.gpu_unit_ms.clone(),
            idle_gpu_unit_ms: exact(&usage.idle_gpu_unit_ms),
            clean_gpu_unit_ms: exact(&usage.clean_gpu_unit_ms),
            intervals: usage.intervals,
            as_of: (usage.as_of_ms > 0).then(|| show_moment(usage.as_of_ms)),
        }
    }
}

/// An exact amount; a control plane of an earlier version does not tell it.
pub(super) fn exact(unit_ms: &str) -> String {
    if unit_ms.is_empty() { "-".to_owned() } else { unit_ms.to_owned() }
}

/// An exact amount in GPU-seconds.
fn seconds(unit_ms: &str) -> String {
    unit_ms.parse().map_or_else(|_| "-".to_owned(), |unit_ms| format!("{:.1}", gpu_seconds(unit_ms)))
}

/// The table of usage.
#[must_use]
pub fn usage_table(usage: &[UsageView]) -> Vec<Block> {
    let heads = ["TENANT", "GPU-SECONDS", "WITH CHILDREN", "IDLE", "CLEAN-UP", "INTERVALS", "AS OF"];
    let mut columns = Columns::new(&heads).right(&["GPU-SECONDS", "WITH CHILDREN", "IDLE", "CLEAN-UP", "INTERVALS"]);
    for tenant in usage {
        columns.row(vec![
            tenant.path.clone(),
            format!("{:.1}", tenant.gpu_seconds),
            format!("{:.1}", tenant.gpu_seconds_with_children),
            seconds(&tenant.idle_gpu_unit_ms),
            seconds(&tenant.clean_gpu_unit_ms),
            tenant.intervals.to_string(),
            tenant.as_of.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    vec![columns.block()]
}
