//! Windows as an operator writes them for `muster what-if`: one document each, with the words of `muster maintenance create` and
//! `muster reservations create`.
//!
//! ```yaml
//! name: kernel
//! kind: maintenance
//! nodes: [node-0007]          # or cell, pool, place
//! start: now+2h
//! end: now+3h
//! preempt: true
//! ---
//! name: launch
//! kind: reservation
//! tenants: [research]
//! gpus: 64
//! model: h100
//! start: 2026-12-01T08:00
//! end: 2026-12-02T08:00
//! ```

use super::start::moment_at;
use crate::failure::Failure;
use crate::spec::yaml;
use muster_proto::v1;
use serde::Deserialize;

/// The keys of a window.
pub const KEYS: &[&str] = &[
    "name", "kind", "nodes", "cell", "pool", "place", "start", "end", "reason", "preempt", "tenants", "gpus", "model",
    "flex",
];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WindowText {
    name: String,
    kind: String,
    nodes: Option<Vec<String>>,
    cell: Option<String>,
    pool: Option<String>,
    place: Option<String>,
    start: String,
    end: String,
    reason: Option<String>,
    preempt: Option<bool>,
    tenants: Option<Vec<String>>,
    gpus: Option<u64>,
    model: Option<String>,
    flex: Option<bool>,
}

/// Which nodes, beside those that are named: all that is said must hold of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Of this cell.
    pub cell: Option<String>,
    /// Of this pool.
    pub pool: Option<String>,
    /// Under this region, zone, block or leaf.
    pub place: Option<String>,
}

impl Nodes {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Nodes::default()
    }
}

/// Whether a place is in a part of the network, both written from the region.
#[must_use]
pub fn lies_in(place: &str, part: &str) -> bool {
    let rest = place.strip_prefix(part);
    part.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Every window of a file, and which nodes it means beside those that it names; `now` is `now_ms`.
///
/// # Errors
/// When it is not a file of windows, with the document and the key.
pub fn parse(text: &str, name: &str, now_ms: u64) -> Result<Vec<(v1::WindowSpec, Nodes)>, Failure> {
    let texts: Vec<WindowText> = yaml::documents(text, name, "a window", KEYS)?;
    if texts.is_empty() {
        return Err(Failure::field(name, "has no window", "write `name:`, `kind:`, `nodes:`, `start:` and `end:`"));
    }
    let window = |text: WindowText| {
        // Drains have a flag, and their windows no name of their own.
        if text.kind != "maintenance" && text.kind != "reservation" {
            let problem = format!("{name}: kind {:?} of window {:?} is not known here", text.kind, text.name);
            return Err(Failure::field("kind", problem, "write maintenance or reservation; drains: --drain with --by"));
        }
        let spec = v1::WindowSpec {
            start_ms: moment_at("start", &text.start, now_ms)?,
            end_ms: Some(moment_at("end", &text.end, now_ms)?),
            name: text.name,
            kind: text.kind,
            nodes: text.nodes.unwrap_or_default(),
            gpus: text.gpus.unwrap_or_default(),
            model: text.model.unwrap_or_default(),
            reason: text.reason.unwrap_or_default(),
            tenants: text.tenants.unwrap_or_default(),
            flex: text.flex.unwrap_or_default(),
            preempt: text.preempt.unwrap_or_default(),
        };
        Ok((spec, Nodes { cell: text.cell, pool: text.pool, place: text.place }))
    };
    texts.into_iter().map(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_700_000_000_000;

    #[test]
    fn a_file_says_what_the_flags_say() {
        let text = "name: kernel\nkind: maintenance\nnodes: [a, b]\nstart: now+1h\nend: now+2h\npreempt: true\n---\n\
            name: launch\nkind: reservation\ntenants: [research]\ngpus: 8\nmodel: h100\nstart: now\nend: now+60\n---\n\
            name: leaf\nkind: maintenance\nplace: eu/a\npool: mig\nstart: now\nend: now+1d\n";
        let found = parse(text, "windows.yaml", NOW_MS).expect("windows");
        let times: Vec<_> = found.iter().map(|(spec, _)| (spec.start_ms - NOW_MS, spec.end_ms)).collect();
        let end = |s: u64| Some(NOW_MS + 1_000 * s);
        assert_eq!(times, [(3_600_000, end(7_200)), (0, end(60)), (0, end(86_400))]);
        assert_eq!((found[0].0.nodes.len(), found[0].0.preempt, found[0].1.is_empty()), (2, true, true));
        assert_eq!((found[1].0.gpus, found[1].0.model.as_str()), (8, "h100"));
        assert_eq!((found[2].1.place.as_deref(), found[2].1.pool.as_deref()), (Some("eu/a"), Some("mig")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("name: a\nkind: drain\nnodes: [n]\nstart: now\nend: now+1h\n", "--drain with --by"),
            ("name: a\nkind: maintenance\nnodes: [n]\nstart: soon\nend: now+1h\n", "\"soon\" is not a time"),
            ("name: a\nkind: maintenance\nnode: [n]\nstart: now\nend: now+1h\n", "nodes"),
            ("", "has no window"),
        ] {
            let failure = parse(text, "windows.yaml", NOW_MS).expect_err("refused").to_string();
            assert!(failure.contains(words), "{failure}");
        }
    }

    #[test]
    fn a_place_lies_in_its_parts_and_in_no_name_that_begins_alike() {
        assert!(lies_in("eu/a/block-1/leaf-3", "eu/a/block-1") && lies_in("eu/a", "eu/a") && lies_in("eu", ""));
        assert!(!lies_in("eu/a/block-12", "eu/a/block-1"));
    }
}
