//! Identities of machines: names, keys, certificates, and the rules by which one machine accepts another.
//!
//! A certificate only carries a key and a name; authority lies in the replicated state, where the key is pinned to the name
//! (see [`Admit`]). The order in which to read: [`MachineName`], [`Scheme`] (what is made and read), [`judge()`] (the rule),
//! [`Credentials`] (what a host shows and whom it trusts), [`CertificateClock`].

mod authority;
mod clock;
mod credentials;
mod error;
mod judge;
mod kept;
mod local;
mod name;
mod scheme;
mod statement;
mod x509;

#[cfg(test)]
mod tests;

pub use authority::{ISSUER_LIFE_MS, MACHINE_LIFE_MS, ROOT_LIFE_MS, is_due, new_root, sign_issuer, sign_machine};
pub use clock::{CLOCK_FILE, CertificateClock, SAVE_EVERY};
pub use credentials::{Admit, Credentials, MACHINE_FILE, ROOTS_FILE, ROOTS_MAX, Roots, SECRETS_KEY_FILE, fingerprint};
pub(crate) use credentials::{Own, ask};
pub use error::PkiError;
pub(crate) use error::bounded;
pub use judge::{Accepted, GRACE_MS, Judging, NotAdmitted, OutOfDate, PeerIdentity, Pin, Refusal, Wanted, judge};
pub use kept::{ISSUER_FILE, ROOT_FILE, issue};
pub use local::LocalAuthorities;
pub use name::{CLUSTER_BYTES_MAX, MACHINE_BYTES_MAX, MachineName, Role, Subject};
pub use scheme::{
    Authority, CERTIFICATE_BYTES_MAX, Certificate, KEY_BYTES_MAX, Presented, REQUEST_BYTES_MAX, Requested, Scheme,
    SecretKey, SpkiHash, Stated, Validity, presented,
};
pub use statement::{NotBelieved, SIGNATURE_BYTES_MAX, Signed, sign_statement, verify_statement};
pub use x509::X509;
