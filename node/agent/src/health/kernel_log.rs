//! What the kernel says of cards: `/dev/kmsg`, or a file or pipe in its place.
//!
//! What must stay true: `/dev/kmsg` is read without polling and tells old records again to each new reader, with their numbers, so that none is lost while no agent
//! runs; of a plain file only what is numbered or new is reported; a reader that falls behind loses the oldest, as the kernel's own log does.

use muster_node_core::health::kmsg;
use muster_node_core::health::{HealthEvent, KernelEvent};
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

/// A record of the kernel has at most this many bytes.
const RECORD_BYTES_MAX: usize = 8_192;
/// Between two looks at a plain file, which cannot be waited for. No real host has one.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Until a log that cannot be read is opened again.
const OPEN_AGAIN: Duration = Duration::from_secs(30);

/// One thing that the kernel has said.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    pub(super) event: KernelEvent,
    /// The record's number in this boot, if it has one.
    pub(super) seq: Option<u64>,
    /// How long ago it was written, in ms; 0 for what was written while this reader waited for it.
    pub(super) age_ms: u64,
}

/// Which card a record is about, and what it means to it.
pub(super) type Place<'a> = &'a (dyn Fn(Heard) -> Option<(u16, HealthEvent)> + Send + Sync);

/// Where records go.
struct Listener<'a> {
    place: Place<'a>,
    say: mpsc::Sender<(u16, HealthEvent)>,
    /// All that was there when this reader began has been read. The kernel stamps its records by a clock that drifts from all others, so the stamp
    /// tells the age of what is older than the reader, and of nothing else.
    is_live: bool,
}

/// Tells what is said until nobody listens.
pub(super) async fn follow(path: PathBuf, place: Place<'_>, say: mpsc::Sender<(u16, HealthEvent)>) {
    let mut listener = Listener { place, say, is_live: false };
    while !listener.say.is_closed() {
        listener.is_live = false;
        if let Err(error) = read(&path, &mut listener).await {
            tracing::error!(path = %path.display(), %error, "cannot read the kernel's log: faults of GPUs are seen only as far as the driver tells them otherwise");
        }
        tokio::time::sleep(OPEN_AGAIN).await;
    }
}

async fn read(path: &Path, listener: &mut Listener<'_>) -> io::Result<()> {
    let kind = std::fs::metadata(path)?.file_type();
    let mut options = File::options();
    // A pipe that is open for writing here too does not end when a writer goes.
    options.read(true).write(kind.is_fifo()).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut file = options.open(path)?;
    if kind.is_char_device() || kind.is_fifo() {
        // SAFETY: the descriptor is borrowed from `file`, which outlives the registration.
        let watched = unsafe { AsyncFd::register_with_interest(file.as_fd(), Interest::READABLE) };
        let watched = watched.map_err(|refused| refused.into_parts().1)?;
        let mut lines = Lines::default();
        loop {
            let mut bytes = [0; RECORD_BYTES_MAX];
            match (&file).read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    listener.is_live = true;
                    watched.readable().await?.clear_ready();
                }
                // Records were overwritten before they were read.
                Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
                read if kind.is_char_device() => listener.tell(&String::from_utf8_lossy(&bytes[..read?])).await,
                read => {
                    for line in lines.take(&bytes[..read?]) {
                        listener.tell(&line).await;
                    }
                }
            }
        }
    }
    let mut lines = Lines::default();
    let begin = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(0))?;
    let mut place = 0;
    loop {
        let mut bytes = Vec::new();
        place += file.read_to_end(&mut bytes)? as u64;
        for line in lines.take(&bytes) {
            // What has no number cannot be told from what an earlier agent has read.
            if place > begin || kmsg::parse_record(&line).is_some() {
                listener.tell(&line).await;
            }
        }
        listener.is_live = true;
        if std::fs::metadata(path)?.len() < place {
            (place, lines) = (file.seek(SeekFrom::Start(0))?, Lines::default());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

impl Listener<'_> {
    async fn tell(&self, text: &str) {
        let heard = match kmsg::parse_record(text) {
            Some(record) => {
                let age_us = if self.is_live { 0 } else { monotonic_us().saturating_sub(record.since_boot_us) };
                Some(Heard { event: record.event, seq: Some(record.seq), age_ms: age_us / 1_000 })
            }
            None => kmsg::parse_line(text).map(|event| Heard { event, seq: None, age_ms: 0 }),
        };
        if let Some(event) = heard.and_then(self.place) {
            let _ = self.say.send(event).await;
        }
    }
}

/// The clock of the kernel's log.
fn monotonic_us() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| now.tv_sec() as u64 * 1_000_000 + now.tv_nsec() as u64 / 1_000)
}

/// Bytes cut into whole lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.0.extend(bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        // A line without an end is no message of the kernel.
        if self.0.len() > RECORD_BYTES_MAX {
            self.0.clear();
        }
        lines
    }
}
