//! Clusters that are measured over TLS, beside those in clear text.
//!
//! What must stay true: one cluster is measured at a time; its machines prove who they are and every connection is encrypted, and its access is open, so
//! that callers need no tokens: what is compared is the same work.

use anyhow::{Context, Result, ensure};
use muster_runtime::pki::{Roots, X509};
use muster_runtime::real::Dialler;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use tonic::transport::{Channel, Endpoint};

static CHOSEN: AtomicBool = AtomicBool::new(false);
/// For the newest cluster.
static DIALLER: Mutex<Option<Dialler>> = Mutex::new(None);

/// From now on clusters are encrypted.
pub fn choose() {
    CHOSEN.store(true, Ordering::Relaxed);
}

/// Whether clusters are encrypted.
pub(crate) fn chosen() -> bool {
    CHOSEN.load(Ordering::Relaxed)
}

/// Opens the cluster in this folder to callers without tokens, and has its roots trusted from then on.
pub(crate) fn open(muster: &Path, folder: &Path) -> Result<()> {
    let roots = std::fs::read(folder.join("identities/ca/roots.pem")).context("reading the roots")?;
    let dialler = Dialler::new(Roots::from_pem(&X509, &roots)?)?;
    let opened = Command::new(muster)
        .args(["access", "open"])
        .env("MUSTER_CONFIG", folder.join("config.yaml"))
        .env_remove("MUSTER_ENDPOINTS")
        .stdin(Stdio::null())
        .output()?;
    ensure!(opened.status.success(), "access open: {}", String::from_utf8_lossy(&opened.stderr));
    *DIALLER.lock().unwrap_or_else(PoisonError::into_inner) = Some(dialler);
    Ok(())
}

/// A channel to a control node of the newest cluster; connects when first used.
pub(crate) fn channel(endpoint: &Endpoint) -> Channel {
    match &*DIALLER.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(dialler) => dialler.channel(endpoint),
        None => endpoint.connect_lazy(),
    }
}
