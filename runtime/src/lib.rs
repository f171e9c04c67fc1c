//! The seams: clock, network, disk, chance and the tasks of a host. Real ones for production, simulated ones for seeded runs.
//!
//! What must stay true: whatever touches time, the network, a disk or chance goes through here, so that a whole fleet runs in
//! one process on virtual time from one seed. Time that only passes (sleeps, timeouts, `tokio::time::Instant`) is tokio's own,
//! which a simulation pauses; everything else is a field of [`Host`].
//!
//! Rules for servers and agents:
//! - spawn through [`Host::spawn`], never `tokio::spawn` or threads: a simulated crash kills the tasks of its host (what starts real
//!   processes is not simulated and has threads of its own: the agent's process executor and the shim);
//! - dial and serve through [`Host::net`], and say whom is expected and what is demanded; wall time and boot time through [`Host::clock`]; randomness through [`Host::chance`];
//! - nothing blocks: what must block (RocksDB's sync) is an `async` method of the seam, what takes long goes through [`Host::heavy`].

pub mod chance;
pub mod clock;
pub mod disk;
pub mod heavy;
pub mod host;
pub mod net;
pub mod pki;
pub mod real;
mod reload;
pub mod sim;
pub mod timeline;

pub use chance::Chance;
pub use clock::Clock;
pub use disk::{Batch, Disk, DiskError, Files, Kv};
pub use host::{Host, TaskGroup};
pub use net::{Admission, CallError, Channel, Expect, Net, NetError, Peer, Serving, Transport};
