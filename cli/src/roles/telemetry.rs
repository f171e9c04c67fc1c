//! Logs to standard error, metrics to a recorder that the health page shows.

use crate::args::roles::LogFormat;
use crate::roles::{metrics, timeline};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// What is logged unless `RUST_LOG` says otherwise: our own doings; of the libraries only what an operator must act on.
const USUAL: &str = "info,openraft=error,h2=warn,hyper=warn,tonic=warn,tower=warn";

static METRICS: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Sets up the log. A second call changes nothing.
pub fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(USUAL));
    // Without `log_internal_errors(false)` a role whose log nobody reads any more would panic when it tries to say so.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let stamps = timeline::layer();
    let refused = stamps.as_ref().err().cloned();
    // A subscriber that is there already (a test's) is as good.
    let _ = tracing_subscriber::registry().with(stamps.unwrap_or_default()).with(lines.with_filter(filter)).try_init();
    if let Some(why) = refused {
        tracing::warn!("no timeline is written: {why}");
    }
}

/// Writes panics to the log, with where they were and how they came there.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let said = panic.payload().downcast_ref::<&str>().map(|text| (*text).to_owned());
        let said = said.or_else(|| panic.payload().downcast_ref::<String>().cloned()).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        let backtrace = std::backtrace::Backtrace::force_capture();
        tracing::error!(place, said, thread, %backtrace, "panic: this is a bug; please report it with these lines");
    }));
}

/// The recorder of this process, installed at the first call; none when another one is there already.
pub fn metrics() -> Option<PrometheusHandle> {
    METRICS
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new().build_recorder();
            let handle = recorder.handle();
            metrics::describe(&recorder);
            ::metrics::set_global_recorder(recorder).is_ok().then_some(handle)
        })
        .clone()
}
