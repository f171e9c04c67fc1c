//! A second rule beside mounts and namespaces (Landlock), by the task's own path.
//!
//! What must stay true: it is put on by the task's process itself, and holds for all that it starts; it only takes away; only for a task that is alone in its
//! sandbox, since ranks under different rules could neither connect to each other's abstract sockets nor pass memory to each other, which NCCL does. What the
//! kernel is too old for is left out: [`super::probe`] says so.

use super::sys;
use landlock::{
    ABI, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use std::path::{Path, PathBuf};

/// From this version on, files can be moved between folders that may both be written to; before, never.
const REFER_ABI: u32 = 2;
/// From this version on, abstract sockets and signals have scopes.
const SCOPE_ABI: u32 = 6;

/// Where a task writes that has the host's files around it, beside its own folders.
const WRITABLE: [&str; 3] = ["/tmp", "/dev", "/proc"];

/// Which files a process may write below; nothing said: everywhere that mounts let it.
pub(super) struct Rules(Option<Vec<PathBuf>>);

impl Rules {
    /// Abstract sockets and signals alone.
    pub(super) const SCOPES: Rules = Rules(None);

    /// And writing, below these and what every task has.
    pub(super) fn writing_below(own: impl IntoIterator<Item = PathBuf>) -> Self {
        Rules(Some(WRITABLE.into_iter().map(PathBuf::from).chain(own).collect()))
    }

    /// Writing below one path and nowhere else: to find out what the kernel gives.
    pub(super) fn writing_below_only(path: &Path) -> Self {
        Rules(Some(vec![path.to_owned()]))
    }

    /// Puts this process under them. Says whether the kernel enforces what of it is about files, and what is about sockets.
    pub(super) fn apply(&self) -> Applied {
        let abi = sys::landlock_abi();
        let folders = self.0.as_ref().filter(|_| abi >= REFER_ABI);
        let has_scopes = abi >= SCOPE_ABI;
        let applied = restrict(folders, has_scopes);
        Applied { files: applied && folders.is_some(), sockets: applied && has_scopes }
    }
}

/// What the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) files: bool,
    pub(super) sockets: bool,
}

fn restrict(folders: Option<&Vec<PathBuf>>, has_scopes: bool) -> bool {
    let writing = AccessFs::from_write(ABI::V5);
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let handled = |ruleset: Ruleset| -> Result<Ruleset, landlock::RulesetError> {
        let ruleset = if folders.is_some() { ruleset.handle_access(writing)? } else { ruleset };
        if has_scopes { ruleset.scope(Scope::AbstractUnixSocket)?.scope(Scope::Signal) } else { Ok(ruleset) }
    };
    ruleset = match handled(ruleset) {
        Ok(ruleset) => ruleset,
        Err(_) => return false,
    };
    let Ok(mut created) = ruleset.create() else { return false };
    for folder in folders.into_iter().flatten() {
        // One that is not there cannot be written to.
        let Ok(fd) = PathFd::new(folder) else { continue };
        created = match created.add_rule(PathBeneath::new(fd, writing)) {
            Ok(created) => created,
            Err(_) => return false,
        };
    }
    created.restrict_self().is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
}
