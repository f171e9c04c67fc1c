//! Identities of a development cluster: its root, an issuer for each control node, and a folder for each process and simulated host.
//!
//! What must stay true: identities outlive the processes, and are renewed long before they expire; nobody but the user who runs the cluster reads them.

use super::folder::Folder;
use super::settings::Settings;
use crate::client::Client;
use crate::commands::ca::{make_control, make_machine, make_root, make_secrets_key, valid_until_ms};
use crate::commands::machine;
use crate::commands::now_ms;
use crate::failure::Failure;
use futures::StreamExt;
use futures::stream;
use muster_runtime::pki::{MACHINE_LIFE_MS, ROOT_FILE, Role, SECRETS_KEY_FILE};
use std::path::Path;
use std::time::{Duration, Instant};

/// The name of such a cluster in the names of its machines.
const CLUSTER: &str = "dev";
/// Folders that are written at once: each waits for the disk.
const AT_ONCE: usize = 32;
/// How long a cluster of before may take to raise its feature level: its leader looks every second.
const LEVEL_RAISED_MAX: Duration = Duration::from_secs(15);
const LEVEL_LOOK: Duration = Duration::from_millis(500);

/// Makes what is missing, and renews what is past a third of its life.
///
/// # Errors
/// When the folder cannot be written, or something else is in it.
pub async fn make(folder: &Folder, settings: &Settings) -> Result<(), Failure> {
    let ca = folder.identity("ca");
    if !ca.join(ROOT_FILE).is_file() {
        make_root(CLUSTER, &ca).await?;
    }
    // A folder of before had none.
    if !ca.join(SECRETS_KEY_FILE).is_file() {
        make_secrets_key(&ca).await?;
    }
    for id in 1..=settings.voters {
        let to = folder.identity(&format!("control-{id}"));
        if is_due(&to)? || !to.join(SECRETS_KEY_FILE).is_file() {
            make_control(u64::from(id), &ca, &to).await?;
        }
    }
    let issuer = folder.identity("control-1");
    let shards = (1..=settings.shards).map(|number| format!("shard-{number}"));
    let shards = shards.map(|name| (folder.identity(&name), Role::Shard(name)));
    let nodes = (0..settings.nodes).map(|index| format!("node-{index:04}"));
    let nodes = nodes.map(|name| (folder.node_identities().join(&name), Role::Node(name)));
    let mut making = stream::iter(shards.chain(nodes))
        .map(|(to, role)| {
            let issuer = issuer.clone();
            async move {
                if is_due(&to)? {
                    make_machine(role, &issuer, &to).await?;
                }
                Ok::<_, Failure>(())
            }
        })
        .buffer_unordered(AT_ONCE);
    while let Some(made) = making.next().await {
        made?;
    }
    Ok(())
}

/// Pins the keys of all these machines, and has a new cluster take no others from then on.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn enrol(client: &Client, folder: &Folder, settings: &Settings) -> Result<(), Failure> {
    let control = (1..=settings.voters).map(|id| format!("control-{id}"));
    let shards = (1..=settings.shards).map(|number| format!("shard-{number}"));
    let nodes = (0..settings.nodes).map(|index| folder.node_identities().join(format!("node-{index:04}")));
    let folders = control.chain(shards).map(|name| folder.identity(&name)).chain(nodes);
    let keys = folders.map(|folder| machine::key_of(&folder)).collect::<Result<Vec<_>, _>>()?;
    let began = Instant::now();
    // A cluster of before raises its feature level first.
    while let Err(failure) = machine::pin_keys(client, keys.clone(), true).await {
        if began.elapsed() > LEVEL_RAISED_MAX {
            return Err(failure);
        }
        tokio::time::sleep(LEVEL_LOOK).await;
    }
    match settings.bootstrapped {
        // What its operator has said since stays.
        true => Ok(()),
        false => machine::set_enrolment(client, "required").await,
    }
}

fn is_due(folder: &Path) -> Result<bool, Failure> {
    let until_ms = valid_until_ms(folder)?;
    Ok(until_ms.is_none_or(|until_ms| until_ms < now_ms() + MACHINE_LIFE_MS * 2 / 3))
}
