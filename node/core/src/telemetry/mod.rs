//! What cards and MIG instances tell of themselves every ten seconds: figures, a bounded memory of them, and how allocations use what they hold.
//!
//! [`figure`] names every figure and its range, [`ring`] keeps the samples of the last hour, [`hold`] says whether an allocation runs or idles.
//! What must stay true:
//! - what a card does not tell is absent, and never zero;
//! - a MIG instance is known by its card, its GPU instance id and its UUID, since ids are given out again;
//! - nothing here bills anybody: charges follow from what is held, not from what sensors say.

pub mod figure;
pub mod hold;
pub mod ring;

pub use figure::{Figure, Figures};
pub use hold::{DeviceUse, HoldSeen, HoldState, hold_state};
pub use ring::{Ring, Sample, Series};
