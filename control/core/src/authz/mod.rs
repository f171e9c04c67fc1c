//! Who may do what: one pure function, asked at the edge before a call is served, and again at commit.
//!
//! What must stay true:
//! - nothing but the state, the time and what the edge has found out about the caller is read; what a client writes about itself counts for nothing;
//! - every method of the API is in the table (`table.rs`), which has no wildcard: what nobody has decided does not compile;
//! - [`Allowed`] is made here alone, so whoever holds one has been judged;
//! - a machine whose certificate has shown who it is may act as that machine and no other, whether the cluster is open or closed;
//! - what somebody may not see is told as if it did not exist, in the same words.

mod ask;
mod machines;
mod may;
mod rights;
mod table;
mod visible;

pub use ask::{About, Ask, Asks};
pub use machines::{admits, is_pinned};
pub use muster_model::identity::Shown;
pub use rights::Rights;
pub use table::{Rule, rule};
pub use visible::Visibility;

use crate::state::State;
use muster_model::identity::{Author, Enrolment};
use muster_model::{AccessMode, Principal, Rpc};
use serde::{Deserialize, Serialize};

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Denied {
    /// Nobody has said who they are, or what they said does not hold (any more).
    #[error("{why}")]
    Unauthenticated {
        /// What is wrong, and what to do.
        why: String,
    },
    /// They may not.
    #[error("{who} may not call {rpc}: {needs}")]
    Forbidden {
        /// The principal.
        who: String,
        /// The call.
        rpc: String,
        /// What would be needed.
        needs: String,
    },
    /// It is not there, or they may not know that it is.
    #[error("{what} {id} does not exist")]
    NotFound {
        /// `job`, `tenant`.
        what: String,
        /// Which.
        id: String,
    },
}

/// A call that has been judged: for whom, and what its answer may show. Made by [`authorize`] alone.
#[derive(Clone, Debug)]
pub struct Allowed {
    rpc: Rpc,
    author: Author,
    visibility: Visibility,
}

impl Allowed {
    /// Who calls.
    #[must_use]
    pub fn author(&self) -> &Author {
        &self.author
    }

    /// Which call.
    #[must_use]
    pub fn rpc(&self) -> Rpc {
        self.rpc
    }

    /// What the answer may show.
    #[must_use]
    pub fn sees(&self) -> &Visibility {
        &self.visibility
    }
}

/// Judges a call at `now_ms`, the cluster's time.
///
/// # Errors
/// [`Denied`].
pub fn authorize(state: &State, now_ms: u64, author: &Author, ask: &Ask<'_>) -> Result<Allowed, Denied> {
    let allowed = |visibility| Allowed { rpc: ask.rpc, author: author.clone(), visibility };
    if matches!(author.principal, Principal::System) {
        // Made by the leader's own loops, never by a call.
        return Ok(allowed(Visibility::All));
    }
    // A machine that has shown who it is acts as itself, in an open cluster too.
    if author.principal.is_machine() && is_of_machines(ask.rpc) {
        machines::may_act(state, &author.principal, ask.rpc)?;
        may::may(state, &Rights::of_machine(state, now_ms, author), ask)?;
        return Ok(allowed(Visibility::All));
    }
    if state.meta.access == AccessMode::Open || rule(ask.rpc) == Rule::Open {
        return Ok(allowed(Visibility::All));
    }
    // Whoever has an identity shows it. Where none is required, machines without certificates are believed by their names.
    let optional = state.meta.enrolment == Enrolment::Optional;
    if author.principal == Principal::Anonymous && is_of_machines(ask.rpc) && optional {
        return Ok(allowed(Visibility::All));
    }
    let rights = Rights::of(state, now_ms, author)?;
    may::may(state, &rights, ask)?;
    Ok(allowed(rights.visibility()))
}

/// Whether `rpc` is a call that only control nodes, shards or agents make.
#[must_use]
pub const fn is_of_machines(rpc: Rpc) -> bool {
    matches!(rule(rpc), Rule::Node | Rule::Shard | Rule::Member | Rule::Machine)
}

/// The same for every part of a call that is about several things.
///
/// # Errors
/// The first [`Denied`].
pub fn authorize_all<'a>(
    state: &State,
    now_ms: u64,
    author: &Author,
    asks: impl IntoIterator<Item = Ask<'a>>,
) -> Result<(), Denied> {
    asks.into_iter().try_for_each(|ask| authorize(state, now_ms, author, &ask).map(drop))
}
