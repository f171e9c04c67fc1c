//! Fuzz targets for every parser that meets the outside: texts, files, messages, stored forms, credentials, certificates, images.
//!
//! | file | what |
//! | --- | --- |
//! | [`target`] | what a target is |
//! | [`targets`], [`list`] | the targets, grouped by what they read; all of them |
//! | [`corpus`] | the kept inputs, `corpus/TARGET/NAME` |
//! | [`seed`] | writes those of the kept inputs that are not text |
//! | [`mutate`] | makes new inputs from the kept ones, the same from the same seed |
//! | [`attempt`] | runs a target on one input and says what went wrong |
//!
//! What must stay true: a target never panics, overflows the stack of a server's thread, or takes long, whatever it is given; what it asserts beyond that holds
//! for every input; a target has no state, so that one input fails again by itself.

pub mod attempt;
pub mod corpus;
pub mod list;
pub mod mutate;
pub mod seed;
pub mod target;
pub mod targets;
