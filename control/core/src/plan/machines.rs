//! Identities of machines: keys that change, suspension, removal, copies that are found, and what a node may claim.
//!
//! What must stay true: a name has one key, or two while it changes; both prove it until the new one was shown; a suspended machine stays suspended until an
//! operator says otherwise; enrolment is required only when every machine that the cluster knows is enrolled.

use super::level;
use crate::bounds::{DRAIN_REASON_BYTES_MAX, MACHINES_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::bounds::PINS_MAX;
use muster_model::identity::{Enrolled, Enrolment, Machine, MachineStanding, SessionCount};
use muster_model::node::NodeSpec;
use muster_model::object::Key;
use muster_model::{FieldError, Object, Principal};
use std::collections::BTreeSet;

/// Names that an error lists.
const NAMED_MAX: usize = 8;

/// A machine that has shown one key will use `key`, the same or another.
pub(super) fn renew(
    draft: &mut Draft<'_>,
    machine: &Principal,
    shown: [u8; 32],
    key: [u8; 32],
) -> Result<Done, Reject> {
    level::need(draft.state, level::ENROLMENT, "machine")?;
    let known = find(draft.state, machine).cloned();
    has_space(draft.state, known.as_ref())?;
    // Where enrolment is optional, the first key that a certificate has proved is pinned.
    let mut now = known.clone().unwrap_or_else(|| pinned(draft, machine, shown));
    if !now.has_key(&shown) {
        let fix = "renew with the key that is pinned, or enrol the machine anew";
        return Err(Reject::field("key", format!("is not the one of {machine}"), fix));
    }
    if now.next_key_sha256 == Some(shown) {
        // It works with the new one: the old one proves nothing any more.
        now.key_sha256 = shown;
        now.next_key_sha256 = None;
        now.since_ms = draft.now_ms;
    }
    if now.key_sha256 != key {
        now.next_key_sha256 = Some(key);
    }
    if known.as_ref() != Some(&now) {
        draft.put(Object::Machine(now));
    }
    Ok(Done::Ok)
}

pub(super) fn pin(draft: &mut Draft<'_>, machines: &[(Principal, [u8; 32])], replace: bool) -> Result<Done, Reject> {
    level::need(draft.state, level::ENROLMENT, "machines")?;
    if machines.is_empty() || machines.len() > PINS_MAX {
        let problem = format!("has {} keys", machines.len());
        return Err(Reject::field("machines", problem, format!("pin 1 to {PINS_MAX} keys at once")));
    }
    for (machine, key) in machines {
        is_machine(machine)?;
        let known = find(draft.state, machine);
        has_space(draft.state, known)?;
        match known {
            // One that is suspended stays so: its key may be in other hands.
            Some(known) if known.has_key(key) => {}
            Some(_) if !replace => {
                let why = format!("{machine} is known with another key");
                return Err(Reject::field("machines", why, "say that it is to be replaced (`--replace`)"));
            }
            known => {
                let enrolled = known.map(|known| known.enrolled.clone()).unwrap_or_default();
                let machine = Machine { enrolled, ..pinned(draft, machine, *key) };
                draft.put(Object::Machine(machine));
            }
        }
    }
    Ok(Done::Ok)
}

pub(super) fn suspend(draft: &mut Draft<'_>, machine: &Principal, reason: &str) -> Result<Done, Reject> {
    level::need(draft.state, level::ENROLMENT, "machine")?;
    is_machine(machine)?;
    if reason.is_empty() || reason.len() > DRAIN_REASON_BYTES_MAX || reason.chars().any(char::is_control) {
        let problem = format!("has {} bytes, or control characters", reason.len());
        return Err(Reject::field("reason", problem, "say why in 1 to 256 printable bytes"));
    }
    let known = find(draft.state, machine);
    has_space(draft.state, known)?;
    if known.is_some_and(|known| !known.is_active()) {
        return Ok(Done::Ok);
    }
    // One that has no pin yet is refused by its name.
    let now = known.cloned().unwrap_or_else(|| pinned(draft, machine, [0; 32]));
    suspended(draft, now, reason);
    Ok(Done::Ok)
}

pub(super) fn resume(draft: &mut Draft<'_>, machine: &Principal) -> Result<Done, Reject> {
    let Some(known) = find(draft.state, machine) else {
        return Err(Reject::not_found("machine", machine));
    };
    // Its sessions are counted anew: whichever of two copies comes first is the machine from now on.
    let now = Machine { standing: MachineStanding::Active, generation: 0, nonce: 0, ..known.clone() };
    match now.key_sha256 == [0; 32] {
        // It was never enrolled.
        true => draft.delete(Key::Machine(machine.to_string())),
        false if now == *known => {}
        false => draft.put(Object::Machine(now)),
    }
    Ok(Done::Ok)
}

pub(super) fn remove(draft: &mut Draft<'_>, machine: &Principal) -> Result<Done, Reject> {
    if find(draft.state, machine).is_none() {
        return Err(Reject::not_found("machine", machine));
    }
    if draft.state.meta.enrolment == Enrolment::Optional {
        let why = "enrolment is optional, so its certificate alone would let it in again; suspend it instead";
        return Err(Reject::InUse { what: "machine".to_owned(), id: machine.to_string(), why: why.to_owned() });
    }
    draft.delete(Key::Machine(machine.to_string()));
    Ok(Done::Ok)
}

pub(super) fn set_enrolment(
    draft: &mut Draft<'_>,
    enrolment: Enrolment,
    members: &BTreeSet<u64>,
) -> Result<Done, Reject> {
    level::need(draft.state, level::ENROLMENT, "enrolment")?;
    let missing = if enrolment == Enrolment::Required { missing(draft.state, members) } else { Vec::new() };
    if !missing.is_empty() {
        let named = missing.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        let problem = format!("is required, but {} machines are not enrolled: {named}", missing.len());
        let fix = "pin their keys (`muster machine pin`), or remove those that are gone";
        return Err(Reject::field("enrolment", problem, fix));
    }
    draft.meta.enrolment = enrolment;
    Ok(Done::Ok)
}

/// An agent begins a session. Two machines with one key are found by the number that each was given last.
pub(super) fn begin_session(draft: &mut Draft<'_>, machine: &Principal, session: SessionCount) -> Result<Done, Reject> {
    level::need(draft.state, level::ENROLMENT, "session")?;
    let Some(known) = find(draft.state, machine) else { return Ok(Done::Numbered { id: 0 }) };
    let SessionCount { generation, nonce } = session;
    let is_repeated = generation.checked_add(1) == Some(known.generation) && nonce == known.nonce;
    if is_repeated {
        return Ok(Done::Numbered { id: known.generation });
    }
    // Above it is the usual case after a restore: the machine has seen more than the backup.
    if generation >= known.generation {
        let next = generation.saturating_add(1);
        draft.put(Object::Machine(Machine { generation: next, nonce, ..known.clone() }));
        return Ok(Done::Numbered { id: next });
    }
    let reason = format!("two machines have its key: one began session {}, another one {generation}", known.generation);
    let why = format!(
        "{machine}: {reason}. It is suspended. Find out which of the two is the copy and remove it; then `muster machine resume {machine}`, or enrol it anew if the key may be in other hands"
    );
    suspended(draft, known.clone(), &reason);
    Ok(Done::TurnedAway { why })
}

/// Whether the identity of this node is suspended.
pub(super) fn is_suspended(state: &State, node: &str) -> bool {
    find(state, &Principal::Node(node.to_owned())).is_some_and(|known| !known.is_active())
}

/// Whether a node claims more than it was enrolled for.
pub(super) fn is_within(state: &State, spec: &NodeSpec) -> Result<(), Reject> {
    let Some(known) = find(state, &Principal::Node(spec.name.clone())) else { return Ok(()) };
    let Enrolled { cell, pool, gpus_max, labels } = &known.enrolled;
    let mut wrong = Vec::new();
    let mut other = |field: &str, got: &str, expected: &str| {
        let problem = format!("is {got}, but node {} was enrolled for {expected}", spec.name);
        wrong.push(FieldError::new(field, problem, "correct the node file, or enrol the node anew (`--rejoin`)"));
    };
    if !cell.is_empty() && *cell != spec.cell {
        other("cell", &spec.cell, cell);
    }
    if !pool.is_empty() && *pool != spec.pool {
        other("pool", &spec.pool, pool);
    }
    if let Some(most) = gpus_max.filter(|most| spec.gpus.len() > *most as usize) {
        other("gpus", &format!("a list of {}", spec.gpus.len()), &format!("at most {most}"));
    }
    for (label, value) in
        labels.iter().flat_map(|labels| spec.labels.iter().filter(|(key, value)| labels.get(*key) != Some(value)))
    {
        other("labels", &format!("{label}={value}"), "other labels");
    }
    if wrong.is_empty() { Ok(()) } else { Err(Reject::Invalid(wrong)) }
}

/// Whether one more is within the bound.
pub(super) fn has_space(state: &State, known: Option<&Machine>) -> Result<(), Reject> {
    if known.is_none() && state.machines.len() >= MACHINES_MAX {
        return Err(Reject::Full { what: "the table of machines".to_owned(), limit: MACHINES_MAX as u64 });
    }
    Ok(())
}

fn find<'a>(state: &'a State, machine: &Principal) -> Option<&'a Machine> {
    state.machines.get(&machine.to_string())
}

fn is_machine(machine: &Principal) -> Result<(), Reject> {
    if machine.is_machine() {
        return Ok(());
    }
    Err(Reject::field("machine", format!("is {machine}"), "name node:NAME, shard:NAME or member:ID"))
}

/// A machine with this key, from now on; bounded in nothing.
pub(super) fn pinned(draft: &Draft<'_>, machine: &Principal, key_sha256: [u8; 32]) -> Machine {
    Machine {
        principal: machine.clone(),
        key_sha256,
        next_key_sha256: None,
        generation: 0,
        nonce: 0,
        standing: MachineStanding::Active,
        enrolled: Enrolled::default(),
        since_ms: draft.now_ms,
        join_token: 0,
    }
}

/// Nobody, from now on.
pub(super) fn suspended(draft: &mut Draft<'_>, machine: Machine, reason: &str) {
    let standing = MachineStanding::Suspended { since_ms: draft.now_ms, reason: reason.to_owned() };
    draft.put(Object::Machine(Machine { standing, ..machine }));
}

/// Machines that the cluster works with, and that are not enrolled.
fn missing(state: &State, members: &BTreeSet<u64>) -> Vec<String> {
    let members = members.iter().map(|id| Principal::Member(*id));
    let nodes = state.nodes.values().map(|node| Principal::Node(node.spec.name.clone()));
    let unknown = |machine: &Principal| !find(state, machine).is_some_and(Machine::is_active);
    let machines = members.chain(nodes).filter(unknown).map(|machine| machine.to_string());
    let active = || state.machines.values().filter(|machine| machine.is_active());
    let is_enrolled = |holder: &str| active().any(|machine| machine.principal.has_process(holder));
    let holders = state.cells.values().filter_map(|cell| cell.holder.as_deref()).filter(|holder| !is_enrolled(holder));
    machines.chain(holders.map(|holder| format!("shard:{holder}"))).collect()
}
