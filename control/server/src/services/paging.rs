//! Pages and their tokens.
//!
//! A page is bounded in items and in bytes, so that it may be shorter than was asked and still have a next one. A token names the last
//! item that was looked at and the question it belongs to: pages stay right while items come and go, and a token used with another
//! question is refused instead of answering nonsense.

use crate::api::refusal;
use prost::Message;
use tonic::Status;

/// Items of a page when the caller does not say.
pub(crate) const PAGE_DEFAULT: u32 = 100;
/// Items of the largest page: some hundred kilobytes of jobs.
pub(crate) const PAGE_MAX: u32 = 1_000;

/// Bytes of a page, but for the item that passes them: a client that takes the usual 4 MiB takes every page.
const PAGE_BYTES: usize = 2 << 20;

/// A page that is being filled.
pub(crate) struct Page<T> {
    size: usize,
    bytes: usize,
    items: Vec<T>,
}

impl<T> Page<T> {
    /// Empty, for at most so many.
    pub(crate) fn new(size: usize) -> Self {
        Page { size, bytes: 0, items: Vec::new() }
    }

    /// Whether nothing more is taken.
    pub(crate) fn is_full(&self) -> bool {
        self.items.len() >= self.size || self.bytes >= PAGE_BYTES
    }

    /// Adds an item that is sent as so many bytes.
    pub(crate) fn push_sized(&mut self, item: T, bytes: usize) {
        self.bytes += bytes;
        self.items.push(item);
    }

    pub(crate) fn items(self) -> Vec<T> {
        self.items
    }
}

impl<T: Message> Page<T> {
    /// Adds what is sent.
    pub(crate) fn push(&mut self, item: T) {
        let bytes = item.encoded_len();
        self.push_sized(item, bytes);
    }
}

/// The size of a page.
///
/// # Errors
/// When it is larger than allowed.
pub(crate) fn size(asked: u32) -> Result<usize, Status> {
    match asked {
        0 => Ok(PAGE_DEFAULT as usize),
        1..=PAGE_MAX => Ok(asked as usize),
        _ => Err(refusal::field(
            "page_size",
            format!("is {asked}"),
            "use at most 1,000, and page_token for the next page",
        )),
    }
}

/// The token that goes on after `last` with the same question.
pub(crate) fn token(question: &str, last: &str) -> String {
    format!("{:08x}.{last}", crc32fast::hash(question.as_bytes()))
}

/// Where a token goes on; `None` for the first page.
///
/// # Errors
/// When it was made for another question, or never made.
pub(crate) fn after(question: &str, token: &str) -> Result<Option<String>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let bad = |problem: &str| {
        refusal::field("page_token", problem, "use next_page_token of the last reply with the same filters")
    };
    let (mark, last) = token.split_once('.').ok_or_else(|| bad("is not a token"))?;
    let expected = format!("{:08x}", crc32fast::hash(question.as_bytes()));
    if mark != expected {
        return Err(bad("belongs to a call with other filters"));
    }
    Ok(Some(last.to_owned()))
}
