//! The roles as processes: a control node, a shard, an agent of one or several hosts.
//!
//! What must stay true: a role only wires its server to a real host, to logs and to a health page; SIGTERM and Ctrl-C end it in
//! order, anything else is a crash that its successor survives.

pub mod control;
pub mod doctor;
pub mod gpus;
pub mod http;
pub mod isolation;
pub mod metrics;
pub mod node;
pub mod record;
pub mod shard;
pub mod telemetry;
mod timeline;

use crate::args::roles::RoleCommon;
use crate::commands::machine::join_as;
use crate::failure::Failure;
use crate::roles::http::HttpConfig;
use muster_enrolment::is_enrolled;
use muster_runtime::Host;
use muster_runtime::pki::Role;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use std::future::Future;
use std::path::Path;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Threads of a role that mostly waits for the network: decisions are short, and many roles share a machine in development.
const WORKERS: usize = 2;

/// Sets the process up, runs `role` on a runtime, and ends. The role is given what its pages need.
///
/// # Errors
/// What the role failed with; or a file that its options name cannot be used.
pub fn run<F>(common: &RoleCommon, role: impl FnOnce(HttpConfig) -> F) -> Result<(), Failure>
where
    F: Future<Output = anyhow::Result<()>>,
{
    if let Some(parent) = common.parent {
        die_with(parent)?;
    }
    // Before anything runs: a wrong file is said at once.
    let pages = HttpConfig::new(common)?;
    telemetry::init(common.log_format);
    telemetry::log_panics();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("starting", error))?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = role(pages) => result,
            // Without the task the role would go on half dead; whoever supervises it starts it again.
            what = panicked() => Err(anyhow::anyhow!("internal error (a bug): a task panicked: {what}")),
        }
    });
    let result = result.map_err(Failure::Role);
    // What still runs in the background has nothing to say any more.
    runtime.shutdown_background();
    result
}

/// How long a role may take to end by itself after a panic, as a control node does in order.
const AFTER_PANIC: Duration = Duration::from_secs(5);

async fn panicked() -> String {
    let what = muster_runtime::real::panicked().await;
    tokio::time::sleep(AFTER_PANIC).await;
    what
}

/// Enrols a machine that has no identity yet, with the token of the file; it asks until it is let in or refused.
///
/// # Errors
/// When it is refused, or the file is none.
async fn join(host: &Host, role: Role, file: Option<&Path>) -> anyhow::Result<()> {
    match file {
        Some(file) if !is_enrolled(host)? => Ok(join_as(host, role, file, None).await?),
        _ => Ok(()),
    }
}

/// Asks the kernel for SIGKILL when `parent` goes, so that nothing of a development cluster outlives its supervisor.
fn die_with(parent: i32) -> Result<(), Failure> {
    prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|errno| Failure::io("asking for the parent's end", std::io::Error::from(errno)))?;
    // It may have gone before the kernel was asked.
    if getppid() == Pid::from_raw(parent) {
        Ok(())
    } else {
        Err(Failure::Role(anyhow::anyhow!("the parent process {parent} has ended")))
    }
}

/// Resolves with the name of the signal when the process is told to stop.
///
/// # Errors
/// When signals cannot be listened for.
pub async fn told_to_stop() -> std::io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
