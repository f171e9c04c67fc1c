//! Variables of a job: a text, or a secret of the tenant.

use crate::spec::scalar::Scalar;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What a variable gets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "text, a number or {secret: NAME}")]
pub enum EnvValue {
    /// This.
    Text(Scalar),
    /// The value of a secret.
    Secret(SecretName),
}

/// A secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretName {
    /// Its name.
    pub secret: String,
}

impl EnvValue {
    /// The value of the secret of this name.
    #[must_use]
    pub fn secret(name: &str) -> Self {
        EnvValue::Secret(SecretName { secret: name.to_owned() })
    }
}

/// Texts and names of secrets, by the variable.
pub(super) fn parted(env: BTreeMap<String, EnvValue>) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let (mut texts, mut secrets) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in env {
        match value {
            EnvValue::Text(text) => texts.insert(name, text.0),
            EnvValue::Secret(SecretName { secret }) => secrets.insert(name, secret),
        };
    }
    (texts, secrets)
}
