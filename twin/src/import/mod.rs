//! Reads public traces and accounting files into one kind of job.
//!
//! Every importer is a stream over a reader that the caller opened: it holds one row at a time, and a row that it cannot
//! understand becomes a [`BadRow`] with its line number and the reason, never a panic and never silence. What an importer had
//! to decide for a format (which column is the tenant, what a fraction means) it says in its list of assumptions, which the
//! report repeats. Importers know nothing of the fleet; [`crate::shape`] turns their jobs into requests.

mod itp;
mod models;
mod openb;
mod philly;
mod row;
mod sacct;

pub(crate) use models::openb_models;
pub use models::{Known, model_named};

use muster_model::GpuModel;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::str::FromStr;

/// Bad rows that are kept with their text; the rest are only counted.
pub const BAD_ROWS_KEPT_MAX: usize = 20;

/// Characters kept of a bad row: enough to recognise it, too few to swell a report.
const BAD_ROW_CHARS_MAX: usize = 160;

/// The trace formats that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Pod lists of Alibaba's 2023 GPU trace.
    Openb,
    /// Microsoft ITP: `job_id,submission_time,duration,num_gpu`.
    Itp,
    /// Microsoft Philly: `timestamp,duration,num_gpus,gpu_time,cluster`.
    Philly,
    /// Slurm accounting, as `sacct -P` prints it.
    Sacct,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 4] = [Format::Openb, Format::Itp, Format::Philly, Format::Sacct];

    /// What its importer takes for granted, for the report.
    #[must_use]
    pub fn assumptions(self) -> &'static [&'static str] {
        match self {
            Format::Openb => openb::ASSUMPTIONS,
            Format::Itp => itp::ASSUMPTIONS,
            Format::Philly => philly::ASSUMPTIONS,
            Format::Sacct => sacct::ASSUMPTIONS,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Openb => "openb",
            Format::Itp => "itp",
            Format::Philly => "philly",
            Format::Sacct => "sacct",
        })
    }
}

impl FromStr for Format {
    type Err = ImportError;

    fn from_str(text: &str) -> Result<Self, ImportError> {
        let word = text.trim().to_ascii_lowercase();
        Format::ALL
            .into_iter()
            .find(|format| format.to_string() == word)
            .ok_or_else(|| ImportError::UnknownFormat { got: text.to_owned() })
    }
}

/// What a task of a traced job held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TraceDevices {
    /// No GPU.
    None,
    /// Whole cards.
    Whole {
        /// Cards of each task.
        gpus_per_task: u32,
    },
    /// Thousandths of one card.
    Share {
        /// From 1 to 999.
        milli: u32,
    },
    /// A MIG instance of at least so many thousandths of a card's compute.
    Slice {
        /// From 1 to 999.
        milli: u32,
    },
}

/// How a job ended where it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndState {
    /// By itself and well; also where the trace does not say.
    Completed,
    /// By itself with an error, or because its node failed.
    Failed,
    /// Somebody cancelled it while it ran.
    Cancelled,
    /// At its time limit.
    TimedOut,
}

/// One job of a trace, in seconds of the trace's own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceJob {
    /// Its name or id there.
    pub name: String,
    /// Path of the tenant.
    pub tenant: String,
    /// When it was submitted.
    pub submit_s: u64,
    /// How long it ran.
    pub duration_s: u64,
    /// How long it waited there, where the trace says when it began.
    pub recorded_wait_s: Option<u64>,
    /// Its time limit, where there was one.
    pub time_limit_s: Option<u64>,
    /// Tasks.
    pub tasks: u32,
    /// What each task held.
    pub devices: TraceDevices,
    /// Milli-CPUs of each task; 0 where the trace does not say.
    pub cpu_milli: u64,
    /// MiB of each task; 0 where the trace does not say.
    pub memory_mib: u64,
    /// Acceptable models; empty means any.
    pub models: Vec<GpuModel>,
    /// How it ended.
    pub end: EndState,
}

impl TraceJob {
    /// Thousandths of a card that all its tasks hold.
    #[must_use]
    pub fn gpu_milli(&self) -> u64 {
        let each = match self.devices {
            TraceDevices::None => 0,
            TraceDevices::Whole { gpus_per_task } => u64::from(gpus_per_task) * 1000,
            TraceDevices::Share { milli } | TraceDevices::Slice { milli } => u64::from(milli),
        };
        each * u64::from(self.tasks)
    }
}

/// A row that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRow {
    /// The file.
    pub source: String,
    /// Its line, from 1.
    pub line: u64,
    /// What is wrong.
    pub why: String,
    /// The row's beginning.
    pub text: String,
}

/// Rows that could not be used: how many, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRows {
    /// How many in all.
    pub count: u64,
    /// The first of them.
    pub kept: Vec<BadRow>,
}

impl BadRows {
    /// Adds those of another.
    pub(crate) fn absorb(&mut self, other: BadRows) {
        self.count += other.count;
        let room = BAD_ROWS_KEPT_MAX.saturating_sub(self.kept.len());
        self.kept.extend(other.kept.into_iter().take(room));
    }

    fn add(&mut self, row: BadRow) {
        self.count += 1;
        if self.kept.len() < BAD_ROWS_KEPT_MAX {
            self.kept.push(row);
        }
    }
}

/// What one row of a trace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// A job that ran.
    Job(TraceJob),
    /// Rightly no job: a step of one, or a job that never ran. With the reason, which is counted.
    Skipped(&'static str),
}

/// A stream of rows.
pub type Rows<'a> = Box<dyn Iterator<Item = Result<Row, BadRow>> + 'a>;

/// Why a trace cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Not a format.
    #[error("unknown trace format {got:?}; known: openb, itp, philly, sacct")]
    UnknownFormat {
        /// What was given.
        got: String,
    },
    /// The header does not name what is needed.
    #[error("{source_name}: column {column} is missing for format {format}; the header has: {header}")]
    MissingColumn {
        /// Which file.
        source_name: String,
        /// Which column.
        column: &'static str,
        /// Which format.
        format: Format,
        /// What the header has.
        header: String,
    },
    /// The file cannot be read.
    #[error("{source_name}: {why}")]
    Unreadable {
        /// Which file.
        source_name: String,
        /// Why.
        why: String,
    },
}

/// A trace read to its end.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Its jobs, by time of submission, then in the order of the files.
    pub jobs: Vec<TraceJob>,
    /// What could not be used.
    pub bad: BadRows,
    /// What was passed over on purpose: reason and count.
    pub skipped: std::collections::BTreeMap<String, u64>,
    /// The files.
    pub sources: Vec<String>,
    /// What it is in a word: its format, or that it was mixed.
    pub kind: String,
    /// What its importer took for granted.
    pub assumptions: Vec<String>,
}

impl Trace {
    /// Adds everything that `reader` holds; `source` names it in messages, and in some formats gives the tenant.
    ///
    /// # Errors
    /// When the header does not fit the format or the file cannot be read; what was added before stays.
    pub fn add(&mut self, format: Format, reader: impl Read, source: &str) -> Result<(), ImportError> {
        for row in rows(format, reader, source)? {
            match row {
                Ok(Row::Job(job)) => self.jobs.push(job),
                Ok(Row::Skipped(why)) => *self.skipped.entry(why.to_owned()).or_default() += 1,
                Err(bad) => self.bad.add(bad),
            }
        }
        self.sources.push(source.to_owned());
        self.kind = format.to_string();
        self.assume(format.assumptions().iter().map(|line| (*line).to_owned()));
        self.jobs.sort_by_key(|job| job.submit_s); // stable: rows of one second keep the order of the files
        Ok(())
    }

    /// Notes what was taken for granted, each once.
    pub(crate) fn assume(&mut self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            if !self.assumptions.contains(&line) {
                self.assumptions.push(line);
            }
        }
    }
}

/// The rows of one file, one at a time. Gzip is recognised by its first bytes.
///
/// # Errors
/// When the header does not fit the format or the file cannot be read.
pub fn rows<'a>(format: Format, reader: impl Read + 'a, source: &str) -> Result<Rows<'a>, ImportError> {
    let unreadable =
        |why: std::io::Error| ImportError::Unreadable { source_name: source.to_owned(), why: why.to_string() };
    let plain = unzipped(reader).map_err(unreadable)?;
    let table = row::Table::open(format, plain, source, if format == Format::Sacct { b'|' } else { b',' })?;
    match format {
        Format::Openb => openb::rows(table),
        Format::Itp => itp::rows(table),
        Format::Philly => philly::rows(table),
        Format::Sacct => sacct::rows(table),
    }
}

/// The bytes of `reader`, unpacked when they are gzip.
///
/// # Errors
/// When the first bytes cannot be read.
pub fn unzipped<'a>(reader: impl Read + 'a) -> std::io::Result<Box<dyn Read + 'a>> {
    let mut buffered = BufReader::new(reader);
    let zipped = buffered.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if zipped { Box::new(flate2::bufread::MultiGzDecoder::new(buffered)) } else { Box::new(buffered) })
}

/// A name of the trace as a tenant's or job's name: what may not stand in one becomes `-`.
pub(crate) fn plain_name(text: &str) -> String {
    let mut name: String = text
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' })
        .take(muster_model::validate::bounds::NAME_BYTES_MAX)
        .collect();
    if name.is_empty() {
        name.push_str("unnamed");
    }
    name
}
