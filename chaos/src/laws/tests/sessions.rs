//! Sessions: what is answered by them, and for how long they are taken.

use super::{doctor, good, reported};
use crate::history::{Answer, Call, History, Login, LoginAnswer, ProviderThen, Refusal};
use crate::laws::check;
use muster_model::identity::CredentialKind;
use muster_model::ids::{JobId, Revision};
use muster_model::object::{Key, Number};
use muster_model::{AllocationState, Change, Credential, EndCause, Object, Principal};
use std::sync::Arc;

const LAW: &str = "sessions";
/// The session's number.
const SESSION: u64 = 17;
/// The revision at which it is made; the last of the record before it.
const MADE: Revision = Revision(20);
/// When it ends.
const EXPIRES_MS: u64 = 50_000;

/// A closed cluster: session 17 is made at revision 20, job 1 submitted under it at revision 21, at 30 s, and the session forgotten at its end.
fn closed() -> History {
    let mut history = good();
    let session = Credential {
        id: SESSION,
        kind: CredentialKind::Session,
        principal: Principal::User("u".to_owned()),
        groups: Vec::new(),
        secret_sha256: [1; 32],
        expires_ms: EXPIRES_MS,
        since_ms: 20_000,
        by: Principal::Member(1),
        scope: None,
        from: Vec::new(),
        note: String::new(),
    };
    let mut publish = |revision: Revision, now_ms, changes| {
        history.wall_ms = now_ms;
        history.published(0, revision, now_ms, &Arc::new(changes));
    };
    publish(MADE, 20_000, vec![Change::put(Object::Credential(session))]);
    publish(Revision(21), 30_000, Vec::new());
    publish(Revision(22), EXPIRES_MS, vec![Change::Delete(Key::Credential(Number(SESSION)))]);
    history.sessions.closed = true;
    let operation = history.called("r-1", "control-1", Call::Submit);
    history.operations[operation].session = Some(SESSION);
    history.answered(operation, Revision(21), Answer::Accepted);
    history
}

/// A refusal by a replica that knew the session, at this time.
fn refusal(wall_ms: u64) -> Refusal {
    Refusal {
        session: Some(SESSION),
        through: "control-1:7000".to_owned(),
        applied: Some(MADE),
        wall_ms,
        provider: ProviderThen { away: true, absences: 1, rotations: 0 },
        why: "it has expired".to_owned(),
    }
}

#[test]
fn a_session_that_is_taken_until_its_end_is_good() {
    let mut history = closed();
    history.sessions.refusals = vec![
        refusal(EXPIRES_MS),
        // The cluster's time may be a little ahead.
        refusal(EXPIRES_MS - 1_000),
        Refusal { session: None, ..refusal(30_000) },
        // A replica that lags behind does not know it yet.
        Refusal { applied: Some(Revision(19)), ..refusal(30_000) },
        Refusal { applied: None, ..refusal(30_000) },
    ];
    assert_eq!(check(&history), []);
}

#[test]
fn answers_without_a_session_that_holds_are_reported() {
    let mut history = closed();
    history.operations[0].session = None;
    reported(&history, LAW, "answered without a session");
    history.sessions.closed = false;
    assert_eq!(check(&history), [], "an open cluster asks nobody");
    let mut history = closed();
    history.operations[0].session = Some(18);
    reported(&history, LAW, "that nobody has made");
    let mut history = closed();
    history.operations[0].answer.as_mut().expect("answered").revision = Some(Revision(22));
    reported(&history, LAW, "answered 0 ms after the end of its session");
}

#[test]
fn sessions_that_are_not_taken_until_their_end_are_reported() {
    let mut history = closed();
    history.sessions.refusals = vec![refusal(EXPIRES_MS - 2_000)];
    reported(&history, LAW, "refused before its end");
    let mut history = closed();
    history.times.insert(Revision(22), (EXPIRES_MS - 1, EXPIRES_MS - 1));
    reported(&history, LAW, "session 17 is gone before its end");
}

#[test]
fn good_tokens_that_are_refused_are_reported() {
    let there = ProviderThen::default();
    let away = ProviderThen { away: true, absences: 1, rotations: 0 };
    let login = |answer| Login { user: "u".to_owned(), key: 0, before: there, after: away, answer };
    let mut history = closed();
    let made = LoginAnswer::Made { session: SESSION, expires_ms: EXPIRES_MS };
    history.sessions.logins = vec![login(made), login(LoginAnswer::ProviderAway)];
    assert_eq!(check(&history), []);
    let mut refused = login(LoginAnswer::NotTaken { why: "it does not hold".to_owned() });
    history.sessions.logins.push(refused.clone());
    reported(&history, LAW, "a good token was refused");
    // Where the key was changed, a node may know the other one alone.
    refused.after.rotations = 1;
    history.sessions.logins = vec![refused];
    assert_eq!(check(&history), []);
}

/// Every stop of the first job has another cause.
fn stopped(cause: &EndCause) -> History {
    let mut history = good();
    let last = history.changes().filter_map(|(_, change)| match change {
        Change::Put(object) => match *object {
            Object::Allocation(allocation) => Some(allocation),
            _ => None,
        },
        _ => None,
    });
    let mut allocation = last.last().expect("the second job runs");
    allocation.state = AllocationState::Stopping(cause.clone());
    history.log.insert(Revision(30), Arc::new(vec![Change::put(Object::Allocation(allocation))]));
    history
}

#[test]
fn ends_that_nobody_asked_for_are_reported() {
    const LAW: &str = "no other ends";
    assert!(check(&stopped(&EndCause::TimeLimit)).iter().all(|violation| violation.law != LAW));
    reported(&stopped(&EndCause::Requeued), LAW, "which nobody asked for");
    let mut history = stopped(&EndCause::Cancelled);
    reported(&history, LAW, "job 2 is stopped: Cancelled");
    history.called("r-1", "client", Call::Cancel { runs: true });
    assert!(check(&history).iter().all(|violation| violation.law != LAW), "a client asked");
    let mut history = good();
    doctor(&mut history, |change| {
        if let Change::Retire(job) = change {
            job.phase = muster_model::JobPhase::Finished(muster_model::Outcome::Cancelled);
        }
    });
    reported(&history, LAW, &format!("job {} is cancelled", JobId(1)));
}
