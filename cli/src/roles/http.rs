//! `/metrics` for Prometheus and `/healthz` for whoever restarts processes, on a port of their own.

use crate::roles::telemetry;
use anyhow::Context;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::Arc;
use std::time::Duration;

/// How often the recorder lets go of what is no longer shown: histograms grow otherwise.
const UPKEEP: Duration = Duration::from_secs(5);

/// Whether the role is well; if not, why.
pub type Health = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Serves both pages at `address`, if one is given, until the process ends.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve(address: Option<&str>, health: Health) -> anyhow::Result<()> {
    let metrics = telemetry::metrics();
    if let Some(metrics) = metrics.clone() {
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                metrics.run_upkeep();
            }
        });
    }
    let Some(address) = address else { return Ok(()) };
    let listener = tokio::net::TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
    tracing::info!(http = %listener.local_addr()?, "metrics and health page");
    let page = move || async move { metrics.map(|metrics| metrics.render()).unwrap_or_default() };
    let healthz = move || async move {
        match health() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        }
    };
    let pages = Router::new().route("/metrics", get(page)).route("/healthz", get(healthz));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, pages).await {
            tracing::error!(%error, "metrics and health page ended");
        }
    });
    Ok(())
}
