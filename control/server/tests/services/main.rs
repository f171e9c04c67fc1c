//! The services of a control node over real loopback, with a single voter on RocksDB: what clients, shards and agents see.

mod agents;
mod common;
mod fleet;
mod jobs;
mod port;
mod refusals;
mod shards;
