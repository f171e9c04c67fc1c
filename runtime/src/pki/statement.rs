//! Statements that control nodes sign with the key of their own certificate, to be verified by whoever has the roots, also years later.
//!
//! What must stay true: a statement is believed only of a control node of the cluster whose chain leads to one of its roots, and only if the moment of which
//! it speaks is one at which that certificate would have been accepted ([`super::judge()`]), and not before it was made; the time of whoever verifies it decides nothing. A statement
//! begins with words that say what it is, which nothing else begins with that the key signs.

use super::credentials::{Credentials, MACHINE_FILE, Roots};
use super::error::{PkiError, bounded};
use super::judge::{Judging, OutOfDate, Pin, Refusal, Wanted, judge};
use super::name::MachineName;
use super::scheme::{Certificate, Presented, Scheme};

/// The largest signature: one of ECDSA over P-256 has up to 72 bytes.
pub const SIGNATURE_BYTES_MAX: usize = 128;

/// A signature, and the chain of whoever has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// By the key of the first certificate.
    pub signature: Vec<u8>,
    /// The control node's certificate, then its issuer's.
    pub chain: Vec<Certificate>,
}

/// Why a statement is not believed, or not signed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotBelieved {
    /// The chain or the signature is wrong, or there is no key.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// It is no control node of the cluster, or its certificate was too old.
    #[error("whoever has signed it is refused: {0}")]
    Signer(Refusal),
}

/// Signs a statement about the moment `at_ms` with the key of `own`.
///
/// # Errors
/// When nobody would believe it: `own` is no control node, or its certificate is too old at `at_ms`; and when the key cannot be used.
pub fn sign_statement(
    scheme: &dyn Scheme,
    own: &Credentials,
    statement: &[u8],
    at_ms: u64,
) -> Result<Signed, NotBelieved> {
    let mine = own.own().ok_or(PkiError::Missing { file: MACHINE_FILE })?;
    check_signer(own.roots(), &mine.presented, at_ms)?;
    let signature = scheme.sign_message(&mine.key, statement)?;
    Ok(Signed { signature, chain: mine.chain.clone() })
}

/// Checks who has signed a statement about the moment `at_ms`.
///
/// # Errors
/// [`NotBelieved`].
pub fn verify_statement(
    scheme: &dyn Scheme,
    roots: &Roots,
    signed: &Signed,
    statement: &[u8],
    at_ms: u64,
) -> Result<MachineName, NotBelieved> {
    let signer = scheme.verify(&signed.chain, roots.certificates())?;
    check_signer(roots, &signer, at_ms)?;
    bounded("a signature", &signed.signature, SIGNATURE_BYTES_MAX)?;
    let [leaf, ..] = signed.chain.as_slice() else { return Err(PkiError::chain("it is empty").into()) };
    scheme.check_message(leaf, statement, &signed.signature)?;
    Ok(signer.name)
}

/// Whether it is a control node of the cluster with these roots, whose certificate was good enough at `at_ms`. Whether its key was pinned then, the roots
/// alone do not say.
fn check_signer(roots: &Roots, signer: &Presented, at_ms: u64) -> Result<(), NotBelieved> {
    let side = Judging { cluster: roots.cluster(), own: None, wanted: Wanted::Control, now_ms: Some(at_ms) };
    let accepted = judge(side, signer, |_| Pin::NoList).map_err(NotBelieved::Signer)?;
    match accepted.alarm {
        // A connection forgives that, since it may be the clock of this side that is behind; here no clock is asked.
        Some(OutOfDate::Early { .. }) => {
            Err(PkiError::chain("the certificate was made after the moment of which the statement speaks").into())
        }
        _ => Ok(()),
    }
}
