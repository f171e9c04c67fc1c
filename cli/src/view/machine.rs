//! Machines and join tokens as they are shown.

use crate::output::{Block, Columns};
use muster_proto::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a machine was enrolled for; what is empty is not bounded.
#[derive(Clone, Debug, Serialize)]
pub struct EnrolledView {
    /// The only cell.
    pub cell: String,
    /// The only pool.
    pub pool: String,
    /// GPUs at the most.
    pub gpus_max: Option<u32>,
    /// The only labels.
    pub labels: Option<BTreeMap<String, String>>,
}

impl EnrolledView {
    fn in_words(&self) -> String {
        let mut words = Vec::new();
        let mut named = |what: &str, name: &str| {
            if !name.is_empty() {
                words.push(format!("{what} {name}"));
            }
        };
        named("cell", &self.cell);
        named("pool", &self.pool);
        words.extend(self.gpus_max.map(|most| format!("{most} GPUs")));
        words.extend(self.labels.as_ref().map(|labels| match labels.is_empty() {
            true => "no labels".to_owned(),
            false => labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(","),
        }));
        if words.is_empty() { "-".to_owned() } else { words.join(", ") }
    }
}

impl From<Option<v1::Enrolled>> for EnrolledView {
    fn from(wire: Option<v1::Enrolled>) -> Self {
        let v1::Enrolled { cell, pool, gpus_max, labels } = wire.unwrap_or_default();
        EnrolledView { cell, pool, gpus_max, labels: labels.map(|labels| labels.labels) }
    }
}

/// A machine.
#[derive(Clone, Debug, Serialize)]
pub struct MachineView {
    /// `node:gpu-0001`.
    pub name: String,
    /// SHA-256 of its public key.
    pub key: String,
    /// Of the next one, while it changes.
    pub next_key: String,
    /// `active`, `suspended` or `restored`.
    pub standing: String,
    /// Why it is suspended.
    pub reason: String,
    /// Since when it stands so, in ms since the Unix epoch.
    pub since_ms: u64,
    /// The join token that enrolled it; 0: its key was pinned.
    pub join_token: u64,
    /// Sessions that it has begun.
    pub sessions: u64,
    /// What for.
    pub enrolled: EnrolledView,
}

impl From<v1::MachineView> for MachineView {
    fn from(wire: v1::MachineView) -> Self {
        let v1::MachineView { name, key, next_key, standing, reason, since_ms, join_token, sessions, enrolled } = wire;
        let enrolled = enrolled.into();
        MachineView { name, key, next_key, standing, reason, since_ms, join_token, sessions, enrolled }
    }
}

/// All machines, and whether they have to be enrolled.
#[derive(Clone, Debug, Serialize)]
pub struct MachinesView {
    /// `optional` or `required`.
    pub enrolment: String,
    /// By name.
    pub machines: Vec<MachineView>,
}

impl MachinesView {
    /// For people.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let mut columns = Columns::new(&["MACHINE", "STANDING", "SINCE", "KEY", "BY", "FOR"]);
        for machine in &self.machines {
            let standing = match machine.reason.as_str() {
                "" => machine.standing.clone(),
                reason => format!("{}: {reason}", machine.standing),
            };
            let key = match (machine.key.as_str(), machine.next_key.as_str()) {
                ("", _) => "-".to_owned(),
                (key, "") => short(key),
                (key, next) => format!("{} → {}", short(key), short(next)),
            };
            let by = match machine.join_token {
                0 => "pin".to_owned(),
                id => format!("token {id}"),
            };
            let since = muster_model::utc::show(machine.since_ms);
            columns.row(vec![machine.name.clone(), standing, since, key, by, machine.enrolled.in_words()]);
        }
        let enrolment = match self.enrolment.as_str() {
            "required" => "enrolment is required: a machine whose key is not in this list is nobody",
            _ => "enrolment is optional: a certificate is enough for a name that is not in this list",
        };
        vec![columns.block(), Block::Text(enrolment.to_owned())]
    }
}

/// The first digits of a key.
fn short(key: &str) -> String {
    key.chars().take(16).collect()
}

/// A join token.
#[derive(Clone, Debug, Serialize)]
pub struct JoinTokenView {
    /// Its number.
    pub id: u64,
    /// `node` or `shard`.
    pub role: String,
    /// Who may claim it.
    pub names: Vec<String>,
    /// Who has.
    pub claimed: Vec<String>,
    /// What for.
    pub enrolled: EnrolledView,
    /// In ms since the Unix epoch.
    pub expires_ms: u64,
    /// Who made it.
    pub by: String,
    /// Whether names that have a key may be given another one.
    pub rejoin: bool,
}

impl From<v1::JoinTokenView> for JoinTokenView {
    fn from(wire: v1::JoinTokenView) -> Self {
        let v1::JoinTokenView { id, role, names, claimed, enrolled, expires_ms, since_ms: _, by, rejoin } = wire;
        JoinTokenView { id, role, names, claimed, enrolled: enrolled.into(), expires_ms, by, rejoin }
    }
}

/// The table of join tokens.
#[must_use]
pub fn join_tokens(views: &[JoinTokenView]) -> Vec<Block> {
    let mut columns = Columns::new(&["ID", "ROLE", "NAMES", "CLAIMED", "UNTIL", "BY", "FOR"]);
    for token in views {
        let names = match token.names.as_slice() {
            [] => "-".to_owned(),
            [one] => one.clone(),
            [first, .., last] => format!("{first} … {last}"),
        };
        columns.row(vec![
            token.id.to_string(),
            if token.rejoin { format!("{}, rejoin", token.role) } else { token.role.clone() },
            names,
            format!("{} of {}", token.claimed.len(), token.names.len()),
            muster_model::utc::show(token.expires_ms),
            token.by.clone(),
            token.enrolled.in_words(),
        ]);
    }
    vec![columns.block()]
}
