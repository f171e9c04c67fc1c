//! What a pass does, a file or folder each: start what waits, reserve for gangs, hand over, guard against starvation.
//!
//! What must stay true: a policy reads and changes the view and adds to the plan; policies do not call each other, except that whatever starts
//! goes through the gates ([`gate`]), which ask the starvation guard, and that whatever asks whether a job would start if others ended asks [`if_ended`].

pub(crate) mod gate;
pub(crate) mod grow;
pub(crate) mod guard;
pub(crate) mod hand_over;
pub(crate) mod if_ended;
pub(crate) mod moves;
pub(crate) mod reclaim;
pub(crate) mod reserve;
pub(crate) mod shrink;
mod stagger;
pub(crate) mod start;
mod victims;
