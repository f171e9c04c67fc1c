//! The targets, grouped by what they read, and what several of them need.
//!
//! What must stay true: an input that a parser refuses is no fault, whatever it is.

pub mod files;
pub mod host;
pub mod images;
pub mod login;
pub mod pki;
pub mod replay;
pub mod stored;
pub mod text;
pub mod tokens;
pub mod wire;

use crate::target::reached;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::{Debug, Display};
use std::str::FromStr;

/// The input as text, where it is text.
pub(crate) fn text_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// A folder for files of one input: in memory where the machine has such a place, since files are synced.
pub(crate) fn scratch() -> tempfile::TempDir {
    let made = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    made.unwrap_or_else(|error| panic!("no folder for temporary files: {error}"))
}

/// The first line, which says what the rest is, and the rest.
pub(crate) fn headed(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((text_of(&bytes[..end])?, &bytes[end + 1..]))
}

/// The name of a type without where it is.
fn name_of<T>() -> &'static str {
    let whole = std::any::type_name::<T>();
    let plain = whole.split('<').next().unwrap_or(whole);
    plain.rsplit("::").next().unwrap_or(plain)
}

/// What is read from a text; it has to be written as a text that is read as the same.
pub(crate) fn read_again<T>(text: &str) -> Option<T>
where
    T: FromStr<Err: Debug> + Display + PartialEq + Debug,
{
    let value: T = text.parse().ok()?;
    reached(name_of::<T>());
    let shown = value.to_string();
    match shown.parse::<T>() {
        Ok(again) => assert_eq!(again, value, "{text:?} is shown as {shown:?}, which is read as something else"),
        Err(error) => panic!("{text:?} is shown as {shown:?}, which is refused: {error:?}"),
    }
    Some(value)
}

/// What is read from JSON; it has to be written as JSON that is read as the same.
pub(crate) fn json_again<T>(bytes: &[u8]) -> Option<T>
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let value: T = serde_json::from_slice(bytes).ok()?;
    reached(name_of::<T>());
    assert_eq!(json_of::<T>(&value), value);
    Some(value)
}

/// The same for what has fractions, of which the last digit may change, or cannot be compared.
pub(crate) fn json_readable<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    reached(name_of::<T>());
    drop(json_of::<T>(&value));
    Some(value)
}

fn json_of<T: Serialize + DeserializeOwned>(value: &T) -> T {
    let written = serde_json::to_vec(value).unwrap_or_else(|error| panic!("what was read cannot be written: {error}"));
    serde_json::from_slice(&written).unwrap_or_else(|error| {
        panic!("{} was written and is refused: {error}", String::from_utf8_lossy(&written));
    })
}

/// What is read from postcard's form; it has to be written as bytes that are read as the same.
pub(crate) fn postcard_again<T>(bytes: &[u8]) -> Option<T>
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let value: T = postcard::from_bytes(bytes).ok()?;
    reached(name_of::<T>());
    let written =
        postcard::to_stdvec(&value).unwrap_or_else(|error| panic!("what was read cannot be written: {error}"));
    match postcard::from_bytes::<T>(&written) {
        Ok(again) => assert_eq!(again, value),
        Err(error) => panic!("{value:?} was written and is refused: {error}"),
    }
    Some(value)
}
