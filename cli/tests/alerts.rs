//! The alert rules that are shipped: they parse, say what to do, and use nothing but what Muster exports.

use muster_agent::telemetry::{Figure, PAGE};
use muster_cli::roles::metrics::METRICS;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    r#for: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// Words of PromQL that the rules use.
const PROMQL: &[&str] =
    &["increase", "rate", "sum", "count", "max", "avg_over_time", "max_over_time", "by", "or", "unless", "offset"];
/// Labels of the agent's page and of its gauges.
const LABELS: &[&str] =
    &["gpu", "UUID", "Hostname", "cell", "xid", "action", "state", "muster_job", "muster_allocation"];

/// Words of an expression: outside of braces and `by (...)` names of metrics, inside those names of labels.
fn words(expr: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut names, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let (mut word, mut in_labels, mut in_text, mut after_by) = (String::new(), false, false, false);
    for letter in expr.chars().chain([' ']) {
        if letter == '"' {
            in_text = !in_text;
        }
        if !in_text && (letter.is_ascii_alphanumeric() || letter == '_') {
            word.push(letter);
            continue;
        }
        if !word.is_empty() && !word.starts_with(|first: char| first.is_ascii_digit()) {
            after_by = word == "by";
            if in_labels {
                labels.insert(word.clone())
            } else {
                names.insert(word.clone())
            };
        }
        word.clear();
        match letter {
            '{' => in_labels = true,
            '(' if after_by => in_labels = true,
            '}' | ')' => in_labels = false,
            _ => {}
        }
        after_by &= letter == ' ';
    }
    (names, labels)
}

#[test]
fn every_rule_uses_what_is_exported_and_says_what_to_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let text = std::fs::read_to_string(root.join("docs/alerts/muster-gpu.rules.yaml")).expect("the rules");
    let file: File = serde_yaml_ng::from_str(&text).expect("rules as Prometheus takes them");
    let recorded = METRICS.iter().map(|(name, ..)| *name);
    let exported: BTreeSet<&str> = recorded
        .chain(Figure::ALL.iter().map(|figure| figure.name()))
        .chain(PAGE.iter().map(|(name, _)| *name))
        .collect();
    let mut alerts = BTreeSet::new();
    for rule in file.groups.iter().flat_map(|group| &group.rules) {
        let Rule { alert, expr, r#for, labels, annotations } = rule;
        assert!(alerts.insert(alert), "{alert} is there twice");
        let (names, used) = words(expr);
        let metrics: Vec<&String> = names.iter().filter(|name| !PROMQL.contains(&name.as_str())).collect();
        assert!(!metrics.is_empty(), "{alert} looks at nothing");
        for metric in metrics {
            assert!(exported.contains(metric.as_str()), "{alert}: nothing exports {metric}");
        }
        for label in &used {
            assert!(LABELS.contains(&label.as_str()), "{alert}: no series has the label {label}");
        }
        let number = r#for.trim_end_matches(['m', 'h']);
        assert!(number.parse::<u32>().is_ok() && number.len() + 1 == r#for.len(), "{alert}: for {}", r#for);
        let severity = labels.get("severity").expect("a severity");
        assert!(["critical", "warning", "info"].contains(&severity.as_str()), "{alert}: {severity}");
        for part in ["summary", "description"] {
            assert!(annotations.get(part).is_some_and(|words| words.len() > 25), "{alert} has no {part}");
        }
        for words in annotations.values() {
            for label in words.split("$labels.").skip(1).map(|rest| rest.split(' ').next().unwrap_or_default()) {
                assert!(LABELS.contains(&label), "{alert} shows the label {label}");
            }
        }
    }
    assert!(alerts.len() > 12 && file.groups.iter().all(|group| !group.name.is_empty()));
}

#[test]
fn words_of_an_expression_are_told_apart() {
    let (names, labels) = words("sum by (cell) (rate(a_b{x=\"c_d\", y!=\"\"}[5m])) / 1e9 unless e offset 10m");
    let list = |words: &BTreeSet<String>| words.iter().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(list(&names), "a_b by e offset rate sum unless");
    assert_eq!(list(&labels), "cell x y");
}
