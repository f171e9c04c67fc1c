//! Names of machines, and of the authorities that sign their certificates, as URIs: `spiffe://CLUSTER/control/1`.
//!
//! What must stay true: one name has one text, and one text at most one name: what is not exactly as [`Subject`]'s `Display` writes it is
//! refused. DNS names and common names decide nothing anywhere.

use super::error::PkiError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name of a cluster: that of a DNS label, so that it can be one.
pub const CLUSTER_BYTES_MAX: usize = 63;
/// The longest name of a shard or a node; as `muster-model` bounds them.
pub const MACHINE_BYTES_MAX: usize = 128;
/// How every name begins.
const SCHEME: &str = "spiffe://";

/// What a machine is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// A control node, with its id.
    Control(u64),
    /// A scheduler shard.
    Shard(String),
    /// The agent of a node.
    Node(String),
}

/// A machine of a cluster. The name of the cluster survives a restore from a backup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MachineName {
    cluster: String,
    role: Role,
}

impl MachineName {
    /// A name, if its parts can be one.
    ///
    /// # Errors
    /// [`PkiError::Name`].
    pub fn new(cluster: impl Into<String>, role: Role) -> Result<Self, PkiError> {
        let name = MachineName { cluster: cluster.into(), role };
        // One reading of the rules: the text has to be read as this name again.
        match name.to_string().parse::<MachineName>()? == name {
            true => Ok(name),
            false => Err(PkiError::Name { text: name.to_string(), why: "it reads as another name" }),
        }
    }

    /// The cluster it belongs to.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// What it is.
    #[must_use]
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Another machine of the same cluster.
    ///
    /// # Errors
    /// As [`MachineName::new`].
    pub fn as_role(&self, role: Role) -> Result<MachineName, PkiError> {
        MachineName::new(self.cluster.clone(), role)
    }

    /// Its id, if it is a control node.
    #[must_use]
    pub fn control_id(&self) -> Option<u64> {
        match self.role {
            Role::Control(id) => Some(id),
            Role::Shard(_) | Role::Node(_) => None,
        }
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MachineName { cluster, role } = self;
        match role {
            Role::Control(id) => write!(f, "{SCHEME}{cluster}/control/{id}"),
            Role::Shard(name) => write!(f, "{SCHEME}{cluster}/shard/{name}"),
            Role::Node(name) => write!(f, "{SCHEME}{cluster}/node/{name}"),
        }
    }
}

impl FromStr for MachineName {
    type Err = PkiError;

    fn from_str(text: &str) -> Result<Self, PkiError> {
        match text.parse()? {
            Subject::Machine(name) => Ok(name),
            Subject::Root { .. } | Subject::Issuer { .. } => {
                Err(PkiError::Name { text: shown(text), why: "it names an authority, not a machine" })
            }
        }
    }
}

/// Whom a certificate speaks of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Subject {
    /// The root of trust of a cluster.
    Root {
        /// Which cluster.
        cluster: String,
    },
    /// The authority of one control node, which signs the certificates of machines.
    Issuer {
        /// Which cluster.
        cluster: String,
        /// The id of the control node.
        id: u64,
    },
    /// A machine.
    Machine(MachineName),
}

impl Subject {
    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        match self {
            Subject::Root { cluster } | Subject::Issuer { cluster, .. } => cluster,
            Subject::Machine(name) => name.cluster(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Root { cluster } => write!(f, "{SCHEME}{cluster}/root"),
            Subject::Issuer { cluster, id } => write!(f, "{SCHEME}{cluster}/issuer/{id}"),
            Subject::Machine(name) => name.fmt(f),
        }
    }
}

impl FromStr for Subject {
    type Err = PkiError;

    fn from_str(text: &str) -> Result<Self, PkiError> {
        let bad = |why| PkiError::Name { text: shown(text), why };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| bad("it does not begin with spiffe://"))?;
        let (cluster, path) = rest.split_once('/').ok_or_else(|| bad("it has no path"))?;
        if !is_cluster(cluster) {
            return Err(bad("the cluster is not 1 to 63 of a-z 0-9 - _ ."));
        }
        let cluster = cluster.to_owned();
        if path == "root" {
            return Ok(Subject::Root { cluster });
        }
        let (kind, who) = path.split_once('/').ok_or_else(|| bad("it does not say who"))?;
        let id = || number(who).ok_or_else(|| bad("the id is not a number from 1 on"));
        let name = || match is_name(who) {
            true => Ok(who.to_owned()),
            false => Err(bad("the name is not 1 to 128 of a-z A-Z 0-9 - _ .")),
        };
        let role = match kind {
            "issuer" => return Ok(Subject::Issuer { cluster, id: id()? }),
            "control" => Role::Control(id()?),
            "shard" => Role::Shard(name()?),
            "node" => Role::Node(name()?),
            _ => return Err(bad("the role is none of control, shard, node, issuer, root")),
        };
        Ok(Subject::Machine(MachineName { cluster, role }))
    }
}

fn is_cluster(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    (1..=CLUSTER_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain)
}

fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    // `.` and `..` are steps of a path to some readers of URIs.
    (1..=MACHINE_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain) && text.bytes().any(|b| b != b'.')
}

/// A number as `Display` writes it: no sign, no leading zero, not 0.
fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    if plain { text.parse().ok() } else { None }
}

/// What of a text from outside goes into an error.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 256;
    text.chars().take(SHOWN_MAX).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_its_text_are_the_same() {
        for role in [Role::Control(1), Role::Control(u64::MAX), Role::Shard("s-1".into()), Role::Node("Gpu_1.x".into())]
        {
            let name = MachineName::new("c1.example", role).expect("a name");
            assert_eq!(name.to_string().parse::<MachineName>().expect("the text"), name);
        }
        for text in ["spiffe://c/root", "spiffe://c/issuer/7", "spiffe://c/node/n.1"] {
            assert_eq!(text.parse::<Subject>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_written_otherwise_is_refused() {
        let long = format!("spiffe://c/node/{}", "n".repeat(MACHINE_BYTES_MAX + 1));
        let wide = format!("spiffe://{}/control/1", "c".repeat(CLUSTER_BYTES_MAX + 1));
        for text in [
            "",
            "c/control/1",
            "SPIFFE://c/control/1",
            "spiffe://c",
            "spiffe://c/",
            "spiffe:///control/1",
            "spiffe://C/control/1",
            "spiffe://c:80/control/1",
            "spiffe://u@c/control/1",
            "spiffe://c/control",
            "spiffe://c/control/",
            "spiffe://c/control/0",
            "spiffe://c/control/01",
            "spiffe://c/control/+1",
            "spiffe://c/control/-1",
            "spiffe://c/control/18446744073709551616",
            "spiffe://c/control/1/",
            "spiffe://c/control/1?x",
            "spiffe://c/control/1#x",
            "spiffe://c/node/",
            "spiffe://c/node/.",
            "spiffe://c/node/..",
            "spiffe://c/node/a b",
            "spiffe://c/node/a%20b",
            "spiffe://c/node/a/b",
            "spiffe://c/node/ä",
            "spiffe://c/node/a\n",
            "spiffe://c/root/",
            "spiffe://c/admin/1",
            " spiffe://c/control/1",
            &long,
            &wide,
        ] {
            assert!(text.parse::<Subject>().is_err(), "{text:?} is taken for a name");
        }
        assert!("spiffe://c/issuer/1".parse::<MachineName>().is_err(), "an authority is no machine");
        assert!(MachineName::new("c", Role::Node("a/b".into())).is_err());
        assert!(MachineName::new("c", Role::Control(0)).is_err());
    }
}
