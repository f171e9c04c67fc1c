//! What replays and what-if questions are given: traces of other systems, fleets in short.

use super::{headed, text_of};
use crate::target::Target;
use muster_twin::fleet::Fleet;
use muster_twin::import::{Format, rows};
use muster_twin::what_if::AddedNodes;

/// Rows that are read of one input.
const ROWS_MAX: usize = 1_000;

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "fleet-shorthand",
        what: "a fleet in short (256x8:h100:cells=2), and nodes that are added: within the bounds of fleets",
        words: &["x8:", "h100", "a100-80", ":cells=", ":leaf=", ":block=", ":nvlink=", ":cell=", ":pool=", ","],
        run: shorthand,
    },
    Target {
        name: "trace",
        what: "a trace: the first line names its format",
        words: &[
            "openb\n",
            "itp\n",
            "philly\n",
            "sacct\n",
            ",",
            "|",
            "\n",
            "\"",
            "2017-10-08 01:00:00",
            "COMPLETED",
            "UNLIMITED",
            "gres/gpu=8",
        ],
        run: trace,
    },
];

fn shorthand(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    if let Ok(fleet) = Fleet::parse_shorthand(text) {
        assert!(!fleet.groups.is_empty(), "{text:?}");
    }
    if let Ok(added) = text.parse::<AddedNodes>() {
        assert!(added.nodes > 0 && added.gpus > 0, "{text:?}");
    }
}

fn trace(bytes: &[u8]) {
    let Some((format, content)) = headed(bytes) else { return };
    let Ok(format) = format.parse::<Format>() else { return };
    if let Ok(rows) = rows(format, content, "input") {
        rows.take(ROWS_MAX).for_each(drop);
    }
}
