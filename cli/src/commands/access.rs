//! `muster whoami`, `logout`, `sessions`, `token`, `grant`, `access`.

use crate::args::access::{Access, Grant, Recover, Sessions, Token};
use crate::commands::Context;
use crate::failure::Failure;
use crate::recovery;
use crate::view::access::{CredentialView, GrantView, WhoAmIView, credentials, grants};
use muster_proto::v1;
use muster_proto::v1::auth_client::AuthClient;

/// Who the caller is.
///
/// # Errors
/// That the cluster stays away.
pub async fn who_am_i(context: &Context) -> Result<(), Failure> {
    let ask = |channel| async move { AuthClient::new(channel).who_am_i(v1::WhoAmIRequest {}).await };
    let view = WhoAmIView::new(context.client.call("ask who you are", ask).await?);
    context.out.show(&view, |_| view.blocks())
}

/// Ends the caller's session.
///
/// # Errors
/// That there is none, or that the cluster stays away.
pub async fn logout(context: &Context) -> Result<(), Failure> {
    let ask = |channel| async move { AuthClient::new(channel).logout(v1::LogoutRequest {}).await };
    context.client.call("log out", ask).await?;
    context.out.line("logged out: the session has ended")
}

/// An admin session, from a control node on this machine.
///
/// # Errors
/// That no control node runs there, or that it refuses.
pub async fn recover(context: &Context, args: &Recover) -> Result<(), Failure> {
    let token = recovery::session(&args.data, &args.user).await.map_err(Failure::Role)?;
    context.out.line(&token)
}

/// Sessions.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn sessions(context: &Context, args: &Sessions) -> Result<(), Failure> {
    let request = v1::ListSessionsRequest { all: args.all, consistency: context.consistency.into() };
    let ask = |channel| async move { AuthClient::new(channel).list_sessions(request).await };
    let reply: v1::ListSessionsReply = context.client.call("list sessions", ask).await?;
    let views: Vec<CredentialView> = reply.sessions.into_iter().map(Into::into).collect();
    context.out.show(&views, |_| credentials(&views))
}

/// Tokens of services.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn token(context: &Context, command: &Token) -> Result<(), Failure> {
    match command {
        Token::Create { service, role, ttl, from, note } => {
            let request = v1::CreateTokenRequest {
                service: service.clone(),
                role: role.clone(),
                ttl_s: ttl.0,
                from: from.clone(),
                note: note.clone(),
            };
            let ask = |channel| {
                let request = request.clone();
                async move { AuthClient::new(channel).create_token(request).await }
            };
            // A call that is repeated makes a second token; the first is known to nobody, and ends at its time.
            let reply: v1::CreateTokenReply = context.client.call("create a token", ask).await?;
            context.out.line(&reply.token)
        }
        Token::List { tenant } => {
            let request = v1::ListTokensRequest { under: tenant.clone(), consistency: context.consistency.into() };
            let ask = |channel| {
                let request = request.clone();
                async move { AuthClient::new(channel).list_tokens(request).await }
            };
            let reply: v1::ListTokensReply = context.client.call("list tokens", ask).await?;
            let views: Vec<CredentialView> = reply.tokens.into_iter().map(Into::into).collect();
            context.out.show(&views, |_| credentials(&views))
        }
        Token::Revoke { id } => {
            let request = v1::RevokeRequest { id: *id };
            let ask = |channel| async move { AuthClient::new(channel).revoke(request).await };
            context.client.call("revoke", ask).await?;
            context.out.line(&format!("{id} revoked"))
        }
    }
}

/// Rights.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn grant(context: &Context, command: &Grant) -> Result<(), Failure> {
    match command {
        Grant::Add { subject, role, tenant, ttl, reason } => {
            let request = v1::GrantRequest {
                subject: subject.clone(),
                role: role.clone(),
                tenant: tenant.clone(),
                ttl_s: ttl.map_or(0, |ttl| ttl.0),
                reason: reason.clone(),
            };
            let ask = |channel| {
                let request = request.clone();
                async move { AuthClient::new(channel).grant(request).await }
            };
            let reply: v1::GrantReply = context.client.call("grant", ask).await?;
            context.out.line(&format!("grant {}: {subject} is {role}{}", reply.id, at(tenant)))
        }
        Grant::List { tenant, subject } => {
            let list = |channel, page_token| {
                let request = v1::ListGrantsRequest {
                    under: tenant.clone(),
                    subject: subject.clone(),
                    consistency: context.consistency.into(),
                    page_size: 1_000,
                    page_token,
                };
                async move { AuthClient::new(channel).list_grants(request).await }
            };
            let parts = |reply: v1::ListGrantsReply| (reply.grants, reply.next_page_token);
            let found = context.client.all_pages("list grants", list, parts).await?;
            let views: Vec<GrantView> = found.into_iter().map(Into::into).collect();
            context.out.show(&views, |_| grants(&views))
        }
        Grant::Revoke { id } => {
            let request = v1::RevokeGrantRequest { id: *id };
            let ask = |channel| async move { AuthClient::new(channel).revoke_grant(request).await };
            context.client.call("revoke a grant", ask).await?;
            context.out.line(&format!("grant {id} revoked"))
        }
    }
}

fn at(tenant: &str) -> String {
    if tenant.is_empty() { String::new() } else { format!(" on {tenant}") }
}

/// Whether the cluster asks who calls.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn access(context: &Context, command: &Access) -> Result<(), Failure> {
    let (access, told) = match command {
        Access::Close => ("closed", "the cluster is closed: every call is judged by grants"),
        Access::Open => ("open", "the cluster is open: whoever reaches a port may do everything"),
    };
    let request = v1::SecureRequest { access: access.to_owned() };
    let ask = |channel| {
        let request = request.clone();
        async move { AuthClient::new(channel).secure(request).await }
    };
    context.client.call("change access", ask).await?;
    context.out.line(told)
}
