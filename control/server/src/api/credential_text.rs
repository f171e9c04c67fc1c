//! What people, services and joining machines send to prove themselves: `ms1_17_<secret>_<checksum>`.
//!
//! What must stay true: what is of one kind is not taken for another; a credential has one text; the text says what it is, so that a scanner finds one that was published; a text that was cut or mistyped is told from one that
//! does not hold; the secret has 256 random bits.

use muster_model::identity::CredentialKind;
use muster_runtime::Chance;

/// Of a session.
const SESSION: &str = "ms1";
/// Of a service token.
const TOKEN: &str = "mt1";
/// Of a join token.
const JOIN: &str = "mj1";
/// Hexadecimal digits of a secret.
const SECRET_DIGITS: usize = 64;

/// A new secret.
pub(crate) fn secret(chance: &Chance) -> String {
    format!("{}{}", chance.token(), chance.token())
}

/// The text that is sent.
pub(crate) fn text(kind: CredentialKind, id: u64, secret: &str) -> String {
    match kind {
        CredentialKind::Session => written(SESSION, id, secret),
        CredentialKind::Token => written(TOKEN, id, secret),
    }
}

/// The text of a join token.
pub(crate) fn join_text(id: u64, secret: &str) -> String {
    written(JOIN, id, secret)
}

/// The number and the secret of a session or a token.
pub(crate) fn parse(text: &str) -> Option<(u64, &str)> {
    read(text, &[SESSION, TOKEN])
}

/// The number and the secret of a join token.
pub(crate) fn parse_join(text: &str) -> Option<(u64, &str)> {
    read(text, &[JOIN])
}

fn written(head: &str, id: u64, secret: &str) -> String {
    let body = format!("{head}_{id}_{secret}");
    let check = crc32fast::hash(body.as_bytes());
    format!("{body}_{check:08x}")
}

fn read<'a>(text: &'a str, heads: &[&str]) -> Option<(u64, &'a str)> {
    let (body, check) = text.rsplit_once('_')?;
    if format!("{:08x}", crc32fast::hash(body.as_bytes())) != check {
        return None;
    }
    let mut parts = body.split('_');
    let (head, id, secret) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = parts.next().is_none() && secret.len() == SECRET_DIGITS;
    (whole && heads.contains(&head)).then_some(())?;
    let number: u64 = id.parse().ok()?;
    (number.to_string() == id).then_some((number, secret))
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
        // A list of texts that were published must find each that holds.
        for other in ["017", "+17"] {
            let body = format!("{TOKEN}_{other}_{secret}");
            assert_eq!(parse(&format!("{body}_{:08x}", crc32fast::hash(body.as_bytes()))), None, "{other}");
        }
        let join = join_text(17, &secret);
        assert_eq!((parse_join(&join), parse(&join), parse_join(&text)), (Some((17, secret.as_str())), None, None));
    }
}
