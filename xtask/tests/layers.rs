//! The layers check against fabricated workspaces: it passes the right one and catches each kind of wrong edge.

use muster_xtask::layers::{Metadata, check};
use serde_json::json;

const OURS: &[&str] = &[
    "muster-model",
    "muster-control-core",
    "muster-scheduler-core",
    "muster-node-core",
    "muster-runtime",
    "muster-proto",
    "muster-twin",
    "muster-gpu-double",
    "muster-control-server",
    "muster-scheduler-server",
    "muster-agent",
    "muster-chaos",
    "muster-bench",
    "muster",
    "muster-xtask",
];

/// The right workspace: every crate on the model, servers on tokio.
const RIGHT: &[(&str, &str, Option<&str>)] = &[
    ("muster-control-core", "muster-model", None),
    ("muster-scheduler-core", "muster-model", None),
    ("muster-node-core", "muster-model", None),
    ("muster-model", "serde", None),
    ("muster-twin", "muster-control-core", None),
    ("muster-control-server", "muster-control-core", None),
    ("muster-control-server", "muster-runtime", None),
    ("muster-control-server", "tokio", None),
    ("muster-chaos", "muster-control-server", None),
    ("muster", "muster-chaos", None),
];

fn workspace(extra: &[(&str, &str, Option<&str>)]) -> Metadata {
    let edges: Vec<_> = RIGHT.iter().chain(extra).collect();
    let mut names: Vec<&str> = OURS.to_vec();
    for (from, to, _) in &edges {
        for name in [*from, *to] {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let packages: Vec<_> = names.iter().map(|name| json!({"id": format!("id:{name}"), "name": name})).collect();
    let nodes: Vec<_> = names
        .iter()
        .map(|name| {
            let deps: Vec<_> = edges
                .iter()
                .filter(|(from, _, _)| from == name)
                .map(|(_, to, kind)| json!({"pkg": format!("id:{to}"), "dep_kinds": [{"kind": kind}]}))
                .collect();
            json!({"id": format!("id:{name}"), "deps": deps})
        })
        .collect();
    let members: Vec<String> = names.iter().filter(|n| n.starts_with("muster")).map(|n| format!("id:{n}")).collect();
    serde_json::from_value(json!({"packages": packages, "workspace_members": members, "resolve": {"nodes": nodes}}))
        .expect("fabricated metadata")
}

fn findings(extra: &[(&str, &str, Option<&str>)]) -> Vec<String> {
    check(&workspace(extra)).iter().map(ToString::to_string).collect()
}

fn caught(extra: &[(&str, &str, Option<&str>)], place: &str, words: &str) {
    let found = findings(extra);
    assert_eq!(found.len(), 1, "{extra:?} gave {found:?}");
    assert!(found[0].starts_with(place) && found[0].contains(words), "{extra:?} gave {found:?}");
}

#[test]
fn the_right_workspace_passes() {
    assert_eq!(findings(&[]), Vec::<String>::new());
}

#[test]
fn a_core_on_tokio_fails() {
    caught(&[("muster-control-core", "tokio", None)], "muster-control-core", "reaches tokio");
}

#[test]
fn a_core_that_reaches_tokio_through_another_crate_fails() {
    let path = "muster-node-core -> tokio-metrics -> tokio";
    caught(&[("muster-node-core", "tokio-metrics", None), ("tokio-metrics", "tokio", None)], "muster-node-core", path);
}

#[test]
fn the_model_on_chance_fails_once_where_the_edge_is() {
    caught(&[("muster-model", "rand", None)], "muster-model", "is pure but reaches rand");
}

#[test]
fn cores_on_each_other_fail() {
    caught(&[("muster-control-core", "muster-scheduler-core", None)], "muster-control-core", "not in a lower layer");
}

#[test]
fn an_edge_upwards_fails() {
    caught(&[("muster-runtime", "muster-agent", None)], "muster-runtime", "not in a lower layer");
    caught(&[("muster-proto", "muster-control-server", Some("dev"))], "muster-proto", "not in a lower layer");
}

#[test]
fn tests_may_lean_on_their_own_layer() {
    assert_eq!(findings(&[("muster-agent", "muster-control-server", Some("dev"))]), Vec::<String>::new());
    caught(&[("muster-agent", "muster-control-server", None)], "muster-agent", "not in a lower layer");
}

#[test]
fn tests_of_a_core_may_use_what_the_core_may_not() {
    assert_eq!(findings(&[("muster-control-core", "proptest", Some("dev")), ("proptest", "rand", None)]).len(), 0);
}

#[test]
fn a_crate_without_a_layer_fails() {
    caught(&[("muster-new", "serde", None)], "muster-new", "stands in no layer");
}

#[test]
fn the_checks_stand_outside() {
    caught(&[("muster-xtask", "muster-model", None)], "muster-xtask", "must build when ours do not");
}
