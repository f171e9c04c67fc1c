//! What people and services send to prove themselves: `ms1_17_<secret>_<checksum>`.
//!
//! What must stay true: the text says what it is, so that a scanner finds one that was published; a text that was cut or mistyped is told from one that
//! does not hold; the secret has 256 random bits.

use muster_model::identity::CredentialKind;
use muster_runtime::Chance;

/// Of a session.
const SESSION: &str = "ms1";
/// Of a service token.
const TOKEN: &str = "mt1";
/// Hexadecimal digits of a secret.
const SECRET_DIGITS: usize = 64;

/// A new secret.
pub(crate) fn secret(chance: &Chance) -> String {
    format!("{}{}", chance.token(), chance.token())
}

/// The text that is sent.
pub(crate) fn text(kind: CredentialKind, id: u64, secret: &str) -> String {
    let head = match kind {
        CredentialKind::Session => SESSION,
        CredentialKind::Token => TOKEN,
    };
    let body = format!("{head}_{id}_{secret}");
    let check = crc32fast::hash(body.as_bytes());
    format!("{body}_{check:08x}")
}

/// The number and the secret of a text.
pub(crate) fn parse(text: &str) -> Option<(u64, &str)> {
    let (body, check) = text.rsplit_once('_')?;
    if format!("{:08x}", crc32fast::hash(body.as_bytes())) != check {
        return None;
    }
    let mut parts = body.split('_');
    let (head, id, secret) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = parts.next().is_none() && secret.len() == SECRET_DIGITS;
    (whole && matches!(head, SESSION | TOKEN)).then_some(())?;
    Some((id.parse().ok()?, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_back_and_a_cut_one_is_not() {
        let secret = secret(&Chance::seeded(1));
        let text = text(CredentialKind::Token, 17, &secret);
        assert_eq!(parse(&text), Some((17, secret.as_str())));
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None);
        }
        assert_eq!(parse(&text.replacen("mt1", "mt2", 1)), None);
    }
}
