//! Checks of the workspace itself, run by CI and by hand: `cargo run -p muster-xtask -- check`.
//!
//! What must stay true: a check reads and reports, it changes nothing; every finding names the file or crate and the mend.

pub mod circles;
pub mod layers;
pub mod modules;
pub mod ratchet;
pub mod tests_total;
pub mod tidy;
pub mod words;

/// One thing that is not as it should be: where, what, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// File or crate.
    pub place: String,
    /// What is wrong and what to do.
    pub text: String,
}

impl Finding {
    /// A new one.
    pub fn new(place: impl Into<String>, text: impl Into<String>) -> Self {
        Finding { place: place.into(), text: text.into() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}
