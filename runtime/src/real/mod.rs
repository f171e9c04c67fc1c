//! The real seams: the system's clocks, TCP, RocksDB, files that are synced before they count.
//!
//! What must stay true: everything a host runs is spawned into its task group, connections included, so that ending the group
//! ends the host even where several run in one process; its files are readable by their owner alone.

mod clock;
mod connection;
mod database;
mod descriptors;
mod dialler;
mod files;
mod folder;
mod following;
mod heavy;
mod kv;
mod net;
mod silent;
mod socket;
mod tls;
mod view;

pub use descriptors::{DESCRIPTORS_MIN, DESCRIPTORS_WANTED, raise_descriptors};
pub use dialler::Dialler;
pub use silent::{Silent, SilentPlace};
pub use tls::settings as tls_settings;

use crate::chance::Chance;
use crate::clock::Clock;
use crate::disk::Files;
use crate::host::{Host, TaskGroup};
use crate::pki::{CertificateClock, X509};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A host on this machine that keeps everything below `data_dir`, which is made when something is first written.
#[must_use]
pub fn host(name: impl Into<String>, data_dir: impl Into<PathBuf>) -> Host {
    far_host(name, data_dir, Duration::ZERO)
}

/// The same, where messages to other hosts may need so long there and back.
#[must_use]
pub fn far_host(name: impl Into<String>, data_dir: impl Into<PathBuf>, round_trip: Duration) -> Host {
    identified_host(name, data_dir, round_trip, None)
}

/// The same, whose key, certificate and roots are in a folder of their own, as `muster ca` writes it. None: beside its other files.
#[must_use]
pub fn identified_host(
    name: impl Into<String>,
    data_dir: impl Into<PathBuf>,
    round_trip: Duration,
    identity: Option<&Path>,
) -> Host {
    let data_dir = data_dir.into();
    let tasks = TaskGroup::default();
    let name = name.into();
    let clock: Arc<dyn Clock> = Arc::new(clock::SystemClock);
    let files = small_files(&data_dir.join("files"));
    let identity = identity.map_or_else(|| Arc::clone(&files), small_files);
    let certificate_clock = Arc::new(CertificateClock::new(Arc::clone(&clock), Arc::clone(&identity)));
    Host {
        heavy: Arc::new(heavy::HeavyThread::new(&name)),
        name,
        clock,
        net: Arc::new(net::TcpNet::new(tasks.clone(), round_trip, Arc::clone(&certificate_clock))),
        disk: Arc::new(kv::RocksDisk::new(data_dir.join("stores"))),
        files,
        identity,
        chance: Chance::from_entropy(),
        pki: Arc::new(X509),
        certificate_clock,
        tasks,
    }
}

/// Small files in this folder, readable by their owner alone; it is made when something is first written.
#[must_use]
pub fn small_files(path: &Path) -> Arc<dyn Files> {
    Arc::new(files::SyncedFiles::new(path.to_owned()))
}

/// Ready when a task that its host cannot do without has panicked, in any host of this process, with what it said: the process is to
/// end, so that whoever supervises it starts it again.
pub async fn panicked() -> String {
    crate::host::OF_PROCESS.noted().await
}
