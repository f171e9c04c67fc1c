//! The node agent against real processes, simulated cards, a control plane that does what a test tells it, and virtual time.

mod agents;
mod bench;
mod cards;
mod claims;
mod clean;
mod control;
mod health;
mod images;
mod sandbox;
mod shims;
mod simulated;
