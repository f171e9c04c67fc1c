//! What a caller has the right to, at a time.
//!
//! What must stay true: only credentials and identities that hold at that time give rights; a token gives its scope, the roles on the
//! fleet that its service was given, and nothing else; a role on a tenant reaches the tenants below it and no others.

use super::{Denied, Visibility, machines};
use crate::state::State;
use muster_model::identity::{Author, Credential, Subject};
use muster_model::object::Number;
use muster_model::{Grant, Principal, Role, Rpc, TenantId};
use std::collections::BTreeSet;

/// Since this feature level tokens have the roles on the fleet of their service: a cluster of older voters decides as those do.
pub(super) const FLEET_ROLES_LEVEL: u32 = 5;

/// What one caller may do.
pub struct Rights<'a> {
    state: &'a State,
    principal: Principal,
    now_ms: u64,
    grants: Vec<&'a Grant>,
    /// Of a token: all that it may on tenants.
    scope: Option<(Role, TenantId)>,
}

impl<'a> Rights<'a> {
    /// Those of `author`.
    ///
    /// # Errors
    /// When what proves the author does not hold any more.
    pub fn of(state: &'a State, now_ms: u64, author: &Author) -> Result<Self, Denied> {
        let principal = author.principal.clone();
        let mut rights = Rights { state, principal, now_ms, grants: Vec::new(), scope: None };
        match &author.principal {
            Principal::Anonymous => Err(unauthenticated(
                "no credentials were sent; set MUSTER_TOKEN_FILE to a file with a session (`muster recover`) or a token (`muster token create`)",
            )),
            Principal::System => Ok(rights),
            Principal::Node(_) | Principal::Shard(_) | Principal::Member(_) => {
                // Whatever it asks for as nobody else: it has no grants.
                machines::may_act(state, &author.principal, Rpc::AuthWhoAmI)?;
                Ok(rights)
            }
            Principal::User(_) | Principal::Service(_) => {
                let credential = credential(state, now_ms, author)?;
                rights.scope = credential.scope;
                let is_token = rights.scope.is_some();
                let own = Subject::of(&author.principal);
                let groups = credential.groups.iter().map(|group| Subject::Group(group.clone()));
                let has_fleet_roles = state.meta.feature_level >= FLEET_ROLES_LEVEL;
                for subject in own.into_iter().chain(groups) {
                    let counts = |grant: &&Grant| !is_token || (has_fleet_roles && !grant.role.is_on_tenants());
                    let of: Vec<&Grant> = rights.grants_to(subject).filter(counts).collect();
                    rights.grants.extend(of);
                }
                Ok(rights)
            }
        }
    }

    /// Those of a machine that may act, for calls of machines.
    pub(super) fn of_machine(state: &'a State, now_ms: u64, author: &Author) -> Self {
        Rights { state, principal: author.principal.clone(), now_ms, grants: Vec::new(), scope: None }
    }

    /// What somebody was given and holds now.
    pub(super) fn grants_to(&self, subject: Subject) -> impl Iterator<Item = &'a Grant> + use<'a> {
        let (state, now_ms) = (self.state, self.now_ms);
        let of: Vec<u64> = state.index().access.grants_of(&subject).collect();
        of.into_iter().filter_map(|id| state.grants.get(&Number(id))).filter(move |grant| grant.holds_at(now_ms))
    }

    /// Who it is.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// As of when.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The highest role on `tenant`; `None` asks about the root of the tree.
    #[must_use]
    pub fn role_on(&self, tenant: Option<TenantId>) -> Option<Role> {
        if let Some((role, at)) = self.scope {
            return role_reaches(self.state, Some(at), tenant).then_some(role);
        }
        let here = |grant: &&&Grant| grant.role.is_on_tenants() && role_reaches(self.state, grant.at, tenant);
        self.grants.iter().filter(here).map(|grant| grant.role).max()
    }

    /// Whether it has at least `role` on `tenant`.
    #[must_use]
    pub fn has(&self, role: Role, tenant: Option<TenantId>) -> bool {
        self.role_on(tenant).is_some_and(|has| has >= role)
    }

    /// Whether it has that role on the fleet.
    #[must_use]
    pub fn has_on_fleet(&self, role: Role) -> bool {
        !role.is_on_tenants() && self.grants.iter().any(|grant| grant.role == role)
    }

    /// Whether it is admin of the root of the tree.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.has(Role::Admin, None)
    }

    /// Whether it reads all metadata.
    #[must_use]
    pub fn reads_fleet(&self) -> bool {
        self.has_on_fleet(Role::Operator) || self.has_on_fleet(Role::Auditor)
    }

    /// Whether it has any right.
    #[must_use]
    pub fn any(&self) -> bool {
        self.scope.is_some() || !self.grants.is_empty()
    }

    /// The tenants on which it has a role itself, `None` for the root of the tree.
    #[must_use]
    pub fn tops(&self) -> BTreeSet<Option<TenantId>> {
        match self.scope {
            Some((_, at)) => BTreeSet::from([Some(at)]),
            None => self.grants.iter().filter(|grant| grant.role.is_on_tenants()).map(|grant| grant.at).collect(),
        }
    }

    /// In words, one for each: `admin on research`, `operator`.
    #[must_use]
    pub fn in_words(&self) -> Vec<String> {
        let on = |role: Role, at: Option<TenantId>| match at {
            _ if !role.is_on_tenants() => role.to_string(),
            None => format!("{role} on the root"),
            Some(at) => {
                let path = self.state.tenants.get(&at).map_or("a tenant that is gone", |tenant| &tenant.path);
                format!("{role} on {path}")
            }
        };
        let scope = self.scope.map(|(role, at)| on(role, Some(at)));
        scope.into_iter().chain(self.grants.iter().map(|grant| on(grant.role, grant.at))).collect()
    }

    /// What its answers may show.
    #[must_use]
    pub fn visibility(&self) -> Visibility {
        if self.principal.is_machine() {
            return Visibility::All;
        }
        if self.reads_fleet() {
            return Visibility::Metadata { content: self.tops() };
        }
        let tops = self.tops();
        if tops.contains(&None) { Visibility::All } else { Visibility::Below(tops.into_iter().flatten().collect()) }
    }
}

fn unauthenticated(why: &str) -> Denied {
    Denied::Unauthenticated { why: why.to_owned() }
}

/// Whether a role that was given at `at` reaches `tenant`: it is there, or above it.
fn role_reaches(state: &State, at: Option<TenantId>, tenant: Option<TenantId>) -> bool {
    let Some(at) = at else { return true };
    let mut here = tenant;
    while let Some(id) = here {
        if id == at {
            return true;
        }
        here = state.tenants.get(&id).and_then(|tenant| tenant.parent);
    }
    false
}

/// The session or token that proves `author`.
fn credential<'a>(state: &'a State, now_ms: u64, author: &Author) -> Result<&'a Credential, Denied> {
    let id = author.credential.ok_or_else(|| unauthenticated("no credentials were sent; set MUSTER_TOKEN_FILE"))?;
    match state.credentials.get(&Number(id)) {
        Some(found) if found.principal == author.principal && now_ms < found.expires_ms => Ok(found),
        Some(found) if found.principal == author.principal => Err(unauthenticated(
            "the session or token has expired; make one anew: `muster login` (or `muster recover`) for a session, `muster token create` for a token",
        )),
        _ => Err(unauthenticated(
            "the session or token does not exist (any more); make one anew: `muster login` (or `muster recover`) for a session, `muster token create` for a token",
        )),
    }
}
