//! All fuzz targets.
//!
//! What must stay true: names are unique, since each is a folder of kept inputs.

use crate::target::Target;
use crate::targets::{files, host, images, login, pki, replay, stored, text, tokens, wire};

/// All targets, group by group.
pub const GROUPS: &[(&str, &[Target])] = &[
    ("text", text::TARGETS),
    ("replay", replay::TARGETS),
    ("files", files::TARGETS),
    ("wire", wire::TARGETS),
    ("stored", stored::TARGETS),
    ("tokens", tokens::TARGETS),
    ("login", login::TARGETS),
    ("pki", pki::TARGETS),
    ("host", host::TARGETS),
    ("images", images::TARGETS),
];

/// All targets.
pub fn all() -> impl Iterator<Item = &'static Target> {
    GROUPS.iter().flat_map(|(_, targets)| targets.iter())
}

/// The target of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Target> {
    all().find(|target| target.name == name)
}
