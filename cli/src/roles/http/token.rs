//! The token that a request for the metrics has to show.
//!
//! What must stay true: the token itself is not kept, only its SHA-256; tokens are compared in a time that does not depend on what differs.

use super::watched::Content;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use ring::digest::{Digest, SHA256, digest};

/// Fewer characters could be guessed.
const CHARACTERS_MIN: usize = 16;

/// The scheme of the header, which is compared without regard to case (RFC 9110, section 11.1).
const SCHEME: &str = "Bearer";

/// The SHA-256 of a token.
pub(super) struct Token(Digest);

impl Content for Token {
    const OPTION: &'static str = "http-token-file";
    const BYTES_MAX: u64 = 4 * 1024;
    const REMEDY: &'static str =
        "write one random token of 16 characters or more, such as `openssl rand -hex 32` prints";

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let token = bytes.trim_ascii();
        if token.len() < CHARACTERS_MIN {
            return Err(format!("has a token of {} characters, fewer than {CHARACTERS_MIN}", token.len()));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err("has spaces, line breaks or other characters that a token cannot have".to_owned());
        }
        Ok(Token(digest(&SHA256, token)))
    }
}

impl Token {
    /// Whether a request shows the token; if not, why.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let value = match (values.next(), values.next()) {
            (Some(value), None) => value,
            (None, _) => return Err("the header is missing"),
            (Some(_), Some(_)) => return Err("there are several"),
        };
        let shown = value.to_str().ok().and_then(|value| value.split_once(' '));
        let Some((_, shown)) = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME)) else {
            return Err("the header has another form");
        };
        let shown = digest(&SHA256, shown.trim().as_bytes());
        if same(self.0.as_ref(), shown.as_ref()) { Ok(()) } else { Err("the token is wrong") }
    }
}

/// Compares two hashes of one length.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    const TOKEN: &str = "0123456789abcdef";

    fn check(values: &[&'static str]) -> Result<(), &'static str> {
        let token = Token::parse(format!(" {TOKEN}\n").as_bytes()).expect("a token");
        let mut headers = HeaderMap::new();
        for &value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_static(value));
        }
        token.check(&headers)
    }

    #[test]
    fn the_token_and_nothing_else_is_let_in() {
        assert_eq!(check(&["Bearer 0123456789abcdef"]), Ok(()));
        assert_eq!(check(&["bearer  0123456789abcdef"]), Ok(()));
        assert_eq!(check(&[]), Err("the header is missing"));
        assert_eq!(check(&["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"]), Err("there are several"));
        for other in ["", "Bearer", "0123456789abcdef", "Basic 0123456789abcdef"] {
            assert_eq!(check(&[other]), Err("the header has another form"), "{other}");
        }
        for wrong in ["Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Bearer 0123456789ABCDEF"] {
            assert_eq!(check(&[wrong]), Err("the token is wrong"), "{wrong}");
        }
    }

    #[test]
    fn short_tokens_and_several_are_refused() {
        let refused = |text: &str| Token::parse(text.as_bytes()).err().expect("refused");
        assert_eq!(refused(""), "has a token of 0 characters, fewer than 16");
        assert_eq!(refused("  0123456789abcde\n\n"), "has a token of 15 characters, fewer than 16");
        assert!(refused("0123456789abcdef\n0123456789abcdef\n").contains("line breaks"));
        assert!(refused("0123456789abcdé0").contains("cannot have"));
    }
}
