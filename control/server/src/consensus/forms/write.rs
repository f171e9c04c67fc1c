//! Writing an older form: postcard, but fields that the form has not got yet are left out.
//!
//! What must stay true: nothing is lost by that. A field is left out only when it has its default; anything else is refused by its name.

use super::{Lacking, NEWEST, since, since_in};
use serde::Serialize;
use serde::ser::{
    Error, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple, SerializeTupleStruct,
    SerializeTupleVariant, Serializer,
};
use std::cell::Cell;

/// Writes `value` in `form` behind what `bytes` holds.
///
/// # Errors
/// The form has no place for something that the value has.
pub(crate) fn write<T: Serialize + ?Sized>(form: u8, value: &T, bytes: Vec<u8>) -> Result<Vec<u8>, Lacking> {
    if form == NEWEST {
        return Ok(plain(value, bytes));
    }
    let target = Target { form, lacking: Cell::new(None) };
    let written = postcard::to_extend(&As { value, target: &target }, bytes);
    match (written, target.lacking.get()) {
        (_, Some(lacking)) => Err(lacking),
        (Ok(bytes), None) => Ok(bytes),
        // Writing to memory has no way to fail; our types have no unserialisable values.
        (Err(error), None) => panic!("a value cannot be serialised: {error}"),
    }
}

fn plain<T: Serialize + ?Sized>(value: &T, bytes: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(value, bytes).expect("stored values can be serialised")
}

/// The form that is written, and what it turned out to lack. serde's errors of postcard carry no text.
struct Target {
    form: u8,
    lacking: Cell<Option<Lacking>>,
}

impl Target {
    /// Whether the form has what came with form `since`; what it lacks must have its default, or it is noted.
    fn has<T: Serialize + ?Sized>(&self, of: &'static str, name: &'static str, since: u8, value: &T) -> bool {
        if since <= self.form {
            return true;
        }
        // In postcard, whatever equals its default is zeros: numbers, `false`, `None`, the first variant, what is empty.
        if plain(value, Vec::new()).iter().any(|byte| *byte != 0) {
            self.lacking.set(Some(Lacking { of, name, form: since }));
        }
        false
    }

    fn check_variant<E: Error>(&self, of: &'static str, variant: &'static str) -> Result<(), E> {
        let form = since(of, variant);
        if form <= self.form {
            return Ok(());
        }
        self.lacking.set(Some(Lacking { of, name: variant, form }));
        Err(E::custom("the form lacks a variant"))
    }
}

/// A value that is written in the target's form.
struct As<'a, T: ?Sized> {
    value: &'a T,
    target: &'a Target,
}

impl<T: Serialize + ?Sized> Serialize for As<'_, T> {
    fn serialize<S: Serializer>(&self, inner: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Writer { inner, target: self.target })
    }
}

/// Anything of serde's, writing the target's form.
struct Writer<'a, S> {
    inner: S,
    target: &'a Target,
}

/// A struct, or a variant with fields, that is being written.
struct Fields<'a, S> {
    inner: S,
    target: &'a Target,
    of: &'static str,
    variant: Option<&'static str>,
}

macro_rules! forward {
    ($($method:ident $type:ty,)*) => {
        $(fn $method(self, value: $type) -> Result<S::Ok, S::Error> {
            self.inner.$method(value)
        })*
    };
}

impl<'a, S: Serializer> Serializer for Writer<'a, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Writer<'a, S::SerializeSeq>;
    type SerializeTuple = Writer<'a, S::SerializeTuple>;
    type SerializeTupleStruct = Writer<'a, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Writer<'a, S::SerializeTupleVariant>;
    type SerializeMap = Writer<'a, S::SerializeMap>;
    type SerializeStruct = Fields<'a, S::SerializeStruct>;
    type SerializeStructVariant = Fields<'a, S::SerializeStructVariant>;

    forward! {
        serialize_bool bool, serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_i128 i128,
        serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_u128 u128,
        serialize_f32 f32, serialize_f64 f64, serialize_char char, serialize_str &str, serialize_bytes &[u8],
        serialize_unit_struct &'static str,
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_none()
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.serialize_some(&As { value, target: self.target })
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.serialize_newtype_struct(name, &As { value, target: self.target })
    }

    fn serialize_unit_variant(self, of: &'static str, index: u32, variant: &'static str) -> Result<S::Ok, S::Error> {
        self.target.check_variant(of, variant)?;
        self.inner.serialize_unit_variant(of, index, variant)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        of: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.target.check_variant(of, variant)?;
        self.inner.serialize_newtype_variant(of, index, variant, &As { value, target: self.target })
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        Ok(Writer { inner: self.inner.serialize_seq(len)?, target: self.target })
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        Ok(Writer { inner: self.inner.serialize_tuple(len)?, target: self.target })
    }

    fn serialize_tuple_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeTupleStruct, S::Error> {
        Ok(Writer { inner: self.inner.serialize_tuple_struct(name, len)?, target: self.target })
    }

    fn serialize_tuple_variant(
        self,
        of: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.target.check_variant(of, variant)?;
        Ok(Writer { inner: self.inner.serialize_tuple_variant(of, index, variant, len)?, target: self.target })
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        Ok(Writer { inner: self.inner.serialize_map(len)?, target: self.target })
    }

    fn serialize_struct(self, of: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        Ok(Fields { inner: self.inner.serialize_struct(of, len)?, target: self.target, of, variant: None })
    }

    fn serialize_struct_variant(
        self,
        of: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.target.check_variant(of, variant)?;
        let inner = self.inner.serialize_struct_variant(of, index, variant, len)?;
        Ok(Fields { inner, target: self.target, of, variant: Some(variant) })
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! elements {
    ($($of:ident $method:ident,)*) => {
        $(impl<S: $of> $of for Writer<'_, S> {
            type Ok = S::Ok;
            type Error = S::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
                self.inner.$method(&As { value, target: self.target })
            }

            fn end(self) -> Result<S::Ok, S::Error> {
                self.inner.end()
            }
        })*
    };
}

elements! {
    SerializeSeq serialize_element, SerializeTuple serialize_element, SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field,
}

impl<S: SerializeMap> SerializeMap for Writer<'_, S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_key(&As { value, target: self.target })
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_value(&As { value, target: self.target })
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeStruct> SerializeStruct for Fields<'_, S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), S::Error> {
        if self.target.has(self.of, key, since(self.of, key), value) {
            self.inner.serialize_field(key, &As { value, target: self.target })?;
        }
        Ok(())
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeStructVariant> SerializeStructVariant for Fields<'_, S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), S::Error> {
        let form = since_in(self.of, self.variant.unwrap_or_default(), key);
        if self.target.has(self.of, key, form, value) {
            self.inner.serialize_field(key, &As { value, target: self.target })?;
        }
        Ok(())
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}
