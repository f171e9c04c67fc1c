//! Vocabularies: how the variants of an enum are written in files, on the command line and on the wire.
//!
//! What must stay true: each variant has one word, which is what it prints and what it is read from. A word that is none of them is refused
//! together with all that are known, never guessed.

/// A word that a vocabulary does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}; known: {}", self.problem(), self.known.join(", "))]
pub struct UnknownWord {
    /// What the vocabulary names: `topology level`.
    pub what: &'static str,
    /// What was written.
    pub got: String,
    /// All its words.
    pub known: &'static [&'static str],
}

impl UnknownWord {
    /// What is wrong, without the words that are known.
    #[must_use]
    pub fn problem(&self) -> String {
        format!("unknown {} {:?}", self.what, self.got)
    }

    /// What to write instead.
    #[must_use]
    pub fn fix(&self) -> String {
        format!("use one of: {}", self.known.join(", "))
    }
}

/// Gives an enum of unit variants its words: `Display`, and `FromStr` in any case of letters.
macro_rules! words {
    ($type:ty, $what:literal, $($variant:path => $word:literal),+ $(,)?) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $($variant => $word),+ })
            }
        }
        impl std::str::FromStr for $type {
            type Err = $crate::words::UnknownWord;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text.trim().to_ascii_lowercase().as_str() {
                    $($word => Ok($variant),)+
                    other => Err($crate::words::UnknownWord { what: $what, got: other.to_owned(), known: &[$($word),+] }),
                }
            }
        }
    };
}
pub(crate) use words;
