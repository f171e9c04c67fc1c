//! Conversions between the wire and the model, one family per file: `From<&Model> for v1::Wire`, and `TryFrom<v1::Wire> for Model` with
//! a [`FieldError`] that names the path and the fix.
//!
//! What must stay true: every value of the model survives the way out and back; a word or number that the model does not know
//! is refused, never guessed; what a message leaves out has its default from here on (a device class fills in more, when the job is
//! accepted: `control/core/src/plan/resolve.rs`).

pub mod agent;
pub mod allocation;
pub mod array;
pub mod asked;
mod attempt;
mod growth;
mod image;
pub mod job;
mod machine;
mod moves;
pub mod node;
pub mod proposal;
pub mod quota_class;
pub mod request;
pub mod resources;
mod restored;
mod start;
pub mod tenant;
mod use_history;
pub mod watch;
pub mod window;
mod withheld;

pub use agent::{checkpoint_from_wire, clean_up_from_wire, clean_up_to_wire, report_from_wire, report_to_wire};
pub use job::job_from_control_plane;
pub use node::proofs_from_wire;
pub use watch::{change_from_control_plane, change_to_wire, object_to_wire};

use muster_model::{FieldError, UnknownWord};
use std::fmt::Display;
use std::str::FromStr;

/// A message that must be there.
fn need<T>(value: Option<T>, field: &str) -> Result<T, FieldError> {
    value.ok_or_else(|| FieldError::new(field, "is missing", "send it"))
}

/// A word of a vocabulary.
fn word<T: FromStr<Err = UnknownWord>>(field: &str, text: &str) -> Result<T, FieldError> {
    text.parse().map_err(|word: UnknownWord| FieldError::new(field, word.problem(), word.fix()))
}

/// A word, or none when it is empty.
fn word_if<T: FromStr<Err = UnknownWord>>(field: &str, text: &str) -> Result<Option<T>, FieldError> {
    if text.is_empty() { Ok(None) } else { word(field, text).map(Some) }
}

/// A number that the model keeps in a smaller type.
fn narrow<T>(field: &str, value: u32, max: T) -> Result<T, FieldError>
where
    T: TryFrom<u32> + Display,
{
    T::try_from(value).map_err(|_| FieldError::new(field, format!("is {value}"), format!("use at most {max}")))
}

/// The text, or none when it is empty.
fn text_if(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Converts each element, naming its place in the list when one is wrong.
fn each<W, M>(field: &str, list: Vec<W>) -> Result<Vec<M>, FieldError>
where
    M: TryFrom<W, Error = FieldError>,
{
    list.into_iter()
        .enumerate()
        .map(|(index, wire)| M::try_from(wire).map_err(|error| error.under(&format!("{field}[{index}]"))))
        .collect()
}
