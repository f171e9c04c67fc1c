//! How the tasks of a node are isolated: what the operator wants, and what this machine gives.
//!
//! What must stay true: a node whose operator wants full isolation does not start with less; no task runs as root, or as another user of the system,
//! unless the operator has allowed it; what is missing is logged with its remedy.

use crate::args::roles::{Isolated, Isolation as Options, Node as Args};
use anyhow::{Context, bail};
use muster_agent::exec::process::{IsolationConfig, TaskUsers};
use muster_agent::sandbox::probe::{Findings, find_out};
use muster_agent::shim_command::ShimCommand;
use muster_model::bounds::RUN_AS_MIN;
use muster_model::{Proof, Protection};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;

/// This program as a shim.
///
/// # Errors
/// When it cannot be found.
pub fn shim() -> anyhow::Result<ShimCommand> {
    let program = std::env::current_exe().context("finding this program")?;
    Ok(ShimCommand { program, arguments: vec!["shim".to_owned()] })
}

/// How the tasks of this process's nodes are isolated, and what they have proved of it.
#[derive(Clone)]
pub struct Tasks {
    /// Absent: not at all.
    pub config: Option<IsolationConfig>,
    /// It changes when this machine does.
    pub proofs: watch::Receiver<Vec<Proof>>,
}

impl Tasks {
    /// Tasks without processes, which need none.
    #[must_use]
    pub fn simulated() -> Self {
        Tasks { config: None, proofs: watch::channel(Vec::new()).1 }
    }
}

/// How tasks are isolated, as the options want it. Blocks for about a second. From then on this machine is tried again and again.
///
/// # Errors
/// When this machine does not give what the operator wants, or the options make no sense.
pub fn of(args: &Args) -> anyhow::Result<Tasks> {
    let options = &args.isolation;
    let is_root = nix::unistd::geteuid().is_root();
    let users = users(options)?;
    if options.isolation == Isolated::None {
        if is_root && !options.allow_system_users {
            bail!(
                "isolation: tasks would run as root; use --isolation available, or allow it with --allow-system-users"
            );
        }
        let unproven = Proof::new(Protection::Processes, Some("the agent runs with --isolation none".to_owned()));
        return Ok(Tasks { config: None, proofs: watch::channel(vec![unproven]).1 });
    }
    let data = args.data().context("finding the data folder")?;
    let (shim, name) = (shim()?, name_of(&data));
    let found = find_out(&shim, &data, &name).context("finding out how tasks can be isolated here")?;
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
    let (tell, proofs) = watch::channel(found.told());
    let again = Again { shim, data, name, tell, every: Duration::from_secs(options.probe_every.0.max(1)) };
    tokio::spawn(again.run());
    let config = found.has_sandboxes().then(|| IsolationConfig {
        users: if found.is_full { users } else { TaskUsers::Agent },
        writable,
        cgroups: found.cgroups,
        pids_max: options.task_processes,
        allows_system_users: options.allow_system_users,
        scratch_mib: options.task_scratch.unwrap_or_default(),
        driver_params: None,
    });
    Ok(Tasks { config, proofs })
}

/// Tries this machine again.
struct Again {
    shim: ShimCommand,
    data: PathBuf,
    name: String,
    tell: watch::Sender<Vec<Proof>>,
    every: Duration,
}

impl Again {
    /// As long as an agent wants to know.
    async fn run(self) {
        let Again { shim, data, name, tell, every } = self;
        loop {
            tokio::select! {
                () = tell.closed() => return,
                () = tokio::time::sleep(every) => {}
            }
            let (shim, data, name) = (shim.clone(), data.clone(), name.clone());
            let found = tokio::task::spawn_blocking(move || find_out(&shim, &data, &name)).await;
            let told = match found {
                Ok(Ok(found)) => found.told(),
                Ok(Err(error)) => {
                    // Nothing is known of what holds now: what was proved before stands until the next attempt.
                    tracing::error!(%error, "cannot find out how tasks can be isolated here; trying again later");
                    continue;
                }
                Err(_) => return,
            };
            tell.send_if_modified(|known| {
                for now in told.iter().filter(|now| !known.contains(now)) {
                    match &now.fault {
                        Some(fault) => tracing::error!(protection = %now.protection, fault, "tasks are not isolated any more as they were"),
                        None => tracing::info!(protection = %now.protection, "tasks are isolated in this again"),
                    }
                }
                let changed = *known != told;
                *known = told;
                changed
            });
        }
    }
}

fn users(options: &Options) -> anyhow::Result<TaskUsers> {
    let (users, lowest, option) = match options.task_user {
        Some(user) => (TaskUsers::One(user), user, "task-user"),
        None => (TaskUsers::PerTenant { base: options.task_user_base }, options.task_user_base, "task-user-base"),
    };
    if lowest < RUN_AS_MIN && !options.allow_system_users {
        bail!("{option}: {lowest} is a user of the system; use {RUN_AS_MIN} or more, or add --allow-system-users");
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
