//! The run's own namespaces: network, mounts and processes.
//!
//! The command starts itself again in new namespaces. What must stay true: when the inner command ends, however it ends, the kernel ends
//! every process of its process namespace, and with the last of them go all network namespaces, bridges and mounts; the loop devices are
//! of the kind that goes with its mount. The outer command takes the inner one with it, also when it is killed itself.

use crate::tools;
use anyhow::{Context, Result};
use std::process::{ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// All files of a run. In a file system in memory that only the run sees.
pub(crate) const FOLDER: &str = "/run/muster-chaos";
/// New namespaces, and death together with whoever started them.
const UNSHARE: [&str; 9] =
    ["--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
static PREFIX: OnceLock<String> = OnceLock::new();
/// How long the kernel may take to take loop devices back.
const GONE_MAX: Duration = Duration::from_secs(10);

/// Whether this process may make namespaces; otherwise why not.
pub(crate) fn possible() -> Result<(), String> {
    let mut arguments = UNSHARE.to_vec();
    arguments.extend(["sh", "-c", "mount -t tmpfs tmpfs /run && ip link add chaos0 type bridge"]);
    tools::run("setpriv", &arguments)
        .map_err(|error| format!("cannot create namespaces (needs root, util-linux and iproute2): {error:#}"))
}

/// Runs this command again inside, waits for it, and gives its status.
pub(crate) async fn enter() -> Result<ExitCode> {
    let mut inner = tokio::process::Command::new("setpriv")
        .args(UNSHARE)
        .arg(std::env::current_exe()?)
        .args(["--enclosed", &std::process::id().to_string()])
        .args(std::env::args_os().skip(1))
        .stdin(Stdio::null())
        // Ctrl-C in the terminal is for this process, which ends the other in order.
        .process_group(0)
        .spawn()
        .context("cannot start in new namespaces")?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let status = tokio::select! {
        status = inner.wait() => Some(status?),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    };
    if status.is_none() {
        inner.kill().await.context("cannot end the experiments")?;
    }
    left_behind().await?;
    let code = status.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Waits until no loop device is left.
async fn left_behind() -> Result<()> {
    // Other runs on this machine have theirs.
    let mark = mark(std::process::id());
    let until = tokio::time::Instant::now() + GONE_MAX;
    loop {
        let devices = tools::output("losetup", &["-a"]).unwrap_or_default();
        let devices: String = devices.lines().filter(|line| line.contains(&mark)).collect();
        if devices.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(tokio::time::Instant::now() < until, "loop devices were left behind:\n{devices}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn mark(run: u32) -> String {
    format!("run{run}-")
}

/// The beginning of the names of this run's disks.
pub(crate) fn disk_prefix() -> &'static str {
    PREFIX.get().map_or("", String::as_str)
}

/// Makes the inside ready: files in memory, names of network namespaces of its own.
pub(crate) fn furnish(run: u32) -> Result<()> {
    PREFIX.get_or_init(|| mark(run));
    tools::run("mount", &["-t", "tmpfs", "tmpfs", "/run"])?;
    for folder in ["/run/netns", FOLDER] {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {folder}"))?;
    }
    tools::run("ip", &["link", "set", "lo", "up"])
}
