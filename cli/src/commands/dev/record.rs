//! The record of a development fleet: `<data>/dev.json`, rewritten (atomically) whenever a child starts or dies.
//!
//! The end-to-end tests (`cli/tests/`) and the benches (`muster_bench::cluster`) read it, so its form is theirs: every live child with role
//! `control`, `shard` or `agent`, its pid, `endpoint` (control: host:port), `http` (host:port of /metrics), `nodes` (names that an agent
//! process hosts). They start `muster dev --data D --voters V --shards S --nodes N --gpus-per-node G --agents A [--virtual-tasks]`
//! (virtual tasks: agents use the virtual executor instead of processes) and end it with SIGTERM.

pub use muster_bench::cluster::{Dev, Role};
