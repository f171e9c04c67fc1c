//! What replays and what-if questions are given: traces of other systems, fleets in short.

use super::{headed, text_of};
use crate::target::{Target, reached};
use muster_twin::fleet::Fleet;
use muster_twin::import::{Format, Row, rows};
use muster_twin::what_if::AddedNodes;

/// Rows that are read of one input.
const ROWS_MAX: usize = 1_000;

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "fleet-shorthand",
        what: "a fleet in short (256x8:h100:cells=2), and nodes that are added: within the bounds of fleets",
        words: &["x8:", "h100", "a100-80", ":cells=", ":leaf=", ":block=", ":nvlink=", ":cell=", ":pool=", ","],
        reaches: &["fleet", "added nodes"],
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
        reaches: &["job of openb", "job of itp", "job of philly", "job of sacct", "bad row"],
        run: trace,
    },
];

fn shorthand(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    if let Ok(fleet) = Fleet::parse_shorthand(text) {
        reached("fleet");
        assert!(!fleet.groups.is_empty(), "{text:?}");
    }
    if let Ok(added) = text.parse::<AddedNodes>() {
        reached("added nodes");
        assert!(added.nodes > 0 && added.gpus > 0, "{text:?}");
    }
}

fn trace(bytes: &[u8]) {
    let Some((format, content)) = headed(bytes) else { return };
    let Ok(format) = format.parse::<Format>() else { return };
    if let Ok(rows) = rows(format, content, "input") {
        for row in rows.take(ROWS_MAX) {
            match (format, row) {
                (Format::Openb, Ok(Row::Job(_))) => reached("job of openb"),
                (Format::Itp, Ok(Row::Job(_))) => reached("job of itp"),
                (Format::Philly, Ok(Row::Job(_))) => reached("job of philly"),
                (Format::Sacct, Ok(Row::Job(_))) => reached("job of sacct"),
                (_, Ok(Row::Skipped(_))) => {}
                (_, Err(_)) => reached("bad row"),
            }
        }
    }
}
