//! The page of figures in Prometheus' text format, with DCGM's names and labels.
//!
//! What must stay true: each metric is described in one block however many nodes a process has; a series of an instance is there only while the agent knows that
//! the instance stands; the label of a tenant is there only where the page may show names.

use super::{Latest, SHOWN_MAX, Telemetry, holders};
use crate::gpu::sample::InstanceSample;
use muster_model::ids::AllocationId;
use muster_model::mig;
use muster_node_core::telemetry::figure::FigureKind;
use muster_node_core::telemetry::{Figure, Figures, HoldState};
use std::collections::BTreeMap;
use std::fmt::Write;

const HOLD: &str = "muster_agent_hold";

/// What the page has beside the figures: name, meaning.
pub const PAGE: &[(&str, &str)] =
    &[(HOLD, "1 for what an allocation does with its devices, by state: run, idle (held and unused) or clean")];

/// A series: its labels, and its values.
struct Row {
    labels: String,
    figures: Figures,
}

/// The page of these nodes. Names of tenants are shown only `with_tenants`.
#[must_use]
pub fn page<'a>(nodes: impl IntoIterator<Item = &'a Telemetry>, with_tenants: bool) -> String {
    let (mut rows, mut holds) = (Vec::new(), Vec::new());
    for node in nodes {
        let named = Named::of(node, with_tenants);
        for (card, latest) in (0_u16..).zip(node.latest.lock().iter()) {
            if let Some(latest) = latest.as_ref().filter(|latest| latest.at.elapsed() <= SHOWN_MAX) {
                add(&named, card, latest, &mut rows);
            }
        }
        holds.extend(named.holds());
    }
    let mut text = String::new();
    for figure in Figure::ALL {
        let mut told = rows.iter().filter_map(|row| Some((&row.labels, row.figures.get(*figure)?))).peekable();
        if told.peek().is_none() {
            continue;
        }
        let kind = match figure.kind() {
            FigureKind::Gauge => "gauge",
            FigureKind::Counter => "counter",
        };
        head(&mut text, figure.name(), figure.help(), kind);
        for (labels, value) in told {
            // Writing to a text does not fail.
            let _ = writeln!(text, "{}{{{labels}}} {value}", figure.name());
        }
    }
    for (name, help) in PAGE.iter().filter(|_| !holds.is_empty()) {
        head(&mut text, name, help, "gauge");
        for labels in &holds {
            let _ = writeln!(text, "{name}{{{labels}}} 1");
        }
    }
    text
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn add(named: &Named<'_>, card: u16, latest: &Latest, rows: &mut Vec<Row>) {
    let sample = &latest.sample;
    let node = named.node;
    let Some(gpu) = node.parts.gpus.get(usize::from(card)) else { return };
    let base = |between: &str| {
        let mut labels = format!(
            "gpu=\"{card}\",UUID=\"{}\",pci_bus_id=\"{}\",device=\"nvidia{}\",modelName=\"{}\"{between}",
            safe(&gpu.uuid),
            safe(&sample.pci_bus_id),
            sample.minor,
            safe(&sample.name),
        );
        let _ = write!(labels, ",Hostname=\"{}\"", safe(&node.parts.host.name));
        labels
    };
    let labels = base("") + &named.holder((card, None));
    rows.push(Row { labels, figures: sample.figures.clone() });
    for instance in sample.instances.iter().filter(|instance| node.parts.cards.stands(card, &instance.uuid)) {
        let InstanceSample { id, place, figures, .. } = instance;
        let profile = place.and_then(|place| mig::profile_name(gpu.model, place.shape)).unwrap_or_default();
        let between = format!(",GPU_I_PROFILE=\"{}\",GPU_I_ID=\"{id}\"", safe(&profile));
        let holder = place.map(|place| named.holder((card, Some(place)))).unwrap_or_default();
        rows.push(Row { labels: base(&between) + &holder, figures: figures.clone() });
    }
}

/// A node with who holds what on it.
struct Named<'a> {
    node: &'a Telemetry,
    with_tenants: bool,
    sole: BTreeMap<holders::Part, AllocationId>,
    held: BTreeMap<AllocationId, holders::Held>,
}

impl<'a> Named<'a> {
    fn of(node: &'a Telemetry, with_tenants: bool) -> Self {
        Named { node, with_tenants, sole: holders::sole(node), held: node.holds.lock().clone() }
    }

    /// Labels of the one allocation that holds a part; empty where there is none.
    fn holder(&self, part: holders::Part) -> String {
        self.sole.get(&part).map(|allocation| self.labels(*allocation)).unwrap_or_default()
    }

    fn labels(&self, allocation: AllocationId) -> String {
        let Some(held) = self.held.get(&allocation) else { return String::new() };
        let tenant =
            if self.with_tenants { format!(",muster_tenant=\"{}\"", safe(&held.tenant)) } else { String::new() };
        format!("{tenant},muster_job=\"{}\",muster_allocation=\"{allocation}\"", held.job)
    }

    fn holds(&self) -> Vec<String> {
        let labels = |(allocation, held): (&AllocationId, &holders::Held)| {
            let node = safe(&self.node.parts.host.name);
            let state: HoldState = held.state;
            format!("Hostname=\"{node}\"{},state=\"{}\"", self.labels(*allocation), state.word())
        };
        self.held.iter().map(labels).collect()
    }
}

/// As a label's value may be.
fn safe(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}
