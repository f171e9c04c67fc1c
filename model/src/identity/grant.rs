//! Rights: who may do what, and where.
//!
//! What must stay true: a role on a tenant holds for the tenant and all below it, and for nothing else; operator and auditor are roles on the fleet. Who
//! has [`Role::Admin`] at the root of the tree is called *root*.

use super::principal::Principal;
use crate::ids::TenantId;
use crate::words::words;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What somebody may do. The first three are on a tenant, each with all that those before it may; the others are on the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Sees the subtree.
    Viewer,
    /// Submits jobs there, and changes their own.
    Submitter,
    /// Changes all jobs of the subtree, the tenants strictly below, tokens and grants.
    Admin,
    /// Runs the fleet: nodes, pools, members. Sees all metadata, and nothing that tenants wrote.
    Operator,
    /// Reads everything that an operator sees, and the audit.
    Auditor,
}

words!(Role, "role",
    Role::Viewer => "viewer", Role::Submitter => "submitter", Role::Admin => "admin", Role::Operator => "operator",
    Role::Auditor => "auditor");

impl Role {
    /// Whether it is a role on a tenant.
    #[must_use]
    pub fn is_on_tenants(self) -> bool {
        matches!(self, Role::Viewer | Role::Submitter | Role::Admin)
    }
}

/// Who is granted something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Subject {
    /// One person.
    User(String),
    /// Everyone whose identity provider says that they are in the group.
    Group(String),
    /// One service account.
    Service(String),
}

impl Subject {
    /// The subject that a principal is by itself.
    #[must_use]
    pub fn of(principal: &Principal) -> Option<Subject> {
        match principal {
            Principal::User(name) => Some(Subject::User(name.clone())),
            Principal::Service(name) => Some(Subject::Service(name.clone())),
            _ => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::User(name) => write!(f, "user:{name}"),
            Subject::Group(name) => write!(f, "group:{name}"),
            Subject::Service(name) => write!(f, "service:{name}"),
        }
    }
}

impl FromStr for Subject {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once(':').ok_or("write user:NAME, group:NAME or service:TENANT/NAME")?;
        match kind {
            "user" => Principal::check_user(name).map(|()| Subject::User(name.to_owned())),
            // Groups are named as users are: what the identity provider calls them.
            "group" => Principal::check_user(&name.replace('/', "-")).map(|()| Subject::Group(name.to_owned())),
            "service" => Principal::check_service(name).map(|()| Subject::Service(name.to_owned())),
            _ => Err("write user:NAME, group:NAME or service:TENANT/NAME"),
        }
    }
}

/// A right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Which; from the counter of credentials.
    pub id: u64,
    /// Who has it.
    pub subject: Subject,
    /// What they may do.
    pub role: Role,
    /// On which tenant and below; `None`: at the root of the tree, or on the fleet.
    pub at: Option<TenantId>,
    /// Until when, in ms since the Unix epoch; `None`: until it is revoked.
    pub until_ms: Option<u64>,
    /// Who gave it.
    pub by: Principal,
    /// Why, for people.
    pub reason: String,
    /// When it was given.
    pub since_ms: u64,
}

impl Grant {
    /// Whether it holds at that time.
    #[must_use]
    pub fn holds_at(&self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until_ms| now_ms < until_ms)
    }
}
