//! What a process has used, as the kernel tells it in `/proc`, and what a role tells on its page of metrics.

use anyhow::{Context, Result};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// `/proc/PID/stat` counts processor time in these: 100 a second on every Linux that Muster runs on.
const TICK_MS: u64 = 10;
/// A page of metrics is some ten kilobytes from this machine.
const PAGE_WITHIN: Duration = Duration::from_secs(2);

/// What a process had used at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// When it was read.
    pub at: Instant,
    /// Processor time since its start.
    pub cpu_ms: u64,
    /// Resident memory now.
    pub rss_kib: u64,
    /// Bytes that it caused to be written to disks.
    pub written: u64,
}

/// Resident memory of a process in KiB; what it shares with others counts by its share.
///
/// # Errors
/// When there is no such process.
pub fn own_share_kib(pid: i32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    field(&text, "Pss:").with_context(|| format!("{path} does not tell it"))
}

impl Used {
    /// Of the process `pid`, now.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: i32) -> Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
        };
        let at = Instant::now();
        let stat = read("stat")?;
        // Behind the name, which is in brackets and may hold anything: the 12th and 13th field are the times in user and in kernel mode.
        let fields: Vec<&str> = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
        let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse::<u64>().ok());
        let cpu_ms = ticks(11).zip(ticks(12)).map(|(user, kernel)| (user + kernel) * TICK_MS);
        Ok(Used {
            at,
            cpu_ms: cpu_ms.with_context(|| format!("/proc/{pid}/stat does not tell the processor time"))?,
            rss_kib: field(&read("status")?, "VmRSS:").context("no VmRSS")?,
            written: field(&read("io")?, "write_bytes:").context("no write_bytes")?,
        })
    }

    /// Processor cores in use since `before`.
    #[must_use]
    pub fn cores_since(&self, before: &Used) -> f64 {
        let ms = self.at.duration_since(before.at).as_secs_f64() * 1e3;
        self.cpu_ms.saturating_sub(before.cpu_ms) as f64 / ms.max(1.0)
    }
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// Bytes of all files under a folder. Files that go meanwhile are left out.
#[must_use]
pub fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// The page of metrics of the role at `http`.
///
/// # Errors
/// When it does not answer.
pub async fn metrics(http: &str) -> Result<String> {
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(http).await?;
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut page = String::new();
        stream.read_to_string(&mut page).await?;
        Ok::<_, anyhow::Error>(page)
    };
    tokio::time::timeout(PAGE_WITHIN, asked).await.context("no page of metrics in time")?
}

/// The sum of a counter or gauge over its labels; 0 when the page does not have it yet.
#[must_use]
pub fn metric(page: &str, name: &str) -> f64 {
    let of_line = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once('}')?.1,
            None => rest.strip_prefix(' ')?,
        };
        value.trim().parse::<f64>().ok()
    };
    page.lines().filter_map(of_line).fold(0.0, |sum, value| sum + value)
}

/// Kibibytes as `87 MiB` or `1.24 GiB`.
#[must_use]
pub fn memory(kib: u64) -> String {
    match kib {
        0..1_048_576 => format!("{} MiB", kib / 1_024),
        _ => format!("{:.2} GiB", kib as f64 / 1_048_576.0),
    }
}

/// Bytes as `12.3 MB` or `4.56 GB`.
#[must_use]
pub fn bytes(bytes: f64) -> String {
    if bytes < 1e9 { format!("{:.1} MB", bytes / 1e6) } else { format!("{:.2} GB", bytes / 1e9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_over_longer_names() {
        let page = "# HELP a_total x\na_total{kind=\"x y\"} 2\na_total{kind=\"z\"} 3\na_total_more 7\nb 1.5\n";
        let check = |name, expected: f64| assert!((metric(page, name) - expected).abs() < 1e-9, "{name}");
        check("a_total", 5.0);
        check("b", 1.5);
        check("absent", 0.0);
    }

    #[test]
    fn this_process_has_used_something() {
        let pid = std::process::id().cast_signed();
        let before = Used::of(pid).expect("this process");
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            std::hint::black_box(folder_bytes(Path::new("/proc/self/task")));
        }
        let after = Used::of(pid).expect("this process");
        assert!(after.cpu_ms > before.cpu_ms, "{before:?} {after:?}");
        assert!(after.rss_kib > 0 && after.cores_since(&before) > 0.0, "{after:?}");
    }
}
