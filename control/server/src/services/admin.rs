//! `muster.v1.Admin`: for operators. Membership changes go to the leader; any node passes them on.

use super::{App, history_copy, machines, state_copy};
use crate::api::{auth, refusal};
use crate::consensus::AdminError;
use futures::FutureExt;
use futures::stream::BoxStream;
use muster_control_core::authz::About;
use muster_control_core::{Command, Done};
use muster_model::validate::bounds::BOOTSTRAP_MEMBERS_MAX;
use muster_model::{FieldError, Rpc};
use muster_proto::v1;
use muster_proto::v1::admin_client::AdminClient;
use std::collections::BTreeMap;
use tonic::{Request, Response, Status};

/// Set on a call that was passed on once: it is not passed on again, so two nodes that each take the other for the leader do not
/// play ball with it.
const PASSED_ON: &str = "muster-passed-on";

/// The service.
pub(crate) struct AdminService(pub(crate) App);

impl AdminService {
    fn members(&self) -> v1::MembershipReply {
        let members = self.0.consensus.status().members.into_iter().map(member).collect();
        v1::MembershipReply { members }
    }

    /// Refuses the removal of a voter after which fewer lost voters stop the cluster. A follower may not know the present members:
    /// the leader, to which the call is passed on, looks again.
    fn keeps_tolerance(&self, id: u64) -> Result<(), Status> {
        let members = self.0.consensus.status().members;
        let voters = members.iter().filter(|member| member.voter).count();
        let is_voter = members.iter().any(|member| member.voter && member.id == id);
        let survives = |voters: usize| voters.saturating_sub(1) / 2;
        let (before, after) = (survives(voters), survives(voters.saturating_sub(1)));
        if !is_voter || after >= before {
            return Ok(());
        }
        Err(refusal::lower_tolerance(id, voters, before, after))
    }

    /// A client of the leader, when the call has not been passed on yet.
    fn leader(&self, error: &AdminError, passed_on: bool) -> Result<AdminClient<muster_runtime::Channel>, Status> {
        let AdminError::NotLeader { leader: Some((id, _)) } = error else { return Err(refusal::admin(error)) };
        if passed_on {
            return Err(refusal::admin(error));
        }
        let channel = self.0.consensus.channel_to(*id).ok_or_else(|| refusal::admin(error))?;
        Ok(AdminClient::new(channel))
    }
}

fn member(member: crate::consensus::MemberStatus) -> v1::RaftMember {
    let crate::consensus::MemberStatus { id, address, voter, matched, clock_offset_ms } = member;
    v1::RaftMember { id, address, voter, matched, clock_offset_ms }
}

fn was_passed_on<T>(request: &Request<T>) -> bool {
    request.metadata().contains_key(PASSED_ON)
}

fn pass_on<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(PASSED_ON, tonic::metadata::MetadataValue::from_static("1"));
    request
}

#[tonic::async_trait]
impl v1::admin_server::Admin for AdminService {
    async fn raft_status(
        &self,
        request: Request<v1::RaftStatusRequest>,
    ) -> Result<Response<v1::RaftStatusReply>, Status> {
        self.0.allow(&auth::author_of(&request), Rpc::AdminRaftStatus, About::Nothing)?;
        let status = self.0.consensus.status();
        let (cluster, incarnation, feature_level) =
            self.0.consensus.read(|state, _| (state.meta.cluster, state.meta.incarnation, state.meta.feature_level));
        Ok(Response::new(v1::RaftStatusReply {
            id: status.id,
            leader: status.leader,
            term: status.term,
            last_log: status.last_log,
            applied: status.applied,
            snapshot: status.snapshot,
            purged: status.purged,
            members: status.members.into_iter().map(member).collect(),
            incarnation,
            feature_level,
            state: status.role.to_owned(),
            time_ahead_ms: status.time_ahead_ms,
            cluster,
            knows_level: status.knows_level,
        }))
    }

    async fn add_learner(
        &self,
        request: Request<v1::AddLearnerRequest>,
    ) -> Result<Response<v1::MembershipReply>, Status> {
        self.0.allow(&auth::author_of(&request), Rpc::AdminAddLearner, About::Nothing)?;
        let passed_on = was_passed_on(&request);
        let message = request.into_inner();
        check_member("", message.id, &message.address).map_err(|fault| refusal::fields(&[fault]))?;
        machines::may_be_added(&self.0, message.id)?;
        match self.0.consensus.add_learner(message.id, message.address.clone()).await {
            Ok(()) => Ok(Response::new(self.members())),
            Err(error) => self.leader(&error, passed_on)?.add_learner(pass_on(message)).boxed().await,
        }
    }

    async fn promote(&self, request: Request<v1::PromoteRequest>) -> Result<Response<v1::MembershipReply>, Status> {
        self.0.allow(&auth::author_of(&request), Rpc::AdminPromote, About::Nothing)?;
        let passed_on = was_passed_on(&request);
        let message = request.into_inner();
        match self.0.consensus.promote(message.id).await {
            Ok(()) => Ok(Response::new(self.members())),
            Err(error) => self.leader(&error, passed_on)?.promote(pass_on(message)).boxed().await,
        }
    }

    async fn remove(&self, request: Request<v1::RemoveRequest>) -> Result<Response<v1::MembershipReply>, Status> {
        self.0.allow(&auth::author_of(&request), Rpc::AdminRemove, About::Nothing)?;
        let passed_on = was_passed_on(&request);
        let message = request.into_inner();
        if !message.accept_lower_tolerance && message.replace_with.is_none() {
            self.keeps_tolerance(message.id)?;
        }
        match self.0.consensus.remove(message.id, message.replace_with).await {
            Ok(()) => {
                machines::suspend_removed(&self.0, message.id).await;
                Ok(Response::new(self.members()))
            }
            Err(error) => self.leader(&error, passed_on)?.remove(pass_on(message)).boxed().await,
        }
    }

    async fn reset_clock(
        &self,
        request: Request<v1::ResetClockRequest>,
    ) -> Result<Response<v1::ResetClockReply>, Status> {
        let author = auth::author_of(&request);
        let mut reply = v1::ResetClockReply::default();
        loop {
            let (done, _) = self.0.decide(&author, Command::ResetClock).await?;
            let Done::ClockReset { ahead_ms, corrected, more } = done else {
                return Err(Status::internal(format!("the reset was answered {done:?}")));
            };
            reply.ahead_ms = reply.ahead_ms.max(ahead_ms);
            reply.corrected += u64::from(corrected);
            if !more {
                tracing::warn!(reply.ahead_ms, reply.corrected, "an operator set the time of the cluster back");
                return Ok(Response::new(reply));
            }
        }
    }

    type CopyStateStream = BoxStream<'static, Result<v1::CopyStatePart, Status>>;

    async fn copy_state(
        &self,
        request: Request<v1::CopyStateRequest>,
    ) -> Result<Response<Self::CopyStateStream>, Status> {
        let (author, request) = auth::split(request);
        state_copy::copy_state(&self.0, &author, request).await.map(Response::new)
    }

    type CopyHistoryStream = BoxStream<'static, Result<v1::CopyHistoryPart, Status>>;

    async fn copy_history(
        &self,
        request: Request<v1::CopyHistoryRequest>,
    ) -> Result<Response<Self::CopyHistoryStream>, Status> {
        let (author, request) = auth::split(request);
        history_copy::copy_history(&self.0, &author, request).await.map(Response::new)
    }

    async fn bootstrap(&self, request: Request<v1::BootstrapRequest>) -> Result<Response<v1::MembershipReply>, Status> {
        self.0.allow(&auth::author_of(&request), Rpc::AdminBootstrap, About::Nothing)?;
        let wire = request.into_inner().members;
        let mut faults = Vec::new();
        if wire.is_empty() || wire.len() > BOOTSTRAP_MEMBERS_MAX {
            let problem = format!("has {} members", wire.len());
            faults.push(FieldError::new("members", problem, "name 1, 3 or 5 voters, this node among them"));
        }
        let mut members = BTreeMap::new();
        for (index, member) in wire.into_iter().take(BOOTSTRAP_MEMBERS_MAX).enumerate() {
            let prefix = format!("members[{index}]");
            if let Err(fault) = check_member(&prefix, member.id, &member.address) {
                faults.push(fault);
            } else if members.insert(member.id, member.address).is_some() {
                faults.push(FieldError::new(format!("{prefix}.id"), "is given twice", "give each node its own id"));
            }
        }
        if !faults.is_empty() {
            return Err(refusal::fields(&faults));
        }
        self.0.consensus.bootstrap(members).await.map_err(|error| refusal::admin(&error))?;
        Ok(Response::new(self.members()))
    }
}

fn check_member(prefix: &str, id: u64, address: &str) -> Result<(), FieldError> {
    let field = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
    if id == 0 {
        return Err(FieldError::new(
            field("id"),
            "is 0",
            "give a number of 1 or more that was never used in this cluster",
        ));
    }
    let port = address.rsplit_once(':').and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
    if port.is_none_or(|port| port == 0) {
        let problem = format!("{:?} is not HOST:PORT", address.chars().take(60).collect::<String>());
        return Err(FieldError::new(
            field("address"),
            problem,
            "give the host and port at which the other control nodes reach it",
        ));
    }
    Ok(())
}
