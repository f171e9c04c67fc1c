//! How a handler has a call judged, looks at the state, and has something decided. The only ways to either.
//!
//! What must stay true: a read is judged on the state that it is answered from, a change at this node and again where the log decides it; handlers reach the
//! state with an [`Allowed`] in hand.

use super::App;
use crate::api::refusal;
use crate::api::signed::signed;
use crate::consensus::{ProposeError, Proposed};
use muster_control_core::authz::{About, Allowed, Ask, Asks, Denied, authorize, authorize_all};
use muster_control_core::{Command, Done, Reject, State};
use muster_model::identity::Author;
use muster_model::object::Number;
use muster_model::{Revision, Rpc};
use muster_proto::v1::Consistency;
use tonic::Status;

impl App {
    /// Looks at the state as the caller wants it, if the caller may: everything acknowledged before the call (the default), or whatever is here.
    ///
    /// # Errors
    /// What [`authorize`] refuses; UNAVAILABLE when a linearizable read finds no leader; INVALID_ARGUMENT for a consistency that does not exist.
    pub(crate) async fn look<R>(
        &self,
        author: &Author,
        ask: Ask<'_>,
        consistency: i32,
        look: impl FnOnce(&State, Revision, &Allowed) -> R,
    ) -> Result<R, Status> {
        self.catch_up(consistency).await?;
        let now_ms = self.consensus.now_ms();
        let looked = self.consensus.read(|state, revision| {
            authorize(state, now_ms, author, &ask).map(|allowed| look(state, revision, &allowed))
        });
        looked.map_err(|denied| self.refuse(author, ask.rpc, &denied))
    }

    /// Whether somebody at the author's address may try to prove who they are.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED with the time to wait, if too many tries have failed.
    pub(crate) fn may_try(&self, author: &Author) -> Result<(), Status> {
        let now_ms = self.consensus.now_ms();
        self.callers.may_try(&author.from, now_ms).map_err(|wait_ms| refusal::failed_too_often(&author.from, wait_ms))
    }

    /// That try has failed, or has not.
    pub(crate) fn tried(&self, author: &Author, failed: bool) {
        self.callers.tried(&author.from, self.consensus.now_ms(), failed);
    }

    /// Judges a call whose answer comes from elsewhere, on the state as it is here.
    ///
    /// # Errors
    /// What [`authorize`] refuses.
    pub(crate) fn allow(&self, author: &Author, rpc: Rpc, about: About<'_>) -> Result<Allowed, Status> {
        let now_ms = self.consensus.now_ms();
        let ask = Ask { rpc, about };
        let allowed = self.consensus.read(|state, _| authorize(state, now_ms, author, &ask));
        allowed.map_err(|denied| self.refuse(author, rpc, &denied))
    }

    /// Waits until the state here is as new as the caller wants it.
    ///
    /// # Errors
    /// As [`App::look`].
    pub(crate) async fn catch_up(&self, consistency: i32) -> Result<(), Status> {
        match Consistency::try_from(consistency) {
            Ok(Consistency::Linearizable) => {
                self.consensus.read_index().await.map_err(|error| refusal::propose(&error))?;
                Ok(())
            }
            Ok(Consistency::Stale) => Ok(()),
            Err(_) => {
                let problem = format!("is {consistency}");
                Err(refusal::field("consistency", problem, "use LINEARIZABLE or STALE"))
            }
        }
    }

    /// Has one command of the caller decided, and gives its answer with the revision.
    ///
    /// # Errors
    /// What the caller may not, what the state machine refused, or that no answer came.
    pub(crate) async fn decide(&self, author: &Author, command: Command) -> Result<(Done, Revision), Status> {
        let rpc = match Asks::of(&command) {
            Asks::All(asks) => asks.first().map(|ask| ask.rpc),
            Asks::OfMembers | Asks::OfSystem => None,
        };
        let proposed = self.propose(author, command).await?.map_err(|error| refusal::propose(&error))?;
        let decided = proposed.decided.into_iter().next();
        let decided = decided.ok_or_else(|| Status::internal("the log answered fewer commands than it was given"))?;
        match (decided, rpc) {
            (Ok(done), _) => Ok((done, proposed.revision)),
            // A right was taken away between the call and its decision.
            (Err(Reject::Denied(denied)), Some(rpc)) => Err(self.refuse(author, rpc, &denied)),
            (Err(reject), _) => Err(refusal::reject(&reject)),
        }
    }

    /// When a session or token that was made just now for so long ends. Its entry counts; where this node has not applied it yet, its own time does.
    pub(crate) fn ends_ms(&self, credential: u64, ttl_ms: u64) -> u64 {
        let made =
            self.consensus.read(|state, _| state.credentials.get(&Number(credential)).map(|made| made.expires_ms));
        made.unwrap_or_else(|| self.consensus.now_ms().saturating_add(ttl_ms))
    }

    /// The same, with the answer as it is.
    ///
    /// # Errors
    /// What the caller may not.
    pub(crate) async fn propose(
        &self,
        author: &Author,
        command: Command,
    ) -> Result<Result<Proposed, ProposeError>, Status> {
        self.judge(author, &command)?;
        let command = signed(&self.consensus, author, command);
        Ok(self.consensus.propose(vec![command]).await)
    }

    /// Has several commands of one machine decided, all in one entry.
    ///
    /// # Errors
    /// What the caller may not.
    pub(crate) async fn propose_all(
        &self,
        author: &Author,
        commands: Vec<Command>,
    ) -> Result<Result<Proposed, ProposeError>, Status> {
        commands.iter().try_for_each(|command| self.judge(author, command))?;
        let commands = commands.into_iter().map(|command| signed(&self.consensus, author, command)).collect();
        Ok(self.consensus.propose(commands).await)
    }

    /// Judges a command before it is proposed: what is refused here costs the log nothing.
    ///
    /// # Errors
    /// What the caller may not.
    pub(crate) fn judge(&self, author: &Author, command: &Command) -> Result<(), Status> {
        let now_ms = self.consensus.now_ms();
        let judged = self.consensus.read(|state, _| match Asks::of(command) {
            Asks::All(asks) => {
                let rpc = asks.first().map_or(Rpc::JobsSubmit, |ask| ask.rpc);
                authorize_all(state, now_ms, author, asks).map_err(|denied| (rpc, denied))
            }
            // Proposed by this node itself.
            Asks::OfMembers | Asks::OfSystem => Ok(()),
        });
        judged.map_err(|(rpc, denied)| self.refuse(author, rpc, &denied))
    }

    /// Counts a refusal, and tells it.
    pub(crate) fn refuse(&self, author: &Author, rpc: Rpc, denied: &Denied) -> Status {
        let why = match denied {
            Denied::Unauthenticated { .. } => "unauthenticated",
            Denied::Forbidden { .. } => "forbidden",
            Denied::NotFound { .. } => "not-found",
        };
        metrics::counter!("muster_calls_denied_total", "why" => why).increment(1);
        self.denials.note(author, rpc.name(), format!("denied: {denied}"));
        tracing::info!(principal = %author.principal, from = author.from, rpc = rpc.name(), %denied, "a call was denied");
        refusal::denied(denied)
    }
}

/// The number of the grant or credential that a command has made.
///
/// # Errors
/// That it was answered otherwise: a bug.
pub(crate) fn number(done: Done) -> Result<u64, Status> {
    match done {
        Done::Numbered { id } => Ok(id),
        done => Err(Status::internal(format!("a grant or credential was answered {done:?}"))),
    }
}
