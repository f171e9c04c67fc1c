//! Commands as a user types them, against a cluster of `muster dev`: what they print, to which stream, and how they end.

mod access;
mod attacks;
mod audit;
mod canaries;
mod classes;
mod common;
mod complete;
mod compute_instances;
mod elastic;
mod endpoints;
mod fleet;
mod guides;
mod half_life;
mod identities;
mod jobs;
mod login;
mod login_certified;
mod machines;
mod moves;
#[path = "../support/pages.rs"]
mod pages;
mod paid;
mod pipes;
#[path = "../support/provider.rs"]
mod provider;
mod quotas;
#[path = "../../../twin/tests/histories/referee.rs"]
mod referee;
mod refused;
mod secrets;
#[path = "../support/shared.rs"]
mod shared;
mod starts;
mod tenants;
#[path = "../support/waiting.rs"]
mod waiting;
mod what_if;
mod windows;
