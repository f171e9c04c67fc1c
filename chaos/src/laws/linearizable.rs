//! Clients' operations are linearizable: there is one order of all of them, each at a moment between its call and its answer, in which
//! every answer is right. An operation without an answer may have taken effect at any moment after its call, or never.
//!
//! Two checks. Each job is an object of its own, and its submissions, reads and cancellations are judged by Wing and Gong's
//! algorithm with Lowe's memory, from a library. And since every answer names the revision that it was given at, no operation that was
//! called after another was answered may name an older one.

use super::{Findings, Violation};
use crate::history::{Answer, Call, History, Operation};
use muster_model::ids::Revision;
use std::collections::BTreeMap;
use todc_utils::WGLChecker;
use todc_utils::linearizability::history::{Action, History as Calls};
use todc_utils::specifications::Specification;

/// Reports every job whose operations have no order, and every answer at an older revision than one given before the call.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("linearizable operations");
    let mut by_job: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in &history.operations {
        by_job.entry(&operation.of).or_default().push(operation);
    }
    for (job, operations) in by_job {
        findings.add_if(!has_an_order(&operations), || {
            format!("no order explains the answers about {job}: {operations:#?}")
        });
    }
    check_revisions(history, &mut findings);
    findings.found
}

fn check_revisions(history: &History, findings: &mut Findings) {
    let mut called: Vec<&Operation> = history.operations.iter().collect();
    called.sort_by_key(|operation| operation.called);
    let mut answered: Vec<(u64, &Operation)> =
        history.operations.iter().filter_map(|operation| Some((operation.answer.as_ref()?.at, operation))).collect();
    answered.sort_by_key(|(at, _)| *at);
    let mut before = answered.into_iter().peekable();
    let mut newest: Option<&Operation> = None;
    for operation in called {
        while let Some((_, earlier)) = before.next_if(|(at, _)| *at < operation.called) {
            if newest.is_none_or(|newest| revision(newest) <= revision(earlier)) {
                newest = Some(earlier);
            }
        }
        if let Some(newest) =
            newest.filter(|newest| revision(operation).is_some() && revision(operation) < revision(newest))
        {
            findings.add(|| format!("answered at an older revision than one that was answered before it was called: {operation:?} after {newest:?}"));
        }
    }
}

/// The revision that an answer names.
fn revision(operation: &Operation) -> Option<Revision> {
    operation.answer.as_ref()?.revision
}

/// Where a job stands, for those who ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stands {
    Absent,
    Live,
    Ended,
}

/// A job as one object.
struct OneJob;

/// A call with its answer, if it had one.
#[derive(Clone, Debug)]
struct Done {
    call: Call,
    said: Option<Answer>,
}

impl Specification for OneJob {
    type State = Stands;
    type Operation = Done;

    fn init() -> Stands {
        Stands::Absent
    }

    fn apply(operation: &Done, now: &Stands) -> (bool, Stands) {
        use Stands::{Absent, Ended, Live};
        let submitted = if *now == Absent { Live } else { *now };
        // Whatever runs may end by itself at any moment; one that nobody could run ends only when it is cancelled.
        let ended = |by_itself: bool| *now == Ended || (by_itself && *now == Live);
        match (&operation.call, &operation.said) {
            // The same request id never makes a second job, so a repetition changes nothing.
            (Call::Submit, Some(Answer::Accepted) | None) => (true, submitted),
            (Call::Get { .. }, Some(Answer::Live)) => (*now == Live, *now),
            (Call::Get { runs }, Some(Answer::Ended)) => (ended(*runs), Ended),
            (Call::Get { .. }, Some(Answer::Absent)) => (*now == Absent, *now),
            (Call::Get { .. }, None) => (true, *now),
            (Call::Cancel { runs }, Some(Answer::Accepted)) => (*now == Live, if *runs { Live } else { Ended }),
            (Call::Cancel { runs }, Some(Answer::Ended)) => (ended(*runs), Ended),
            (Call::Cancel { .. }, Some(Answer::Absent)) => (*now == Absent, *now),
            (Call::Cancel { .. }, Some(Answer::Gone)) if *now == Absent => (true, Absent),
            (Call::Cancel { runs }, Some(Answer::Gone)) => (ended(*runs), Ended),
            (Call::Cancel { runs }, None) => (true, if *now == Live && !*runs { Ended } else { *now }),
            _ => (false, *now),
        }
    }
}

/// The operations that an order has to explain. Without an answer, a read says nothing, and of several submissions or cancellations of one
/// job the first stands for all: each changes the job once at most, and the first may have done so whenever any later one may. (Judging
/// them one by one would take time exponential in their number.)
fn judged<'a>(operations: &[&'a Operation]) -> Vec<&'a Operation> {
    let (mut submitted, mut cancelled) = (false, false);
    let mut counts = |operation: &&Operation| match (&operation.answer, &operation.call) {
        (Some(_), _) => true,
        (None, Call::Get { .. }) => false,
        (None, Call::Submit) => !std::mem::replace(&mut submitted, true),
        (None, Call::Cancel { .. }) => !std::mem::replace(&mut cancelled, true),
    };
    operations.iter().copied().filter(|operation| counts(operation)).collect()
}

/// `operations` in the order of their calls.
fn has_an_order(operations: &[&Operation]) -> bool {
    let operations = judged(operations);
    if operations.is_empty() {
        return true;
    }
    let mut moments: Vec<(u64, usize, bool)> = Vec::new();
    for (process, operation) in operations.iter().enumerate() {
        moments.push((operation.called, process, true));
        moments.push((operation.answer.as_ref().map_or(u64::MAX, |answer| answer.at), process, false));
    }
    moments.sort_unstable();
    let action = |(_, process, call): (u64, usize, bool)| {
        let operation = operations[process];
        let done =
            Done { call: operation.call.clone(), said: operation.answer.as_ref().map(|answer| answer.said.clone()) };
        (process, if call { Action::Call(done) } else { Action::Response(done) })
    };
    WGLChecker::<OneJob>::is_linearizable(Calls::from_actions(moments.into_iter().map(action).collect()))
}
