//! Reading an older form: postcard, but fields that the form has not got yet take their defaults.
//!
//! What must stay true: of the newest form nothing goes through here; everything but the missing fields is read exactly as postcard would.

use super::{NEWEST, since, since_in};
use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use std::fmt;

/// The value at the head of `bytes`, written in `form`; what follows it is not looked at.
pub(crate) fn read<T: DeserializeOwned>(form: u8, bytes: &[u8]) -> postcard::Result<T> {
    let mut inner = postcard::Deserializer::from_bytes(bytes);
    if form == NEWEST { T::deserialize(&mut inner) } else { T::deserialize(Old { inner: &mut inner, form }) }
}

/// Anything of serde's, reading an older form.
struct Old<T> {
    inner: T,
    form: u8,
}

/// A visitor that hands on what it is given as [`Old`].
struct OldVisitor<V> {
    inner: V,
    form: u8,
}

/// A struct's visitor, with the fields that the form has, in order.
struct Fields<V> {
    inner: V,
    form: u8,
    present: Vec<bool>,
}

/// An enum's visitor.
struct Variants<V> {
    inner: V,
    form: u8,
    of: &'static str,
    names: &'static [&'static str],
}

/// What a variant holds.
struct Held<A> {
    inner: A,
    form: u8,
    of: &'static str,
    variant: &'static str,
}

macro_rules! forward {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(OldVisitor { inner: visitor, form: self.form })
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Old<D> {
    type Error = D::Error;

    forward! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_option
        deserialize_unit deserialize_seq deserialize_map deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, OldVisitor { inner: visitor, form: self.form })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, OldVisitor { inner: visitor, form: self.form })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple(len, OldVisitor { inner: visitor, form: self.form })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple_struct(name, len, OldVisitor { inner: visitor, form: self.form })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let present: Vec<bool> = fields.iter().map(|field| since(name, field) <= self.form).collect();
        let len = present.iter().filter(|present| **present).count();
        self.inner.deserialize_tuple(len, Fields { inner: visitor, form: self.form, present })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = Variants { inner: visitor, form: self.form, of: name, names: variants };
        self.inner.deserialize_enum(name, variants, visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident $type:ty,)*) => {
        $(fn $method<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for OldVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool bool, visit_i8 i8, visit_i16 i16, visit_i32 i32, visit_i64 i64, visit_i128 i128,
        visit_u8 u8, visit_u16 u16, visit_u32 u32, visit_u64 u64, visit_u128 u128, visit_f32 f32, visit_f64 f64,
        visit_char char, visit_str &str, visit_borrowed_str &'de str, visit_string String,
        visit_bytes &[u8], visit_borrowed_bytes &'de [u8], visit_byte_buf Vec<u8>,
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Old { inner, form: self.form })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Old { inner, form: self.form })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Old { inner, form: self.form })
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Old { inner, form: self.form })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Old<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        self.inner.next_element_seed(Old { inner: seed, form: self.form })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Old<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.inner.next_key_seed(Old { inner: seed, form: self.form })
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.next_value_seed(Old { inner: seed, form: self.form })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Old<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<T::Value, D::Error> {
        self.inner.deserialize(Old { inner, form: self.form })
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Fields<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(FieldSeq { inner, form: self.form, present: self.present.into_iter() })
    }
}

/// The fields of a struct; one that the form lacks is "not there", for which serde takes the default.
struct FieldSeq<A> {
    inner: A,
    form: u8,
    present: std::vec::IntoIter<bool>,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for FieldSeq<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        match self.present.next() {
            Some(true) => self.inner.next_element_seed(Old { inner: seed, form: self.form }),
            Some(false) | None => Ok(None),
        }
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Variants<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let Variants { inner: visitor, form, of, names } = self;
        visitor.visit_enum(Variants { inner, form, of, names })
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Variants<A> {
    type Error = A::Error;
    type Variant = Held<A::Variant>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self::Variant), A::Error> {
        let (index, inner) = self.inner.variant::<u32>()?;
        let known: U32Deserializer<A::Error> = index.into_deserializer();
        let value = seed.deserialize(known)?;
        let variant = self.names.get(index as usize).copied().unwrap_or_default();
        Ok((value, Held { inner, form: self.form, of: self.of, variant }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Held<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.newtype_variant_seed(Old { inner: seed, form: self.form })
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, OldVisitor { inner: visitor, form: self.form })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let Held { inner, form, of, variant } = self;
        let present: Vec<bool> = fields.iter().map(|field| since_in(of, variant, field) <= form).collect();
        let len = present.iter().filter(|present| **present).count();
        inner.tuple_variant(len, Fields { inner: visitor, form, present })
    }
}
