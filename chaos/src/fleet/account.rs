//! A person's account at the identity provider, and their session with the cluster. Every call carries the session; when it has ended, or is about
//! to, they log in again.
//!
//! What must stay true: a session that has ended is still sent, so that control nodes have to refuse it. A token is sent until it made a session or
//! did not hold. Every login and every call that was refused for want of a session is in the record.

use super::provider::{IdToken, Provider};
use super::recorder::Seen;
use super::servers::{Servers, VOTERS};
use crate::history::{History, Login, LoginAnswer, Refusal};
use http::HeaderValue;
use http::header::AUTHORIZATION;
use muster_model::ids::Revision;
use muster_proto::v1::auth_client::AuthClient;
use muster_proto::v1::{LoginReply, LoginRequest};
use muster_runtime::sim::SimWorld;
use muster_runtime::{Chance, Channel, Expect, Host};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};
use tower::{Service, ServiceExt, service_fn};

/// How long a login may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Between two looks at whether a login is due.
const LOOK_MS: (u64, u64) = (100, 800);
/// Some log in so long before their session ends, others so long after it.
const EARLY_MS: u64 = 3_000;
/// The cluster's time may be so far ahead of the right one.
const AHEAD_MS: u64 = 1_500;

/// See the module.
pub(super) struct Account {
    user: String,
    host: Host,
    expect: Expect,
    chance: Chance,
    world: SimWorld,
    provider: Arc<Provider>,
    history: Seen,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<Session>,
    /// A token that has made no session yet.
    token: Option<IdToken>,
    /// The right time at which the next login is due.
    due_ms: u64,
}

#[derive(Clone)]
struct Session {
    number: u64,
    /// What is sent.
    bearer: HeaderValue,
    /// When it ends, as the reply said.
    expires_ms: u64,
}

/// A replica before a call: its place in the record and its life, and what it has applied.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Replica {
    record: usize,
    applied: Revision,
}

impl Account {
    /// The account of a host's only user, in a run with an identity provider.
    pub(super) fn of(servers: &Servers, host: &Host) -> Option<Arc<Account>> {
        let provider = Arc::clone(servers.provider.as_ref()?);
        Some(Arc::new(Account {
            user: host.name.clone(),
            host: host.clone(),
            expect: servers.identities.expect(),
            chance: provider.chance(),
            world: servers.world.clone(),
            provider,
            history: servers.history.clone(),
            state: Mutex::default(),
        }))
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// The number of the session that calls carry now.
    pub(super) fn session(&self) -> Option<u64> {
        self.state().session.as_ref().map(|session| session.number)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it was held")
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no panic while it was held")
    }

    fn dial(&self, endpoint: &str) -> Channel {
        self.host.net.dial(endpoint, self.expect).expect("an endpoint")
    }

    /// A channel whose calls carry the session of now.
    pub(super) fn channel(self: &Arc<Self>, endpoint: &'static str) -> Channel {
        let (account, channel, session) = (Arc::clone(self), self.dial(endpoint), self.state().session.clone());
        let send = move |mut request: http::Request<tonic::body::Body>| {
            let (account, mut channel, session) = (Arc::clone(&account), channel.clone(), session.clone());
            async move {
                if let Some(session) = &session {
                    request.headers_mut().insert(AUTHORIZATION, session.bearer.clone());
                }
                let before = account.replica(endpoint);
                let response = channel.ready().await?.call(request).await?;
                let status = Status::from_header_map(response.headers());
                if let Some(status) = status.filter(|status| status.code() == Code::Unauthenticated) {
                    account.refused(endpoint, before, session.as_ref(), &status);
                }
                Ok(response)
            }
        };
        Channel::new(service_fn(send))
    }

    /// The replica behind an endpoint, while its life is observed.
    fn replica(&self, endpoint: &str) -> Option<Replica> {
        let name = endpoint.split(':').next().unwrap_or_default();
        let life = self.world.life_of(name)?;
        let history = self.history();
        let (record, found) = history.replicas.iter().enumerate().rfind(|(_, record)| record.name == name)?;
        let applied = found.revisions.last().copied().unwrap_or_default().max(found.after);
        (found.life == life).then_some(Replica { record, applied })
    }

    /// A call was answered UNAUTHENTICATED.
    fn refused(&self, endpoint: &str, before: Option<Replica>, session: Option<&Session>, status: &Status) {
        let wall_ms = self.world.wall_ms();
        let now = self.replica(endpoint);
        let same = before.filter(|before| now.is_some_and(|now| now.record == before.record));
        self.history().sessions.refusals.push(Refusal {
            session: session.map(|session| session.number),
            through: endpoint.to_owned(),
            applied: same.map(|replica| replica.applied),
            wall_ms,
            provider: self.provider.then(),
            why: status.message().to_owned(),
        });
        let mut state = self.state();
        let current = state.session.as_ref().map(|session| session.number);
        // A node that lags behind may not know a new session yet.
        if session.is_some_and(|sent| current == Some(sent.number) && wall_ms + AHEAD_MS >= sent.expires_ms) {
            state.due_ms = 0;
        }
    }

    /// Logs in whenever that is due, for ever.
    pub(super) async fn stay_logged_in(&self) {
        loop {
            let due = self.world.wall_ms() >= self.state().due_ms;
            if due && let Some(token) = self.take_token() {
                self.log_in(token).await;
            }
            sleep(Duration::from_millis(self.chance.between(LOOK_MS.0, LOOK_MS.1))).await;
        }
    }

    /// A new token of the provider, or while it is away an earlier one, if there is one left.
    fn take_token(&self) -> Option<IdToken> {
        let new = self.provider.token(&self.user);
        let old = self.state().token.take();
        new.or(old)
    }

    async fn log_in(&self, token: IdToken) {
        let (_, _, endpoint) = VOTERS[self.chance.between(0, VOTERS.len() as u64) as usize];
        let before = self.provider.then();
        let call = LoginRequest { id_token: token.text.clone(), nonce: String::new() };
        let mut client = AuthClient::new(self.dial(endpoint));
        let answer = match timeout(ANSWER_MAX, client.login(call)).await {
            Ok(Ok(reply)) => Some(self.enter(reply.into_inner())),
            Ok(Err(status)) if status.code() == Code::Unauthenticated => {
                Some(LoginAnswer::NotTaken { why: status.message().to_owned() })
            }
            Ok(Err(status)) if status.code() == Code::Unavailable && status.message().contains("identity provider") => {
                Some(LoginAnswer::ProviderAway)
            }
            Ok(Err(_)) | Err(_) => None,
        };
        self.world.note(format_args!("login of {} at {endpoint}: {answer:?}", self.user));
        let key = token.key;
        if matches!(answer, None | Some(LoginAnswer::ProviderAway)) {
            self.state().token.get_or_insert(token);
        }
        if let Some(answer) = answer {
            let (user, after) = (self.user.clone(), self.provider.then());
            self.history().sessions.logins.push(Login { user, key, before, after, answer });
        }
    }

    /// Takes over a session. Some people have a token left for the next login, which then needs no provider.
    fn enter(&self, reply: LoginReply) -> LoginAnswer {
        let number = reply.token.split('_').nth(1).and_then(|number| number.parse().ok());
        let number = number.expect("the text of a session has its number");
        let bearer = HeaderValue::try_from(format!("Bearer {}", reply.token)).expect("a session is ASCII");
        let expires_ms = reply.expires_ms;
        let late_ms = self.chance.between(0, 2 * EARLY_MS);
        let spare = if self.chance.between(0, 3) > 0 { self.provider.token(&self.user) } else { None };
        let mut state = self.state();
        state.session = Some(Session { number, bearer, expires_ms });
        state.due_ms = (expires_ms + late_ms).saturating_sub(EARLY_MS);
        if spare.is_some() {
            state.token = spare;
        }
        LoginAnswer::Made { session: number, expires_ms }
    }
}
