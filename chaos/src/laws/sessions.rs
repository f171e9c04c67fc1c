//! Sessions hold until their end and no longer, whether the identity provider is there or away.
//!
//! When a session ends is read from the published changes, and so is the cluster's time, which alone decides it: one voter's clock may be wrong by years.
//! Four things are judged in a closed cluster. Nothing is answered without a session, or by one that had ended at the time of the state that the answer
//! names. No session leaves the state before its end. No call is refused before the end of a session that the replica knew; for that the right
//! time at the answer is taken, which the cluster's is never further ahead of than the law of time says. And a good token of the provider's only
//! key is taken, or the provider is said to be away.

use super::time::AHEAD_MS_MAX;
use super::{Findings, Violation};
use crate::history::{Answered, History, LoginAnswer, Operation, Refusal};
use muster_model::ids::Revision;
use muster_model::object::{Key, Number};
use muster_model::{Change, Object};
use std::collections::BTreeMap;

/// How late the record may see that time was applied.
const SEEN_LATE_MS_MAX: u64 = 100;

/// What the published changes say of one session.
struct Made {
    at: Revision,
    expires_ms: u64,
}

/// Reports answers without a session that holds, and sessions that are not taken until their end.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("sessions");
    let made = made(history, &mut findings);
    if history.sessions.closed {
        for operation in &history.operations {
            let Some(answer) = &operation.answer else { continue };
            if let Some(what) = without_right(history, &made, operation, answer) {
                findings.add(|| format!("{what}: {operation:?}"));
            }
        }
    }
    for refusal in &history.sessions.refusals {
        findings.add_if(is_too_early(&made, refusal), || format!("a session was refused before its end: {refusal:?}"));
    }
    for login in &history.sessions.logins {
        let is_refused = matches!(login.answer, LoginAnswer::NotTaken { .. });
        // Tokens are fresh, and where the provider has had one key alone every control node that has any has that one.
        findings.add_if(is_refused && login.after.rotations == 0, || format!("a good token was refused: {login:?}"));
    }
    findings.found
}

/// All sessions of the run. Reports those that left the state before their end.
fn made(history: &History, findings: &mut Findings) -> BTreeMap<u64, Made> {
    let mut all: BTreeMap<u64, Made> = BTreeMap::new();
    for (revision, change) in history.changes() {
        match change {
            Change::Put(object) => {
                let Object::Credential(one) = *object else { continue };
                all.entry(one.id).or_insert(Made { at: revision, expires_ms: one.expires_ms });
            }
            Change::Delete(Key::Credential(Number(id))) => {
                let early = all.get(&id).is_some_and(|made| state_ms(history, revision) < made.expires_ms);
                findings.add_if(early, || format!("revision {revision}: session {id} is gone before its end"));
            }
            _ => {}
        }
    }
    all
}

/// The time of the state at a revision.
fn state_ms(history: &History, at: Revision) -> u64 {
    history.times.range(..=at).next_back().map_or(0, |(_, (now_ms, _))| *now_ms)
}

/// Why a call should not have been answered.
fn without_right(
    history: &History,
    made: &BTreeMap<u64, Made>,
    operation: &Operation,
    answer: &Answered,
) -> Option<String> {
    let Some(session) = operation.session else { return Some("answered without a session".to_owned()) };
    let Some(made) = made.get(&session) else {
        return Some("answered under a session that nobody has made".to_owned());
    };
    // What is answered without a revision says nothing of when.
    let now_ms = state_ms(history, answer.revision?);
    let late_ms = now_ms.checked_sub(made.expires_ms)?;
    Some(format!("answered {late_ms} ms after the end of its session"))
}

/// Whether the replica knew the session, and even the cluster's time at its furthest had not reached the end.
fn is_too_early(made: &BTreeMap<u64, Made>, refusal: &Refusal) -> bool {
    let session = refusal.session.and_then(|session| made.get(&session));
    session.is_some_and(|made| {
        let known = refusal.applied.is_some_and(|applied| applied >= made.at);
        known && refusal.wall_ms + AHEAD_MS_MAX + SEEN_LATE_MS_MAX < made.expires_ms
    })
}
