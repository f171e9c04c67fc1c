//! Needs as a tenant writes them: `--needs memory=8Gi,compute=15,isolation=strict,bursty,latency-critical`, or the same as a mapping:
//!
//! ```yaml
//! needs: {memory: 8Gi, compute: 15, isolation: strict, bursty: true, latency-critical: true}
//! ```

use crate::spec::scalar::Scalar;
use crate::units;
use muster_model::FieldError;
use muster_proto::v1;
use serde::Deserialize;

/// What was written; nothing is filled in yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct NeedsText {
    /// Memory on the card.
    pub memory: Option<Scalar>,
    /// Percent of a card.
    pub compute: Option<u32>,
    /// strict, trusted, best-effort.
    pub isolation: Option<String>,
    /// It is idle most of the time.
    pub bursty: bool,
    /// It must not wait for a neighbour.
    pub latency_critical: bool,
}

impl std::str::FromStr for NeedsText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut needs = NeedsText::default();
        for part in text.split(',').map(str::trim) {
            let (key, value) = part.split_once('=').unwrap_or((part, "true"));
            match key {
                "memory" => needs.memory = Some(Scalar(value.to_owned())),
                "compute" => {
                    let number = value.strip_suffix('%').unwrap_or(value);
                    needs.compute =
                        Some(number.parse().map_err(|_| format!("compute={value} is not a number of percent"))?);
                }
                "isolation" => needs.isolation = Some(value.to_owned()),
                "bursty" => needs.bursty = flag(part, value)?,
                "latency-critical" => needs.latency_critical = flag(part, value)?,
                _ => {
                    return Err(format!(
                        "{key:?} is not a need; use memory, compute, isolation, bursty or latency-critical"
                    ));
                }
            }
        }
        Ok(needs)
    }
}

fn flag(part: &str, value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| format!("{part}: write true or false"))
}

impl NeedsText {
    /// The message; the models stand beside it in the file.
    pub(super) fn into_wire(self, models: Vec<String>, faults: &mut Vec<FieldError>) -> v1::Needs {
        let memory_mib = match self.memory.map(|text| units::mebibytes(&text.0)) {
            Some(Ok(mib)) => mib,
            Some(Err(error)) => {
                faults.push(FieldError::new("needs.memory", error.problem, error.fix));
                0
            }
            None => {
                faults.push(FieldError::new(
                    "needs.memory",
                    "is missing",
                    "give the memory that a task needs, such as 8Gi",
                ));
                0
            }
        };
        v1::Needs {
            memory_mib,
            compute_percent: self.compute.unwrap_or(0),
            isolation: self.isolation.unwrap_or_default(),
            bursty: self.bursty,
            latency_critical: self.latency_critical,
            models,
        }
    }
}
