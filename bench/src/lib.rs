//! Benchmarks: each a command that prints a table with the anchor beside every figure.
//!
//! What must stay true: a figure is measured in the same run as what it is compared with, on the same machine and over the
//! same loopback; medians and spread are printed, and nothing here passes or fails by time.

pub mod cluster;
pub mod decisions;
pub mod distance;
pub mod etcd;
pub mod failover;
pub mod lifecycle;
pub mod load;
pub mod node;
pub mod overload;
pub mod packing;
pub mod passes;
pub mod plans;
pub mod process;
pub mod quotas;
pub mod reclaim;
pub mod reconnect;
pub mod scale;
pub mod searches;
pub mod secure;
pub mod secured;
pub mod stall;
pub mod submissions;
pub mod table;
pub mod tasks;
pub mod timeline;
pub mod wan;
