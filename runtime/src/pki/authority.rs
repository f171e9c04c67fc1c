//! Who may sign what, and for how long.
//!
//! The root signs issuers, one for each control node; issuers sign machines. What must stay true: no certificate outlives the one above
//! it; a request is signed for the name that the caller has decided on, never for the name that it asks for; the issuer of a control node
//! signs no other control node.

use super::error::PkiError;
use super::name::{MachineName, Subject};
use super::scheme::{Authority, Certificate, Presented, Requested, Scheme, Validity};

const DAY_MS: u64 = 24 * 3_600_000;
/// A root: as long as machines are kept, with room.
pub const ROOT_LIFE_MS: u64 = 10 * 365 * DAY_MS;
/// An issuer.
pub const ISSUER_LIFE_MS: u64 = 2 * 365 * DAY_MS;
/// A machine; it renews at a third.
pub const MACHINE_LIFE_MS: u64 = 30 * DAY_MS;
/// How far before the moment of signing a certificate is valid: for machines whose clock is behind.
pub(super) const EARLIER_MS: u64 = 3_600_000;

/// Makes the root of a new cluster.
///
/// # Errors
/// When the name of the cluster cannot be one, or no key can be made.
pub fn new_root(scheme: &dyn Scheme, cluster: &str, now_ms: u64) -> Result<Authority, PkiError> {
    // Names are checked where they are read.
    Subject::Root { cluster: cluster.to_owned() }.to_string().parse::<Subject>()?;
    let key = scheme.new_key()?;
    let certificate = scheme.self_signed(&key, cluster, from_now(now_ms, ROOT_LIFE_MS))?;
    Authority::new(scheme, key, certificate)
}

/// Signs the issuer of control node `id`.
///
/// # Errors
/// When `root` is no root, or the request is not for this issuer of its cluster.
pub fn sign_issuer(
    scheme: &dyn Scheme,
    root: &Authority,
    request: &[u8],
    id: u64,
    now_ms: u64,
) -> Result<Certificate, PkiError> {
    let Subject::Root { cluster } = &root.stated.subject else {
        return Err(other("the authority that signs issuers", "a root", &root.stated.subject));
    };
    let wanted = Subject::Issuer { cluster: cluster.clone(), id };
    let requested = expect(scheme, request, &wanted)?;
    if requested.spki_sha256 == root.stated.spki_sha256 {
        return Err(PkiError::request("an issuer with the key of the root"));
    }
    scheme.sign(root, request, from_now(now_ms, ISSUER_LIFE_MS).and(root.stated.validity))
}

/// Signs the certificate of a machine.
///
/// # Errors
/// When `issuer` is no issuer, the request is not for `name`, or `name` is a control node of another id.
pub fn sign_machine(
    scheme: &dyn Scheme,
    issuer: &Authority,
    request: &[u8],
    name: &MachineName,
    now_ms: u64,
) -> Result<Certificate, PkiError> {
    let Subject::Issuer { cluster, id } = &issuer.stated.subject else {
        return Err(other("the authority that signs machines", "an issuer", &issuer.stated.subject));
    };
    if cluster != name.cluster() {
        return Err(other("the cluster of the machine", cluster, name.cluster()));
    }
    if name.control_id().is_some_and(|got| got != *id) {
        return Err(other("the control node that this issuer signs", id, name));
    }
    let requested = expect(scheme, request, &Subject::Machine(name.clone()))?;
    if requested.spki_sha256 == issuer.stated.spki_sha256 {
        return Err(PkiError::request("a machine with the key of the issuer"));
    }
    scheme.sign(issuer, request, from_now(now_ms, MACHINE_LIFE_MS).and(issuer.stated.validity))
}

/// Whether a machine is to renew its certificate: after a third of its life, each machine at another moment of the twelfth after that.
#[must_use]
pub fn is_due(presented: &Presented, now_ms: u64) -> bool {
    let Validity { from_ms, until_ms } = presented.validity;
    let life_ms = until_ms.saturating_sub(from_ms);
    let [high, low, ..] = presented.spki_sha256.0;
    let share = u64::from(u16::from_be_bytes([high, low]));
    now_ms >= from_ms + life_ms / 3 + life_ms / 12 * share / u64::from(u16::MAX)
}

fn expect(scheme: &dyn Scheme, request: &[u8], wanted: &Subject) -> Result<Requested, PkiError> {
    let requested = scheme.check_request(request)?;
    match requested.subject == *wanted {
        true => Ok(requested),
        false => Err(other("the name in the request", wanted, &requested.subject)),
    }
}

fn other(what: &'static str, expected: impl ToString, got: impl ToString) -> PkiError {
    PkiError::Other { what, expected: expected.to_string(), got: got.to_string() }
}

/// Certificates count in seconds.
fn from_now(now_ms: u64, life_ms: u64) -> Validity {
    let now_ms = now_ms / 1_000 * 1_000;
    Validity { from_ms: now_ms.saturating_sub(EARLIER_MS), until_ms: now_ms.saturating_add(life_ms) }
}
