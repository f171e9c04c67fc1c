//! What-if: the worked examples with their numbers, answers that agree with what then happens, and what is refused.

mod agrees;
mod assumed;
mod cluster;
mod examples;
mod refused;
