//! Who acts: a person, a service, a machine, or the cluster itself.
//!
//! What must stay true: the text of a principal names exactly one, and reading it gives it back; a user's name has no `/`, a service's always has one, so
//! that the two are never mistaken where only names are shown.

use crate::bounds;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Somebody who acts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Principal {
    /// Nobody has said who they are.
    #[default]
    Anonymous,
    /// A person, by the name that the identity provider vouches for.
    User(String),
    /// A program that acts for a tenant: the tenant's path and the service's own name, `research/nlp/ci`.
    Service(String),
    /// The agent of a node, by the node's name.
    Node(String),
    /// A scheduler shard, by its name.
    Shard(String),
    /// A control node.
    Member(u64),
    /// The cluster itself: what its leader finds due.
    System,
}

/// Text that names no principal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got:?} is no principal: {why}")]
pub struct BadPrincipal {
    /// What was written, cut to its bound.
    pub got: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl Principal {
    /// The name under which its jobs are listed.
    #[must_use]
    pub fn job_user(&self) -> Option<&str> {
        match self {
            Principal::User(name) | Principal::Service(name) => Some(name),
            _ => None,
        }
    }

    /// The control node of this number, as it is written: `3`, and not `03`.
    pub(super) fn member(number: &str) -> Option<Principal> {
        number.parse::<u64>().ok().filter(|id| id.to_string() == number).map(Principal::Member)
    }

    /// Whether it is a machine of the cluster.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        matches!(self, Principal::Node(_) | Principal::Shard(_) | Principal::Member(_))
    }

    /// Whether it is the shard of which this is a process: processes have its name, and a suffix of their own after a dash.
    #[must_use]
    pub fn has_process(&self, process: &str) -> bool {
        match self {
            Principal::Shard(name) => {
                process.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            }
            _ => false,
        }
    }

    /// # Errors
    /// What is wrong with the name of a user.
    pub fn check_user(name: &str) -> Result<(), &'static str> {
        plain(name)?;
        if name.contains(['/', ':']) { Err("a user's name has no / and no :") } else { Ok(()) }
    }

    /// # Errors
    /// What is wrong with the name of a service.
    pub fn check_service(name: &str) -> Result<(), &'static str> {
        plain(name)?;
        let whole = name.split('/').all(|part| !part.is_empty()) && !name.contains(':');
        if name.contains('/') && whole {
            Ok(())
        } else {
            Err("a service's name is the path of its tenant, / and a name: research/nlp/ci")
        }
    }
}

fn plain(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("the name is empty");
    }
    if name.len() > bounds::TENANT_PATH_BYTES_MAX + bounds::NAME_BYTES_MAX {
        return Err("the name is too long");
    }
    if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        Err("the name has spaces or control characters")
    } else {
        Ok(())
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Anonymous => f.write_str("anonymous"),
            Principal::User(name) => write!(f, "user:{name}"),
            Principal::Service(name) => write!(f, "service:{name}"),
            Principal::Node(name) => write!(f, "node:{name}"),
            Principal::Shard(name) => write!(f, "shard:{name}"),
            Principal::Member(id) => write!(f, "member:{id}"),
            Principal::System => f.write_str("system"),
        }
    }
}

impl FromStr for Principal {
    type Err = BadPrincipal;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |why| BadPrincipal { got: text.chars().take(bounds::NAME_BYTES_MAX).collect(), why };
        match text {
            "anonymous" => return Ok(Principal::Anonymous),
            "system" => return Ok(Principal::System),
            _ => {}
        }
        let (kind, name) = text.split_once(':').ok_or_else(|| bad("write KIND:NAME, such as user:alice"))?;
        match kind {
            "user" => Principal::check_user(name).map(|()| Principal::User(name.to_owned())).map_err(bad),
            "service" => Principal::check_service(name).map(|()| Principal::Service(name.to_owned())).map_err(bad),
            "node" => plain(name).map(|()| Principal::Node(name.to_owned())).map_err(bad),
            "shard" => plain(name).map(|()| Principal::Shard(name.to_owned())).map_err(bad),
            "member" => Principal::member(name).ok_or_else(|| bad("a member is a number")),
            _ => Err(bad("the kind is user, service, node, shard or member")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_principal_is_read_back() {
        for text in [
            "anonymous",
            "system",
            "user:alice@corp.example",
            "service:research/nlp/ci",
            "node:gpu-0001",
            "shard:s-1",
            "member:3",
        ] {
            assert_eq!(text.parse::<Principal>().map(|read| read.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_could_be_two_principals_is_none() {
        for text in [
            "",
            "alice",
            "user:",
            "user:a/b",
            "user:a:b",
            "user:a b",
            "service:ci",
            "service:a//ci",
            "service:/ci",
            "member:x",
            "member:03",
            "member:+3",
            "root:x",
            "user:a\nb",
        ] {
            assert!(text.parse::<Principal>().is_err(), "{text:?}");
        }
    }
}
