//! What can be sent to a control node, by the descriptors, with the bound of each field and the memory that it takes.

use muster_model::validate::table::{self, Bound};
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Services whose messages are not judged: control nodes send each other stored forms, which carry their own checks.
const AMONG_CONTROL_NODES: &str = "Peer";
/// A text, a list or a map in memory, empty: pointer, length and capacity.
const HEADER_BYTES: usize = 24;
/// A number, a flag or an enumeration.
const NUMBER_BYTES: usize = 8;
/// What says whether a message is there, and which of several.
const CHOICE_BYTES: usize = 8;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number, flag or enumeration of varying length.
    Varint,
    /// A number of four bytes.
    Fixed32,
    /// A number of eight bytes.
    Fixed64,
    /// Text, which must be UTF-8.
    Text,
    /// Bytes.
    Bytes,
    /// A message, by its place in the schema.
    Message(usize),
}

/// A field of a message.
#[derive(Clone, Debug)]
pub struct FieldSchema {
    /// Its name.
    pub name: String,
    /// What it holds, or what each entry holds.
    pub kind: Kind,
    /// It is a list or a map.
    pub repeated: bool,
    /// Its row of the table. Numbers and messages that stand alone need none.
    pub bound: Option<Bound>,
}

impl FieldSchema {
    /// Whether it can grow, and so needs a row of the table.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.repeated || matches!(self.kind, Kind::Text | Kind::Bytes)
    }
}

/// A message.
#[derive(Clone, Debug, Default)]
pub struct MessageSchema {
    /// Its name, without the package.
    pub name: String,
    /// Its fields by number.
    pub fields: BTreeMap<u32, FieldSchema>,
    /// It is an entry of a map, whose bound stands with the map.
    pub map_entry: bool,
    /// What it takes in memory when it is empty.
    pub memory_bytes: usize,
}

/// Every message that can be sent to a control node.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    messages: Vec<MessageSchema>,
    /// Arguments of methods, with the methods that take them (`Jobs/Submit`).
    roots: BTreeMap<String, (usize, Vec<String>)>,
}

/// The schema, read once from the compiled descriptors.
#[must_use]
pub fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
        // They were compiled into this very binary; a test reads them.
        Schema::of(&FileDescriptorSet::decode(crate::DESCRIPTORS).unwrap_or_default())
    });
    &SCHEMA
}

impl Schema {
    /// The place of the message `name`, if it is the argument of a method.
    #[must_use]
    pub fn root(&self, name: &str) -> Option<usize> {
        self.roots.get(name).map(|(place, _)| *place)
    }

    /// The arguments of methods: name, place, methods.
    pub fn roots(&self) -> impl Iterator<Item = (&str, usize, &[String])> {
        self.roots.iter().map(|(name, (place, methods))| (name.as_str(), *place, methods.as_slice()))
    }

    /// The message at `place`.
    #[must_use]
    pub fn message(&self, place: usize) -> &MessageSchema {
        &self.messages[place]
    }

    /// Fields that can grow and have no row in the table. A server refuses whatever is sent in them.
    pub fn unbounded(&self) -> impl Iterator<Item = (&str, &str)> {
        let fields = self.messages.iter().filter(|message| !message.map_entry);
        fields.flat_map(|message| {
            let missing = message.fields.values().filter(|field| field.grows() && field.bound.is_none());
            missing.map(|field| (message.name.as_str(), field.name.as_str()))
        })
    }

    fn of(files: &FileDescriptorSet) -> Self {
        let mut reader = Reader { described: BTreeMap::new(), places: BTreeMap::new(), schema: Schema::default() };
        for file in &files.file {
            let package = file.package();
            for message in &file.message_type {
                reader.describe(&format!(".{package}"), message);
            }
        }
        let services = files.file.iter().flat_map(|file| &file.service);
        for service in services.filter(|service| service.name() != AMONG_CONTROL_NODES) {
            for method in &service.method {
                let Some(place) = reader.place(method.input_type()) else { continue };
                let name = reader.schema.messages[place].name.clone();
                let root = reader.schema.roots.entry(name).or_insert((place, Vec::new()));
                root.1.push(format!("{}/{}", service.name(), method.name()));
            }
        }
        reader.schema
    }
}

struct Reader<'a> {
    /// By full name.
    described: BTreeMap<String, &'a DescriptorProto>,
    places: BTreeMap<String, usize>,
    schema: Schema,
}

impl<'a> Reader<'a> {
    fn describe(&mut self, scope: &str, message: &'a DescriptorProto) {
        let full = format!("{scope}.{}", message.name());
        for nested in &message.nested_type {
            self.describe(&full, nested);
        }
        self.described.insert(full, message);
    }

    /// Where the message of this full name stands, with all it consists of.
    fn place(&mut self, full: &str) -> Option<usize> {
        if let Some(place) = self.places.get(full) {
            return Some(*place);
        }
        let message = *self.described.get(full)?;
        let place = self.schema.messages.len();
        self.places.insert(full.to_owned(), place);
        self.schema.messages.push(MessageSchema::default());
        let mut read = MessageSchema {
            name: message.name().to_owned(),
            map_entry: message.options.as_ref().is_some_and(|options| options.map_entry()),
            ..MessageSchema::default()
        };
        // Of several that exclude each other, the largest is what is taken.
        let mut choices: BTreeMap<i32, usize> = BTreeMap::new();
        for field in &message.field {
            let field_read = self.field(message, field);
            let bytes = match field_read.kind {
                _ if field_read.grows() => HEADER_BYTES,
                Kind::Message(inner) => self.schema.messages[inner].memory_bytes + CHOICE_BYTES,
                _ => NUMBER_BYTES,
            };
            match field.oneof_index {
                Some(choice) => {
                    let largest = choices.entry(choice).or_default();
                    *largest = bytes.max(*largest);
                }
                None => read.memory_bytes += bytes,
            }
            read.fields.insert(field.number().unsigned_abs(), field_read);
        }
        read.memory_bytes += choices.values().map(|bytes| bytes + CHOICE_BYTES).sum::<usize>();
        self.schema.messages[place] = read;
        Some(place)
    }

    fn field(&mut self, message: &DescriptorProto, field: &FieldDescriptorProto) -> FieldSchema {
        let row = |row: &&table::Row| row.0 == message.name() && row.1 == field.name();
        let kind = match field.r#type() {
            Type::String => Kind::Text,
            Type::Bytes => Kind::Bytes,
            Type::Fixed32 | Type::Sfixed32 | Type::Float => Kind::Fixed32,
            Type::Fixed64 | Type::Sfixed64 | Type::Double => Kind::Fixed64,
            Type::Message | Type::Group => self.place(field.type_name()).map_or(Kind::Bytes, Kind::Message),
            _ => Kind::Varint,
        };
        FieldSchema {
            name: field.name().to_owned(),
            kind,
            repeated: field.label() == Label::Repeated,
            bound: table::rows().find(row).map(|(_, _, bound)| *bound),
        }
    }
}
