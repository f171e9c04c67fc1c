//! Reads: linearizable by default, stale when asked for.

use super::App;
use crate::api::refusal;
use muster_control_core::State;
use muster_model::Revision;
use muster_proto::v1::Consistency;
use tonic::Status;

impl App {
    /// Looks at the state as the caller wants it: everything acknowledged before the call (the default), or whatever is here.
    ///
    /// # Errors
    /// UNAVAILABLE when a linearizable read finds no leader; INVALID_ARGUMENT for a consistency that does not exist.
    pub(crate) async fn look<R>(
        &self,
        consistency: i32,
        look: impl FnOnce(&State, Revision) -> R,
    ) -> Result<R, Status> {
        match Consistency::try_from(consistency) {
            Ok(Consistency::Linearizable) => {
                self.consensus.read_index().await.map_err(|error| refusal::propose(&error))?;
            }
            Ok(Consistency::Stale) => {}
            Err(_) => {
                let problem = format!("is {consistency}");
                return Err(refusal::field("consistency", problem, "use LINEARIZABLE or STALE"));
            }
        }
        Ok(self.consensus.read(look))
    }

    /// Proposes one command and gives its answer with the revision.
    ///
    /// # Errors
    /// What the state machine refused, or that no answer came.
    pub(crate) async fn decide(
        &self,
        command: muster_control_core::Command,
    ) -> Result<(muster_control_core::Done, Revision), Status> {
        let proposed = self.consensus.propose(vec![command]).await.map_err(|error| refusal::propose(&error))?;
        let decided = proposed.decided.into_iter().next();
        let decided = decided.ok_or_else(|| Status::internal("the log answered fewer commands than it was given"))?;
        decided.map(|done| (done, proposed.revision)).map_err(|reject| refusal::reject(&reject))
    }
}
