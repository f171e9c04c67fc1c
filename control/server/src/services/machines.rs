//! `muster.v1.Machines`: enrolment with join tokens, renewal, suspension.
//!
//! What must stay true: the log decides before anything is signed; the text of a join token is in one reply only; a control node that is a member is not
//! shut out, since that could stop the cluster.

use super::App;
use super::access::unknown;
use super::calls::number;
use super::paging::{self, Page};
use crate::api::{auth, credential_text, refusal};
use crate::identities::{Issued, Issuer, NotIssued};
use muster_control_core::authz::{About, Allowed, Ask};
use muster_control_core::restoration::{NodeReview, Review, review};
use muster_control_core::{Command, Restoration, State};
use muster_model::bounds::HASH_BYTES;
use muster_model::identity::{Enrolment, MachineRole};
use muster_model::{Principal, Rpc};
use muster_proto::v1;
use muster_runtime::pki::Credentials;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::sync::Arc;
use tonic::{Code, Request, Response, Status};

/// The service.
pub(crate) struct MachinesService(pub(crate) App);

#[tonic::async_trait]
impl v1::machines_server::Machines for MachinesService {
    async fn enroll(&self, request: Request<v1::EnrollRequest>) -> Result<Response<v1::EnrollReply>, Status> {
        let (author, v1::EnrollRequest { token, request }) = auth::split(request);
        self.0.may_try(&author)?;
        let (token, secret) = credential_text::parse_join(token.trim()).ok_or_else(|| {
            self.0.tried(&author, true);
            refusal::field(
                "token",
                "is no join token: it was cut, or is of another kind",
                "use the file as it was made",
            )
        })?;
        let issuer = Issuer(&self.0.host);
        let asked = issuer.read(&request).map_err(|error| not_issued(&error))?;
        let machine = asked.machine.clone();
        let command = Command::EnrollMachine {
            token,
            secret_sha256: Sha256::digest(secret).into(),
            machine: machine.clone(),
            key_sha256: asked.key.0,
        };
        let decided = self.0.decide(&author, command).await;
        // That the cluster does not answer, or has no room, is nobody's fault.
        let is_ours = |status: &Status| {
            matches!(
                status.code(),
                Code::Unavailable | Code::ResourceExhausted | Code::Internal | Code::FailedPrecondition
            )
        };
        if !decided.as_ref().is_err_and(is_ours) {
            self.0.tried(&author, decided.is_err());
        }
        let (_, revision) = decided?;
        let now_ms = self.0.consensus.now_ms();
        let Issued { chain, roots } = issuer.sign(&request, &asked, now_ms).map_err(|error| not_issued(&error))?;
        tracing::info!(%machine, token, from = author.from, %revision, "a machine was enrolled");
        Ok(Response::new(v1::EnrollReply { chain: bytes(&chain), roots: bytes(&roots), revision: revision.0 }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewMachineRequest>,
    ) -> Result<Response<v1::RenewMachineReply>, Status> {
        let shown = auth::shown(&request);
        let (author, v1::RenewMachineRequest { request }) = auth::split(request);
        // Where people are served, nobody has shown a key.
        let Some(shown) = shown.filter(|_| author.principal.is_machine()) else {
            let why = "no certificate was shown; ask where machines are served (`--listen-machines`)";
            return Err(Status::unauthenticated(why));
        };
        let shown_sha256 = shown.key_sha256;
        let issuer = Issuer(&self.0.host);
        let asked = issuer.read(&request).map_err(|error| not_issued(&error))?;
        let key_sha256 = asked.key.0;
        self.0.allow(&author, Rpc::MachinesRenew, About::Machine(&asked.machine))?;
        let (is_pinned, revision) = self.0.consensus.read(|state, revision| {
            let known = state.machines.get(&asked.machine.to_string());
            (known.is_some_and(|known| known.key_sha256 == key_sha256 && known.next_key_sha256.is_none()), revision)
        });
        let revision = match is_pinned {
            // Nothing changes in the state.
            true => revision,
            false => {
                let machine = asked.machine.clone();
                self.0.decide(&author, Command::RenewMachine { machine, shown_sha256, key_sha256 }).await?.1
            }
        };
        let now_ms = self.0.consensus.now_ms();
        let Issued { chain, roots } = issuer.sign(&request, &asked, now_ms).map_err(|error| not_issued(&error))?;
        Ok(Response::new(v1::RenewMachineReply { chain: bytes(&chain), roots: bytes(&roots), revision: revision.0 }))
    }

    async fn list(&self, request: Request<v1::ListMachinesRequest>) -> Result<Response<v1::ListMachinesReply>, Status> {
        let (author, request) = auth::split(request);
        let size = paging::size(request.page_size)?;
        let after = paging::after("machines", &request.page_token)?;
        let look = |state: &State, revision, _: &Allowed| {
            let mut page = Page::new(size);
            let mut last = None;
            let mut more = None;
            let from = after.clone().map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
            for (name, machine) in state.machines.range::<String, _>((from, std::ops::Bound::Unbounded)) {
                if page.is_full() {
                    more = last.take();
                    break;
                }
                page.push(v1::MachineView::from(machine));
                last = Some(name.clone());
            }
            (page.items(), more, state.meta.enrolment, revision)
        };
        let ask = Ask { rpc: Rpc::MachinesList, about: About::Nothing };
        let (machines, more, enrolment, revision): (_, Option<String>, Enrolment, muster_model::Revision) =
            self.0.look(&author, ask, request.consistency, look).await?;
        Ok(Response::new(v1::ListMachinesReply {
            machines,
            next_page_token: more.map(|last| paging::token("machines", &last)).unwrap_or_default(),
            revision: revision.0,
            enrolment: enrolment.to_string(),
        }))
    }

    async fn create_join_token(
        &self,
        request: Request<v1::CreateJoinTokenRequest>,
    ) -> Result<Response<v1::CreateJoinTokenReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::CreateJoinTokenRequest { role, names, enrolled, ttl_s, rejoin } = request;
        let role: MachineRole = role.parse().map_err(|word| unknown("role", &word))?;
        let own = self.identity()?;
        let (secret, ttl_ms) = (credential_text::secret(&self.0.host.chance), ttl_s.saturating_mul(1_000));
        let command = Command::PutJoinToken {
            secret_sha256: Sha256::digest(&secret).into(),
            role,
            names: names.into_iter().collect(),
            enrolled: enrolled.unwrap_or_default().into(),
            ttl_ms,
            rejoin,
        };
        let (done, revision) = self.0.decide(&author, command).await?;
        let id = number(done)?;
        tracing::info!(%role, id, %revision, "join token made");
        Ok(Response::new(v1::CreateJoinTokenReply {
            id,
            token: credential_text::join_text(id, &secret),
            roots: bytes(own.roots().certificates()),
            expires_ms: self.0.consensus.now_ms().saturating_add(ttl_ms),
            revision: revision.0,
        }))
    }

    async fn list_join_tokens(
        &self,
        request: Request<v1::ListJoinTokensRequest>,
    ) -> Result<Response<v1::ListJoinTokensReply>, Status> {
        let (author, request) = auth::split(request);
        let look = |state: &State, revision, _: &Allowed| {
            (state.join_tokens.values().map(v1::JoinTokenView::from).collect(), revision)
        };
        let ask = Ask { rpc: Rpc::MachinesListJoinTokens, about: About::Nothing };
        let (tokens, revision): (_, muster_model::Revision) =
            self.0.look(&author, ask, request.consistency, look).await?;
        Ok(Response::new(v1::ListJoinTokensReply { tokens, revision: revision.0 }))
    }

    async fn revoke_join_token(
        &self,
        request: Request<v1::RevokeJoinTokenRequest>,
    ) -> Result<Response<v1::RevokeJoinTokenReply>, Status> {
        let (author, request) = auth::split(request);
        let (_, revision) = self.0.decide(&author, Command::RevokeJoinToken { id: request.id }).await?;
        tracing::info!(id = request.id, %revision, "join token revoked");
        Ok(Response::new(v1::RevokeJoinTokenReply { revision: revision.0 }))
    }

    async fn pin(&self, request: Request<v1::PinRequest>) -> Result<Response<v1::PinReply>, Status> {
        let (author, v1::PinRequest { keys, replace }) = auth::split(request);
        let mut machines = Vec::with_capacity(keys.len());
        for (index, v1::PinnedKey { name, key_sha256 }) in keys.into_iter().enumerate() {
            let key = <[u8; HASH_BYTES]>::try_from(key_sha256).map_err(|got| {
                let field = format!("keys[{index}].key_sha256");
                refusal::field(&field, format!("has {} bytes", got.len()), "send the SHA-256 of the public key")
            })?;
            machines.push((machine(&format!("keys[{index}].name"), &name)?, key));
        }
        let count = machines.len();
        let (_, revision) = self.0.decide(&author, Command::PinMachines { machines, replace }).await?;
        tracing::info!(count, %revision, "keys of machines pinned");
        Ok(Response::new(v1::PinReply { revision: revision.0 }))
    }

    async fn suspend(&self, request: Request<v1::SuspendRequest>) -> Result<Response<v1::SuspendReply>, Status> {
        let (author, v1::SuspendRequest { name, reason }) = auth::split(request);
        let machine = machine("name", &name)?;
        self.identity()?;
        self.is_no_member(&machine)?;
        let command = Command::SuspendMachine { machine: machine.clone(), reason: reason.clone() };
        let (_, revision) = self.0.decide(&author, command).await?;
        tracing::warn!(%machine, reason, %revision, "a machine is suspended");
        Ok(Response::new(v1::SuspendReply { revision: revision.0 }))
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Result<Response<v1::ResumeReply>, Status> {
        let (author, v1::ResumeRequest { name }) = auth::split(request);
        let machine = machine("name", &name)?;
        let (_, revision) = self.0.decide(&author, Command::ResumeMachine { machine: machine.clone() }).await?;
        tracing::warn!(%machine, %revision, "a machine is taken at its word again");
        Ok(Response::new(v1::ResumeReply { revision: revision.0 }))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveMachineRequest>,
    ) -> Result<Response<v1::RemoveMachineReply>, Status> {
        let (author, v1::RemoveMachineRequest { name }) = auth::split(request);
        let machine = machine("name", &name)?;
        self.is_no_member(&machine)?;
        let (_, revision) = self.0.decide(&author, Command::RemoveMachine { machine: machine.clone() }).await?;
        tracing::warn!(%machine, %revision, "a machine is removed");
        Ok(Response::new(v1::RemoveMachineReply { revision: revision.0 }))
    }

    async fn confirm(&self, request: Request<v1::ConfirmRequest>) -> Result<Response<v1::ConfirmReply>, Status> {
        let (author, v1::ConfirmRequest { names, dry_run, gone }) = auth::split(request);
        let named = |(index, name): (usize, &String)| machine(&format!("names[{index}]"), name);
        let machines: BTreeSet<Principal> = names.iter().enumerate().map(named).collect::<Result<_, Status>>()?;
        let look = |state: &State, revision: muster_model::Revision, _: &Allowed| {
            let Review { mut nodes, mut shards, mut enrolled } = review(state);
            if !machines.is_empty() {
                nodes.retain(|node| machines.contains(&Principal::Node(node.name.clone())));
                shards.retain(|shard| machines.contains(&Principal::Shard(shard.clone())));
                enrolled.retain(|name| machines.contains(&Principal::Node(name.clone())));
            }
            let nodes = nodes.into_iter().map(reviewed).collect();
            v1::ConfirmReply { nodes, shards, enrolled, revision: revision.0, grants: state.grants.len() as u64 }
        };
        let ask = Ask { rpc: Rpc::MachinesConfirm, about: About::Nothing };
        let mut reply = self.0.look(&author, ask, v1::Consistency::Linearizable.into(), look).await?;
        if !dry_run {
            let step = Restoration::Confirm { machines: machines.clone(), gone };
            let (_, revision) = self.0.decide(&author, Command::Restore(step)).await?;
            tracing::warn!(machines = machines.len(), nodes = reply.nodes.len(), gone, %revision, "machines of the backup are confirmed");
            reply.revision = revision.0;
        }
        Ok(Response::new(reply))
    }

    async fn set_enrolment(
        &self,
        request: Request<v1::SetEnrolmentRequest>,
    ) -> Result<Response<v1::SetEnrolmentReply>, Status> {
        let (author, request) = auth::split(request);
        let enrolment: Enrolment = request.enrolment.parse().map_err(|word| unknown("enrolment", &word))?;
        self.identity()?;
        let members: BTreeSet<u64> = self.0.consensus.status().members.into_iter().map(|member| member.id).collect();
        let (_, revision) = self.0.decide(&author, Command::SetEnrolment { enrolment, members }).await?;
        tracing::warn!(%enrolment, %revision, "enrolment of machines changed");
        Ok(Response::new(v1::SetEnrolmentReply { revision: revision.0 }))
    }
}

impl MachinesService {
    /// What this node shows. In clear text every machine is believed by its name: to suspend one would shut nobody out.
    fn identity(&self) -> Result<Arc<Credentials>, Status> {
        self.0.host.net.credentials().ok_or_else(|| not_issued(&NotIssued::ClearText))
    }

    fn is_no_member(&self, machine: &Principal) -> Result<(), Status> {
        match machine {
            Principal::Member(id) if self.0.consensus.is_member(*id) => Err(Status::failed_precondition(format!(
                "control node {id} is a member of the cluster; remove it first: `muster raft remove {id}`"
            ))),
            _ => Ok(()),
        }
    }
}

/// Suspends the identity of a control node that was removed from the cluster, where machines have identities.
pub(super) async fn suspend_removed(app: &App, id: u64) {
    let known = app.consensus.read(|state, _| state.meta.feature_level >= crate::identities::LEVEL);
    if !known || app.host.net.credentials().is_none() {
        return;
    }
    let machine = Principal::Member(id);
    let author = muster_model::Author { principal: Principal::Member(app.consensus.id()), ..Default::default() };
    let reason = "it was removed from the cluster".to_owned();
    let command = Command::SuspendMachine { machine, reason }.by(author);
    let proposed = app.consensus.propose(vec![command]).await;
    let failed = match proposed {
        Ok(proposed) => proposed.decided.into_iter().find_map(Result::err).map(|reject| reject.to_string()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = failed {
        tracing::warn!(id, why, "the identity of the removed control node is not suspended; `muster machine suspend`");
    }
}

/// Refuses a control node that nobody would hear.
pub(super) fn may_be_added(app: &App, id: u64) -> Result<(), Status> {
    let machine = Principal::Member(id);
    let (active, enrolment) = app.consensus.read(|state, _| {
        let known = state.machines.get(&machine.to_string());
        (known.map(muster_model::identity::Machine::is_active), state.meta.enrolment)
    });
    match active {
        Some(true) => Ok(()),
        None if enrolment == Enrolment::Optional => Ok(()),
        None => Err(Status::failed_precondition(format!(
            "control node {id} is not enrolled; pin its key first: `muster machine pin FOLDER`, with the folder that `muster ca control {id}` \
             has made"
        ))),
        Some(false) => Err(Status::failed_precondition(format!(
            "the identity of control node {id} is suspended: it was removed before. Make a new one (`muster ca control {id}`) and pin its              key (`muster machine pin --replace`), or resume the old one (`muster machine resume {machine}`)"
        ))),
    }
}

fn reviewed(NodeReview { name, is_back, confirmed, has_rival, kept, unknown, gone }: NodeReview) -> v1::NodeReview {
    let [kept, unknown, gone] = [kept, unknown, gone].map(|jobs| jobs.into_iter().map(|job| job.0).collect());
    v1::NodeReview { name, is_back, confirmed, has_rival, kept, unknown, gone }
}

fn machine(field: &str, name: &str) -> Result<Principal, Status> {
    let fix = "name node:NAME, shard:NAME or member:ID";
    let machine: Principal = name.parse().map_err(|error| refusal::field(field, format!("{error}"), fix))?;
    match machine.is_machine() {
        true => Ok(machine),
        false => Err(refusal::field(field, format!("is {machine}"), fix)),
    }
}

fn bytes(certificates: &[muster_runtime::pki::Certificate]) -> Vec<Vec<u8>> {
    certificates.iter().map(|certificate| certificate.bytes().to_vec()).collect()
}

fn not_issued(error: &NotIssued) -> Status {
    match error {
        NotIssued::ClearText => Status::failed_precondition(error.to_string()),
        NotIssued::Request(_) => refusal::field("request", error.to_string(), "make a request for this machine's name"),
        NotIssued::Own(_) => Status::failed_precondition(error.to_string()),
    }
}
