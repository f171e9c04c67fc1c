//! A word or a number, as YAML has them, kept as text: `time: 4h`, `time: 90`, `cpus: 0.5`.

use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// The text of a YAML scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar(pub String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or a number")
            }
            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A version: a word or a whole number. YAML reads `570.10` as the number 570.1, so that is refused rather than misread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Version;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a version in quotes, such as \"570.10\"")
            }
            fn visit_str<E>(self, text: &str) -> Result<Version, E> {
                Ok(Version(text.to_owned()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Version, E> {
                Ok(Version(value.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// One word, or a list of words.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "text or a list of texts")]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// As a list.
    #[must_use]
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMany::One(word) => word.split(',').map(|part| part.trim().to_owned()).collect(),
            OneOrMany::Many(words) => words,
        }
    }
}
