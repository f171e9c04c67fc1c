//! The services of a control node over real loopback, on RocksDB, mostly with a single voter: what clients, shards and agents see.

mod agents;
mod answers;
mod bounds;
mod clock;
mod common;
mod event_log;
mod fleet;
mod history;
mod jobs;
mod plans;
mod port;
mod refusals;
mod requests;
mod shards;
mod three;
