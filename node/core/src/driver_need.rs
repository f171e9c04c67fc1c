//! What a task asks of NVIDIA's driver, in the variables in which container images say it.
//!
//! `NVIDIA_REQUIRE_CUDA="cuda>=12.4 brand=tesla,driver>=535,driver<536"`: alternatives with spaces between them, each of conditions with commas between
//! them; every variable that begins with `NVIDIA_REQUIRE_` is one more requirement. What must stay true: only a condition on `cuda` or `driver` that can be
//! read and does not hold keeps a task from starting; what is said of cards (`brand`, `arch`) is for the scheduler.

use muster_model::DriverVersion;
use muster_model::validate::clipped;

/// Every variable that is a requirement.
const PREFIX: &str = "NVIDIA_REQUIRE_";
/// Switches them off.
const DISABLE: &str = "NVIDIA_DISABLE_REQUIRE";
/// Bytes of a requirement that a message repeats: images have half a kilobyte of alternatives, the plain one first.
const SHOWN_BYTES_MAX: usize = 80;
/// Longer ones first.
const SIGNS: [&str; 7] = [">=", "<=", "!=", "==", "=", ">", "<"];

/// The driver of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its version, such as `580.95.05`.
    pub version: String,
    /// The newest CUDA that it serves, such as `13.0`.
    pub cuda: String,
}

impl Driver {
    /// Why a task with these variables cannot run with this driver, if so.
    pub fn lacks<'a>(&self, env: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<String> {
        let asked: Vec<(&str, &str)> = env.into_iter().filter(|(name, _)| name.starts_with("NVIDIA_")).collect();
        if asked.iter().any(|(name, value)| *name == DISABLE && matches!(*value, "1" | "true" | "True" | "TRUE")) {
            return None;
        }
        let required = asked.iter().filter(|(name, _)| name.starts_with(PREFIX));
        let (name, value) = required.into_iter().find(|(_, value)| !self.meets(value))?;
        let shown = clipped((*value).to_owned(), SHOWN_BYTES_MAX);
        let Driver { version, cuda } = self;
        Some(format!(
            "the driver of this node is not what the task asks for: it is {version} and serves CUDA {cuda}, and the task asks for {name}={shown:?}; choose nodes by device.cuda or device.driver in the job's selector, or have the driver upgraded"
        ))
    }

    fn meets(&self, requirement: &str) -> bool {
        let mut alternatives = requirement.split_whitespace().peekable();
        alternatives.peek().is_none()
            || alternatives.any(|one| one.split(',').all(|condition| self.holds(condition).unwrap_or(true)))
    }

    /// Nothing: it is about something else, or cannot be read.
    fn holds(&self, condition: &str) -> Option<bool> {
        let (at, sign) = SIGNS
            .iter()
            .filter_map(|sign| Some((condition.find(sign)?, *sign)))
            .min_by_key(|(at, sign)| (*at, usize::MAX - sign.len()))?;
        let (subject, version) = (&condition[..at], &condition[at + sign.len()..]);
        let own = match subject.trim() {
            "cuda" => &self.cuda,
            "driver" => &self.version,
            _ => return None,
        };
        let (own, asked) = (DriverVersion::reported(own)?, DriverVersion::reported(version.trim())?);
        Some(match sign {
            ">=" => own >= asked,
            "<=" => own <= asked,
            ">" => own > asked,
            "<" => own < asked,
            "!=" => own != asked,
            _ => own == asked,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(version: &str, cuda: &str) -> Driver {
        Driver { version: version.to_owned(), cuda: cuda.to_owned() }
    }

    #[test]
    fn a_driver_that_is_too_old_is_named_with_what_is_asked() {
        let old = driver("535.104.05", "12.2");
        let lacks = |value: &str| old.lacks([("NVIDIA_REQUIRE_CUDA", value)]);
        for met in [
            "",
            "cuda>=12.2",
            "cuda>=11.8",
            "cuda>=12.4 brand=tesla,driver>=535,driver<536",
            "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=535,driver<536",
            "driver!=550",
            "arch>=9.0",
            "cuda>=twelve",
            "cuda",
        ] {
            assert_eq!(lacks(met), None, "{met}");
        }
        for unmet in [
            "cuda>=12.4",
            "cuda>12.2",
            "driver>=550",
            "driver<535",
            "cuda=12.4",
            "cuda>=12.4 brand=tesla,driver>=470,driver<471",
        ] {
            assert!(lacks(unmet).is_some(), "{unmet}");
        }
        let said = lacks("cuda>=12.4").expect("too old");
        for part in ["535.104.05", "CUDA 12.2", "NVIDIA_REQUIRE_CUDA", "cuda>=12.4"] {
            assert!(said.contains(part), "{said:?} lacks {part}");
        }
    }

    #[test]
    fn each_variable_is_a_requirement_and_one_switches_them_off() {
        let old = driver("535.104.05", "12.2");
        let both = [("NVIDIA_REQUIRE_CUDA", "cuda>=12.0"), ("NVIDIA_REQUIRE_DRIVER", "driver>=550")];
        assert!(old.lacks(both).is_some_and(|said| said.contains("NVIDIA_REQUIRE_DRIVER")));
        assert_eq!(old.lacks(both.into_iter().chain([("NVIDIA_DISABLE_REQUIRE", "true")])), None);
        assert!(old.lacks(both.into_iter().chain([("NVIDIA_DISABLE_REQUIRE", "false")])).is_some());
        assert_eq!(driver("550.54.15", "12.4").lacks(both), None);
        // Nobody knows what this one serves.
        assert_eq!(driver("unknown", "").lacks(both), None);
    }
}
