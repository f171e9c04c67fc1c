//! Closing a new development cluster: its user gets every role, and from then on each call is judged.
//!
//! What must stay true: it is done once, when the cluster is new; an operator who opens it again finds it open after a restart.

use crate::client::Client;
use crate::failure::Failure;
use muster_proto::v1;
use muster_proto::v1::auth_client::AuthClient;

/// What the user of a cluster on their own machine may do: everything.
const ROLES: [&str; 3] = ["admin", "operator", "auditor"];

/// Gives the roles to whoever calls, and closes the cluster.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub(super) async fn close(client: &Client) -> Result<(), Failure> {
    let ask = |channel| async move { AuthClient::new(channel).who_am_i(v1::WhoAmIRequest {}).await };
    let me = client.call("ask who you are", ask).await?.principal;
    for role in ROLES {
        let request = v1::GrantRequest {
            subject: me.clone(),
            role: role.to_owned(),
            reason: "muster dev".to_owned(),
            ..v1::GrantRequest::default()
        };
        let ask = |channel| {
            let request = request.clone();
            async move { AuthClient::new(channel).grant(request).await }
        };
        client.call("grant", ask).await?;
    }
    let ask = |channel| async move {
        AuthClient::new(channel).secure(v1::SecureRequest { access: "closed".to_owned() }).await
    };
    client.call("close the cluster", ask).await.map(drop)
}
