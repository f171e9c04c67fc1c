//! What people and machines send to prove themselves or to go on: credentials and page tokens.
//!
//! What must stay true: a credential has one text, so that a list of published texts finds each that holds; a token of pages holds for one question.

use super::{headed, text_of};
use crate::target::{Target, reached};
use muster_control_server::fuzzing::{Credential, after_page_token, credential, credential_texts, page_token};

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "credential",
        what: "texts of sessions, tokens and join tokens, with their checksum or without: one text each",
        words: &["ms1_", "mt1_", "mj1_", "_", "17", "+17", "017", "0123456789abcdef"],
        reaches: &["session or token", "join token"],
        run: credential_text,
    },
    Target {
        name: "page-token",
        what: "a question and a token of pages, one a line: what is read was made for this question",
        words: &[".", "\n", "00000000."],
        reaches: &["token"],
        run: page,
    },
];

fn credential_text(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    // The checksum is for people who mistype. Whoever makes a text puts the right one under it.
    let checked = format!("{text}_{:08x}", crc32fast::hash(bytes));
    for text in [text, checked.as_str()] {
        if let Some(read) = credential(text) {
            reached(if matches!(read, Credential::OfMachine(..)) { "join token" } else { "session or token" });
            assert!(
                credential_texts(&read).iter().any(|written| written == text),
                "{text} is a second text of {read:?}"
            );
        }
    }
}

fn page(bytes: &[u8]) {
    let Some((question, token)) = headed(bytes) else { return };
    let Some(token) = text_of(token) else { return };
    if let Some(last) = after_page_token(question, token) {
        reached("token");
        assert_eq!(page_token(question, &last), token, "two tokens go on after {last:?}");
    }
    let made = page_token(question, token);
    assert_eq!(after_page_token(question, &made).as_deref(), Some(token), "{question:?}");
    let other = format!("{question} and another filter");
    assert_eq!(after_page_token(&other, &made), None, "{question:?}");
}
