//! Reading a stored tree: no deeper than a text can make it.
//!
//! Each level of a tree is one level of recursion. What must stay true: bytes from a disk or a peer end in an error, never in a full stack; what is read is
//! what the derived `Serialize` writes.

use super::{Expr, Selector, bounds};
use serde::de::{DeserializeSeed, EnumAccess, Error, SeqAccess, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Wrapped;
        impl<'de> Visitor<'de> for Wrapped {
            type Value = Selector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a selector")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Selector, D::Error> {
                Level(1).deserialize(from).map(Selector)
            }
        }
        from.deserialize_newtype_struct("Selector", Wrapped)
    }
}

/// Reads a part of the tree that stands on this level, from 1.
#[derive(Clone, Copy)]
struct Level(usize);

/// Reads the parts of a join, each on this level.
struct Parts(Level);

/// The variants of [`Expr`], in its order.
#[derive(Deserialize)]
#[serde(variant_identifier)]
enum Kind {
    All,
    Any,
    Not,
    Model,
    Memory,
    Driver,
    Word,
    HasLabel,
    Cuda,
}

const KINDS: [&str; 9] = ["All", "Any", "Not", "Model", "Memory", "Driver", "Word", "HasLabel", "Cuda"];

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Expr;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Expr, D::Error> {
        if self.0 > bounds::DEPTH_MAX {
            return Err(D::Error::custom(format_args!("selector has more than {} levels", bounds::DEPTH_MAX)));
        }
        from.deserialize_enum("Expr", &KINDS, self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Expr;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of a selector")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, from: A) -> Result<Expr, A::Error> {
        let (kind, content) = from.variant()?;
        let below = Level(self.0 + 1);
        match kind {
            Kind::All => content.newtype_variant_seed(Parts(below)).map(Expr::All),
            Kind::Any => content.newtype_variant_seed(Parts(below)).map(Expr::Any),
            Kind::Not => content.newtype_variant_seed(below).map(|part| Expr::Not(Box::new(part))),
            Kind::Model => content.newtype_variant().map(Expr::Model),
            Kind::Memory => content.tuple_variant(2, Pair::new()).map(|(order, mib)| Expr::Memory(order, mib)),
            Kind::Driver => content.tuple_variant(2, Pair::new()).map(|(order, version)| Expr::Driver(order, version)),
            Kind::Word => content.tuple_variant(2, Pair::new()).map(|(word, any_of)| Expr::Word(word, any_of)),
            Kind::HasLabel => content.newtype_variant().map(Expr::HasLabel),
            Kind::Cuda => content.tuple_variant(2, Pair::new()).map(|(order, version)| Expr::Cuda(order, version)),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Parts {
    type Value = Vec<Expr>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<Expr>, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Parts {
    type Value = Vec<Expr>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("parts of a selector")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<Expr>, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = from.next_element_seed(self.0)? {
            parts.push(part);
        }
        Ok(parts)
    }
}

/// Reads the two fields of a variant.
struct Pair<A, B>(PhantomData<(A, B)>);

impl<A, B> Pair<A, B> {
    fn new() -> Self {
        Pair(PhantomData)
    }
}

impl<'de, A: Deserialize<'de>, B: Deserialize<'de>> Visitor<'de> for Pair<A, B> {
    type Value = (A, B);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two fields")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut from: S) -> Result<(A, B), S::Error> {
        let missing = |index| S::Error::invalid_length(index, &"two fields");
        let first = from.next_element()?.ok_or_else(|| missing(0))?;
        let second = from.next_element()?.ok_or_else(|| missing(1))?;
        Ok((first, second))
    }
}
