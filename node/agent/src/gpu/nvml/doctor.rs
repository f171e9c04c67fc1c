//! How the driver of this machine was set up, as far as tasks of different tenants depend on it.
//!
//! What must stay true: nothing is changed; a driver that does not answer is not waited for beyond [`ANSWER_WITHIN`]; a machine without the driver has nothing to say.

use super::helper::cards_without_ecc;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Opening the library takes a second on a host with many cards; a driver that hangs takes for ever.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What it is about, in a few words.
    pub what: &'static str,
    /// It is as it should be.
    pub holds: bool,
    /// What was seen.
    pub seen: String,
    /// What the operator can do where it is not.
    pub remedy: &'static str,
}

const OF_PROFILING: &str =
    "load the driver with NVreg_RestrictProfilingToAdminUsers=1: counters of a card tell what its other users do";
const OF_ERASING: &str = "load the driver without RMDisableScrubOnFree: memory of one task would be read by the next";
const OF_ECC: &str = "nvidia-smi --ecc-config=1, and reset the GPU: without it a flipped bit is not noticed";

/// The settings of the driver below `root`, with `library` as NVML. None where there is no driver.
#[must_use]
pub fn settings(root: &Path, library: &Path) -> Vec<Setting> {
    let Ok(params) = std::fs::read_to_string(root.join("proc/driver/nvidia/params")) else { return Vec::new() };
    let mut settings = of_params(&params);
    let (tell, told) = mpsc::channel();
    let library = library.as_os_str().to_owned();
    // A call that hangs ends with this process.
    std::thread::spawn(move || tell.send(cards_without_ecc(&library)));
    settings.extend(match told.recv_timeout(ANSWER_WITHIN) {
        Ok(Ok(without)) => of_ecc(&without),
        Ok(Err(error)) => vec![unknown(format!("NVML does not say it: {error}"))],
        Err(_) => vec![unknown("the driver does not answer".to_owned())],
    });
    settings
}

fn of_params(params: &str) -> Vec<Setting> {
    let says = |line: &str| params.lines().any(|there| there.trim() == line);
    let (restricted, erases) = (says("RmProfilingAdminOnly: 1"), !params.contains("RMDisableScrubOnFree=1"));
    vec![
        Setting {
            what: "profiling",
            holds: restricted,
            seen: if restricted {
                "only root reads counters of the GPUs"
            } else {
                "every user reads counters of the GPUs"
            }
            .to_owned(),
            remedy: OF_PROFILING,
        },
        Setting {
            what: "erased memory",
            holds: erases,
            seen: if erases { "memory is erased when it is freed" } else { "memory is not erased when it is freed" }
                .to_owned(),
            remedy: OF_ERASING,
        },
    ]
}

fn of_ecc(without: &[u32]) -> Vec<Setting> {
    let named: Vec<String> = without.iter().map(ToString::to_string).collect();
    let seen = match named.is_empty() {
        true => "ECC is on".to_owned(),
        false => format!("ECC is off on GPU {}", named.join(", ")),
    };
    vec![Setting { what: "ECC", holds: without.is_empty(), seen, remedy: OF_ECC }]
}

fn unknown(seen: String) -> Setting {
    Setting { what: "ECC", holds: false, seen, remedy: "see `nvidia-smi -q -d ECC`" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_was_loaded_with_is_judged() {
        let held = |params: &str| of_params(params).iter().map(|setting| setting.holds).collect::<Vec<_>>();
        assert_eq!(held("ModifyDeviceFiles: 1\nRmProfilingAdminOnly: 1\nRegistryDwords: \"\"\n"), [true, true]);
        assert_eq!(held("RmProfilingAdminOnly: 0\nRegistryDwords: \"RMDisableScrubOnFree=1\"\n"), [false, false]);
        assert_eq!(held(""), [false, true], "a driver that does not say it lets everybody profile");
        assert_eq!(of_ecc(&[1, 3])[0].seen, "ECC is off on GPU 1, 3");
    }

    #[test]
    fn a_machine_without_the_driver_has_nothing_to_say() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(settings(root.path(), Path::new("no-such-library.so")), []);
        let driver = root.path().join("proc/driver/nvidia");
        std::fs::create_dir_all(&driver).expect("made");
        std::fs::write(driver.join("params"), "RmProfilingAdminOnly: 1\n").expect("written");
        let said = settings(root.path(), Path::new("no-such-library.so"));
        assert!(said[2].seen.contains("NVML does not say it") && !said[2].holds, "{said:?}");
    }
}
