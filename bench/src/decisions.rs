//! S1: decisions of one shard core.
