//! Ways in for the fuzz targets of `fuzz/`: parsers of what comes from outside, which nothing else outside of this crate calls.
//!
//! What must stay true: a function here calls one parser, and decides nothing.

use crate::api::credential_text;
use crate::backup;
use crate::login::{Login, LoginConfig};
use crate::services::paging;
use muster_model::identity::CredentialKind;
use muster_runtime::Host;

/// A credential that was read: its head, its number, its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// Of a session or a token.
    OfCaller(u64, &'a str),
    /// Of a machine that joins.
    OfMachine(u64, &'a str),
}

/// The credential whose text this is.
#[must_use]
pub fn credential(text: &str) -> Option<Credential<'_>> {
    let of_caller = credential_text::parse(text).map(|(id, secret)| Credential::OfCaller(id, secret));
    of_caller.or_else(|| credential_text::parse_join(text).map(|(id, secret)| Credential::OfMachine(id, secret)))
}

/// The texts that a credential of this number and secret can have.
#[must_use]
pub fn credential_texts(credential: &Credential<'_>) -> Vec<String> {
    match *credential {
        Credential::OfCaller(id, secret) => [CredentialKind::Session, CredentialKind::Token]
            .map(|kind| credential_text::text(kind, id, secret))
            .to_vec(),
        Credential::OfMachine(id, secret) => vec![credential_text::join_text(id, secret)],
    }
}

/// The token of the page after `last`.
#[must_use]
pub fn page_token(question: &str, last: &str) -> String {
    paging::token(question, last)
}

/// Where a token goes on; none for one that is refused, and for that of the first page.
#[must_use]
pub fn after_page_token(question: &str, token: &str) -> Option<String> {
    paging::after(question, token).ok().flatten()
}

/// The user whom an ID token proves, with the groups.
pub async fn login(
    host: Host,
    config: LoginConfig,
    token: &str,
    nonce: &str,
    now_ms: u64,
) -> Option<(String, Vec<String>)> {
    let proved = Login::new(host, config).prove(token, nonce, now_ms).await.ok()?;
    Some((proved.user, proved.groups))
}

/// The file of a backup of these parts, with the checksums that it should have.
#[must_use]
pub fn backup_file(parts: &[&[u8]]) -> Vec<u8> {
    backup::file_of(parts)
}

/// The parts of a small backup.
#[must_use]
pub fn backup_parts() -> Vec<Vec<u8>> {
    backup::example_parts()
}
