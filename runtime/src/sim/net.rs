//! The simulated network: a call runs the other host's routes in this process, in that host's tasks, over links that delay, lose and
//! cut.
//!
//! What must stay true: a call to a host that is down, or that goes down, fails and never hangs for ever; a crash kills the
//! handlers of the host; a caller that lets go makes the handler let go; `grpc-timeout` is kept as the real client keeps it; a channel that
//! expects a machine carries nothing before both sides have accepted each other.

use super::handshake::{Met, can_meet, meet};
use super::links::{DEAD_AFTER, Fate};
use super::network::{Listener, Network};
use super::pipe::{Link, PipedBody, pipe, pump, reset, timed_out};
use super::trust::TrustCell;
use crate::host::TaskGroup;
use crate::net::{Admission, CallError, Channel, Expect, Net, NetError, Peer, Serving};
use crate::pki::Credentials;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Status, TimeoutExpired};
use tower::{Service, ServiceExt};

type Request = http::Request<Body>;
type Response = http::Response<Body>;

/// The network as one life of one host sees it.
pub(super) struct SimNet {
    pub(super) network: Arc<Network>,
    pub(super) host: String,
    pub(super) tasks: TaskGroup,
    pub(super) trust: Arc<TrustCell>,
}

/// Addresses that mean the host itself.
fn is_here(name: &str) -> bool {
    matches!(name, "0.0.0.0" | "127.0.0.1" | "localhost" | "[::]" | "[::1]")
}

fn parse(endpoint: &str) -> Result<(&str, u16), NetError> {
    let bad = || NetError::BadEndpoint { endpoint: endpoint.to_owned() };
    let (name, port) = endpoint.rsplit_once(':').ok_or_else(bad)?;
    if name.is_empty() || name.contains('/') {
        return Err(bad());
    }
    Ok((name, port.parse().map_err(|_| bad())?))
}

impl Net for SimNet {
    fn dial(&self, endpoint: &str, expect: Expect) -> Result<Channel, NetError> {
        let (name, port) = parse(endpoint)?;
        let to = if is_here(name) { self.host.clone() } else { name.to_owned() };
        let link = Link { network: self.network.clone(), from: self.host.clone(), to };
        let (tasks, trust) = (self.tasks.clone(), Arc::clone(&self.trust));
        Ok(Channel::new(SimChannel { link, port, tasks, trust, expect, connected: Arc::default() }))
    }

    fn is_refused(&self, endpoint: &str) -> BoxFuture<'static, bool> {
        let Ok((name, port)) = parse(endpoint) else { return futures::future::ready(false).boxed() };
        let to = if is_here(name) { self.host.clone() } else { name.to_owned() };
        let link = Link { network: self.network.clone(), from: self.host.clone(), to };
        async move {
            let Fate::Arrives(there) = link.fate() else { return false };
            pause(there).await;
            if !link.passes().await || link.network.endpoint(&link.to, port).is_some() {
                return false;
            }
            let back = link.back();
            let Fate::Arrives(delay) = back.fate() else { return false };
            pause(delay).await;
            back.passes().await
        }
        .boxed()
    }

    fn serve(
        &self,
        endpoint: &str,
        routes: tonic::service::Routes,
        admission: Admission,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Serving, NetError>> {
        let listener = Listener {
            routes: routes.prepare(),
            tasks: self.tasks.clone(),
            demand: admission.demand,
            trust: Arc::clone(&self.trust),
            number: self.network.next_number(),
        };
        let served = parse(endpoint).and_then(|(_, port)| self.network.listen(&self.host, port, listener));
        let port = match served {
            Ok(port) => port,
            Err(error) => return futures::future::ready(Err(error)).boxed(),
        };
        let (network, host) = (self.network.clone(), self.host.clone());
        let endpoint = format!("{host}:{port}");
        let serving = self.tasks.spawn(async move {
            stop.cancelled().await;
            network.unlisten(&host, port);
        });
        let ended = serving.map(|_| ()).boxed();
        futures::future::ready(Ok(Serving { endpoint, ended })).boxed()
    }

    fn set_credentials(&self, credentials: Option<Credentials>) -> Result<(), NetError> {
        self.trust.set(self.network.next_number(), credentials);
        Ok(())
    }

    fn credentials(&self) -> Option<Arc<Credentials>> {
        self.trust.credentials()
    }
}

#[derive(Clone)]
struct SimChannel {
    link: Link,
    port: u16,
    tasks: TaskGroup,
    trust: Arc<TrustCell>,
    expect: Expect,
    /// Of a channel that expects a machine: its connection.
    connected: Arc<tokio::sync::Mutex<Option<Connected>>>,
}

/// A connection after its handshake.
struct Connected {
    /// With whom.
    listener: u64,
    /// Under which credentials of this side.
    trust: Option<u64>,
    /// Who is on this side, as the other one sees it.
    peer: Peer,
}

impl Service<Request> for SimChannel {
    type Response = Response;
    type Error = CallError;
    type Future = BoxFuture<'static, Result<Response, CallError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let channel = self.clone();
        async move {
            let limit = grpc_timeout(&request);
            let call = channel.call_over_link(request);
            match limit {
                None => call.await,
                Some(limit) => {
                    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(CallError::new(TimeoutExpired(()))))
                }
            }
        }
        .boxed()
    }
}

/// What a handler gives back: the head, the body still under way, and when the head arrives.
struct Answer {
    head: http::response::Parts,
    body: PipedBody,
    arrives: Instant,
    /// The answer is lost; whoever waits learns when it would have arrived.
    lost: bool,
}

impl SimChannel {
    /// Who is on this side, as the other one sees it; shakes hands first where the connection is new.
    async fn peer(&self) -> Result<Peer, CallError> {
        let Link { network, from, to } = &self.link;
        if self.expect == Expect::Plain {
            return Ok(Peer { identity: None, from: from.as_str().into() });
        }
        let mut connected = self.connected.lock().await;
        let trust = self.trust.number();
        let current = network.endpoint(to, self.port);
        if let (Some(connected), Some(current)) = (&*connected, &current)
            && connected.listener == current.number
            && connected.trust == trust
        {
            return Ok(connected.peer.clone());
        }
        *connected = None;
        for link in [&self.link, &self.link.back()] {
            match link.fate() {
                Fate::Arrives(delay) => pause(delay).await,
                Fate::Breaks(delay) => {
                    pause(delay).await;
                    return Err(CallError::new(reset()));
                }
            }
            if !link.passes().await {
                return Err(CallError::new(timed_out()));
            }
        }
        let listener = network.endpoint(to, self.port).ok_or_else(|| CallError::new(self.refused()))?;
        let place = format!("{to}:{}", self.port);
        let met = meet(&self.trust, from, &place, self.expect, &listener);
        let Met { peer, resumed } = met.map_err(|status| {
            network.event(format_args!("no handshake {from} > {place}: {}", status.message()));
            CallError::new(status)
        })?;
        network.event(format_args!("handshake {from} > {place} {}", if resumed { "resumed" } else { "full" }));
        *connected = Some(Connected { listener: listener.number, trust, peer: peer.clone() });
        Ok(peer)
    }

    fn refused(&self) -> Status {
        let Link { network, from, to } = &self.link;
        network.event(format_args!("refused {from} > {to}:{}", self.port));
        Status::unavailable(format!("{to}:{}: connection refused", self.port))
    }

    /// Makes the call; a connection on which one broke is not used again.
    async fn call_over_link(self, request: Request) -> Result<Response, CallError> {
        let peer = self.peer().await?;
        let connected = Arc::clone(&self.connected);
        let is_plain = self.expect == Expect::Plain;
        let answer = self.call_as(peer, request).await;
        if answer.is_err() && !is_plain {
            *connected.lock().await = None;
        }
        answer
    }

    async fn call_as(self, peer: Peer, request: Request) -> Result<Response, CallError> {
        let Link { network, from, to } = &self.link;
        network.event(format_args!("call {from} > {to}:{} {}", self.port, request.uri().path()));
        let (mut head, body) = request.into_parts();
        head.extensions.insert(peer);
        let (piped, mut rest) = pipe(body);
        let carried = self.link.carry(piped.bytes());
        match self.link.fate() {
            Fate::Arrives(delay) => pause(delay + carried).await,
            Fate::Breaks(delay) => {
                pause(delay).await;
                network.event(format_args!("lost {from} > {to}"));
                return Err(CallError::new(reset()));
            }
        }
        if !self.link.passes().await {
            return Err(CallError::new(timed_out()));
        }
        let Some(listener) = network.endpoint(to, self.port) else {
            return Err(CallError::new(self.refused()));
        };
        if !can_meet(self.expect, &listener.demand) {
            return Err(CallError::new(Status::unavailable("one side speaks in clear text, the other one TLS")));
        }
        let (routes, there) = (listener.routes, listener.tasks);
        if let Some(after) = network.links.repeat(from, to)
            && let Some(copy) = piped.copy(rest.as_mut())
        {
            network.event(format_args!("repeat {from} > {to} {} after {after:?}", head.uri.path()));
            there.spawn(handle_again(routes.clone(), Request::from_parts(head.clone(), Body::new(copy)), after));
        }
        if let Some(rest) = rest {
            self.tasks.spawn(pump(rest, self.link.clone(), Instant::now()));
        }
        let request = Request::from_parts(head, Body::new(piped));
        let (answer, answered) = oneshot::channel();
        there.spawn(handle(routes, request, self.link.back(), answer));
        let answer = tokio::select! {
            biased;
            answer = answered => answer.map_err(|_| CallError::new(reset()))?,
            () = self.link.dead() => return Err(CallError::new(timed_out())),
        };
        pause(answer.arrives - Instant::now()).await;
        if answer.lost {
            network.event(format_args!("lost answer {to} > {from}"));
            return Err(CallError::new(reset()));
        }
        if !self.link.back().passes().await {
            return Err(CallError::new(timed_out()));
        }
        Ok(Response::from_parts(answer.head, Body::new(answer.body)))
    }
}

/// Runs in the host that is called: the handler, and then the body of what it answers.
async fn handle(routes: tonic::service::Routes, request: Request, back: Link, mut answer: oneshot::Sender<Answer>) {
    let response = tokio::select! {
        biased;
        () = answer.closed() => return,
        response = routes.oneshot(request) => response,
    };
    let Ok(response) = response;
    let (head, body) = response.into_parts();
    let (piped, rest) = pipe(body);
    let (delay, lost) = match back.fate() {
        Fate::Arrives(delay) => (delay + back.carry(piped.bytes()), false),
        Fate::Breaks(delay) => (delay, true),
    };
    let arrives = Instant::now() + delay;
    if answer.send(Answer { head, body: piped, arrives, lost }).is_ok()
        && !lost
        && let Some(rest) = rest
    {
        pump(rest, back, arrives).await;
    }
}

/// A call that arrives again, when nobody waits for its answer: what is answered is read for a while and thrown away.
async fn handle_again(routes: tonic::service::Routes, request: Request, after: Duration) {
    tokio::time::sleep(after).await;
    let answered = async move {
        let Ok(response) = routes.oneshot(request).await;
        let mut body = response.into_body();
        while let Some(Ok(_)) = body.frame().await {}
    };
    // Then keep-alive finds that nobody is there. Too late is as good as answered.
    let _ = tokio::time::timeout(DEAD_AFTER, answered).await;
}

/// The caller's own limit, as the gRPC specification writes it: up to eight digits and a unit.
fn grpc_timeout(request: &Request) -> Option<Duration> {
    let text = request.headers().get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Sleeps, but not at all for nothing: even an empty sleep costs a tick of the timer.
async fn pause(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}
