//! What clients saw: their calls, their watches, the times of the log and the event logs that they exported.

use super::{good, reported};
use crate::history::{Answer, Call, ExportRecord, History};
use crate::laws::check;
use muster_control_core::events::{About, Follower};
use muster_model::ids::{JobId, Revision};
use muster_model::{Change, Object};

/// A call, when it began, and when it was answered (`None`: never), at which revision, with what.
type Made = (Call, u64, Option<(u64, u64, Answer)>);

/// A history with these calls about one job.
fn calls(calls: &[Made]) -> History {
    let mut history = good();
    for (call, called, answer) in calls {
        let operation = history.called("r-1", "client", call.clone());
        history.operations[operation].called = *called;
        if let Some((at, revision, said)) = answer {
            history.answered(operation, Revision(*revision), said.clone());
            history.operations[operation].answer.as_mut().expect("answered").at = *at;
        }
    }
    history
}

const GET: Call = Call::Get { runs: false };
const CANCEL: Call = Call::Cancel { runs: false };

#[test]
fn operations_that_some_order_explains_are_good() {
    let good = [
        // A read that began before the submission was answered may see it or not.
        vec![
            (Call::Submit, 1, Some((10, 3, Answer::Accepted))),
            (GET, 2, Some((4, 2, Answer::Absent))),
            (GET, 5, Some((6, 3, Answer::Live))),
            (GET, 11, Some((12, 4, Answer::Live))),
        ],
        // A cancellation without an answer may take effect late.
        vec![
            (Call::Submit, 1, Some((2, 3, Answer::Accepted))),
            (CANCEL, 3, None),
            (GET, 4, Some((5, 3, Answer::Live))),
            (GET, 6, Some((7, 5, Answer::Ended))),
            (Call::Submit, 8, Some((9, 6, Answer::Accepted))),
        ],
        // A submission without an answer may never take effect.
        vec![(Call::Submit, 1, None), (GET, 2, Some((3, 1, Answer::Absent))), (GET, 4, Some((5, 1, Answer::Absent)))],
    ];
    for operations in good {
        assert_eq!(check(&calls(&operations)), []);
    }
}

#[test]
fn operations_that_no_order_explains_are_reported() {
    let acknowledged = (Call::Submit, 1, Some((2, 3, Answer::Accepted)));
    let bad = [
        (vec![acknowledged.clone(), (GET, 3, Some((4, 3, Answer::Absent)))], "no order"),
        (vec![acknowledged.clone(), (GET, 3, Some((4, 3, Answer::Ended)))], "no order"),
        (
            vec![
                acknowledged.clone(),
                (CANCEL, 3, Some((4, 4, Answer::Accepted))),
                (GET, 5, Some((6, 5, Answer::Live))),
            ],
            "no order",
        ),
        // Seen once, never unseen again, although nobody was told that it was submitted.
        (
            vec![(Call::Submit, 1, None), (GET, 2, Some((3, 3, Answer::Live))), (GET, 4, Some((5, 3, Answer::Absent)))],
            "no order",
        ),
        (vec![acknowledged, (GET, 3, Some((4, 2, Answer::Live)))], "older revision"),
    ];
    for (operations, what) in bad {
        reported(&calls(&operations), "linearizable operations", what);
    }
}

#[test]
fn time_that_is_ahead_or_goes_back_is_reported() {
    let mut history = good();
    let (revision, (now_ms, wall_ms)) = history.times.pop_last().expect("some");
    history.times.insert(revision, (now_ms + 86_400_000, wall_ms));
    reported(&history, "time", "ahead of the right time");
    history.times.insert(revision, (now_ms - 5_000, wall_ms));
    reported(&history, "time", "goes back");
}

#[test]
fn watches_that_skip_rewind_or_invent_are_reported() {
    const LAW: &str = "the order of watches";
    let mut history = good();
    let watch = &mut history.watches[0];
    let kept = watch.events.remove(1);
    reported(&history, LAW, "it was not told");
    let watch = &mut history.watches[0];
    watch.events.push(kept);
    reported(&history, LAW, "came after");
    let mut history = good();
    history.watches[0].events.insert(1, (Revision(5), JobId(77)));
    reported(&history, LAW, "where nothing happened");
}

/// The log that is exported from revision 2 on.
fn exported(history: &History) -> ExportRecord {
    let about = About { stop_ms_max: 1, card_units_max: 7_000 };
    let until = |revision: u64| history.changes().filter(move |(at, _)| at.0 <= revision);
    let objects: Vec<Object> = until(2)
        .filter_map(|(_, change)| match change {
            Change::Put(object) => Some(*object),
            _ => None,
        })
        .collect();
    let (mut follower, header, mut lines) = Follower::begin(objects, (2, history.times[&Revision(2)].0), about);
    let to = Revision(6);
    for (at, changes) in history.log.range(Revision(3)..=to) {
        lines.extend(follower.follow(at.0, history.times[at].0, changes));
    }
    assert!(lines.len() >= 3, "{lines:?}");
    ExportRecord { header: Some(header), lines, to }
}

#[test]
fn event_logs_that_lack_repeat_or_invent_are_reported() {
    const LAW: &str = "the event log";
    let mut good = good();
    let record = exported(&good);
    good.exports = vec![record.clone(), ExportRecord::default()];
    assert_eq!(check(&good), Vec::new());
    let mut doctored = |what: &str, doctor: fn(&mut ExportRecord)| {
        good.exports = vec![record.clone()];
        doctor(&mut good.exports[0]);
        reported(&good, LAW, what);
    };
    doctored("instead of", |record| drop(record.lines.remove(1)));
    doctored("instead of", |record| record.lines.insert(1, record.lines[0].clone()));
    doctored("events instead of", |record| drop(record.lines.pop()));
    doctored("events instead of", |record| record.lines.extend(record.lines.last().cloned()));
    doctored("another header", |record| {
        record.header.as_mut().expect("it has one").tree.pop();
    });
}
