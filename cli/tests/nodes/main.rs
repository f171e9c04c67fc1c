//! Agents as real processes against a real control plane: how they are started, told apart, refused and given up.

mod backups;
mod escapes;
mod faults;
mod floors;
mod images;
mod isolation;
mod logs;
#[path = "../support/pages.rs"]
mod pages;
mod record;
mod resets;
mod restarts;
mod rivals;
#[path = "../support/shared.rs"]
mod shared;
mod shares;
mod site;
mod starts;
#[path = "../support/waiting.rs"]
mod waiting;
