//! Stamps of the timeline: where a job is on its way from submitted to running, for `muster bench trace-one`.
//!
//! A stamp is a tracing event of the target [`TARGET`] at level TRACE: a step, and numbers that say of what (`job`, `allocation`,
//! `revision`). Nobody listens unless a process is started with [`FOLDER`] set; a stamp then costs one load of a flag. What must stay
//! true: stamps only tell; nothing is decided by them.

use std::time::Instant;

/// The target of all stamps.
pub const TARGET: &str = "muster::timeline";

/// The environment variable that names the folder into which a process writes its stamps.
pub const FOLDER: &str = "MUSTER_TIMELINE";

/// Whether somebody listens: for loops that only make stamps.
#[must_use]
pub fn is_on() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::TRACE)
}

/// The time of a step whose number is known only later; give [`Begun::ns_ago`] as `ago_ns` of the stamp.
#[derive(Clone, Copy, Debug)]
pub struct Begun(Option<Instant>);

impl Begun {
    /// Now, if somebody listens.
    #[must_use]
    pub fn now() -> Self {
        Begun(is_on().then(Instant::now))
    }

    /// How long ago that was.
    #[must_use]
    pub fn ns_ago(self) -> u64 {
        self.0.map_or(0, |at| at.elapsed().as_nanos() as u64)
    }
}
