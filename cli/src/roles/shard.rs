//! `muster shard`: one scheduler shard.

use crate::args::roles::Shard as Args;
use crate::failure::Failure;
use crate::roles::http::{self, HttpConfig};
use crate::roles::{self, told_to_stop};
use muster_runtime::pki::Role;
use muster_runtime::real;
use muster_scheduler_server::{MovesConfig, Shard, ShardConfig};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Runs until it is told to stop.
///
/// # Errors
/// What it failed with.
pub fn run(args: &Args, endpoints: Vec<String>) -> Result<(), Failure> {
    roles::run(&args.common, |pages| serve(args, endpoints, pages))
}

async fn serve(args: &Args, endpoints: Vec<String>, pages: HttpConfig) -> anyhow::Result<()> {
    let name = args.name.clone().unwrap_or_else(|| "shard".to_owned());
    // A shard keeps nothing: its folder is never made.
    let folder = std::env::temp_dir().join("muster-shard");
    let host = real::identified_host(name.clone(), folder, Duration::ZERO, args.common.identity.as_deref());
    roles::join(&host, Role::Shard(name.clone()), args.join.as_deref()).await?;
    let transport = args.common.transport();
    let every_ms = args.plan_every.map_or(60_000, |every| every.0.saturating_mul(1_000));
    let moves = args.plan_moves.map(|share_percent| MovesConfig { share_percent, every_ms });
    let expected = args.shards_expected as usize;
    let config = ShardConfig { transport, shards_expected: expected, moves, ..ShardConfig::new(name, endpoints) };
    let shard = Arc::new(Mutex::new(Some(Shard::start(&host, config)?)));
    let watched = shard.clone();
    let health = move || match running(&watched).as_ref().map(|shard| shard.status().revision) {
        None => Err("stopping".to_owned()),
        Some(0) => Err("this shard has no snapshot of the state yet".to_owned()),
        Some(_) => Ok(()),
    };
    http::serve(pages, Arc::new(health), None).await?;
    let signal = told_to_stop().await?;
    tracing::info!(signal, "shard is stopping");
    let last = running(&shard).take();
    if let Some(shard) = last {
        shard.stop().await;
    }
    Ok(())
}

fn running(shard: &Mutex<Option<Shard>>) -> MutexGuard<'_, Option<Shard>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
