//! When a development cluster is ready, and what a newcomer is told then.

use crate::client::Client;
use crate::commands::fleet::all_cells;
use crate::dev::folder::Folder;
use crate::dev::settings::Settings;
use crate::output::note;
use indicatif::{ProgressBar, ProgressStyle};
use muster_proto::v1::Consistency;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// After so long people want to know where to look.
const SLOW: Duration = Duration::from_secs(30);

/// Waits until every cell has a shard and every node is ready.
pub async fn wait(client: &Client, settings: &Settings, began: Instant) {
    let client = client.with_deadline(Duration::from_millis(500));
    let usual = ProgressStyle::default_spinner();
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}").unwrap_or(usual);
    let progress = ProgressBar::new_spinner().with_style(style).with_message("waiting for a leader");
    progress.enable_steady_tick(Duration::from_millis(100));
    let mut told = false;
    loop {
        if let Ok(cells) = all_cells(&client, Consistency::Linearizable).await {
            let held = cells.iter().filter(|cell| cell.holder.is_some()).count();
            let ready: u32 = cells.iter().map(|cell| cell.nodes_ready + cell.nodes_drained).sum();
            progress.set_message(format!(
                "{ready} of {} nodes ready, {held} of {} cells have a shard",
                settings.nodes, settings.shards
            ));
            if ready >= settings.nodes && held >= settings.shards as usize {
                break;
            }
        }
        if !told && began.elapsed() > SLOW {
            told = true;
            note(&format!("muster dev: not ready after {} s; see the logs in the data folder", SLOW.as_secs()));
        }
        tokio::time::sleep(PAUSE).await;
    }
    progress.finish_and_clear();
}

/// How to use it.
#[must_use]
pub fn welcome(folder: &Folder, settings: &Settings, client: &Client, took: Duration) -> String {
    let endpoints = client.endpoints().collect::<Vec<_>>().join(",");
    format!(
        "muster dev: ready in {:.1} s: {}\n\
         \x20 endpoints  {endpoints}\n\
         \x20 data       {} (logs/ has what each role says, dev.json their processes)\n\
         In another shell:\n\
         \x20 export MUSTER_CONFIG={}\n\
         \x20 muster submit --gpus 8 --tasks 2 --name hello --wait -- sh -c 'echo rank $RANK of $WORLD_SIZE on $CUDA_VISIBLE_DEVICES; sleep 5'\n\
         \x20 muster jobs; muster nodes; muster logs 1\n\
         Ctrl-C stops it.",
        took.as_secs_f64(),
        settings.words(),
        folder.root().display(),
        folder.config().display(),
    )
}
