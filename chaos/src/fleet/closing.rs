//! Closes the cluster of a run in which people log in: with a session of a control node's machine, as an operator who sets up a cluster does.
//!
//! What must stay true: when this returns, every client has been given for good what its calls need, and whoever proves nothing may do nothing.

use super::client::{ANSWER_MAX, Client};
use super::provider::GROUP;
use super::servers::Servers;
use muster_proto::v1::auth_client::AuthClient;
use muster_proto::v1::{GrantRequest, SecureRequest};
use muster_runtime::Channel;
use std::future::Future;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Response, Status};

/// The cluster has just been made, and nothing goes wrong yet.
const CLOSED_WITHIN: Duration = Duration::from_secs(60);
const TRY_AGAIN: Duration = Duration::from_millis(300);

/// See the module.
pub(super) async fn close(servers: &Servers, clients: &[Client]) -> Result<(), String> {
    if servers.provider.is_none() {
        return Ok(());
    }
    let closing = timeout(CLOSED_WITHIN, close_with(servers, clients));
    closing.await.map_err(|_| "the cluster could not be closed".to_owned())?;
    servers.history().sessions.closed = true;
    Ok(())
}

async fn close_with(servers: &Servers, clients: &[Client]) {
    let session = loop {
        // Sessions need a feature level that the leader raises a moment after the start.
        if let Some(session) = servers.recovery_session("recovery").await {
            break session;
        }
        sleep(TRY_AGAIN).await;
    };
    let bearer = MetadataValue::try_from(format!("Bearer {session}")).expect("a session is ASCII");
    let of_users = clients.iter().filter_map(|client| Some((format!("user:{}", client.user()?), "admin")));
    let of_group = ["operator", "auditor"].map(|role| (format!("group:{GROUP}"), role));
    for (subject, role) in of_users.chain(of_group) {
        let grant = GrantRequest { subject, role: role.to_owned(), ..GrantRequest::default() };
        until_done(&clients[0], |channel| {
            let request = under(&bearer, grant.clone());
            async move { AuthClient::new(channel).grant(request).await }
        })
        .await;
    }
    until_done(&clients[0], |channel| {
        let request = under(&bearer, SecureRequest { access: "closed".to_owned() });
        async move { AuthClient::new(channel).secure(request).await }
    })
    .await;
}

fn under<T>(bearer: &MetadataValue<Ascii>, call: T) -> Request<T> {
    let mut request = Request::new(call);
    request.metadata_mut().insert("authorization", bearer.clone());
    request
}

/// Calls until it is answered: to give the same right twice, or to close a closed cluster, changes nothing.
async fn until_done<T, F: Future<Output = Result<Response<T>, Status>>>(client: &Client, call: impl Fn(Channel) -> F) {
    while !matches!(timeout(ANSWER_MAX, call(client.channel())).await, Ok(Ok(_))) {
        sleep(TRY_AGAIN).await;
    }
}
