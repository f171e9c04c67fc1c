//! `/metrics` for Prometheus and `/healthz` for whoever restarts processes, on a port of their own.
//!
//! What must stay true: sockets that say nothing, however many, keep neither page from being served, over TLS neither; where there is a
//! token, nobody reads the metrics without it; `/healthz` asks for none, and says only whether the role is well. All of this holds without
//! the cluster's state, which shards and agents have not.

mod certificate;
mod listener;
mod token;
mod watched;

use crate::args::roles::RoleCommon;
use crate::failure::Failure;
use crate::roles::telemetry;
use anyhow::Context;
use axum::Router;
use axum::http::header::{HeaderName, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::serve::Listener;
use certificate::Certificate;
use listener::{Bounded, Encrypted};
use metrics_exporter_prometheus::PrometheusHandle;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};
use token::Token;
use tokio::net::TcpListener;
use watched::Watched;

/// How often the recorder lets go of what is no longer shown: histograms grow otherwise.
const UPKEEP: Duration = Duration::from_secs(5);

/// Whether the role is well; if not, why.
pub type Health = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a role has on its page beside what it records, for listeners on a loopback address or elsewhere.
pub type Page = Arc<dyn Fn(Reach) -> String + Send + Sync>;

/// From where a page can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// From this host alone.
    Loopback,
    /// From other hosts too.
    Network,
}

/// Where the pages are served, and how they are protected.
pub struct HttpConfig {
    address: Option<String>,
    token: Option<Arc<Watched<Token>>>,
    certificate: Option<Arc<Watched<Certificate>>>,
}

impl HttpConfig {
    /// Reads the files that the options name.
    ///
    /// # Errors
    /// When one cannot be read or used, or others can read it.
    pub fn new(common: &RoleCommon) -> Result<Self, Failure> {
        let now = Instant::now();
        let token = common.http_token_file.as_deref().map(|path| Watched::open(path, now)).transpose()?;
        let certificate = common.http_certificate.as_deref().map(|path| Watched::open(path, now)).transpose()?;
        let address = common.http.clone();
        Ok(HttpConfig { address, token: token.map(Arc::new), certificate: certificate.map(Arc::new) })
    }

    /// Says in the log what others can read at an address that is not this host's alone. It is served all the same: installations of
    /// before go on.
    fn warn(&self, reach: Reach) {
        match (reach, &self.token, &self.certificate) {
            (Reach::Network, None, _) => tracing::warn!(
                "whoever reaches the address of --http can read the metrics; give --http-token-file, or an address of this host alone"
            ),
            (Reach::Network, Some(_), None) => tracing::warn!(
                "the token of --http-token-file and the metrics go over the network in clear text; give --http-certificate"
            ),
            _ => {}
        }
    }
}

/// Serves both pages, if there is an address for them, until the process ends. `more` goes behind the recorded metrics.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve(config: HttpConfig, health: Health, more: Option<Page>) -> anyhow::Result<()> {
    let metrics = telemetry::metrics();
    if let Some(metrics) = metrics.clone() {
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                metrics.run_upkeep();
            }
        });
    }
    let Some(address) = config.address.as_deref() else { return Ok(()) };
    let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
    let own = listener.local_addr()?;
    let (token, tls) = (config.token.is_some(), config.certificate.is_some());
    tracing::info!(http = %own, token, tls, "metrics and health page");
    let reach = if own.ip().is_loopback() { Reach::Loopback } else { Reach::Network };
    config.warn(reach);
    let text = move || {
        let mut text = metrics.as_ref().map(PrometheusHandle::render).unwrap_or_default();
        text.extend(more.as_ref().map(|more| more(reach)));
        text
    };
    let pages = pages(config.token, text, health);
    match config.certificate {
        None => tokio::spawn(run(Bounded::new(listener), pages)),
        Some(certificate) => tokio::spawn(run(Encrypted::new(listener, certificate)?, pages)),
    };
    Ok(())
}

async fn run<L>(listener: L, pages: Router)
where
    L: Listener,
    L::Addr: Debug,
{
    if let Err(error) = axum::serve(listener, pages).await {
        tracing::error!(%error, "metrics and health page stopped");
    }
}

/// The answer to a request that does not show the token.
type Refusal = (StatusCode, [(HeaderName, &'static str); 1], String);

fn refusal(why: &'static str) -> Refusal {
    let text = format!(
        "this page needs the header `Authorization: Bearer TOKEN`, with the token of the file of --http-token-file: {why}\n"
    );
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], text)
}

fn pages<F>(token: Option<Arc<Watched<Token>>>, text: F, health: Health) -> Router
where
    F: Fn() -> String + Clone + Send + Sync + 'static,
{
    let metrics = move |headers: HeaderMap| async move {
        if let Some(token) = token {
            token.current().await.check(&headers).map_err(refusal)?;
        }
        Ok::<_, Refusal>(text())
    };
    let healthz = move || async move {
        match health() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        }
    };
    Router::new().route("/metrics", get(metrics)).route("/healthz", get(healthz))
}
