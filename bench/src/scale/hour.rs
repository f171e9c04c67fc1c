//! What the control plane uses while nothing changes: sessions, heartbeats and usage only.

use crate::cluster::{Cluster, Role};
use crate::process::{self, Used};
use crate::table::Row;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Nothing else is left to do after this: shards have tried what came last, and RocksDB has compacted what was written.
const SETTLE: Duration = Duration::from_secs(15);
const HOUR_S: f64 = 3_600.0;

/// A process at one moment, with what its page of metrics says.
struct Reading {
    role: Role,
    used: Used,
    page: String,
}

async fn read_all(cluster: &Cluster) -> Result<BTreeMap<String, Reading>> {
    let mut readings = BTreeMap::new();
    for role in cluster.dev()?.roles {
        let page = match (&role.http, role.role.as_str()) {
            (Some(http), "control") => process::metrics(http).await?,
            _ => String::new(),
        };
        let used = Used::of(role.pid)?;
        readings.insert(role.name.clone(), Reading { role, used, page });
    }
    Ok(readings)
}

/// Waits until the fleet is quiet, measures, and gives a row for each process.
pub(super) async fn measure(cluster: &Cluster, over: Duration) -> Result<Vec<Row>> {
    tokio::time::sleep(SETTLE).await;
    let before = read_all(cluster).await?;
    tokio::time::sleep(over).await;
    let after = read_all(cluster).await?;
    let mut rows = Vec::new();
    for (name, now) in &after {
        let was = before.get(name).with_context(|| format!("{name} was started while it was measured"))?;
        let (cores, rss) = (now.used.cores_since(&was.used), process::memory(now.used.rss_kib));
        let an_hour = HOUR_S / now.used.at.duration_since(was.used.at).as_secs_f64();
        if now.role.role != "control" {
            rows.push(Row::new(format!("{name}: processor, memory"), format!("{cores:.3} cores, {rss}"), "-", "-"));
            continue;
        }
        let leads = process::metric(&now.page, "muster_raft_leads") > 0.5;
        let sessions = process::metric(&now.page, "muster_agent_sessions");
        let what = if leads { "leader" } else { "follower" };
        rows.push(Row::new(
            format!("S8 {name}, {what}, {sessions:.0} sessions: processor, memory"),
            format!("{cores:.3} cores, {rss}"),
            "none published",
            "<= 0.5 cores, <= 1 GiB",
        ));
        let grew = |metric| process::metric(&now.page, metric) - process::metric(&was.page, metric);
        let folder = cluster.folder().join(name);
        rows.push(Row::new(
            format!("{name}: written to the log, written to disk, an hour (scaled); data folder now"),
            format!(
                "{} in {:.0} entries, {}; {}",
                process::bytes(grew("muster_raft_log_bytes_total") * an_hour),
                grew("muster_raft_applied") * an_hour,
                process::bytes((now.used.written - was.used.written) as f64 * an_hour),
                process::bytes(process::folder_bytes(&folder) as f64),
            ),
            "-",
            "-",
        ));
    }
    Ok(rows)
}
