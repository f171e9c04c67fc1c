//! What a mix is described by, as YAML or JSON; wrong figures are refused by their field.

use super::MixError;
use crate::import::{Format, TraceDevices};
use serde::{Deserialize, Serialize};

/// A mixed day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixSpec {
    /// Heading of the report.
    #[serde(default)]
    pub name: String,
    /// Of everything that is drawn.
    #[serde(default)]
    pub seed: u64,
    /// Days made alike before the day that is replayed, so that it begins warm.
    #[serde(default = "week")]
    pub warm_days: u32,
    /// What it is made of.
    pub sources: Vec<SourceSpec>,
}

const fn week() -> u32 {
    7
}

/// One part of the mix: `trace` or `gangs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSpec {
    /// Begins the names of its tenants and jobs.
    pub name: String,
    /// Jobs of each day.
    pub jobs_per_day: u32,
    /// Tenants they are dealt to.
    #[serde(default = "ten")]
    pub tenants: u32,
    /// Drawn from recorded days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceSpec>,
    /// Made up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gangs: Option<GangsSpec>,
}

const fn ten() -> u32 {
    10
}

/// Recorded jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSpec {
    /// Of the files.
    pub format: Format,
    /// Relative to the description's folder, or to the folder of the traces where one is given.
    pub files: Vec<String>,
    /// Only jobs of one kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Only>,
    /// Only jobs of these tenants of the trace; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
    /// What becomes of shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<ShareKind>,
}

/// Which jobs of a trace are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Only {
    /// Whole cards.
    Whole,
    /// Shares of one card.
    Shares,
}

impl Only {
    pub(super) const fn admits(self, devices: TraceDevices) -> bool {
        match self {
            Only::Whole => matches!(devices, TraceDevices::Whole { .. }),
            Only::Shares => matches!(devices, TraceDevices::Share { .. } | TraceDevices::Slice { .. }),
        }
    }
}

/// How shares are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareKind {
    /// As MIG instances.
    Mig,
    /// As MPS shares.
    Mps,
}

impl ShareKind {
    pub(super) const fn of(self, devices: TraceDevices) -> TraceDevices {
        match (self, devices) {
            (ShareKind::Mig, TraceDevices::Share { milli }) => TraceDevices::Slice { milli },
            (ShareKind::Mps, TraceDevices::Slice { milli }) => TraceDevices::Share { milli },
            _ => devices,
        }
    }
}

/// Gangs that no public trace has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GangsSpec {
    /// Their sizes in GPUs, each as likely; name one twice to have it twice as often.
    pub gpus: Vec<u32>,
    /// Their shortest and longest length.
    pub hours: [u32; 2],
}

/// Jobs of all days together: some weeks of the largest fleet.
const JOBS_MAX: u64 = 2_000_000;

impl MixSpec {
    pub(super) fn validate(&self) -> Result<(), MixError> {
        let wrong = |field: String, why: &str| Err(MixError::Field { field, why: why.to_owned() });
        if self.sources.is_empty() {
            return wrong("sources".to_owned(), "name at least one");
        }
        for (index, source) in self.sources.iter().enumerate() {
            let field = |name: &str| format!("sources[{index}].{name}");
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            if source.name.is_empty() || source.name.len() > 40 || !source.name.chars().all(plain) {
                return wrong(field("name"), "use 1 to 40 of a-z, 0-9 and -");
            }
            if source.jobs_per_day == 0 || source.tenants == 0 {
                return wrong(field("jobs_per_day"), "jobs_per_day and tenants must be at least 1");
            }
            match (&source.trace, &source.gangs) {
                (Some(trace), None) if trace.files.is_empty() => {
                    return wrong(field("trace.files"), "name at least one");
                }
                (Some(_), None) => {}
                (None, Some(gangs)) if gangs.gpus.is_empty() || gangs.gpus.contains(&0) => {
                    return wrong(field("gangs.gpus"), "name at least one size, each at least 1");
                }
                (None, Some(gangs)) if gangs.hours[0] > gangs.hours[1] || gangs.hours[1] == 0 => {
                    return wrong(field("gangs.hours"), "give the shortest and the longest, such as [2, 20]");
                }
                (None, Some(_)) => {}
                _ => return wrong(field("trace"), "give either trace or gangs"),
            }
        }
        let a_day: u64 = self.sources.iter().map(|source| u64::from(source.jobs_per_day)).sum();
        if a_day * (u64::from(self.warm_days) + 1) > JOBS_MAX {
            return wrong("warm_days".to_owned(), "more than 2,000,000 jobs in all; have fewer days or jobs");
        }
        Ok(())
    }
}
