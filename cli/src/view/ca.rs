//! Roots, issuers and identities of machines as they are shown.

use crate::output::{Block, Columns};
use muster_runtime::pki::{Authority, Credentials};
use serde::Serialize;
use std::path::Path;

/// A machine's identity.
#[derive(Clone, Debug, Serialize)]
pub struct MachineView {
    /// As `spiffe://fleet/node/gpu-0001`.
    pub name: String,
    /// SHA-256 of its public key.
    pub key_sha256: String,
    /// When its certificate expires, in ms since the Unix epoch.
    pub until_ms: u64,
    /// Whether the key was there before.
    #[serde(skip)]
    pub renewed: bool,
}

impl MachineView {
    /// None where the credentials have no key.
    #[must_use]
    pub fn of(credentials: &Credentials, renewed: bool) -> Option<Self> {
        let shown = credentials.presented()?;
        Some(MachineView {
            name: shown.name.to_string(),
            key_sha256: shown.spki_sha256.to_string(),
            until_ms: shown.validity.until_ms,
            renewed,
        })
    }

    /// For people, after it was made.
    #[must_use]
    pub fn made(&self, folder: &Path) -> String {
        let done = if self.renewed { "renewed, with its key" } else { "made" };
        format!("{} {done} in {}, until {}", self.name, folder.display(), muster_model::utc::show(self.until_ms))
    }
}

/// A root or an issuer.
#[derive(Clone, Debug, Serialize)]
pub struct AuthorityView {
    /// The file.
    pub file: String,
    /// As `spiffe://fleet/issuer/1`.
    pub name: String,
    /// SHA-256 of its public key.
    pub key_sha256: String,
    /// When its certificate expires, in ms since the Unix epoch.
    pub until_ms: u64,
}

impl AuthorityView {
    /// Of the authority in this file.
    #[must_use]
    pub fn of(file: &str, authority: &Authority) -> Self {
        let stated = authority.stated();
        AuthorityView {
            file: file.to_owned(),
            name: stated.subject.to_string(),
            key_sha256: stated.spki_sha256.to_string(),
            until_ms: stated.validity.until_ms,
        }
    }
}

/// A folder of `muster ca`.
#[derive(Clone, Debug, Serialize)]
pub struct FolderView {
    /// The machine whose identity it is.
    pub machine: Option<MachineView>,
    /// A root, an issuer, or none.
    pub authorities: Vec<AuthorityView>,
    /// Fingerprints of the roots that are trusted.
    pub trusts: Vec<String>,
}

impl FolderView {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.machine.is_none() && self.authorities.is_empty() && self.trusts.is_empty()
    }

    /// For people.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let mut columns = Columns::new(&["FILE", "NAME", "KEY", "UNTIL"]);
        let short = |key: &str| format!("sha256:{}", key.chars().take(16).collect::<String>());
        let mut row = |file: &str, name: &str, key: &str, until_ms: u64| {
            columns.row(vec![file.to_owned(), name.to_owned(), short(key), muster_model::utc::show(until_ms)]);
        };
        if let Some(machine) = &self.machine {
            row("machine.pem", &machine.name, &machine.key_sha256, machine.until_ms);
        }
        self.authorities.iter().for_each(|of| row(&of.file, &of.name, &of.key_sha256, of.until_ms));
        let trusts = self.trusts.iter().map(|root| format!("trusts {root}")).collect::<Vec<_>>().join("\n");
        vec![columns.block(), Block::Text(trusts)]
    }
}
