//! Who calls: found out once for every call, before any handler sees it.
//!
//! The layer looks up the call's path, proves who makes it from what was sent with it, and leaves an [`Author`] with the request. Handlers read that with
//! [`split`], and never look at metadata themselves. Calls of machines are made by whom the certificate of the connection names, other calls by whom the
//! authorization header proves; control nodes pass calls of people on to each other. What must stay true: a path that is no method of this version is refused, and so is a credential that
//! does not hold, whatever it asks for; a node that is behind refuses no credential that it has not heard of; secrets are compared by their hashes, in constant time.

use super::rates::Callers;
use super::{credential_text, refusal};
use crate::consensus::Consensus;
use crate::denials::Denials;
use crate::identities::{principal_of, shown_by};
use futures::future::{Either, Ready, ready};
use http::{Request, Response, header};
use muster_control_core::State;
use muster_control_core::authz::{About, Ask, Denied, Shown, authorize, is_of_machines, is_pinned};
use muster_model::identity::Author;
use muster_model::object::Number;
use muster_model::{AccessMode, Principal, Rpc};
use muster_runtime::Peer;
use muster_runtime::pki::PeerIdentity;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::codegen::http;
use tower::{Layer, Service};

/// Services of other packages that are served to everybody: whether this node is well, and what the API looks like.
const OPEN: [&str; 2] = ["/grpc.health.", "/grpc.reflection."];
/// Characters of an address range.
const BITS_MAX: u32 = 128;

/// What whoever shows a session or token is told that this node has not heard of.
const NOT_YET: &str = "this control node has not heard of the session or token: it is behind, or the token is of another cluster; ask another control node";

/// Why a caller is not known.
enum NotKnown {
    Denied(Denied),
    /// The session or token may be newer than what this node has applied.
    NotYet,
}

impl From<Denied> for NotKnown {
    fn from(denied: Denied) -> Self {
        NotKnown::Denied(denied)
    }
}

/// Puts services behind the check.
#[derive(Clone)]
pub(crate) struct AuthLayer {
    pub(crate) denials: Denials,
    pub(crate) consensus: Consensus,
    pub(crate) callers: Arc<Callers>,
}

impl<S> Layer<S> for AuthLayer {
    type Service = Auth<S>;

    fn layer(&self, inner: S) -> Auth<S> {
        Auth {
            denials: self.denials.clone(),
            consensus: self.consensus.clone(),
            callers: Arc::clone(&self.callers),
            inner,
        }
    }
}

/// A service behind the check.
#[derive(Clone)]
pub(crate) struct Auth<S> {
    denials: Denials,
    consensus: Consensus,
    callers: Arc<Callers>,
    inner: S,
}

impl<S, B> Service<Request<B>> for Auth<S>
where
    S: Service<Request<B>, Response = Response<axum::body::Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        if OPEN.iter().any(|open| path.starts_with(open)) {
            return Either::Left(self.inner.call(request));
        }
        let Some(rpc) = muster_proto::rpc(path) else {
            let why = format!("{path} is no method of this version of muster");
            return Either::Right(ready(Ok(Status::unimplemented(why).into_http())));
        };
        let machine = machine_of(&request);
        let from = from(&request);
        match author(&self.consensus, rpc, machine.as_deref(), &from, request.headers()) {
            Ok(author) => {
                // Machines are not held up: a control node must answer for its term, an agent for its tasks.
                let counted = if is_of_machines(rpc) { Ok(()) } else { self.count(&author) };
                if let Err(wait_ms) = counted {
                    return Either::Right(ready(Ok(refusal::too_often(&author.principal, wait_ms).into_http())));
                }
                request.extensions_mut().insert(author);
                Either::Left(self.inner.call(request))
            }
            Err(NotKnown::NotYet) => {
                let author = Author { from, ..Author::default() };
                self.denials.note(&author, rpc.name(), format!("not answered: {NOT_YET}"));
                Either::Right(ready(Ok(refusal::unavailable(NOT_YET).into_http())))
            }
            Err(NotKnown::Denied(denied)) => {
                // A machine has proved who it is, whatever it may not.
                let machine = machine.filter(|_| is_of_machines(rpc));
                let principal = machine.map(|machine| principal_of(machine.name.role())).unwrap_or_default();
                let author = Author { principal, from, ..Author::default() };
                self.denials.note(&author, rpc.name(), format!("denied: {denied}"));
                Either::Right(ready(Ok(refusal::denied(&denied).into_http())))
            }
        }
    }
}

impl<S> Auth<S> {
    /// Counts a call of a closed cluster.
    fn count(&self, author: &Author) -> Result<(), u64> {
        let closed = self.consensus.read(|state, _| state.meta.access == AccessMode::Closed);
        if closed { self.callers.count(&author.principal, &author.from, self.consensus.now_ms()) } else { Ok(()) }
    }
}

/// Who calls, and what they ask.
pub(crate) fn split<T>(request: tonic::Request<T>) -> (Author, T) {
    let author = author_of(&request);
    (author, request.into_inner())
}

/// Who calls. Nobody, where the call did not come through the layer.
pub(crate) fn author_of<T>(request: &tonic::Request<T>) -> Author {
    request.extensions().get::<Author>().cloned().unwrap_or_default()
}

/// What the machine at the other end of the connection has proved itself with; none of people and in clear text.
pub(crate) fn shown<T>(request: &tonic::Request<T>) -> Option<Shown> {
    let peer = request.extensions().get::<Peer>()?;
    peer.identity.as_deref().map(shown_by)
}

/// Whether `author`, who has shown that, may do this now: connections outlive a change of keys, and streams the end of rights.
///
/// # Errors
/// [`Denied`].
pub(crate) fn still(
    state: &State,
    now_ms: u64,
    (author, shown): (&Author, Option<&Shown>),
    ask: &Ask<'_>,
) -> Result<(), Denied> {
    shown.map_or(Ok(()), |shown| is_pinned(state, &author.principal, shown, ask.rpc))?;
    authorize(state, now_ms, author, ask).map(drop)
}

fn machine_of<B>(request: &Request<B>) -> Option<Arc<PeerIdentity>> {
    request.extensions().get::<Peer>().and_then(|peer| peer.identity.clone())
}

fn author(
    consensus: &Consensus,
    rpc: Rpc,
    machine: Option<&PeerIdentity>,
    from: &str,
    headers: &http::HeaderMap,
) -> Result<Author, NotKnown> {
    let itself = |machine: &PeerIdentity| Author {
        principal: principal_of(machine.name.role()),
        from: from.to_owned(),
        ..Author::default()
    };
    if let Some(machine) = machine.filter(|_| is_of_machines(rpc)) {
        let author = itself(machine);
        let now_ms = consensus.now_ms();
        // Whether it may make this kind of call; about whom it may make it, its handler judges.
        let ask = Ask { rpc, about: About::Nothing };
        consensus.read(|state, _| still(state, now_ms, (&author, Some(&shown_by(machine))), &ask))?;
        if let Principal::Member(id) = author.principal
            && is_for_members(rpc)
            && !consensus.is_member(id)
        {
            let (who, rpc) = (author.principal.to_string(), rpc.name().to_owned());
            let needs = "a control node that is a member of the cluster".to_owned();
            return Err(NotKnown::Denied(Denied::Forbidden { who, rpc, needs }));
        }
        return Ok(author);
    }
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = sent.next() else {
        // A control node passes on what somebody without credentials has asked; other machines ask for themselves.
        let machine = machine.filter(|machine| machine.name.control_id().is_none());
        let nobody = || Author { from: from.to_owned(), ..Author::default() };
        return Ok(machine.map_or_else(nobody, itself));
    };
    if sent.next().is_some() {
        return Err(unauthenticated("two authorization headers were sent; send one").into());
    }
    let text = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
    let text = text.ok_or_else(|| unauthenticated("the authorization header is not `Bearer TOKEN`"))?;
    let (id, secret) = credential_text::parse(text)
        .ok_or_else(|| unauthenticated("that is no session or token of muster: it was cut, or belongs elsewhere"))?;
    let hash: [u8; 32] = Sha256::digest(secret).into();
    let now_ms = consensus.now_ms();
    let proved = consensus.read(|state, _| {
        // Such a one was made after all that this node has applied.
        prove(state, now_ms, id, &hash, from).map_err(|denied| (denied, id > state.meta.next_credential))
    });
    let principal = proved.map_err(|(denied, is_newer)| match is_newer && !consensus.leads_up_to_date() {
        true => NotKnown::NotYet,
        false => NotKnown::Denied(denied),
    })?;
    Ok(Author { principal, credential: Some(id), from: from.to_owned(), request_sha256: None })
}

/// What a leader, or whoever serves an agent, does for members of the cluster. The calls of consensus itself come from new leaders too, whom a node that is
/// behind does not know yet; the envelope of each says more.
fn is_for_members(rpc: Rpc) -> bool {
    matches!(rpc, Rpc::PeerForward | Rpc::PeerReadIndex | Rpc::PeerRenewLeases | Rpc::PeerLogs)
}

fn from<B>(request: &Request<B>) -> String {
    request.extensions().get::<Peer>().map(|peer| peer.from.to_string()).unwrap_or_default()
}

fn unauthenticated(why: &str) -> Denied {
    Denied::Unauthenticated { why: why.to_owned() }
}

/// Whom credential `id` proves, if that is its secret.
fn prove(state: &State, now_ms: u64, id: u64, hash: &[u8; 32], from: &str) -> Result<Principal, Denied> {
    let ended = || {
        unauthenticated(
            "the session or token does not exist (any more), or its secret is wrong; make one anew: `muster login` (or `muster recover`) for a session, `muster token create` for a token",
        )
    };
    // Whether there is one shows in nothing but time that the lookup takes; its secret shows in none.
    let found = state.credentials.get(&Number(id)).ok_or_else(ended)?;
    if !same(&found.secret_sha256, hash) {
        return Err(ended());
    }
    if now_ms >= found.expires_ms {
        return Err(unauthenticated(
            "the session or token has expired; make one anew: `muster login` (or `muster recover`) for a session, `muster token create` for a token",
        ));
    }
    if !found.from.is_empty() && !found.from.iter().any(|range| contains(range, from)) {
        return Err(unauthenticated("this token is not taken from that address"));
    }
    Ok(found.principal.clone())
}

/// Compares in a time that does not depend on what differs.
fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

/// Whether an address lies in a range such as `10.0.0.0/8`.
fn contains(range: &str, address: &str) -> bool {
    let without_port = || address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let Ok(address) = address.parse().or_else(|_| without_port().parse()) else { return false };
    let (net, bits) = range.split_once('/').unwrap_or((range, ""));
    let Ok(net) = net.parse::<std::net::IpAddr>() else { return false };
    let of = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(four) => (u128::from(u32::from(four)) << 96, 32),
        std::net::IpAddr::V6(six) => (u128::from(six), BITS_MAX),
    };
    let ((net, net_bits), (address, address_bits)) = (of(net), of(address));
    let Ok(bits) = (if bits.is_empty() { Ok(net_bits) } else { bits.parse::<u32>() }) else { return false };
    if net_bits != address_bits || bits > net_bits {
        return false;
    }
    let differ = net ^ address;
    bits == 0 || differ >> (BITS_MAX - bits) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_their_ranges() {
        for (range, address, is_in) in [
            ("10.0.0.0/8", "10.1.2.3:40000", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("10.1.2.3", "10.1.2.3:1", true),
            ("0.0.0.0/0", "10.1.2.3", true),
            ("10.0.0.0/33", "10.1.2.3", false),
            ("fd00::/8", "[fd12::1]:40000", true),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "10.1.2.3", false),
            ("nonsense", "10.1.2.3", false),
            ("10.0.0.0/8", "", false),
        ] {
            assert_eq!(contains(range, address), is_in, "{range} {address}");
        }
    }
}
