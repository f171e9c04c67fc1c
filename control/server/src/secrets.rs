//! Sealing and opening of tenants' secrets, with a key that control nodes have in a file of their identity.
//!
//! What must stay true: the key is in no log, no snapshot and no message; a sealed value opens for the cluster, the tenant and the name for which it was
//! sealed, and for nothing else; nothing is sealed or opened where connections are in clear text; the file is read when it is needed, so that another key is
//! used at once.

use muster_model::bounds::SECRET_BYTES_MAX;
use muster_model::identity::{Sealed, Secret};
use muster_model::ids::TenantId;
use muster_proto::v1;
use muster_runtime::pki::SECRETS_KEY_FILE;
use muster_runtime::{DiskError, Host};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::error::Unspecified;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Why a secret is neither sealed nor opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// It would travel for everybody to read.
    #[error("this control node runs in clear text, so it takes and gives no secrets; see --identity")]
    ClearText,
    /// There is no key.
    #[error(
        "this control node has no {SECRETS_KEY_FILE} in the folder of its identity: make one with `muster ca secrets-key`, and copy it to each control node"
    )]
    NoKey,
    /// The file cannot be read.
    #[error("{SECRETS_KEY_FILE} cannot be read: {0}")]
    Disk(#[from] DiskError),
    /// The file is something else.
    #[error("{SECRETS_KEY_FILE} is damaged: line {line} is not 64 hexadecimal digits")]
    Damaged {
        /// Where.
        line: usize,
    },
    /// The key that it was sealed with is not in the file.
    #[error("{SECRETS_KEY_FILE} of this control node lacks key {key}, with which secret {name} was sealed")]
    OtherKey {
        /// The beginning of its hash.
        key: String,
        /// Which secret.
        name: String,
    },
    /// It was altered, or is of another tenant.
    #[error("secret {name} does not open: it was altered, or sealed for another tenant, name or cluster")]
    Altered {
        /// Which secret.
        name: String,
    },
    /// What was sealed is no text.
    #[error("secret {name} is no text")]
    NoText {
        /// Which secret.
        name: String,
    },
}

/// The keys of a control node. What is new is sealed with the first; the others open what was sealed with them.
pub(crate) struct Keys(Vec<Key>);

struct Key {
    id: [u8; 8],
    key: LessSafeKey,
}

impl Keys {
    /// Reads the file.
    ///
    /// # Errors
    /// [`SecretError`].
    pub(crate) fn of(host: &Host) -> Result<Self, SecretError> {
        if host.net.credentials().is_none() {
            return Err(SecretError::ClearText);
        }
        let text = host.identity.read(SECRETS_KEY_FILE)?.ok_or(SecretError::NoKey)?;
        let text = String::from_utf8(text).map_err(|_| SecretError::Damaged { line: 1 })?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, SecretError> {
        let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
        let key = |(index, line): (usize, &str)| {
            let bytes = bytes_of(line).ok_or(SecretError::Damaged { line: index + 1 })?;
            let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| SecretError::Damaged { line: index + 1 })?;
            let hash: [u8; 32] = Sha256::digest(bytes).into();
            let mut id = [0; 8];
            id.copy_from_slice(&hash[..8]);
            Ok(Key { id, key: LessSafeKey::new(key) })
        };
        let keys = lines.map(key).collect::<Result<Vec<_>, SecretError>>()?;
        if keys.is_empty() { Err(SecretError::NoKey) } else { Ok(Keys(keys)) }
    }

    /// Seals a value. The nonce is new: see [`nonce`].
    ///
    /// # Errors
    /// When there is no key.
    pub(crate) fn seal(&self, nonce: [u8; 12], of: &Of<'_>, value: &str) -> Result<Sealed, SecretError> {
        let first = self.0.first().ok_or(SecretError::NoKey)?;
        let mut text = value.as_bytes().to_vec();
        let drawn = Nonce::assume_unique_for_key(nonce);
        let sealed = first.key.seal_in_place_append_tag(drawn, Aad::from(of.bytes()), &mut text);
        sealed.map_err(|Unspecified| SecretError::NoKey)?;
        Ok(Sealed { key: first.id, nonce, text })
    }

    /// Opens a secret.
    ///
    /// # Errors
    /// [`SecretError`].
    pub(crate) fn open(&self, cluster: u64, secret: &Secret) -> Result<String, SecretError> {
        let name = || secret.name.clone();
        let Sealed { key, nonce, text } = &secret.sealed;
        let found = self.0.iter().find(|one| one.id == *key);
        let found = found.ok_or_else(|| SecretError::OtherKey { key: digits(key), name: name() })?;
        let of = Of { cluster, tenant: secret.tenant, name: &secret.name };
        let mut text = text.clone();
        let opened = found.key.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(of.bytes()), &mut text);
        let opened = opened.map_err(|Unspecified| SecretError::Altered { name: name() })?;
        String::from_utf8(opened.to_vec()).map_err(|_| SecretError::NoText { name: name() })
    }
}

/// Drawn for one value.
pub(crate) fn nonce(host: &Host) -> [u8; 12] {
    let mut nonce = [0; 12];
    let (first, last) = nonce.split_at_mut(8);
    first.copy_from_slice(&host.chance.u64().to_le_bytes());
    last.copy_from_slice(&host.chance.u64().to_le_bytes()[..4]);
    nonce
}

/// What a value is sealed for.
pub(crate) struct Of<'a> {
    pub(crate) cluster: u64,
    pub(crate) tenant: TenantId,
    pub(crate) name: &'a str,
}

impl Of<'_> {
    fn bytes(&self) -> Vec<u8> {
        format!("muster secret 1\0{:016x}\0{}\0{}", self.cluster, self.tenant.0, self.name).into_bytes()
    }
}

/// Gives a task that is to start its secrets, or says why they are missing: the task then waits.
pub(crate) fn deliver(
    keys: &Result<Keys, SecretError>,
    cluster: u64,
    secrets: BTreeMap<String, Option<Secret>>,
    task: &mut v1::DesiredTask,
) {
    match open_all(keys, cluster, secrets) {
        Ok(values) => task.secrets = values,
        Err(why) => {
            metrics::counter!("muster_secrets_not_opened_total").increment(1);
            tracing::error!(job = task.job, why, "a task waits for its secrets");
            task.secrets_missing = why;
        }
    }
}

/// Why the secrets of a job cannot be opened here; nothing where they can.
pub(crate) fn missing(host: &Host, cluster: u64, secrets: BTreeMap<String, Option<Secret>>) -> Option<String> {
    open_all(&Keys::of(host), cluster, secrets).err()
}

/// The values by variable, or why one of them cannot be opened.
fn open_all(
    keys: &Result<Keys, SecretError>,
    cluster: u64,
    secrets: BTreeMap<String, Option<Secret>>,
) -> Result<BTreeMap<String, String>, String> {
    let keys = keys.as_ref().map_err(ToString::to_string)?;
    let open = |(variable, secret): (String, Option<Secret>)| {
        let secret = secret.ok_or_else(|| format!("the secret of {variable} was removed"))?;
        Ok((variable, keys.open(cluster, &secret).map_err(|error| error.to_string())?))
    };
    secrets.into_iter().map(open).collect()
}

/// Whether a value can be that of a variable.
pub(crate) fn fault_of(value: &str) -> Option<&'static str> {
    match value {
        "" => Some("is empty"),
        _ if value.len() > SECRET_BYTES_MAX => Some("has more than 4,096 bytes"),
        _ if value.contains('\0') => Some("has a NUL byte"),
        _ => None,
    }
}

/// The name of a key, as people see it.
pub(crate) fn digits(key: &[u8; 8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(line: &str) -> Option<[u8; KEY_BYTES]> {
    if line.len() != 2 * KEY_BYTES || !line.is_ascii() {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(line.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::Principal;

    fn line(digit: char) -> String {
        std::iter::repeat_n(digit, 2 * KEY_BYTES).collect()
    }

    fn secret(sealed: Sealed) -> Secret {
        Secret { tenant: TenantId(3), name: "token".to_owned(), sealed, by: Principal::Anonymous, since_ms: 0 }
    }

    fn sealed(keys: &Keys) -> Sealed {
        let of = Of { cluster: 7, tenant: TenantId(3), name: "token" };
        keys.seal([9; 12], &of, "s3cret").expect("it is sealed")
    }

    #[test]
    fn a_value_opens_for_what_it_was_sealed_for_alone() {
        let keys = Keys::parse(&line('a')).expect("a key");
        let good = secret(sealed(&keys));
        assert_eq!(keys.open(7, &good).expect("it opens"), "s3cret");
        assert!(!good.sealed.text.windows(6).any(|part| part == b"s3cret"));
        assert!(keys.open(8, &good).is_err(), "another cluster");
        let other = Secret { tenant: TenantId(4), ..good.clone() };
        assert!(keys.open(7, &other).is_err(), "another tenant");
        let other = Secret { name: "other".to_owned(), ..good.clone() };
        assert!(keys.open(7, &other).is_err(), "another name");
        for bit in 0..8 {
            let mut altered = good.clone();
            altered.sealed.text[0] ^= 1 << bit;
            assert!(matches!(keys.open(7, &altered), Err(SecretError::Altered { .. })));
        }
    }

    #[test]
    fn older_keys_open_and_the_first_seals() {
        let old = Keys::parse(&line('a')).expect("a key");
        let both = Keys::parse(&format!("{}\n\n{}\n", line('b'), line('a'))).expect("two keys");
        let good = secret(sealed(&old));
        assert_eq!(both.open(7, &good).expect("it opens"), "s3cret");
        let newer = secret(sealed(&both));
        assert!(matches!(old.open(7, &newer), Err(SecretError::OtherKey { .. })));
        assert_eq!(both.open(7, &newer).expect("it opens"), "s3cret");
    }

    #[test]
    fn files_that_are_none_are_refused() {
        let fault = |text: &str| Keys::parse(text).err().expect("no keys").to_string();
        assert!(fault("").contains("has no secrets.key"));
        assert!(fault(&line('a')[1..]).contains("line 1"));
        assert!(fault(&format!("{}\n{}", line('a'), line('g'))).contains("line 2"));
    }
}
