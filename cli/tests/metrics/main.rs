//! Every metric says what it means: the table is compared with the sources, and with what a role's page shows. And who may read that page.

#[path = "../support/pages.rs"]
mod pages;
mod protected;
#[path = "../support/waiting.rs"]
mod waiting;

use metrics::{Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::PrometheusBuilder;
use muster_cli::roles::metrics::{Kind, METRICS, describe};
use std::collections::BTreeSet;
use std::path::Path;

/// Names of metrics in the sources of the roles.
fn in_sources(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            in_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            let names = text.split('"').filter(|word| word.starts_with("muster_") && is_name(word));
            found.extend(names.map(str::to_owned));
        }
    }
}

fn is_name(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

#[test]
fn every_metric_of_the_sources_is_described_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut found = BTreeSet::new();
    for folder in ["control/server/src", "scheduler-shard/server/src", "node/agent/src", "runtime/src"] {
        in_sources(&root.join(folder), &mut found);
    }
    assert!(found.len() > 30, "the sources are read: {found:?}");
    let mut described: BTreeSet<String> = METRICS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(described.len(), METRICS.len(), "each once");
    // The agent describes by itself what it renders by itself.
    described.extend(muster_agent::telemetry::PAGE.iter().map(|(name, _)| (*name).to_owned()));
    assert_eq!(found, described, "left: recorded by a role; right: in cli/src/roles/metrics.rs");
}

#[test]
fn every_metric_has_help_on_the_page() {
    let recorder = PrometheusBuilder::new().build_recorder();
    describe(&recorder);
    let metadata = Metadata::new("test", Level::INFO, None);
    for (name, kind, _) in METRICS {
        let key = Key::from_parts(*name, vec![Label::new("kind", "x")]);
        match kind {
            Kind::Counter => recorder.register_counter(&key, &metadata).increment(1),
            Kind::Gauge => recorder.register_gauge(&key, &metadata).set(1.0),
            Kind::Histogram => recorder.register_histogram(&key, &metadata).record(1.0),
        }
    }
    let page = recorder.handle().render();
    for (name, _, help) in METRICS {
        assert!(page.contains(&format!("# HELP {name} {help}\n")), "{name}:\n{page}");
        assert!(help.len() > 10 && !help.ends_with('.'), "{name}: {help}");
    }
}
