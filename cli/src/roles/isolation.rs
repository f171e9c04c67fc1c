//! How the tasks of a node are isolated: what the operator wants, and what this machine gives.
//!
//! What must stay true: a node whose operator wants full isolation does not start with less; no task runs as root, or as another user of the system,
//! unless the operator has allowed it; what is missing is logged with its remedy.

use crate::args::roles::{Isolated, Isolation as Options, Node as Args};
use anyhow::{Context, bail};
use muster_agent::exec::process::{IsolationConfig, TaskUsers};
use muster_agent::sandbox::probe::{Findings, find_out};
use muster_agent::shim_command::ShimCommand;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// The first number of an ordinary user, on every Linux of today.
const ORDINARY_USER_MIN: u32 = 1_000;

/// This program as a shim.
///
/// # Errors
/// When it cannot be found.
pub fn shim() -> anyhow::Result<ShimCommand> {
    let program = std::env::current_exe().context("finding this program")?;
    Ok(ShimCommand { program, arguments: vec!["shim".to_owned()] })
}

/// How tasks are isolated, as the options want it. Blocks for about a second.
///
/// # Errors
/// When this machine does not give what the operator wants, or the options make no sense.
pub fn of(args: &Args) -> anyhow::Result<Option<IsolationConfig>> {
    let options = &args.isolation;
    let is_root = nix::unistd::geteuid().is_root();
    let users = users(options)?;
    if options.isolation == Isolated::None {
        if is_root && !options.allow_system_users {
            bail!(
                "isolation: tasks would run as root; use --isolation available, or allow it with --allow-system-users"
            );
        }
        return Ok(None);
    }
    let data = args.data().context("finding the data folder")?;
    let found = find_out(&shim()?, &data, &name_of(&data)).context("finding out how tasks can be isolated here")?;
    check(&found, options, is_root)?;
    let mut writable = Vec::with_capacity(options.task_writes.len());
    for path in &options.task_writes {
        // Sandboxes are made elsewhere, in `/`, where it must mean the same.
        let whole = std::fs::canonicalize(path).with_context(|| format!("task-writes: {}", path.display()))?;
        if !whole.is_dir() {
            bail!("task-writes: {} is no folder; name a folder", path.display());
        }
        writable.push(whole);
    }
    Ok(found.has_sandboxes().then(|| IsolationConfig {
        users: if found.is_full { users } else { TaskUsers::Agent },
        writable,
        cgroups: found.cgroups,
        pids_max: options.task_processes,
    }))
}

fn users(options: &Options) -> anyhow::Result<TaskUsers> {
    let (users, lowest, option) = match options.task_user {
        Some(user) => (TaskUsers::One(user), user, "task-user"),
        None => (TaskUsers::PerTenant { base: options.task_user_base }, options.task_user_base, "task-user-base"),
    };
    if lowest < ORDINARY_USER_MIN && !options.allow_system_users {
        bail!(
            "{option}: {lowest} is a user of the system; use {ORDINARY_USER_MIN} or more, or add --allow-system-users"
        );
    }
    Ok(users)
}

fn check(found: &Findings, options: &Options, is_root: bool) -> anyhow::Result<()> {
    let missing = found.proofs.iter().filter(|proof| !proof.holds);
    let missing: Vec<String> =
        missing.map(|proof| format!("{}: {}; remedy: {}", proof.what, proof.seen, proof.remedy)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if options.isolation == Isolated::Full {
        bail!("isolation: this machine does not isolate tasks fully\n{}", missing.join("\n"));
    }
    if is_root && !found.has_sandboxes() && !options.allow_system_users {
        bail!(
            "isolation: tasks would run as root, since this machine cannot isolate them; allow it with --allow-system-users\n{}",
            missing.join("\n")
        );
    }
    for missing in missing {
        tracing::warn!(missing, "tasks are not isolated fully");
    }
    Ok(())
}

/// A name for the control groups of the nodes of a data folder.
fn name_of(data: &Path) -> String {
    let mut hash = DefaultHasher::new();
    data.hash(&mut hash);
    format!("{:016x}", hash.finish())
}
