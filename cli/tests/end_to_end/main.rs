//! End-to-end tests: fleets of real processes of the real binary, real kills, the public API. One at a time, since each is a load for
//! the whole machine.

mod common;
mod kills;
mod reservations;
#[path = "../support/shared.rs"]
mod shared;
mod survive;
