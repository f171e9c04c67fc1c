//! Control nodes as a cluster: real stores, real TCP on loopback, in one process.

mod cluster;
mod failures;
mod levels;
mod membership;
