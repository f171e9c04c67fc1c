//! Reading YAML so that a mistake is named: the document, the key, and the key that was probably meant.

use crate::failure::Failure;
use muster_model::FieldError;
use muster_model::validate::nearest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_yaml_ng::{Mapping, Value};

/// Documents of one file: a thousand jobs is what one submission may hold.
const DOCUMENTS_MAX: usize = 1_000;

/// Every document of `text` as a `T`, whose keys are `keys`. Empty documents are passed over.
///
/// # Errors
/// When the text is not YAML or a document is not a `T`; the failure names `name`, the document and the key.
pub fn documents<T: DeserializeOwned>(text: &str, name: &str, what: &str, keys: &[&str]) -> Result<Vec<T>, Failure> {
    let mut found = Vec::new();
    // Read twice: once for its keys, once for its values, since only a reader of the text itself knows lines and paths.
    let mut again = serde_yaml_ng::Deserializer::from_str(text);
    for (index, document) in serde_yaml_ng::Deserializer::from_str(text).enumerate() {
        let Some(same) = again.next() else { break };
        let place = || if index == 0 { name.to_owned() } else { format!("{name}, document {}", index + 1) };
        if index >= DOCUMENTS_MAX {
            return Err(Failure::field(name, format!("has more than {DOCUMENTS_MAX} documents"), "split the file"));
        }
        let value = Value::deserialize(document).map_err(|error| Failure::from(vec![not_yaml(&place(), &error)]))?;
        if value.is_null() {
            continue;
        }
        let Value::Mapping(mapping) = &value else {
            return Err(Failure::field(
                place(),
                format!("is not {what}"),
                format!("write `key: value` lines: {}", keys.join(", ")),
            ));
        };
        let unknown: Vec<FieldError> = mapping.keys().filter_map(|key| unknown_key(key, what, keys)).collect();
        if !unknown.is_empty() {
            return Err(Failure::from(unknown.into_iter().map(|fault| at(fault, &place())).collect::<Vec<_>>()));
        }
        found.push(T::deserialize(same).map_err(|error| {
            let text = error.to_string();
            let (field, problem) = match text.split_once(": ") {
                Some((field, problem)) => (field.to_owned(), problem.to_owned()),
                None => match key_at_fault::<T>(mapping, &text) {
                    Some(key) => (key, format!("is not {text}")),
                    None => (text, String::new()),
                },
            };
            let fix = format!("write {what} as in its examples");
            Failure::from(vec![at(FieldError::new(field, problem, fix), &place())])
        })?);
    }
    Ok(found)
}

/// The key whose value `T` does not take with this error, where the error does not name it: without it, the error is another or none.
fn key_at_fault<T: DeserializeOwned>(mapping: &Mapping, text: &str) -> Option<String> {
    let others = |key: &Value| {
        let left: Mapping =
            mapping.iter().filter(|(other, _)| *other != key).map(|(k, v)| (k.clone(), v.clone())).collect();
        T::deserialize(Value::Mapping(left)).map_err(|error| error.to_string())
    };
    let key = mapping.keys().find(|key| others(key).map_or_else(|other| other != text, |_| true))?;
    key.as_str().map(str::to_owned)
}

fn at(mut fault: FieldError, place: &str) -> FieldError {
    fault.field = format!("{place}: {}", fault.field);
    fault
}

/// The fault of a key that is none of `keys`.
#[must_use]
pub fn unknown_key(key: &Value, what: &str, keys: &[&str]) -> Option<FieldError> {
    let text = match key {
        Value::String(text) => text.clone(),
        other => serde_yaml_ng::to_string(other).map(|text| text.trim().to_owned()).unwrap_or_default(),
    };
    if keys.contains(&text.as_str()) {
        return None;
    }
    let fix = match nearest(&text, keys.iter().copied()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("known keys: {}", keys.join(", ")),
    };
    Some(FieldError::new(text, format!("is not a key of {what}"), fix))
}

/// A text that is no YAML, with the line to fix.
pub fn not_yaml(name: &str, error: &serde_yaml_ng::Error) -> FieldError {
    let fix = match error.location() {
        Some(location) => format!("fix line {}", location.line()),
        None => "fix its syntax".to_owned(),
    };
    FieldError::new(name, format!("is not YAML: {error}"), fix)
}
