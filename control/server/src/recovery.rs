//! A session for whoever has the machine of a control node: the way in when there is no other.
//!
//! What must stay true: it goes through the log, so that it needs a quorum and is in the audit; it lasts an hour at the most. Whoever may ask for it owns the
//! node's data folder anyway.

use crate::api::credential_text;
use crate::consensus::{Consensus, ProposeError};
use muster_control_core::{Command, Done, Reject, State};
use muster_model::identity::{Author, CredentialKind, Subject};
use muster_model::object::Number;
use muster_model::{Principal, Role};
use sha2::{Digest, Sha256};

/// How long such a session lasts.
pub const RECOVERY_TTL_MS: u64 = 3_600_000;
/// From this feature level on there are sessions.
const LEVEL: u32 = 4;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The cluster is older than sessions.
    #[error("the cluster has feature level {level}, and sessions need {LEVEL}; upgrade every control node first")]
    Level {
        /// What it has.
        level: u32,
    },
    /// No quorum, or no leader.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The state machine refused.
    #[error(transparent)]
    Refused(#[from] Reject),
    /// The answer is not one of these commands: a bug.
    #[error("the log answered {got}")]
    Answer {
        /// What it answered.
        got: String,
    },
}

/// The roles that the user does not have for good: what they have is not cut short.
fn lacking(state: &State, user: &str) -> Vec<Role> {
    let subject = Subject::User(user.to_owned());
    let grants = state.index().access.grants_of(&subject).filter_map(|id| state.grants.get(&Number(id)));
    let held: Vec<Role> =
        grants.filter(|grant| grant.at.is_none() && grant.until_ms.is_none()).map(|grant| grant.role).collect();
    [Role::Admin, Role::Operator, Role::Auditor].into_iter().filter(|role| !held.contains(role)).collect()
}

/// Makes `user` admin of the root of the tree, operator and auditor for an hour, with a session that lasts as long, and gives the session's text.
///
/// # Errors
/// [`RecoveryError`].
pub(crate) async fn session(
    consensus: &Consensus,
    chance: &muster_runtime::Chance,
    user: &str,
) -> Result<String, RecoveryError> {
    let level = consensus.read(|state, _| state.meta.feature_level);
    if level < LEVEL {
        return Err(RecoveryError::Level { level });
    }
    let until_ms = consensus.now_ms().saturating_add(RECOVERY_TTL_MS);
    let reason = format!("recovery socket of control node {}", consensus.id());
    let grant = |role| Command::PutGrant {
        subject: Subject::User(user.to_owned()),
        role,
        at: None,
        until_ms: Some(until_ms),
        reason: reason.clone(),
    };
    let secret = credential_text::secret(chance);
    let session = Command::PutCredential {
        kind: CredentialKind::Session,
        principal: Principal::User(user.to_owned()),
        groups: Vec::new(),
        secret_sha256: Sha256::digest(&secret).into(),
        ttl_ms: RECOVERY_TTL_MS,
        scope: None,
        from: Vec::new(),
        note: reason.clone(),
    };
    let member = Author { principal: Principal::Member(consensus.id()), ..Author::default() };
    let missing = consensus.read(|state, _| lacking(state, user));
    let commands = missing.into_iter().map(grant).chain([session]).map(|command| command.by(member.clone())).collect();
    let proposed = consensus.propose(commands).await?;
    let mut last = None;
    for decided in proposed.decided {
        last = Some(decided?);
    }
    match last {
        Some(Done::Numbered { id }) => Ok(credential_text::text(CredentialKind::Session, id, &secret)),
        other => Err(RecoveryError::Answer { got: format!("{other:?}") }),
    }
}
