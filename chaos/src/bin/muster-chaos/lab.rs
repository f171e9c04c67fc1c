//! What every experiment is given: the programs, the size of the run, the place for logs and what the machine can do.

use crate::Args;
use crate::enclosure::FOLDER;
use crate::needs::Need;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// See the module.
pub(crate) struct Lab {
    /// The binary under test.
    pub(crate) muster: PathBuf,
    /// This command, for voters with planted bugs.
    pub(crate) chaos: PathBuf,
    logs: PathBuf,
    rounds: Option<u32>,
    seconds: Option<u64>,
    short: bool,
    /// When the run must be over.
    pub(crate) ends: Option<Instant>,
    able: Mutex<BTreeMap<Need, Result<(), String>>>,
}

impl Lab {
    pub(crate) fn new(args: &Args) -> Result<Lab> {
        let chaos = std::env::current_exe()?;
        let muster = args.muster.clone().unwrap_or_else(|| chaos.with_file_name("muster"));
        ensure!(
            muster.exists(),
            "{} does not exist: build it with `cargo build -p muster`, or give its path with --muster",
            muster.display()
        );
        let logs = args.logs.clone().unwrap_or_else(|| Path::new(FOLDER).join("logs"));
        std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let (rounds, seconds, short) = (args.rounds, args.seconds, args.short);
        let ends = args.minutes.map(|minutes| Instant::now() + Duration::from_secs(minutes * 60));
        Ok(Lab { muster: muster.canonicalize()?, chaos, logs, rounds, seconds, short, ends, able: Mutex::default() })
    }

    /// How many rounds: what was asked for, or one of the two usual numbers.
    pub(crate) fn rounds(&self, usual: u32, short: u32) -> u32 {
        self.rounds.unwrap_or(if self.short { short } else { usual })
    }

    /// How long to measure: what was asked for, or one of the two usual times.
    pub(crate) fn measure(&self, usual_s: u64, short_s: u64) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(if self.short { short_s } else { usual_s }))
    }

    /// A folder for the logs of one cluster.
    pub(crate) fn logs_of(&self, name: &str) -> Result<PathBuf> {
        let folder = self.logs.join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Whether the machine can do this; tried once.
    pub(crate) fn check(&self, need: Need) -> Result<(), String> {
        let mut able = self.able.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        able.entry(need).or_insert_with(|| need.check()).clone()
    }
}
