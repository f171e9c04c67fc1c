//! Tests of the scheduler's core: the laws it can break over random histories, and placement by example.

mod anti_affinity;
mod balance;
mod classes;
mod elastic;
mod estimates;
mod examples;
mod explaining;
mod findings;
mod fleet;
mod laws;
mod limited;
mod mig;
mod modes;
mod nvlink;
mod parts;
mod past_use;
mod pinned;
mod planner;
mod preferred;
mod queueing;
mod reasons;
mod requests;
mod reserve;
mod shares;
mod tightest;
mod windows;
