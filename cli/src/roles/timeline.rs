//! Writes the stamps of the timeline into a file, when the process is started with `MUSTER_TIMELINE=FOLDER`: for `muster bench trace-one`.
//!
//! What must stay true: nothing of it exists in a process that is started without; a stamp waits for no disk.

use muster_bench::timeline::stamp::{Stamp, now_ns};
use muster_runtime::timeline::{FOLDER, TARGET};
use parking_lot::Mutex;
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing_subscriber::filter::{FilterFn, Filtered, filter_fn};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// How often what was stamped goes to the file.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// Writes each stamp as a line of JSON.
pub(super) struct StampWriter {
    file: Arc<Mutex<BufWriter<File>>>,
}

/// The writer with its filter: it asks for stamps alone.
pub(super) type StampLayer<S> = Filtered<StampWriter, FilterFn, S>;

/// The layer, if this process is asked for one; or why there is none although it is asked for.
pub(super) fn layer<S>() -> Result<Option<StampLayer<S>>, String>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let Some(folder) = std::env::var_os(FOLDER) else { return Ok(None) };
    let path = Path::new(&folder).join(format!("{}.jsonl", std::process::id()));
    let file = File::create(&path).map_err(|error| {
        format!("{FOLDER}: {} cannot be written: {error}; name a folder that exists, or unset it", path.display())
    })?;
    let file = Arc::new(Mutex::new(BufWriter::new(file)));
    let writer = StampWriter { file: Arc::clone(&file) };
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(FLUSH_EVERY);
            if file.lock().flush().is_err() {
                return;
            }
        }
    });
    Ok(Some(writer.with_filter(filter_fn(|meta| meta.target() == TARGET))))
}

impl<S: tracing::Subscriber> Layer<S> for StampWriter {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields { stamp: Stamp { at_ns: now_ns(), ..Stamp::default() } };
        event.record(&mut fields);
        let Ok(mut line) = serde_json::to_vec(&fields.stamp) else { return };
        line.push(b'\n');
        // A full disk costs stamps, and nothing else.
        let _ = self.file.lock().write_all(&line);
    }
}

struct Fields {
    stamp: Stamp,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "job" => self.stamp.job = Some(value),
            "allocation" => self.stamp.allocation = Some(value),
            "revision" => self.stamp.revision = Some(value),
            "ago_ns" => self.stamp.at_ns = self.stamp.at_ns.saturating_sub(value),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "step" => value.clone_into(&mut self.stamp.step),
            "request" => self.stamp.request = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
