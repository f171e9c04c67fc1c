//! What a node decides, tested against a node that checks every step it is told to take.

mod cases;
mod convergence;
mod health;
mod meter;
mod resets;
mod shares;
mod world;
