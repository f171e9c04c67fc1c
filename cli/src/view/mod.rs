//! What results look like: the objects of JSON and YAML, and the tables for people.
//!
//! What must stay true: field names of JSON and YAML are part of the interface; amounts carry their unit in the name, GPU amounts
//! are in cards; tables are made from the same views, so the two cannot disagree.

pub mod access;
pub mod allocation;
pub mod attempt;
pub mod backup;
pub mod by_resource;
pub mod ca;
pub mod classes;
pub mod detail;
pub mod devices;
pub mod elastic;
pub mod fleet;
pub mod gpus;
pub mod job;
pub mod jobs;
pub mod links;
pub mod machine;
pub mod moves;
pub mod plan;
pub mod priority_classes;
pub mod quota;
pub mod quota_class;
pub mod raft;
pub mod secret;
pub mod standing;
pub mod tenant_history;
pub mod tenants;
pub mod what_if;
pub mod windows;
