//! Reads over an encoded message without decoding it.
//!
//! What must stay true: work and stack are bounded by the message's bytes and by the depth of the schema; whatever a decoder would make
//! of the bytes takes no more memory than was counted here.

use super::MEMORY_BYTES_MAX;
use super::schema::{FieldSchema, Kind, Schema};
use muster_model::FieldError;
use muster_model::validate::table::Bound;
use std::collections::BTreeMap;

/// Messages inside each other: the deepest of the API has seven.
const DEPTH_MAX: usize = 32;
/// What an entry of a map takes beside its key and value: its share of a tree's node.
const MAP_ENTRY_BYTES: usize = 32;

/// Holds `bytes` against the bounds of the message at `root`.
pub(super) fn check(schema: &Schema, root: usize, bytes: &[u8]) -> Result<(), FieldError> {
    let mut scan = Scan { schema, memory_bytes: schema.message(root).memory_bytes };
    scan.message(root, bytes, DEPTH_MAX).map_err(Fault::into_error)
}

struct Scan<'a> {
    schema: &'a Schema,
    memory_bytes: usize,
}

/// What is wrong, with the path from the inside outwards.
struct Fault {
    path: Vec<String>,
    problem: String,
    fix: String,
}

impl Fault {
    fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Fault { path: Vec::new(), problem: problem.into(), fix: fix.into() }
    }

    fn broken(problem: &str) -> Self {
        Fault::new(problem, "send protobuf messages of the API muster.v1")
    }

    fn within(mut self, step: String) -> Self {
        self.path.push(step);
        self
    }

    fn into_error(mut self) -> FieldError {
        self.path.reverse();
        let path = if self.path.is_empty() { "message".to_owned() } else { self.path.join(".") };
        FieldError::new(path, self.problem, self.fix)
    }
}

/// One field as it stands in the bytes.
enum Value<'a> {
    Varint,
    Fixed32,
    Fixed64,
    Bytes(&'a [u8]),
}

impl Scan<'_> {
    fn message(&mut self, place: usize, mut bytes: &[u8], depth: usize) -> Result<(), Fault> {
        let schema = self.schema;
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Fault::broken("has too many levels of nested messages"));
        };
        let message = schema.message(place);
        // How often each field has come so far.
        let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
        while !bytes.is_empty() {
            let (number, value, rest) = next(bytes)?;
            bytes = rest;
            let Some(field) = message.fields.get(&number) else { continue };
            let count = seen.entry(number).or_default();
            let step = |index: usize| match field.repeated && !is_map(schema, field) {
                true => format!("{}[{index}]", field.name),
                false => field.name.clone(),
            };
            match value {
                Value::Bytes(inner) => match field.kind {
                    Kind::Message(inner_place) => {
                        *count += 1;
                        self.count(field, *count).map_err(|fault| fault.within(field.name.clone()))?;
                        let entry = |fault: Fault| fault.within(step(*count - 1));
                        if is_map(schema, field) {
                            self.entry(field, inner_place, inner).map_err(entry)?;
                        } else {
                            self.take(schema.message(inner_place).memory_bytes).map_err(entry)?;
                            self.message(inner_place, inner, depth).map_err(entry)?;
                        }
                    }
                    Kind::Text | Kind::Bytes => {
                        *count += 1;
                        if field.repeated {
                            self.count(field, *count).map_err(|fault| fault.within(field.name.clone()))?;
                        }
                        self.text(field, inner).map_err(|fault| fault.within(step(*count - 1)))?;
                    }
                    // A packed list of numbers.
                    Kind::Varint | Kind::Fixed32 | Kind::Fixed64 => {
                        *count += packed(field.kind, inner);
                        self.count(field, *count).map_err(|fault| fault.within(field.name.clone()))?;
                        self.take(inner.len().saturating_mul(8)).map_err(|fault| fault.within(field.name.clone()))?;
                    }
                },
                Value::Varint | Value::Fixed32 | Value::Fixed64 => {
                    *count += 1;
                    if field.repeated {
                        self.count(field, *count).map_err(|fault| fault.within(field.name.clone()))?;
                        self.take(8).map_err(|fault| fault.within(field.name.clone()))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The `count`-th of a field has come.
    fn count(&self, field: &FieldSchema, count: usize) -> Result<(), Fault> {
        let most = match field.bound {
            Some(Bound::List { items_max } | Bound::Texts { items_max, .. } | Bound::Map { items_max, .. }) => {
                items_max
            }
            // What stands alone stands once; decoders would put a second one into the first.
            _ if field.repeated => 0,
            _ => 1,
        };
        if count <= most {
            return Ok(());
        }
        match field.repeated {
            true => Err(Fault::new(format!("has more than {most} entries"), format!("use at most {most}"))),
            false => Err(Fault::broken("is given twice")),
        }
    }

    fn text(&mut self, field: &FieldSchema, text: &[u8]) -> Result<(), Fault> {
        let most = match field.bound {
            Some(Bound::Text { bytes_max } | Bound::Texts { bytes_max, .. }) => bytes_max,
            _ => 0,
        };
        self.bounded_text(field.kind, text, most)
    }

    fn bounded_text(&mut self, kind: Kind, text: &[u8], most: usize) -> Result<(), Fault> {
        if text.len() > most {
            let problem = format!("has {} bytes", text.len());
            return Err(Fault::new(problem, format!("use at most {most} bytes")));
        }
        if kind == Kind::Text
            && let Err(error) = std::str::from_utf8(text)
        {
            let problem = format!("is not UTF-8 at byte {}", error.valid_up_to() + 1);
            return Err(Fault::new(problem, "send text as UTF-8"));
        }
        self.take(text.len() + muster_model::validate::bounds::TEXT_OVERHEAD_BYTES)
    }

    /// An entry of a map: key 1, value 2, both of them simple.
    fn entry(&mut self, field: &FieldSchema, place: usize, mut bytes: &[u8]) -> Result<(), Fault> {
        let (key_most, value_most) = match field.bound {
            Some(Bound::Map { key_bytes_max, value_bytes_max, .. }) => (key_bytes_max, value_bytes_max),
            _ => (0, 0),
        };
        self.take(MAP_ENTRY_BYTES)?;
        let entry = self.schema.message(place);
        while !bytes.is_empty() {
            let (number, value, rest) = next(bytes)?;
            bytes = rest;
            let (Some(part), Value::Bytes(text)) = (entry.fields.get(&number), value) else { continue };
            let most = if number == 1 { key_most } else { value_most };
            self.bounded_text(part.kind, text, most).map_err(|fault| fault.within(part.name.clone()))?;
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        self.memory_bytes = self.memory_bytes.saturating_add(bytes);
        if self.memory_bytes <= MEMORY_BYTES_MAX {
            return Ok(());
        }
        let problem = format!("makes the message larger than {} MiB in memory", MEMORY_BYTES_MAX >> 20);
        Err(Fault::new(problem, "send it in several calls"))
    }
}

fn is_map(schema: &Schema, field: &FieldSchema) -> bool {
    matches!(field.kind, Kind::Message(place) if schema.message(place).map_entry)
}

/// Numbers in a packed list.
fn packed(kind: Kind, bytes: &[u8]) -> usize {
    match kind {
        Kind::Fixed32 => bytes.len().div_ceil(4),
        Kind::Fixed64 => bytes.len().div_ceil(8),
        // The last byte of each number has its highest bit clear.
        _ => bytes.iter().filter(|byte| **byte < 0x80).count(),
    }
}

/// The next field of `bytes`: its number, its value, and what follows.
fn next(bytes: &[u8]) -> Result<(u32, Value<'_>, &[u8]), Fault> {
    let (tag, rest) = varint(bytes)?;
    let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0);
    let number = number.ok_or_else(|| Fault::broken("has a field without a number"))?;
    let cut = || Fault::broken("ends in the middle of a field");
    Ok(match tag & 7 {
        0 => (number, Value::Varint, varint(rest)?.1),
        1 => (number, Value::Fixed64, rest.get(8..).ok_or_else(cut)?),
        5 => (number, Value::Fixed32, rest.get(4..).ok_or_else(cut)?),
        2 => {
            let (length, rest) = varint(rest)?;
            let length = usize::try_from(length).map_err(|_| cut())?;
            let (inside, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
            (number, Value::Bytes(inside), rest)
        }
        kind => return Err(Fault::broken(&format!("has a field of wire type {kind}, which this API does not use"))),
    })
}

fn varint(bytes: &[u8]) -> Result<(u64, &[u8]), Fault> {
    let mut value = 0_u64;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * place as u32).unwrap_or(0);
        if *byte < 0x80 {
            return Ok((value, &bytes[place + 1..]));
        }
    }
    Err(Fault::broken("ends in the middle of a number"))
}
