//! The real seams: the operating system, TCP, RocksDB.
