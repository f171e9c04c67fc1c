//! Grants by whom they are for, credentials by whom they prove, and these and join tokens by when they end.

use muster_model::Principal;
use muster_model::identity::{Credential, Grant, JoinToken, Subject};
use muster_model::object::{Key, Number};
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessIndex {
    grants: BTreeMap<Subject, BTreeSet<u64>>,
    credentials: BTreeMap<Principal, BTreeSet<u64>>,
    ends: BTreeSet<(u64, Key)>,
}

impl AccessIndex {
    /// Grants of one subject, the oldest first.
    pub fn grants_of(&self, subject: &Subject) -> impl Iterator<Item = u64> + '_ {
        self.grants.get(subject).into_iter().flatten().copied()
    }

    /// Sessions and tokens of one principal, the oldest first.
    pub fn credentials_of(&self, principal: &Principal) -> impl Iterator<Item = u64> + '_ {
        self.credentials.get(principal).into_iter().flatten().copied()
    }

    /// What has ended by itself at that time, in the order in which it did.
    pub fn ended_by(&self, now_ms: u64) -> impl Iterator<Item = Key> + '_ {
        self.ends.iter().take_while(move |(ends_ms, _)| *ends_ms <= now_ms).map(|(_, key)| key.clone())
    }

    pub(crate) fn change_grant(&mut self, old: Option<&Grant>, new: Option<&Grant>) {
        let end = |grant: &Grant| grant.until_ms.map(|until_ms| (until_ms, Key::Grant(Number(grant.id))));
        if let Some(grant) = old {
            super::remove_from(&mut self.grants, &grant.subject, &grant.id);
            end(grant).map(|end| self.ends.remove(&end));
        }
        if let Some(grant) = new {
            self.grants.entry(grant.subject.clone()).or_default().insert(grant.id);
            self.ends.extend(end(grant));
        }
    }

    pub(crate) fn change_join_token(&mut self, old: Option<&JoinToken>, new: Option<&JoinToken>) {
        let end = |one: &JoinToken| (one.expires_ms, Key::JoinToken(Number(one.id)));
        old.map(|one| self.ends.remove(&end(one)));
        self.ends.extend(new.map(end));
    }

    pub(crate) fn change_credential(&mut self, old: Option<&Credential>, new: Option<&Credential>) {
        let end = |one: &Credential| (one.expires_ms, Key::Credential(Number(one.id)));
        if let Some(one) = old {
            super::remove_from(&mut self.credentials, &one.principal, &one.id);
            self.ends.remove(&end(one));
        }
        if let Some(one) = new {
            self.credentials.entry(one.principal.clone()).or_default().insert(one.id);
            self.ends.insert(end(one));
        }
    }
}
