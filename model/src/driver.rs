//! Versions of the GPU driver, ordered as numbers.
//!
//! What must stay true: `550` is `550.0.0` and is older than `550.54.15`; a version that no number opens is not a version, so a node
//! that reports one satisfies no minimum.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Numbers of a version: NVIDIA's data-centre drivers have two or three (`570.86`, `550.54.15`).
const PARTS: usize = 3;

/// A driver version; what is not said is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DriverVersion([u32; PARTS]);

/// Text that is no driver version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got:?} is not a driver version")]
pub struct NotAVersion {
    /// What was written, cut short.
    pub got: String,
}

impl DriverVersion {
    /// The first version of a branch.
    #[must_use]
    pub const fn major(number: u32) -> Self {
        DriverVersion([number, 0, 0])
    }

    /// The version a node reports: numbers up to the first thing that is none, so that a vendor's suffix does not hide it.
    #[must_use]
    pub fn reported(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        text[..end].trim_end_matches('.').parse().ok()
    }
}

impl FromStr for DriverVersion {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let fault = || NotAVersion { got: text.chars().take(60).collect() };
        let mut parts = [0; PARTS];
        for (index, part) in text.trim().split('.').enumerate() {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            let slot = parts.get_mut(index).filter(|_| digits).ok_or_else(fault)?;
            *slot = part.parse().map_err(|_| fault())?;
        }
        Ok(DriverVersion(parts))
    }
}

impl fmt::Display for DriverVersion {
    /// As short as it can be said: `550`, `570.86`, `550.54.15`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = PARTS - self.0.iter().rev().take_while(|part| **part == 0).count();
        write!(f, "{}", self.0[0])?;
        self.0[1..said.max(1)].iter().try_for_each(|part| write!(f, ".{part}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_ordered_and_written() {
        let check = |text: &str, said: &str| {
            let version: DriverVersion = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(version.to_string(), said, "{text}");
            assert_eq!(said.parse(), Ok(version), "{text}");
        };
        check("550", "550");
        check("550.0.0", "550");
        check("570.86", "570.86");
        check("550.54.15", "550.54.15");
        check("535.104.05", "535.104.5");
        check("0", "0");
        let order = ["470.9", "470.82.1", "550", "550.54", "550.54.9", "550.54.15", "1000"];
        let read = order.map(|text| text.parse::<DriverVersion>());
        assert!(read.iter().all(Result::is_ok));
        assert!(read.map(Result::ok).is_sorted(), "470.9 is older than 470.82: numbers, not letters");
        for bad in ["", "x", "550.", ".5", "550.x", "-1", "1.2.3.4", "99999999999", "5 5"] {
            assert!(bad.parse::<DriverVersion>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_reported_version_may_have_a_suffix_but_not_be_missing() {
        assert_eq!(DriverVersion::reported("550.54.15-server"), "550.54.15".parse().ok());
        assert_eq!(DriverVersion::reported("570.86"), "570.86".parse().ok());
        assert_eq!(DriverVersion::reported("simulated"), None);
        assert_eq!(DriverVersion::reported(""), None);
    }
}
