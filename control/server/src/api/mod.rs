//! What everything that answers calls has in common: who calls ([`auth`]), what a refusal looks like ([`refusal`]), and how large a message may
//! be.
//!
//! What must stay true: whatever is served, to agents, shards, clients, peers or browsers, is judged by [`auth`] and refused by [`refusal`], and
//! by nothing else. Nothing here knows a service.

pub(crate) mod auth;
pub(crate) mod credential_text;
pub(crate) mod rates;
pub(crate) mod refusal;
pub(crate) mod signed;

/// The largest message that is taken: twice what fits into one entry of the log.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
