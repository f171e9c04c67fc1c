//! What people who log in saw: their logins, and calls that were refused because nothing proved who made them.
//!
//! What must stay true: this is written by clients, as they were answered. When a session ends is not believed from here: the published changes say it.

use muster_model::ids::Revision;

/// Of a run whose cluster asks who calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    /// The cluster was closed before the first operation, and stays so.
    pub closed: bool,
    /// Logins that were answered, in that order.
    pub logins: Vec<Login>,
    /// Calls that were answered UNAUTHENTICATED, in the order of their answers.
    pub refusals: Vec<Refusal>,
}

/// What the identity provider has been through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderThen {
    /// It cannot be reached.
    pub away: bool,
    /// How often it went away.
    pub absences: u64,
    /// How often it changed its key.
    pub rotations: u64,
}

/// A token of the provider, sent to a control node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Whose.
    pub user: String,
    /// The key that it is signed with: 0 is the first.
    pub key: u64,
    /// The provider at the call.
    pub before: ProviderThen,
    /// The provider at the answer.
    pub after: ProviderThen,
    /// What came of it.
    pub answer: LoginAnswer,
}

/// What came of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginAnswer {
    /// A session.
    Made {
        /// Its number.
        session: u64,
        /// When it ends, as the answer says.
        expires_ms: u64,
    },
    /// UNAVAILABLE: the node has no keys of the provider, and cannot ask it.
    ProviderAway,
    /// UNAUTHENTICATED: the token does not hold.
    NotTaken {
        /// Why not, in words.
        why: String,
    },
}

/// A call that was answered UNAUTHENTICATED.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of the session that was sent, if one was.
    pub session: Option<u64>,
    /// The control node.
    pub through: String,
    /// What that replica had applied before the call; none when it was started meanwhile.
    pub applied: Option<Revision>,
    /// The right time at the answer.
    pub wall_ms: u64,
    /// The provider at the answer.
    pub provider: ProviderThen,
    /// Why, in words.
    pub why: String,
}
