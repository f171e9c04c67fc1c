//! The simulated seams: virtual time, links that delay, lose and cut, disks that forget what was not synced, one seed.
//!
//! A [`SimWorld`] is one run. It hands out [`crate::Host`]s by name and lets a scenario crash them, cut links between them,
//! stall or break their disks and shift their wall clocks. What must stay true: everything that happens follows from the
//! seed alone, so the same seed gives the same [trace](SimWorld::trace_hash), event by event; and the simulated disk passes the same
//! conformance suite as the real one.
//!
//! Time is tokio's paused clock on one thread: it stands still while anything can run and jumps to the next timer when nothing
//! can. Nothing here may block, spawn a thread or ask the operating system for anything.

mod clock;
mod disk;
mod files;
mod handshake;
mod heavy;
mod links;
mod net;
mod network;
mod pipe;
mod pki;
mod trace;
mod trust;
mod world;

#[cfg(test)]
mod tests;

pub use links::LinkQuality;
pub use world::{SimWorld, run};
