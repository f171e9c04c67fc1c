//! `muster.v1.Secrets`: secrets of tenants.
//!
//! What must stay true: a value is sealed before anything else sees it, and no call gives it back.

use super::App;
use crate::api::{auth, refusal};
use crate::secrets::{self, Keys, Of, SecretError};
use muster_control_core::authz::{About, Allowed, Ask};
use muster_control_core::{Command, State};
use muster_model::Rpc;
use muster_model::identity::Secret;
use muster_proto::v1;
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct SecretsService(pub(crate) App);

#[tonic::async_trait]
impl v1::secrets_server::Secrets for SecretsService {
    async fn put(&self, request: Request<v1::PutSecretRequest>) -> Result<Response<v1::PutSecretReply>, Status> {
        let (author, v1::PutSecretRequest { tenant: at, name, value }) = auth::split(request);
        self.0.allow(&author, Rpc::SecretsPut, About::Tenant(&at))?;
        if let Some(problem) = secrets::fault_of(&value) {
            return Err(refusal::field("value", problem, "use a text of 1 to 4,096 bytes without NUL bytes"));
        }
        let (tenant, cluster) =
            self.0.consensus.read(|state, _| (state.index().tenant_ids.get(at.as_str()).copied(), state.meta.cluster));
        let tenant = tenant.ok_or_else(|| refusal::reject(&muster_control_core::Reject::not_found("tenant", &at)))?;
        let host = &self.0.host;
        let sealed = Keys::of(host)
            .and_then(|keys| keys.seal(secrets::nonce(host), &Of { cluster, tenant, name: &name }, &value))
            .map_err(|error| unsealed(&error))?;
        let command = Command::PutSecret { at, tenant, name, sealed };
        let (_, revision) = self.0.decide(&author, command).await?;
        Ok(Response::new(v1::PutSecretReply { revision: revision.0 }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteSecretRequest>,
    ) -> Result<Response<v1::DeleteSecretReply>, Status> {
        let (author, v1::DeleteSecretRequest { tenant, name }) = auth::split(request);
        let (_, revision) = self.0.decide(&author, Command::DeleteSecret { at: tenant, name }).await?;
        Ok(Response::new(v1::DeleteSecretReply { revision: revision.0 }))
    }

    async fn list(&self, request: Request<v1::ListSecretsRequest>) -> Result<Response<v1::ListSecretsReply>, Status> {
        let (author, v1::ListSecretsRequest { tenant: at, consistency }) = auth::split(request);
        let look = |state: &State, revision, _: &Allowed| {
            let tenant = state.index().tenant_ids.get(at.as_str()).copied();
            let own = tenant.into_iter().flat_map(|tenant| state.secrets_of(tenant));
            (tenant.is_some(), own.map(view).collect(), revision)
        };
        let ask = Ask { rpc: Rpc::SecretsList, about: About::Tenant(&at) };
        let (is_there, secrets, revision): (bool, _, muster_model::Revision) =
            self.0.look(&author, ask, consistency, look).await?;
        if !is_there {
            return Err(refusal::reject(&muster_control_core::Reject::not_found("tenant", &at)));
        }
        Ok(Response::new(v1::ListSecretsReply { secrets, revision: revision.0 }))
    }
}

fn view(secret: &Secret) -> v1::SecretView {
    v1::SecretView {
        name: secret.name.clone(),
        by: secret.by.to_string(),
        since_ms: secret.since_ms,
        key: secrets::digits(&secret.sealed.key),
    }
}

fn unsealed(error: &SecretError) -> Status {
    tracing::warn!(%error, "a secret is not sealed");
    Status::failed_precondition(error.to_string())
}
