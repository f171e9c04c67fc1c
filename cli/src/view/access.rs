//! Identities, credentials, grants and records of the audit as they are shown.

use crate::output::{Block, Columns};
use muster_proto::v1;
use serde::Serialize;

/// A time for people.
fn time(ms: u64, never: &str) -> String {
    if ms == 0 { never.to_owned() } else { muster_model::utc::show(ms) }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// Who the caller is.
#[derive(Clone, Debug, Serialize)]
pub struct WhoAmIView {
    /// As `user:alice`.
    pub principal: String,
    /// Groups of the session.
    pub groups: Vec<String>,
    /// `admin on research`.
    pub rights: Vec<String>,
    /// The session or token.
    pub credential: Option<u64>,
    /// When that ends, in ms since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// `open` or `closed`.
    pub access: String,
}

impl WhoAmIView {
    /// From the message.
    #[must_use]
    pub fn new(reply: v1::WhoAmIReply) -> Self {
        let v1::WhoAmIReply { principal, groups, rights, credential, expires_ms, access } = reply;
        let some = |number: u64| (number > 0).then_some(number);
        WhoAmIView { principal, groups, rights, credential: some(credential), expires_ms: some(expires_ms), access }
    }

    /// For people.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let mut lines = vec![self.principal.clone()];
        if !self.groups.is_empty() {
            lines.push(format!("groups: {}", self.groups.join(", ")));
        }
        if self.access == "open" {
            lines.push("this cluster is open: whoever reaches a port may do everything".to_owned());
        } else if self.rights.is_empty() {
            lines.push("rights: none; ask an admin for a grant".to_owned());
        } else {
            lines.push(format!("rights: {}", self.rights.join(", ")));
        }
        if let Some(expires_ms) = self.expires_ms {
            lines.push(format!("until: {}", time(expires_ms, "-")));
        }
        vec![Block::Text(lines.join("\n"))]
    }
}

/// A session or token.
#[derive(Clone, Debug, Serialize)]
pub struct CredentialView {
    /// Its number.
    pub id: u64,
    /// `session` or `token`.
    pub kind: String,
    /// Whom it proves.
    pub principal: String,
    /// Of a token.
    pub role: String,
    /// Of a token.
    pub tenant: String,
    /// In ms since the Unix epoch.
    pub expires_ms: u64,
    /// In ms since the Unix epoch.
    pub since_ms: u64,
    /// Who made it.
    pub by: String,
    /// Address ranges.
    pub from: Vec<String>,
    /// For people.
    pub note: String,
}

impl From<v1::CredentialView> for CredentialView {
    fn from(wire: v1::CredentialView) -> Self {
        let v1::CredentialView { id, kind, principal, role, tenant, expires_ms, since_ms, by, from, note } = wire;
        CredentialView { id, kind, principal, role, tenant, expires_ms, since_ms, by, from, note }
    }
}

/// The table of sessions or tokens.
#[must_use]
pub fn credentials(views: &[CredentialView]) -> Vec<Block> {
    let mut columns = Columns::new(&["ID", "OF", "ROLE", "TENANT", "UNTIL", "BY", "NOTE"]);
    for one in views {
        columns.row(vec![
            one.id.to_string(),
            one.principal.clone(),
            or_dash(&one.role),
            or_dash(&one.tenant),
            time(one.expires_ms, "-"),
            one.by.clone(),
            or_dash(&one.note),
        ]);
    }
    vec![columns.block()]
}

/// A grant.
#[derive(Clone, Debug, Serialize)]
pub struct GrantView {
    /// Its number.
    pub id: u64,
    /// Who has it.
    pub subject: String,
    /// What they may do.
    pub role: String,
    /// Where; empty: at the root of the tree, or on the fleet.
    pub tenant: String,
    /// In ms since the Unix epoch; 0: until it is revoked.
    pub until_ms: u64,
    /// Who gave it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// In ms since the Unix epoch.
    pub since_ms: u64,
}

impl From<v1::GrantView> for GrantView {
    fn from(wire: v1::GrantView) -> Self {
        let v1::GrantView { id, subject, role, tenant, until_ms, by, reason, since_ms } = wire;
        GrantView { id, subject, role, tenant, until_ms, by, reason, since_ms }
    }
}

/// The table of grants.
#[must_use]
pub fn grants(views: &[GrantView]) -> Vec<Block> {
    let mut columns = Columns::new(&["ID", "SUBJECT", "ROLE", "TENANT", "UNTIL", "BY", "REASON"]);
    for grant in views {
        let fleet = matches!(grant.role.as_str(), "operator" | "auditor");
        let at = match grant.tenant.as_str() {
            "" if fleet => "the fleet".to_owned(),
            "" => "the root".to_owned(),
            path => path.to_owned(),
        };
        let until = time(grant.until_ms, "revoked");
        let (id, by) = (grant.id.to_string(), grant.by.clone());
        columns.row(vec![id, grant.subject.clone(), grant.role.clone(), at, until, by, or_dash(&grant.reason)]);
    }
    vec![columns.block()]
}

/// A record of the audit.
#[derive(Clone, Debug, Serialize)]
pub struct AuditView {
    /// From 1, without gaps.
    pub number: u64,
    /// In ms since the Unix epoch.
    pub at_ms: u64,
    /// Who.
    pub principal: String,
    /// By which session or token; 0: none.
    pub credential: u64,
    /// From where.
    pub from: String,
    /// `Jobs.Submit`.
    pub rpc: String,
    /// What it was about.
    pub target: String,
}

impl From<&v1::AuditRecord> for AuditView {
    fn from(record: &v1::AuditRecord) -> Self {
        AuditView {
            number: record.number,
            at_ms: record.at_ms,
            principal: record.principal.clone(),
            credential: record.credential,
            from: record.from.clone(),
            rpc: record.rpc.clone(),
            target: record.target.clone(),
        }
    }
}

/// The table of records.
#[must_use]
pub fn audit(views: &[AuditView]) -> Vec<Block> {
    let mut columns = Columns::new(&["NUMBER", "TIME", "WHO", "FROM", "CALL", "ABOUT"]);
    for one in views {
        let who = match one.credential {
            0 => one.principal.clone(),
            id => format!("{} #{id}", one.principal),
        };
        let (number, at) = (one.number.to_string(), time(one.at_ms, "-"));
        columns.row(vec![number, at, who, or_dash(&one.from), one.rpc.clone(), one.target.clone()]);
    }
    vec![columns.block()]
}
